//! Who makes a plan of a request, and who else judges it (jobs.md §9). The engine itself never
//! interprets language: a job can carry its plan, and then neither is called.

use std::time::Duration;

use serde_json::Value;

use crate::gear::{Failure, Later};
use crate::plan::Plan;
use crate::policy::Verdict;

/// What a planner is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanAsked {
    /// The job, for the log.
    pub job: String,
    /// What somebody wants.
    pub request: String,
    /// Why the last plan will not do; nothing the first time.
    pub revise: Option<String>,
    /// What has happened under the plan before, when there is one (jobs.md §5).
    pub so_far: Option<SoFar>,
    /// How long it may take.
    pub timeout: Duration,
}

/// What a new plan must know of the old one.
#[derive(Debug, Clone, PartialEq)]
pub struct SoFar {
    /// The plan.
    pub plan: Value,
    /// Steps that were done: id, result, and what they did to the world.
    pub completed: Vec<(String, Value, Vec<String>)>,
    /// The step that failed: id, error, attempts.
    pub failed: Vec<(String, Value, u32)>,
}

/// What a planner is told beside every request for another plan.
pub const REPLANNING_RULES: &[&str] = &[
    "do not redo completed steps",
    "do not undo effects unless the new approach needs it",
    "change only what remains",
    "add a missing prerequisite and retry",
    "report a permanent failure instead of repeating it",
    "give changed work a new step id",
];

/// What a planner says.
#[derive(Debug, Clone, PartialEq)]
pub enum Planned {
    /// Do this.
    Plan(Plan),
    /// There is nothing to do: this is the answer.
    Answer(Value),
}

/// Makes plans.
pub trait Planner: Send + Sync {
    /// A plan, or why there is none.
    fn plan(&self, asked: PlanAsked) -> Later<'_, Result<Planned, Failure>>;
}

/// Judges plans beside the policy. It can make a verdict stricter, never milder, and sees no word
/// of the request.
pub trait Validator: Send + Sync {
    /// A verdict, and why.
    fn judge<'a>(&'a self, plan: &'a Plan) -> Later<'a, Result<(Verdict, String), Failure>>;
}

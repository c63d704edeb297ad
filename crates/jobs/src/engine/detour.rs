//! Another way for a job whose next action has an open breaker (jobs.md §7): whoever made its plan
//! is asked for one that does without. If there is none, the job is held as it is.

use std::sync::Arc;

use super::Inner;
use super::Leave;
use super::runner::{Go, PLANNING_MAX, Ride};
use crate::course;
use crate::course::{Move, Next};
use crate::dispatch::ExecutionStatus;
use crate::life::replan_allowed;
use crate::plan::{Plan, PlanText};
use crate::planner::Planned;

/// What a planner knows.
pub(super) enum Detour {
    /// This way is open.
    Plan(Plan),
    /// It knows none.
    Asked,
    /// There is nobody to ask, or it was asked often enough.
    NobodyAsked,
    /// The worker must go.
    Leave(Leave),
}

impl Ride {
    /// Asks for a way around an action. Every question counts as a new plan, so that a job that is
    /// held for long does not ask for ever.
    pub(super) async fn detour(&self, inner: &Arc<Inner>, action: &str) -> Detour {
        let job = &self.kept.job;
        let Some(planner) = &inner.parts.planner else { return Detour::NobodyAsked };
        if !replan_allowed(job.carries_plan, job.state.replan_count) {
            return Detour::NobodyAsked;
        }
        let timeout = PLANNING_MAX.min(self.left(inner.now()));
        let mut asked = self.asked(inner, timeout).await;
        asked.revise = Some(format!(
            "{action} fails too often at the moment and cannot be used: do without it, or give \
             the same plan again to wait for it"
        ));
        let planning = tokio::time::timeout(timeout, planner.plan(asked));
        match self.unless_told(planning).await {
            Err(why) => Detour::Leave(why),
            Ok(Ok(Ok(Planned::Plan(plan)))) if self.is_open(inner, &plan) => Detour::Plan(plan),
            // An answer is not what its finished steps have led to, and a planner that fails is no
            // reason to give up what can wait.
            Ok(Ok(Ok(Planned::Plan(_) | Planned::Answer(_)) | Err(_)) | Err(_)) => Detour::Asked,
        }
    }

    /// Whether nothing that is left to do in a plan has an open breaker.
    fn is_open(&self, inner: &Inner, plan: &Plan) -> bool {
        let done = |id: &str| {
            let line = self.kept.executions.iter().find(|line| line.step_id == id);
            line.is_some_and(|line| line.status == ExecutionStatus::Completed)
        };
        let mut left = plan.steps.iter().filter(|step| !done(&step.id));
        left.all(|step| {
            // What stands for the result of another step says nothing of where it goes.
            let found = inner.parts.gears.find(&step.gear, &step.action);
            found.is_ok_and(|prepared| inner.breakers.is_closed(&prepared.breaker(&step.params)))
        })
    }

    /// Goes on with another plan.
    pub(super) async fn take_detour(&mut self, inner: &Inner, action: &str, plan: Plan) -> Go {
        let mut step = Move::of(&self.kept, inner.now());
        course::replan_around(&mut step, action, PlanText::from(plan.to_canonical()));
        if inner.parts.validator.is_some() {
            return self.carry_out(inner, (step, Next::Validate)).await;
        }
        let decided = inner.with_facts(|facts| course::judge(step, &self.kept, facts, None));
        self.carry_out(inner, decided).await
    }
}

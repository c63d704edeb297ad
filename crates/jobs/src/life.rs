//! A job's life (jobs.md §3), row for row. Guards that are counters stand beside the table
//! ([`revision_allowed`], [`replan_allowed`]); what is not in it is illegal.

use semel_core::status;

use JobEvent as E;
use JobStatus as S;

use crate::limits::{REPLANS_MAX, REVISIONS_MAX};

status! {
    /// Where a job stands.
    pub enum JobStatus {
        /// Waits for a worker.
        Pending = "pending",
        /// A planner makes its plan.
        Planning = "planning",
        /// The validator judges its plan.
        Validating = "validating",
        /// A person is asked.
        AwaitingApproval = "awaiting_approval",
        /// Its steps run.
        Executing = "executing",
        /// No step is left.
        Completed = "completed",
        /// It was given up; its class says why.
        Failed = "failed",
        /// A person did not want it.
        Cancelled = "cancelled",
    }
}

impl JobStatus {
    /// Whether anything can still happen to it.
    pub const fn is_terminal(self) -> bool {
        matches!(self, S::Completed | S::Failed | S::Cancelled)
    }
}

status! {
    /// What happens to a job.
    pub enum JobEvent {
        /// A worker claims a job without a plan.
        Claim = "claim",
        /// A worker claims a job that carries a plan.
        ClaimPlan = "claim_plan",
        /// A worker claims a job whose approved plan was held.
        ClaimHeld = "claim_held",
        /// The planner returns a plan.
        Planned = "planned",
        /// The planner answers without a plan.
        Answered = "answered",
        /// The planner cannot be reached.
        PlannerLost = "planner_lost",
        /// The validator has nothing against the plan.
        Approved = "approved",
        /// A person must see it first.
        NeedsPerson = "needs_person",
        /// The plan must be made better.
        NeedsRevision = "needs_revision",
        /// The plan is refused.
        Rejected = "rejected",
        /// A person approves this very plan.
        PersonApproved = "person_approved",
        /// A person rejects it.
        PersonRejected = "person_rejected",
        /// Nobody has answered in time.
        ApprovalExpired = "approval_expired",
        /// No step is left.
        Finished = "finished",
        /// A step failed for good, and another plan may do.
        Replan = "replan",
        /// A step failed for good, and nothing else is left.
        StepFailed = "step_failed",
        /// A step may have happened, and only a person can tell.
        Unsure = "unsure",
        /// The breaker of its next step is open.
        BreakerOpen = "breaker_open",
        /// Its time is over.
        DeadlinePassed = "deadline_passed",
        /// Too many workers died over it.
        WorkersDied = "workers_died",
        /// A person cancels it.
        Cancel = "cancel",
    }
}

/// The table. What is not here is illegal.
#[rustfmt::skip]
pub const JOB: &[(S, E, S)] = &[
    (S::Pending,          E::Claim,           S::Planning        ),
    (S::Pending,          E::ClaimPlan,       S::Validating      ),
    (S::Pending,          E::ClaimHeld,       S::Executing       ),
    (S::Planning,         E::Planned,         S::Validating      ),
    (S::Planning,         E::Answered,        S::Completed       ),
    (S::Planning,         E::PlannerLost,     S::Failed          ),
    (S::Validating,       E::Approved,        S::Executing       ),
    (S::Validating,       E::NeedsPerson,     S::AwaitingApproval),
    (S::Validating,       E::NeedsRevision,   S::Planning        ), // revision_allowed
    (S::Validating,       E::Rejected,        S::Failed          ),
    (S::AwaitingApproval, E::PersonApproved,  S::Executing       ), // its grant is consumed
    (S::AwaitingApproval, E::PersonRejected,  S::Cancelled       ),
    (S::AwaitingApproval, E::ApprovalExpired, S::Cancelled       ),
    (S::Executing,        E::Finished,        S::Completed       ),
    (S::Executing,        E::Replan,          S::Planning        ), // replan_allowed
    (S::Executing,        E::StepFailed,      S::Failed          ),
    (S::Executing,        E::Unsure,          S::AwaitingApproval),
    (S::Executing,        E::NeedsPerson,     S::AwaitingApproval), // the policy became stricter
    (S::Executing,        E::BreakerOpen,     S::Pending         ),
    (S::Planning,         E::DeadlinePassed,  S::Failed          ),
    (S::Validating,       E::DeadlinePassed,  S::Failed          ),
    (S::Executing,        E::DeadlinePassed,  S::Failed          ),
    (S::Planning,         E::WorkersDied,     S::Failed          ),
    (S::Validating,       E::WorkersDied,     S::Failed          ),
    (S::Executing,        E::WorkersDied,     S::Failed          ),
    (S::Pending,          E::Cancel,          S::Cancelled       ),
    (S::Planning,         E::Cancel,          S::Cancelled       ),
    (S::Validating,       E::Cancel,          S::Cancelled       ),
    (S::AwaitingApproval, E::Cancel,          S::Cancelled       ),
    (S::Executing,        E::Cancel,          S::Cancelled       ),
];

/// Where an event leads; nothing when it is illegal.
pub fn next(from: JobStatus, event: JobEvent) -> Option<JobStatus> {
    let row = JOB.iter().find(|(status, happens, _)| (*status, *happens) == (from, event));
    row.map(|(.., to)| *to)
}

/// Who made a plan may make it better; the plan that came with a job is what it is.
pub fn revision_allowed(carried: bool, revision_count: u32) -> bool {
    !carried && revision_count < REVISIONS_MAX
}

/// Whether another plan may be tried after a step failed for good.
pub fn replan_allowed(carried: bool, replan_count: u32) -> bool {
    !carried && replan_count < REPLANS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_testkit::tables::{Life, equals_document, well_formed};

    #[test]
    fn the_table_is_well_formed() {
        well_formed(&Life {
            rows: JOB,
            states: JobStatus::ALL,
            events: JobEvent::ALL,
            initial: JobStatus::Pending,
            terminal: &[JobStatus::Completed, JobStatus::Failed, JobStatus::Cancelled],
        });
    }

    #[test]
    fn the_document_shows_it() {
        let document = include_str!("../../../docs/jobs.md");
        let rows = JOB.iter().map(|(from, event, to)| [from.as_str(), event.as_str(), to.as_str()]);
        equals_document(document, "job", rows);
    }

    #[test]
    fn decisions_of_models_are_bounded() {
        // Each plan is one decision to plan and one to validate; a plan may be revised, and the
        // whole may be planned anew (jobs.md §3: at most 24).
        let plans = (1 + REPLANS_MAX) * (1 + REVISIONS_MAX);
        assert_eq!(plans * 2, 24);
        let count =
            |allowed: fn(bool, u32) -> bool| (0..100).filter(|n| allowed(false, *n)).count();
        assert_eq!((count(revision_allowed), count(replan_allowed)), (3, 2));
        assert!(!revision_allowed(true, 0) && !replan_allowed(true, 0));
    }
}

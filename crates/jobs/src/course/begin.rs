//! The first move of a claim, and the verdict on a plan.

use std::sync::Arc;

use semel_core::refusal::Refusal;
use serde_json::{Map, Value, json};

use super::{Facts, Move, Next, action_name, permits, steps};
use crate::dispatch::ExecutionStatus;
use crate::gear::{Failure, FailureClass};
use crate::life::{JobEvent, JobStatus, revision_allowed};
use crate::limits::DEATHS_MAX;
use crate::plan::{Plan, PlanText, check};
use crate::policy::Verdict;
use crate::store::{Claim, Execution, Kept};

/// A worker takes a job: the claim itself and, in the same transaction, everything that follows
/// from it without asking anybody. Nothing is to be written of a job that is left to another.
pub fn begin(kept: &Kept, claim: &Claim, facts: &Facts<'_>) -> (Move, Next) {
    let mut next = Move::of(kept, claim.now);
    let in_time = kept.job.state.deadline_at.is_none_or(|deadline| deadline > claim.now);
    if in_time && is_for_another(kept, facts) {
        return (next, Next::Left);
    }
    next.claim(claim, died_over(kept));
    let state = &next.advance().state;
    if state.deaths >= DEATHS_MAX {
        let message = format!("{} workers died while they had the job", state.deaths);
        let failure = Failure::new(FailureClass::GearBug, "workers_died", message);
        close_started(&mut next, kept);
        next.fail(JobEvent::WorkersDied, &failure, None);
        return (next, Next::Over);
    }
    match kept.job.state.status {
        JobStatus::Pending if kept.job.state.held_by.is_some() => {
            next.happen(JobEvent::ClaimHeld, Map::new());
            next.state().held_by = None;
        }
        JobStatus::Pending if kept.job.state.plan.is_some() => {
            next.happen(JobEvent::ClaimPlan, Map::new());
        }
        JobStatus::Pending => next.happen(JobEvent::Claim, Map::new()),
        JobStatus::Planning | JobStatus::Validating | JobStatus::Executing => {}
        // Nobody claims these: they are in no index that a claim reads.
        JobStatus::AwaitingApproval
        | JobStatus::Completed
        | JobStatus::Failed
        | JobStatus::Cancelled => next.release(None),
    }
    let over = next.advance().state.deadline_at.is_some_and(|deadline| deadline <= claim.now);
    match next.status() {
        JobStatus::Planning | JobStatus::Validating | JobStatus::Executing if over => {
            close_started(&mut next, kept);
            late(&mut next);
            (next, Next::Over)
        }
        JobStatus::Planning => (next, Next::Plan),
        JobStatus::Validating if facts.more_validators => (next, Next::Validate),
        JobStatus::Validating => judge(next, kept, facts, None),
        JobStatus::Executing => steps::follow(next, kept, facts, Vec::new()),
        JobStatus::Pending
        | JobStatus::AwaitingApproval
        | JobStatus::Completed
        | JobStatus::Failed
        | JobStatus::Cancelled => (next, Next::Over),
    }
}

/// Whether its last worker died and this job may be why: one that only waited for its turn beside
/// others has done nothing to anybody.
fn died_over(kept: &Kept) -> bool {
    let state = &kept.job.state;
    // What is uncertain may have been asked about: that runs the gear, too.
    let ran = |line: &Execution| line.status == ExecutionStatus::Started || !line.certain;
    let waited = state.status == JobStatus::Executing && !kept.executions.iter().any(ran);
    state.worker.is_some() && !waited
}

/// Whether the steps that are not done need a gear or a secret that another home has and this one
/// has not. Whoever has the job's files goes on with it.
fn is_for_another(kept: &Kept, facts: &Facts<'_>) -> bool {
    let state = &kept.job.state;
    if facts.home.is_none() || state.home.as_deref() == facts.home {
        return false;
    }
    let Some(Ok(plan)) = state.plan.as_ref().map(PlanText::plan) else { return false };
    let done = |id: &str| {
        let mut lines = kept.executions.iter();
        lines.any(|line| line.step_id == id && line.status == ExecutionStatus::Completed)
    };
    let left = plan.steps.iter().filter(|step| !done(&step.id));
    let actions: Vec<String> = left.map(|step| action_name(&step.gear, &step.action)).collect();
    (facts.for_another)(&actions, kept.job.created_at)
}

/// The job's time is over.
pub(super) fn late(next: &mut Move) {
    let message = "the job's time ended before its steps were done";
    let failure = Failure::new(FailureClass::Transient, "deadline_passed", message);
    next.fail(JobEvent::DeadlinePassed, &failure, None);
}

/// What was begun by somebody who is gone will not be gone on with.
pub(crate) fn close_started(next: &mut Move, kept: &Kept) {
    let open = |status| status == ExecutionStatus::Started;
    for line in kept.executions.iter().filter(|line| open(line.status)) {
        next.end(steps::crashed(&line.step_id));
    }
}

/// The verdict on the plan: the policy's, made stricter by another validator's if there is one.
pub fn judge(
    mut next: Move,
    kept: &Kept,
    facts: &Facts<'_>,
    other: Option<(Verdict, String)>,
) -> (Move, Next) {
    let text = next.advance().state.plan.clone();
    let refused = |refusal: &Refusal| (refusal.code.as_str().to_owned(), refusal.to_string());
    let checked = match text.as_ref().map(PlanText::plan) {
        None => Err(("no_plan".to_owned(), "there is no plan".to_owned())),
        Some(Err(refusal)) => Err(refused(refusal)),
        Some(Ok(plan)) => match check(plan, facts.gears) {
            Err(refusal) => Err(refused(&refusal)),
            Ok(()) => reused(plan, kept).map(|()| plan),
        },
    };
    let plan = match checked {
        Ok(plan) => plan,
        Err((code, message)) => {
            let failure = Failure::new(FailureClass::UserError, &code, message);
            return revise_or_fail(next, kept, &failure);
        }
    };
    if let Some(why) = not_permitted(plan, kept, facts) {
        let failure = Failure::new(FailureClass::PlanRejected, "permission_missing", why);
        next.fail(JobEvent::Rejected, &failure, None);
        return (next, Next::Over);
    }
    let action_of = |step: &crate::plan::Step| {
        let found = facts.gears.find(&step.gear, &step.action);
        found.ok().map(|prepared| Arc::clone(&prepared.action))
    };
    let (own, about) = facts.policy.judge_plan(plan, action_of, kept.job.asked_by());
    let stricter = other.filter(|(verdict, _)| *verdict > own);
    let (verdict, other) = stricter.map_or((own, None), |(other, why)| (other, Some(why)));
    let reason =
        || other.unwrap_or_else(|| format!("the policy says {own} for {}", about.join(", ")));
    match verdict {
        Verdict::Approve => {
            next.happen(JobEvent::Approved, Map::new());
            next.state().consent = Some(verdict);
            steps::follow(next, kept, facts, Vec::new())
        }
        Verdict::Ask => {
            let question = json!({
                "kind": "plan", "steps": about, "plan_hash": plan.hash().to_string(),
                "reason": reason(),
            });
            next.ask(JobEvent::NeedsPerson, &question, facts.approval_timeout);
            (next, Next::Over)
        }
        Verdict::Reject => {
            let failure = Failure::new(FailureClass::PlanRejected, "plan_rejected", reason());
            next.fail(JobEvent::Rejected, &failure, None);
            (next, Next::Over)
        }
    }
}

/// Why the gear that asked for the job may not have this plan done.
fn not_permitted(plan: &Plan, kept: &Kept, facts: &Facts<'_>) -> Option<String> {
    plan.steps.iter().find_map(|step| {
        let prepared = facts.gears.find(&step.gear, &step.action).ok()?;
        permits::lacks(kept, step, &prepared, &step.params, facts)
    })
}

/// A plan that cannot be run goes back to who made it, if it was made here.
fn revise_or_fail(mut next: Move, kept: &Kept, failure: &Failure) -> (Move, Next) {
    if revision_allowed(kept.job.carries_plan, next.advance().state.revision_count) {
        let mut more = Map::new();
        more.insert("reason".to_owned(), failure.message.clone().into());
        next.happen(JobEvent::NeedsRevision, more);
        next.state().revision_count += 1;
        return (next, Next::Plan);
    }
    next.fail(JobEvent::Rejected, failure, None);
    (next, Next::Over)
}

/// A name that was used for other work would be given that work's result.
fn reused(plan: &Plan, kept: &Kept) -> Result<(), (String, String)> {
    let other = |step: &&crate::plan::Step| {
        let line = kept.executions.iter().find(|line| line.step_id == step.id);
        line.is_some_and(|line| line.fingerprint != step.fingerprint())
    };
    match plan.steps.iter().find(other) {
        None => Ok(()),
        Some(step) => {
            let message = format!("the step {:?} was run before with other content", step.id);
            Err(("step_id_reused_with_different_content".to_owned(), message))
        }
    }
}

/// What a person sees of a question.
pub(crate) fn question_of(kept: &Kept) -> Value {
    let text = kept.job.state.question.as_deref();
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null)
}

/// Tells the questions of a job apart: the line of its ledger that asks. Nothing is written while a
/// job waits for a person.
pub(crate) fn question_no(kept: &Kept) -> i64 {
    kept.job.state.entries
}

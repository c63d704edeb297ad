//! What follows: walks the plan from its first step by what the execution log says, group by group,
//! until something is to be done.

use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use serde_json::{Map, Value, json};

use super::begin::late;
use super::moves::failure_of;
use super::{Facts, Move, Next, ToRun, action_name, permits};
use crate::dispatch::{Attempts, Content, Dispatch, ExecutionStatus, Logged, dispatch};
use crate::gear::manifest::Recovery;
use crate::gear::registry::{Missing, Prepared};
use crate::gear::{Failure, FailureClass, ORIGIN_UNKNOWN};
use crate::life::{JobEvent, replan_allowed};
use crate::limits::{ATTEMPTS_MAX, DOCUMENT_BYTES_MAX, ORIGIN_PAUSE, RETRY_BASE, RETRY_CAP};
use crate::plan::{Outcome, Outcomes, PlanText, Step, StepInput, digest, input};
use crate::policy::{Judged, Verdict};
use crate::store::{Ended, Kept, Started};

/// The line of an attempt whose worker is gone.
pub(super) fn crashed(step_id: &str) -> Ended {
    let error = json!({
        "class": "gear_bug", "code": "crashed",
        "message": "the worker was lost before the step ended",
    });
    Ended {
        step_id: step_id.to_owned(),
        status: ExecutionStatus::Failed,
        certain: false,
        result: None,
        artifact: None,
        error: Some(error.to_string()),
        attempts_forgiven: false,
    }
}

/// Writes down what has ended, and finds what is next.
pub fn follow(mut next: Move, kept: &Kept, facts: &Facts<'_>, ended: Vec<Ended>) -> (Move, Next) {
    ended.into_iter().for_each(|ended| next.end(ended));
    let text = next.advance().state.plan.clone().unwrap_or_else(|| PlanText::from(""));
    let plan = match text.plan() {
        Ok(plan) => plan,
        Err(refusal) => {
            let message = refusal.to_string();
            let failure = Failure::new(FailureClass::UserError, "invalid_plan", message);
            return give_up(next, kept, &failure, None);
        }
    };
    if next.advance().state.deadline_at.is_some_and(|deadline| deadline <= next.advance().now) {
        late(&mut next);
        return (next, Next::Over);
    }
    let mut outcomes = Outcomes::new();
    let mut place = 0;
    while place < plan.steps.len() {
        let group = plan.group_at(place);
        next.state().step_index = u32::try_from(place).unwrap_or(u32::MAX);
        let mut found = Group::default();
        for step in &plan.steps[group.clone()] {
            found.look(step, &mut next, kept, &outcomes, facts);
        }
        if let Some(stop) = found.stop(next.advance().now) {
            return stop.carry_out(next, kept, facts);
        }
        outcomes.extend(found.outcomes);
        place = group.end;
    }
    next.state().step_index = u32::try_from(place).unwrap_or(u32::MAX);
    next.happen(JobEvent::Finished, Map::new());
    (next, Next::Over)
}

/// What the log says of a step once the move is written.
#[derive(Clone, Copy)]
struct Seen<'a> {
    status: ExecutionStatus,
    certain: bool,
    result: Option<&'a str>,
    error: Option<&'a str>,
    completed_at: Option<UnixMs>,
    fingerprint: &'a Hex<32>,
    /// As whom the last attempt acted.
    via: Option<&'a str>,
    /// Attempts in this job and plan. The plan may be a new one, under which everything may be
    /// tried as often as at first.
    used: u32,
}

fn seen<'a>(next: &'a Move, kept: &'a Kept, step: &Step) -> Option<Seen<'a>> {
    let line = kept.executions.iter().find(|line| line.step_id == step.id)?;
    let advance = next.advance();
    let same = line.job_no == kept.job.no && line.plan_no == advance.state.plan_no;
    let ended = advance.ended.iter().rfind(|ended| ended.step_id == step.id);
    let (fingerprint, used) = (&line.fingerprint, if same { line.attempts } else { 0 });
    Some(match ended {
        None => Seen {
            status: line.status,
            certain: line.certain,
            result: line.result.as_deref(),
            error: line.error.as_deref(),
            completed_at: line.completed_at,
            fingerprint,
            via: line.via.as_deref(),
            used,
        },
        Some(ended) => Seen {
            status: ended.status,
            certain: ended.certain,
            result: ended.result.as_deref(),
            error: ended.error.as_deref(),
            completed_at: Some(advance.now),
            fingerprint,
            via: line.via.as_deref(),
            used,
        },
    })
}

/// What a group of steps comes to.
#[derive(Default)]
struct Group {
    outcomes: Outcomes,
    run: Vec<(ToRun, UnixMs)>,
    resolve: Option<ToRun>,
    ask: Option<String>,
    /// Steps of which the policy says more by now than anybody has consented to.
    stricter: Vec<String>,
    fail: Option<(Failure, String)>,
}

/// What the policy says of a step now that it is known what its references stand for: the plan was
/// judged before that (trap 63).
fn judge(
    step: &Step,
    prepared: &Prepared,
    params: &Value,
    kept: &Kept,
    facts: &Facts<'_>,
) -> Result<Verdict, Failure> {
    let refused = |code, message| Failure::new(FailureClass::PlanRejected, code, message);
    if let Some(why) = permits::lacks(kept, step, prepared, params, facts) {
        return Err(refused("permission_missing", why));
    }
    let judged = Judged { params, ..Judged::of(step, &prepared.action, kept.job.asked_by()) };
    match facts.policy.judge(&judged) {
        Verdict::Reject => {
            let action = action_name(&step.gear, &step.action);
            let message = format!("the policy rejects {action} with the values of its references");
            Err(refused("policy_rejects", message))
        }
        verdict @ (Verdict::Approve | Verdict::Ask) => Ok(verdict),
    }
}

/// Why a step cannot be begun, whose gear could be used when its plan was made.
fn unusable(step: &Step, missing: Missing) -> Failure {
    let (code, message) = match missing {
        Missing::Disabled => ("gear_disabled", format!("{} is disabled", step.gear)),
        Missing::Gear | Missing::Action => {
            let action = action_name(&step.gear, &step.action);
            ("gear_not_found", format!("{action} does not exist any more"))
        }
    };
    Failure::new(FailureClass::UserError, code, message)
}

/// Why the walk ends here.
enum Halt {
    Fail(Failure, String),
    Ask(String),
    AskAgain(Vec<String>),
    Resolve(ToRun),
    Run(Vec<ToRun>),
    Wait(UnixMs),
}

impl Group {
    fn look(
        &mut self,
        step: &Step,
        next: &mut Move,
        kept: &Kept,
        outcomes: &Outcomes,
        facts: &Facts<'_>,
    ) {
        let action = action_name(&step.gear, &step.action);
        let params = match input(step, outcomes) {
            StepInput::Run(params) => params,
            StepInput::Skip => {
                self.outcomes.insert(step.id.clone(), Outcome::Skipped);
                return;
            }
            StepInput::Dangling(reference) => {
                let message = format!("{reference} refers to a missing value");
                let code = "reference_unresolved";
                let failure = Failure::new(FailureClass::UserError, code, message);
                return self.failed(step, failure, action);
            }
            StepInput::TooLarge => {
                let message = format!(
                    "with the values of its references it has more than {DOCUMENT_BYTES_MAX} bytes"
                );
                let class = FailureClass::ResourceLimit;
                let failure = Failure::new(class, "params_too_large", message);
                return self.failed(step, failure, action);
            }
        };
        let line = seen(next, kept, step);
        // What was done is done, whatever became of its gear since.
        if let Some(line) = line.filter(|line| line.status == ExecutionStatus::Completed)
            && *line.fingerprint == step.fingerprint()
        {
            let result = line.result.map(serde_json::from_str);
            let result = result.and_then(Result::ok).unwrap_or(Value::Null);
            self.outcomes.insert(step.id.clone(), Outcome::Done(Arc::new(result)));
            return;
        }
        let prepared = match facts.gears.find(&step.gear, &step.action) {
            Ok(prepared) => prepared,
            Err(_) if self.may_have_happened(step, next, kept) => return,
            Err(missing) => return self.failed(step, unusable(step, missing), action),
        };
        if let Err(detail) = prepared.check_params(&params) {
            let failure = Failure::new(FailureClass::UserError, "invalid_params", detail);
            return self.failed(step, failure, action);
        }
        let verdict = match judge(step, &prepared, &params, kept, facts) {
            Ok(verdict) => verdict,
            Err(_) if self.may_have_happened(step, next, kept) => return,
            Err(failure) => return self.failed(step, failure, action),
        };
        let used = line.map_or(0, |line| line.used);
        let to_run = ToRun {
            risk: step.risk,
            verdict,
            step_id: step.id.clone(),
            breaker: prepared.breaker(&params),
            probe: None,
            name: step.action.clone(),
            params,
            fingerprint: step.fingerprint(),
            attempt: used + 1,
            timeout: step.timeout.unwrap_or(prepared.action.timeout),
            fail_fast: !step.continue_on_failure,
            action,
            prepared,
        };
        self.decide(step, next, kept, to_run, facts);
    }

    /// What was begun and is not known to have ended is asked about, gear or no gear.
    fn may_have_happened(&mut self, step: &Step, next: &mut Move, kept: &Kept) -> bool {
        for _ in 0..2 {
            let (logged, content, attempts) = facts_of(seen(next, kept, step), step);
            match dispatch(logged, content, attempts, Recovery::Ask) {
                Dispatch::Close => next.end(crashed(&step.id)),
                Dispatch::Ask => {
                    self.ask = Some(step.id.clone());
                    return true;
                }
                Dispatch::Start
                | Dispatch::Recorded
                | Dispatch::Resolve
                | Dispatch::GiveUp
                | Dispatch::Refuse => return false,
            }
        }
        false
    }

    fn decide(
        &mut self,
        step: &Step,
        next: &mut Move,
        kept: &Kept,
        to_run: ToRun,
        facts: &Facts<'_>,
    ) {
        // At most twice: once to close what was left open, once to see what follows from that.
        for _ in 0..2 {
            let line = seen(next, kept, step);
            let (logged, content, attempts) = facts_of(line, step);
            // As somebody else it would not be the same effect again, but another one.
            let origin = to_run.prepared.gear.origin();
            // Nothing leaves as nobody.
            let via = line.and_then(|line| line.via).filter(|via| *via != ORIGIN_UNKNOWN);
            if via.is_some() && origin.as_deref() == Some(ORIGIN_UNKNOWN) {
                let until = next.advance().now.saturating_add(ORIGIN_PAUSE);
                self.run.push((to_run, until));
                return;
            }
            let elsewhere = via.is_some_and(|via| Some(via) != origin.as_deref());
            let recovery = match elsewhere {
                true => Recovery::Ask,
                false => to_run.prepared.recovery(&to_run.params),
            };
            let failure = || line.and_then(|line| line.error).map(failure_of);
            match dispatch(logged, content, attempts, recovery) {
                Dispatch::Start if is_without_files(kept, &to_run, facts) => {
                    let message = "its files are in a home whose engine is gone: submit it anew";
                    let class = FailureClass::ResourceLimit;
                    let failure = Failure::new(class, "workspace_lost", message);
                    return self.failed(step, failure, to_run.action);
                }
                // The policy, or what its action says of itself, is another one than that which its
                // plan was approved by.
                Dispatch::Start if is_stricter(next, &to_run) => {
                    self.stricter.push(step.id.clone());
                    return;
                }
                Dispatch::Start => {
                    let failed = line.and_then(|line| line.completed_at.zip(failure()));
                    let earliest = failed.map_or(UnixMs(0), |(at, failure)| {
                        at.saturating_add(wait(to_run.attempt - 1, &failure, facts.random))
                    });
                    self.run.push((to_run, earliest));
                    return;
                }
                Dispatch::Recorded => return,
                Dispatch::Close => next.end(crashed(&step.id)),
                Dispatch::Resolve => {
                    self.resolve = Some(to_run);
                    return;
                }
                Dispatch::Ask => {
                    self.ask = Some(step.id.clone());
                    return;
                }
                Dispatch::GiveUp => {
                    let unknown =
                        || Failure::new(FailureClass::GearBug, "unknown", "the reason is unknown");
                    let failure = failure().unwrap_or_else(unknown);
                    return self.failed(step, failure, to_run.action);
                }
                Dispatch::Refuse => {
                    let code = "step_id_reused_with_different_content";
                    let message = format!("the step {:?} was run with other content", step.id);
                    let failure = Failure::new(FailureClass::UserError, code, message);
                    self.fail = Some((failure, to_run.action));
                    return;
                }
            }
        }
    }

    /// A step that failed for good ends its group, unless the plan goes on without it.
    fn failed(&mut self, step: &Step, failure: Failure, action: String) {
        if step.continue_on_failure {
            self.outcomes.insert(step.id.clone(), Outcome::Failed);
        } else if self.fail.is_none() {
            self.fail = Some((failure, action));
        }
    }

    /// The most pressing thing first: a failure ends it, a question is asked before anything else
    /// is begun, and what may begin now does.
    fn stop(&mut self, now: UnixMs) -> Option<Halt> {
        if let Some((failure, action)) = self.fail.take() {
            return Some(Halt::Fail(failure, action));
        }
        if let Some(to_run) = self.resolve.take() {
            return Some(Halt::Resolve(to_run));
        }
        if let Some(step) = self.ask.take() {
            return Some(Halt::Ask(step));
        }
        if !self.stricter.is_empty() {
            return Some(Halt::AskAgain(std::mem::take(&mut self.stricter)));
        }
        let run = std::mem::take(&mut self.run);
        let earliest = run.iter().map(|(_, at)| *at).min()?;
        if earliest > now {
            return Some(Halt::Wait(earliest));
        }
        let ready = run.into_iter().filter(|(_, at)| *at <= now).map(|(to_run, _)| to_run);
        Some(Halt::Run(ready.collect()))
    }
}

impl Halt {
    fn carry_out(self, mut next: Move, kept: &Kept, facts: &Facts<'_>) -> (Move, Next) {
        match self {
            Self::Fail(failure, action) => give_up(next, kept, &failure, Some(&action)),
            Self::Resolve(to_run) => (next, Next::Resolve(Box::new(to_run))),
            Self::Ask(step) => {
                ask_about(&mut next, &step, facts.approval_timeout);
                (next, Next::Over)
            }
            Self::AskAgain(steps) => {
                ask_again(&mut next, &steps, facts.approval_timeout);
                (next, Next::Over)
            }
            Self::Wait(until) => {
                // Whatever the other side wants: the job ends when its time is over.
                let until = next.advance().state.deadline_at.map_or(until, |at| at.min(until));
                next.release(Some(until));
                (next, Next::Wait(until))
            }
            Self::Run(run) if run.iter().all(|to_run| (facts.closed)(&to_run.breaker)) => {
                start(&mut next, &run, facts.home);
                (next, Next::Run(run))
            }
            Self::Run(run) => (next, Next::Admit(run)),
        }
    }
}

/// Whether it works with files that are in another home. A claim says that nobody works there.
fn is_without_files(kept: &Kept, to_run: &ToRun, facts: &Facts<'_>) -> bool {
    let home = kept.job.state.home.as_deref();
    let elsewhere = home.zip(facts.home).is_some_and(|(home, here)| home != here);
    elsewhere && to_run.prepared.gear.needs_workspace()
}

/// Whether it needs more than was consented to: nobody's word, or that of a person.
fn is_stricter(next: &Move, to_run: &ToRun) -> bool {
    to_run.verdict > next.advance().state.consent.unwrap_or(Verdict::Approve)
}

/// A person must see a plan that was approved by a milder rule.
fn ask_again(next: &mut Move, steps: &[String], patience: Duration) {
    let hash = next.advance().state.plan.as_deref().map(|plan| digest(plan.as_bytes()));
    let about = steps.join(", ");
    let question = json!({
        "kind": "plan", "steps": steps, "plan_hash": hash.map(|hash| hash.to_string()),
        "reason": format!("the policy became stricter: a person must now decide about {about}"),
    });
    next.ask(JobEvent::NeedsPerson, &question, patience);
}

/// Only a person can tell whether it happened.
pub(crate) fn ask_about(next: &mut Move, step: &str, patience: Duration) {
    let question = json!({
        "kind": "uncertain_step", "step": step, "reason": "this step may have happened",
        "answers": ["happened", "run", "cancel"],
    });
    next.ask(JobEvent::Unsure, &question, patience);
}

/// Writes down that these begin. What they write to the job's folder is in this home.
pub(crate) fn start(next: &mut Move, run: &[ToRun], home: Option<&str>) {
    if let Some(home) = home
        && run.iter().any(|to_run| to_run.prepared.gear.needs_workspace())
    {
        next.state().home = Some(home.to_owned());
    }
    for to_run in run {
        let (gear, _) = to_run.action.split_once('.').unwrap_or((&to_run.action, ""));
        next.start(Started {
            step_id: to_run.step_id.clone(),
            gear: gear.to_owned(),
            action: to_run.name.clone(),
            fingerprint: to_run.fingerprint,
            attempts: to_run.attempt,
            via: to_run.prepared.gear.origin(),
        });
    }
}

/// A step failed for good: another plan, if one may be made, or the end.
fn give_up(mut next: Move, kept: &Kept, failure: &Failure, action: Option<&str>) -> (Move, Next) {
    if replan_allowed(kept.job.carries_plan, next.advance().state.replan_count) {
        replan(&mut next, failure);
        return (next, Next::Plan);
    }
    next.fail(JobEvent::StepFailed, failure, action);
    (next, Next::Over)
}

fn replan(next: &mut Move, failure: &Failure) {
    let mut more = Map::new();
    more.insert("error".to_owned(), super::moves::error_of(failure));
    next.happen(JobEvent::Replan, more);
    let state = next.state();
    state.replan_count += 1;
    state.revision_count = 0;
}

/// The breaker of an action is open, and this plan does without it.
pub(crate) fn replan_around(next: &mut Move, action: &str, plan: PlanText) {
    let message = format!("the breaker of {action} is open, and there is another way");
    replan(next, &Failure::new(FailureClass::Transient, "breaker_open", message));
    next.plan(plan);
    next.happen(JobEvent::Planned, Map::new());
}

/// Whether a step that ended so will not be tried again in this plan.
pub fn for_good(to_run: &ToRun, ended: &Ended) -> bool {
    let transient = |error: &str| failure_of(error).class == FailureClass::Transient;
    let passing = ended.error.as_deref().is_some_and(transient);
    let spent = to_run.attempt >= ATTEMPTS_MAX;
    match (ended.status, ended.certain) {
        (ExecutionStatus::Failed, true) => spent || !passing,
        (ExecutionStatus::Failed, false) => {
            spent && to_run.prepared.recovery(&to_run.params) == Recovery::Idempotent
        }
        (ExecutionStatus::Started | ExecutionStatus::Completed, _) => false,
    }
}

fn facts_of(line: Option<Seen<'_>>, step: &Step) -> (Logged, Content, Attempts) {
    let Some(line) = line else { return (Logged::Nothing, Content::Same, Attempts::Left) };
    let content =
        if *line.fingerprint == step.fingerprint() { Content::Same } else { Content::Other };
    let logged = match (line.status, line.certain) {
        (ExecutionStatus::Started, _) => Logged::Crashed,
        (ExecutionStatus::Completed, _) => Logged::Completed,
        (ExecutionStatus::Failed, true) => Logged::Failed,
        (ExecutionStatus::Failed, false) => Logged::Uncertain,
    };
    let used = line.used;
    // A gear that says no will say no again, unless the reason may pass (traps.md 34).
    let passing = line.error.map(failure_of).is_none_or(|failure| {
        failure.class == FailureClass::Transient || logged == Logged::Uncertain
    });
    let left = used == 0 || (used < ATTEMPTS_MAX && passing);
    (logged, content, if left { Attempts::Left } else { Attempts::Spent })
}

/// min(1 s · 2ⁿ + jitter, 30 s) after the n-th failed attempt; the other side's word goes first.
fn wait(failed: u32, failure: &Failure, random: u64) -> Duration {
    if let Some(after) = failure.retry_after {
        return after;
    }
    // What may pass is given time to; a crash of ours is not the other side's trouble.
    if failed == 0 || failure.class != FailureClass::Transient {
        return Duration::ZERO;
    }
    let doubled = RETRY_BASE.saturating_mul(1 << (failed - 1).min(16));
    let jitter_ms = (u128::from(random) * RETRY_BASE.as_millis()) >> u64::BITS;
    let jitter = Duration::from_millis(u64::try_from(jitter_ms).unwrap_or(0));
    (doubled + jitter).min(RETRY_CAP)
}

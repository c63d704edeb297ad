//! How a job runs: dispatch, wait, write, again, until it is over or no longer ours. What is
//! written is decided in `course`; here it is carried out.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use semel_core::clock::UnixMs;
use semel_store::{Fate, StoreError};
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::desk::{Reports, Slot, StepDesk, tell};
use super::detour::Detour;
use super::flight::{self, Landed};
use super::lease::Place;
use super::{Inner, Leave, artifacts};
use crate::breaker::{Admission, BreakerState, Run};
use crate::course::{self, Move, Next, ToRun, follow, for_good};
use crate::gear::{Failure, FailureClass, Stop};
use crate::life::JobEvent;
use crate::limits::GRACE;
use crate::plan::PlanText;
use crate::planner::{PlanAsked, Planned, SoFar};
use crate::store::{Advance, Advanced, Ended, Kept, LedgerEvent};

/// How often what gears say is written, when nothing else is.
const REPORTS_FLUSH: Duration = Duration::from_millis(200);
/// Planning and validation, at the most (jobs.md §6).
pub(super) const PLANNING_MAX: Duration = Duration::from_secs(60);

/// A job under way.
pub(super) struct Ride {
    /// As it is in the store.
    pub(super) kept: Kept,
    pub(super) slot: Arc<Slot>,
    pub(super) leaving: watch::Receiver<Leave>,
    /// Given up when the job is left.
    pub(super) _place: Place,
    /// The engine's stop waits for it.
    pub(super) _under_way: watch::Receiver<()>,
}

/// Whether there is anything left for this worker.
pub(super) enum Go {
    On(Next),
    Out,
}

/// Until it is over, or somebody else's.
pub(super) async fn run(inner: Arc<Inner>, mut ride: Ride, first: Next) {
    let mut next = first;
    loop {
        let went = match next {
            Next::Run(run) => ride.fly(&inner, run).await,
            // Boxed, because every job is as large as the largest of these, and moved as a whole.
            Next::Admit(run) => Box::pin(ride.admit(&inner, run)).await,
            Next::Resolve(to_run) => Box::pin(ride.resolve(&inner, *to_run)).await,
            Next::Plan => Box::pin(ride.plan(&inner)).await,
            Next::Validate => Box::pin(ride.validate(&inner)).await,
            Next::Wait(_) | Next::Over | Next::Left => break,
        };
        match went {
            Go::On(after) => next = after,
            Go::Out => break,
        }
    }
    let job = &ride.kept.job;
    if ride.is_leaving() == Some(Leave::Lost) {
        Box::pin(artifacts::give_up_ended(&inner, job)).await;
    }
    // A pause or the next of its conversation may be due.
    let wakes = job.conversation.is_some() || !job.state.status.is_terminal();
    drop(ride);
    if wakes {
        inner.wake.notify_one();
    }
}

impl Ride {
    /// Writes a move. The result of a step is not thrown away because the store is not there: it
    /// is tried until it is written, or somebody else has the job. One that may be there is looked
    /// up before it is written again.
    async fn write(&mut self, inner: &Inner, advance: Advance) -> Result<(), Lost> {
        if advance.state.completed_at.is_some() {
            // Before its end is written: whoever repeats it may have one at once.
            Box::pin(artifacts::give_up_unused(inner, &self.kept)).await;
        }
        let advance = Arc::new(advance);
        let (mut failures, mut doubtful) = (0_u32, false);
        loop {
            // Whoever must leave does not wait for a store that is away. What was handed in may
            // still be written, by a fence that counts or does not.
            let mut leaving = self.leaving.clone();
            let written = tokio::select! {
                biased;
                written = write(inner, &advance, doubtful) => written,
                _ = leaving.wait_for(|leave| *leave == Leave::Lost) => return Err(Lost),
            };
            doubtful |= written.as_ref().is_err_and(|error| error.fate() == Fate::Uncertain);
            match written {
                Ok(Advanced::Written) => break,
                Ok(Advanced::Lost) => {
                    inner.metrics.lost();
                    tracing::info!(job = %self.kept.job.id, "another worker has the job now");
                    return Err(Lost);
                }
                Err(StoreError::Stopped) => return Err(Lost),
                // Trying it again would not make it true: its lease ends, and who claims it next
                // sees what is there.
                Err(error @ StoreError::Corrupt { .. }) => {
                    let (job, error) = (self.kept.job.id, error.chain());
                    tracing::error!(%job, error, "a job cannot be continued");
                    return Err(Lost);
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let (job, error) = (self.kept.job.id, error.chain());
                    tracing::warn!(%job, error, failures, "a job's move could not be written");
                    let random = (inner.parts.random)();
                    let pause = semel_core::backoff::backoff_delay(failures, random);
                    let mut leaving = self.leaving.clone();
                    let left = leaving.wait_for(|leave| *leave != Leave::Stay);
                    if Box::pin(tokio::time::timeout(pause, left)).await.is_ok() {
                        return Err(Lost);
                    }
                }
            }
        }
        self.kept.apply(&advance);
        if advance.state.completed_at.is_some() {
            inner.metrics.ended(advance.state.status, advance.state.failure_class);
            self.slot.free();
        }
        inner.tell(self.kept.job.id, self.kept.job.state.status);
        Ok(())
    }

    pub(super) async fn carry_out(&mut self, inner: &Inner, decided: (Move, Next)) -> Go {
        let (step, next) = decided;
        match self.write(inner, step.into_advance()).await {
            Ok(()) => Go::On(next),
            Err(Lost) => Go::Out,
        }
    }

    pub(super) fn left(&self, now: UnixMs) -> Duration {
        let deadline = self.kept.job.state.deadline_at.unwrap_or(now);
        Duration::from_millis(deadline.0.saturating_sub(now.0).max(0).cast_unsigned())
    }

    /// Runs steps that have begun, all at once, and writes how each ended; the last one together
    /// with what follows.
    async fn fly(&mut self, inner: &Arc<Inner>, run: Vec<ToRun>) -> Go {
        let (reports, mut heard) = Reports::channel();
        let (stop, _) = Stop::channel();
        let left = self.left(inner.now());
        // Somebody may have ended it since its claim was written.
        if let Some(why) = self.is_leaving() {
            return self.leave(inner, why).await;
        }
        let mut flights = FuturesUnordered::new();
        for to_run in run {
            flights.push(self.flight(inner, to_run, left, &stop, &reports));
        }
        let mut leaving = self.leaving.clone();
        let mut said = Vec::new();
        let mut flush = tokio::time::interval(REPORTS_FLUSH);
        loop {
            let landed = tokio::select! {
                biased;
                landed = flights.next() => landed,
                _ = flush.tick(), if !said.is_empty() => {
                    let mut step = Move::of(&self.kept, inner.now());
                    let _held = tell(&mut step, &mut said);
                    if self.write(inner, step.into_advance()).await.is_err() {
                        return Box::pin(self.abandon(stop, flights)).await;
                    }
                    continue;
                }
                report = heard.recv() => {
                    said.extend(report);
                    continue;
                }
                why = told_to_leave(&mut leaving) => {
                    Box::pin(self.abandon(stop, flights)).await;
                    return Box::pin(self.leave(inner, why)).await;
                }
            };
            let Some(Landed { to_run, ended, run }) = landed else { return Go::Out };
            let ended = flight::beside(&self.kept, &to_run, ended);
            if let Some(run) = run {
                // Others of the group run meanwhile, and must not outlive the claim.
                let noted = self.unless_told(note(inner, &to_run, run)).await;
                if let (Err(why), false) = (noted, flights.is_empty()) {
                    Box::pin(self.abandon(stop, flights)).await;
                    return Box::pin(self.leave(inner, why)).await;
                }
            }
            while let Ok(report) = heard.try_recv() {
                said.push(report);
            }
            if to_run.fail_fast && for_good(&to_run, &ended) {
                stop.send_replace(true);
            }
            let mut step = Move::of(&self.kept, inner.now());
            let _held = tell(&mut step, &mut said);
            if ended.artifact.is_some() && step.state().home.is_none() {
                step.state().home.clone_from(&inner.options.home);
            }
            if flights.is_empty() {
                let decided =
                    inner.with_facts(|facts| follow(step, &self.kept, facts, vec![ended]));
                return self.carry_out(inner, decided).await;
            }
            step.end(ended);
            if self.write(inner, step.into_advance()).await.is_err() {
                return Box::pin(self.abandon(stop, flights)).await;
            }
        }
    }

    fn flight(
        &self,
        inner: &Arc<Inner>,
        to_run: ToRun,
        left: Duration,
        stop: &watch::Sender<bool>,
        reports: &Reports,
    ) -> impl Future<Output = Landed> + use<> {
        let (slot, reports) = (Arc::clone(&self.slot), reports.clone());
        let desk = Arc::new(StepDesk::new(inner, &self.kept, &to_run, reports, slot));
        flight::fly(inner, &self.kept, to_run, left, stop, desk)
    }

    /// Stops what runs, waits until nothing of it is left, and writes nothing.
    async fn abandon<F>(&self, stop: watch::Sender<bool>, mut flights: FuturesUnordered<F>) -> Go
    where
        F: Future<Output = Landed>,
    {
        stop.send_replace(true);
        let all = async { while flights.next().await.is_some() {} };
        if tokio::time::timeout(GRACE * 2, all).await.is_err() {
            tracing::error!(job = %self.kept.job.id, "a gear did not end when it was told to");
        }
        Go::Out
    }

    /// Why the worker must go, if it must.
    fn is_leaving(&self) -> Option<Leave> {
        let leave = *self.leaving.borrow();
        (leave != Leave::Stay).then_some(leave)
    }

    /// The worker goes.
    pub(super) async fn leave(&mut self, inner: &Inner, why: Leave) -> Go {
        if why == Leave::Shutdown {
            self.let_go(inner).await;
        }
        Go::Out
    }

    /// Waits for somebody who only thinks, unless the worker must go.
    pub(super) async fn unless_told<T>(
        &self,
        thinking: impl Future<Output = T>,
    ) -> Result<T, Leave> {
        let mut leaving = self.leaving.clone();
        tokio::select! {
            biased;
            thought = thinking => Ok(thought),
            why = told_to_leave(&mut leaving) => Err(why),
        }
    }

    /// The engine stops: what was begun stays begun, and whoever comes next recovers it at once.
    async fn let_go(&mut self, inner: &Inner) {
        let now = inner.now();
        let mut step = Move::of(&self.kept, now);
        step.release(Some(now));
        let written = inner.parts.store.advance(step.into_advance()).await;
        if let Err(error) = written {
            tracing::warn!(error = error.chain(), "a claim was left to its lease");
        }
    }

    /// Asks the breakers; those of the group that may go do, or the job is held. One that was
    /// admitted goes whatever is said of its siblings: it may be the one probe that all wait for.
    async fn admit(&mut self, inner: &Arc<Inner>, run: Vec<ToRun>) -> Go {
        let now = inner.now();
        let (mut go, mut held) = (Vec::new(), None);
        for mut to_run in run {
            let (store, breakers) = (&inner.parts.store, &inner.breakers);
            let probe_time = to_run.timeout + GRACE * 2;
            let until = match breakers.admit(store, &to_run.breaker, now, probe_time).await {
                Ok(Admission::Through) => {
                    go.push(to_run);
                    continue;
                }
                Ok(Admission::Probe(number)) => {
                    to_run.probe = Some(number);
                    go.push(to_run);
                    continue;
                }
                Ok(Admission::Held(until)) => until,
                Err(error) => {
                    tracing::warn!(error = error.chain(), "a breaker could not be asked");
                    now.saturating_add(Duration::from_secs(1))
                }
            };
            held = held.or(Some((to_run.breaker, until)));
        }
        let mut step = Move::of(&self.kept, inner.now());
        match held {
            Some((action, until)) if go.is_empty() => {
                match self.detour(inner, &action).await {
                    Detour::Plan(plan) => return self.take_detour(inner, &action, plan).await,
                    Detour::Leave(why) => return self.leave(inner, why).await,
                    Detour::Asked => step.state().replan_count += 1,
                    Detour::NobodyAsked => {}
                }
                step.hold(&action, until);
                let out = self.carry_out(inner, (step, Next::Over)).await;
                self.look_again(inner, &action).await;
                out
            }
            Some(_) | None => {
                course::start(&mut step, &go, inner.options.home.as_deref());
                self.carry_out(inner, (step, Next::Run(go))).await
            }
        }
    }

    /// The breaker may have closed after it was asked and before the job was held: whoever closed
    /// it has not seen this one.
    async fn look_again(&mut self, inner: &Inner, action: &str) {
        let rows = inner.parts.store.breakers().await.unwrap_or_default();
        let closed = |row: &&crate::store::BreakerRow| row.breaker.state == BreakerState::Closed;
        if rows.iter().filter(closed).any(|row| row.action == action) {
            let mut step = Move::of(&self.kept, inner.now());
            step.release(Some(inner.now()));
            // Lost is as well: then it was claimed.
            let _ = self.write(inner, step.into_advance()).await;
        }
    }

    /// Asks a gear what became of an attempt whose end nobody saw.
    async fn resolve(&mut self, inner: &Arc<Inner>, to_run: ToRun) -> Go {
        let left = self.left(inner.now());
        let known = match self.known(inner, &to_run, left).await {
            Ok(known) => known,
            Err(why) => return self.leave(inner, why).await,
        };
        let mut step = Move::of(&self.kept, inner.now());
        let decided = match known {
            Some(ended) => inner.with_facts(|facts| follow(step, &self.kept, facts, vec![ended])),
            None => {
                course::ask_about(&mut step, &to_run.step_id, inner.options.approval_timeout);
                (step, Next::Over)
            }
        };
        self.carry_out(inner, decided).await
    }

    /// The gear's answer, unless the worker must go: then the gear is stopped first.
    async fn known(
        &self,
        inner: &Arc<Inner>,
        to_run: &ToRun,
        left: Duration,
    ) -> Result<Option<Ended>, Leave> {
        if let Some(why) = self.is_leaving() {
            return Err(why);
        }
        let (stop, stopped) = Stop::channel();
        let mut leaving = self.leaving.clone();
        let resolving = flight::resolve(inner, &self.kept, to_run, left, stopped);
        tokio::pin!(resolving);
        tokio::select! {
            biased;
            known = &mut resolving => Ok(known),
            why = told_to_leave(&mut leaving) => {
                stop.send_replace(true);
                // The gear ends within the grace; what it says now nobody writes down.
                let _ = tokio::time::timeout(GRACE * 2, resolving).await;
                Err(why)
            }
        }
    }

    /// Asks the planner.
    async fn plan(&mut self, inner: &Arc<Inner>) -> Go {
        let lost =
            |message: &str| Failure::new(FailureClass::Transient, "planner_unreachable", message);
        let answer = match &inner.parts.planner {
            None => Err(lost("there is no planner here")),
            Some(planner) => {
                let timeout = PLANNING_MAX.min(self.left(inner.now()));
                let asked = self.asked(inner, timeout).await;
                let planning = tokio::time::timeout(timeout, planner.plan(asked));
                match self.unless_told(planning).await {
                    Ok(planned) => {
                        planned.unwrap_or_else(|_| Err(lost("the planner took too long")))
                    }
                    Err(why) => return self.leave(inner, why).await,
                }
            }
        };
        let mut step = Move::of(&self.kept, inner.now());
        match answer {
            Ok(Planned::Answer(answer)) => {
                step.state().answer = Some(answer.to_string());
                step.happen(JobEvent::Answered, Map::new());
                self.carry_out(inner, (step, Next::Over)).await
            }
            Ok(Planned::Plan(plan)) => {
                let text = PlanText::from(plan.to_canonical());
                let repeated = self.kept.job.state.plan.as_deref() == Some(&*text)
                    && self.kept.job.state.revision_count > 0;
                step.plan(text);
                step.happen(JobEvent::Planned, Map::new());
                if repeated {
                    let message = "the planner gave the plan again that was sent back";
                    let failure =
                        Failure::new(FailureClass::PlanRejected, "plan_repeated", message);
                    step.fail(JobEvent::Rejected, &failure, None);
                    return self.carry_out(inner, (step, Next::Over)).await;
                }
                if inner.parts.validator.is_some() {
                    return self.carry_out(inner, (step, Next::Validate)).await;
                }
                let decided =
                    inner.with_facts(|facts| course::judge(step, &self.kept, facts, None));
                self.carry_out(inner, decided).await
            }
            Err(failure) => {
                step.fail(JobEvent::PlannerLost, &failure, None);
                self.carry_out(inner, (step, Next::Over)).await
            }
        }
    }

    /// Asks the validator beside the policy.
    async fn validate(&mut self, inner: &Arc<Inner>) -> Go {
        let plan = self.kept.job.state.plan.as_ref().map(PlanText::plan);
        let verdict = match (&inner.parts.validator, plan) {
            (Some(validator), Some(Ok(plan))) => {
                let timeout = PLANNING_MAX.min(self.left(inner.now()));
                let judging = tokio::time::timeout(timeout, validator.judge(plan));
                match self.unless_told(judging).await {
                    Ok(judged) => judged.unwrap_or_else(|_| {
                        let (code, message) =
                            ("validator_unreachable", "the validator took too long");
                        Err(Failure::new(FailureClass::Transient, code, message))
                    }),
                    Err(why) => return self.leave(inner, why).await,
                }
            }
            (None, _) | (_, None | Some(Err(_))) => {
                Ok((crate::policy::Verdict::Approve, String::new()))
            }
        };
        let mut step = Move::of(&self.kept, inner.now());
        match verdict {
            Ok(other) => {
                let decided =
                    inner.with_facts(|facts| course::judge(step, &self.kept, facts, Some(other)));
                self.carry_out(inner, decided).await
            }
            Err(failure) => {
                step.fail(JobEvent::Rejected, &failure, None);
                self.carry_out(inner, (step, Next::Over)).await
            }
        }
    }

    /// What the planner must know: the request, what was wrong, what has happened.
    pub(super) async fn asked(&self, inner: &Inner, timeout: Duration) -> PlanAsked {
        let job = &self.kept.job;
        let revise = last_reason(inner, job.id, job.state.entries).await;
        let plan = job.state.plan.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let so_far = match plan {
            None => None,
            Some(plan) => Some(SoFar {
                plan,
                completed: done_so_far(inner, &self.kept).await,
                failed: failed_so_far(&self.kept),
            }),
        };
        let request = job.request.clone().unwrap_or_default();
        PlanAsked { job: job.id.to_string(), request, revise, so_far, timeout }
    }
}

/// Somebody else has the job.
struct Lost;

async fn write(
    inner: &Inner,
    advance: &Arc<Advance>,
    doubtful: bool,
) -> Result<Advanced, StoreError> {
    let store = &inner.parts.store;
    match doubtful && !semel_store::planted!("settle") {
        false => store.advance(Arc::clone(advance)).await,
        true => Box::pin(store.advance_again(Arc::clone(advance))).await,
    }
}

/// Comes back when the worker must leave its job.
async fn told_to_leave(leaving: &mut watch::Receiver<Leave>) -> Leave {
    let told = leaving.wait_for(|leave| *leave != Leave::Stay).await;
    told.map_or(Leave::Shutdown, |leave| *leave)
}

/// The reason of the last move, when it was sent back.
async fn last_reason(inner: &Inner, id: semel_core::id::JobId, entries: i64) -> Option<String> {
    let ledger = inner.parts.store.ledger(id, entries.saturating_sub(1), 1).await.ok()??;
    let detail: Value = serde_json::from_str(&ledger.lines.last()?.line.detail).ok()?;
    let reason = detail.get("reason").or_else(|| detail.pointer("/error/message"))?;
    reason.as_str().map(str::to_owned)
}

async fn done_so_far(inner: &Inner, kept: &Kept) -> Vec<(String, Value, Vec<String>)> {
    let effects = side_effects(inner, kept).await;
    let done = kept.executions.iter().filter_map(|line| {
        let result = serde_json::from_str(line.result.as_deref()?).ok()?;
        let of_step = effects.iter().filter(|(step, _)| *step == line.step_id);
        let said = of_step.map(|(_, message)| message.clone()).collect();
        Some((line.step_id.clone(), result, said))
    });
    done.collect()
}

fn failed_so_far(kept: &Kept) -> Vec<(String, Value, u32)> {
    let failed = kept.executions.iter().filter_map(|line| {
        let error = serde_json::from_str(line.error.as_deref()?).ok()?;
        Some((line.step_id.clone(), error, line.attempts))
    });
    failed.collect()
}

/// What gears have said of their effects on the world.
async fn side_effects(inner: &Inner, kept: &Kept) -> Vec<(String, String)> {
    let ledger = inner.parts.store.ledger(kept.job.id, 0, crate::limits::REPORTS_MAX).await;
    let Ok(Some(ledger)) = ledger else { return Vec::new() };
    let effects = ledger.lines.into_iter().filter_map(|line| {
        let detail: Value = serde_json::from_str(&line.line.detail).ok()?;
        let told = line.line.event == LedgerEvent::Log && detail.get("side_effect")?.as_bool()?;
        let message = detail.get("message")?.as_str()?.to_owned();
        told.then_some((line.line.step_id?, message))
    });
    effects.collect()
}

/// Tells the step's breaker; what waits for it goes on when it has closed.
async fn note(inner: &Inner, to_run: &ToRun, run: Run) {
    let (action, probe) = (to_run.breaker.as_str(), to_run.probe);
    if inner.breakers.kept_for_later(action, run, probe) {
        return;
    }
    let noted = Box::pin(inner.breakers.note(&inner.parts.store, action, run, probe, inner.now()));
    match noted.await {
        Ok(None) => {}
        Ok(Some(row)) => {
            let state = row.breaker.state;
            tracing::warn!(action, %state, "a breaker has changed");
            if state == BreakerState::Closed {
                inner.wake.notify_one();
            }
        }
        Err(error) => {
            tracing::warn!(
                action,
                error = error.chain(),
                "a run could not be counted for its breaker"
            );
        }
    }
}

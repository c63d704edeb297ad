//! A move under construction.

use std::time::Duration;

use semel_core::clock::UnixMs;
use serde_json::{Map, Value, json};

use crate::dispatch::ExecutionStatus;
use crate::gear::{Failure, FailureClass};
use crate::life::{JobEvent, JobStatus, next};
use crate::plan::PlanText;
use crate::store::{Advance, Claim, Ended, Kept, LedgerEvent, Line, Reach, Started};

/// A move that is not written yet.
pub struct Move {
    advance: Advance,
    was: Was,
}

/// What the job was looked up by.
struct Was {
    ready: bool,
    due_at: Option<UnixMs>,
    held: bool,
    expires_at: Option<UnixMs>,
}

impl Move {
    /// Nothing has changed yet.
    pub fn of(kept: &Kept, now: UnixMs) -> Self {
        let job = &kept.job;
        let was = Was {
            ready: job.state.ready,
            due_at: job.state.due_at,
            held: job.state.held_by.is_some(),
            expires_at: job.state.expires_at,
        };
        Self {
            was,
            advance: Advance {
                no: job.no,
                root_id: job.root_id,
                conversation: job.conversation.clone(),
                from: job.state.status,
                fence: job.state.fence,
                state: job.state.clone(),
                new_plan: false,
                reach: Reach::Inside,
                ended: Vec::new(),
                started: Vec::new(),
                lines: Vec::new(),
                now,
            },
        }
    }

    /// What is to be written.
    pub fn into_advance(mut self) -> Advance {
        self.advance.reach = self.reach();
        self.advance
    }

    fn reach(&self) -> Reach {
        let (was, state) = (&self.was, &self.advance.state);
        let held = was.held || state.held_by.is_some();
        if held || state.failure_class.is_some() || state.expires_at != was.expires_at {
            Reach::All
        } else if state.completed_at.is_some() {
            Reach::End
        } else if (state.ready, state.due_at) != (was.ready, was.due_at) {
            Reach::Claim
        } else {
            Reach::Inside
        }
    }

    /// As it is so far.
    pub fn advance(&self) -> &Advance {
        &self.advance
    }

    /// Where the job stands now.
    pub fn status(&self) -> JobStatus {
        self.advance.state.status
    }

    /// A worker takes the job; nobody else may write any more.
    /// Whether whoever had it before died over it is for the caller to say.
    pub fn claim(&mut self, claim: &Claim, died: bool) {
        let now = self.advance.now;
        let state = &mut self.advance.state;
        state.fence = claim.fence;
        state.deaths += u32::from(died);
        state.worker = Some(claim.worker.clone());
        state.due_at = Some(claim.lease_until());
        state.ready = false;
        state.started_at = state.started_at.or(Some(now));
        if state.deadline_at.is_none() {
            let left = Duration::from_millis(state.budget_ms.max(0).cast_unsigned());
            state.deadline_at = Some(now.saturating_add(left));
        }
    }

    /// A person speaks; whoever works on it may not write any more.
    pub fn overrule(&mut self, fence: i64) {
        self.advance.state.fence = fence;
    }

    /// The worker goes; the job may be claimed from then on.
    pub fn release(&mut self, due_at: Option<UnixMs>) {
        self.advance.state.worker = None;
        self.advance.state.due_at = due_at;
    }

    /// Something happens that the table allows. Anything else is a bug of ours and changes nothing.
    pub fn happen(&mut self, event: JobEvent, more: Map<String, Value>) {
        let from = self.advance.state.status;
        let Some(to) = next(from, event) else {
            let job = self.advance.no.0;
            tracing::error!(job, %from, %event, "an illegal move was asked for");
            return;
        };
        self.advance.state.status = to;
        let detail = if more.is_empty() {
            format!("{{\"event\":\"{event}\",\"status\":\"{to}\"}}")
        } else {
            let mut detail = more;
            detail.insert("status".to_owned(), to.as_str().into());
            detail.insert("event".to_owned(), event.as_str().into());
            Value::Object(detail).to_string()
        };
        self.line(LedgerEvent::Moved, None, detail);
        if to.is_terminal() {
            let now = self.advance.now;
            self.release(None);
            let state = &mut self.advance.state;
            (state.completed_at, state.deadline_at) = (Some(now), None);
            (state.ready, state.held_by) = (false, None);
        }
        if to != JobStatus::AwaitingApproval {
            (self.advance.state.question, self.advance.state.expires_at) = (None, None);
        }
    }

    /// The job is given up.
    pub fn fail(&mut self, event: JobEvent, failure: &Failure, action: Option<&str>) {
        let error = error_of(failure);
        let mut more = Map::new();
        more.insert("class".to_owned(), failure.class.as_str().into());
        more.insert("error".to_owned(), error.clone());
        self.happen(event, more);
        let state = &mut self.advance.state;
        if state.status == JobStatus::Failed {
            state.failure_class = Some(failure.class);
            state.failed_action = action.map(str::to_owned);
            state.error = Some(error.to_string());
        }
    }

    /// A person is asked; no clock runs and no worker waits meanwhile.
    pub fn ask(&mut self, event: JobEvent, question: &Value, patience: Duration) {
        let mut more = Map::new();
        more.insert("question".to_owned(), question.clone());
        self.happen(event, more);
        let now = self.advance.now;
        self.pause();
        self.release(None);
        let state = &mut self.advance.state;
        state.question = Some(question.to_string());
        state.expires_at = Some(now.saturating_add(patience));
    }

    /// The breaker of an action is open: the job waits, and no clock runs.
    pub fn hold(&mut self, action: &str, until: UnixMs) {
        let mut more = Map::new();
        more.insert("action".to_owned(), action.into());
        self.happen(JobEvent::BreakerOpen, more);
        self.pause();
        self.release(Some(until));
        self.advance.state.held_by = Some(action.to_owned());
    }

    /// What is left of the job's time is kept for later.
    pub fn pause(&mut self) {
        let now = self.advance.now;
        let state = &mut self.advance.state;
        if let Some(deadline) = state.deadline_at.take() {
            state.budget_ms = deadline.0.saturating_sub(now.0).max(0);
        }
    }

    /// A new plan.
    pub fn plan(&mut self, plan: PlanText) {
        let state = &mut self.advance.state;
        (state.plan, state.plan_no, state.step_index) = (Some(plan), state.plan_no + 1, 0);
        state.consent = None;
        self.advance.new_plan = true;
    }

    /// Changes what no other method does.
    pub fn state(&mut self) -> &mut crate::store::JobState {
        &mut self.advance.state
    }

    /// An attempt begins.
    pub fn start(&mut self, started: Started) {
        let detail = json!({
            "attempt": started.attempts, "gear": started.gear, "action": started.action,
        });
        let detail = detail.to_string();
        self.line(LedgerEvent::StepStarted, Some(started.step_id.clone()), detail);
        self.advance.started.push(started);
    }

    /// An execution has ended.
    pub fn end(&mut self, ended: Ended) {
        if ended.status == ExecutionStatus::Completed {
            // It gets somewhere: whoever died before did not die over what comes now.
            self.advance.state.deaths = 0;
        }
        let (status, certain) = (ended.status.as_str(), ended.certain);
        let mut detail = match ended.status {
            ExecutionStatus::Failed => json!({"status": status, "certain": certain}),
            ExecutionStatus::Started | ExecutionStatus::Completed => json!({"status": status}),
        };
        if let (Some(error), Some(detail)) = (&ended.error, detail.as_object_mut()) {
            let error = serde_json::from_str(error).unwrap_or(Value::Null);
            detail.insert("error".to_owned(), error);
        }
        self.line(LedgerEvent::StepEnded, Some(ended.step_id.clone()), detail.to_string());
        self.advance.ended.push(ended);
    }

    /// A line for the ledger.
    pub fn line(&mut self, event: LedgerEvent, step_id: Option<String>, detail: String) {
        self.advance.lines.push(Line { event, step_id, detail });
        self.advance.state.entries += 1;
    }
}

/// A failure as a document.
pub(crate) fn error_of(failure: &Failure) -> Value {
    let mut error = json!({
        "class": failure.class.as_str(), "code": failure.code, "message": failure.message,
    });
    if let (Some(after), Some(object)) = (failure.retry_after, error.as_object_mut()) {
        let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        object.insert("retry_after_ms".to_owned(), ms.into());
    }
    error
}

/// A failure from a document; one that cannot be read is a gear's fault.
pub(crate) fn failure_of(error: &str) -> Failure {
    let error: Value = serde_json::from_str(error).unwrap_or(Value::Null);
    let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
    let class = FailureClass::parse(text("class")).unwrap_or(FailureClass::GearBug);
    let retry_after = error.get("retry_after_ms").and_then(Value::as_u64);
    Failure {
        class,
        code: text("code").to_owned(),
        message: text("message").to_owned(),
        retry_after: retry_after.map(Duration::from_millis),
    }
}

//! Ways in (jobs.md §10): taking jobs in, and what people say of them. Every word of a person
//! raises the job's fence, so that whoever works on it can write no more.

use std::sync::Arc;

use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::id::JobId;
use semel_core::refusal::Refusal;
use semel_registrar::envelope::{Envelope, PROTOCOL_VERSION, validate};
use semel_registrar::store::{Attempt as GrantUse, JOBS_DOMAIN};
use semel_store::{Fate, StoreError};
use serde_json::{Map, Value, json};

use super::children::Parent;
use super::{Engine, Inner, Leave, artifacts, claimer};
use crate::course::{Move, close_started, question_no, question_of};
use crate::dispatch::ExecutionStatus;
use crate::life::{JobEvent, JobStatus};
use crate::limits::{
    DEDUP_BUCKET_MS, DOCUMENT_BYTES_MAX, JOB_TIMEOUT, JOB_TIMEOUT_MAX, NAME_BYTES_MAX,
    REQUEST_BYTES_MAX,
};
use crate::plan::{Plan, PlanText, canonical, check, digest};
use crate::policy::Verdict;
use crate::store::{
    Advance, Answering, Ended, Job, Kept, LedgerEvent, LedgerLine, NewJob, Priority, Source,
    Submitted, Wrote,
};

/// How long a grant for an approval that was just given may take to be used.
const GRANT_SECONDS: u64 = 60;

/// What somebody wants to be done.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// In words.
    pub request: Option<String>,
    /// Or as a plan.
    pub plan: Option<Value>,
    /// Jobs of one conversation run one after the other.
    pub conversation: Option<String>,
    /// How urgent it is.
    pub priority: Option<Priority>,
    /// How long it may take.
    pub timeout_ms: Option<u64>,
    /// The caller's name for it.
    pub key: Option<String>,
    /// Who asks, for telling equal requests of different people apart.
    pub user: String,
    /// How it came in.
    pub source: Option<Source>,
}

/// A job that was taken in, or was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Its name.
    pub id: JobId,
    /// Where it stands.
    pub status: JobStatus,
    /// It was there already.
    pub deduplicated: bool,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It cannot be asked so, or not now.
    #[error(transparent)]
    Refusal(#[from] Refusal),
    /// The store could not say.
    #[error("the store could not be asked")]
    Store(#[from] StoreError),
    /// This job may have been made: its answer was lost.
    #[error("it is unknown whether the job {0} was made")]
    Unknown(JobId, #[source] StoreError),
}

/// What a person says to what a job asks.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Do what the plan says.
    Approve,
    /// The step of this question has happened, and this is what it gave.
    Happened(i64, Value),
    /// The step of this question has not happened: run it.
    Run(i64),
}

impl Engine {
    /// Takes a job in.
    pub async fn submit(&self, asked: Asked) -> Result<Taken, Refused> {
        take(&self.inner, asked, None).await
    }

    /// Approves the plan with this hash, or answers the question about a step.
    pub async fn approve(
        &self,
        id: JobId,
        plan_hash: Hex<32>,
        answer: Answer,
        by: &str,
    ) -> Result<JobStatus, Refused> {
        let inner = &self.inner;
        let kept = inner.parts.store.job(id).await?.ok_or_else(|| not_found(id))?;
        allowed(&kept, plan_hash)?;
        asks(&kept, &answer)?;
        fits(inner, &kept, &answer)?;
        let grant = grant(inner, &kept, plan_hash, by).await?;
        let now = inner.now();
        let fence = inner.new_fence();
        let decide: Answering = Arc::new(move |kept| {
            allowed(kept, plan_hash)?;
            asks(kept, &answer)?;
            approved(kept, &answer, fence, now)
        });
        let status = said(inner, id, Some(Box::new(grant)), decide).await?;
        inner.wake.notify_one();
        Ok(status)
    }

    /// Rejects what it waits for.
    pub async fn reject(&self, id: JobId, reason: &str) -> Result<JobStatus, Refused> {
        let (now, fence, reason) = (self.inner.now(), self.inner.new_fence(), reason.to_owned());
        let decide: Answering = Arc::new(move |kept| {
            waiting(kept)?;
            Ok(ended_by(kept, JobEvent::PersonRejected, &reason, (fence, now)))
        });
        said(&self.inner, id, None, decide).await
    }

    /// Cancels a job, and stops what runs for it.
    pub async fn cancel(&self, id: JobId, reason: &str) -> Result<JobStatus, Refused> {
        let (now, fence, reason) = (self.inner.now(), self.inner.new_fence(), reason.to_owned());
        let decide: Answering = Arc::new(move |kept| {
            let status = kept.job.state.status;
            if status.is_terminal() {
                let detail = format!("the job is {status}");
                return Err(Refusal::new(Code::JobEnded, detail));
            }
            Ok(ended_by(kept, JobEvent::Cancel, &reason, (fence, now)))
        });
        said(&self.inner, id, None, decide).await
    }

    /// Repeats a failed job: what was done is not done again, because its effects keep their names.
    pub async fn retry(&self, id: JobId) -> Result<Taken, Refused> {
        Self::repeat(&self.inner, id, None).await
    }

    /// The same, for a gear that has asked for it, or for whoever wants it.
    pub(super) async fn repeat(
        inner: &Arc<Inner>,
        id: JobId,
        parent: Option<&Parent>,
    ) -> Result<Taken, Refused> {
        let kept = inner.parts.store.job(id).await?.ok_or_else(|| not_found(id))?;
        let job = kept.job;
        if inner.parts.store.is_restored(job.no).await? {
            let detail = "a backup was restored, and it is unknown whether the job was repeated \
                          after that: submit it anew";
            return Err(Refusal::new(Code::JobNotFailed, detail).into());
        }
        let left_ms = parent.map_or(i64::MAX, Parent::left_ms);
        let budget_ms = budget_again(inner, &job).await?.min(left_ms);
        let new = NewJob {
            id: inner.parts.mint.uuid(),
            root_id: job.root_id,
            retry_of: Some(id),
            parent_id: job.parent_id,
            depth: job.depth,
            source: Source::Retry,
            priority: job.priority,
            conversation: job.conversation,
            request: job.request,
            plan: job.state.plan.filter(|_| job.carries_plan),
            budget_ms,
            key: None,
            fingerprint: Hex([0; 32]),
            dedup: None,
            home: job.state.home,
            asker: job.asker,
            grants: job.grants,
            now: inner.now(),
        };
        submitted(inner, new).await
    }

    /// What a gear of a cancelled job has asked for is not wanted any more.
    pub(super) async fn cancel_orphan(inner: &Arc<Inner>, id: JobId) -> Result<(), StoreError> {
        let (now, fence) = (inner.now(), inner.new_fence());
        let decide: Answering = Arc::new(move |kept| {
            let status = kept.job.state.status;
            if status.is_terminal() {
                return Err(Refusal::new(Code::JobEnded, format!("the job is {status}")));
            }
            let why = "the job that asked for it was cancelled";
            Ok(ended_by(kept, JobEvent::Cancel, why, (fence, now)))
        });
        match said(inner, id, None, decide).await {
            Ok(_) | Err(Refused::Refusal(_)) => Ok(()),
            Err(Refused::Store(error) | Refused::Unknown(_, error)) => Err(error),
        }
    }

    /// Nobody has answered in time.
    pub(super) async fn expire(inner: &Arc<Inner>, id: JobId) -> Result<(), StoreError> {
        let (now, fence) = (inner.now(), inner.new_fence());
        let decide: Answering = Arc::new(move |kept| {
            waiting(kept)?;
            if kept.job.state.expires_at.is_none_or(|at| at > now) {
                return Err(Refusal::new(Code::JobNotWaiting, "its time has not ended"));
            }
            let why = "no person answered in time";
            Ok(ended_by(kept, JobEvent::ApprovalExpired, why, (fence, now)))
        });
        match said(inner, id, None, decide).await {
            Ok(_) | Err(Refused::Refusal(_)) => Ok(()),
            Err(Refused::Store(error) | Refused::Unknown(_, error)) => Err(error),
        }
    }
}

pub(super) async fn take(
    inner: &Arc<Inner>,
    asked: Asked,
    parent: Option<&Parent>,
) -> Result<Taken, Refused> {
    let plan = checked(inner, &asked)?;
    if let Some(conversation) = &asked.conversation
        && (conversation.is_empty()
            || conversation.len() > NAME_BYTES_MAX
            || conversation.contains('\0'))
    {
        let detail = format!("a conversation's name has 1 to {NAME_BYTES_MAX} bytes");
        return Err(Refusal::at(Code::InvalidField, "/conversation_id", detail).into());
    }
    let now = inner.now();
    let priority = asked.priority.unwrap_or(Priority::Normal);
    // Nobody asks what a job without a key was.
    let fingerprint = asked.key.as_ref().map_or(Hex([0; 32]), |_| {
        let (request, plan) = (&asked.request, plan.as_deref());
        let content = (request, plan, &asked.conversation, priority.as_str(), asked.timeout_ms);
        digest(canonical(&content).as_bytes())
    });
    let dedup = match (&asked.request, &asked.key) {
        (Some(request), None) => Some(buckets(&asked, request, now.0)),
        (Some(_) | None, _) => None,
    };
    let id = inner.parts.mint.uuid();
    let new = NewJob {
        id,
        root_id: id,
        retry_of: None,
        parent_id: parent.map(|parent| parent.id),
        depth: parent.map_or(0, |parent| parent.depth + 1),
        source: asked.source.unwrap_or(Source::Api),
        priority,
        conversation: asked.conversation,
        request: asked.request,
        plan,
        budget_ms: budget(asked.timeout_ms).min(parent.map_or(i64::MAX, Parent::left_ms)),
        key: asked.key,
        fingerprint,
        dedup,
        home: None,
        asker: parent.map(|parent| parent.gear.clone()),
        grants: parent.map(|parent| parent.grants.clone()),
        now,
    };
    submitted(inner, new).await
}

/// The plan in canonical form, if there is one; refuses what cannot become a job.
fn checked(inner: &Inner, asked: &Asked) -> Result<Option<PlanText>, Refusal> {
    let wrong = |at: &str, detail: String| Refusal::at(Code::InvalidField, at, detail);
    match (&asked.request, &asked.plan) {
        (None, None) => {
            let detail = "a job must have a request or a plan";
            Err(Refusal::at(Code::MissingField, "/plan", detail))
        }
        (Some(_), Some(_)) => {
            let detail = "a job must have a request or a plan, not both".to_owned();
            Err(wrong("/request", detail))
        }
        (Some(request), None) => {
            if request.trim().is_empty() || request.len() > REQUEST_BYTES_MAX {
                let detail = format!("a request has 1 to {REQUEST_BYTES_MAX} bytes");
                return Err(wrong("/request", detail));
            }
            if request.contains('\0') {
                let detail = "a request has no byte 00";
                return Err(Refusal::at(Code::NulInField, "/request", detail));
            }
            if inner.parts.planner.is_none() {
                let detail = "this engine has no planner: submit a plan";
                return Err(Refusal::at(Code::PlannerMissing, "/request", detail));
            }
            Ok(None)
        }
        (None, Some(document)) => {
            let below = |mut refusal: Refusal| {
                refusal.pointer.insert_str(0, "/plan");
                refusal
            };
            let plan = Plan::read(document).map_err(below)?;
            plan.refuse_strange_names().map_err(below)?;
            check(&plan, &inner.parts.gears).map_err(below)?;
            let text = PlanText::from(plan.to_canonical());
            // As it will be read: what is too long or too deep is said now, not when it is claimed.
            text.plan().map_err(|refusal| below(refusal.clone()))?;
            Ok(Some(text))
        }
    }
}

async fn submitted(inner: &Arc<Inner>, new: NewJob) -> Result<Taken, Refused> {
    let id = new.id;
    let said = match claimer::free_slot(inner, &new) {
        Some(slot) => claimer::submit(inner, new, slot).await,
        None => {
            let said = inner.parts.store.submit(new).await;
            if matches!(said, Ok(Submitted::Made)) {
                inner.wake.notify_one();
                inner.tell(id, JobStatus::Pending);
            }
            said
        }
    };
    let said = said.map_err(|error| match error.fate() {
        Fate::Undone => Refused::Store(error),
        Fate::Uncertain => Refused::Unknown(id, error),
    });
    match said? {
        Submitted::Made => Ok(Taken { id, status: JobStatus::Pending, deduplicated: false }),
        Submitted::There(id, status) => Ok(Taken { id, status, deduplicated: true }),
        Submitted::Reused(other) => {
            let detail = format!("this key was used for another request, the job {other}");
            Err(Refusal::new(Code::IdempotencyKeyReused, detail).into())
        }
        Submitted::Repeating => {
            let detail = "the job is being repeated";
            Err(Refusal::new(Code::JobRepeating, detail).into())
        }
        Submitted::NotFailed => {
            let detail = "only a failed job can be repeated";
            Err(Refusal::new(Code::JobNotFailed, detail).into())
        }
    }
}

fn budget(timeout_ms: Option<u64>) -> i64 {
    let max = JOB_TIMEOUT_MAX.as_millis();
    let ms = timeout_ms.map_or(JOB_TIMEOUT.as_millis(), u128::from).min(max);
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// The time of a repeated job: its own. Of one that was paused only the rest is known, which may be
/// too little to begin with: it has at least the usual time.
async fn budget_again(inner: &Inner, job: &Job) -> Result<i64, StoreError> {
    let lines = u32::try_from(job.state.entries).unwrap_or(u32::MAX);
    let ledger = inner.parts.store.ledger(job.id, 0, lines).await?;
    let paused = |line: &LedgerLine| {
        let detail = serde_json::from_str::<Value>(&line.line.detail).unwrap_or_default();
        let event = detail.get("event").and_then(Value::as_str).and_then(JobEvent::parse);
        let pauses = [JobEvent::NeedsPerson, JobEvent::Unsure, JobEvent::BreakerOpen];
        line.line.event == LedgerEvent::Moved && event.is_some_and(|event| pauses.contains(&event))
    };
    let was_paused = ledger.is_none_or(|ledger| ledger.lines.iter().any(paused));
    let kept = job.state.budget_ms;
    Ok(if was_paused { kept.max(budget(None)) } else { kept })
}

/// Equal requests within a few seconds are one: the bucket of now and both its neighbours.
fn buckets(asked: &Asked, request: &str, now_ms: i64) -> [Hex<32>; 3] {
    let words: Vec<&str> = request.split_whitespace().collect();
    let bucket = now_ms.div_euclid(DEDUP_BUCKET_MS);
    [bucket - 1, bucket, bucket + 1].map(|bucket| {
        let content = json!([asked.user, asked.conversation, words.join(" "), bucket]);
        digest(canonical(&content).as_bytes())
    })
}

fn not_found(id: JobId) -> Refusal {
    Refusal::new(Code::JobNotFound, format!("there is no job {id}"))
}

fn waiting(kept: &Kept) -> Result<(), Refusal> {
    let status = kept.job.state.status;
    if status == JobStatus::AwaitingApproval {
        return Ok(());
    }
    Err(Refusal::new(Code::JobNotWaiting, format!("the job is {status}")))
}

/// It waits, and for this very plan.
fn allowed(kept: &Kept, plan_hash: Hex<32>) -> Result<(), Refusal> {
    waiting(kept)?;
    let plan = kept.job.state.plan.as_deref().unwrap_or_default();
    if digest(plan.as_bytes()) == plan_hash {
        return Ok(());
    }
    Err(Refusal::new(Code::PlanChanged, "the job's plan is not the one that was approved"))
}

/// It asks this very question: an answer that is given twice must not answer the next one.
fn asks(kept: &Kept, answer: &Answer) -> Result<(), Refusal> {
    let (Answer::Happened(question, _) | Answer::Run(question)) = answer else { return Ok(()) };
    let now = question_no(kept);
    if *question == now {
        return Ok(());
    }
    let detail = format!("the job no longer asks question {question}, but {now}");
    Err(Refusal::new(Code::JobNotWaiting, detail))
}

/// What a person says that a step gave is what its action may give: later steps are given it.
fn fits(inner: &Inner, kept: &Kept, answer: &Answer) -> Result<(), Refusal> {
    let Answer::Happened(_, result) = answer else { return Ok(()) };
    let wrong = |detail: String| Refusal::at(Code::InvalidField, "/result", detail);
    if result.to_string().len() > DOCUMENT_BYTES_MAX {
        return Err(wrong(format!("a result has at most {DOCUMENT_BYTES_MAX} bytes")));
    }
    let question = question_of(kept);
    let step = question.get("step").and_then(Value::as_str);
    let plan = kept.job.state.plan.as_ref().and_then(|text| text.plan().ok());
    let step = plan.zip(step).and_then(|(plan, id)| plan.steps.iter().find(|step| step.id == id));
    // Of a gear that is not there any more nobody knows what it gives.
    let prepared = step.and_then(|step| inner.parts.gears.find(&step.gear, &step.action).ok());
    prepared.map_or(Ok(()), |prepared| prepared.check_result(result).map_err(wrong))
}

/// The move of a person who approves.
fn approved(kept: &Kept, answer: &Answer, fence: i64, now: UnixMs) -> Result<Advance, Refusal> {
    let question = question_of(kept);
    let step = question.get("step").and_then(Value::as_str);
    let mut next = Move::of(kept, now);
    next.overrule(fence);
    match (answer, step) {
        // Who approves a plan has seen all of it.
        (Answer::Approve, None) => next.state().consent = Some(Verdict::Ask),
        (Answer::Happened(_, result), Some(step)) => next.end(Ended {
            step_id: step.to_owned(),
            status: ExecutionStatus::Completed,
            certain: true,
            result: Some(result.to_string()),
            artifact: None,
            error: None,
            attempts_forgiven: false,
        }),
        (Answer::Run(_), Some(step)) => next.end(Ended {
            step_id: step.to_owned(),
            status: ExecutionStatus::Failed,
            certain: true,
            result: None,
            artifact: None,
            error: Some(
                json!({
                    "class": "transient", "code": "not_done",
                    "message": "a person says that it has not happened",
                })
                .to_string(),
            ),
            attempts_forgiven: true,
        }),
        (Answer::Approve, Some(_)) => {
            let detail = "the question is whether a step happened: answer \"happened\" or \"run\"";
            return Err(Refusal::at(Code::InvalidField, "/answer", detail));
        }
        (Answer::Happened(..) | Answer::Run(_), None) => {
            let detail = "the question is about the plan: approve or reject it";
            return Err(Refusal::at(Code::InvalidField, "/answer", detail));
        }
    }
    next.happen(JobEvent::PersonApproved, Map::new());
    // Whoever has a free slot goes on with it.
    next.release(Some(now));
    Ok(next.into_advance())
}

/// The move of a person who does not want it.
pub(crate) fn ended_by(
    kept: &Kept,
    event: JobEvent,
    reason: &str,
    (fence, now): (i64, UnixMs),
) -> Advance {
    let mut next = Move::of(kept, now);
    next.overrule(fence);
    close_started(&mut next, kept);
    let mut more = Map::new();
    more.insert("reason".to_owned(), reason.into());
    next.happen(event, more);
    next.into_advance()
}

/// Writes what a person said, and stops whoever works on the job here.
async fn said(
    inner: &Arc<Inner>,
    id: JobId,
    grant: Option<Box<GrantUse>>,
    decide: Answering,
) -> Result<JobStatus, Refused> {
    match inner.parts.store.person(id, grant, decide).await? {
        Wrote::Written(advance) => {
            let state = &advance.state;
            if state.completed_at.is_some() {
                inner.metrics.ended(state.status, state.failure_class);
            }
            if state.status.is_terminal() {
                // It is nobody's any more, here or elsewhere: what runs for it is stopped.
                inner.leave(id, Leave::Lost);
                inner.stop_elsewhere(id);
                inner.orphans.notify_one();
            }
            if state.status == JobStatus::Cancelled && !inner.running().contains_key(&id) {
                artifacts::give_up_empty(&inner.options.workspaces, advance.root_id).await;
            }
            inner.tell(id, state.status);
            inner.wake.notify_one();
            Ok(state.status)
        }
        Wrote::Refused(refusal) => Err(refusal.into()),
        Wrote::NotFound => Err(not_found(id).into()),
        Wrote::GrantRefused(outcome) => {
            let detail = format!("the approval was not accepted: {outcome:?}");
            Err(Refusal::new(Code::ApprovalRefused, detail).into())
        }
    }
}

/// One use of one approval, for this plan of this job at this question.
async fn grant(
    inner: &Inner,
    kept: &Kept,
    plan_hash: Hex<32>,
    by: &str,
) -> Result<GrantUse, Refused> {
    let (job, now) = (&kept.job, inner.now());
    let envelope = Envelope {
        protocol_version: PROTOCOL_VERSION,
        domain: JOBS_DOMAIN.to_owned(),
        operation: "approve".to_owned(),
        // Every question of a job is approved by itself: it is told apart by the line that asks.
        canonical_target: format!("{}/{}", job.id, question_no(kept)),
        artifact_hash: plan_hash,
        owner_binding: by.to_owned(),
        run_id: format!("{}.{}", job.state.plan_no, job.state.entries),
        issued_at: now,
        ttl_s: GRANT_SECONDS,
    };
    let issued = inner.parts.registrar.grant_issue(&envelope, (Some(now), None)).await?;
    let missing = || Refusal::new(Code::AuthorityMissing, "this engine may not issue approvals");
    let grant = issued.ok_or_else(missing)?;
    let valid = validate(envelope, now)?;
    let result = json!({"job": job.id.to_string(), "approved_by": by}).to_string().into_bytes();
    let attempt_id = format!("{}:{}", job.id, job.state.entries);
    Ok(GrantUse { valid, grant, compensates: None, attempt_id, result, now })
}

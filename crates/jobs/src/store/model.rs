//! What the stores keep and are told, in words that know no database.

use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_core::id::JobId;
use semel_core::refusal::Refusal;
use semel_core::status;

use crate::breaker::Breaker;
use crate::dispatch::ExecutionStatus;
use crate::gear::FailureClass;
use crate::gear::grants::Grants;
use crate::life::JobStatus;
use crate::plan::PlanText;
use crate::policy::{Asker, Verdict};

/// A job's place in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobNo(pub i64);

status! {
    /// How urgent a job is.
    pub enum Priority {
        /// Before everything.
        Critical = "critical",
        /// Before most.
        High = "high",
        /// As most.
        Normal = "normal",
        /// When there is time.
        Low = "low",
    }
}

impl Priority {
    /// As databases keep it: text would sort wrongly (traps.md 24).
    pub fn rank(self) -> i64 {
        match self {
            Self::Critical => 0,
            Self::High => 1,
            Self::Normal => 2,
            Self::Low => 3,
        }
    }

    /// The priority of that rank.
    pub fn of_rank(rank: i64) -> Option<Self> {
        Self::ALL.iter().copied().find(|priority| priority.rank() == rank)
    }
}

status! {
    /// How a job came in.
    pub enum Source {
        /// By the API.
        Api = "api",
        /// From a topic or a queue.
        Mesh = "mesh",
        /// A gear asked for it.
        SubJob = "sub_job",
        /// It repeats a failed one.
        Retry = "retry",
    }
}

/// A job to be taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJob {
    /// Its name.
    pub id: JobId,
    /// Whose name is in the ids of its executions.
    pub root_id: JobId,
    /// What it repeats.
    pub retry_of: Option<JobId>,
    /// Whose gear asked for it.
    pub parent_id: Option<JobId>,
    /// Jobs above it.
    pub depth: u32,
    /// How it came in.
    pub source: Source,
    /// How urgent it is.
    pub priority: Priority,
    /// Jobs of one conversation run one after the other.
    pub conversation: Option<String>,
    /// In words.
    pub request: Option<String>,
    /// As a plan, in canonical form.
    pub plan: Option<PlanText>,
    /// How long it may take.
    pub budget_ms: i64,
    /// The caller's name for it.
    pub key: Option<String>,
    /// What is asked for: another request under the same key is refused.
    pub fingerprint: Hex<32>,
    /// Equal requests of the last bucket, this one and the next.
    pub dedup: Option<[Hex<32>; 3]>,
    /// The home in which the files are of the job that it repeats.
    pub home: Option<String>,
    /// The gear that asks for it.
    pub asker: Option<String>,
    /// What that one may have done by others.
    pub grants: Option<Grants>,
    /// The time.
    pub now: UnixMs,
}

impl NewJob {
    /// Whether it may be there already, or belongs to something that is.
    pub fn has_a_name(&self) -> bool {
        self.key.is_some()
            || self.dedup.is_some()
            || self.conversation.is_some()
            || self.retry_of.is_some()
    }

    /// As it is when it comes: it waits, and has no number yet.
    pub fn fresh(&self) -> Kept {
        let state = JobState {
            plan: self.plan.clone(),
            plan_no: u32::from(self.plan.is_some()),
            status: JobStatus::Pending,
            step_index: 0,
            revision_count: 0,
            replan_count: 0,
            fence: 0,
            worker: None,
            deaths: 0,
            ready: true,
            due_at: None,
            held_by: None,
            budget_ms: self.budget_ms,
            deadline_at: None,
            question: None,
            expires_at: None,
            answer: None,
            error: None,
            failure_class: None,
            failed_action: None,
            entries: 1,
            started_at: None,
            completed_at: None,
            home: self.home.clone(),
            consent: None,
        };
        let job = Job {
            no: JobNo(0),
            id: self.id,
            root_id: self.root_id,
            retry_of: self.retry_of,
            parent_id: self.parent_id,
            depth: self.depth,
            source: self.source,
            priority: self.priority,
            conversation: self.conversation.clone(),
            request: self.request.clone(),
            carries_plan: self.plan.is_some(),
            asker: self.asker.clone(),
            grants: self.grants.clone(),
            key: self.key.clone(),
            created_at: self.now,
            state,
        };
        Kept { job, executions: Vec::new() }
    }
}

/// What became of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// It is new.
    Made,
    /// It is there already.
    There(JobId, JobStatus),
    /// Its key was used for something else.
    Reused(JobId),
    /// The job that it would repeat is being repeated.
    Repeating,
    /// The job that it would repeat is not a failed one.
    NotFailed,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its place in the order of arrival.
    pub no: JobNo,
    /// Its name.
    pub id: JobId,
    /// Whose name is in the ids of its executions.
    pub root_id: JobId,
    /// What it repeats.
    pub retry_of: Option<JobId>,
    /// Whose gear asked for it.
    pub parent_id: Option<JobId>,
    /// Jobs above it.
    pub depth: u32,
    /// How it came in.
    pub source: Source,
    /// How urgent it is.
    pub priority: Priority,
    /// Jobs of one conversation run one after the other.
    pub conversation: Option<String>,
    /// In words.
    pub request: Option<String>,
    /// Whether its plan came with it.
    pub carries_plan: bool,
    /// The gear that asked for it; nothing when a person or a program did.
    pub asker: Option<String>,
    /// What that one might have done by others, when it asked.
    pub grants: Option<Grants>,
    /// The caller's name for it.
    pub key: Option<String>,
    /// When it came.
    pub created_at: UnixMs,
    /// Everything that changes.
    pub state: JobState,
}

impl Job {
    /// Who asked for it.
    pub fn asked_by(&self) -> Asker<'_> {
        self.asker.as_deref().map_or(Asker::Caller, Asker::Gear)
    }
}

/// Everything of a job that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobState {
    /// In canonical form.
    pub plan: Option<PlanText>,
    /// The how-manieth plan.
    pub plan_no: u32,
    /// Where it stands.
    pub status: JobStatus,
    /// The first step that is not done.
    pub step_index: u32,
    /// How often this plan was made better.
    pub revision_count: u32,
    /// How often it was planned anew.
    pub replan_count: u32,
    /// Who may write: whoever drew this number. It is 0 before the first claim.
    pub fence: i64,
    /// Who works on it.
    pub worker: Option<String>,
    /// Workers that died over it.
    pub deaths: u32,
    /// Whether it waits to be claimed for the first time.
    pub ready: bool,
    /// When it may be claimed again.
    pub due_at: Option<UnixMs>,
    /// The action whose breaker it waits for.
    pub held_by: Option<String>,
    /// What is left of its time while no clock runs.
    pub budget_ms: i64,
    /// When its time is over, while the clock runs.
    pub deadline_at: Option<UnixMs>,
    /// What a person is asked.
    pub question: Option<String>,
    /// When nobody needs to answer any more.
    pub expires_at: Option<UnixMs>,
    /// What a planner answered without a plan.
    pub answer: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// Whose turn it is.
    pub failure_class: Option<FailureClass>,
    /// The action that failed.
    pub failed_action: Option<String>,
    /// Lines in its ledger.
    pub entries: i64,
    /// When it was first claimed.
    pub started_at: Option<UnixMs>,
    /// When it ended.
    pub completed_at: Option<UnixMs>,
    /// The home in which its files are, once a step may have made some.
    pub home: Option<String>,
    /// The strictest verdict that its plan may go by, once somebody has judged it.
    pub consent: Option<Verdict>,
}

/// A line of the execution log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// Which step.
    pub step_id: String,
    /// Who has begun it last.
    pub job_no: JobNo,
    /// In which plan.
    pub plan_no: u32,
    /// By what.
    pub gear: String,
    /// Doing what.
    pub action: String,
    /// What it does, whatever it is called.
    pub fingerprint: Hex<32>,
    /// Where it stands.
    pub status: ExecutionStatus,
    /// Attempts in this job and plan.
    pub attempts: u32,
    /// Whether a failure is the gear's own word.
    pub certain: bool,
    /// What it gave.
    pub result: Option<String>,
    /// The hash of the file that it gave.
    pub artifact: Option<Hex<32>>,
    /// Why it failed.
    pub error: Option<String>,
    /// When its last attempt was begun.
    pub started_at: UnixMs,
    /// When it ended.
    pub completed_at: Option<UnixMs>,
    /// As whom its last attempt acts, if that makes a difference to the world.
    pub via: Option<String>,
}

/// A job with its executions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The job.
    pub job: Job,
    /// What was begun under its root's name.
    pub executions: Vec<Execution>,
}

/// An attempt begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Which step.
    pub step_id: String,
    /// By what.
    pub gear: String,
    /// Doing what.
    pub action: String,
    /// What it does, whatever it is called.
    pub fingerprint: Hex<32>,
    /// The how-manieth in this plan.
    pub attempts: u32,
    /// As whom it acts, if that makes a difference to the world.
    pub via: Option<String>,
}

/// An execution has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Which step.
    pub step_id: String,
    /// Completed or failed.
    pub status: ExecutionStatus,
    /// Whether a failure is the gear's own word.
    pub certain: bool,
    /// What it gave.
    pub result: Option<String>,
    /// The hash of the file that it gave.
    pub artifact: Option<Hex<32>>,
    /// Why it failed.
    pub error: Option<String>,
    /// A person lets it be tried as often as at first.
    pub attempts_forgiven: bool,
}

status! {
    /// What a line of the ledger tells of.
    pub enum LedgerEvent {
        /// The job came.
        Submitted = "submitted",
        /// The job is somewhere else now.
        Moved = "moved",
        /// An attempt begins.
        StepStarted = "step_started",
        /// An attempt has ended.
        StepEnded = "step_ended",
        /// A gear says something.
        Log = "log",
        /// A gear says how far it is.
        Progress = "progress",
    }
}

/// A line to be added to a job's ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What it tells of.
    pub event: LedgerEvent,
    /// Of which step.
    pub step_id: Option<String>,
    /// More, as JSON.
    pub detail: String,
}

/// A line as it stands there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerLine {
    /// Its number in the job's ledger, from 1.
    pub entry: i64,
    /// When.
    pub at: UnixMs,
    /// What.
    pub line: Line,
}

/// Part of a job's ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    /// Lines in order.
    pub lines: Vec<LedgerLine>,
    /// Where the job stands at the same moment.
    pub status: JobStatus,
    /// Lines that there are.
    pub entries: i64,
}

/// How much of what jobs are looked up by a move changes. What it does not reach is left as it is:
/// every index that a row is taken out of and put into again is a write, and a lease may have been
/// renewed since the worker has seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Nothing.
    Inside,
    /// Whether and when it may be claimed: `ready` and `due_at`.
    Claim,
    /// That, and that it has ended.
    End,
    /// Anything.
    All,
}

/// Everything that one move of a job writes: all of it or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advance {
    /// Which job.
    pub no: JobNo,
    /// Whose name is in the ids of its executions.
    pub root_id: JobId,
    /// Who may go on when it has ended.
    pub conversation: Option<String>,
    /// Where it stands.
    pub from: JobStatus,
    /// What it was told when it was claimed.
    pub fence: i64,
    /// As it will be.
    pub state: JobState,
    /// Whether the plan is another one.
    pub new_plan: bool,
    /// What of it is written besides.
    pub reach: Reach,
    /// What has ended, in the order in which it did.
    pub ended: Vec<Ended>,
    /// What begins.
    pub started: Vec<Started>,
    /// What the ledger is told; the last of them is number `state.entries`.
    pub lines: Vec<Line>,
    /// The time.
    pub now: UnixMs,
}

/// What became of a worker's write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advanced {
    /// It is there.
    Written,
    /// Somebody else has the job: the worker must stop.
    Lost,
}

/// A worker wants jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Who.
    pub worker: String,
    /// The fence under which it writes from then on. Nobody else ever draws the same number: that
    /// a claim, or what followed it, is there is known by it.
    pub fence: i64,
    /// How long it needs no news of it.
    pub lease: Duration,
    /// How many at the most.
    pub limit: u32,
    /// What it has already, however late it is: nobody takes a job from itself.
    pub held: Vec<JobNo>,
    /// Where it lives, if several share the store: jobs whose files are in another home that lives
    /// are left to that one.
    pub home: Option<super::Home>,
    /// The time. A store that others share goes by its own.
    pub now: UnixMs,
}

impl Claim {
    /// When others may have what it takes now.
    pub fn lease_until(&self) -> UnixMs {
        self.now.saturating_add(self.lease)
    }
}

/// The first move of a job that is being claimed, decided inside the claim; none for a job that is
/// left as it is.
pub type Begin = Arc<dyn Fn(&Kept, &Claim) -> Option<Advance> + Send + Sync>;

/// A job that was claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// As it was.
    pub before: Kept,
    /// What was written.
    pub advance: Advance,
}

/// What a claim gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// The jobs.
    pub jobs: Vec<Claimed>,
    /// How many more wait, as far as was looked.
    pub left: usize,
}

/// What a person's word comes to, decided on what is there.
pub type Answering = Arc<dyn Fn(&Kept) -> Result<Advance, Refusal> + Send + Sync>;

/// What became of a person's word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrote {
    /// It counts.
    Written(Box<Advance>),
    /// It does not.
    Refused(Refusal),
    /// There is no such job.
    NotFound,
    /// The approval was used before, or is for something else.
    GrantRefused(semel_registrar::decide::Outcome),
}

/// A breaker and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerRow {
    /// `gear.action`.
    pub action: String,
    /// As it stands.
    pub breaker: Breaker,
    /// Whether the last write has opened or closed it.
    pub changed: bool,
}

impl Kept {
    /// As it is after a move.
    pub fn apply(&mut self, advance: &Advance) {
        self.job.state = advance.state.clone();
        for ended in &advance.ended {
            if let Some(line) = self.executions.iter_mut().find(|e| e.step_id == ended.step_id) {
                line.status = ended.status;
                line.certain = ended.certain;
                line.result.clone_from(&ended.result);
                line.artifact = ended.artifact;
                line.error.clone_from(&ended.error);
                line.completed_at = Some(advance.now);
                if ended.attempts_forgiven {
                    line.attempts = 0;
                }
            }
        }
        for started in &advance.started {
            self.executions.retain(|line| line.step_id != started.step_id);
            self.executions.push(Execution {
                step_id: started.step_id.clone(),
                job_no: self.job.no,
                plan_no: self.job.state.plan_no,
                gear: started.gear.clone(),
                action: started.action.clone(),
                fingerprint: started.fingerprint,
                status: ExecutionStatus::Started,
                attempts: started.attempts,
                certain: true,
                result: None,
                artifact: None,
                error: None,
                started_at: advance.now,
                completed_at: None,
                via: started.via.clone(),
            });
        }
    }
}

//! What runs a step: a gear (jobs.md §8), in this process or in one of its own.
//!
//! The engine knows gears by [`Gear`] alone. How an attempt ended is told apart in three
//! ([`Ended`]), because an attempt without a definite end may have had its effect (jobs.md §1).

pub(crate) mod beneath;
pub mod builtin;
pub mod document;
pub mod grants;
pub mod groups;
pub mod installed;
pub mod leftovers;
pub mod load;
pub mod manifest;
pub mod net;
pub mod package;
mod process;
mod proxy;
pub(crate) mod quota;
pub mod reach;
pub mod registry;
pub mod room;
pub mod sandbox;
mod schema;
pub mod secrets;
mod tree;
pub mod trial;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use semel_core::status;
use serde_json::Value;
use tokio::sync::watch;

use grants::Grants;
use manifest::{Manifest, Recovery};
use room::Lane;

status! {
    /// Why a job failed, in the words of its reader (jobs.md §7).
    pub enum FailureClass {
        /// Network, rate limit, a server's error, a deadline: it may pass.
        Transient = "transient",
        /// The gear crashed, broke its protocol or its sandbox, or said something impossible.
        GearBug = "gear_bug",
        /// The validator refused every plan.
        PlanRejected = "plan_rejected",
        /// Invalid input, a missing prerequisite, credentials.
        UserError = "user_error",
        /// Cost, disk, memory, size.
        ResourceLimit = "resource_limit",
    }
}

/// What went wrong in an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Whose turn it is.
    pub class: FailureClass,
    /// A stable word, such as `http_503` or `gear_crashed`.
    pub code: String,
    /// One sentence for a person.
    pub message: String,
    /// When the other side wants to be asked again.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure that says nothing of when to come back.
    pub fn new(class: FailureClass, code: &str, message: impl Into<String>) -> Self {
        Self { class, code: code.to_owned(), message: message.into(), retry_after: None }
    }
}

/// One run of an action.
#[derive(Debug, Clone)]
pub struct Call {
    /// The name of the effect, the same in every attempt (jobs.md §4).
    pub execution_id: String,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// Which action of the gear.
    pub action: String,
    /// What it is given; nothing in it refers to another step any more.
    pub params: Value,
    /// A folder of the job's own.
    pub workspace: PathBuf,
    /// How long it may take.
    pub timeout: Duration,
    /// As whom it acts, as it was written down.
    pub via: Option<String>,
    /// Where its requests may be sent on to.
    pub allowed: Allowed,
}

/// What a policy says of a request that is sent on to another place than its step names.
#[derive(Clone, Default)]
pub struct Allowed(Option<Arc<Rule>>);

type Rule = dyn Fn(&str, &str) -> bool + Send + Sync;

impl Allowed {
    /// A rule of method and address.
    pub fn by(rule: impl Fn(&str, &str) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(rule)))
    }

    /// Without a policy.
    pub fn all() -> Self {
        Self(None)
    }

    /// Whether a request of this method may go to this address.
    pub fn has(&self, method: &str, url: &str) -> bool {
        self.0.as_ref().is_none_or(|rule| rule(method, url))
    }
}

impl std::fmt::Debug for Allowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Allowed")
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// The gear's own `result`.
    Done(Output),
    /// The gear's own, definite `error`: the effect has not happened.
    Failed(Failure),
    /// Crashed, timed out, killed, cut off: the effect may have happened.
    Uncertain(Failure),
}

/// What an action gives.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// A document of at most [`crate::limits::DOCUMENT_BYTES_MAX`].
    Value(Value),
    /// A file in the workspace, which the engine keeps with its hash.
    Artifact(PathBuf),
    /// An object, and a file that belongs to it.
    With {
        /// The object; what is known of the file is added to it.
        value: Value,
        /// The file, as above.
        file: PathBuf,
    },
}

/// What a gear knows of an earlier attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Resolution {
    /// It happened, and this is what it gave.
    Done(Output),
    /// It has not happened and will not.
    NotDone,
    /// Nobody can tell.
    Unknown,
}

/// What a gear says while it works.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// A line for the job's log.
    Log {
        /// What it says.
        message: String,
        /// Whether it tells of an effect on the world, which a new plan must know of.
        side_effect: bool,
    },
    /// How far it is.
    Progress {
        /// 0 to 100.
        percent: u8,
        /// What it is at.
        message: Option<String>,
    },
}

impl Report {
    /// What it takes in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        256 + match self {
            Self::Log { message, .. } => message.len(),
            Self::Progress { message, .. } => message.as_ref().map_or(0, String::len),
        }
    }

    /// The same with a message that is no longer than this.
    pub(crate) fn cut_to(mut self, bytes: usize) -> Self {
        let message = match &mut self {
            Self::Log { message, .. } => Some(message),
            Self::Progress { message, .. } => message.as_mut(),
        };
        if let Some(message) = message {
            message.truncate(message.floor_char_boundary(bytes));
        }
        self
    }
}

/// A job that a gear asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct SubJob {
    /// The how-manieth of this execution, from 0: an attempt that is run again gets the same job.
    pub number: u32,
    /// What is to be done, in words or as a plan.
    pub asked: Value,
}

/// How a sub-job ended.
#[derive(Debug, Clone, PartialEq)]
pub enum SubJobEnded {
    /// With this result.
    Completed(Value),
    /// It failed or was cancelled.
    Failed(Failure),
}

/// A future in a box.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where a gear's reports go, and its sub-jobs come from.
pub trait Desk: Send + Sync {
    /// Takes a line; never waits. What is too much for one attempt is left out, and that is said.
    fn report(&self, report: Report);

    /// Whether so much waits to be written that a gear is not to be heard.
    fn is_full(&self) -> bool {
        false
    }

    /// Comes back when it may be heard again.
    fn room(&self) -> Later<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Makes a sub-job, or finds the one made before, and waits for its end.
    fn sub_job(&self, asked: SubJob) -> Later<'_, SubJobEnded>;
}

/// Says when to stop: on a cancel, a timeout, a shutdown. Ends also when nobody is left to say so.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// A switch, and what it stops.
    pub fn channel() -> (watch::Sender<bool>, Self) {
        let (stop, stopped) = watch::channel(false);
        (stop, Self(stopped))
    }

    /// Comes back when it is time to stop.
    pub async fn stopped(&mut self) {
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    /// Whether it is.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }
}

/// As whom a gear acts while that is not known: nothing is decided by it.
pub const ORIGIN_UNKNOWN: &str = "?";

/// A gear.
pub trait Gear: Send + Sync {
    /// What it says of itself.
    fn manifest(&self) -> &Manifest;

    /// What follows an uncertain attempt of this very call: what the manifest says, unless that
    /// depends on the parameters (a GET is not a POST).
    fn recovery(&self, action: &str, _params: &Value) -> Recovery {
        self.manifest().actions.get(action).map_or(Recovery::Ask, |action| action.recovery)
    }

    /// Where this very call goes, when an action goes to many places: one that is down must not
    /// hold what goes elsewhere, so each has a breaker of its own.
    fn place(&self, _action: &str, _params: &Value) -> Option<String> {
        None
    }

    /// Whether its requests may be sent on to other places than its parameters name.
    fn is_sent_on(&self) -> bool {
        false
    }

    /// Where its processes are counted, if its calls are processes of this host.
    fn lane(&self) -> Option<&Arc<Lane>> {
        None
    }

    /// What it may have done by jobs of its own.
    fn grants(&self) -> &Grants {
        Grants::NONE
    }

    /// To whom a call of it sends a message in the operator's name.
    fn receiver(&self, _action: &str, _params: &Value) -> Option<String> {
        None
    }

    /// As whom it acts, if the world tells its effects apart by that: repeated as somebody else
    /// they would be others. [`ORIGIN_UNKNOWN`] while it cannot be said.
    fn origin(&self) -> Option<String> {
        None
    }

    /// Finds out as whom it acts, if that is not known.
    fn learn_origin(&self) -> Later<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Whether it has what it needs to run at all, such as its secrets.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether it works with the files of the job.
    fn needs_workspace(&self) -> bool {
        true
    }

    /// Whether the job's folder must be there when it begins.
    fn begins_in_workspace(&self) -> bool {
        self.needs_workspace()
    }

    /// Runs an action. When `stop` says so, it ends soon: message, SIGTERM, grace, SIGKILL, and
    /// nothing of it is left when this comes back. The engine enforces `call.timeout` through
    /// `stop`.
    fn run<'a>(&'a self, call: Call, desk: Arc<dyn Desk>, stop: Stop) -> Later<'a, Ended>;

    /// Asks what became of an earlier attempt whose end nobody saw (`recovery = resolve`).
    fn resolve<'a>(&'a self, call: Call, stop: Stop) -> Later<'a, Resolution>;
}

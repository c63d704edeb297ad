//! The author's side: a [`Worker`] takes functions by the names of actions and does the rest.
//!
//! One execution at a time, on a thread of its own, so that a cancel is heard while it works. Only
//! a [`Problem`] says that nothing has happened. After a panic, or with a result that cannot be
//! sent, nobody can tell: the process ends, and the host treats the attempt as uncertain.
//!
//! The pipes to the host are the kit's own: what an action or its children print goes to standard
//! error, and there is nothing for them to read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use semel_core::hex::Hex;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::limits::{HANDOVER_BYTES_MAX, HANDOVER_PATH, REPORT_BYTES_MAX};
use crate::line::{Breach, Direction, Key, Signer, Verifier, read_line};
use crate::message::{ErrorText, FromGear, Handover, ResolvedState, ToGear};

/// How a process ends that cannot tell what it has done (`EX_SOFTWARE`).
const CANNOT_TELL: i32 = 70;

/// What an action gives.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// A document.
    Value(Value),
    /// A file, relative to the workspace, for what has more than 1 MB.
    Artifact(String),
}

impl From<Value> for Output {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

/// Why an action did not happen. Say this only when it has had no effect: an action that cannot
/// tell panics or ends its process instead, and is treated as uncertain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `transient`, `user_error`, `resource_limit` or `gear_bug`.
    pub class: &'static str,
    /// A stable word.
    pub code: String,
    /// One sentence for a person.
    pub message: String,
    /// When to try again.
    pub retry_after_ms: Option<u64>,
}

impl Problem {
    /// It may pass; it is tried again.
    pub fn transient(code: &str, message: impl Into<String>) -> Self {
        Self::new("transient", code, message)
    }

    /// What was given cannot be done.
    pub fn user_error(code: &str, message: impl Into<String>) -> Self {
        Self::new("user_error", code, message)
    }

    /// There is not enough of something.
    pub fn resource_limit(code: &str, message: impl Into<String>) -> Self {
        Self::new("resource_limit", code, message)
    }

    /// The gear itself is wrong.
    pub fn gear_bug(code: &str, message: impl Into<String>) -> Self {
        Self::new("gear_bug", code, message)
    }

    fn new(class: &'static str, code: &str, message: impl Into<String>) -> Self {
        Self { class, code: code.to_owned(), message: message.into(), retry_after_ms: None }
    }
}

/// What a gear knows of an earlier attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Resolved {
    /// It happened, and gave this.
    Done(Output),
    /// It has not happened and will not.
    NotDone,
    /// Nobody can tell.
    Unknown,
}

/// Why a worker ended before its host did.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// It was not started by a host.
    #[error("there is no key on descriptor 3; a gear is run by semel (try: semel gear test)")]
    NoHost,
    /// The host said something that is not to be believed.
    #[error("the host broke the protocol")]
    Breach(#[from] Breach),
    /// The pipe to or from the host failed.
    #[error("the pipe to the host failed")]
    Io(#[from] io::Error),
}

type Handler = dyn Fn(&Context) -> Result<Output, Problem> + Send + Sync;
type Resolver = dyn Fn(&Context) -> Resolved + Send + Sync;

/// A gear's actions.
#[derive(Default)]
pub struct Worker {
    actions: BTreeMap<String, Arc<Handler>>,
    resolvers: BTreeMap<String, Arc<Resolver>>,
}

/// One execution, as its action sees it.
pub struct Context {
    /// The name of the effect: give it to whoever does the effect as its idempotency key.
    pub execution_id: String,
    /// Which attempt, from 1; 0 when it is asked what became of one.
    pub attempt: u32,
    /// Which action.
    pub action: String,
    /// What it is given.
    pub params: Value,
    shared: Arc<Shared>,
    sub_jobs: AtomicU32,
    ended: Mutex<Receiver<(u32, Result<Value, ErrorText>)>>,
}

/// How the process of an action ends that cannot tell what it has done.
type End = dyn Fn(&str) + Send + Sync;

struct Shared {
    out: Mutex<(Signer, Box<dyn Write + Send>)>,
    end: Box<End>,
    cancelled: AtomicBool,
    secrets: BTreeMap<String, Zeroizing<String>>,
}

impl Shared {
    fn say(&self, message: &FromGear) -> io::Result<()> {
        let document = serde_json::to_string(message)?;
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let (signer, pipe) = &mut *out;
        let line = signer.line(&document).ok_or_else(|| {
            let text = "a message has more than 1 MB: write it to a file of the workspace";
            io::Error::new(io::ErrorKind::FileTooLarge, text)
        })?;
        pipe.write_all(&line)?;
        pipe.flush()
    }
}

impl Context {
    /// A secret that the manifest asks for and the operator has set.
    pub fn secret(&self, name: &str) -> Option<&str> {
        self.shared.secrets.get(name).map(|secret| secret.as_str())
    }

    /// A line for the job's log. A host that is gone hears nothing; the gear ends soon then.
    pub fn log(&self, message: impl Into<String>) {
        let message = cut(message.into());
        let _ = self.shared.say(&FromGear::Log { message, side_effect: false });
    }

    /// A line that tells of an effect on the world: a later plan must know of it.
    pub fn side_effect(&self, message: impl Into<String>) {
        let message = cut(message.into());
        let _ = self.shared.say(&FromGear::Log { message, side_effect: true });
    }

    /// How far it is, 0 to 100.
    pub fn progress(&self, percent: u8, message: Option<&str>) {
        let message = message.map(|message| cut(message.to_owned()));
        let _ = self.shared.say(&FromGear::Progress { percent: percent.min(100), message });
    }

    /// Whether to stop.
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Acquire)
    }

    /// Asks for a job, in words or as a plan, and waits for its end. Ask in the same order in every
    /// attempt: the first one asked for is the same job each time.
    pub fn sub_job(&self, asked: Value) -> Result<Value, Problem> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.sub_jobs.fetch_add(1, Ordering::Relaxed);
        let gone = || Problem::transient("host_gone", "the host is gone");
        self.shared.say(&FromGear::CreateSubJob { number, asked }).map_err(|_| gone())?;
        loop {
            let (which, ended) = ended.recv().map_err(|_| gone())?;
            if which != number {
                continue;
            }
            return ended.map_err(|error| {
                let class = match error.class.as_str() {
                    "transient" => "transient",
                    "resource_limit" => "resource_limit",
                    "user_error" => "user_error",
                    _ => "gear_bug",
                };
                Problem::new(class, &error.code, error.message)
            });
        }
    }
}

impl Worker {
    /// One that can do nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What an action does.
    #[must_use]
    pub fn action(
        mut self,
        name: &str,
        run: impl Fn(&Context) -> Result<Output, Problem> + Send + Sync + 'static,
    ) -> Self {
        self.actions.insert(name.to_owned(), Arc::new(run));
        self
    }

    /// What became of an earlier attempt at an action (`recovery = "resolve"`).
    #[must_use]
    pub fn resolver(
        mut self,
        name: &str,
        resolve: impl Fn(&Context) -> Resolved + Send + Sync + 'static,
    ) -> Self {
        self.resolvers.insert(name.to_owned(), Arc::new(resolve));
        self
    }

    /// Serves the host that started this process, until it is done with it.
    pub fn run(self) -> Result<(), Broken> {
        let handover = handover()?;
        let (input, output) = own_pipes()?;
        self.serve(handover, BufReader::new(input), Box::new(output), Box::new(end))
    }

    fn serve(
        self,
        handover: Handover,
        mut input: impl io::BufRead,
        output: Box<dyn Write + Send>,
        end: Box<End>,
    ) -> Result<(), Broken> {
        let key = Hex::<32>::parse(&handover.key).map_err(|_| Broken::NoHost)?;
        let key = Key::new(key.0);
        let mut verifier = Verifier::new(key.clone(), Direction::ToGear);
        let secrets = handover.secrets.into_iter();
        let shared = Arc::new(Shared {
            out: Mutex::new((Signer::new(key, Direction::FromGear), output)),
            end,
            cancelled: AtomicBool::new(false),
            secrets: secrets.map(|(name, secret)| (name, Zeroizing::new(secret))).collect(),
        });
        let mut sub_jobs = None;
        while let Some(line) = read_line(&mut input)? {
            let line = line?;
            let document = verifier.document(&line)?;
            let number = verifier.last();
            let message = serde_json::from_str(document);
            let message = message.map_err(|_| Breach::Unknown { number })?;
            match message {
                ToGear::Execute { execution_id, attempt, action, params } => {
                    let (context, ended) = context(&shared, execution_id, attempt, action, params);
                    sub_jobs = Some(ended);
                    let run = self.actions.get(&context.action).cloned();
                    thread::Builder::new().spawn(move || execute(run.as_deref(), &context))?;
                }
                ToGear::Resolve { execution_id, action, params } => {
                    let (context, ended) = context(&shared, execution_id, 0, action, params);
                    sub_jobs = Some(ended);
                    let resolve = self.resolvers.get(&context.action).cloned();
                    let work = move || resolved(resolve.as_deref(), &context);
                    thread::Builder::new().spawn(work)?;
                }
                ToGear::Cancel { .. } => shared.cancelled.store(true, Ordering::Release),
                ToGear::SubJobEnded { number, value, error } => {
                    let ended = error.map_or_else(|| Ok(value.unwrap_or_default()), Err);
                    // Nobody waits for it when its action is over.
                    let _ = sub_jobs.as_ref().map(|sub_jobs| sub_jobs.send((number, ended)));
                }
            }
        }
        shared.cancelled.store(true, Ordering::Release);
        Ok(())
    }
}

type Ended = Sender<(u32, Result<Value, ErrorText>)>;

fn context(
    shared: &Arc<Shared>,
    execution_id: String,
    attempt: u32,
    action: String,
    params: Value,
) -> (Context, Ended) {
    shared.cancelled.store(false, Ordering::Release);
    let (sender, receiver) = channel();
    let (shared, ended) = (Arc::clone(shared), Mutex::new(receiver));
    let sub_jobs = AtomicU32::new(0);
    (Context { execution_id, attempt, action, params, shared, sub_jobs, ended }, sender)
}

fn execute(run: Option<&Handler>, context: &Context) {
    let ended = match run {
        None => Err(unknown_action(context)),
        Some(run) => match catch_unwind(AssertUnwindSafe(|| run(context))) {
            Ok(ended) => ended,
            // Where it panicked was told on standard error.
            Err(_) => return (context.shared.end)("the action panicked"),
        },
    };
    let message = match ended {
        Ok(Output::Value(value)) => FromGear::Result { value, artifact: None },
        Ok(Output::Artifact(path)) => FromGear::Result { value: Value::Null, artifact: Some(path) },
        Err(problem) => error(problem),
    };
    if let Err(error) = context.shared.say(&message) {
        (context.shared.end)(&error.to_string());
    }
}

fn resolved(resolve: Option<&Resolver>, context: &Context) {
    let known = resolve.map_or(Resolved::Unknown, |resolve| {
        catch_unwind(AssertUnwindSafe(|| resolve(context))).unwrap_or(Resolved::Unknown)
    });
    let (state, value, artifact) = match known {
        Resolved::Done(Output::Value(value)) => (ResolvedState::Done, value, None),
        Resolved::Done(Output::Artifact(path)) => (ResolvedState::Done, Value::Null, Some(path)),
        Resolved::NotDone => (ResolvedState::NotDone, Value::Null, None),
        Resolved::Unknown => (ResolvedState::Unknown, Value::Null, None),
    };
    if context.shared.say(&FromGear::Resolved { state, value, artifact }).is_err() {
        let (state, value) = (ResolvedState::Unknown, Value::Null);
        // A host that is gone asks again.
        let _ = context.shared.say(&FromGear::Resolved { state, value, artifact: None });
    }
}

fn unknown_action(context: &Context) -> Problem {
    Problem::gear_bug("no_such_action", format!("this gear has no action {}", context.action))
}

fn error(problem: Problem) -> FromGear {
    FromGear::Error {
        class: problem.class.to_owned(),
        code: problem.code,
        message: problem.message,
        retry_after_ms: problem.retry_after_ms,
    }
}

/// A text that is short enough to be kept.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(REPORT_BYTES_MAX));
    text
}

/// The pipes from and to the host. What this process prints from now on goes to standard error, and
/// its standard input is empty; neither pipe is inherited by a child.
fn own_pipes() -> io::Result<(File, File)> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    let (empty, _) = io::pipe()?;
    rustix::stdio::dup2_stdin(&empty)?;
    rustix::stdio::dup2_stdout(io::stderr().as_fd())?;
    Ok((input.into(), output.into()))
}

/// Ends the process, whatever its threads do.
#[expect(clippy::exit, clippy::print_stderr, reason = "its end is what the host is told")]
fn end(why: &str) {
    eprintln!("{why}");
    std::process::exit(CANNOT_TELL);
}

fn handover() -> Result<Handover, Broken> {
    let file = File::open(HANDOVER_PATH).map_err(|_| Broken::NoHost)?;
    let limit = u64::try_from(HANDOVER_BYTES_MAX).unwrap_or(u64::MAX);
    let mut bytes = Zeroizing::new(Vec::with_capacity(HANDOVER_BYTES_MAX));
    file.take(limit).read_to_end(&mut bytes).map_err(|_| Broken::NoHost)?;
    serde_json::from_slice(&bytes).map_err(|_| Broken::NoHost)
}

#[cfg(test)]
mod tests;

//! `semel job …`: what people and scripts do with jobs.

use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use semel_core::shown;
use serde_json::{Map, Value, json};

use super::place::Place;
use super::{artifact, backup, restored, serve, unsure, watch};
use crate::exit::{Exit, Failure, Form};
use crate::local::table::table;
use crate::local::{Daemon, query};
use crate::print;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  semel job submit --plan plan.json --wait
  semel job list --status failed --class transient
  semel job approve ID
  semel job retry --class transient")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Submit(Submit),
    /// List jobs, newest first
    List {
        /// Only jobs with this status
        #[arg(long)]
        status: Option<String>,
        /// Only failed jobs of this class
        #[arg(long)]
        class: Option<String>,
        /// Only jobs of this conversation
        #[arg(long)]
        conversation: Option<String>,
        /// At most this many
        #[arg(long, default_value = "50", value_parser = crate::local::limit)]
        limit: usize,
        #[command(flatten)]
        place: Place,
    },
    /// Show a job, its steps and their results
    Show {
        /// The job's id
        id: String,
        #[command(flatten)]
        place: Place,
    },
    /// Follow a job until it ends
    Watch {
        /// The job's id
        id: String,
        #[command(flatten)]
        place: Place,
    },
    Artifact(artifact::Arguments),
    Approve(Approve),
    /// Answer no to a job that waits for an approval; the job is cancelled
    Reject {
        /// The job's id
        id: String,
        /// The reason, in words
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Cancel a job and stop its running steps
    Cancel {
        /// The job's id
        id: String,
        /// The reason, in words
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Repeat a failed job, or all failed jobs of a class; completed steps are not repeated
    Retry {
        /// The job's id
        id: Option<String>,
        /// Repeat all failed jobs of this class
        #[arg(long, conflicts_with = "id", required_unless_present = "id")]
        class: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Show failures that repeat
    Patterns {
        /// How far to look back, in whole minutes
        #[arg(long, default_value = "1h", value_parser = crate::duration::parse_minutes)]
        since: Duration,
        #[command(flatten)]
        place: Place,
    },
    Backup(backup::BackupArguments),
    Restore(backup::RestoreArguments),
    StartFresh(backup::FreshArguments),
    Restored(restored::Arguments),
    Check(backup::CheckArguments),
}

/// Submit a job to the engine
#[derive(Debug, clap::Args)]
struct Submit {
    /// File with a plan; `-` reads stdin
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "request",
        required_unless_present = "request"
    )]
    plan: Option<PathBuf>,
    /// The task in words, for a planner; no engine has a planner yet (`planner_missing`)
    #[arg(long, value_name = "TEXT")]
    request: Option<String>,
    /// Key under which the job is made once
    #[arg(long)]
    key: Option<String>,
    /// Jobs of one conversation run one after the other
    #[arg(long)]
    conversation: Option<String>,
    /// critical, high, normal or low
    #[arg(long)]
    priority: Option<String>,
    /// Time limit of the job
    #[arg(long, value_parser = crate::duration::parse)]
    timeout: Option<Duration>,
    /// Follow the job until it ends
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    place: Place,
}

/// Approve the plan of a job, once
///
/// The plan is shown with its hash; the approval is for exactly this plan.
#[derive(Debug, clap::Args)]
struct Approve {
    /// The job's id
    id: String,
    /// Hash of the plan that you have read; default: the hash of the current plan
    #[arg(long)]
    plan_hash: Option<String>,
    /// Number of the question to answer, as the job shows it
    #[arg(long, value_name = "NUMBER")]
    question: Option<u64>,
    /// The step in question has happened, with this JSON as its result
    #[arg(long, value_name = "RESULT", conflicts_with = "run", requires = "question")]
    happened: Option<String>,
    /// The step in question has not happened: run it
    #[arg(long, requires = "question")]
    run: bool,
    #[command(flatten)]
    place: Place,
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Serve(arguments) => serve::run(arguments).await,
        Command::Backup(arguments) => backup::backup(arguments).await,
        Command::Restore(arguments) => backup::restore(arguments).await,
        Command::StartFresh(arguments) => backup::start_fresh(arguments),
        Command::Restored(arguments) => restored::run(arguments).await,
        Command::Check(arguments) => backup::check(arguments).await,
        Command::Submit(submit) => submit_job(submit).await,
        Command::List { status, class, conversation, limit, place } => {
            let daemon = place.daemon().await?;
            let query = query(&[
                ("status", status.clone()),
                ("class", class.clone()),
                ("conversation", conversation.clone()),
                ("limit", Some((*limit).min(500).to_string())),
            ]);
            let list = daemon.list(format!("/v1/jobs{query}"), *limit).await?;
            daemon.show(&list, |list| table(list, COLUMNS, "there are no such jobs"))
        }
        Command::Show { id, place } => {
            let daemon = place.daemon().await?;
            let job = daemon.get(&path(id, "")).await?;
            daemon.show(&job, shown)
        }
        Command::Watch { id, place } => watch::follow(&place.daemon().await?, id).await,
        Command::Artifact(arguments) => artifact::run(arguments).await,
        Command::Approve(approve) => approve_job(approve).await,
        Command::Reject { id, reason, place } => say(place, id, "/reject", reason).await,
        Command::Cancel { id, reason, place } => say(place, id, "/cancel", reason).await,
        Command::Retry { id: Some(id), place, .. } => {
            let daemon = place.daemon().await?;
            let job = daemon.post(&path(id, "/retry"), &json!({})).await?;
            daemon.show(&job, |job| format!("{} repeats it\n", plain(job, "id")))
        }
        Command::Retry { id: None, class, place } => {
            let daemon = place.daemon().await?;
            let retried = daemon.post("/v1/jobs/retry", &json!({"class": class})).await?;
            daemon.show(&retried, |retried| {
                let jobs = retried.get("jobs").and_then(Value::as_array).map_or(0, Vec::len);
                let more = retried.get("more").and_then(Value::as_bool).unwrap_or_default();
                let why = match &*plain(retried, "stopped_by") {
                    "" => String::new(),
                    code => format!(" ({code})"),
                };
                let rest = if more { "; there are more: run it again" } else { "" };
                format!("{jobs} jobs are repeated{rest}{why}\n")
            })
        }
        Command::Patterns { since, place } => {
            let daemon = place.daemon().await?;
            let minutes = since.as_secs() / 60;
            let found = daemon.get(&format!("/v1/jobs/patterns?minutes={minutes}")).await?;
            let columns = &[("COUNT", "count"), ("CLASS", "class"), ("ACTION", "action")];
            daemon.show(&found, |found| table(found, columns, "nothing has failed"))
        }
    }
}

const COLUMNS: &[(&str, &str)] = &[
    ("ID", "id"),
    ("STATUS", "status"),
    ("PRIORITY", "priority"),
    ("CLASS", "failure_class"),
    ("CREATED", "created_at"),
];

pub(super) fn path(id: &str, more: &str) -> String {
    format!("/v1/jobs/{}{more}", semel_wire::path::encode(id))
}

fn text<'a>(document: &'a Value, name: &str) -> &'a str {
    document.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The same for people.
fn plain<'a>(document: &'a Value, name: &str) -> Cow<'a, str> {
    shown::shown(text(document, name))
}

async fn submit_job(submit: &Submit) -> Result<(), Failure> {
    let daemon = submit.place.daemon().await?;
    let mut body = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        body.extend(value.map(|value| (name.to_owned(), value)));
    };
    put("plan", submit.plan.as_deref().map(read_plan).transpose()?);
    put("request", submit.request.clone().map(Value::from));
    put("conversation_id", submit.conversation.clone().map(Value::from));
    put("priority", submit.priority.clone().map(Value::from));
    let ms = submit.timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    put("timeout_ms", ms.map(Value::from));
    let job = daemon.submit(&Value::Object(body), submit.key.as_deref()).await?;
    if submit.wait {
        return watch::follow(&daemon, text(&job, "id")).await;
    }
    daemon.show(&job, |job| {
        let there = job.get("deduplicated").and_then(Value::as_bool).unwrap_or(false);
        let how = if there { "existed already, and is" } else { "is" };
        format!("{} {how} {}\n", plain(job, "id"), plain(job, "status"))
    })
}

fn read_plan(path: &Path) -> Result<Value, Failure> {
    let usage =
        |text: String| Failure::new(Exit::Usage, format!("error: {}: {text}", path.display()));
    let mut plan = String::new();
    if path.as_os_str() == "-" {
        let read = std::io::stdin().lock().take(2 << 20).read_to_string(&mut plan);
        read.map_err(|error| usage(error.to_string()))?;
    } else {
        plan = std::fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
    }
    serde_json::from_str(&plan).map_err(|error| usage(format!("this is not JSON: {error}")))
}

async fn approve_job(approve: &Approve) -> Result<(), Failure> {
    let daemon = approve.place.daemon().await?;
    let job = daemon.get(&path(&approve.id, "")).await?;
    let hash = approve.plan_hash.clone().unwrap_or_else(|| text(&job, "plan_hash").to_owned());
    let mut body = json!({"plan_hash": hash});
    if let Some(result) = &approve.happened {
        let result: Value = serde_json::from_str(result).map_err(|error| {
            Failure::new(Exit::Usage, format!("error: --happened: this is not JSON: {error}"))
        })?;
        let question = approve.question;
        body = json!({
            "plan_hash": hash, "question": question, "answer": "happened", "result": result,
        });
    } else if approve.run {
        body = json!({"plan_hash": hash, "question": approve.question, "answer": "run"});
    }
    let moved = daemon.post(&path(&approve.id, "/approve"), &body).await?;
    daemon.show(&moved, |moved| format!("{} is {}\n", plain(moved, "id"), plain(moved, "status")))
}

async fn say(place: &Place, id: &str, what: &str, reason: &Option<String>) -> Result<(), Failure> {
    let daemon = place.daemon().await?;
    let body = reason.as_ref().map_or(json!({}), |reason| json!({"reason": reason}));
    let moved = daemon.post(&path(id, what), &body).await?;
    daemon.show(&moved, |moved| format!("{} is {}\n", plain(moved, "id"), plain(moved, "status")))
}

/// A job for people.
fn shown(job: &Value) -> String {
    let mut lines = vec![
        format!("id        {}", plain(job, "id")),
        format!("status    {}", plain(job, "status")),
        format!("created   {}", plain(job, "created_at")),
    ];
    let mut more = |name: &str, label: &str| {
        if let Some(value) = job.get(name).filter(|value| !value.is_null()) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            lines.push(format!("{label:<10}{}", shown::shown(&value)));
        }
    };
    more("conversation_id", "of");
    more("failure_class", "class");
    more("error", "error");
    more("question", "question");
    more("plan_hash", "plan");
    more("held_by", "held by");
    lines.extend(unsure::steps(job));
    let mut steps = job.get("steps").cloned().unwrap_or_default();
    for step in steps.as_array_mut().into_iter().flatten() {
        let status = unsure::status(step).to_owned();
        step.as_object_mut().map(|step| step.insert("status".to_owned(), status.into()));
    }
    let steps = json!({"items": steps});
    let columns = &[
        ("STEP", "id"),
        ("GEAR", "gear"),
        ("ACTION", "action"),
        ("STATUS", "status"),
        ("ATTEMPTS", "attempts"),
        ("RESULT", "result"),
    ];
    format!("{}\n\n{}", lines.join("\n"), table(&steps, columns, "there is no plan yet"))
}

/// Prints a line, for people or for programs. What gears say in it does not move the cursor, and
/// what is JSON stays so.
pub(super) fn line(daemon: &Daemon, document: &Value, text: &str) -> Result<(), Failure> {
    match daemon.form {
        Form::Json => print(&format!("{document}\n")),
        Form::Text => print(&format!("{}\n", shown::shown(&shown::shown_json(text)))),
    }
}

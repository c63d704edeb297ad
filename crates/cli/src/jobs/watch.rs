//! Following a job: its ledger as it grows, also across restarts of the engine, until it ends.

use std::time::Duration;

use semel_client::Event;
use semel_core::shown::shown as plain;
use serde_json::{Value, json};

use super::unsure;
use super::verbs::line;
use crate::exit::{Exit, Failure, Form};
use crate::local::Daemon;
use crate::print;

/// The pause before a stream that was cut is resumed.
const RESUME_PAUSE: Duration = Duration::from_millis(300);

/// Prints what happens to a job; its end is the exit code.
pub(super) async fn follow(daemon: &Daemon, id: &str) -> Result<(), Failure> {
    let path = format!("/v1/jobs/{}", semel_wire::path::encode(id));
    daemon.get(&path).await?;
    let mut after = 0;
    loop {
        let stream = daemon.client.stream(&format!("{path}/events?after={after}")).await;
        if let Some(mut events) = daemon.opened(stream)? {
            while let Ok(Some(event)) = events.next().await {
                after = event.id;
                let document = json!({"id": event.id, "event": event.kind, "data": event.data});
                line(daemon, &document, &shown(&event))?;
                if let Some(status) = ended(&event) {
                    return result(daemon, &path, &status).await;
                }
            }
        }
        tokio::time::sleep(RESUME_PAUSE).await;
    }
}

fn text<'a>(data: &'a Value, name: &str) -> &'a str {
    data.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn ended(event: &Event) -> Option<String> {
    let status = text(&event.data, "status");
    let ends = event.kind == "moved" && ["completed", "failed", "cancelled"].contains(&status);
    ends.then(|| status.to_owned())
}

fn shown(event: &Event) -> String {
    let data = &event.data;
    let step = text(data, "step");
    let message = data.get("error").map(|error| text(error, "message")).unwrap_or_default();
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    match event.kind.as_str() {
        "step_started" => {
            let attempt = data.get("attempt").and_then(Value::as_u64).unwrap_or(1);
            let again = if attempt > 1 { format!(" (attempt {attempt})") } else { String::new() };
            format!("  {step}  started{again}")
        }
        "step_ended" => format!("  {step}  {}{message}", unsure::status(data)),
        "log" => format!("  {step}  {}", text(data, "message")),
        "progress" => {
            let percent = data.get("percent").and_then(Value::as_u64).unwrap_or(0);
            format!("  {step}  {percent} %  {}", text(data, "message"))
        }
        _ => format!("{}{message}", text(data, "status")),
    }
}

/// The result of a job that was completed; the error of one that was not is the command's own.
async fn result(daemon: &Daemon, path: &str, status: &str) -> Result<(), Failure> {
    let job = daemon.get(path).await?;
    let uncertain = unsure::steps(&job);
    if let (Form::Text, Some(steps)) = (daemon.form, &uncertain) {
        print(&format!("{steps}\n"))?;
    }
    // A script that takes it for undone would do it a second time.
    let or_unknown = |exit| if uncertain.is_some() { Exit::Unknown } else { exit };
    match status {
        "completed" => {
            let result = job.get("result").cloned().unwrap_or_default();
            line(daemon, &json!({"event": "result", "result": result}), &result.to_string())
        }
        "cancelled" => {
            Err(Failure::new(or_unknown(Exit::Conflict), "error: the job was cancelled"))
        }
        _ => {
            let error = job.get("error").map(|error| text(error, "message")).unwrap_or_default();
            let class = text(&job, "failure_class");
            let id = text(&job, "id");
            let text = format!(
                "error: the job failed ({class}): {}\nto try it again: semel job retry {id}",
                plain(error)
            );
            Err(Failure::new(or_unknown(Exit::Failed), text))
        }
    }
}

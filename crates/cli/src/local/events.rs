//! `semel events`: what happens on this host's daemon, as it happens.

use std::time::Duration;

use semel_client::Event;
use semel_core::shown::shown;
use serde_json::json;

use super::{Daemon, Local};
use crate::exit::{Failure, Form};
use crate::print;

/// The pause before a stream that was cut is resumed.
const RESUME_PAUSE: Duration = Duration::from_millis(500);

/// Print events until interrupted
///
/// A stream that is cut, also by a restart of the daemon, continues where it stopped.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Start after this event instead of now
    #[arg(long)]
    after: Option<u64>,
    /// Only these kinds, separated by commas
    #[arg(long, value_delimiter = ',')]
    kinds: Vec<String>,
    #[command(flatten)]
    local: Local,
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let daemon = arguments.local.daemon().await?;
    let kinds: Vec<&str> = arguments.kinds.iter().map(String::as_str).collect();
    follow(&daemon, arguments.after, &kinds, |event| match daemon.form {
        Form::Json => {
            let line = json!({"id": event.id, "event": event.kind, "data": event.data});
            print(&format!("{line}\n"))
        }
        Form::Text => {
            let line = format!("{}  {}  {}", event.id, event.kind, event.data);
            print(&format!("{}\n", shown(&line)))
        }
    })
    .await
}

/// Follows the stream for ever; a daemon that was there once is waited for. What it refuses for
/// good ends the command.
pub(super) async fn follow(
    daemon: &Daemon,
    mut after: Option<u64>,
    kinds: &[&str],
    each: impl Fn(&Event) -> Result<(), Failure>,
) -> Result<(), Failure> {
    loop {
        let stream = daemon.client.events(after, kinds).await;
        if let Some(mut events) = daemon.opened(stream)? {
            while let Ok(Some(event)) = events.next().await {
                each(&event)?;
            }
            // Also when nothing has happened yet: what happens until it is resumed is not missed.
            after = events.seen().or(after);
        }
        tokio::time::sleep(RESUME_PAUSE).await;
    }
}

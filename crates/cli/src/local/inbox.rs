//! `semel inbox`: what arrived on this host.

use clap::Subcommand;
use serde_json::{Value, json};

use super::table::{Column, table};
use super::{Daemon, Local, query};
use crate::exit::Failure;
use crate::print;

const COLUMNS: &[Column] = &[
    ("ID", "id"),
    ("RECEIVED", "received_at"),
    ("FROM", "sender_name"),
    ("TOPIC", "topic"),
    ("MESSAGE", "body"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    local: Local,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List messages in the order of arrival
    List {
        /// Only of this topic
        #[arg(long)]
        topic: Option<String>,
        /// Only of the sender with this public key
        #[arg(long)]
        from: Option<String>,
        /// Received at or after this time (RFC 3339)
        #[arg(long)]
        since: Option<String>,
        /// After the message with this id
        #[arg(long)]
        after: Option<u64>,
        /// So many at the most
        #[arg(long, default_value = "100")]
        limit: usize,
    },
    /// Find messages that say all of these words
    Search {
        /// The words
        #[arg(required = true)]
        words: Vec<String>,
        /// So many at the most
        #[arg(long, default_value = "100")]
        limit: usize,
    },
    /// Print messages as they arrive, until interrupted
    Watch {
        /// Begin after this event instead of now
        #[arg(long)]
        after: Option<u64>,
    },
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let daemon = arguments.local.daemon().await?;
    let page = |limit: usize| Some(limit.clamp(1, 500).to_string());
    match &arguments.command {
        Command::List { topic, from, since, after, limit } => {
            let query = query(&[
                ("topic", topic.clone()),
                ("from", from.clone()),
                ("since", since.clone()),
                ("after", after.map(|id| id.to_string())),
                ("limit", page(*limit)),
            ]);
            let list = daemon.list(format!("/v1/inbox{query}"), *limit).await?;
            daemon.show(&list, |list| table(list, COLUMNS, "nothing has arrived"))
        }
        Command::Search { words, limit } => {
            let query = query(&[("q", Some(words.join(" "))), ("limit", page(*limit))]);
            let list = daemon.list(format!("/v1/inbox/search{query}"), *limit).await?;
            daemon.show(&list, |list| table(list, COLUMNS, "nothing was found"))
        }
        Command::Watch { after } => watch(&daemon, *after).await,
    }
}

async fn watch(daemon: &Daemon, after: Option<u64>) -> Result<(), Failure> {
    super::events::follow(daemon, after, &["message"], |event| {
        daemon.show(&event.data, |message| {
            let list = json!({"items": [message]});
            // Without the heading.
            table(&list, COLUMNS, "").lines().skip(1).map(|line| format!("{line}\n")).collect()
        })
    })
    .await
}

/// A document as lines of `name: value`.
pub(super) fn lines(document: &Value) -> String {
    let Some(fields) = document.as_object() else { return format!("{document}\n") };
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    let line = |(name, value): (&String, &Value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Null => "–".to_owned(),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                value.to_string()
            }
        };
        format!("{name:width$}  {value}\n")
    };
    fields.iter().map(line).collect()
}

pub(super) fn say(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

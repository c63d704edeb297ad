//! `semel inbox`: what arrived on this host.

use clap::Subcommand;
use semel_core::shown::shown;
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

const ASIDE: &[Column] =
    &[("ID", "id"), ("AT", "at"), ("BY", "source"), ("REASON", "reason"), ("WHAT", "body")];

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
        /// Only messages of this topic
        #[arg(long)]
        topic: Option<String>,
        /// Only messages from the sender with this public key
        #[arg(long)]
        from: Option<String>,
        /// Only messages received at or after this time (RFC 3339)
        #[arg(long)]
        since: Option<String>,
        /// Only messages that mention this host's member
        #[arg(long)]
        mentions: bool,
        /// Only messages after the one with this id
        #[arg(long)]
        after: Option<u64>,
        /// At most this many
        #[arg(long, default_value = "100", value_parser = crate::local::limit)]
        limit: usize,
    },
    /// Find messages that contain all of these words
    Search {
        /// The words to find
        #[arg(required = true)]
        words: Vec<String>,
        /// At most this many
        #[arg(long, default_value = "100", value_parser = crate::local::limit)]
        limit: usize,
    },
    /// Mark messages as read; only read messages are ever deleted
    Ack {
        /// The last message to mark; all before it are marked, too
        id: u64,
        /// Only messages of this topic
        #[arg(long)]
        topic: Option<String>,
        /// Name of the reader
        #[arg(long, default_value = "me")]
        reader: String,
    },
    /// List messages that arrived and could not be accepted
    Aside {
        /// Delete the message with this id, after you have looked at it
        #[arg(long, value_name = "ID")]
        drop: Option<u64>,
        /// At most this many
        #[arg(long, default_value = "100", value_parser = crate::local::limit)]
        limit: usize,
    },
    /// Print messages as they arrive, until interrupted
    Watch {
        /// Start after this event instead of now
        #[arg(long)]
        after: Option<u64>,
    },
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let daemon = arguments.local.daemon().await?;
    let page = |limit: usize| Some(limit.min(500).to_string());
    match &arguments.command {
        Command::List { topic, from, since, mentions, after, limit } => {
            let query = query(&[
                ("topic", topic.clone()),
                ("from", from.clone()),
                ("since", since.clone()),
                ("mentions", mentions.then(|| "me".to_owned())),
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
        Command::Ack { id, topic, reader } => {
            let mut body = json!({"reader": reader, "id": id});
            if let Some(topic) = topic {
                body["topic"] = json!(topic);
            }
            let read = daemon.post("/v1/inbox/ack", &body).await?;
            daemon.show(&read, lines)
        }
        Command::Aside { drop: Some(id), .. } => {
            let path = format!("/v1/inbox/aside/{id}/drop");
            let dropped = daemon.post(&path, &json!({})).await?;
            daemon.show(&dropped, lines)
        }
        Command::Aside { drop: None, limit } => {
            let query = query(&[("limit", page(*limit))]);
            let list = daemon.list(format!("/v1/inbox/aside{query}"), *limit).await?;
            daemon.show(&list, |list| table(list, ASIDE, "nothing is set aside"))
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
        format!("{name:width$}  {}\n", shown(&value))
    };
    fields.iter().map(line).collect()
}

pub(super) fn say(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

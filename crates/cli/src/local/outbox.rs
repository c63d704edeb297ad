//! `semel outbox`: what was accepted on this host, and what became of it.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::inbox::{lines, say};
use super::table::{Column, table};
use super::{Local, query};
use crate::exit::{Exit, Failure, Form};

const COLUMNS: &[Column] = &[
    ("OUTBOX ID", "outbox_id"),
    ("KEY", "client_message_id"),
    ("TO", "to"),
    ("STATUS", "status"),
    ("OUTCOME", "outcome"),
    ("ATTEMPTS", "attempts"),
    ("ACCEPTED", "enqueued_at"),
    ("LAST ERROR", "last_error"),
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
    /// List rows in the order in which they were accepted
    List {
        /// Only messages that were given up
        #[arg(long)]
        failed: bool,
        /// Only rows after the one with this outbox id
        #[arg(long)]
        after: Option<String>,
        /// At most this many
        #[arg(long, default_value = "100", value_parser = crate::local::limit)]
        limit: usize,
    },
    /// Show one row, and the row that replaced it
    Inspect {
        /// The row's outbox id or key
        id: String,
    },
    /// Replace a row by a new one with a new id
    Requeue {
        /// The row's outbox id or key
        #[arg(long)]
        id: String,
        /// Key of the new row; default: a generated one
        #[arg(long, value_name = "KEY")]
        new_client_id: Option<String>,
        /// Generate the new row's key, as without --new-client-id
        #[arg(long, conflicts_with = "new_client_id")]
        auto: bool,
        /// Send this file's content instead
        #[arg(long, value_name = "FILE")]
        patch_payload: Option<PathBuf>,
        /// Also if it is unknown whether the old message was delivered
        #[arg(long)]
        even_if_delivered: bool,
    },
    /// Delete the payloads of delivered messages; ids and fingerprints stay
    Prune {
        /// Only messages older than this many days
        #[arg(long, default_value = "7")]
        older_than_days: u64,
        /// Confirm it; without this option nothing is deleted
        #[arg(long)]
        confirm: bool,
    },
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let daemon = arguments.local.daemon().await?;
    match &arguments.command {
        Command::List { failed, after, limit } => {
            let query = query(&[
                ("failed", failed.then(|| "true".to_owned())),
                ("after", after.clone()),
                ("limit", Some((*limit).min(500).to_string())),
            ]);
            let list = daemon.list(format!("/v1/outbox{query}"), *limit).await?;
            daemon.show(&list, |list| table(list, COLUMNS, "there are no rows"))
        }
        Command::Inspect { id } => {
            let row = daemon.get(&format!("/v1/outbox/{}", semel_wire::path::encode(id))).await?;
            daemon.show(&row, lines)
        }
        Command::Requeue { id, new_client_id, auto: _, patch_payload, even_if_delivered } => {
            let mut body = Map::new();
            if let Some(key) = new_client_id {
                body.insert("client_message_id".to_owned(), json!(key));
            }
            if let Some(path) = patch_payload {
                let bytes = std::fs::read(path).map_err(|error| {
                    let text = format!("error: {}: {error}", path.display());
                    Failure::new(Exit::Usage, text)
                })?;
                let encoded = STANDARD.encode(&bytes);
                body.insert("body_base64".to_owned(), json!(encoded));
            }
            if *even_if_delivered {
                body.insert("even_if_delivered".to_owned(), json!(true));
            }
            let path = format!("/v1/outbox/{}/requeue", semel_wire::path::encode(id));
            let requeued = daemon.post(&path, &Value::Object(body)).await?;
            daemon.show(&requeued, lines)
        }
        Command::Prune { confirm: false, .. } => {
            let text = "error: this deletes payloads for good; to do it: --confirm";
            Err(Failure::new(Exit::Usage, text))
        }
        Command::Prune { older_than_days, confirm: true } => {
            let body = json!({"older_than_days": older_than_days});
            let pruned = daemon.post("/v1/outbox/prune", &body).await?;
            match daemon.form {
                Form::Json => say(&pruned.to_string()),
                Form::Text => say(&format!("{} payloads were deleted", pruned["pruned"])),
            }
        }
    }
}

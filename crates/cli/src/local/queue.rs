//! `semel queue`: work queues of the mesh, each message to one taker.

use clap::Subcommand;
use serde_json::{Value, json};

use super::inbox::{lines, say};
use super::table::table;
use super::{Local, query};
use crate::exit::{Exit, Failure, Form};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    local: Local,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a queue
    Create {
        /// The name of the queue
        queue: String,
    },
    /// Delete a queue; an owner may delete any, a member only its own
    Delete {
        /// The name of the queue
        queue: String,
        /// Discard the work in the queue, including work that somebody has taken
        #[arg(long)]
        discard: bool,
    },
    /// List queues
    List {
        /// At most this many
        #[arg(long, default_value = "500", value_parser = crate::local::limit)]
        limit: usize,
    },
    /// Take work; work that is not acknowledged in time is offered again
    Take {
        /// The queue
        queue: String,
        /// At most this many messages
        #[arg(long, default_value = "1")]
        max: u64,
        /// Time in which the work must be acknowledged
        #[arg(long, default_value = "60s", value_parser = crate::duration::parse)]
        lease: std::time::Duration,
    },
    /// Mark work as done
    Ack {
        /// The queue
        queue: String,
        /// Numbers of messages, as `take` shows them
        #[arg(required = true)]
        seqs: Vec<i64>,
    },
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let daemon = arguments.local.daemon().await?;
    match &arguments.command {
        Command::Create { queue } => {
            let answer = daemon.post("/v1/queue/create", &json!({"queue": queue})).await?;
            match daemon.form {
                Form::Json => say(&answer.to_string()),
                Form::Text => say(&format!("queue:{queue} exists")),
            }
        }
        Command::Delete { queue, discard } => {
            let body = json!({"queue": queue, "discard": discard});
            let answer = daemon.post("/v1/queue/delete", &body).await?;
            match daemon.form {
                Form::Json => say(&answer.to_string()),
                Form::Text => say(&format!("queue:{queue} is deleted")),
            }
        }
        Command::List { limit } => {
            let query = query(&[("limit", Some((*limit).min(500).to_string()))]);
            let list = daemon.list(format!("/v1/queue/list{query}"), *limit).await?;
            daemon.show(&list, |list| table(list, &[("QUEUE", "name")], "there are no queues"))
        }
        Command::Take { queue, max, lease } => {
            let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
            let body = json!({"queue": queue, "max": max, "lease_ms": lease_ms});
            let taken = daemon.post("/v1/queue/take", &body).await?;
            let columns = &[("SEQ", "seq"), ("FROM", "sender_name"), ("MESSAGE", "body")];
            daemon.show(&taken, |taken| table(taken, columns, "there is no work"))
        }
        Command::Ack { queue, seqs } => {
            let body = json!({"queue": queue, "seqs": seqs});
            let acked = daemon.post("/v1/queue/ack", &body).await?;
            daemon.show(&acked, lines)?;
            let none = acked.get("acked").and_then(Value::as_array).is_some_and(Vec::is_empty);
            if !none {
                return Ok(());
            }
            let text = "error: this host holds none of these: they are done already, or their \
                        lease has ended and another member may have them";
            Err(Failure::new(Exit::NotFound, text))
        }
    }
}

//! `semel topic`: topics of the mesh.

use clap::Subcommand;
use serde_json::json;

use super::inbox::{lines, say};
use super::table::table;
use super::{Local, query};
use crate::exit::{Failure, Form};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    local: Local,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a topic and subscribe to it
    Create {
        /// The name of the topic
        topic: String,
    },
    /// List topics
    List {
        /// At most this many
        #[arg(long, default_value = "500", value_parser = crate::local::limit)]
        limit: usize,
    },
    /// Receive messages of a topic from now on
    Subscribe {
        /// The name of the topic
        topic: String,
    },
    /// Stop receiving messages of a topic
    Unsubscribe {
        /// The name of the topic
        topic: String,
    },
    /// Delete a topic; an owner may delete any, a member only its own. Messages that were posted
    /// are still delivered
    Delete {
        /// The name of the topic
        topic: String,
        /// Delete it even if other members subscribe to it; they receive nothing more from it
        #[arg(long)]
        confirm: bool,
    },
    /// Post a message
    Post {
        /// The topic
        topic: String,
        /// The message
        message: String,
        /// Id under which the message is posted once
        #[arg(long, value_name = "ID")]
        key: Option<String>,
        /// Public keys or @names to mention, separated by commas
        #[arg(long, value_delimiter = ',')]
        mentions: Vec<String>,
    },
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let daemon = arguments.local.daemon().await?;
    let (path, topic, done) = match &arguments.command {
        Command::List { limit } => {
            let query = query(&[("limit", Some((*limit).min(500).to_string()))]);
            let list = daemon.list(format!("/v1/topic/list{query}"), *limit).await?;
            let columns = &[("TOPIC", "name"), ("SUBSCRIBED", "subscribed")];
            return daemon.show(&list, |list| table(list, columns, "there are no topics"));
        }
        Command::Post { topic, message, key, mentions } => {
            let mut body = json!({"topic": topic, "message": message});
            if let Some(key) = key {
                body["client_message_id"] = json!(key);
            }
            if !mentions.is_empty() {
                body["mentions"] = json!(mentions);
            }
            let posted = daemon.post("/v1/topic/post", &body).await?;
            return daemon.show(&posted, lines);
        }
        Command::Delete { topic, confirm } => {
            let body = json!({"topic": topic, "confirm": confirm});
            let answer = daemon.post("/v1/topic/delete", &body).await?;
            return match daemon.form {
                Form::Json => say(&answer.to_string()),
                Form::Text => say(&format!("#{} is deleted", topic.trim_start_matches('#'))),
            };
        }
        Command::Create { topic } => ("/v1/topic/create", topic, "exists, and is subscribed to"),
        Command::Subscribe { topic } => ("/v1/topic/subscribe", topic, "is subscribed to"),
        Command::Unsubscribe { topic } => {
            ("/v1/topic/unsubscribe", topic, "is not subscribed to any more")
        }
    };
    let answer = daemon.post(path, &json!({"topic": topic})).await?;
    match daemon.form {
        Form::Json => say(&answer.to_string()),
        Form::Text => say(&format!("#{} {done}", topic.trim_start_matches('#'))),
    }
}

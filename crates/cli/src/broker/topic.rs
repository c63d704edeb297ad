//! Topics and work queues.

use clap::Subcommand;
use semel_broker::store::Made;
use semel_core::shown::shown;
use serde_json::json;

use super::member::{member_id, plain_name};
use super::target::{self, failed, mesh as find, mint, now};
use crate::exit::{Exit, Failure, Form};
use crate::print;

/// Names read at a time.
const PAGE: i64 = 500;

#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// Make a topic
    Create {
        /// The mesh
        mesh: String,
        /// The topic
        topic: String,
        #[command(flatten)]
        target: target::Target,
    },
    /// List topics by name
    List {
        /// The mesh
        mesh: String,
        /// Print one JSON line per topic
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: target::Target,
    },
    /// Subscribe a member
    Subscribe {
        /// The mesh
        mesh: String,
        /// The topic
        topic: String,
        /// The member's id
        member: String,
        #[command(flatten)]
        target: target::Target,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// Make a work queue
    Create {
        /// The mesh
        mesh: String,
        /// The queue
        queue: String,
        #[command(flatten)]
        target: target::Target,
    },
    /// List work queues by name
    List {
        /// The mesh
        mesh: String,
        /// Print one JSON line per queue
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: target::Target,
    },
}

pub(super) async fn topic(command: &TopicCommand) -> Result<(), Failure> {
    match command {
        TopicCommand::Create { mesh, topic, target } => {
            plain_name(topic)?;
            let store = target.open_used().await?;
            let mesh = find(&store, mesh).await?;
            let made = store.topic_create(mesh.mesh_id, topic, None, now()).await;
            made.map_err(|error| failed(&error)).and_then(|made| told(made, "topics"))
        }
        TopicCommand::List { mesh, json, target } => {
            let store = target.open_used().await?;
            let mesh_id = find(&store, mesh).await?.mesh_id;
            let form = Form::of_flag(*json);
            all(form, async |after| store.topic_list(mesh_id, after, PAGE).await).await
        }
        TopicCommand::Subscribe { mesh, topic, member, target } => {
            let (store, member_id) = (target.open_used().await?, member_id(member)?);
            let mesh = find(&store, mesh).await?;
            let subscribed = store.topic_subscribe(mesh.mesh_id, topic, member_id).await;
            if subscribed.map_err(|error| failed(&error))? {
                return Ok(());
            }
            Err(Failure::new(Exit::NotFound, format!("error: there is no topic {topic:?}")))
        }
    }
}

pub(super) async fn queue(command: &QueueCommand) -> Result<(), Failure> {
    match command {
        QueueCommand::Create { mesh, queue, target } => {
            plain_name(queue)?;
            let store = target.open_used().await?;
            let mesh = find(&store, mesh).await?;
            let made = store.queue_create(mesh.mesh_id, (queue, mint().uuid()), None, now()).await;
            made.map_err(|error| failed(&error)).and_then(|made| told(made, "queues"))
        }
        QueueCommand::List { mesh, json, target } => {
            let store = target.open_used().await?;
            let mesh_id = find(&store, mesh).await?.mesh_id;
            let form = Form::of_flag(*json);
            all(form, async |after| store.queue_list(mesh_id, after, PAGE).await).await
        }
    }
}

fn told(made: Made, what: &str) -> Result<(), Failure> {
    match made {
        Made::New | Made::There => Ok(()),
        Made::TooMany => {
            let text = format!("error: the mesh has too many {what}");
            Err(Failure::new(Exit::Conflict, text))
        }
    }
}

async fn all(
    form: Form,
    page: impl AsyncFn(Option<&str>) -> Result<Vec<String>, semel_store::StoreError>,
) -> Result<(), Failure> {
    let mut after: Option<String> = None;
    loop {
        let mut names = page(after.as_deref()).await.map_err(|error| failed(&error))?;
        let line = |name: &String| match form {
            Form::Text => format!("{}\n", shown(name)),
            Form::Json => format!("{}\n", json!({"name": name})),
        };
        print(&names.iter().map(line).collect::<String>())?;
        match names.pop() {
            Some(last) => after = Some(last),
            None => return Ok(()),
        }
    }
}

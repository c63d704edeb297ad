//! The operator's verbs: meshes, members, topics and queues, straight in the store.

use clap::Subcommand;
use semel_broker::accept::DedupeMode;
use semel_broker::hints;
use semel_broker::housekeeping::{self, SweepReport};
use semel_broker::limits::AUDIT_LIST_MAX;
use semel_broker::store::{Audited, MemberStatus, NewMember, Role, Store};
use semel_core::clock::{Clock, SystemClock, UnixMs};
use semel_core::id::MemberId;
use semel_crypto::keys::PublicKey;
use serde_json::json;

use super::target::{self, failed, mesh as find, mint};
use crate::exit::{Exit, Failure, Form};
use crate::print;

#[derive(Debug, Subcommand)]
pub(crate) enum MeshCommand {
    /// Make a mesh with its owner
    Create {
        /// Its name
        slug: String,
        /// The owner's name
        #[arg(long)]
        owner: String,
        /// The owner's ed25519 public key, 64 hexadecimal digits
        #[arg(long)]
        owner_key: String,
        #[command(flatten)]
        target: target::Target,
    },
    /// Show a mesh and its policies
    Show {
        /// Its name
        slug: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: target::Target,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArguments {
    /// Print one JSON line per mesh
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: target::Target,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AuditArguments {
    /// The mesh
    mesh: String,
    /// Print one JSON document per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: target::Target,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// Let somebody in
    Add {
        /// The mesh
        mesh: String,
        /// The member's name
        name: String,
        /// Its ed25519 public key, 64 hexadecimal digits
        key: String,
        #[command(flatten)]
        target: target::Target,
    },
    /// Throw a member out
    Revoke {
        /// The mesh
        mesh: String,
        /// The member's id
        member: String,
        #[command(flatten)]
        target: target::Target,
    },
}

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
}

fn now() -> UnixMs {
    SystemClock::new().wall()
}

pub(super) async fn sweep(target: &target::Target) -> Result<(), Failure> {
    let store = target.open().await?;
    let swept = async {
        let meshes = store.mesh_list().await?;
        housekeeping::sweep_once(&store, &meshes, now()).await
    };
    let swept = swept.await.map_err(|error| failed(&error))?;
    let SweepReport { ids, messages, audit_events, unfinished } = swept;
    let what = format!("ids forgotten {ids}, messages deleted {messages}");
    print(&format!("{what}, audit events deleted {audit_events}\n"))?;
    if unfinished > 0 {
        let text = "error: there is more to sweep\ngo on with: semel broker sweep";
        return Err(Failure::new(Exit::Unavailable, text));
    }
    Ok(())
}

pub(super) async fn check(arguments: &CheckArguments) -> Result<(), Failure> {
    let store = arguments.target.open().await?;
    let meshes = store.mesh_list().await.map_err(|error| failed(&error))?;
    let reports = housekeeping::check_once(&store, &meshes, now()).await;
    let mut wrong = 0;
    for (mesh_id, report) in reports.map_err(|error| failed(&error))? {
        let slug = meshes.iter().find(|mesh| mesh.mesh_id == mesh_id).map_or("", |m| &m.slug);
        let findings = report.findings();
        wrong += findings.iter().map(|(_, count)| count).sum::<u64>();
        let line = if arguments.json {
            let findings: serde_json::Map<_, _> =
                findings.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect();
            json!({"mesh": slug, "rows": report.rows, "findings": findings}).to_string()
        } else {
            let found = findings.iter().filter(|(_, count)| *count > 0);
            let found: Vec<String> = found.map(|(name, count)| format!("{name} {count}")).collect();
            let found = if found.is_empty() { "consistent".to_owned() } else { found.join(", ") };
            format!("{slug}: {} rows, {found}", report.rows)
        };
        print(&format!("{line}\n"))?;
    }
    if wrong > 0 {
        let text = format!("error: {wrong} rows are not as they must be");
        return Err(Failure::new(Exit::Failed, text));
    }
    Ok(())
}

pub(super) async fn audit(arguments: &AuditArguments) -> Result<(), Failure> {
    let store = arguments.target.open().await?;
    let mesh = find(&store, &arguments.mesh).await?;
    let events = store.audit_list(mesh.mesh_id, AUDIT_LIST_MAX).await;
    for event in events.map_err(|error| failed(&error))? {
        let line = match Form::of_flag(arguments.json) {
            Form::Text => format!("{} {} {}", event.at.0, event.kind, event.detail),
            Form::Json => {
                let detail: serde_json::Value =
                    serde_json::from_str(&event.detail).unwrap_or_default();
                let id = event.id.to_string();
                json!({"id": id, "at": event.at.0, "kind": event.kind, "detail": detail})
                    .to_string()
            }
        };
        print(&format!("{line}\n"))?;
    }
    Ok(())
}

pub(super) async fn mesh(command: &MeshCommand) -> Result<(), Failure> {
    match command {
        MeshCommand::Create { slug, owner, owner_key, target } => {
            let owner = new_member(owner, owner_key, Role::Owner)?;
            let store = target.open().await?;
            let made = store.mesh_create(mint().uuid(), slug, &owner, now()).await;
            if !made.map_err(|error| failed(&error))? {
                let text = format!("error: there is a mesh {slug:?} already");
                return Err(Failure::new(Exit::Conflict, text));
            }
            print(&format!("{}\n", owner.member_id))
        }
        MeshCommand::Show { slug, json, target } => {
            let store = target.open().await?;
            let mesh = find(&store, slug).await?;
            let (mode, days) = match mesh.dedupe {
                DedupeMode::Permanent => ("permanent", None),
                DedupeMode::RetentionScoped { days } => ("retention_scoped", Some(days)),
            };
            let document = json!({
                "mesh_id": mesh.mesh_id.to_string(), "slug": mesh.slug,
                "clone_concurrency_policy": mesh.connection_policy.as_str(),
                "dedupe_mode": mode,
                "dedupe_retention_days": days,
                "message_retention_days": mesh.message_retention_days,
                "rate_limit": mesh.rate_limit,
                "rate_window_ms": mesh.rate_window_ms, "inline_bytes": mesh.inline_bytes,
                "blob_bytes": mesh.blob_bytes,
            });
            match (Form::of_flag(*json), document.as_object()) {
                (Form::Text, Some(fields)) => {
                    let line = |(name, value): (&String, &serde_json::Value)| {
                        format!("{name:<24} {}\n", value.to_string().trim_matches('"'))
                    };
                    print(&fields.iter().map(line).collect::<String>())
                }
                (Form::Json, _) | (Form::Text, None) => print(&format!("{document}\n")),
            }
        }
    }
}

pub(super) async fn member(command: &MemberCommand) -> Result<(), Failure> {
    match command {
        MemberCommand::Add { mesh, name, key, target } => {
            let member = new_member(name, key, Role::Member)?;
            let store = target.open().await?;
            let mesh = find(&store, mesh).await?;
            let added = store.member_add(mesh.mesh_id, &member, now()).await;
            added.map_err(|error| failed(&error))?;
            print(&format!("{}\n", member.member_id))
        }
        MemberCommand::Revoke { mesh, member, target } => {
            let (store, member_id) = (target.open().await?, member_id(member)?);
            let mesh = find(&store, mesh).await?;
            let (mint, revoked) = (mint(), MemberStatus::Revoked);
            let audited = Audited { id: mint.uuid(), at: now() };
            let ended = store.member_end(mesh.mesh_id, member_id, revoked, audited).await;
            if ended.map_err(|error| failed(&error))? {
                // The brokers find out by themselves, only later.
                let told = hints::tell_sessions_changed(&store, mint.uuid(), mesh.mesh_id).await;
                return told.map_err(|error| failed(&error));
            }
            let text = format!("error: {member} is not an active member");
            Err(Failure::new(Exit::NotFound, text))
        }
    }
}

pub(super) async fn topic(command: &TopicCommand) -> Result<(), Failure> {
    match command {
        TopicCommand::Create { mesh, topic, target } => {
            let store = target.open().await?;
            let mesh = find(&store, mesh).await?;
            let made = store.topic_create(mesh.mesh_id, topic, now()).await;
            made.map_err(|error| failed(&error))
        }
        TopicCommand::Subscribe { mesh, topic, member, target } => {
            let (store, member_id): (Store, _) = (target.open().await?, member_id(member)?);
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
    let QueueCommand::Create { mesh, queue, target } = command;
    let store = target.open().await?;
    let mesh = find(&store, mesh).await?;
    let made = store.queue_create(mesh.mesh_id, queue, mint().uuid(), now()).await;
    made.map_err(|error| failed(&error))
}

fn new_member(name: &str, key: &str, role: Role) -> Result<NewMember, Failure> {
    let usage = |text: String| Failure::new(Exit::Usage, text);
    if name.is_empty() || name.len() > 128 {
        return Err(usage("error: a name has 1 to 128 bytes".to_owned()));
    }
    let pubkey = PublicKey::from_hex(key)
        .map_err(|refusal| usage(format!("error: the key {}", refusal.detail)))?;
    let mint = mint();
    Ok(NewMember {
        member_id: mint.uuid(),
        name: name.to_owned(),
        role,
        key_id: mint.client_message_id().to_string(),
        pubkey: pubkey.to_hex().to_string(),
    })
}

fn member_id(text: &str) -> Result<MemberId, Failure> {
    let id = MemberId::parse(text);
    id.ok_or_else(|| Failure::new(Exit::Usage, format!("error: {text:?} is not a member's id")))
}

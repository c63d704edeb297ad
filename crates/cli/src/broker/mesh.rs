//! Meshes: make, show, list, and change their policies.

use clap::Subcommand;
use semel_broker::accept::DedupeMode;
use semel_broker::store::{Mesh, MeshChange, Role};
use semel_core::limits::BODY_BYTES_MAX;
use semel_core::shown::shown;
use semel_wire::features::ConnectionPolicy;
use semel_wire::place::Plain;
use serde_json::{Value, json};

use super::invite;
use super::member::{new_member, plain_name};
use super::target::{self, failed, mesh as find, mint, now};
use crate::exit::{Exit, Failure, Form};
use crate::print;

#[derive(Debug, Subcommand)]
pub(crate) enum MeshCommand {
    /// Make a mesh with its owner, or print a link for its owner
    #[command(after_help = CREATE_HELP)]
    Create {
        /// The name of the mesh
        slug: String,
        /// The owner's name
        #[arg(long, requires = "owner_key")]
        owner: Option<String>,
        /// The owner's ed25519 public key, 64 hexadecimal digits
        #[arg(long, requires = "owner", required_unless_present = "broker_url")]
        owner_key: Option<String>,
        /// Print a link with which the owner joins; the owner reaches the broker at this address
        #[arg(long, conflicts_with = "owner_key")]
        broker_url: Option<String>,
        #[command(flatten)]
        target: target::Target,
    },
    /// Show a mesh and its policies
    Show {
        /// The name of the mesh
        slug: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: target::Target,
    },
    /// List meshes by name
    List {
        /// Print one JSON line per mesh
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: target::Target,
    },
    /// Change policies; each daemon learns of them when it next connects
    #[command(after_help = SET_HELP)]
    Set {
        /// The name of the mesh
        slug: String,
        /// The policies to change, and their new values
        #[arg(required = true, value_name = "KEY=VALUE")]
        changes: Vec<String>,
        /// Print the mesh as one JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        target: target::Target,
    },
}

const CREATE_HELP: &str = "\
Examples:
  semel broker mesh create ops --broker-url https://broker.example:7117 --store sqlite:broker.db
  semel broker mesh create ops --owner ada --owner-key KEY --store sqlite:broker.db";

/// How long the link of an owner is good.
const OWNERS_TTL: &str = "24h";

const SET_HELP: &str = "\
Keys:
  dedupe_retention_days=3..36500   how long ids are remembered
  dedupe_mode=permanent            remember ids for ever
  message_retention_days=1..36500  how long messages are kept
  rate_limit=1..1000000            messages per member and window
  rate_window_ms=1..86400000       length of the window
  inline_bytes=1024..1048576       bytes of a message's body
  clone_concurrency_policy=prefer_newest|prefer_oldest|allow_concurrent
                                   what happens when a second daemon of a member connects

Ids that are already known are remembered for the longer of the old and the new time.

Examples:
  semel broker mesh set ops rate_limit=600 --store sqlite:broker.db
  semel broker mesh set ops dedupe_retention_days=730 --store postgres://db/semel";

pub(super) async fn run(command: &MeshCommand) -> Result<(), Failure> {
    match command {
        MeshCommand::Create { slug, broker_url: Some(url), target, .. } => {
            invite::found(slug, url, OWNERS_TTL, Plain::LoopbackOnly, target).await
        }
        MeshCommand::Create { slug, owner, owner_key, target, .. } => {
            plain_name(slug)?;
            let (owner, owner_key) =
                (owner.as_deref().unwrap_or_default(), owner_key.as_deref().unwrap_or_default());
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
            let store = target.open_used().await?;
            show(&find(&store, slug).await?, Form::of_flag(*json))
        }
        MeshCommand::List { json, target } => {
            let store = target.open_used().await?;
            let meshes = store.mesh_list().await.map_err(|error| failed(&error))?;
            let line = |mesh: &Mesh| match Form::of_flag(*json) {
                Form::Text => format!("{}  {}\n", mesh.mesh_id, shown(&mesh.slug)),
                Form::Json => format!("{}\n", document(mesh)),
            };
            print(&meshes.iter().map(line).collect::<String>())
        }
        MeshCommand::Set { slug, changes, json, target } => {
            let change = change(changes)?;
            let store = target.open_used().await?;
            let mesh = find(&store, slug).await?;
            let set = store.mesh_set(&mesh, &change, now()).await;
            if !set.map_err(|error| failed(&error))? {
                let text = "error: the mesh was changed meanwhile; try again";
                return Err(Failure::new(Exit::Conflict, text));
            }
            show(&find(&store, slug).await?, Form::of_flag(*json))
        }
    }
}

fn show(mesh: &Mesh, form: Form) -> Result<(), Failure> {
    let document = document(mesh);
    match (form, document.as_object()) {
        (Form::Text, Some(fields)) => {
            let line = |(name, value): (&String, &Value)| {
                format!("{name:<24} {}\n", shown(value.to_string().trim_matches('"')))
            };
            print(&fields.iter().map(line).collect::<String>())
        }
        (Form::Json, _) | (Form::Text, None) => print(&format!("{document}\n")),
    }
}

fn document(mesh: &Mesh) -> Value {
    let (mode, days) = match mesh.dedupe {
        DedupeMode::Permanent => ("permanent", None),
        DedupeMode::RetentionScoped { days } => ("retention_scoped", Some(days)),
    };
    json!({
        "mesh_id": mesh.mesh_id.to_string(), "slug": mesh.slug,
        "clone_concurrency_policy": mesh.connection_policy.as_str(),
        "dedupe_mode": mode,
        "dedupe_retention_days": days,
        "message_retention_days": mesh.message_retention_days,
        "rate_limit": mesh.rate_limit,
        "rate_window_ms": mesh.rate_window_ms, "inline_bytes": mesh.inline_bytes,
        "blob_bytes": mesh.blob_bytes,
    })
}

/// What the words of the command line mean; a word that means nothing changes nothing.
fn change(words: &[String]) -> Result<MeshChange, Failure> {
    let usage = |text: String| Failure::new(Exit::Usage, format!("error: {text}"));
    let mut change = MeshChange::default();
    let mut seen: Vec<&str> = Vec::new();
    for word in words {
        let (key, value) =
            word.split_once('=').ok_or_else(|| usage(format!("{word:?} is not KEY=VALUE")))?;
        if seen.contains(&key) || (key.starts_with("dedupe_") && change.dedupe.is_some()) {
            return Err(usage(format!("{key} is given twice, or in two ways")));
        }
        seen.push(key);
        let number = |min: u64, max: u64| {
            let number = value.parse().ok().filter(|number| (min..=max).contains(number));
            number.ok_or_else(|| usage(format!("{key} must be a number from {min} to {max}")))
        };
        let small = |min, max| number(min, max).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        match key {
            "dedupe_retention_days" => {
                change.dedupe = Some(DedupeMode::RetentionScoped { days: small(3, 36_500)? });
            }
            "dedupe_mode" if value == "permanent" => change.dedupe = Some(DedupeMode::Permanent),
            "dedupe_mode" => {
                let text = "dedupe_mode must be permanent; for the other mode, give \
                            dedupe_retention_days";
                return Err(usage(text.to_owned()));
            }
            "message_retention_days" => change.message_retention_days = Some(small(1, 36_500)?),
            "rate_limit" => change.rate_limit = Some(small(1, 1_000_000)?),
            "rate_window_ms" => change.rate_window_ms = Some(small(1, 86_400_000)?),
            "inline_bytes" => change.inline_bytes = Some(small(1024, BODY_BYTES_MAX as u64)?),
            "clone_concurrency_policy" => {
                let policy = ConnectionPolicy::parse(value).ok_or_else(|| {
                    let all = ConnectionPolicy::ALL.iter().map(|policy| policy.as_str());
                    let all = all.collect::<Vec<_>>().join(", ");
                    usage(format!("{key} must be one of {all}"))
                })?;
                change.connection_policy = Some(policy);
            }
            _ => return Err(usage(format!("there is no policy {key:?}"))),
        }
    }
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_strictly() {
        let of =
            |words: &[&str]| change(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        let both = of(&["rate_limit=7", "dedupe_retention_days=30"]).expect("a change");
        assert_eq!(both.rate_limit, Some(7));
        assert_eq!(both.dedupe, Some(DedupeMode::RetentionScoped { days: 30 }));
        for wrong in [
            &["rate_limit"][..],
            &["rate_limit=0"],
            &["rate_limit=x"],
            &["rate_limit=1", "rate_limit=2"],
            &["dedupe_mode=permanent", "dedupe_retention_days=9"],
            &["dedupe_mode=retention_scoped"],
            &["dedupe_retention_days=2"],
            &["inline_bytes=1"],
            &["inline_bytes=1048577"],
            &["clone_concurrency_policy=both"],
            &["colour=red"],
            // Told to daemons, and bounds nothing.
            &["blob_bytes=4096"],
        ] {
            let failure = of(wrong).expect_err("refused");
            assert_eq!(failure.exit, Exit::Usage, "{wrong:?}");
        }
    }
}

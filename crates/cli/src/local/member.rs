//! `semel member`: who may take part in the mesh.

use clap::Subcommand;
use semel_core::id::MemberId;
use semel_crypto::keys::PublicKey;
use serde_json::{Value, json};

use super::inbox::say;
use super::{Daemon, Local, peers};
use crate::exit::{Exit, Failure, Form};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the mesh's members
    List(peers::Arguments),
    /// Revoke a member; its daemons are disconnected at once
    Revoke {
        /// The member's public key, id or @name
        member: String,
        #[command(flatten)]
        local: Local,
    },
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::List(arguments) => peers::run(arguments).await,
        Command::Revoke { member, local } => {
            let daemon = local.daemon().await?;
            let pubkey = pubkey(&daemon, member).await?;
            let answer = daemon.post("/v1/member/revoke", &json!({"pubkey": pubkey})).await?;
            match daemon.form {
                Form::Json => say(&answer.to_string()),
                Form::Text => say(&format!("{member} is revoked")),
            }
        }
    }
}

/// The key of the member that is meant: a name that several have is nobody's.
async fn pubkey(daemon: &Daemon, member: &str) -> Result<String, Failure> {
    if PublicKey::from_hex(member).is_ok() {
        return Ok(member.to_owned());
    }
    let (field, wanted) = match MemberId::parse(member) {
        Some(id) => ("member_id", id.to_string()),
        None => ("name", member.strip_prefix('@').unwrap_or(member).to_owned()),
    };
    let peers = daemon.list("/v1/peers?limit=500".to_owned(), usize::MAX).await?;
    let peers = peers.get("items").and_then(Value::as_array).into_iter().flatten();
    let text = |peer: &Value, name: &str| peer.get(name)?.as_str().map(str::to_owned);
    let meant = peers.filter(|peer| text(peer, field).as_ref() == Some(&wanted));
    let keys: Vec<String> = meant.filter_map(|peer| text(peer, "pubkey")).collect();
    match <[String; 1]>::try_from(keys) {
        Ok([key]) => Ok(key),
        Err(keys) if keys.is_empty() => {
            let text = format!("error: there is no member {member}\nto see them all: semel peers");
            Err(Failure::new(Exit::NotFound, text))
        }
        Err(keys) => {
            let text = format!("error: several members are called {member}:\n{}", keys.join("\n"));
            Err(Failure::new(Exit::Conflict, text))
        }
    }
}

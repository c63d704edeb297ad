//! `semel member`: who may take part in the mesh.

use clap::Subcommand;
use serde_json::json;

use super::inbox::say;
use super::{Local, peers};
use crate::exit::{Failure, Form};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the mesh's members
    List(peers::Arguments),
    /// Throw a member out; its daemons are closed at once
    Revoke {
        /// Its public key
        pubkey: String,
        #[command(flatten)]
        local: Local,
    },
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::List(arguments) => peers::run(arguments).await,
        Command::Revoke { pubkey, local } => {
            let daemon = local.daemon().await?;
            let answer = daemon.post("/v1/member/revoke", &json!({"pubkey": pubkey})).await?;
            match daemon.form {
                Form::Json => say(&answer.to_string()),
                Form::Text => say(&format!("{pubkey} may not take part any more")),
            }
        }
    }
}

//! `semel gear breaker`: actions that are kept from being tried, because they fail.

use clap::Subcommand;
use serde_json::json;

use crate::exit::Failure;
use crate::jobs::Place;
use crate::local::table::table;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the breakers of actions that have failed
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Close a breaker by hand; steps that wait for it go on
    Close {
        /// The action, as `gear.action`
        action: String,
        #[command(flatten)]
        place: Place,
    },
}

pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::List { place } => {
            let daemon = place.daemon().await?;
            let list = daemon.get("/v1/breakers").await?;
            let columns =
                &[("ACTION", "action"), ("STATE", "state"), ("RUNS", "window"), ("UNTIL", "until")];
            daemon.show(&list, |list| table(list, columns, "no action has failed"))
        }
        Command::Close { action, place } => {
            let daemon = place.daemon().await?;
            let closed = daemon.post("/v1/breakers/close", &json!({"action": action})).await?;
            daemon.show(&closed, |_| format!("{action} is closed\n"))
        }
    }
}

//! `semel gear`: programs that do the steps of jobs.

mod breaker;
mod manage;
mod new;
pub(crate) mod ports;
mod test;

use std::path::PathBuf;

use clap::Subcommand;

use crate::daemon::home::HomeArgument;
use crate::exit::{Exit, Failure, Form};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    home: HomeArgument,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a gear from a template, in a new folder
    New {
        /// The folder to make; its name becomes the gear's name
        folder: PathBuf,
        /// Language of the gear
        #[arg(long, value_enum, default_value_t = new::Language::Python)]
        lang: new::Language,
    },
    /// Try a gear in the sandbox, without installing it
    Test(test::Arguments),
    /// Install a gear from its folder, or replace it by a newer version
    Install {
        /// The folder with gear.toml
        folder: PathBuf,
        /// Install it even if this host cannot enforce the whole sandbox
        #[arg(long)]
        accept_weaker_sandbox: bool,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// List gears and what they can do
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Circuit breakers of actions that have failed
    Breaker(breaker::Arguments),
    /// Allow plans to use a gear
    Enable {
        /// The name of the gear
        id: String,
    },
    /// Stop plans from using a gear
    Disable {
        /// The name of the gear
        id: String,
    },
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let home = || arguments.home.find();
    match &arguments.command {
        Command::Breaker(arguments) => breaker::run(arguments).await,
        Command::New { folder, lang } => new::run(folder, *lang),
        Command::Test(arguments) => test::run(&home()?, arguments).await,
        Command::Install { folder, accept_weaker_sandbox, json } => {
            let weaker = match accept_weaker_sandbox {
                true => manage::Weaker::Accepted,
                false => manage::Weaker::Refused,
            };
            manage::install(&home()?, folder, weaker, Form::of_flag(*json)).await
        }
        Command::List { json } => manage::list(&home()?, Form::of_flag(*json)),
        Command::Enable { id } => manage::switch(&home()?, id, true).await,
        Command::Disable { id } => manage::switch(&home()?, id, false).await,
    }
}

/// This program's own file, which starts gears.
pub(crate) fn shim() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| failed(error.to_string()))
}

fn failed(text: String) -> Failure {
    Failure::new(Exit::Failed, format!("error: {text}"))
}

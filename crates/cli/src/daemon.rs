//! `semel daemon`: the host's daemon of one mesh, run or looked after.

pub(crate) mod control;
pub(crate) mod detach;
pub(crate) mod ephemeral;
pub(crate) mod home;
mod recover;
mod reload;
pub(crate) mod running;
pub(crate) mod tls;
mod up;

use clap::Subcommand;

use crate::exit::Failure;
use crate::local;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon of a mesh until SIGTERM or SIGINT
    Up(up::Arguments),
    /// Stop the daemon
    Down(control::Down),
    /// Stop the daemon and start it again in the background
    Restart(control::Restart),
    /// Reload the daemon's configuration
    Reload(control::Simple),
    /// Show the daemon's state
    Status(control::Simple),
    /// Print the daemon's log
    Logs(control::Logs),
    /// Check the daemon's databases, and set a damaged one aside
    Recover(recover::Arguments),
    /// Replace the token for TCP; the old one stays valid for one more minute
    RotateToken(control::Simple),
    /// Messages that were accepted on this host
    Outbox(local::outbox::Arguments),
    /// Messages that arrived on this host
    Inbox(local::inbox::Arguments),
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Up(arguments) => up::run(arguments).await,
        Command::Down(arguments) => control::down(arguments).await,
        Command::Restart(arguments) => control::restart(arguments).await,
        Command::Reload(arguments) => control::reload(arguments).await,
        Command::Status(arguments) => control::status(arguments).await,
        Command::Logs(arguments) => control::logs(arguments).await,
        Command::Recover(arguments) => recover::run(arguments).await,
        Command::RotateToken(arguments) => control::rotate_token(arguments).await,
        Command::Outbox(arguments) => local::outbox::run(arguments).await,
        Command::Inbox(arguments) => local::inbox::run(arguments).await,
    }
}

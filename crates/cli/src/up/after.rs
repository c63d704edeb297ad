//! `semel down` and `semel status`: looking after what `semel up` runs.

use super::MESH;
use crate::daemon::control::{show_status, stop};
use crate::daemon::home::HomeArgument;
use crate::exit::Failure;
use crate::local::Local;
use crate::print;

/// Stop what `semel up` runs in this home
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  semel down
  semel down --home ./other")]
pub(crate) struct Down {
    #[command(flatten)]
    home: HomeArgument,
}

/// Show the state of what `semel up` runs in this home
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  semel status
  semel status --json")]
pub(crate) struct Status {
    #[command(flatten)]
    home: HomeArgument,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn down(arguments: &Down) -> Result<(), Failure> {
    let home = Local::of(arguments.home.clone(), MESH, false).home()?;
    print(match stop(&home).await? {
        true => "semel has stopped\n",
        false => "nothing runs in this home\n",
    })
}

pub(crate) async fn status(arguments: &Status) -> Result<(), Failure> {
    show_status(&Local::of(arguments.home.clone(), MESH, arguments.json)).await
}

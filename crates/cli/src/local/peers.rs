//! `semel peers`: who is in the mesh, and who is online.

use super::table::table;
use super::{Local, query};
use crate::exit::Failure;

/// List the mesh's members, and show which of them are online
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// At most this many
    #[arg(long, default_value = "500", value_parser = crate::local::limit)]
    limit: usize,
    #[command(flatten)]
    local: Local,
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let daemon = arguments.local.daemon().await?;
    let query = query(&[("limit", Some(arguments.limit.min(500).to_string()))]);
    let list = daemon.list(format!("/v1/peers{query}"), arguments.limit).await?;
    let columns =
        &[("NAME", "name"), ("ONLINE", "online"), ("ROLE", "role"), ("PUBLIC KEY", "pubkey")];
    daemon.show(&list, |list| table(list, columns, "no member is known yet"))
}

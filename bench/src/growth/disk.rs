//! Where a subject stores, and how much of it there is.

use std::path::PathBuf;

use anyhow::Result;
use tokio_postgres::NoTls;

/// A folder before a subject begins, its file afterwards; a server, and then a database of it.
#[derive(Clone)]
pub(super) enum Disk {
    File(PathBuf),
    Server(String),
}

impl Disk {
    /// By now, with what is in the log of a file.
    pub(super) async fn bytes(&self) -> Result<u64> {
        match self {
            Self::File(path) => {
                let mut bytes = 0;
                for ending in ["", "-wal"] {
                    let mut name = path.clone().into_os_string();
                    name.push(ending);
                    bytes += std::fs::metadata(name).map_or(0, |about| about.len());
                }
                Ok(bytes)
            }
            Self::Server(address) => {
                let (client, connection) = tokio_postgres::connect(address, NoTls).await?;
                tokio::spawn(connection);
                let size = "SELECT pg_database_size(current_database())";
                let bytes: i64 = client.query_one(size, &[]).await?.try_get(0)?;
                Ok(bytes.unsigned_abs())
            }
        }
    }
}

//! What an operator, a pooler or a script does to a PostgreSQL server while others use it: sessions
//! are ended (`pg_terminate_backend`), statements are cancelled (`pg_cancel_backend`), one after
//! the other and many times a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_postgres::NoTls;

/// What is done to whoever is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blow {
    /// Its session ends.
    Terminate,
    /// What it has just asked for is not done, if it has asked for something.
    Cancel,
}

impl Blow {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "terminate" => Some(Self::Terminate),
            "cancel" => Some(Self::Cancel),
            _ => None,
        }
    }

    fn statement(self) -> &'static str {
        match self {
            Self::Terminate => {
                // A process whose first session never lives for long enough never starts.
                "SELECT count(pg_terminate_backend(pid))
                   FROM (SELECT pid FROM pg_stat_activity
                          WHERE datname = current_database() AND application_name = 'semel'
                            AND backend_start < now() - interval '1 s'
                          ORDER BY random() LIMIT 1) AS one"
            }
            Self::Cancel => {
                // Whatever they are doing: who is busy when it is looked for has moved on when it
                // is hit, and short statements, such as BEGIN, would never be hit.
                "SELECT count(pg_cancel_backend(pid))
                   FROM (SELECT pid FROM pg_stat_activity
                          WHERE datname = current_database() AND application_name = 'semel'
                          ORDER BY random() LIMIT 8) AS hit"
            }
        }
    }

    /// Between two of them.
    pub(crate) fn pause(self) -> Duration {
        match self {
            Self::Terminate => Duration::from_millis(30),
            Self::Cancel => Duration::from_millis(3),
        }
    }
}

/// It goes on until it is dropped.
pub(crate) struct Storm {
    stop: Arc<AtomicBool>,
    hit: Arc<AtomicU64>,
}

impl Storm {
    pub(crate) fn start(runtime: &Handle, url: &str, blow: Blow) -> Self {
        let (stop, hit): (Arc<AtomicBool>, Arc<AtomicU64>) = Default::default();
        let (stopped, hits, url) = (Arc::clone(&stop), Arc::clone(&hit), url.to_owned());
        drop(runtime.spawn(async move {
            while !stopped.load(Ordering::SeqCst) {
                // The server may be away.
                let _ = rage(&url, blow, &stopped, &hits).await;
                tokio::time::sleep(blow.pause()).await;
            }
        }));
        Self { stop, hit }
    }

    /// How many were hit so far.
    pub(crate) fn hit(&self) -> u64 {
        self.hit.load(Ordering::SeqCst)
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

async fn rage(
    url: &str,
    blow: Blow,
    stopped: &AtomicBool,
    hits: &AtomicU64,
) -> Result<(), tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    drop(tokio::spawn(connection));
    let statement = client.prepare(blow.statement()).await?;
    while !stopped.load(Ordering::SeqCst) {
        let hit: i64 = client.query_one(&statement, &[]).await?.get(0);
        hits.fetch_add(u64::try_from(hit).unwrap_or(0), Ordering::SeqCst);
        tokio::time::sleep(blow.pause()).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A storm takes every error for a server that is away.
    #[test]
    fn a_server_understands_every_blow() {
        let url = std::env::var("SEMEL_TEST_POSTGRES").unwrap();
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            drop(tokio::spawn(connection));
            for blow in [Blow::Terminate, Blow::Cancel] {
                client.prepare(blow.statement()).await.unwrap();
            }
        });
    }
}

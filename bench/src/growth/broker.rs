//! The broker's store: sends are accepted, delivered and acknowledged, and stay in history.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use semel_broker::store::Arrived;

use super::{Disk, Labels, Subject, at_each_size};
use crate::broker::{Load, Sender, postgres_at, prepare, sqlite};
use crate::plan;

const CALLERS: usize = 64;
/// Sends that are measured at each size.
const MEASURED: usize = 20_000;
/// As many as a connection has under way.
const PAGE: i64 = 256;
/// Pages of history that are read at each size: half from its beginning, half from its end.
const PAGES: usize = 100;

const SQLITE: Labels = Labels {
    operations: &[
        at_each_size!("accept on SQLite"),
        at_each_size!("delivery and acknowledgement on SQLite"),
        at_each_size!("message of a page of history on SQLite"),
        at_each_size!("message of a check on SQLite"),
    ],
    bytes: at_each_size!("a message on disk, SQLite"),
};
const POSTGRES: Labels = Labels {
    operations: &[
        at_each_size!("accept on PostgreSQL"),
        at_each_size!("delivery and acknowledgement on PostgreSQL"),
        at_each_size!("message of a page of history on PostgreSQL"),
        at_each_size!("message of a check on PostgreSQL"),
    ],
    bytes: at_each_size!("a message on disk, PostgreSQL"),
};

pub(super) struct Messages {
    sender: Arc<Sender>,
    stored: usize,
    delivered_to: i64,
}

/// With nothing stored yet.
pub(super) async fn begin(place: &Disk) -> Result<(&'static Labels, Disk, Messages)> {
    let (labels, disk, store) = match place {
        Disk::File(folder) => {
            let path = folder.join("broker.db");
            (&SQLITE, Disk::File(path.clone()), sqlite(&path).await?)
        }
        Disk::Server(server) => {
            let address = crate::broker::fresh(server).await?;
            (&POSTGRES, Disk::Server(address.clone()), postgres_at(&address).await?)
        }
    };
    let sender = Arc::new(prepare(store, Load::Direct).await?);
    Ok((labels, disk, Messages { sender, stored: 0, delivered_to: 0 }))
}

impl Subject for Messages {
    async fn grow(&mut self, to: usize) -> Result<()> {
        // Pieces, so that no more than that waits for its delivery.
        while self.stored < to {
            self.accept((to - self.stored).min(MEASURED)).await?;
            self.deliver().await?;
        }
        Ok(())
    }

    async fn operate(&mut self, number: usize) -> Result<usize> {
        match number {
            0 => {
                let count = plan::amount(MEASURED);
                self.accept(count).await?;
                Ok(count)
            }
            1 => self.deliver().await,
            2 => self.history().await,
            _ => self.check().await,
        }
    }
}

impl Messages {
    async fn accept(&mut self, count: usize) -> Result<()> {
        let (next, end) = (Arc::new(AtomicUsize::new(self.stored)), self.stored + count);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..CALLERS {
            let (sender, next) = (Arc::clone(&self.sender), Arc::clone(&next));
            tasks.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= end {
                        return anyhow::Ok(());
                    }
                    sender.send(number as u64).await?;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        self.stored = end;
        Ok(())
    }

    /// Everything that waits, in pages as a connection takes it.
    async fn deliver(&mut self) -> Result<usize> {
        let (store, mesh, to) = (&self.sender.store, &self.sender.mesh, self.sender.recipient);
        let mut delivered = 0;
        loop {
            let page =
                store.deliveries(mesh.mesh_id, to.as_uuid(), self.delivered_to, PAGE).await?.whole;
            let Some(last) = page.last() else { break };
            let after = std::mem::replace(&mut self.delivered_to, last.seq);
            let arrived = Arrived { recipient: to.as_uuid(), after, seq: last.seq };
            delivered += page.len();
            store.deliveries_done_along(mesh.mesh_id, &[arrived]).await?;
        }
        ensure!(delivered > 0, "nothing waits for its delivery");
        Ok(delivered)
    }

    async fn history(&self) -> Result<usize> {
        let (store, mesh) = (&self.sender.store, &self.sender.mesh);
        let end = i64::try_from(self.stored.saturating_sub(MEASURED))?;
        let mut read = 0;
        for begins in [0, end] {
            let mut after = begins;
            for _ in 0..PAGES / 2 {
                let page = store.history(mesh.mesh_id, self.sender.recipient, after, PAGE).await?;
                read += page.deliveries.len();
                let Some(next) = page.next_after_seq else { break };
                after = next;
            }
        }
        ensure!(read > 0, "the history is empty");
        Ok(read)
    }

    async fn check(&self) -> Result<usize> {
        let now = self.sender.clock.wall();
        let report = self.sender.store.check(&self.sender.mesh, now).await?;
        ensure!(report.findings().iter().all(|(_, found)| *found == 0), "{report:?}");
        Ok(self.stored)
    }
}

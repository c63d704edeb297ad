//! The broker's store: sends are accepted, delivered and acknowledged, and stay in history.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use semel_broker::store::{Arrived, Asked, Take, Taken};
use semel_core::clock::Reading;
use semel_core::envelope::{Destination, DestinationKind};

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
/// Of the sends that are stored, one in so many is work that waits in a queue, beside the work that
/// is taken.
const WORK_ONE_IN: usize = 10;
/// Work that is taken at each size.
const TAKEN: usize = 2_000;
/// As much as a taker asks for at once.
const TAKEN_AT_ONCE: i64 = 50;
const QUEUE: &str = "work";

const SQLITE: Labels = Labels {
    operations: &[
        at_each_size!("accept on SQLite"),
        at_each_size!("delivery and acknowledgement on SQLite"),
        at_each_size!("message of a page of history on SQLite"),
        at_each_size!("message of a check on SQLite"),
        at_each_size!("work taken and acknowledged on SQLite"),
    ],
    bytes: at_each_size!("a message on disk, SQLite"),
};
const POSTGRES: Labels = Labels {
    operations: &[
        at_each_size!("accept on PostgreSQL"),
        at_each_size!("delivery and acknowledgement on PostgreSQL"),
        at_each_size!("message of a page of history on PostgreSQL"),
        at_each_size!("message of a check on PostgreSQL"),
        at_each_size!("work taken and acknowledged on PostgreSQL"),
    ],
    bytes: at_each_size!("a message on disk, PostgreSQL"),
};

pub(super) struct Messages {
    sender: Arc<Sender>,
    stored: usize,
    delivered_to: i64,
    queued: usize,
    taken: usize,
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
    let (mesh, id) = (sender.mesh.mesh_id, sender.mint.uuid());
    sender.store.queue_create(mesh, (QUEUE, id), None, sender.clock.wall()).await?;
    Ok((labels, disk, Messages { sender, stored: 0, delivered_to: 0, queued: 0, taken: 0 }))
}

impl Subject for Messages {
    async fn grow(&mut self, to: usize) -> Result<()> {
        // Pieces, so that no more than that waits for its delivery.
        while self.stored < to {
            self.accept((to - self.stored).min(MEASURED)).await?;
            self.deliver().await?;
        }
        let measured = plan::rounds() * plan::amount(TAKEN);
        self.queue(self.taken + to / WORK_ONE_IN + measured).await
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
            3 => self.check().await,
            _ => self.take().await,
        }
    }
}

impl Messages {
    async fn accept(&mut self, count: usize) -> Result<()> {
        let (begin, end) = (self.stored, self.stored + count);
        crowd(&self.sender, begin..end, |sender, number| async move {
            sender.send(number as u64).await
        })
        .await?;
        self.stored = end;
        Ok(())
    }

    /// Work that nobody takes before it is measured.
    async fn queue(&mut self, to: usize) -> Result<()> {
        let queue = Destination::new(DestinationKind::Queue, QUEUE)?;
        crowd(&self.sender, self.queued..to.max(self.queued), move |sender, number| {
            let queue = queue.clone();
            async move { sender.send_to(&queue, &format!("work-{number:019}")).await }
        })
        .await?;
        self.queued = to.max(self.queued);
        Ok(())
    }

    async fn take(&mut self) -> Result<usize> {
        let (store, mesh_id) = (&self.sender.store, self.sender.mesh.mesh_id);
        let (count, mut done) = (plan::amount(TAKEN), 0);
        while done < count {
            let take = Take {
                taker: self.sender.recipient,
                at: Reading::of(&*self.sender.clock),
                lease: Duration::from_secs(60),
                max: TAKEN_AT_ONCE,
                bytes_max: usize::MAX,
            };
            let Taken::Leased { taken, .. } = store.queue_take(mesh_id, QUEUE, take).await? else {
                bail!("there is no queue");
            };
            ensure!(!taken.is_empty(), "the queue is empty");
            let seqs: Vec<i64> = taken.iter().map(|work| work.seq).collect();
            let acked = store.queue_ack(mesh_id, QUEUE, self.sender.recipient, &seqs).await?;
            ensure!(acked.len() == seqs.len(), "work was taken and not acknowledged");
            done += seqs.len();
        }
        self.taken += done;
        Ok(done)
    }

    /// Everything that waits, in pages as a connection takes it.
    async fn deliver(&mut self) -> Result<usize> {
        let (store, mesh, to) = (&self.sender.store, &self.sender.mesh, self.sender.recipient);
        let mut delivered = 0;
        loop {
            let (recipient, after_seq) = (to.as_uuid(), self.delivered_to);
            let asked = [Asked { recipient, after_seq, limit: PAGE }];
            let page = store.deliveries_of(mesh.mesh_id, &asked).await?.messages.whole;
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
                let page = store
                    .history(mesh.mesh_id, self.sender.recipient, after, PAGE, usize::MAX)
                    .await?;
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

/// As many callers at once as there are, until all numbers are done.
async fn crowd<F>(
    sender: &Arc<Sender>,
    numbers: Range<usize>,
    each: impl Fn(Arc<Sender>, usize) -> F + Clone + Send + 'static,
) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let next = Arc::new(AtomicUsize::new(numbers.start));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let (sender, next, each) = (Arc::clone(sender), Arc::clone(&next), each.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= numbers.end {
                    return anyhow::Ok(());
                }
                each(Arc::clone(&sender), number).await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

//! A running daemon without its interfaces: the two databases and the connection to the broker.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::clock::{Clock, UnixMs};
use semel_core::envelope::Destination;
use semel_core::id::OutboxId;
use semel_core::mint::IdMint;
use semel_core::outbox::{AbortedBy, OutboxStatus, Outcome};
use semel_store::sqlite::OnUncertain;
use semel_store::{OpenError, StoreError};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::broker_api::BrokerApi;
use crate::directory::Directory;
use crate::inbox::{Inbox, Keeping, Opened};
use crate::link::{self, LinkHandle, LinkOptions};
use crate::outbox::{Outbox, Room};
use crate::store::extent::Extent;
use crate::store::outbox::{Draft, Moved, NewOutboxRow, outbox_requeue_in_tx};
use crate::store::peer::Peer;
use crate::store::upkeep;
use crate::supervise::{Vital, lasting};
use crate::upkeep::Upkeep;

/// How a daemon keeps things.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Bytes of `outbox.db` at the most.
    pub outbox_bytes_max: u64,
    /// Bytes that are left free on the disk.
    pub reserved_bytes: u64,
    /// How long messages are kept in the inbox.
    pub inbox_kept: Duration,
    /// Bytes of `inbox.db` at the most: beyond that the oldest messages that were read go before
    /// their time, and where that is not enough nothing more is taken.
    pub inbox_bytes_max: u64,
}

impl EngineOptions {
    fn room(&self) -> Room {
        Room { bytes_max: self.outbox_bytes_max, reserved_bytes: self.reserved_bytes }
    }

    fn keeping(&self) -> Keeping {
        Keeping { kept: self.inbox_kept, bytes_max: self.inbox_bytes_max }
    }
}

/// What a daemon may do with its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Full,
    /// Show what can be read of them (daemon.md, "Lifecycle", `recover`).
    ReadOnly,
}

/// A running daemon.
pub struct Engine {
    /// What was accepted here.
    pub outbox: Arc<Outbox>,
    /// What arrived.
    pub inbox: Arc<Inbox>,
    /// The connection to the broker.
    pub link: LinkHandle,
    /// What else is asked of the broker.
    pub api: Arc<BrokerApi>,
    /// What it may do with the databases.
    pub access: Access,
    /// Who asks the broker who is in the mesh; nobody where nobody connects.
    directory: Option<Arc<Directory>>,
    clock: Arc<dyn Clock>,
    keeping: watch::Sender<Keeping>,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// What an operator wants with a row.
#[derive(Debug, Clone)]
pub struct Requeue {
    /// The row.
    pub id: OutboxId,
    /// The id of the new row; none is made for it.
    pub client_message_id: Option<semel_core::id::ClientMessageId>,
    /// Another body than before.
    pub body: Option<Vec<u8>>,
    /// Also when nobody knows whether the old one was delivered.
    pub even_if_delivered: bool,
}

/// What became of a requeue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requeued {
    /// The old row is aborted, this one is pending.
    Done {
        /// The new row.
        id: OutboxId,
    },
    /// The broker had it after all: nothing is sent again.
    Delivered,
    /// There is no such row.
    NotFound,
    /// It is on the wire, done or aborted.
    Illegal(OutboxStatus),
    /// Nobody knows whether it was delivered, and the broker cannot be asked now.
    Unknown,
    /// Its body was pruned: there is nothing to send.
    Pruned,
    /// The new id is taken.
    IdTaken,
}

impl Engine {
    /// Opens the databases in `folder` and begins to connect. Blocks while it opens them.
    pub async fn start(
        folder: &Path,
        options: EngineOptions,
        mut link_options: LinkOptions,
        mint: Arc<IdMint>,
        clock: Arc<dyn Clock>,
        on_uncertain: OnUncertain,
    ) -> Result<Self, OpenError> {
        let (outbox_path, inbox_path) = (folder.join("outbox.db"), folder.join("inbox.db"));
        let outbox = Outbox::open(
            &outbox_path,
            link_options.instance_id,
            options.room(),
            mint,
            Arc::clone(&clock),
            Arc::clone(&on_uncertain),
        );
        let outbox = Arc::new(outbox.await?);
        let Opened { inbox, set_aside } =
            Inbox::open(&inbox_path, Arc::clone(&clock), on_uncertain)?;
        let inbox = Arc::new(inbox);
        if let Some(aside) = set_aside {
            let aside = aside.display().to_string();
            tracing::error!(aside, "inbox.db is damaged; it is rebuilt from the broker's history");
        }
        let rebuild_to = lacking(&outbox, &inbox).await;
        let (stop, stopping) = watch::channel(false);
        let (keeping, kept) = watch::channel(options.keeping());
        let api = Arc::new(broker_api(&link_options, &clock));
        let (outbox_too, inbox_too) = (Arc::clone(&outbox), Arc::clone(&inbox));
        link_options.sweep_clock.began(look(&inbox, options.keeping()).await, &*clock);
        let sweep_clock = link_options.sweep_clock.clone();
        let (running, handle, marking, status) =
            link::link(link_options, outbox_too, inbox_too, Arc::clone(&clock), rebuild_to);
        let vital = Vital { status, clock: Arc::clone(&clock), stop: stopping.clone() };
        let upkeep = Upkeep {
            outbox: Arc::clone(&outbox),
            inbox: Arc::clone(&inbox),
            clock: Arc::clone(&clock),
            sweep_clock,
            status: handle.watch(),
            keeping: kept,
            was_full: false,
        };
        let directory = Arc::new(Directory::new(
            Arc::clone(&outbox),
            Arc::clone(&api),
            handle.watch(),
            Arc::clone(handle.roster()),
        ));
        let (directory_too, inbox_too) = (Arc::clone(&directory), Arc::clone(&inbox));
        let [indexes, keeps, asks] = std::array::from_fn(|_| stopping.clone());
        let link = tokio::spawn(running.run(stopping.clone()));
        let tasks = vec![
            vital.clone().watch("the connection to the broker", link),
            vital.watch_helper("the writer of row marks", marking),
            lasting("index", stopping.clone(), move || {
                crate::inbox::index_run(Arc::clone(&inbox_too), indexes.clone())
            }),
            lasting("upkeep", stopping.clone(), move || upkeep.clone().run(keeps.clone())),
            lasting("directory", stopping, move || Arc::clone(&directory_too).run(asks.clone())),
        ];
        let (tasks, access) = (Mutex::new(tasks), Access::Full);
        let directory = Some(directory);
        Ok(Self {
            outbox,
            inbox,
            link: handle,
            api,
            access,
            directory,
            clock,
            keeping,
            stop,
            tasks,
        })
    }

    /// Opens the databases in `folder` to read what can be read of them, also when they are
    /// damaged. Nothing is sent, received or written, and nobody connects.
    pub fn start_to_read(
        folder: &Path,
        options: &EngineOptions,
        link_options: &LinkOptions,
        mint: Arc<IdMint>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let (outbox, inbox) = (folder.join("outbox.db"), folder.join("inbox.db"));
        let outbox = Outbox::open_to_read(&outbox, options.room(), mint, Arc::clone(&clock))?;
        let inbox = Arc::new(Inbox::open_to_read(&inbox, Arc::clone(&clock))?);
        Ok(Self {
            outbox: Arc::new(outbox),
            link: LinkHandle::none(Arc::clone(&inbox), clock.wall()),
            inbox,
            api: Arc::new(broker_api(link_options, &clock)),
            access: Access::ReadOnly,
            directory: None,
            clock,
            keeping: watch::channel(options.keeping()).0,
            stop: watch::channel(false).0,
            tasks: Mutex::default(),
        })
    }

    /// Those of each of these names, a few. The broker is asked once, however many of them nobody
    /// is known by: whoever it is may have joined just now.
    pub async fn peers_of(&self, names: &[&str], limit: i64) -> Result<Vec<Vec<Peer>>, StoreError> {
        let known = self.outbox.peers_of(names, limit).await?;
        match &self.directory {
            Some(directory) if known.iter().any(Vec::is_empty) => {
                directory.ask().await;
                self.outbox.peers_of(names, limit).await
            }
            Some(_) | None => Ok(known),
        }
    }

    /// Keeps things in another way from now on.
    pub fn change(&self, options: &EngineOptions) {
        self.outbox.gauge.set_room(options.room());
        self.keeping.send_replace(options.keeping());
    }

    /// Retires a row in favour of a new one under a fresh id (mesh.md §6, §10).
    pub async fn requeue(&self, requeue: Requeue) -> Result<Requeued, StoreError> {
        let Some(mut row) = self.outbox.find(&requeue.id.to_string()).await? else {
            return Ok(Requeued::NotFound);
        };
        let id = row.id;
        let maybe_sent = row.maybe_sent
            || self.outbox.is_claimed(id)
            || self.outbox.may_have_lost_marks(row.life);
        if row.status == OutboxStatus::Pending && maybe_sent {
            // First dead with an unknown outcome, then resolved, then aborted.
            if !self.link.give_up(id, "an operator requeued it").await {
                return Ok(Requeued::Illegal(OutboxStatus::Inflight));
            }
            row = self.outbox.find(&id.to_string()).await?.unwrap_or(row);
            if row.status == OutboxStatus::Pending {
                // That could not be written down: nothing may be concluded from the row.
                return Ok(Requeued::Unknown);
            }
        }
        if row.status == OutboxStatus::Dead && row.outcome == Some(Outcome::Unknown) {
            if self.link.resolve().await {
                row = self.outbox.find(&id.to_string()).await?.unwrap_or(row);
            }
            match (row.status, row.outcome) {
                (OutboxStatus::Done, _) => return Ok(Requeued::Delivered),
                (_, Some(Outcome::Unknown)) if !requeue.even_if_delivered => {
                    return Ok(Requeued::Unknown);
                }
                (_, _) => {}
            }
        }
        self.replace(requeue, &row).await
    }

    async fn replace(
        &self,
        requeue: Requeue,
        row: &upkeep::OutboxRow,
    ) -> Result<Requeued, StoreError> {
        let (old, destination) = (row.id, row.destination.clone());
        let payload = self.outbox.sqlite.read(move |c| upkeep::payload(c, old)).await?;
        let Some(upkeep::Payload { body, meta, reply_to_id }) = payload else {
            return Ok(Requeued::NotFound);
        };
        let Some(body) = requeue.body.or(body) else { return Ok(Requeued::Pruned) };
        let mint = self.outbox.mint();
        let client_message_id =
            requeue.client_message_id.unwrap_or_else(|| mint.client_message_id());
        let draft = Draft::again(row.priority, &meta, reply_to_id, body).map_err(|refusal| {
            StoreError::Corrupt { table: "outbox", id: old.to_string(), what: refusal.to_string() }
        })?;
        let new = NewOutboxRow {
            id: mint.outbox_id(),
            client_message_id,
            draft,
            to_given: row.to_given.clone(),
            resolved: Ok(destination.clone()),
            life: self.outbox.life(),
            now: self.clock.wall(),
        };
        let (id, force) = (new.id, requeue.even_if_delivered);
        let retiring = self.outbox.retire(old);
        if retiring.is_none() && row.status == OutboxStatus::Pending {
            return Ok(Requeued::Illegal(OutboxStatus::Inflight));
        }
        let fresh = Arc::clone(&self.outbox.fresh);
        let write = self.outbox.sqlite.write_then(
            move |tx| requeue_in_tx(tx, old, &new, &destination, force),
            move |_| {
                drop(retiring);
                fresh.look.notify_one();
            },
        );
        let requeued = write.await?;
        Ok(match requeued {
            None => Requeued::IdTaken,
            Some(Moved::To(_)) => Requeued::Done { id },
            Some(Moved::Illegal { found, .. }) => Requeued::Illegal(found),
            Some(Moved::Absent) => Requeued::NotFound,
        })
    }

    /// Whether the link has ended for good, and the daemon must too.
    pub async fn ended(&self) -> link::Fatal {
        let mut status = self.link.watch();
        loop {
            if let Some(fatal) = status.borrow_and_update().fatal.clone() {
                return fatal;
            }
            if status.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Ends what runs, and comes back when everything that was handed in is on disk.
    pub async fn halt(&self) {
        self.stop.send_replace(true);
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            let _ = task.await;
        }
    }

    /// Stops, and closes the files in order, whoever still holds them: a file that was left as it
    /// is would pass for that of a crash.
    pub async fn stop(&self) {
        self.halt().await;
        self.outbox.close().await;
        self.inbox.close().await;
    }
}

fn broker_api(link: &LinkOptions, clock: &Arc<dyn Clock>) -> BrokerApi {
    let (keys, random) = (Arc::clone(&link.keys), Arc::clone(&link.random));
    BrokerApi::new(link.broker.clone(), &link.mesh, keys, Arc::clone(clock), random)
}

fn requeue_in_tx(
    tx: &semel_store::sqlite::Tx<'_>,
    old: OutboxId,
    new: &NewOutboxRow,
    destination: &Destination,
    even_if_delivered: bool,
) -> Result<Option<Moved>, StoreError> {
    if crate::store::outbox::outbox_find_in_tx(tx, &new.client_message_id)?.is_some() {
        return Ok(None);
    }
    let by = AbortedBy::Operator;
    outbox_requeue_in_tx(tx, old, new, destination, by, even_if_delivered).map(Some)
}

/// How full the inbox is, and what it has seen of time: by that a start with a clock that is ahead
/// is known.
async fn look(inbox: &Inbox, keeping: Keeping) -> Option<UnixMs> {
    inbox.measure_first(keeping).await;
    inbox.newest_at().await.unwrap_or_else(|error| {
        tracing::error!(error = error.chain(), "the time of the last write is unknown");
        None
    })
}

/// How far the inbox went once, when it does not go so far now: it was lost, or is an older one.
/// What it lacks comes again, and is no news.
async fn lacking(outbox: &Outbox, inbox: &Inbox) -> Option<Extent> {
    let (known, extent) = match (outbox.link().await, inbox.extent().await) {
        (Ok(link), Ok(extent)) => (link.history?, extent),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(error = error.chain(), "the inbox's place in history is unknown");
            return None;
        }
    };
    if extent.as_ref().is_some_and(|extent| extent.covers(&known)) {
        return None;
    }
    let (has, had) = (Extent::after(extent.as_ref(), &known.store_epoch), known.seq);
    if has < had {
        tracing::warn!(has, had, "inbox.db is older than outbox.db: missing messages come again");
    }
    Some(known)
}

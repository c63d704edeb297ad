//! The one connection to the broker: what is due goes out over it, what arrives comes in.
//!
//! Reading order: what an answer means ([`judge`]), how a connection is made ([`connect`]), what
//! happens while it lives ([`serve`]), and here what happens between two of them. A broker that is
//! away is the normal case: the first attempt is like the hundredth.

mod arrivals;
mod connect;
mod flight;
mod handle;
mod judge;
mod meter;
mod patience;
mod roster;
mod serve;
mod status;
mod suspects;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::{Clock, UnixMs};
use semel_core::hex::Hex;
use semel_core::id::OutboxId;
use semel_core::limits::ENQUEUED_AHEAD_MAX;
use semel_core::max_age::{DedupeWindow, outbox_max_age_cut, outbox_max_age_hours};
use semel_core::plausible::{Sweep, SweepClock};
use semel_store::StoreError;
use semel_wire::close::CloseKind;
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};

use crate::inbox::Inbox;
use crate::limits::{ADOPT_MAX, AGES_LOOK, MARKS_MAX, NONCES_MAX, REQUESTS_MAX};
use crate::marks::{self, Change, Mark, Settled};
use crate::outbox::Outbox;
use crate::store::event::EventKind;
use crate::store::extent::Extent;
use crate::store::link::LinkRow;
use crate::store::{claim, link};

pub(crate) use handle::Command;
pub use handle::{Ask, Asked, LinkHandle};
pub use roster::{Online, Roster};
pub use status::{Fatal, LinkOptions, LinkState, LinkStatus, Loss};

use patience::{Patience, Reach};
use suspects::Suspects;

/// What lives as long as the daemon, from one connection to the next.
pub(crate) struct Link {
    options: LinkOptions,
    outbox: Arc<Outbox>,
    inbox: Arc<Inbox>,
    clock: Arc<dyn Clock>,
    status: watch::Sender<LinkStatus>,
    commands: mpsc::Receiver<Command>,
    roster: Arc<Roster>,
    marks: mpsc::Sender<Mark>,
    settled: mpsc::UnboundedReceiver<Vec<Settled>>,
    /// Rows of which the file does not say yet what is known, with the marks under way.
    unsettled: HashMap<OutboxId, u32>,
    /// How many of these marks make a row due again.
    returning: usize,
    /// Who wants to know when rows are settled.
    telling: Vec<(Vec<OutboxId>, oneshot::Sender<bool>)>,
    max_age: Option<Duration>,
    /// When rows were looked at for their age.
    expired_at: Duration,
    /// By which time they are old, as long as no broker has said what time it is.
    ages: SweepClock,
    /// The broker's time, and when it was heard.
    server_time: Option<(UnixMs, Duration)>,
    /// Up to where the inbox is only rebuilt, when it was lost or is an older one.
    rebuild_to: Option<Extent>,
    nonces: VecDeque<Hex<16>>,
    suspects: Suspects,
}

/// How a connection came to its end.
enum Ended {
    /// Come back.
    Again { why: String, loss: Loss, reach: Reach },
    /// Never.
    Fatal(Fatal),
    /// The daemon stops.
    Stopped,
}

/// Comes back once the daemon is to stop.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

/// Makes the link, the task that keeps its books, and a way to say what became of both.
pub(crate) fn link(
    options: LinkOptions,
    outbox: Arc<Outbox>,
    inbox: Arc<Inbox>,
    clock: Arc<dyn Clock>,
    rebuild_to: Option<Extent>,
) -> (Link, LinkHandle, tokio::task::JoinHandle<()>, watch::Sender<LinkStatus>) {
    let status = LinkStatus::new(LinkState::Connecting, clock.wall());
    let (status, watch) = watch::channel(status);
    let (commands_sender, commands) = mpsc::channel(REQUESTS_MAX);
    let (marks, to_mark) = mpsc::channel(MARKS_MAX);
    let (settling, settled) = mpsc::unbounded_channel();
    let (outbox_too, inbox_too) = (Arc::clone(&outbox), Arc::clone(&inbox));
    let marking = marks::run(outbox_too, inbox_too, Arc::clone(&clock), to_mark, settling);
    let marking = tokio::spawn(marking);
    let roster = Arc::new(Roster::new(Arc::clone(&inbox)));
    let handle = LinkHandle::new(watch, commands_sender, Arc::clone(&roster));
    let told = status.clone();
    let (ages, expired_at) = (options.sweep_clock.clone(), clock.monotonic());
    let link = Link {
        options,
        outbox,
        inbox,
        clock,
        status,
        commands,
        roster,
        marks,
        settled,
        unsettled: HashMap::new(),
        returning: 0,
        telling: Vec::new(),
        max_age: None,
        expired_at,
        ages,
        server_time: None,
        rebuild_to,
        nonces: VecDeque::new(),
        suspects: Suspects::default(),
    };
    (link, handle, marking, told)
}

impl Link {
    /// Connects, serves, waits, again and again, until `stop` changes or there is no point.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut patience = Patience::default();
        self.recall_max_age().await;
        loop {
            self.say(LinkState::Connecting, None);
            let ended = tokio::select! {
                connected = self.connect() => connected,
                () = stopped(&mut stop) => return,
            };
            let ended = match ended {
                Ok(connection) => {
                    let began = self.clock.monotonic();
                    let ended = serve::serve(&mut self, connection, &mut stop).await;
                    let data = json!({"reason": ended.words()});
                    self.inbox.announce(EventKind::DaemonDisconnect, &data);
                    let lived = self.clock.monotonic().saturating_sub(began);
                    patience.ended(lived, self.options.steady_after);
                    ended
                }
                Err(ended) => {
                    patience.failed();
                    ended
                }
            };
            let reach = match ended {
                Ended::Stopped => return,
                Ended::Fatal(fatal) => return self.end(fatal).await,
                Ended::Again { why, loss, reach } => {
                    tracing::warn!(why, "the broker is away");
                    self.status.send_if_modified(|status| {
                        if status.state == LinkState::Connected {
                            status.lost_by = Some(loss);
                        }
                        false
                    });
                    self.say(LinkState::Waiting, Some(why));
                    reach
                }
            };
            let wait = patience.wait(reach, self.random());
            if self.wait(wait, &mut stop).await {
                return;
            }
        }
    }

    async fn connect(&mut self) -> Result<connect::Connection, Ended> {
        let link = self.outbox.link().await.map_err(|error| {
            self.complain(&error, "the owner of this outbox is unknown");
            Ended::storage("the outbox cannot be read")
        })?;
        // Before it is said: the broker may hear a hello whose answer never comes.
        let nonce = Hex((self.options.random)().to_be_bytes());
        self.remember(nonce);
        connect::connect(&self.options, &*self.clock, &link.retiring, nonce).await
    }

    /// Waits for the next attempt; rows grow old meanwhile, and may be given up. `true` to stop.
    async fn wait(&mut self, wait: Duration, stop: &mut watch::Receiver<bool>) -> bool {
        let mut over = std::pin::pin!(tokio::time::sleep(wait));
        loop {
            let expires_in = self.expires_in();
            tokio::select! {
                () = &mut over => return false,
                () = stopped(stop) => return true,
                Some(ids) = self.settled.recv() => self.settle(ids),
                Some(command) = self.commands.recv() => match command {
                    Command::GiveUp { id, why, reply } => {
                        self.mark(id, Change::Expired { why }).await;
                        self.tell_when_settled(vec![id], reply);
                    }
                    // Dropping the reply says that the broker is away.
                    Command::Resolve { .. } | Command::Ask { .. } => {}
                },
                () = tokio::time::sleep(expires_in) => self.expire(|_| false).await,
            }
        }
    }

    /// How long until rows are looked at for their age again.
    fn expires_in(&self) -> Duration {
        let next = self.expired_at + self.options.expire_interval;
        next.saturating_sub(self.clock.monotonic())
    }

    /// The time by which rows are old: never later than the broker's, and where no broker has said
    /// what time it is, only once the clock is plausible. One that is ahead for a moment kills
    /// nothing; what is too old to be judged the broker does not accept as new.
    fn present(&mut self) -> Option<UnixMs> {
        let (wall, now) = (self.clock.wall(), self.clock.monotonic());
        match (self.server_time, self.ages.look(wall, now)) {
            (Some((time, heard_at)), _) => {
                Some(wall.min(time.saturating_add(now.saturating_sub(heard_at))))
            }
            (None, Sweep::By(present)) => Some(present),
            (None, Sweep::After(_)) => None,
        }
    }

    /// The latest that it can be, and what seems to be from later was accepted by a clock that was
    /// ahead. As above, but the later of both: a clock that is behind makes nothing older.
    fn latest(&mut self) -> Option<UnixMs> {
        let (wall, now) = (self.clock.wall(), self.clock.monotonic());
        match (self.server_time, self.ages.look(wall, now)) {
            (Some((time, heard_at)), _) => {
                Some(wall.max(time.saturating_add(now.saturating_sub(heard_at))))
            }
            (None, Sweep::By(present)) => Some(present),
            (None, Sweep::After(_)) => None,
        }
    }

    /// Counts the age of these rows from this time on: they would never grow old.
    async fn count_from(&self, ids: Vec<OutboxId>, time: UnixMs) -> bool {
        tracing::warn!(
            rows = ids.len(),
            "rows have a time in the future: their age counts from now"
        );
        let write = self
            .outbox
            .sqlite
            .write(move |tx| ids.iter().try_for_each(|id| claim::count_from_in_tx(tx, *id, time)));
        let written = write.await;
        if let Err(error) = &written {
            self.complain(error, "rows with a time in the future could not be changed");
        }
        written.is_ok()
    }

    async fn end(&mut self, fatal: Fatal) {
        tracing::error!(?fatal, "this daemon must end");
        if fatal == Fatal::Replaced {
            // A copy of this folder may have sent the same rows: nothing can be said of them.
            while !self.unsettled.is_empty()
                && let Some(ids) = self.settled.recv().await
            {
                self.settle(ids);
            }
            loop {
                let adopted =
                    self.outbox.sqlite.write(|tx| link::adopt_in_tx(tx, i64::MAX, ADOPT_MAX));
                match adopted.await {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => {
                        tracing::error!(error = error.chain(), "open rows were not given up");
                        break;
                    }
                }
            }
        }
        if let Fatal::Feature(detail) = &fatal {
            let data = json!({"detail": detail});
            self.inbox.announce(EventKind::FeatureNegotiationFailed, &data);
        }
        let now = self.clock.wall();
        self.status.send_modify(|status| {
            status.state = LinkState::Ended;
            status.since = now;
            status.fatal = Some(fatal);
        });
    }

    fn say(&self, state: LinkState, error: Option<String>) {
        let now = self.clock.wall();
        self.status.send_modify(|status| {
            if status.state != state {
                (status.state, status.since) = (state, now);
            }
            if state == LinkState::Connected || error.is_some() {
                status.last_error = error;
            }
        });
    }

    /// Notes a change of a row; until it is on disk the row is left alone.
    async fn mark(&mut self, id: OutboxId, change: Change) {
        *self.unsettled.entry(id).or_insert(0) += 1;
        self.returning += usize::from(change.returns());
        // Room is made while we wait: the other side never waits for us.
        let _ = self.marks.send(Mark { id, change }).await;
    }

    /// Says yes once nothing that is known of these rows is missing in the file.
    fn tell_when_settled(&mut self, ids: Vec<OutboxId>, reply: oneshot::Sender<bool>) {
        self.telling.push((ids, reply));
        self.tell();
    }

    fn tell(&mut self) {
        let settled = |ids: &[OutboxId]| !ids.iter().any(|id| self.unsettled.contains_key(id));
        let (ready, waiting) =
            std::mem::take(&mut self.telling).into_iter().partition(|(ids, _)| settled(ids));
        self.telling = waiting;
        let ready: Vec<(Vec<OutboxId>, oneshot::Sender<bool>)> = ready;
        for (_, reply) in ready {
            let _ = reply.send(true);
        }
    }

    fn settle(&mut self, settled: Vec<Settled>) {
        for (id, returns) in settled {
            self.returning = self.returning.saturating_sub(usize::from(returns));
            if let Some(marks) = self.unsettled.get_mut(&id) {
                *marks = marks.saturating_sub(1);
                if *marks == 0 {
                    self.unsettled.remove(&id);
                    self.outbox.claim_written(id);
                }
            }
        }
        if !self.telling.is_empty() {
            self.tell();
        }
    }

    /// What waited longer than the broker remembers dies; never what is on the wire.
    async fn expire(&mut self, is_flying: impl Fn(OutboxId) -> bool) {
        self.expired_at = self.clock.monotonic();
        let (Some(max_age), Some(present)) = (self.max_age, self.present()) else { return };
        let before = present.saturating_sub(max_age);
        let latest = self.latest().unwrap_or(UnixMs(i64::MAX));
        let ahead_of = latest.saturating_add(ENQUEUED_AHEAD_MAX);
        loop {
            let read = self
                .outbox
                .sqlite
                .read(move |connection| claim::ages(connection, before, ahead_of, AGES_LOOK));
            let claim::Ages { expired, ahead } = match read.await {
                Ok(ages) => ages,
                Err(error) => {
                    return self.complain(&error, "the age of rows could not be checked");
                }
            };
            if !ahead.is_empty() && !self.count_from(ahead, latest).await {
                return;
            }
            let known = |id: &OutboxId| is_flying(*id) || self.unsettled.contains_key(id);
            let dying: Vec<OutboxId> = expired.into_iter().filter(|id| !known(id)).collect();
            if dying.is_empty() {
                return;
            }
            for id in dying {
                let why = "it became older than the broker remembers ids".to_owned();
                self.mark(id, Change::Expired { why }).await;
            }
            while let Ok(ids) = self.settled.try_recv() {
                self.settle(ids);
            }
        }
    }

    fn random(&self) -> u64 {
        u64::try_from((self.options.random)() & u128::from(u64::MAX)).unwrap_or(0)
    }

    /// By its own nonces a daemon knows its own hellos.
    fn remember(&mut self, nonce: Hex<16>) {
        self.nonces.push_back(nonce);
        if self.nonces.len() > NONCES_MAX {
            self.nonces.pop_front();
        }
    }

    fn is_ours(&self, nonce: Hex<16>) -> bool {
        self.nonces.contains(&nonce)
    }

    fn complain(&self, error: &StoreError, what: &str) {
        tracing::error!(error = error.chain(), "{what}");
    }

    /// What the broker promised last holds while it is away, too. Whether the configuration goes
    /// together with it is judged when it is there.
    async fn recall_max_age(&mut self) {
        match self.outbox.link().await {
            Ok(LinkRow { window: Some(window), .. }) => drop(self.set_max_age(window)),
            Ok(LinkRow { window: None, .. }) => {}
            Err(error) => self.complain(&error, "the maximal age of rows is unknown"),
        }
    }

    /// What the broker's promise means for the age of rows.
    fn set_max_age(&mut self, window: DedupeWindow) -> Result<(), Fatal> {
        let said = self.options.max_age_hours_override;
        let hours = outbox_max_age_hours(window, said)
            .map_err(|refusal| Fatal::Unfit(refusal.to_string()))?;
        let max_age = Some(Duration::from_secs(u64::from(hours) * 60 * 60));
        // Once, and not for every connection.
        if let (Some(hours), true) = (outbox_max_age_cut(window, said), self.max_age != max_age) {
            tracing::warn!(
                said,
                hours,
                "outbox.max_age_hours_override is too large and is limited"
            );
        }
        self.max_age = max_age;
        Ok(())
    }
}

impl Ended {
    /// Our own files failed, for now.
    fn storage(why: &str) -> Self {
        Self::Again { why: why.to_owned(), loss: Loss::Storage, reach: Reach::Silent }
    }

    fn words(&self) -> String {
        match self {
            Self::Again { why, .. } => why.clone(),
            Self::Fatal(fatal) => format!("{fatal:?}"),
            Self::Stopped => "the daemon stops".to_owned(),
        }
    }

    /// What a reason to close means for us. `ours`: the nonce in it is of a hello of our own.
    fn of_close(kind: CloseKind, detail: &str, ours: bool) -> Self {
        let why = format!("{kind}: {detail}");
        let again = |loss| Self::Again { why, loss, reach: Reach::Answered };
        match kind {
            CloseKind::Replaced if ours => again(Loss::Closed),
            CloseKind::Replaced => Self::Fatal(Fatal::Replaced),
            CloseKind::AlreadyConnected => Self::Fatal(Fatal::AlreadyConnected),
            CloseKind::Revoked => Self::Fatal(Fatal::Revoked),
            CloseKind::FeatureUnavailable
            | CloseKind::FeatureParamInvalid
            | CloseKind::FeatureParamBelowFloor => Self::Fatal(Fatal::Feature(detail.to_owned())),
            CloseKind::ProtocolError => again(Loss::Unread),
            CloseKind::Unauthorised | CloseKind::Draining => again(Loss::Closed),
        }
    }
}

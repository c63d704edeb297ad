//! The one connection to the broker: what is due goes out over it, what arrives comes in.
//!
//! Reading order: what an answer means ([`judge`]), how a connection is made ([`connect`]), what
//! happens while it lives ([`serve`]), and here what happens between two of them. A broker that is
//! away is the normal case: the first attempt is like the hundredth.

mod arrivals;
mod connect;
mod flight;
mod judge;
mod roster;
mod serve;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use semel_core::backoff::backoff_delay;
use semel_core::clock::{Clock, UnixMs};
use semel_core::hex::Hex;
use semel_core::id::{InstanceId, MemberId, OutboxId};
use semel_core::max_age::{DedupeWindow, outbox_max_age_hours};
use semel_core::status;
use semel_crypto::keys::KeyPair;
use semel_store::StoreError;
use semel_wire::close::CloseKind;
use semel_wire::features::Negotiated;
use semel_wire::frame::FromBroker;
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};

use crate::inbox::Inbox;
use crate::limits::{
    ADOPT_MAX, ANSWER_TIMEOUT, EXPIRE_INTERVAL, EXPIRE_MAX, MARKS_MAX, REQUESTS_MAX, WINDOW,
};
use crate::marks::{self, Change, Mark, Settled};
use crate::outbox::Outbox;
use crate::store::event::EventKind;
use crate::store::{claim, link};

pub use roster::{Online, Roster};

/// Hellos of ours that are remembered.
const NONCES_MAX: usize = 16;

/// Where the broker is, and who we are to it.
pub struct LinkOptions {
    /// `ws://host:port/v1/mesh` or `wss://…`.
    pub url: String,
    /// The mesh's name.
    pub mesh: String,
    /// The name of our key.
    pub key_id: String,
    /// Our key.
    pub keys: Arc<KeyPair>,
    /// This daemon.
    pub instance_id: InstanceId,
    /// For the broker's logs.
    pub version: String,
    /// For `wss`.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// Features that must be there besides those that always must.
    pub require: Vec<String>,
    /// Sends that may be unanswered.
    pub window: usize,
    /// Rows older than this are not sent, whatever the broker would allow.
    pub max_age_hours_override: Option<u32>,
    /// How long the broker may take to answer a send.
    pub answer_timeout: Duration,
    /// How often rows are looked at for their age.
    pub expire_interval: Duration,
    /// Random numbers, for jitter and nonces.
    pub random: Arc<dyn Fn() -> u128 + Send + Sync>,
}

impl LinkOptions {
    /// The usual window.
    pub const WINDOW: usize = WINDOW;
    /// The usual wait for an answer.
    pub const ANSWER_TIMEOUT: Duration = ANSWER_TIMEOUT;
    /// How often rows are usually looked at for their age.
    pub const EXPIRE_INTERVAL: Duration = EXPIRE_INTERVAL;
}

status! {
    /// How it stands with the broker.
    pub enum LinkState {
        /// It is being connected to.
        Connecting = "connecting",
        /// Traffic flows.
        Connected = "connected",
        /// It is away; the next attempt is set.
        Waiting = "waiting",
        /// It will not be tried again: the daemon must end.
        Ended = "ended",
    }
}

/// Why a daemon must end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fatal {
    /// Another daemon speaks for this member now (`4003`).
    Replaced,
    /// The member is connected elsewhere and its mesh prefers the oldest (`4004`).
    AlreadyConnected,
    /// The member was revoked, or this instance retired (`4005`).
    Revoked,
    /// The broker does not offer what is needed (`4010`).
    Feature(String),
    /// The configuration and the broker do not go together.
    Unfit(String),
}

status! {
    /// What ends a connection that is made again.
    pub enum Loss {
        /// The network, or the process at the other end.
        Gone = "gone",
        /// The broker said so.
        Closed = "closed",
        /// Nothing was heard, or no answer came.
        Silent = "silent",
        /// What came made no sense, or was too much.
        Protocol = "protocol",
        /// Our own files could not be written.
        Storage = "storage",
    }
}

/// What is known of the connection, for health and metrics.
#[derive(Debug, Clone)]
pub struct LinkStatus {
    /// Connected or not.
    pub state: LinkState,
    /// Since when.
    pub since: UnixMs,
    /// Why it is not, in words.
    pub last_error: Option<String>,
    /// Who we are, once the broker has said.
    pub member_id: Option<MemberId>,
    /// What the broker offered last.
    pub negotiated: Option<Negotiated>,
    /// The broker's store, as last seen.
    pub store_epoch: Option<String>,
    /// Connections that were made after the first, by what ended the one before.
    pub reconnects: [u64; Loss::ALL.len()],
    /// What ended the last connection, until there is another one.
    pub lost_by: Option<Loss>,
    /// Sends that are unanswered.
    pub inflight: usize,
    /// How long the last answered send took.
    pub lag: Option<Duration>,
    /// Why it ended for good.
    pub fatal: Option<Fatal>,
}

impl LinkStatus {
    fn new(state: LinkState, since: UnixMs) -> Self {
        Self {
            state,
            since,
            last_error: None,
            member_id: None,
            negotiated: None,
            store_epoch: None,
            reconnects: [0; Loss::ALL.len()],
            lost_by: None,
            inflight: 0,
            lag: None,
            fatal: None,
        }
    }

    /// Bytes of a body that the broker takes, once it is known.
    pub fn inline_bytes(&self) -> Option<u64> {
        Some(self.negotiated.as_ref()?.max_payload.as_ref()?.inline_bytes)
    }
}

/// What others ask of the link.
pub(crate) enum Command {
    /// Give this row up, and say when that is on disk; `false` when it is on the wire.
    GiveUp { id: OutboxId, why: String, reply: oneshot::Sender<bool> },
    /// Ask about everything that is unknown, and say when the answers are on disk.
    Resolve { reply: oneshot::Sender<bool> },
    /// A question to the broker.
    Ask { ask: Ask, reply: oneshot::Sender<FromBroker> },
}

/// A question that the broker answers by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Work of a queue.
    QueueTake {
        /// Which.
        queue: String,
        /// Messages at the most.
        max: u64,
        /// For how long.
        lease_ms: Option<u64>,
    },
    /// Work that is done.
    QueueAck {
        /// Of which queue.
        queue: String,
        /// Which messages.
        seqs: Vec<i64>,
    },
}

/// How others reach the link.
#[derive(Clone)]
pub struct LinkHandle {
    status: watch::Receiver<LinkStatus>,
    commands: mpsc::Sender<Command>,
    roster: Arc<Roster>,
}

impl LinkHandle {
    /// Of a daemon that only reads: there is no connection, and whoever asks hears so.
    pub(crate) fn none(inbox: Arc<Inbox>, since: UnixMs) -> Self {
        let last_error = Some("the daemon only reads (--read-only)".to_owned());
        let status = LinkStatus { last_error, ..LinkStatus::new(LinkState::Ended, since) };
        Self {
            status: watch::channel(status).1,
            commands: mpsc::channel(1).0,
            roster: Arc::new(Roster::new(inbox)),
        }
    }

    /// How it stands with the broker now.
    pub fn status(&self) -> LinkStatus {
        self.status.borrow().clone()
    }

    /// Changes whenever the state does.
    pub fn watch(&self) -> watch::Receiver<LinkStatus> {
        self.status.clone()
    }

    /// Who is online.
    pub fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// Asks the broker; nothing when it is away or does not answer.
    pub async fn ask(&self, ask: Ask) -> Option<FromBroker> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Ask { ask, reply }).await.ok()?;
        answer.await.ok()
    }

    /// Gives a row up that is not on the wire; `false` when it is.
    pub(crate) async fn give_up(&self, id: OutboxId, why: &str) -> bool {
        let (reply, answer) = oneshot::channel();
        let command = Command::GiveUp { id, why: why.to_owned(), reply };
        self.commands.send(command).await.is_ok() && answer.await.unwrap_or(false)
    }

    /// Finds out what became of rows whose outcome is unknown; `false` when the broker is away.
    pub(crate) async fn resolve(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Resolve { reply }).await.is_ok()
            && answer.await.unwrap_or(false)
    }
}

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
    /// Up to where the inbox is only rebuilt, when it was lost.
    rebuild_to: Option<(String, i64)>,
    nonces: VecDeque<Hex<16>>,
}

/// How a connection came to its end.
enum Ended {
    /// Come back; the wait begins anew if it had worked.
    Again { worked: bool, why: String, loss: Loss },
    /// Never.
    Fatal(Fatal),
    /// The daemon stops.
    Stopped,
}

/// Comes back once the daemon is to stop.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

/// Makes the link and the task that keeps its books.
pub(crate) fn link(
    options: LinkOptions,
    outbox: Arc<Outbox>,
    inbox: Arc<Inbox>,
    clock: Arc<dyn Clock>,
    rebuild_to: Option<(String, i64)>,
) -> (Link, LinkHandle, tokio::task::JoinHandle<()>) {
    let status = LinkStatus::new(LinkState::Connecting, clock.wall());
    let (status, watch) = watch::channel(status);
    let (commands_sender, commands) = mpsc::channel(REQUESTS_MAX);
    let (marks, to_mark) = mpsc::channel(MARKS_MAX);
    let (settling, settled) = mpsc::unbounded_channel();
    let (outbox_too, inbox_too) = (Arc::clone(&outbox), Arc::clone(&inbox));
    let marking = marks::run(outbox_too, inbox_too, Arc::clone(&clock), to_mark, settling);
    let marking = tokio::spawn(marking);
    let roster = Arc::new(Roster::new(Arc::clone(&inbox)));
    let handle =
        LinkHandle { status: watch, commands: commands_sender, roster: Arc::clone(&roster) };
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
        rebuild_to,
        nonces: VecDeque::new(),
    };
    (link, handle, marking)
}

impl Link {
    /// Connects, serves, waits, again and again, until `stop` changes or there is no point.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut attempts = 0;
        loop {
            self.say(LinkState::Connecting, None);
            let retire = match self.outbox.link().await {
                Ok(link) => link.retiring,
                Err(error) => return self.complain(&error, "whose outbox this is is not known"),
            };
            let ended = tokio::select! {
                ended = connect::connect(&self.options, &*self.clock, &retire) => ended,
                () = stopped(&mut stop) => return,
            };
            let ended = match ended {
                Ok(connection) => {
                    let ended = serve::serve(&mut self, connection, &mut stop).await;
                    let data = json!({"reason": ended.words()});
                    self.inbox.announce(EventKind::DaemonDisconnect, &data);
                    ended
                }
                Err(ended) => ended,
            };
            match ended {
                Ended::Stopped => return,
                Ended::Fatal(fatal) => return self.end(fatal).await,
                Ended::Again { worked, why, loss } => {
                    tracing::warn!(why, "the broker is away");
                    attempts = if worked { 1 } else { attempts + 1 };
                    self.status.send_if_modified(|status| {
                        if status.state == LinkState::Connected {
                            status.lost_by = Some(loss);
                        }
                        false
                    });
                    self.say(LinkState::Waiting, Some(why));
                }
            }
            let wait = backoff_delay(attempts, self.random());
            if self.wait(wait, &mut stop).await {
                return;
            }
        }
    }

    /// Waits for the next attempt; rows grow old meanwhile, and may be given up. `true` to stop.
    async fn wait(&mut self, wait: Duration, stop: &mut watch::Receiver<bool>) -> bool {
        let mut over = std::pin::pin!(tokio::time::sleep(wait));
        loop {
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
                () = tokio::time::sleep(self.options.expire_interval) => {
                    self.expire(|_| false).await;
                }
            }
        }
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
                match self.outbox.sqlite.write(|tx| link::adopt_in_tx(tx, ADOPT_MAX)).await {
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
        let Some(max_age) = self.max_age else { return };
        let before = self.clock.wall().saturating_sub(max_age);
        loop {
            let read = self
                .outbox
                .sqlite
                .read(move |connection| claim::expired(connection, before, EXPIRE_MAX));
            let expired = match read.await {
                Ok(expired) => expired,
                Err(error) => {
                    return self.complain(&error, "rows were not looked at for their age");
                }
            };
            let known = |id: &OutboxId| is_flying(*id) || self.unsettled.contains_key(id);
            let dying: Vec<OutboxId> = expired.into_iter().filter(|id| !known(id)).collect();
            if dying.is_empty() {
                return;
            }
            for id in dying {
                let why = "it grew older than the broker remembers ids".to_owned();
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

    /// What the broker's promise means for the age of rows.
    fn set_max_age(&mut self, window: DedupeWindow) -> Result<(), Fatal> {
        let hours = outbox_max_age_hours(window, self.options.max_age_hours_override)
            .map_err(|refusal| Fatal::Unfit(refusal.to_string()))?;
        self.max_age = Some(Duration::from_secs(u64::from(hours) * 60 * 60));
        Ok(())
    }
}

impl Ended {
    fn words(&self) -> String {
        match self {
            Self::Again { why, .. } => why.clone(),
            Self::Fatal(fatal) => format!("{fatal:?}"),
            Self::Stopped => "the daemon stops".to_owned(),
        }
    }

    /// What a reason to close means for us. `ours`: the nonce in it is of a hello of our own.
    fn of_close(kind: CloseKind, detail: &str, ours: bool, worked: bool) -> Self {
        let why = format!("{kind}: {detail}");
        let again = || Self::Again { worked, why, loss: Loss::Closed };
        match kind {
            CloseKind::Replaced if ours => again(),
            CloseKind::Replaced => Self::Fatal(Fatal::Replaced),
            CloseKind::AlreadyConnected => Self::Fatal(Fatal::AlreadyConnected),
            CloseKind::Revoked => Self::Fatal(Fatal::Revoked),
            CloseKind::FeatureUnavailable
            | CloseKind::FeatureParamInvalid
            | CloseKind::FeatureParamBelowFloor => Self::Fatal(Fatal::Feature(detail.to_owned())),
            CloseKind::Unauthorised | CloseKind::ProtocolError | CloseKind::Draining => again(),
        }
    }
}

//! One connection's life. A single task owns everything that is known of it; a reader and a writer
//! move frames, and arrivals are stored beside it. Whatever ends, the connection does, and what was
//! on the wire goes back (traps 1 and 12).

mod fill;
mod frames;
mod line;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::id::OutboxId;
use semel_core::limits::INTEGER_MAX;
use semel_core::outbox::Outcome;
use semel_wire::frame::{
    Ack, FromBroker, FromDaemon, HistoryRequest, Ping, PresenceRequest, QueueAck, QueueTake,
    RequestFailed, Resolve, ResolveItem,
};
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};

use self::fill::Look;
use self::line::{Heard, Writer, read, room};
use super::arrivals::{self, Arrival, Room, Stored};
use super::connect::Connection;
use super::flight::{Errand, Failing, Flight};
use super::meter::Progress;
use super::patience::Reach;
use super::{Ask, Command, Ended, Link, LinkState, Loss, stopped};
use crate::limits::{
    HISTORY_PAGE, INBOUND_MAX, OUTBOUND_MAX, PING_INTERVAL, RESOLVE_MAX, SILENCE_MAX, WRITE_TIMEOUT,
};
use crate::marks::{Change, Settled};
use crate::store::claim::{self, Unknown};
use crate::store::event::EventKind;
use crate::store::extent::Extent;
use crate::store::inbox::Way;
use crate::store::link::{self, LinkRow};

/// How long the broker may take to tell who is online.
const ROSTER_SETTLES: Duration = Duration::from_secs(5);

/// What is known of one connection.
struct Serving {
    link_row: LinkRow,
    store_epoch: String,
    flight: Flight,
    /// Frames that wait for the writer.
    outgoing: VecDeque<FromDaemon>,
    /// What may be due that was not looked at.
    look: Look,
    /// Nothing is sent before this.
    paused_until: Option<Duration>,
    /// Something was put off: what is on the wire behind it may be, too, and nothing may pass it.
    put_off: bool,
    /// Answers in a row that said "later".
    failures: u32,
    /// What is shown of them until something is taken again.
    later: Option<String>,
    failing: Failing,
    /// When a row that waits on its own is due.
    next_due: Option<Duration>,
    arrivals: mpsc::Sender<(Arrival, Room)>,
    /// Where the catch-up with history goes on; nothing when it is finished.
    catching_up: Option<i64>,
    /// The last that was pushed and not taken. Acknowledgements are cumulative, so that nothing
    /// behind it is taken before the broker has begun again. That it has can be seen by a number
    /// that is no higher; the first of those that were not taken may be gone by then.
    untaken: Option<i64>,
    offers: Offers,
    resolving: Option<Resolving>,
    /// Rows that were given up here and may have been sent: the broker is asked once that is on
    /// disk.
    given_up: Vec<OutboxId>,
    /// A page of history was asked for and has not come.
    history_asked: bool,
    /// A page of it made no sense: the next connection asks again.
    history_unread: bool,
    /// Bytes of the largest frame that the broker reads.
    frame_bytes_max: usize,
    /// Who waits for the next round of resolving.
    resolve_next: Vec<oneshot::Sender<bool>>,
    asked: HashMap<u64, oneshot::Sender<FromBroker>>,
    next_request: u64,
    heard_at: Duration,
    progress: Progress,
    /// How many sends have left, and when; at most a window of these.
    left: mpsc::UnboundedReceiver<(u64, Duration)>,
    pinged_at: Duration,
}

/// Done rows that are offered again to a broker that was restored, a page at a time.
struct Offers {
    /// Those after this id come next; nothing when all were offered.
    after: Option<String>,
    page_last: Option<OutboxId>,
    outstanding: usize,
    again: bool,
}

impl Offers {
    /// Those that a store of another life has not been offered yet.
    fn of(link: &LinkRow) -> Self {
        let is_offered = link.offered_to >= link.epoch_floor;
        let after = (!is_offered).then(|| link.offered_to.clone());
        Self { after, page_last: None, outstanding: 0, again: false }
    }
}

/// Rows whose fate the broker is asked about, a page at a time.
struct Resolving {
    request_id: u64,
    page: Vec<Unknown>,
    replies: Vec<oneshot::Sender<bool>>,
    /// Rows that were asked about before, for whoever waits.
    before: Vec<OutboxId>,
}

/// Serves a connection to its end.
pub(super) async fn serve(
    link: &mut Link,
    connection: Connection,
    stop: &mut watch::Receiver<bool>,
) -> Ended {
    let Connection { sink, stream, meter, ack, negotiated, early } = connection;
    let mut serving = match begin(link, &ack, negotiated).await {
        Ok(serving) => serving,
        Err(ended) => return ended,
    };
    let (arrivals, arriving) = mpsc::channel(INBOUND_MAX);
    serving.arrivals = arrivals;
    serving.progress = Progress::new(Arc::clone(&meter), link.clock.monotonic());
    let (leaving, left) = mpsc::unbounded_channel();
    serving.left = left;
    let (stored, mut on_disk) = mpsc::channel(INBOUND_MAX);
    let storing = tokio::spawn(arrivals::run(
        Arc::clone(&link.inbox),
        serving.store_epoch.clone(),
        arriving,
        stored,
    ));
    let (incoming, mut frames) = mpsc::channel(INBOUND_MAX);
    let reading = tokio::spawn(read(stream, incoming, early, room()));
    let (outgoing, writing) = mpsc::channel(OUTBOUND_MAX);
    let writer = Writer { sink, meter, clock: Arc::clone(&link.clock), left: leaving };
    let writing = tokio::spawn(writer.run(writing));
    let ended = run(link, &mut serving, &mut frames, &outgoing, &mut on_disk, stop).await;
    reading.abort();
    drop(outgoing);
    link.outbox.fresh.rows.leave();
    // The writer says why, if it still can.
    let _ = tokio::time::timeout(WRITE_TIMEOUT, writing).await;
    // Whatever was written down after this would belong to the next connection.
    drop(serving.arrivals);
    drop(on_disk);
    let _ = storing.await;
    crash(link, serving.flight, &ended).await;
    ended
}

/// What was on the wire goes out again, but for the row at which the broker closes each time.
async fn crash(link: &mut Link, flight: Flight, ended: &Ended) {
    let flying = flight.crash();
    let (unread, why) = match ended {
        Ended::Again { loss: Loss::Unread, why, .. } => (link.suspects.closed_on(&flying), &**why),
        Ended::Again { .. } | Ended::Fatal(_) | Ended::Stopped => (None, ""),
    };
    for flying in flying {
        if unread == Some(flying.id) {
            tracing::error!(id = %flying.id, why, "a row at which the broker closes the connection \
                                                   is given up");
        }
        let change = match (flying.errand, unread == Some(flying.id)) {
            // An earlier attempt may have been accepted: the next connection asks.
            (Errand::Send, true) => {
                Change::Permanent { why: why.to_owned(), outcome: Outcome::Unknown }
            }
            (Errand::Send, false) if semel_store::planted!("drop") => continue,
            (Errand::Send, false) => Change::Restart,
            (Errand::Offer, true) => Change::Disowned { why: why.to_owned() },
            (Errand::Offer, false) => continue,
        };
        link.mark(flying.id, change).await;
    }
    link.status.send_modify(|status| status.inflight = 0);
}

/// What is written down before anything is sent: the epoch of the broker's store.
async fn begin(
    link: &mut Link,
    ack: &semel_wire::frame::HelloAck,
    negotiated: semel_wire::features::Negotiated,
) -> Result<Serving, Ended> {
    if let Some(dedupe) = &negotiated.dedupe {
        link.set_max_age(dedupe.window).map_err(Ended::Fatal)?;
    }
    let (epoch, now) = (ack.store_epoch.clone(), link.outbox.mint().outbox_id());
    let window = negotiated.dedupe.map(|dedupe| dedupe.window);
    let server_time = Some((ack.server_time, link.clock.monotonic()));
    link.server_time = server_time;
    let seen = link.outbox.sqlite.write(move |tx| {
        link::retired_in_tx(tx)?;
        if let Some(window) = window {
            link::window_in_tx(tx, window)?;
        }
        link::epoch_seen_in_tx(tx, &epoch, now)
    });
    let link_row = seen.await.map_err(|error| {
        link.complain(&error, "the broker's epoch could not be stored");
        Ended::storage("the outbox cannot be written")
    })?;
    let extent = link.inbox.extent().await.map_err(|error| {
        link.complain(&error, "the inbox's place in history could not be read");
        Ended::storage("the inbox cannot be read")
    })?;
    let went_back = went_back(ack, [extent.as_ref(), link_row.history.as_ref()]);
    let (member_id, store_epoch) = (ack.member_id, ack.store_epoch.clone());
    link.status.send_modify(|status| {
        if let Some(loss) = status.lost_by.take() {
            status.reconnects[loss as usize] += 1;
        }
        status.member_id = Some(member_id);
        status.negotiated = Some(negotiated);
        status.store_epoch = Some(store_epoch);
        status.server_time = server_time;
    });
    link.say(LinkState::Connected, went_back);
    link.roster.begin();
    link.inbox.announce(EventKind::DaemonReconnect, &json!({}));
    tracing::info!(%member_id, session_epoch = ack.session_epoch, "connected to the broker");
    let now = link.clock.monotonic();
    Ok(Serving {
        store_epoch: ack.store_epoch.clone(),
        flight: Flight::default(),
        outgoing: VecDeque::new(),
        look: Look::File,
        paused_until: None,
        put_off: false,
        failures: 0,
        later: None,
        failing: Failing::default(),
        next_due: None,
        arrivals: mpsc::channel(1).0,
        catching_up: Some(Extent::after(extent.as_ref(), &ack.store_epoch)),
        untaken: None,
        offers: Offers::of(&link_row),
        link_row,
        resolving: None,
        given_up: Vec::new(),
        history_asked: false,
        history_unread: false,
        frame_bytes_max: link.status.borrow().frame_bytes_max(),
        resolve_next: Vec::new(),
        asked: HashMap::new(),
        next_request: 1,
        heard_at: now,
        progress: Progress::new(Arc::default(), now),
        left: mpsc::unbounded_channel().1,
        pinged_at: now,
    })
}

/// What is said of a broker whose store has not yet given out a number that has arrived here.
fn went_back(ack: &semel_wire::frame::HelloAck, known: [Option<&Extent>; 2]) -> Option<String> {
    let known = known.map(|extent| Extent::after(extent, &ack.store_epoch));
    let newest = known.into_iter().max().unwrap_or(0);
    if newest < ack.next_seq {
        return None;
    }
    let words = format!(
        "the broker's store is older than a message that arrived here (message {newest}, the next \
         one is {}): it was restored without semel broker restore or new-epoch",
        ack.next_seq
    );
    tracing::error!("{words}");
    Some(words)
}

async fn run(
    link: &mut Link,
    serving: &mut Serving,
    frames: &mut mpsc::Receiver<Heard>,
    outgoing: &mpsc::Sender<FromDaemon>,
    on_disk: &mut mpsc::Receiver<Stored>,
    stop: &mut watch::Receiver<bool>,
) -> Ended {
    // Before anything is sent: what is too old to be judged must not go out.
    link.expire(|_| false).await;
    serving.ask_history(link);
    serving.resolve(link, None, Vec::new(), Vec::new()).await;
    let mut settles = Some(Box::pin(tokio::time::sleep(ROSTER_SETTLES)));
    loop {
        serving.fill(link).await;
        serving.hand_over(outgoing);
        let tick = serving.next_tick(link);
        let step = tokio::select! {
            permit = outgoing.reserve(), if !serving.outgoing.is_empty() => {
                match (permit, serving.outgoing.pop_front()) {
                    (Ok(permit), Some(frame)) => {
                        permit.send(frame);
                        Ok(())
                    }
                    (Ok(_), None) => Ok(()),
                    (Err(_), _) => Err(gone(Loss::Gone, "the connection is gone")),
                }
            }
            frame = frames.recv() => match frame {
                Some(frame) => serving.heard_all(link, frame, frames).await,
                None => Err(gone(Loss::Gone, "the connection is gone")),
            },
            stored = on_disk.recv() => match stored {
                Some(stored) => {
                    serving.stored(link, stored);
                    Ok(())
                }
                None => Err(gone(Loss::Storage, "the inbox cannot be written")),
            },
            () = link.outbox.fresh.wake.notified() => {
                // What was committed with it goes along.
                tokio::task::yield_now().await;
                serving.look(Look::Fresh);
                Ok(())
            }
            () = link.outbox.fresh.look.notified() => {
                serving.look(Look::File);
                Ok(())
            }
            Some(ids) = link.settled.recv() => {
                serving.settled(link, ids).await;
                Ok(())
            }
            Some(command) = link.commands.recv() => {
                serving.obey(link, command).await;
                Ok(())
            }
            () = async { if let Some(settles) = &mut settles { settles.await } },
                if settles.is_some() =>
            {
                settles = None;
                link.roster.settle();
                Ok(())
            }
            () = tokio::time::sleep(tick) => serving.tick(link).await,
            () = stopped(stop) => Err(Ended::Stopped),
        };
        if let Err(ended) = step {
            return ended;
        }
    }
}

/// Rides along with the next commit: the inbox says itself how far it goes, and this only whether
/// that was further once.
fn remember_history(link: &Link, extent: Extent) {
    let ride = link.outbox.sqlite.ride(move |tx| link::history_in_tx(tx, &extent));
    if let Err(error) = ride {
        link.complain(&error, "the inbox's place in history could not be stored");
    }
}

fn gone(loss: Loss, why: &str) -> Ended {
    let reach = match loss {
        Loss::Gone | Loss::Closed | Loss::Protocol | Loss::Unread => Reach::Answered,
        Loss::Silent | Loss::Storage => Reach::Silent,
    };
    Ended::Again { why: why.to_owned(), loss, reach }
}

impl Serving {
    /// Gives the writer what it has room for.
    fn hand_over(&mut self, outgoing: &mpsc::Sender<FromDaemon>) {
        while !self.outgoing.is_empty()
            && let Ok(permit) = outgoing.try_reserve()
            && let Some(frame) = self.outgoing.pop_front()
        {
            permit.send(frame);
        }
    }

    fn pause(&mut self, until: Duration) {
        self.paused_until = Some(self.paused_until.map_or(until, |paused| paused.max(until)));
        self.look(Look::Fresh);
    }

    fn request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    /// Asks for the next page, unless there is no room for it or it was asked for.
    fn ask_history(&mut self, link: &Link) {
        let wanted = !self.history_asked && !self.history_unread && !link.inbox.is_full();
        if let (Some(after_seq), true) = (self.catching_up, wanted) {
            let request_id = self.request();
            let ask = HistoryRequest { request_id, after_seq, limit: HISTORY_PAGE };
            self.outgoing.push_back(FromDaemon::HistoryRequest(ask));
            self.history_asked = true;
        }
    }

    /// What is on disk now may be due again, or is to be asked about.
    async fn settled(&mut self, link: &mut Link, ids: Vec<Settled>) {
        if ids.iter().any(|(_, returns)| *returns) {
            self.look(Look::File);
        }
        link.settle(ids);
        if self.resolving.is_none() && self.given_up_on_disk(link) {
            self.resolve(link, None, Vec::new(), Vec::new()).await;
        }
    }

    /// Whether the broker is to be asked about what was given up: not before the file says so of
    /// each of them.
    fn given_up_on_disk(&mut self, link: &Link) -> bool {
        let on_disk = !self.given_up.iter().any(|id| link.unsettled.contains_key(id));
        on_disk && !std::mem::take(&mut self.given_up).is_empty()
    }

    /// Asks about the next page of rows whose fate is unknown.
    async fn resolve(
        &mut self,
        link: &mut Link,
        after: Option<OutboxId>,
        replies: Vec<oneshot::Sender<bool>>,
        before: Vec<OutboxId>,
    ) {
        let read = link
            .outbox
            .sqlite
            .read(move |connection| claim::unknown(connection, after, RESOLVE_MAX));
        let page = match read.await {
            Ok((page, unreadable)) => {
                if unreadable > 0 {
                    tracing::error!(
                        unreadable,
                        "the outbox is damaged: unknown rows are not resolved"
                    );
                }
                page
            }
            Err(error) => {
                // Those who wait for the next round would wait for one that never begins.
                self.resolve_next.clear();
                return link.complain(&error, "unknown rows could not be read");
            }
        };
        if page.is_empty() {
            self.resolving = None;
            for reply in replies {
                link.tell_when_settled(before.clone(), reply);
            }
            let next = std::mem::take(&mut self.resolve_next);
            if self.given_up_on_disk(link) || !next.is_empty() {
                Box::pin(self.resolve(link, None, next, Vec::new())).await;
            }
            return;
        }
        let request_id = self.request();
        let items = page.iter().map(|row| ResolveItem {
            client_message_id: row.client_message_id.clone(),
            request_fingerprint: row.request_fingerprint,
            // A time that cannot be said would end the connection, each time.
            enqueued_at: UnixMs(row.enqueued_at.0.clamp(0, INTEGER_MAX)),
        });
        let resolve = Resolve { request_id, items: items.collect() };
        self.outgoing.push_back(FromDaemon::Resolve(resolve));
        self.resolving = Some(Resolving { request_id, page, replies, before });
    }

    async fn obey(&mut self, link: &mut Link, command: Command) {
        match command {
            Command::GiveUp { id, why, reply } => {
                let free = !self.flight.contains(id);
                if free {
                    // It may have been handed over.
                    self.look(Look::File);
                    link.mark(id, Change::Expired { why }).await;
                    link.tell_when_settled(vec![id], reply);
                } else {
                    let _ = reply.send(false);
                }
            }
            Command::Resolve { reply } => match &self.resolving {
                // What died since is asked about in a round of its own.
                Some(_) => self.resolve_next.push(reply),
                None => self.resolve(link, None, vec![reply], Vec::new()).await,
            },
            Command::Ask { ask, taken } => {
                self.asked.retain(|_, reply| !reply.is_closed());
                let (reply, answer) = oneshot::channel();
                // Whoever asks and waits no longer asks nothing.
                if taken.send(answer).is_ok() {
                    self.ask(ask, reply);
                }
            }
        }
    }

    /// Puts a question to the broker, if it can read it: at one that it cannot it would close.
    fn ask(&mut self, ask: Ask, reply: oneshot::Sender<FromBroker>) {
        let request_id = self.request();
        let frame = match ask {
            Ask::QueueTake { queue, max, lease_ms } => {
                FromDaemon::QueueTake(QueueTake { request_id, queue, max, lease_ms })
            }
            Ask::QueueAck { queue, seqs } => {
                FromDaemon::QueueAck(QueueAck { request_id, queue, seqs })
            }
            Ask::Presence { members } => {
                FromDaemon::PresenceRequest(PresenceRequest { request_id, members })
            }
        };
        if let Err(refusal) = FromDaemon::decode(frame.encode().as_bytes(), self.frame_bytes_max) {
            let (code, detail) = (refusal.code.as_str().to_owned(), refusal.to_string());
            let failed = RequestFailed { request_id, code, detail };
            let _ = reply.send(FromBroker::RequestFailed(failed));
            return;
        }
        self.asked.insert(request_id, reply);
        self.outgoing.push_back(frame);
    }

    /// What is in the inbox now: the broker is told, and history goes on.
    fn stored(&mut self, link: &Link, stored: Stored) {
        match stored {
            Stored::Pushed { acked, extent } => {
                self.outgoing.push_back(FromDaemon::Ack(Ack { seq: acked }));
                if let Some(extent) = extent {
                    remember_history(link, extent);
                }
            }
            Stored::History { next_after_seq, extent } => {
                remember_history(link, extent);
                self.catching_up = next_after_seq;
                self.ask_history(link);
            }
        }
    }

    fn next_tick(&mut self, link: &Link) -> Duration {
        while let Ok((count, at)) = self.left.try_recv() {
            self.flight.left(count, at);
        }
        let now = link.clock.monotonic();
        let times = [
            Some(self.pinged_at + PING_INTERVAL),
            Some(link.expired_at + link.options.expire_interval),
            self.paused_until,
            self.next_due.filter(|_| self.flight.len() < link.options.window),
            // When it has left is looked at then.
            (self.flight.len() > 0)
                .then(|| self.flight.waiting_since().unwrap_or(now) + link.options.answer_timeout),
        ];
        let next = times.into_iter().flatten().min().unwrap_or(now + PING_INTERVAL);
        // Never busy: what is overdue was just looked at.
        next.saturating_sub(now).max(Duration::from_millis(1))
    }

    async fn tick(&mut self, link: &mut Link) -> Result<(), Ended> {
        let now = link.clock.monotonic();
        let limit = link.options.answer_timeout;
        if self.flight.waiting_since().is_some_and(|since| now.saturating_sub(since) >= limit) {
            // Two attempts of one id are never open on one connection (mesh.md §10).
            return Err(gone(Loss::Silent, "a send was not answered in time"));
        }
        // Who takes what we say is there, though our question is still behind it.
        let heard_at = self.heard_at.max(self.progress.look(now).unwrap_or_default());
        if now.saturating_sub(heard_at) >= SILENCE_MAX {
            return Err(gone(Loss::Silent, "the broker was silent for too long"));
        }
        if now.saturating_sub(self.pinged_at) >= PING_INTERVAL {
            self.pinged_at = now;
            // There may be room in the inbox again.
            self.ask_history(link);
            let id = self.request();
            self.outgoing.push_back(FromDaemon::Ping(Ping { id }));
        }
        if self.paused_until.is_some_and(|until| until <= now) {
            // Also while something is put off: a pause that is over is nothing to wake up for.
            self.paused_until = None;
        }
        if self.next_due.is_some_and(|due| due <= now) {
            self.next_due = None;
            self.look(Look::File);
        }
        if now.saturating_sub(link.expired_at) >= link.options.expire_interval {
            let flight = &self.flight;
            link.expire(|id| flight.contains(id)).await;
            self.look(Look::File);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! One connection's life. A single task owns everything that is known of it; a reader and a writer
//! move frames, and arrivals are stored beside it. Whatever ends, the connection does, and what was
//! on the wire goes back (traps 1 and 12).

mod fill;
mod frames;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use semel_core::id::OutboxId;
use semel_wire::frame::{
    Ack, FromBroker, FromDaemon, HistoryRequest, Ping, QueueAck, QueueTake, Resolve, ResolveItem,
};
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use self::fill::Look;
use super::arrivals::{self, Arrival, Stored};
use super::connect::Connection;
use super::flight::{Errand, Failing, Flight};
use super::{Ask, Command, Ended, Link, LinkState, Loss, stopped};
use crate::limits::{
    HISTORY_PAGE, INBOUND_MAX, OUTBOUND_MAX, PING_INTERVAL, RESOLVE_MAX, SILENCE_MAX, WRITE_TIMEOUT,
};
use crate::marks::Change;
use crate::store::claim::{self, Unknown};
use crate::store::event::EventKind;
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
    failing: Failing,
    /// When a row that waits on its own is due.
    next_due: Option<Duration>,
    arrivals: mpsc::Sender<Arrival>,
    /// Where the catch-up with history goes on; nothing when it is finished.
    catching_up: Option<i64>,
    /// Pushed and stored while history was caught up with.
    pushed_to: i64,
    offers: Offers,
    resolving: Option<Resolving>,
    /// Who waits for the next round of resolving.
    resolve_next: Vec<oneshot::Sender<bool>>,
    asked: HashMap<u64, oneshot::Sender<FromBroker>>,
    next_request: u64,
    heard_at: Duration,
    pinged_at: Duration,
    expired_at: Duration,
}

/// Done rows that are offered again to a broker that was restored, a page at a time.
struct Offers {
    /// Those after this id come next; nothing when all were offered.
    after: Option<String>,
    page_last: Option<OutboxId>,
    outstanding: usize,
    again: bool,
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
    let Connection { sink, stream, ack, negotiated, nonce, early } = connection;
    let mut serving = match begin(link, &ack, negotiated, nonce).await {
        Ok(serving) => serving,
        Err(ended) => return ended,
    };
    let (arrivals, arriving) = mpsc::channel(INBOUND_MAX);
    serving.arrivals = arrivals;
    let (stored, mut on_disk) = mpsc::channel(INBOUND_MAX);
    let storing = tokio::spawn(arrivals::run(std::sync::Arc::clone(&link.inbox), arriving, stored));
    let (incoming, mut frames) = mpsc::channel(INBOUND_MAX);
    let reading = tokio::spawn(read(stream, incoming, early));
    let (outgoing, writing) = mpsc::channel(OUTBOUND_MAX);
    let writing = tokio::spawn(write(sink, writing));
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
    for flying in serving.flight.crash() {
        if flying.errand == Errand::Send && !cfg!(semel_plant = "drop") {
            link.mark(flying.id, Change::Restart).await;
        }
    }
    link.status.send_modify(|status| status.inflight = 0);
    ended
}

/// What is written down before anything is sent: the epoch of the broker's store.
async fn begin(
    link: &mut Link,
    ack: &semel_wire::frame::HelloAck,
    negotiated: semel_wire::features::Negotiated,
    nonce: semel_core::hex::Hex<16>,
) -> Result<Serving, Ended> {
    if let Some(dedupe) = &negotiated.dedupe {
        link.set_max_age(dedupe.window).map_err(Ended::Fatal)?;
    }
    link.remember(nonce);
    let (epoch, now) = (ack.store_epoch.clone(), link.outbox.mint().outbox_id());
    let seen = link.outbox.sqlite.write(move |tx| {
        link::retired_in_tx(tx)?;
        link::epoch_seen_in_tx(tx, &epoch, now)
    });
    let link_row = seen.await.map_err(|error| {
        link.complain(&error, "the broker's epoch could not be written down");
        Ended::Again {
            worked: false,
            why: "the outbox cannot be written".to_owned(),
            loss: Loss::Storage,
        }
    })?;
    let (member_id, store_epoch) = (ack.member_id, ack.store_epoch.clone());
    link.status.send_modify(|status| {
        if let Some(loss) = status.lost_by.take() {
            status.reconnects[loss as usize] += 1;
        }
        status.member_id = Some(member_id);
        status.negotiated = Some(negotiated);
        status.store_epoch = Some(store_epoch);
    });
    link.say(LinkState::Connected, None);
    link.roster.begin();
    link.inbox.announce(EventKind::DaemonReconnect, &json!({}));
    tracing::info!(%member_id, session_epoch = ack.session_epoch, "connected to the broker");
    let same_history = link_row.history_epoch.as_deref() == Some(ack.store_epoch.as_str());
    let now = link.clock.monotonic();
    let is_offered = link_row.offered_to >= link_row.epoch_floor;
    Ok(Serving {
        store_epoch: ack.store_epoch.clone(),
        flight: Flight::default(),
        outgoing: VecDeque::new(),
        look: Look::File,
        paused_until: None,
        put_off: false,
        failures: 0,
        failing: Failing::default(),
        next_due: None,
        arrivals: mpsc::channel(1).0,
        catching_up: Some(if same_history { link_row.history_seq } else { 0 }),
        pushed_to: 0,
        offers: Offers {
            after: (!is_offered).then(|| link_row.offered_to.clone()),
            page_last: None,
            outstanding: 0,
            again: false,
        },
        link_row,
        resolving: None,
        resolve_next: Vec::new(),
        asked: HashMap::new(),
        next_request: 1,
        heard_at: now,
        pinged_at: now,
        expired_at: now,
    })
}

async fn run(
    link: &mut Link,
    serving: &mut Serving,
    frames: &mut mpsc::Receiver<FromBroker>,
    outgoing: &mpsc::Sender<FromDaemon>,
    on_disk: &mut mpsc::Receiver<Stored>,
    stop: &mut watch::Receiver<bool>,
) -> Ended {
    // Before anything is sent: what is too old to be judged must not go out.
    link.expire(|_| false).await;
    serving.ask_history();
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
                if ids.iter().any(|(_, returns)| *returns) {
                    serving.look(Look::File);
                }
                link.settle(ids);
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

fn gone(loss: Loss, why: &str) -> Ended {
    Ended::Again { worked: true, why: why.to_owned(), loss }
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

    fn ask_history(&mut self) {
        if let Some(after_seq) = self.catching_up {
            let request_id = self.request();
            let ask = HistoryRequest { request_id, after_seq, limit: HISTORY_PAGE };
            self.outgoing.push_back(FromDaemon::HistoryRequest(ask));
        }
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
            Ok(page) => page,
            Err(error) => return link.complain(&error, "unknown rows could not be read"),
        };
        if page.is_empty() {
            self.resolving = None;
            for reply in replies {
                link.tell_when_settled(before.clone(), reply);
            }
            let next = std::mem::take(&mut self.resolve_next);
            if !next.is_empty() {
                Box::pin(self.resolve(link, None, next, Vec::new())).await;
            }
            return;
        }
        let request_id = self.request();
        let items = page.iter().map(|row| ResolveItem {
            client_message_id: row.client_message_id.clone(),
            request_fingerprint: row.request_fingerprint,
            enqueued_at: row.enqueued_at,
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
            Command::Ask { ask, reply } => {
                let request_id = self.request();
                self.asked.insert(request_id, reply);
                self.asked.retain(|_, reply| !reply.is_closed());
                self.outgoing.push_back(match ask {
                    Ask::QueueTake { queue, max, lease_ms } => {
                        FromDaemon::QueueTake(QueueTake { request_id, queue, max, lease_ms })
                    }
                    Ask::QueueAck { queue, seqs } => {
                        FromDaemon::QueueAck(QueueAck { request_id, queue, seqs })
                    }
                });
            }
        }
    }

    /// What is in the inbox now: the broker is told, and history goes on.
    fn stored(&mut self, link: &Link, stored: Stored) {
        match stored {
            Stored::Pushed(seq) => {
                self.outgoing.push_back(FromDaemon::Ack(Ack { seq }));
                self.pushed_to = self.pushed_to.max(seq);
                if self.catching_up.is_none() {
                    self.remember_history(link, seq);
                }
            }
            Stored::History { last_seq, next_after_seq } => match next_after_seq {
                Some(after) => {
                    self.remember_history(link, after);
                    self.catching_up = Some(after);
                    self.ask_history();
                }
                None => {
                    self.catching_up = None;
                    let seq = last_seq.unwrap_or(0).max(self.pushed_to);
                    self.remember_history(link, seq);
                }
            },
        }
    }

    /// Rides along with the next commit: at worst, some messages are asked for twice.
    fn remember_history(&self, link: &Link, seq: i64) {
        let epoch = self.store_epoch.clone();
        let ride = link.outbox.sqlite.ride(move |tx| link::history_in_tx(tx, &epoch, seq));
        if let Err(error) = ride {
            link.complain(&error, "how far the inbox goes was not written down");
        }
    }

    fn next_tick(&mut self, link: &Link) -> Duration {
        let now = link.clock.monotonic();
        let times = [
            Some(self.pinged_at + PING_INTERVAL),
            Some(self.expired_at + link.options.expire_interval),
            self.paused_until,
            self.next_due.filter(|_| self.flight.len() < link.options.window),
            self.flight.oldest().map(|sent_at| sent_at + link.options.answer_timeout),
        ];
        let next = times.into_iter().flatten().min().unwrap_or(now + PING_INTERVAL);
        // Never busy: what is overdue was just looked at.
        next.saturating_sub(now).max(Duration::from_millis(1))
    }

    async fn tick(&mut self, link: &mut Link) -> Result<(), Ended> {
        let now = link.clock.monotonic();
        let limit = link.options.answer_timeout;
        if self.flight.oldest().is_some_and(|sent_at| now.saturating_sub(sent_at) >= limit) {
            // Two attempts of one id are never open on one connection (mesh.md §10).
            return Err(gone(Loss::Silent, "a send was not answered in time"));
        }
        if now.saturating_sub(self.heard_at) >= SILENCE_MAX {
            return Err(gone(Loss::Silent, "the broker said nothing for too long"));
        }
        if now.saturating_sub(self.pinged_at) >= PING_INTERVAL {
            self.pinged_at = now;
            let id = self.request();
            self.outgoing.push_back(FromDaemon::Ping(Ping { id }));
        }
        if self.next_due.is_some_and(|due| due <= now) {
            self.next_due = None;
            self.look(Look::File);
        }
        if now.saturating_sub(self.expired_at) >= link.options.expire_interval {
            self.expired_at = now;
            let flight = &self.flight;
            link.expire(|id| flight.contains(id)).await;
            self.look(Look::File);
        }
        Ok(())
    }
}

type Sink = SplitSink<tokio_tungstenite::WebSocketStream<Box<dyn super::connect::Stream>>, Message>;
type Source = SplitStream<tokio_tungstenite::WebSocketStream<Box<dyn super::connect::Stream>>>;

/// Hands frames over in the order in which they came, until either end is gone.
async fn read(mut stream: Source, incoming: mpsc::Sender<FromBroker>, early: Vec<FromBroker>) {
    for frame in early {
        if incoming.send(frame).await.is_err() {
            return;
        }
    }
    while let Some(Ok(message)) = stream.next().await {
        let Message::Text(text) = message else { continue };
        match FromBroker::decode(text.as_bytes(), super::connect::FRAME_BYTES_MAX) {
            Ok(frame) => {
                if incoming.send(frame).await.is_err() {
                    return;
                }
            }
            Err(refusal) => {
                tracing::error!(%refusal, "the broker sent a frame that is not understood");
                return;
            }
        }
    }
}

/// The one writer; says goodbye when nothing more is to come.
async fn write(mut sink: Sink, mut outgoing: mpsc::Receiver<FromDaemon>) {
    while let Some(frame) = outgoing.recv().await {
        let message = Message::Text(frame.encode().into());
        let written = if outgoing.is_empty() {
            tokio::time::timeout(WRITE_TIMEOUT, sink.send(message)).await
        } else {
            tokio::time::timeout(WRITE_TIMEOUT, sink.feed(message)).await
        };
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
    let bye = CloseFrame { code: 1000.into(), reason: "".into() };
    let _ = tokio::time::timeout(WRITE_TIMEOUT, sink.send(Message::Close(Some(bye)))).await;
}

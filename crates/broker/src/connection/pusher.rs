//! What waits for a member goes out in the order of history, a window at a time; what is not
//! acknowledged in time goes out again (broker.md, "Push"). What is committed while nothing else
//! waits is handed over in memory, where no other broker can have written in between.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use semel_core::fingerprint::BodyHash;
use semel_core::hex::Hex;
use semel_store::StoreError;
use semel_wire::features::ConnectionPolicy;
use semel_wire::frame::{self, FromBroker, Push, fitting};
use semel_wire::limits::frame_bytes_max;
use tokio::sync::mpsc;

use super::{Connection, End};
use crate::limits::{DELIVERIES_MAX, END_AGAIN, PUSH_WINDOW};
use crate::store::{DAMAGED, Delivery, Messages};

/// Why a delivery is set aside.
const NO_KEY: &str = "the sender has no key";

/// What was sent and not acknowledged, and from where to go on.
struct Window {
    /// Everything up to here was sent.
    sent: i64,
    /// Sent, with the time of sending.
    unacked: VecDeque<(i64, Duration)>,
}

pub(super) async fn run(connection: &Connection, mut acks: mpsc::Receiver<i64>) -> End {
    let mut window = Window { sent: 0, unacked: VecDeque::new() };
    let mut ending = Ending { up_to: None, under_way: None };
    let redeliver_after = connection.broker.timings.redeliver_after;
    loop {
        // Also when something else happens all the time, and the timer never comes.
        if window.redeliver(now(connection), redeliver_after) {
            connection.registration.peer().fresh.leave();
        }
        ending.begin(connection);
        match push(connection, &mut window).await {
            Ok(Pushed::All) => {}
            Ok(Pushed::More) => continue,
            Err(end) => return end,
        }
        tokio::select! {
            () = connection.registration.peer().wake.notified() => {}
            ack = acks.recv() => match ack {
                Some(seq) => acknowledge(&mut window, &mut ending, &mut acks, seq),
                None => return End::Gone,
            },
            ended = ending.ended() => match ended {
                Ok(ended) => drop(connection.broker.pipeline.metrics().acks.inc_by(ended)),
                // The store holds what its receiver has, which is harmless.
                Err(error) => {
                    tracing::warn!(error = error.chain(), "deliveries could not be ended");
                    tokio::time::sleep(END_AGAIN).await;
                }
            },
            () = tokio::time::sleep(redeliver_after) => {}
        }
    }
}

fn now(connection: &Connection) -> Duration {
    connection.broker.clock.monotonic()
}

/// Whether something is left that the window has room for.
enum Pushed {
    All,
    More,
}

async fn push(connection: &Connection, window: &mut Window) -> Result<Pushed, End> {
    let room = PUSH_WINDOW.saturating_sub(window.unacked.len());
    let limit = i64::try_from(room).unwrap_or(0).min(DELIVERIES_MAX);
    if limit == 0 {
        return Ok(Pushed::All);
    }
    let fresh = &connection.registration.peer().fresh;
    if let Some(taken) = fresh.take(usize::try_from(limit).unwrap_or(0)) {
        let news = taken.rows.into_iter().filter(|(seq, _)| *seq > window.sent);
        let frames = news.map(|(_, delivery)| Arc::unwrap_or_clone(delivery)).collect();
        send(connection, window, frames).await?;
        return Ok(if taken.more { Pushed::More } else { Pushed::All });
    }
    if connection.broker.store.is_alone() {
        fresh.follow();
    }
    let (mesh, recipient) = (&connection.mesh, connection.session.member_id.as_uuid());
    let store = &connection.broker.store;
    let waiting = match store.deliveries(mesh.mesh_id, recipient, window.sent, limit).await {
        Ok(waiting) => waiting,
        Err(error) => {
            // The next wake-up or the timer tries again.
            fresh.leave();
            tracing::warn!(error = error.chain(), "deliveries could not be read");
            return Ok(Pushed::All);
        }
    };
    let full = i64::try_from(waiting.count()).unwrap_or(i64::MAX) == limit;
    let Messages { whole, damaged } = waiting;
    let seqs: Vec<i64> = whole.iter().map(|delivery| delivery.seq).collect();
    let mut frames: Vec<frame::Delivery> = whole.into_iter().filter_map(on_the_wire).collect();
    for (unsaid, why) in [(unsaid(&seqs, &frames), NO_KEY), (damaged, DAMAGED)] {
        if let (Some(first), false) = (unsaid.first(), set_aside(connection, &unsaid, why).await) {
            // An acknowledgement of what comes after it would end it.
            frames.retain(|delivery| delivery.seq < *first);
            fresh.leave();
        }
    }
    if full {
        fresh.leave();
    }
    send(connection, window, frames).await?;
    Ok(if full { Pushed::More } else { Pushed::All })
}

async fn send(
    connection: &Connection,
    window: &mut Window,
    mut frames: Vec<frame::Delivery>,
) -> Result<(), End> {
    let sent_at = now(connection);
    let bytes_max = frame_bytes_max(connection.mesh.inline_bytes as usize);
    while !frames.is_empty() {
        let rest = frames.split_off(fitting(&frames, bytes_max).max(1));
        let deliveries = std::mem::replace(&mut frames, rest);
        window.unacked.extend(deliveries.iter().map(|delivery| (delivery.seq, sent_at)));
        window.sent = deliveries.last().map_or(window.sent, |delivery| delivery.seq);
        connection.broker.pipeline.metrics().pushes.inc_by(deliveries.len() as u64);
        let push = FromBroker::Push(Push { deliveries });
        connection.outbound.send(push).await.map_err(|_| End::Gone)?;
    }
    Ok(())
}

/// What was read and cannot be said.
fn unsaid(seqs: &[i64], frames: &[frame::Delivery]) -> Vec<i64> {
    let said: HashSet<i64> = frames.iter().map(|delivery| delivery.seq).collect();
    seqs.iter().copied().filter(|seq| !said.contains(seq)).collect()
}

/// Whether these are out of the way.
async fn set_aside(connection: &Connection, seqs: &[i64], why: &'static str) -> bool {
    if seqs.is_empty() {
        return true;
    }
    let (mesh_id, member_id) = (connection.mesh.mesh_id, connection.session.member_id);
    let (store, now) = (&connection.broker.store, connection.broker.clock.wall());
    let recipient = member_id.as_uuid();
    match store.deliveries_set_aside(mesh_id, recipient, seqs, why, now).await {
        Ok(moved) => {
            connection.broker.pipeline.metrics().set_aside.inc_by(moved);
            tracing::error!(%mesh_id, %member_id, moved, "deliveries were set aside: {why}");
            true
        }
        Err(error) => {
            tracing::warn!(error = error.chain(), "deliveries could not be set aside");
            false
        }
    }
}

/// Acknowledgements are cumulative, so of those that wait only the last counts. What it frees is
/// pushed at once: that the store forgets it is nothing to wait for.
fn acknowledge(
    window: &mut Window,
    ending: &mut Ending<'_>,
    acks: &mut mpsc::Receiver<i64>,
    mut seq: i64,
) {
    while let Ok(later) = acks.try_recv() {
        seq = seq.max(later);
    }
    // What was never sent cannot have arrived.
    let seq = seq.min(window.sent);
    window.unacked.retain(|(sent, _)| *sent > seq);
    ending.up_to = ending.up_to.max(Some(seq));
}

/// Deliveries that arrived and that the store is told to forget, once at a time.
struct Ending<'a> {
    /// Up to here, once nothing is under way.
    up_to: Option<i64>,
    under_way: Option<(i64, BoxFuture<'a, Result<u64, StoreError>>)>,
}

impl<'a> Ending<'a> {
    fn begin(&mut self, connection: &'a Connection) {
        if self.under_way.is_none()
            && let Some(seq) = self.up_to.take()
        {
            self.under_way = Some((seq, Box::pin(done(connection, seq))));
        }
    }

    /// Comes back when what is under way has ended; never when nothing is.
    async fn ended(&mut self) -> Result<u64, StoreError> {
        let Some((seq, under_way)) = &mut self.under_way else {
            return std::future::pending().await;
        };
        let (seq, ended) = (*seq, under_way.await);
        self.under_way = None;
        if ended.is_err() {
            // The next round tries again.
            self.up_to = self.up_to.max(Some(seq));
        }
        ended
    }
}

/// Where the member's other daemons get everything too, they are waited for.
async fn done(connection: &Connection, seq: i64) -> Result<u64, StoreError> {
    let (broker, session) = (&connection.broker, &connection.session);
    let mesh_id = connection.mesh.mesh_id;
    match connection.mesh.connection_policy {
        ConnectionPolicy::AllowConcurrent => {
            broker.store.deliveries_acked(mesh_id, session, seq, broker.pulse()).await
        }
        ConnectionPolicy::PreferNewest | ConnectionPolicy::PreferOldest => {
            broker.store.deliveries_done_along(mesh_id, session.member_id.as_uuid(), seq).await
        }
    }
}

impl Window {
    /// Whether everything that is not acknowledged is to be read and sent again.
    fn redeliver(&mut self, now: Duration, after: Duration) -> bool {
        let oldest = self.unacked.front();
        let overdue = oldest.filter(|(_, sent_at)| now.saturating_sub(*sent_at) >= after);
        if let Some((seq, _)) = overdue {
            self.sent = seq - 1;
            self.unacked.clear();
            return true;
        }
        false
    }
}

/// A delivery as a frame; nothing for one that cannot be said, which stays in the store.
pub(super) fn on_the_wire(delivery: Delivery) -> Option<frame::Delivery> {
    let sender_pubkey = Hex::parse(&delivery.sender_pubkey).ok()?;
    Some(frame::Delivery {
        seq: delivery.seq,
        broker_message_id: delivery.broker_message_id,
        client_message_id: delivery.client_message_id,
        sender_member_id: delivery.sender_member_id,
        sender_pubkey,
        sender_name: delivery.sender_name,
        destination_kind: delivery.destination.kind(),
        destination_ref: delivery.destination.reference().to_owned(),
        reply_to_id: delivery.reply_to_id,
        priority: delivery.priority,
        meta: delivery.meta,
        body: delivery.body,
        request_fingerprint: delivery.request_fingerprint,
        body_commitment: delivery.body_commitment.map(BodyHash),
        accepted_at: delivery.accepted_at,
    })
}

//! What waits for a member goes out in the order of history, a window at a time; what is not
//! acknowledged in time goes out again (broker.md, "Push"). What is committed while nothing else
//! waits is handed over in memory, where no other broker can have written in between.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use semel_core::limits::META_BYTES_MAX;
use semel_store::StoreError;
use semel_wire::features::ConnectionPolicy;
use semel_wire::frame::Written;
use semel_wire::limits::{frame_bytes_max, message_bytes_max};
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};

use super::{Connection, End};
use crate::hub::Peer;
use crate::limits::{DELIVERIES_MAX, END_AGAIN, PUSH_WINDOW};
use crate::store::{Acked, Arrived, Asked, DAMAGED};

/// Why a delivery is set aside.
const NO_KEY: &str = "the sender has no key";

/// What was sent and not acknowledged, and from where to go on.
#[derive(Default)]
struct Window {
    /// Everything up to here was sent.
    sent: i64,
    /// How many that were.
    pushed: usize,
    /// Sent, with the time of sending.
    unacked: VecDeque<(i64, Duration)>,
    /// When something sent was last seen unwritten.
    unwritten_at: Duration,
    /// Bytes of a delivery, about, and those that the next push needs; zero unless it needs more
    /// than there were.
    bytes_each: usize,
    held_up: usize,
}

pub(super) async fn run(connection: &Connection, mut acks: mpsc::Receiver<i64>) -> End {
    // Until one was sent they may all be as large as can be.
    let bytes_each = message_bytes_max(connection.mesh.inline_bytes as usize, META_BYTES_MAX);
    let mut window = Window { bytes_each, ..Window::default() };
    let mut ending = Ending { after: None, up_to: None, rows: 0, under_way: None };
    let (peer, redeliver_after) =
        (connection.registration.peer(), connection.broker.timings.redeliver_after);
    // Whether something may wait, and until when it has to.
    let (mut is_due, mut pause) = (true, Pause::default());
    loop {
        // Also when something else happens all the time, and the timer never comes.
        if connection.outbound.has_pushes() {
            window.unwritten_at = now(connection);
        } else if window.redeliver(now(connection), redeliver_after) {
            peer.fresh.leave();
            is_due = true;
        }
        ending.begin(connection);
        if is_due && pause.running.is_none() && window.held_up == 0 {
            peer.looks();
            let before = window.pushed;
            match push(connection, &mut window).await {
                Ok(Pushed::All) => is_due = false,
                Ok(Pushed::More) => continue,
                Ok(Pushed::Later) => {}
                Err(end) => return end,
            }
            pause.begin(peer, window.pushed - before);
        }
        tokio::select! {
            () = peer.wake.notified() => is_due = true,
            () = pause.over() => is_due |= peer.pause_over(),
            ack = acks.recv() => match ack {
                Some(seq) => acknowledge(&mut window, &mut ending, &mut acks, seq),
                None => return End::Gone,
            },
            ended = ending.ended() => match ended {
                Ok(ended) => drop(connection.broker.pipeline.metrics().acks.inc_by(ended)),
                // The store holds what its receiver has, which is harmless.
                Err(error) => {
                    tracing::warn!(error = error.chain(), "deliveries could not be ended");
                    sleep(END_AGAIN).await;
                }
            },
            () = connection.outbound.room(window.held_up), if window.held_up > 0 => {
                (is_due, window.held_up) = (true, 0);
            }
            () = sleep(redeliver_after) => is_due = true,
        }
    }
}

/// The time after a push in which what is committed is gathered for the next one.
#[derive(Default)]
struct Pause {
    running: Option<Pin<Box<Sleep>>>,
    /// How long the last one was.
    last: Option<Duration>,
}

impl Pause {
    /// So many were pushed; none after nothing.
    fn begin(&mut self, peer: &Peer, pushed: usize) {
        self.last = if pushed > 0 { peer.pause(self.last, pushed) } else { None };
        self.running = self.last.map(|pause| Box::pin(sleep(pause)));
    }

    /// Comes back when it is over; never when there is none.
    async fn over(&mut self) {
        match &mut self.running {
            Some(running) => running.await,
            None => std::future::pending().await,
        }
        self.running = None;
    }
}

fn now(connection: &Connection) -> Duration {
    connection.broker.clock.monotonic()
}

/// Whether something is left.
enum Pushed {
    /// Nothing.
    All,
    /// The window has room for it.
    More,
    /// It has not, or the store could not be asked: whatever happens next, it is tried again.
    Later,
}

async fn push(connection: &Connection, window: &mut Window) -> Result<Pushed, End> {
    let room = PUSH_WINDOW.saturating_sub(window.unacked.len());
    // No more is read than there is room for.
    let fits = connection.outbound.free_bytes().checked_div(window.bytes_each);
    let room = room.min(fits.unwrap_or(room).max(1));
    let limit = i64::try_from(room).unwrap_or(0).min(DELIVERIES_MAX);
    if limit == 0 || room == 0 {
        return Ok(Pushed::Later);
    }
    let fresh = &connection.registration.peer().fresh;
    if let Some(taken) = fresh.take(usize::try_from(limit).unwrap_or(0)) {
        let news = taken.rows.into_iter().filter(|(seq, _)| *seq > window.sent);
        if !send(connection, window, news.map(|(_, written)| written).collect())? {
            fresh.leave();
            return Ok(Pushed::Later);
        }
        return Ok(if taken.more { Pushed::More } else { Pushed::All });
    }
    let store = &connection.broker.store;
    if store.is_alone() {
        fresh.follow();
    }
    let recipient = connection.session.member_id.as_uuid();
    let asked = Asked { recipient, after_seq: window.sent, limit };
    let mut read = match connection.registration.deliverer().read(store, asked).await {
        Ok(read) => read,
        Err(error) => {
            fresh.leave();
            tracing::warn!(error = error.chain(), "deliveries could not be read");
            return Ok(Pushed::Later);
        }
    };
    let mut pushed = if read.more { Pushed::More } else { Pushed::All };
    for (unsaid, why) in [(read.unsaid, NO_KEY), (read.damaged, DAMAGED)] {
        if let (Some(first), false) = (unsaid.first(), set_aside(connection, &unsaid, why).await) {
            // An acknowledgement of what comes after it would end it.
            read.written.retain(|written| written.seq() < *first);
            pushed = Pushed::Later;
        }
    }
    if !send(connection, window, read.written)? {
        pushed = Pushed::Later;
    }
    if !matches!(pushed, Pushed::All) {
        fresh.leave();
    }
    Ok(pushed)
}

/// Whether there was room for all of them. What there was none for is read again.
fn send(
    connection: &Connection,
    window: &mut Window,
    written: Vec<Arc<Written>>,
) -> Result<bool, End> {
    let sent_at = now(connection);
    let bytes_max = frame_bytes_max(connection.mesh.inline_bytes as usize);
    let mut rest = written.as_slice();
    while !rest.is_empty() {
        let (some, later) = rest.split_at(Written::fitting(rest, bytes_max));
        let push = Written::push(some);
        let bytes = push.len();
        window.bytes_each = bytes / some.len().max(1);
        if !connection.outbound.push(push).map_err(|_| End::Gone)? {
            window.held_up = bytes;
            return Ok(false);
        }
        window.unacked.extend(some.iter().map(|written| (written.seq(), sent_at)));
        window.sent = some.last().map_or(window.sent, |written| written.seq());
        window.pushed += some.len();
        connection.broker.pipeline.metrics().pushes.inc_by(some.len() as u64);
        rest = later;
    }
    Ok(true)
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
    let before = window.unacked.len();
    // What waits is sent from the oldest on: nothing is before the first that was.
    let first = window.unacked.front().map(|(sent, _)| sent - 1);
    ending.after = ending.after.or(first);
    while window.unacked.pop_front_if(|(sent, _)| *sent <= seq).is_some() {}
    ending.up_to = ending.up_to.max(Some(seq));
    ending.rows += before - window.unacked.len();
}

/// Deliveries that arrived and that the store is told to forget, once at a time.
struct Ending<'a> {
    /// Up to here nothing is left; nothing before the first acknowledgement.
    after: Option<i64>,
    /// Up to here, once nothing is under way.
    up_to: Option<i64>,
    /// About how many these are.
    rows: usize,
    under_way: Option<(i64, BoxFuture<'a, Result<Acked, StoreError>>)>,
}

impl<'a> Ending<'a> {
    fn begin(&mut self, connection: &'a Connection) {
        if self.under_way.is_none()
            && let Some(seq) = self.up_to.take()
        {
            let rows = std::mem::take(&mut self.rows);
            let after = self.after.unwrap_or(0);
            self.under_way = Some((seq, Box::pin(done(connection, (after, seq), rows))));
        }
    }

    /// Comes back when what is under way has ended; never when nothing is.
    async fn ended(&mut self) -> Result<u64, StoreError> {
        let Some((seq, under_way)) = &mut self.under_way else {
            return std::future::pending().await;
        };
        let (seq, acked) = (*seq, under_way.await);
        self.under_way = None;
        match &acked {
            Ok(acked) => self.after = self.after.max(Some(acked.up_to)),
            // The next round tries again.
            Err(_) => self.up_to = self.up_to.max(Some(seq)),
        }
        acked.map(|acked| acked.ended)
    }
}

/// Where the member's other daemons get everything too, they are waited for.
async fn done(
    connection: &Connection,
    (after, seq): (i64, i64),
    rows: usize,
) -> Result<Acked, StoreError> {
    let (broker, session) = (&connection.broker, &connection.session);
    let mesh_id = connection.mesh.mesh_id;
    match connection.mesh.connection_policy {
        ConnectionPolicy::AllowConcurrent => {
            // A task of its own: nobody polls this while a push waits for its turn with the store,
            // and it must not hold the turn that all pushes wait for.
            let (broker, session, pulse) = (Arc::clone(broker), *session, broker.pulse());
            let acked = tokio::spawn(async move {
                broker.store.deliveries_acked(mesh_id, &session, (after, seq), pulse).await
            });
            acked.await.unwrap_or(Err(StoreError::Panicked))
        }
        ConnectionPolicy::PreferNewest | ConnectionPolicy::PreferOldest => {
            let arrived = Arrived { recipient: session.member_id.as_uuid(), after, seq };
            let ended =
                connection.registration.deliverer().end(&broker.store, arrived, rows).await?;
            Ok(Acked { up_to: seq, ended })
        }
    }
}

impl Window {
    /// Whether everything that is not acknowledged is to be read and sent again.
    fn redeliver(&mut self, now: Duration, after: Duration) -> bool {
        let oldest = self.unacked.front();
        let since = |sent_at: Duration| now.saturating_sub(sent_at.max(self.unwritten_at));
        let overdue = oldest.filter(|(_, sent_at)| since(*sent_at) >= after);
        if let Some((seq, _)) = overdue {
            self.sent = seq - 1;
            self.unacked.clear();
            return true;
        }
        false
    }
}

//! What waits to be written to one connection: bounded in frames, and in bytes where frames can be
//! large. Pushes and what a daemon asks for are counted, before anything is read for them; the
//! answers to sends, pings and reasons are small, and find room whatever else waits.
//!
//! The bytes of all connections together have a bound, too: so many daemons that do not read are
//! worth so much memory and no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_wire::frame::FromBroker;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use super::Outgoing;
use crate::limits::{OUTBOUND_BYTES_MAX, OUTBOUND_MAX, WRITE_TIMEOUT};

/// What waits, and what it holds until it is written.
pub(super) struct Queued {
    pub(super) outgoing: Outgoing,
    pub(super) held: Option<Held>,
}

/// Room among the bytes, of the connection and of all.
pub(super) struct Held {
    own: OwnedSemaphorePermit,
    all: OwnedSemaphorePermit,
    /// Pushes that are not written; one of them is this.
    pushes: Option<Arc<AtomicUsize>>,
}

impl Held {
    /// Gives back what was not needed.
    fn shrink(&mut self, bytes: usize) {
        for permit in [&mut self.own, &mut self.all] {
            let more = permit.num_permits().saturating_sub(bytes);
            drop(permit.split(more));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(pushes) = &self.pushes {
            pushes.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The end of the queue at which frames are put in.
#[derive(Clone)]
pub(super) struct Outbound {
    queue: mpsc::Sender<Queued>,
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    pushes: Arc<AtomicUsize>,
}

impl Outbound {
    /// A queue whose bytes count among these.
    pub(super) fn new(all: &Arc<Semaphore>) -> (Self, mpsc::Receiver<Queued>) {
        let (queue, written) = mpsc::channel(OUTBOUND_MAX);
        let own = Arc::new(Semaphore::new(OUTBOUND_BYTES_MAX));
        (Self { queue, own, all: Arc::clone(all), pushes: Arc::default() }, written)
    }

    /// Puts in something small, once there is room. `false` when the connection has ended.
    pub(super) async fn send(&self, frame: FromBroker) -> bool {
        self.queue.send(Queued { outgoing: frame.into(), held: None }).await.is_ok()
    }

    /// The same at once, or not at all.
    pub(super) fn try_send(&self, frame: FromBroker) -> bool {
        self.queue.try_send(Queued { outgoing: frame.into(), held: None }).is_ok()
    }

    /// Frames that there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Waits for room for an answer of so many bytes. `None` for a reader that makes none.
    pub(super) async fn reserve(&self, bytes: usize) -> Option<Held> {
        let reserved = timeout(2 * WRITE_TIMEOUT, async {
            let own = self.own_room(bytes).await?;
            let all = Arc::clone(&self.all).acquire_many_owned(permits(bytes)).await.ok()?;
            Some(Held { own, all, pushes: None })
        });
        reserved.await.ok().flatten()
    }

    /// The same, where the room of all connections together is not waited for: `Some(None)` when
    /// it is used up.
    pub(super) async fn reserve_or_refuse(&self, bytes: usize) -> Option<Option<Held>> {
        let own = timeout(2 * WRITE_TIMEOUT, self.own_room(bytes)).await.ok().flatten()?;
        let all = Arc::clone(&self.all).try_acquire_many_owned(permits(bytes)).ok();
        Some(all.map(|all| Held { own, all, pushes: None }))
    }

    async fn own_room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.own).acquire_many_owned(permits(bytes)).await.ok()
    }

    /// Puts in an answer for which there is room. `false` when the connection has ended.
    pub(super) async fn answer(&self, frame: &FromBroker, mut held: Held) -> bool {
        let text = frame.encode();
        held.shrink(text.len());
        let outgoing = Outgoing::Text(text);
        self.queue.send(Queued { outgoing, held: Some(held) }).await.is_ok()
    }

    /// Puts in a push at once: `Ok(false)` where there is no room for it.
    pub(super) fn push(&self, text: String) -> Result<bool, Closed> {
        let bytes = permits(text.len());
        let Ok(own) = Arc::clone(&self.own).try_acquire_many_owned(bytes) else {
            return Ok(false);
        };
        let Ok(all) = Arc::clone(&self.all).try_acquire_many_owned(bytes) else {
            return Ok(false);
        };
        self.pushes.fetch_add(1, Ordering::Relaxed);
        let held = Some(Held { own, all, pushes: Some(Arc::clone(&self.pushes)) });
        match self.queue.try_send(Queued { outgoing: Outgoing::Text(text), held }) {
            Ok(()) => Ok(true),
            Err(mpsc::error::TrySendError::Full(_)) => Ok(false),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Closed),
        }
    }

    /// Bytes that there is room for.
    pub(super) fn free_bytes(&self) -> usize {
        self.own.available_permits().min(self.all.available_permits())
    }

    /// Comes back when there is room for so many bytes and a frame. It is not kept.
    pub(super) async fn room(&self, bytes: usize) {
        let free = async {
            drop(self.own_room(bytes).await);
            drop(Arc::clone(&self.all).acquire_many_owned(permits(bytes)).await);
            drop(self.queue.reserve().await);
        };
        free.await;
    }

    /// Whether a push waits to be written.
    pub(super) fn has_pushes(&self) -> bool {
        self.pushes.load(Ordering::Relaxed) > 0
    }
}

/// The connection has ended.
pub(super) struct Closed;

/// One frame always fits.
fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.min(OUTBOUND_BYTES_MAX)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_are_bounded_until_they_are_written() {
        let all = Arc::new(Semaphore::new(OUTBOUND_BYTES_MAX * 3 / 2));
        let (one, mut queue) = Outbound::new(&all);
        let (other, _kept) = Outbound::new(&all);
        let large = || "x".repeat(OUTBOUND_BYTES_MAX * 2 / 3);
        assert!(matches!(one.push(large()), Ok(true)) && one.has_pushes());
        assert!(matches!(one.push(large()), Ok(false)), "its own are used up");
        assert!(matches!(other.push(large()), Ok(true)));
        let (third, _kept) = Outbound::new(&all);
        assert!(matches!(third.push(large()), Ok(false)), "those of all are used up");
        assert!(matches!(third.reserve_or_refuse(OUTBOUND_BYTES_MAX).await, Some(None)));
        // What is small finds its way.
        assert!(one.try_send(FromBroker::Ping(semel_wire::frame::Ping { id: 1 })));
        drop(queue.recv().await);
        assert!(!one.has_pushes());
        one.room(OUTBOUND_BYTES_MAX * 2 / 3).await;
        assert!(matches!(one.push(large()), Ok(true)));
    }

    #[tokio::test]
    async fn an_answer_holds_what_it_has_and_a_frame_of_any_size_fits() {
        let all = Arc::new(Semaphore::new(OUTBOUND_BYTES_MAX));
        let (outbound, _queue) = Outbound::new(&all);
        let held = outbound.reserve(10 * OUTBOUND_BYTES_MAX).await.unwrap();
        assert_eq!(outbound.free_bytes(), 0);
        let ping = FromBroker::Ping(semel_wire::frame::Ping { id: 1 });
        assert!(outbound.answer(&ping, held).await);
        assert_eq!(outbound.free_bytes(), OUTBOUND_BYTES_MAX - ping.encode().len());
    }
}

//! Sends of one connection that were read and are not answered yet: they hold what they carry in
//! memory, and are bounded in number, in bytes, and in the bytes of all connections together.
//!
//! Each connection has a little room of its own, so that nobody waits for others who send much.
//! What is beyond it counts among the bytes of all, is waited for in the order in which it was
//! asked for, and is given back when the send is answered, which takes nobody's room: so whoever
//! waits has its turn.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::{
    SENDS_IN_FLIGHT_ALL, SENDS_IN_FLIGHT_BYTES, SENDS_IN_FLIGHT_FREE, SENDS_IN_FLIGHT_MAX,
};

/// The room of one connection.
pub(super) struct Inbound {
    places: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

/// A place among the sends that are not answered.
pub(super) struct Taken {
    pub(super) place: OwnedSemaphorePermit,
    pub(super) bytes: Bytes,
}

/// What a send holds in memory.
pub(super) struct Bytes {
    _own: OwnedSemaphorePermit,
    _all: Option<OwnedSemaphorePermit>,
}

/// What all connections may hold together beside what is each one's own.
pub(crate) fn all() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(SENDS_IN_FLIGHT_ALL as usize))
}

impl Inbound {
    /// Of a connection whose bytes count among these.
    pub(super) fn new(all: &Arc<Semaphore>) -> Self {
        let places = Arc::new(Semaphore::new(SENDS_IN_FLIGHT_MAX as usize));
        let bytes = Arc::new(Semaphore::new(SENDS_IN_FLIGHT_BYTES as usize));
        Self { places, bytes, all: Arc::clone(all) }
    }

    /// Waits for room for a send; one send always fits. Only one waits at a time.
    pub(super) async fn room(&self, bytes: usize) -> Option<Taken> {
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(SENDS_IN_FLIGHT_BYTES);
        let own = Arc::clone(&self.bytes).acquire_many_owned(bytes).await.ok()?;
        let held = SENDS_IN_FLIGHT_BYTES as usize - self.bytes.available_permits();
        // What was taken freely was never more than this, whatever else was taken beside it.
        let all = match held > SENDS_IN_FLIGHT_FREE {
            true => Some(Arc::clone(&self.all).acquire_many_owned(bytes).await.ok()?),
            false => None,
        };
        Some(Taken { place, bytes: Bytes { _own: own, _all: all } })
    }

    /// Comes back when everything is answered.
    pub(super) async fn all_answered(&self) {
        drop(self.places.acquire_many(SENDS_IN_FLIGHT_MAX).await);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// What mesh.md §7 says of one connection, of what each has beside the others, and of all.
    const OWN: usize = 8 << 20;
    const FREE: usize = 64 << 10;
    const ALL: usize = 64 << 20;

    fn now(inbound: &Inbound, bytes: usize) -> Option<Taken> {
        inbound.room(bytes).now_or_never().flatten()
    }

    #[test]
    fn what_all_connections_hold_has_a_bound_and_each_has_room_of_its_own() {
        let all = all();
        let full = ALL / OWN;
        let greedy: Vec<Inbound> = (0..full).map(|_| Inbound::new(&all)).collect();
        let mut taken: Vec<Taken> = greedy.iter().filter_map(|one| now(one, 10 * OWN)).collect();
        assert_eq!((taken.len(), all.available_permits()), (full, 0));
        assert!(now(&greedy[0], 1).is_none(), "its own are used up");
        let other = Inbound::new(&all);
        let small = now(&other, FREE).expect("it waits for nobody");
        assert!(now(&other, 1).is_none(), "those of all are used up");
        // What waits has its turn as soon as somebody is answered.
        drop(taken.pop());
        let large = now(&other, OWN - FREE).expect("there is room");
        drop((small, large, taken));
        assert_eq!(all.available_permits(), ALL);
        other.all_answered().now_or_never().expect("nothing is under way");
    }

    #[tokio::test]
    async fn whoever_waits_for_all_is_served_in_turn() {
        let all = all();
        let connections: Vec<_> = (0..64).map(|_| Arc::new(Inbound::new(&all))).collect();
        let sending = connections.iter().map(|one| {
            let one = Arc::clone(one);
            tokio::spawn(async move {
                for round in 0..50 {
                    let taken = one.room(OWN / (1 + round % 3)).await.expect("room");
                    tokio::task::yield_now().await;
                    drop(taken);
                }
            })
        });
        for sent in sending.collect::<Vec<_>>() {
            sent.await.expect("nobody waits for ever");
        }
        assert_eq!(all.available_permits(), ALL);
    }
}

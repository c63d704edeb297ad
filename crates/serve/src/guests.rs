//! Who is at the other end of a stream, as far as its door knows.
//!
//! A stream is a *stranger's* until whoever serves it knows who is there: a hello was admitted, a
//! signature or a token was right. Strangers have places of their own, little time and few bytes,
//! so that those who say nothing cannot keep out those who are known. Where all their places are
//! taken the oldest is closed: the next one need not wait for a time limit.
//!
//! That a stranger is in the list is what decides: whoever takes it out, under the list's lock,
//! says what becomes of it, and nobody is both known and closed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// What a stranger may do.
#[derive(Debug, Clone, Copy)]
pub struct StrangerLimits {
    /// Strangers at once.
    pub strangers_max: usize,
    /// Those of one address; this machine's own has no such bound, for a proxy may be there.
    pub of_address_max: usize,
    /// How soon the first request must be there.
    pub first_head_timeout: Duration,
    /// How long a stream may be a stranger's.
    pub life: Duration,
    /// What a stranger may send.
    pub bytes_max: usize,
    /// Nobody younger is closed to make room.
    pub grace: Duration,
}

/// All who are behind one door.
pub(crate) struct Guests {
    limits: StrangerLimits,
    strangers: Arc<Semaphore>,
    known: Arc<Semaphore>,
    /// By when they came.
    list: Mutex<BTreeMap<u64, Arc<Entry>>>,
    next: AtomicU64,
}

/// One who came in.
struct Entry {
    number: u64,
    came: Instant,
    address: IpAddr,
    standing: watch::Sender<Standing>,
    /// Bytes that may still come.
    left: AtomicUsize,
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Nothing was asked for yet.
    Silent,
    Asks,
    Known,
    Closed,
}

/// The other end of a stream: an extension of every request that comes from there.
#[derive(Clone)]
pub struct Guest {
    guests: Arc<Guests>,
    entry: Arc<Entry>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Guests {
    pub(crate) fn new(limits: StrangerLimits, known_max: usize) -> Arc<Self> {
        Arc::new(Self {
            limits,
            strangers: Arc::new(Semaphore::new(limits.strangers_max)),
            known: Arc::new(Semaphore::new(known_max)),
            list: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    /// Waits for room for a stranger, and makes it; `None` when nobody is let in any more.
    pub(crate) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        loop {
            let wait = match Arc::clone(&self.strangers).try_acquire_owned() {
                Ok(place) => return Some(place),
                Err(TryAcquireError::Closed) => return None,
                Err(TryAcquireError::NoPermits) => self.make_room(),
            };
            tokio::select! {
                place = Arc::clone(&self.strangers).acquire_owned() => return place.ok(),
                () = sleep(wait) => {}
            }
        }
    }

    /// Waits for room for somebody who is known beforehand.
    pub(crate) async fn known_room(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.known).acquire_owned().await.ok()
    }

    /// Lets nobody in any more. Who is inside can still become known.
    pub(crate) fn close(&self) {
        self.strangers.close();
    }

    /// Closes the oldest stranger, unless it is too young. Gives the time after which to try again.
    fn make_room(&self) -> Duration {
        let mut list = lock(&self.list);
        let age = list.first_key_value().map(|(_, oldest)| oldest.came.elapsed());
        match age {
            Some(age) if age >= self.limits.grace => {
                list.pop_first().inspect(|(_, oldest)| oldest.close());
                self.limits.grace
            }
            Some(age) => self.limits.grace - age,
            None => self.limits.grace,
        }
    }

    /// A stranger at this address; none where it has too many already, and all of them are young.
    pub(crate) fn stranger(
        self: &Arc<Self>,
        place: OwnedSemaphorePermit,
        address: IpAddr,
    ) -> Option<Guest> {
        let address = network(address);
        let mut list = lock(&self.list);
        if !address.is_loopback() {
            let mut same = list.values().filter(|entry| entry.address == address);
            let oldest = same.next().map(|entry| (entry.number, entry.came.elapsed()));
            if let Some((number, age)) = oldest
                && same.count() + 1 >= self.limits.of_address_max
            {
                if age < self.limits.grace {
                    return None;
                }
                list.remove(&number).inspect(|entry| entry.close());
            }
        }
        let guest = self.guest(place, address, Standing::Silent);
        list.insert(guest.entry.number, Arc::clone(&guest.entry));
        Some(guest)
    }

    /// Somebody who is known beforehand.
    pub(crate) fn acquaintance(self: &Arc<Self>, place: OwnedSemaphorePermit) -> Guest {
        self.guest(place, IpAddr::from([127, 0, 0, 1]), Standing::Known)
    }

    fn guest(
        self: &Arc<Self>,
        place: OwnedSemaphorePermit,
        address: IpAddr,
        standing: Standing,
    ) -> Guest {
        // The time of timers, as everything here is about how long somebody stays.
        let came = sleep(Duration::ZERO).deadline();
        let entry = Entry {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            came,
            address,
            standing: watch::channel(standing).0,
            left: AtomicUsize::new(self.limits.bytes_max),
            place: Mutex::new(Some(place)),
        };
        Guest { guests: Arc::clone(self), entry: Arc::new(entry) }
    }
}

/// One who is given a block of addresses has them all.
fn network(address: IpAddr) -> IpAddr {
    let address = address.to_canonical();
    match address {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        IpAddr::V4(_) | IpAddr::V6(_) => address,
    }
}

impl Entry {
    fn close(&self) {
        self.standing.send_replace(Standing::Closed);
    }

    fn standing(&self) -> Standing {
        *self.standing.borrow()
    }
}

impl Guest {
    /// It is known now who this is: the stream is no stranger's any more, if there is a place among
    /// those who are known.
    pub fn try_known(&self) -> bool {
        if self.entry.standing() == Standing::Known {
            return true;
        }
        let place = Arc::clone(&self.guests.known).try_acquire_owned();
        place.is_ok_and(|place| self.promote(place))
    }

    /// The same, and waits for a place for as long as a stranger may stay.
    pub async fn known(&self) -> bool {
        if self.entry.standing() == Standing::Known {
            return true;
        }
        let place = Arc::clone(&self.guests.known).acquire_owned();
        let place = tokio::select! {
            place = timeout_at(self.ends(), place) => place,
            () = self.reaches(&[Standing::Closed]) => return false,
        };
        place.ok().and_then(Result::ok).is_some_and(|place| self.promote(place))
    }

    /// What it may send from now on while it is a stranger.
    pub fn allow(&self, bytes: usize) {
        self.entry.left.store(bytes, Ordering::Relaxed);
    }

    fn promote(&self, place: OwnedSemaphorePermit) -> bool {
        let mut list = lock(&self.guests.list);
        if list.remove(&self.entry.number).is_none() {
            return self.entry.standing() == Standing::Known;
        }
        *lock(&self.entry.place) = Some(place);
        self.entry.standing.send_replace(Standing::Known);
        true
    }

    fn ends(&self) -> Instant {
        self.entry.came + self.guests.limits.life
    }

    async fn reaches(&self, any: &[Standing]) {
        // Its sender is ours.
        let mut standing = self.entry.standing.subscribe();
        let _ = standing.wait_for(|standing| any.contains(standing)).await;
    }

    /// It has asked for something.
    pub(crate) fn asks(&self) {
        self.entry.standing.send_if_modified(|standing| {
            let is_first = *standing == Standing::Silent;
            if is_first {
                *standing = Standing::Asks;
            }
            is_first
        });
    }

    /// Whether it may send so many bytes.
    pub(crate) fn may_send(&self, bytes: usize) -> bool {
        let take = |left: usize| left.checked_sub(bytes);
        self.entry.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    pub(crate) fn is_known(&self) -> bool {
        self.entry.standing() == Standing::Known
    }

    /// Comes back once it is known (`true`) or must leave.
    pub(crate) async fn judged(self) -> bool {
        let patience = self.guests.limits.first_head_timeout;
        let heard = [Standing::Asks, Standing::Known, Standing::Closed];
        if timeout(patience, self.reaches(&heard)).await.is_err() {
            return false;
        }
        self.judged_by_its_end().await
    }

    /// The same, however late it asks.
    pub(crate) async fn judged_by_its_end(&self) -> bool {
        let judged = self.reaches(&[Standing::Known, Standing::Closed]);
        timeout_at(self.ends(), judged).await.is_ok() && self.is_known()
    }

    /// Comes back when a stranger had better not begin anything new; never for who is known.
    pub(crate) async fn lingers(&self) {
        let life = self.guests.limits.life;
        let judged = self.reaches(&[Standing::Known, Standing::Closed]);
        if timeout_at(self.ends() - life / 3, judged).await.is_ok() {
            std::future::pending::<()>().await;
        }
    }

    /// The stream is gone, and its place with it.
    pub(crate) fn left(&self) {
        lock(&self.guests.list).remove(&self.entry.number);
        drop(lock(&self.entry.place).take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StrangerLimits = StrangerLimits {
        strangers_max: 4,
        of_address_max: 2,
        first_head_timeout: Duration::from_millis(100),
        life: Duration::from_secs(3),
        bytes_max: 10,
        grace: Duration::from_millis(200),
    };

    async fn came(guests: &Arc<Guests>, address: [u8; 4]) -> Option<Guest> {
        let room = guests.room().await.unwrap();
        guests.stranger(room, IpAddr::from(address))
    }

    #[tokio::test]
    async fn the_oldest_stranger_makes_room_and_nobody_who_is_known() {
        let guests = Guests::new(LIMITS, 1);
        let mut inside = Vec::new();
        for _ in 0..4 {
            inside.push(came(&guests, [127, 0, 0, 1]).await.unwrap());
        }
        assert!(inside[0].try_known() && inside[0].known().await);
        inside.push(came(&guests, [127, 0, 0, 1]).await.unwrap());
        assert!(!inside[1].try_known(), "there is one place");
        let oldest = inside[1].clone();
        let leaves = tokio::spawn(async move {
            oldest.reaches(&[Standing::Closed]).await;
            oldest.left();
        });
        inside.push(came(&guests, [127, 0, 0, 1]).await.unwrap());
        leaves.await.unwrap();
        assert!(!inside[1].known().await, "it was closed");
        inside[0].left();
        assert!(inside[2].known().await, "its place is free");
        assert!(inside[2].clone().judged().await, "and it stays");
    }

    #[tokio::test]
    async fn an_address_has_so_many_strangers() {
        let guests = Guests::new(LIMITS, 1);
        let first = came(&guests, [10, 0, 0, 1]).await.unwrap();
        let second = came(&guests, [10, 0, 0, 1]).await.unwrap();
        assert!(came(&guests, [10, 0, 0, 1]).await.is_none(), "both are young");
        assert!(came(&guests, [10, 0, 0, 2]).await.is_some());
        let third = async {
            while came(&guests, [10, 0, 0, 1]).await.is_none() {
                tokio::task::yield_now().await;
            }
        };
        third.await;
        assert!(!first.known().await && second.try_known());
    }

    #[tokio::test]
    async fn who_asks_has_more_time_and_few_bytes() {
        let guests = Guests::new(LIMITS, 1);
        let guest = came(&guests, [127, 0, 0, 1]).await.unwrap();
        let began = Instant::now();
        assert!(!guest.clone().judged().await);
        assert!(began.elapsed() >= LIMITS.first_head_timeout);
        guest.asks();
        assert!(!guest.clone().judged().await);
        assert!(began.elapsed() >= LIMITS.life * 9 / 10);
        assert!(guest.may_send(4) && guest.may_send(6) && !guest.may_send(1));
        guest.allow(3);
        assert!(guest.may_send(3) && !guest.may_send(1));
    }
}

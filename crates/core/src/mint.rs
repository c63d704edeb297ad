//! Minting ids: one mint per process, so that ids of one process sort in the order they were made,
//! also when the clock steps back or many fall into one millisecond.

use std::sync::{Arc, Mutex, PoisonError};

use ulid::Ulid;

use crate::clock::Clock;
use crate::id::{ClientMessageId, OutboxId, UlidId, UuidId};

/// Where the mint takes its randomness from; each call gives fresh, unpredictable bits.
pub type Entropy = Box<dyn FnMut() -> u128 + Send>;

/// Makes new ids.
pub struct IdMint {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    entropy: Entropy,
    ulids: Rising,
    uuids: Rising,
}

impl IdMint {
    /// A mint that reads `clock` and draws from `entropy`.
    pub fn new(clock: Arc<dyn Clock>, entropy: Entropy) -> Self {
        let (ulids, uuids) = (Rising::new(80), Rising::new(74));
        Self { clock, state: Mutex::new(State { entropy, ulids, uuids }) }
    }

    /// Ids from now on are larger than this one, whatever the clock says: it may have been set back
    /// since another process made it.
    pub fn continue_after<Kind>(&self, newest: UlidId<Kind>) {
        let newest = newest.ulid();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ulids.continue_after(newest.timestamp_ms(), newest.random());
    }

    /// Key of a new outbox row.
    pub fn outbox_id(&self) -> OutboxId {
        OutboxId::new(self.ulid())
    }

    /// A client message id for a caller that gave none.
    pub fn client_message_id(&self) -> ClientMessageId {
        ClientMessageId::from(self.ulid())
    }

    /// A UUIDv7: broker message ids, job ids.
    pub fn uuid<Kind>(&self) -> UuidId<Kind> {
        let (ms, random) = self.next(|state| (&mut state.uuids, &mut state.entropy));
        // 12 bits beside the version, 62 beside the variant: the builder overwrites the rest.
        let spread = ((random >> 62) << 64) | (random & ((1 << 62) - 1));
        let mut bytes = [0; 10];
        bytes.copy_from_slice(&spread.to_be_bytes()[6..]);
        UuidId::new(uuid::Builder::from_unix_timestamp_millis(ms, &bytes).into_uuid())
    }

    fn ulid(&self) -> Ulid {
        let (ms, random) = self.next(|state| (&mut state.ulids, &mut state.entropy));
        Ulid::from_parts(ms, random)
    }

    fn next(&self, series: fn(&mut State) -> (&mut Rising, &mut Entropy)) -> (u64, u128) {
        let now_ms = u64::try_from(self.clock.wall().0).unwrap_or(0);
        // A panic cannot leave the numbers half changed, so a poisoned lock is still good.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (series, entropy) = series(&mut state);
        series.next(now_ms, entropy)
    }
}

/// A series of (millisecond, random bits) pairs in which each is larger than the one before.
struct Rising {
    bits: u32,
    last_ms: u64,
    last_random: u128,
}

impl Rising {
    fn new(bits: u32) -> Self {
        Self { bits, last_ms: 0, last_random: 0 }
    }

    fn continue_after(&mut self, ms: u64, random: u128) {
        let last = (self.last_ms, self.last_random).max((ms, random));
        (self.last_ms, self.last_random) = last;
    }

    /// Randomness is a call of the system, and is drawn once in a millisecond.
    fn next(&mut self, now_ms: u64, entropy: &mut Entropy) -> (u64, u128) {
        let mask = (1_u128 << self.bits) - 1;
        if now_ms > self.last_ms {
            self.last_ms = now_ms;
            self.last_random = entropy() & mask;
        } else if self.last_random < mask {
            self.last_random += 1;
        } else {
            // The millisecond is used up: borrow the next one rather than repeat an id.
            self.last_ms += 1;
            self.last_random = 0;
        }
        (self.last_ms, self.last_random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::UnixMs;
    use crate::id::JobId;
    use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
    use std::time::Duration;

    /// A clock that stands still until it is stepped.
    struct HandClock(AtomicI64);

    impl HandClock {
        fn at_ms(ms: i64) -> Arc<Self> {
            Arc::new(Self(AtomicI64::new(ms)))
        }

        fn step_ms(&self, ms: i64) {
            self.0.fetch_add(ms, SeqCst);
        }
    }

    impl Clock for HandClock {
        fn wall(&self) -> UnixMs {
            UnixMs(self.0.load(SeqCst))
        }

        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }
    }

    fn mint(clock: &Arc<HandClock>, random: u128) -> IdMint {
        IdMint::new(Arc::clone(clock) as Arc<dyn Clock>, Box::new(move || random))
    }

    #[test]
    fn a_mint_goes_on_where_another_ended_whatever_its_clock_says() {
        let ahead = mint(&HandClock::at_ms(1_700_000_000_000), u128::MAX).outbox_id();
        let behind = mint(&HandClock::at_ms(1_600_000_000_000), 42);
        behind.continue_after(ahead);
        let next = behind.outbox_id();
        assert!(next > ahead, "{next} {ahead}");
        behind.continue_after(mint(&HandClock::at_ms(1), 42).outbox_id());
        assert!(behind.outbox_id() > next, "what is older changes nothing");
    }

    #[test]
    fn ids_rise_within_a_millisecond_and_when_the_clock_steps_back() {
        let clock = HandClock::at_ms(1_700_000_000_000);
        let mint = mint(&clock, u128::MAX - 1);
        let mut outbox = vec![mint.outbox_id()];
        let mut jobs: Vec<JobId> = vec![mint.uuid()];
        for step_ms in [0, 0, 0, -5_000, 0, 1, 10_000, -20_000, 0] {
            clock.step_ms(step_ms);
            outbox.push(mint.outbox_id());
            jobs.push(mint.uuid());
        }
        assert!(outbox.is_sorted_by(|a, b| a < b), "{outbox:?}");
        assert!(outbox.is_sorted_by(|a, b| a.to_string() < b.to_string()));
        assert!(jobs.is_sorted_by(|a, b| a < b), "{jobs:?}");
        assert!(jobs.iter().all(|id| id.as_uuid().get_version_num() == 7));
    }

    #[test]
    fn an_id_carries_its_time() {
        let clock = HandClock::at_ms(1_469_918_176_385);
        let mint = mint(&clock, 0);
        assert!(mint.client_message_id().as_str().starts_with("01ARYZ6S41"));
        let id: JobId = mint.uuid();
        assert_eq!(id.as_uuid().get_timestamp().unwrap().to_unix().0, 1_469_918_176);
    }

    #[test]
    fn uuid_bits_are_all_random_but_version_and_variant() {
        let clock = HandClock::at_ms(0);
        let ones: JobId = mint(&clock, u128::MAX).uuid();
        // The clock stands at the series' own start, so the first id is the one after zero.
        assert_eq!(ones.to_string(), "00000000-0000-7000-8000-000000000001");
        clock.step_ms(1);
        let ones: JobId = mint(&clock, u128::MAX).uuid();
        assert_eq!(ones.to_string(), "00000000-0001-7fff-bfff-ffffffffffff");
    }
}

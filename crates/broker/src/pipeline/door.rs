//! B1: what is said against a send whose id nobody holds. Age comes before every refusal: what is
//! too old to judge is never refused. Asked in the lane, or inside the transaction ([`AtTheDoor`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::id::{MemberId, MeshId};
use semel_core::plausible::Between;

use super::Shared;
use super::gate::Gate;
use super::order::Place;
use crate::accept::{AcceptItem, Age, Door, Verdict};
use crate::limiter::{self, LimitRequest};
use crate::store::Mesh;

/// What a send costs, or what it is answered.
pub(super) type Checked = Result<limiter::Verdict, Verdict>;

/// What the checks must know of a send that is not in its item.
#[derive(Clone)]
pub(super) struct Arrival {
    /// The rules that its connection was told: a lane outlives a change of them.
    pub(super) mesh: Arc<Mesh>,
    pub(super) enqueued_at: UnixMs,
    /// Where it came in its lane, which says so when it has.
    pub(super) place: Place,
}

impl Arrival {
    pub(super) fn age(&self, now: Between) -> Age {
        self.mesh.age(self.enqueued_at, now)
    }

    /// Everything but the rate.
    pub(super) fn check(&self, item: &AcceptItem, now: Between) -> Result<(), Verdict> {
        if let Some(verdict) = self.age(now).objection() {
            return Err(verdict);
        }
        if item.envelope.body().len() > self.mesh.inline_bytes as usize {
            return Err(Verdict::Refused(Code::PayloadTooLarge));
        }
        Ok(())
    }
}

/// How the limiter knows a mesh and its senders, of whom a batch has few.
pub(super) struct Names {
    mesh: String,
    senders: HashMap<MemberId, String>,
}

impl Names {
    pub(super) fn of(mesh_id: MeshId) -> Self {
        Self { mesh: mesh_id.to_string(), senders: HashMap::new() }
    }

    pub(super) fn learn(&mut self, sender: MemberId) {
        self.senders.entry(sender).or_insert_with(|| sender.to_string());
    }

    /// Of a sender that was learned.
    pub(super) fn request<'a>(&'a self, item: &'a AcceptItem, mesh: &Mesh) -> LimitRequest<'a> {
        LimitRequest {
            mesh: &self.mesh,
            sender: self.senders.get(&item.session.member_id).map_or("", String::as_str),
            client_message_id: item.client_message_id.as_str(),
            limit: mesh.rate_limit,
            window: Duration::from_millis(u64::from(mesh.rate_window_ms)),
        }
    }
}

/// What the limiter's decision means for a send.
pub(super) const fn allowed(decision: limiter::Decision) -> Checked {
    match decision.verdict {
        cost @ (limiter::Verdict::Counted | limiter::Verdict::Free) => Ok(cost),
        limiter::Verdict::Denied { retry_after } => Err(Verdict::RateLimited { retry_after }),
    }
}

/// The sends of a batch as the checks see them.
pub(super) struct Guests {
    arrivals: Vec<Arrival>,
    /// What was said of each; nothing of one that was not checked.
    said: Mutex<Vec<Option<Checked>>>,
}

impl Guests {
    pub(super) fn new(arrivals: Vec<Arrival>, said: Vec<Option<Checked>>) -> Self {
        Self { arrivals, said: Mutex::new(said) }
    }

    pub(super) fn said(&self) -> MutexGuard<'_, Vec<Option<Checked>>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the sends of a batch inside its transaction.
pub(super) struct AtTheDoor {
    shared: Arc<Shared>,
    gate: Arc<Gate>,
    guests: Arc<Guests>,
    /// Of the guests, who is the first of the transaction.
    first: usize,
    names: Names,
    now: Between,
}

impl AtTheDoor {
    /// Nobody is needed where everything has been checked.
    pub(super) fn of(
        shared: &Arc<Shared>,
        gate: &Arc<Gate>,
        guests: &Arc<Guests>,
        first: usize,
    ) -> Option<Box<dyn Door>> {
        let has_new = guests.said().iter().any(Option::is_none);
        has_new.then(|| -> Box<dyn Door> {
            let (shared, gate) = (Arc::clone(shared), Arc::clone(gate));
            let (names, now) = (Names::of(gate.mesh_id), shared.present.between());
            Box::new(Self { shared, gate, guests: Arc::clone(guests), first, names, now })
        })
    }

    fn check_once(&mut self, index: usize, item: &AcceptItem) -> Checked {
        let Some(arrival) = self.guests.arrivals.get(index) else { return Err(Verdict::Stale) };
        let checked = arrival.check(item, self.now).and_then(|()| {
            self.names.learn(item.session.member_id);
            let request = self.names.request(item, &arrival.mesh);
            // A limiter that has to be waited for has no door.
            self.shared.limiter.take_here(&request).map_or(Err(Verdict::Stale), allowed)
        });
        let monotonic = self.shared.clock.monotonic();
        self.gate.told_to_wait().in_order(item, arrival.place, checked, monotonic)
    }
}

impl Door for AtTheDoor {
    fn goes_on(&self, store_epoch: &str) -> bool {
        self.shared.life.goes_on(store_epoch)
    }

    fn age(&self, index: usize) -> Age {
        let arrival = self.guests.arrivals.get(self.first + index);
        arrival.map_or(Age::InDoubt, |arrival| arrival.age(self.now))
    }

    fn check(&mut self, index: usize, item: &AcceptItem) -> Result<(), Verdict> {
        let index = self.first + index;
        let said = self.guests.said().get(index).cloned().flatten();
        let checked = said.unwrap_or_else(|| {
            let checked = self.check_once(index, item);
            if let Some(said) = self.guests.said().get_mut(index) {
                *said = Some(checked.clone());
            }
            checked
        });
        checked.map(|_| ())
    }
}

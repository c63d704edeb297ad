//! How a broker learns of commits made by another one (broker.md, "Push"): after a commit the mesh
//! is named to all brokers of the database, and they wake their connections of that mesh.
//!
//! A hint says "look", never what is there: one that comes twice costs a read. One that is lost
//! costs time, so everybody is woken after every connect, and every few seconds while there is no
//! connection. A store that has one broker has no hints.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::id::{BrokerId, MeshId, UuidId};
use semel_store::postgres::{Heard, Listener, Notifier};
use semel_store::{OpenError, StoreError};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::hub::Hub;
use crate::limits::{HINT_INTERVAL, HINT_MESHES_MAX, HINT_POLL_INTERVAL, HINT_RETRY};
use crate::store::Store;

/// Stands for every mesh.
const ALL: &str = "all";

/// What was touched and not told yet.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Touched {
    Meshes(HashSet<MeshId>),
    /// Too many to name.
    All,
}

impl Touched {
    fn nothing() -> Self {
        Self::Meshes(HashSet::new())
    }

    fn is_nothing(&self) -> bool {
        *self == Self::nothing()
    }

    fn add(&mut self, more: Self) {
        match (&mut *self, more) {
            (Self::Meshes(meshes), Self::Meshes(more)) => {
                meshes.extend(more);
                if meshes.len() > HINT_MESHES_MAX {
                    *self = Self::All;
                }
            }
            (_, Self::All) => *self = Self::All,
            (Self::All, Self::Meshes(_)) => {}
        }
    }

    /// The sender, then the meshes, with blanks between them.
    fn payload(&self, from: BrokerId) -> String {
        let mut payload = from.as_uuid().simple().to_string();
        match self {
            Self::All => payload.extend([" ", ALL]),
            Self::Meshes(meshes) => meshes.iter().for_each(|mesh_id| {
                payload.extend([" ", &mesh_id.as_uuid().simple().to_string()]);
            }),
        }
        payload
    }

    /// What another broker has touched; nothing if the sender is `own`. What cannot be read means
    /// everything, so that a later version may say more.
    fn parse(payload: &str, own: BrokerId) -> Self {
        let mut words = payload.split(' ').map(Uuid::try_parse);
        if words.next() == Some(Ok(own.as_uuid())) {
            return Self::nothing();
        }
        let meshes: Result<HashSet<MeshId>, _> = words.map(|word| word.map(UuidId::new)).collect();
        meshes.map_or(Self::All, Self::Meshes)
    }
}

/// What has happened since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HintCounts {
    /// Hints sent.
    pub sent: u64,
    /// Hints of other brokers.
    pub received: u64,
    /// Times that the connection was made.
    pub connects: u64,
    /// Times that it was lost or could not be made.
    pub losses: u64,
    /// Times that everybody was woken for want of a connection.
    pub polls: u64,
}

#[derive(Default)]
struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    connects: AtomicU64,
    losses: AtomicU64,
    polls: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::SeqCst);
}

struct Shared {
    touched: Mutex<Touched>,
    /// Something was touched.
    wake: Notify,
    counters: Counters,
}

/// Tells other brokers; cheap to clone.
#[derive(Clone)]
pub struct Hints {
    shared: Arc<Shared>,
}

impl Hints {
    /// The hints of a store that brokers share; `None` for one that has a single broker.
    /// [`HintService::run`] does the work.
    pub fn over(
        store: &Store,
        broker_id: BrokerId,
        hub: Arc<Hub>,
    ) -> Result<Option<(Self, HintService)>, OpenError> {
        let (notifier, listener) = match store {
            Store::Sqlite(_) => return Ok(None),
            Store::Postgres(postgres) => postgres.hints()?,
        };
        let hints = Self {
            shared: Arc::new(Shared {
                touched: Mutex::new(Touched::nothing()),
                wake: Notify::new(),
                counters: Counters::default(),
            }),
        };
        let service = HintService { hints: hints.clone(), broker_id, hub, notifier, listener };
        Ok(Some((hints, service)))
    }

    /// A commit has put something into this mesh. Never waits.
    pub fn touched(&self, mesh_id: MeshId) {
        self.add(Touched::Meshes(HashSet::from([mesh_id])));
    }

    /// What has happened since the start.
    pub fn counts(&self) -> HintCounts {
        let counters = &self.shared.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        HintCounts {
            sent: read(&counters.sent),
            received: read(&counters.received),
            connects: read(&counters.connects),
            losses: read(&counters.losses),
            polls: read(&counters.polls),
        }
    }

    fn add(&self, touched: Touched) {
        self.lock().add(touched);
        self.shared.wake.notify_one();
    }

    fn take(&self) -> Touched {
        std::mem::replace(&mut *self.lock(), Touched::nothing())
    }

    fn lock(&self) -> MutexGuard<'_, Touched> {
        self.shared.touched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends and hears hints.
pub struct HintService {
    hints: Hints,
    broker_id: BrokerId,
    hub: Arc<Hub>,
    notifier: Notifier,
    listener: Listener,
}

impl HintService {
    /// Runs until the future is dropped; an end of its own is a fault.
    pub async fn run(self) -> Result<(), StoreError> {
        let Self { hints, broker_id, hub, notifier, listener } = self;
        tokio::select! {
            () = send(&hints, broker_id, &notifier) => Ok(()),
            heard = hear(&hints, broker_id, &hub, listener) => heard,
        }
    }
}

/// One hint at a time, with a pause behind it. The first touch after a pause goes out at once.
async fn send(hints: &Hints, broker_id: BrokerId, notifier: &Notifier) {
    loop {
        hints.shared.wake.notified().await;
        let touched = hints.take();
        if touched.is_nothing() {
            continue;
        }
        match notifier.notify(&touched.payload(broker_id)).await {
            Ok(()) => {
                count(&hints.shared.counters.sent);
                sleep(HINT_INTERVAL).await;
            }
            Err(error) => {
                tracing::warn!(error = error.chain(), "a hint could not be sent");
                hints.add(touched);
                sleep(HINT_RETRY).await;
            }
        }
    }
}

async fn hear(
    hints: &Hints,
    broker_id: BrokerId,
    hub: &Hub,
    mut listener: Listener,
) -> Result<(), StoreError> {
    let counters = &hints.shared.counters;
    let mut connected = false;
    loop {
        let heard = if connected {
            listener.next().await?
        } else {
            let Ok(heard) = timeout(HINT_POLL_INTERVAL, listener.next()).await else {
                count(&counters.polls);
                hub.wake_all();
                continue;
            };
            heard?
        };
        // Counted first: whoever sees the effect finds the count.
        match heard {
            Heard::Connected => {
                connected = true;
                count(&counters.connects);
                hub.wake_all();
            }
            Heard::Lost => {
                connected = false;
                count(&counters.losses);
            }
            Heard::Notified(payload) => match Touched::parse(&payload, broker_id) {
                touched if touched.is_nothing() => {}
                Touched::Meshes(meshes) => {
                    count(&counters.received);
                    hub.wake_meshes(&meshes);
                }
                Touched::All => {
                    count(&counters.received);
                    hub.wake_all();
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: BrokerId = UuidId::new(Uuid::from_u128(1));
    const OTHER: BrokerId = UuidId::new(Uuid::from_u128(2));

    fn mesh(number: usize) -> MeshId {
        UuidId::new(Uuid::from_u128(1000 + number as u128))
    }

    #[test]
    fn a_hint_names_each_mesh_once_and_never_more_than_fit() {
        let mut touched = Touched::nothing();
        for number in 0..HINT_MESHES_MAX {
            for _ in 0..3 {
                touched.add(Touched::Meshes(HashSet::from([mesh(number)])));
            }
            let payload = touched.payload(OTHER);
            assert_eq!(payload.len(), 32 + 33 * (number + 1));
            assert!(payload.len() < 8000);
            assert_eq!(Touched::parse(&payload, OWN), touched);
            assert!(Touched::parse(&payload, OTHER).is_nothing(), "our own");
        }
        touched.add(Touched::Meshes(HashSet::from([mesh(HINT_MESHES_MAX)])));
        assert_eq!(touched, Touched::All);
        touched.add(Touched::Meshes(HashSet::from([mesh(0)])));
        assert_eq!(Touched::parse(&touched.payload(OTHER), OWN), Touched::All);
    }

    #[test]
    fn what_cannot_be_read_means_everything() {
        let from = OTHER.as_uuid().simple();
        for payload in [format!("{from} some"), format!("{from} {from} x"), format!("{from} ")] {
            assert_eq!(Touched::parse(&payload, OWN), Touched::All, "{payload:?}");
        }
    }
}

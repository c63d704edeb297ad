//! How a broker learns of commits made by another one (broker.md, "Push"): after a commit the mesh
//! is named to all brokers of the database, and they wake their connections of that mesh. In the
//! same way they learn that sessions of a mesh have come or ended, and look at their own.
//!
//! A hint says "look", never what is there: one that comes twice costs a read. One that is lost
//! costs time, so everybody is woken after every connect, and every few seconds while there is no
//! connection. A store that has one broker has no hints.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::id::{BrokerId, MeshId, UuidId};
use semel_store::postgres::{Heard, Listener, Notifier};
use semel_store::{OpenError, StoreError};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::hub::Hub;
use crate::limits::{HINT_INTERVAL, HINT_POLL_INTERVAL, HINT_RETRY};
use crate::meshes::Meshes;
use crate::store::Store;

/// Stands for every mesh.
const ALL: &str = "all";

/// Before a mesh whose sessions have changed.
const SESSIONS: char = '~';

/// What was touched and not told yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Touched {
    /// Messages were committed there.
    commits: Meshes,
    /// Daemons came or went, or members ended.
    sessions: Meshes,
}

impl Touched {
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    fn all() -> Self {
        Self { commits: Meshes::All, sessions: Meshes::All }
    }

    fn add(&mut self, more: Self) {
        self.commits.add(more.commits);
        self.sessions.add(more.sessions);
    }

    /// The sender, then the meshes, with blanks between them.
    fn payload(&self, from: BrokerId) -> String {
        let mut payload = from.as_uuid().simple().to_string();
        for (mark, meshes) in [(None, &self.commits), (Some(SESSIONS), &self.sessions)] {
            let mut say = |word: &str| {
                payload.push(' ');
                payload.extend(mark);
                payload.push_str(word);
            };
            match meshes {
                Meshes::All => say(ALL),
                Meshes::Named(meshes) => {
                    meshes.iter().for_each(|mesh_id| say(&mesh_id.as_uuid().simple().to_string()));
                }
            }
        }
        payload
    }

    /// What another broker has touched; nothing if the sender is `own`. What cannot be read means
    /// everything, so that a later version may say more.
    fn parse(payload: &str, own: BrokerId) -> Self {
        let mut words = payload.split(' ');
        if words.next().map(Uuid::try_parse) == Some(Ok(own.as_uuid())) {
            return Self::default();
        }
        let mut touched = Self::default();
        for word in words {
            let (meshes, name) = match word.strip_prefix(SESSIONS) {
                Some(name) => (&mut touched.sessions, name),
                None => (&mut touched.commits, word),
            };
            match Uuid::try_parse(name) {
                Ok(mesh) => meshes.add(Meshes::one(UuidId::new(mesh))),
                Err(_) if name == ALL => meshes.add(Meshes::All),
                Err(_) => return Self::all(),
            }
        }
        touched
    }
}

/// What has happened since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HintCounts {
    /// Hints of commits sent.
    pub sent: u64,
    /// Hints of commits of other brokers.
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
                touched: Mutex::new(Touched::default()),
                wake: Notify::new(),
                counters: Counters::default(),
            }),
        };
        let service = HintService { hints: hints.clone(), broker_id, hub, notifier, listener };
        Ok(Some((hints, service)))
    }

    /// A commit has put something into this mesh. Never waits.
    pub fn touched(&self, mesh_id: MeshId) {
        self.add(Touched { commits: Meshes::one(mesh_id), ..Touched::default() });
    }

    /// Sessions of this mesh have come or ended. Never waits.
    pub fn sessions_changed(&self, mesh_id: MeshId) {
        self.add(Touched { sessions: Meshes::one(mesh_id), ..Touched::default() });
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
        std::mem::take(&mut *self.lock())
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
                if !touched.commits.is_nothing() {
                    count(&hints.shared.counters.sent);
                }
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
                look(hub, Touched::all());
                continue;
            };
            heard?
        };
        // Counted first: whoever sees the effect finds the count.
        match heard {
            Heard::Connected => {
                connected = true;
                count(&counters.connects);
                look(hub, Touched::all());
            }
            Heard::Lost => {
                connected = false;
                count(&counters.losses);
            }
            Heard::Notified(payload) => {
                let touched = Touched::parse(&payload, broker_id);
                if !touched.commits.is_nothing() {
                    count(&counters.received);
                }
                look(hub, touched);
            }
        }
    }
}

fn look(hub: &Hub, touched: Touched) {
    if !touched.commits.is_nothing() {
        hub.wake_meshes(&touched.commits);
    }
    if !touched.sessions.is_nothing() {
        hub.touch_sessions(touched.sessions);
    }
}

/// Tells all brokers of the database once that sessions of this mesh have ended, from a process
/// that serves nobody. A store with one broker has nobody to tell: its heartbeat finds out.
pub async fn tell_sessions_changed(
    store: &Store,
    from: BrokerId,
    mesh_id: MeshId,
) -> Result<(), StoreError> {
    let Store::Postgres(postgres) = store else { return Ok(()) };
    let touched = Touched { sessions: Meshes::one(mesh_id), ..Touched::default() };
    postgres.hint(&touched.payload(from)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::HINT_MESHES_MAX;

    const OWN: BrokerId = UuidId::new(Uuid::from_u128(1));
    const OTHER: BrokerId = UuidId::new(Uuid::from_u128(2));

    fn mesh(number: usize) -> MeshId {
        UuidId::new(Uuid::from_u128(1000 + number as u128))
    }

    #[test]
    fn a_hint_names_each_mesh_once_and_never_more_than_fit() {
        let both = |number| Touched {
            commits: Meshes::one(mesh(number)),
            sessions: Meshes::one(mesh(number)),
        };
        let mut touched = Touched::default();
        for number in 0..HINT_MESHES_MAX {
            for _ in 0..3 {
                touched.add(both(number));
            }
            let payload = touched.payload(OTHER);
            assert_eq!(payload.len(), 32 + (33 + 34) * (number + 1));
            assert!(payload.len() < 8000);
            assert_eq!(Touched::parse(&payload, OWN), touched);
            assert!(Touched::parse(&payload, OTHER).is_nothing(), "our own");
        }
        touched.add(both(HINT_MESHES_MAX));
        assert_eq!(touched, Touched::all());
        touched.add(both(0));
        assert_eq!(Touched::parse(&touched.payload(OTHER), OWN), Touched::all());
    }

    #[test]
    fn commits_and_sessions_are_told_apart() {
        let sessions = Touched { sessions: Meshes::one(mesh(1)), ..Touched::default() };
        let heard = Touched::parse(&sessions.payload(OTHER), OWN);
        assert!(heard.commits.is_nothing() && heard.sessions.contains(mesh(1)));
        let commits = Touched { commits: Meshes::All, ..Touched::default() };
        let heard = Touched::parse(&commits.payload(OTHER), OWN);
        assert!(heard.sessions.is_nothing() && heard.commits == Meshes::All);
    }

    #[test]
    fn what_cannot_be_read_means_everything() {
        let from = OTHER.as_uuid().simple();
        for payload in [format!("{from} some"), format!("{from} {from} x"), format!("{from} ")] {
            assert_eq!(Touched::parse(&payload, OWN), Touched::all(), "{payload:?}");
        }
    }
}

//! Who is connected to this broker, so that a commit wakes its recipients and a newer connection
//! closes the older one. It holds live objects only: a connection that ends takes its entry along,
//! and a late end of an old connection cannot touch the new one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use semel_core::fingerprint::BodyHash;
use semel_core::hex::Hex;
use semel_core::id::MeshId;
use semel_store::handover::Handover;
use semel_wire::features::ConnectionPolicy;
use semel_wire::frame::{self, CloseReason, Written};
use tokio::sync::{Notify, Semaphore, watch};
use uuid::Uuid;

use crate::accept::{AcceptBatch, AcceptItem, Session};
use crate::connection::inbound;
use crate::deliverer::Deliverer;
use crate::limits::{
    FRESH_BYTES_MAX, OUTBOUND_BYTES_ALL, PUSH_PAUSE, PUSH_PAUSE_GROWTH, PUSH_PAUSE_MAX,
    PUSH_PAUSE_MIN, PUSH_WINDOW,
};
use crate::meshes::Meshes;
use crate::store::{BatchDone, Fresh, Live};

/// How others end a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// With a reason.
    Close(CloseReason),
    /// With a reason, once every send that was read is answered.
    Drain(CloseReason),
    /// The member may no longer take part: it is told so first.
    Revoked(CloseReason),
    /// Nothing definite can be said.
    Abandon,
}

/// A live connection, as others see it.
pub struct Peer {
    /// Something may wait for it.
    pub wake: Notify,
    /// What was just committed for it, by its number in history.
    pub fresh: Handover<i64, Arc<Written>>,
    /// How many were woken with it the last time.
    crowd: AtomicU32,
    /// Something was committed for it that it has not looked for.
    has_news: AtomicBool,
    pauses: AtomicBool,
    live: Live,
    ending: watch::Sender<Option<Ending>>,
}

impl Peer {
    /// Something may wait for it, and for so many others. Who pauses is not woken: it looks when
    /// the pause is over.
    fn wake_with(&self, crowd: u32) {
        self.crowd.store(crowd, Ordering::Relaxed);
        self.has_news.store(true, Ordering::SeqCst);
        if !self.pauses.load(Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// It is about to look for what waits.
    pub(crate) fn looks(&self) {
        self.has_news.store(false, Ordering::SeqCst);
    }

    /// How long to wait after a push: the longer, the more got the same, and twice as long as the
    /// last time when more than one message came meanwhile.
    pub(crate) fn pause(&self, last: Option<Duration>, came: usize) -> Option<Duration> {
        let first = PUSH_PAUSE.saturating_mul(self.crowd.load(Ordering::Relaxed));
        let longest = first.saturating_mul(PUSH_PAUSE_GROWTH).min(PUSH_PAUSE_MAX);
        let next = last.filter(|_| came > 1).map_or(first, |last| last.saturating_mul(2));
        let pause = next.clamp(first.min(longest), longest);
        let is_long = pause >= PUSH_PAUSE_MIN;
        self.pauses.store(is_long, Ordering::SeqCst);
        is_long.then_some(pause)
    }

    /// Says whether something has come meanwhile.
    pub(crate) fn pause_over(&self) -> bool {
        self.pauses.store(false, Ordering::SeqCst);
        self.has_news.load(Ordering::SeqCst)
    }

    /// Asks the connection to close; the first reason counts.
    pub fn close(&self, reason: CloseReason) {
        self.end(Ending::Close(reason));
    }

    /// Asks the connection to end; the first to ask counts.
    pub fn end(&self, ending: Ending) {
        self.ending.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(ending);
            }
            first
        });
    }

    /// Comes back once the connection is asked to end.
    pub async fn ending(&self) -> Ending {
        let mut asked = self.ending.subscribe();
        loop {
            if let Some(ending) = asked.borrow_and_update().clone() {
                return ending;
            }
            if asked.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// A new message as its recipients are told; nothing of a sender without a key.
fn shown(batch: &AcceptBatch, item: &AcceptItem, fresh: &Fresh) -> Option<frame::Delivery> {
    let (envelope, sender) = (&item.envelope, &fresh.sender);
    Some(frame::Delivery {
        seq: fresh.seq,
        broker_message_id: item.broker_message_id,
        client_message_id: item.client_message_id.clone(),
        sender_member_id: item.session.member_id,
        sender_pubkey: Hex::parse(sender.pubkey.as_deref()?).ok()?,
        sender_name: sender.name.clone(),
        destination_kind: envelope.destination().kind(),
        destination_ref: envelope.destination().reference().to_owned(),
        reply_to_id: envelope.reply_to_id().map(str::to_owned),
        priority: envelope.priority(),
        meta: envelope.meta().as_str().to_owned(),
        body: envelope.body().to_owned(),
        request_fingerprint: item.fingerprint,
        body_commitment: item.body_commitment.map(BodyHash),
        accepted_at: batch.now,
    })
}

fn wake_all(peers: Vec<&Arc<Peer>>) {
    let crowd = u32::try_from(peers.len()).unwrap_or(u32::MAX);
    peers.into_iter().for_each(|peer| peer.wake_with(crowd));
}

type Peers = HashMap<(MeshId, Uuid), Vec<Arc<Peer>>>;

/// All live connections.
pub struct Hub {
    /// Room for the bytes that wait to be written, of all of them and of answers over HTTP.
    pub(crate) unwritten: Arc<Semaphore>,
    /// Room for the bytes of sends that are not answered, of all of them.
    pub(crate) unanswered: Arc<Semaphore>,
    peers: Mutex<Peers>,
    /// Of meshes that have connections.
    deliverers: Mutex<HashMap<MeshId, Weak<Deliverer>>>,
    /// Meshes whose sessions have changed and were not looked at since.
    touched: Mutex<Meshes>,
    touch: Notify,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            unwritten: Arc::new(Semaphore::new(OUTBOUND_BYTES_ALL)),
            unanswered: inbound::all(),
            peers: Mutex::default(),
            deliverers: Mutex::default(),
            touched: Mutex::default(),
            touch: Notify::default(),
        }
    }
}

/// A connection's entry, for as long as it lives.
pub struct Registration {
    hub: Arc<Hub>,
    key: (MeshId, Uuid),
    peer: Arc<Peer>,
    deliverer: Arc<Deliverer>,
}

impl Registration {
    /// Who asks the store for the connection.
    pub(crate) fn deliverer(&self) -> &Deliverer {
        &self.deliverer
    }

    /// The connection.
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut peers = self.hub.lock();
        if let Some(list) = peers.get_mut(&self.key) {
            list.retain(|peer| !Arc::ptr_eq(peer, &self.peer));
            if list.is_empty() {
                peers.remove(&self.key);
            }
        }
    }
}

impl Hub {
    /// Bytes that wait to be written.
    pub fn unwritten(&self) -> usize {
        OUTBOUND_BYTES_ALL.saturating_sub(self.unwritten.available_permits())
    }

    /// Enters a connection, and gives back those whose place it takes: older ones of the same
    /// daemon, and of the same member unless the mesh allows several. Epochs say which is older,
    /// not the order of the calls.
    pub fn register(
        self: &Arc<Self>,
        mesh_id: MeshId,
        live: Live,
        policy: ConnectionPolicy,
    ) -> (Registration, Vec<Arc<Peer>>) {
        let session = live.session;
        let key = (mesh_id, session.member_id.as_uuid());
        let peer = Arc::new(Peer {
            wake: Notify::new(),
            fresh: Handover::new(PUSH_WINDOW, FRESH_BYTES_MAX),
            crowd: AtomicU32::new(0),
            has_news: AtomicBool::new(false),
            pauses: AtomicBool::new(false),
            live,
            ending: watch::channel(None).0,
        });
        let takes_place = |other: &&Arc<Peer>| {
            let is_same = other.live.session.instance_id == session.instance_id;
            other.live.session.epoch < session.epoch
                && (is_same || policy != ConnectionPolicy::AllowConcurrent)
        };
        let mut peers = self.lock();
        let list = peers.entry(key).or_default();
        let older = list.iter().filter(takes_place).cloned().collect();
        list.push(Arc::clone(&peer));
        drop(peers);
        let deliverer = self.deliverer(mesh_id);
        (Registration { hub: Arc::clone(self), key, peer, deliverer }, older)
    }

    /// The one that all connections of a mesh share.
    fn deliverer(&self, mesh_id: MeshId) -> Arc<Deliverer> {
        let mut all = self.deliverers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.get(&mesh_id).and_then(Weak::upgrade) {
            return found;
        }
        all.retain(|_, deliverer| deliverer.strong_count() > 0);
        let new = Arc::new(Deliverer::new(mesh_id));
        all.insert(mesh_id, Arc::downgrade(&new));
        new
    }

    /// The connections of a mesh.
    pub fn live(&self, mesh_id: MeshId) -> Vec<Live> {
        let peers = self.lock();
        let lists = peers.iter().filter(|((other, _), _)| *other == mesh_id);
        lists.flat_map(|(_, list)| list).map(|peer| peer.live).collect()
    }

    /// The meshes that have connections.
    pub fn meshes(&self) -> Vec<MeshId> {
        let mut meshes: Vec<MeshId> = self.lock().keys().map(|(mesh_id, _)| *mesh_id).collect();
        meshes.sort_unstable();
        meshes.dedup();
        meshes
    }

    /// The connection of that session, if it is there.
    pub fn peer(&self, mesh_id: MeshId, session: &Session) -> Option<Arc<Peer>> {
        let peers = self.lock();
        let list = peers.get(&(mesh_id, session.member_id.as_uuid()))?;
        list.iter().find(|peer| peer.live.session == *session).cloned()
    }

    /// Sessions of these meshes may have changed.
    pub fn touch_sessions(&self, meshes: Meshes) {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner).add(meshes);
        self.touch.notify_one();
    }

    /// Comes back with the meshes whose sessions may have changed.
    pub async fn touched_sessions(&self) -> Meshes {
        loop {
            self.touch.notified().await;
            let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
            let meshes = std::mem::take(&mut *touched);
            if !meshes.is_nothing() {
                return meshes;
            }
        }
    }

    /// These recipients have something new.
    pub fn wake(&self, mesh_id: MeshId, recipients: &[Uuid]) {
        let peers = self.lock();
        let found = recipients.iter().filter_map(|id| peers.get(&(mesh_id, *id)));
        wake_all(found.flatten().collect());
    }

    /// A batch is committed: its recipients are woken, and those who follow are handed what is new.
    /// To be called in the order of the commits.
    pub fn hand_over(&self, batch: &AcceptBatch, done: &BatchDone) {
        let live: HashMap<Uuid, Vec<Arc<Peer>>> = {
            let peers = self.lock();
            let found = |id: &Uuid| Some((*id, peers.get(&(batch.mesh_id, *id))?.clone()));
            done.recipients.iter().filter_map(found).collect()
        };
        if live.is_empty() {
            return;
        }
        for fresh in &done.fresh {
            let peers = || fresh.to.iter().filter_map(|id| live.get(id)).flatten();
            if peers().next().is_none() {
                continue;
            }
            match batch.items.get(fresh.item).and_then(|item| shown(batch, item, fresh)) {
                Some(delivery) => {
                    let (seq, bytes) = (delivery.seq, delivery.body.len() + delivery.meta.len());
                    let written = Arc::new(Written::from(&delivery));
                    peers().for_each(|peer| {
                        peer.fresh.offer(seq, bytes, || Arc::clone(&written));
                    });
                }
                // Whoever reads the store finds out why it cannot be said.
                None => peers().for_each(|peer| peer.fresh.leave()),
            }
        }
        wake_all(live.values().flatten().collect());
    }

    /// Somebody in these meshes may have something new: a commit of another broker.
    pub fn wake_meshes(&self, meshes: &Meshes) {
        let peers = self.lock();
        let touched = peers.iter().filter(|((mesh_id, _), _)| meshes.contains(*mesh_id));
        wake_all(touched.flat_map(|(_, list)| list).collect());
    }

    /// Asks every connection to end.
    pub fn end_all(&self, ending: &Ending) {
        self.lock().values().flatten().for_each(|peer| peer.end(ending.clone()));
    }

    /// How many connections there are now.
    pub fn connections(&self) -> usize {
        self.lock().values().map(Vec::len).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_core::id::UuidId;
    use semel_wire::close::CloseKind;

    const MESH: MeshId = UuidId::new(Uuid::from_u128(1));

    fn live(instance: u128, epoch: i64) -> Live {
        let (member_id, instance_id) =
            (UuidId::new(Uuid::from_u128(2)), UuidId::new(Uuid::from_u128(instance)));
        Live { session: Session { member_id, instance_id, epoch }, host_fingerprint: None }
    }

    #[tokio::test]
    async fn an_entry_lives_as_long_as_its_connection() {
        let hub = Arc::new(Hub::default());
        let (old, nobody) = hub.register(MESH, live(1, 1), ConnectionPolicy::PreferNewest);
        assert!(nobody.is_empty());
        let (new, older) = hub.register(MESH, live(1, 2), ConnectionPolicy::PreferNewest);
        assert!(older.len() == 1 && Arc::ptr_eq(&older[0], old.peer()));
        let first = CloseReason::new(CloseKind::Replaced, "first");
        older[0].close(first.clone());
        older[0].close(CloseReason::new(CloseKind::Draining, "second"));
        assert_eq!(old.peer().ending().await, Ending::Close(first));
        assert_eq!(hub.connections(), 2);
        // The old one's end comes late and leaves the new one alone.
        drop(old);
        assert_eq!(hub.connections(), 1);
        assert!(hub.peer(MESH, &live(1, 1).session).is_none());
        assert!(hub.peer(MESH, &live(1, 2).session).is_some());
        hub.wake(MESH, &[Uuid::from_u128(2), Uuid::from_u128(3)]);
        new.peer().wake.notified().await;
        drop(new);
        assert_eq!(hub.connections(), 0);
        assert!(hub.meshes().is_empty());
    }

    #[test]
    fn the_more_get_the_same_the_longer_is_the_pause_after_it() {
        let hub = Arc::new(Hub::default());
        let ids = || (0..5000).map(Uuid::from_u128);
        let registrations: Vec<Registration> = ids()
            .map(|id| {
                let mut live = live(1, 1);
                live.session.member_id = UuidId::new(id);
                hub.register(MESH, live, ConnectionPolicy::PreferNewest).0
            })
            .collect();
        let peer = registrations[0].peer();
        let pause_with = |count: usize, last: Option<Duration>, came: usize| {
            hub.wake(MESH, &ids().take(count).collect::<Vec<_>>());
            peer.pause(last, came)
        };
        let first = PUSH_PAUSE * 1000;
        assert_eq!((pause_with(1, None, 9), pause_with(10, None, 9)), (None, None), "at once");
        assert_eq!(pause_with(1000, None, 9), Some(first));
        assert_eq!(pause_with(1000, Some(first), 1), Some(first), "one at a time");
        assert_eq!(pause_with(1000, Some(first), 2), Some(2 * first), "a stream of them");
        let longest = first * PUSH_PAUSE_GROWTH;
        assert_eq!(pause_with(1000, Some(longest), 2), Some(longest));
        assert_eq!(pause_with(5000, Some(longest), 2), Some(PUSH_PAUSE_MAX));
        assert_eq!(pause_with(1, Some(longest), 2), None, "what is for it alone");
    }

    #[tokio::test]
    async fn who_pauses_is_not_woken_and_misses_nothing() {
        let hub = Arc::new(Hub::default());
        let (one, _) = hub.register(MESH, live(1, 1), ConnectionPolicy::PreferNewest);
        let (peer, id) = (one.peer(), [Uuid::from_u128(2)]);
        let woken = || {
            let mut notified = Box::pin(peer.wake.notified());
            notified.as_mut().enable()
        };
        peer.crowd.store(1000, Ordering::Relaxed);
        peer.looks();
        assert!(peer.pause(None, 1).is_some());
        assert!(!peer.pause_over(), "nothing has come");
        assert!(peer.pause(None, 1).is_some());
        hub.wake(MESH, &id);
        assert!(!woken());
        assert!(peer.pause_over(), "it has come meanwhile");
        hub.wake(MESH, &id);
        assert!(woken());
    }

    #[test]
    fn the_epoch_says_who_takes_whose_place() {
        let hub = Arc::new(Hub::default());
        let register = |instance, epoch, policy| {
            let (registration, older) = hub.register(MESH, live(instance, epoch), policy);
            let epochs: Vec<i64> = older.iter().map(|peer| peer.live.session.epoch).collect();
            (registration, epochs)
        };
        let (_one, older) = register(1, 5, ConnectionPolicy::AllowConcurrent);
        assert!(older.is_empty());
        let (_late, older) = register(1, 4, ConnectionPolicy::PreferNewest);
        assert!(older.is_empty(), "an older hello that is entered late");
        let (_sibling, older) = register(2, 6, ConnectionPolicy::AllowConcurrent);
        assert!(older.is_empty(), "a sibling may stay");
        let (_again, older) = register(2, 7, ConnectionPolicy::AllowConcurrent);
        assert_eq!(older, [6]);
        let (_new, older) = register(3, 8, ConnectionPolicy::PreferNewest);
        assert_eq!(older, [5, 4, 6, 7]);
        assert_eq!(hub.live(MESH).len(), 5);
    }
}

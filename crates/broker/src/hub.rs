//! Who is connected to this broker, so that a commit wakes its recipients and a newer connection
//! closes the older one. It holds live objects only: a connection that ends takes its entry along,
//! and a late end of an old connection cannot touch the new one.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::id::{MemberId, MeshId};
use semel_wire::frame::CloseReason;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

/// A live connection, as others see it.
pub struct Peer {
    /// Something may wait for it.
    pub wake: Notify,
    close: watch::Sender<Option<CloseReason>>,
}

impl Peer {
    /// Asks the connection to close; the first reason counts.
    pub fn close(&self, reason: CloseReason) {
        self.close.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(reason);
            }
            first
        });
    }

    /// Comes back once the connection is asked to close.
    pub async fn closing(&self) -> CloseReason {
        let mut asked = self.close.subscribe();
        loop {
            if let Some(reason) = asked.borrow_and_update().clone() {
                return reason;
            }
            if asked.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

type Peers = HashMap<(MeshId, Uuid), Vec<Arc<Peer>>>;

/// All live connections.
#[derive(Default)]
pub struct Hub {
    peers: Mutex<Peers>,
}

/// A connection's entry, for as long as it lives.
pub struct Registration {
    hub: Arc<Hub>,
    key: (MeshId, Uuid),
    peer: Arc<Peer>,
}

impl Registration {
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
    /// Enters a connection, and gives back those of the same member that were there before.
    pub fn register(
        self: &Arc<Self>,
        mesh_id: MeshId,
        member_id: MemberId,
    ) -> (Registration, Vec<Arc<Peer>>) {
        let key = (mesh_id, member_id.as_uuid());
        let peer = Arc::new(Peer { wake: Notify::new(), close: watch::channel(None).0 });
        let mut peers = self.lock();
        let list = peers.entry(key).or_default();
        let older = list.clone();
        list.push(Arc::clone(&peer));
        (Registration { hub: Arc::clone(self), key, peer }, older)
    }

    /// These recipients have something new.
    pub fn wake(&self, mesh_id: MeshId, recipients: &[Uuid]) {
        let peers = self.lock();
        for recipient in recipients {
            if let Some(list) = peers.get(&(mesh_id, *recipient)) {
                list.iter().for_each(|peer| peer.wake.notify_one());
            }
        }
    }

    /// Somebody in these meshes may have something new: a commit of another broker.
    pub fn wake_meshes(&self, mesh_ids: &HashSet<MeshId>) {
        let peers = self.lock();
        let touched = peers.iter().filter(|((mesh_id, _), _)| mesh_ids.contains(mesh_id));
        touched.flat_map(|(_, list)| list).for_each(|peer| peer.wake.notify_one());
    }

    /// Anybody may have something new.
    pub fn wake_all(&self) {
        self.lock().values().flatten().for_each(|peer| peer.wake.notify_one());
    }

    /// Asks every connection to close.
    pub fn close_all(&self, reason: &CloseReason) {
        self.lock().values().flatten().for_each(|peer| peer.close(reason.clone()));
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

    #[tokio::test]
    async fn an_entry_lives_as_long_as_its_connection() {
        let hub = Arc::new(Hub::default());
        let mesh = UuidId::new(Uuid::from_u128(1));
        let member = UuidId::new(Uuid::from_u128(2));
        let (old, nobody) = hub.register(mesh, member);
        assert!(nobody.is_empty());
        let (new, older) = hub.register(mesh, member);
        assert!(older.len() == 1 && Arc::ptr_eq(&older[0], old.peer()));
        older[0].close(CloseReason::new(CloseKind::Replaced, "first"));
        older[0].close(CloseReason::new(CloseKind::Draining, "second"));
        assert_eq!(old.peer().closing().await.detail, "first");
        assert_eq!(hub.connections(), 2);
        // The old one's end comes late and leaves the new one alone.
        drop(old);
        assert_eq!(hub.connections(), 1);
        hub.wake(mesh, &[Uuid::from_u128(2), Uuid::from_u128(3)]);
        new.peer().wake.notified().await;
        drop(new);
        assert_eq!(hub.connections(), 0);
    }
}

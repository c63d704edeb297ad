//! Who is connected in a mesh, as this broker has last read it. Connections tell their daemons what
//! has changed since they last told them: what one could not tell it tells later.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::hex::Hex;
use semel_core::id::{MemberId, MeshId};
use semel_wire::frame::Presence;
use tokio::sync::watch;

use crate::limits::PRESENCE_MEMBERS_MAX;
use crate::store::Present;

/// Members that are connected, with what is said of them.
pub type Roster = Arc<BTreeMap<MemberId, Presence>>;

/// A roster per mesh that has connections here.
#[derive(Default)]
pub struct Rosters {
    meshes: Mutex<HashMap<MeshId, watch::Sender<Roster>>>,
}

impl Rosters {
    /// The roster of a mesh, as it is and changes.
    pub fn subscribe(&self, mesh_id: MeshId) -> watch::Receiver<Roster> {
        let mut meshes = self.lock();
        meshes.entry(mesh_id).or_insert_with(|| watch::channel(Roster::default()).0).subscribe()
    }

    /// What was read last.
    pub fn publish(&self, mesh_id: MeshId, present: &[Present]) {
        let roster = roster(present);
        let mut meshes = self.lock();
        let sender = meshes.entry(mesh_id).or_insert_with(|| watch::channel(Roster::default()).0);
        sender.send_if_modified(|current| {
            let is_new = *current != roster;
            if is_new {
                *current = roster;
            }
            is_new
        });
    }

    /// Forgets the mesh unless somebody listens.
    pub fn forget(&self, mesh_id: MeshId) {
        let mut meshes = self.lock();
        if meshes.get(&mesh_id).is_some_and(|sender| sender.receiver_count() == 0) {
            meshes.remove(&mesh_id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<MeshId, watch::Sender<Roster>>> {
        self.meshes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One entry per member, however many of its daemons are connected.
fn roster(present: &[Present]) -> Roster {
    let mut roster = BTreeMap::new();
    for present in present {
        if let Ok(pubkey) = Hex::parse(&present.pubkey) {
            let (member_id, name) = (present.session.member_id, present.name.clone());
            roster.insert(member_id, Presence { member_id, name, pubkey, online: true });
        }
        if roster.len() >= PRESENCE_MEMBERS_MAX {
            break;
        }
    }
    Arc::new(roster)
}

/// What a daemon that was told `shown` must be told now.
pub fn changes(roster: &Roster, shown: &BTreeMap<MemberId, Presence>) -> Vec<Presence> {
    let come = roster.values().filter(|now| shown.get(&now.member_id) != Some(now)).cloned();
    let gone = shown.values().filter(|then| !roster.contains_key(&then.member_id));
    come.chain(gone.map(|then| Presence { online: false, ..then.clone() })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::Session;
    use semel_core::id::UuidId;
    use uuid::Uuid;

    fn present(member: u128, instance: u128, name: &str) -> Present {
        let (member_id, instance_id) =
            (UuidId::new(Uuid::from_u128(member)), UuidId::new(Uuid::from_u128(instance)));
        let session = Session { member_id, instance_id, epoch: 1 };
        Present { session, name: name.to_owned(), pubkey: "a1".repeat(32) }
    }

    #[test]
    fn only_differences_are_told() {
        let told = |changes: Vec<Presence>| -> Vec<(String, bool)> {
            changes.into_iter().map(|change| (change.name, change.online)).collect()
        };
        let one = roster(&[present(1, 1, "ada"), present(1, 2, "ada"), present(2, 1, "bob")]);
        let all = told(changes(&one, &BTreeMap::new()));
        assert_eq!(all, [("ada".to_owned(), true), ("bob".to_owned(), true)]);
        assert!(changes(&one, &one).is_empty());
        let two = roster(&[present(2, 1, "bert"), present(3, 1, "eve")]);
        let some = told(changes(&two, &one));
        let expected = [("bert", true), ("eve", true), ("ada", false)];
        assert_eq!(some, expected.map(|(name, online)| (name.to_owned(), online)));
    }

    #[test]
    fn a_roster_has_a_limit() {
        let many: Vec<Present> =
            (0..2 * PRESENCE_MEMBERS_MAX as u128).map(|n| present(n, 1, "x")).collect();
        assert_eq!(roster(&many).len(), PRESENCE_MEMBERS_MAX);
    }
}

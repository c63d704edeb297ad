//! Who is online, as the broker tells it. After a new connection the broker tells everything again:
//! whoever is not told of within a moment has left meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::id::MemberId;
use semel_wire::frame::Presence;
use serde_json::json;
use tokio::sync::Notify;

use crate::inbox::Inbox;
use crate::store::event::EventKind;

/// Somebody who is online.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Online {
    /// What it is called.
    pub name: String,
    /// Its key.
    pub pubkey: String,
    told: bool,
}

/// Everybody who is online.
pub struct Roster {
    inbox: Arc<Inbox>,
    online: Mutex<BTreeMap<MemberId, Online>>,
    /// Somebody has come online who was not.
    pub(crate) joined: Notify,
}

impl Roster {
    pub(super) fn new(inbox: Arc<Inbox>) -> Self {
        Self { inbox, online: Mutex::default(), joined: Notify::new() }
    }

    /// Everybody, by id.
    pub fn online(&self) -> BTreeMap<MemberId, Online> {
        self.lock().clone()
    }

    /// A new connection: everybody is to be told of again.
    pub(super) fn begin(&self) {
        self.lock().values_mut().for_each(|online| online.told = false);
    }

    /// Whoever was not told of has left.
    pub(super) fn settle(&self) {
        let mut online = self.lock();
        let gone = online.iter().filter(|(_, online)| !online.told);
        let gone: Vec<(MemberId, Online)> =
            gone.map(|(id, online)| (*id, online.clone())).collect();
        for (id, gone) in gone {
            online.remove(&id);
            self.announce(EventKind::PeerLeave, id, &gone.name, &gone.pubkey);
        }
    }

    pub(super) fn told(&self, presence: &Presence) {
        let (id, name) = (presence.member_id, presence.name.clone());
        let pubkey = presence.pubkey.to_string();
        let mut online = self.lock();
        let before = if presence.online {
            let now = Online { name: name.clone(), pubkey: pubkey.clone(), told: true };
            online.insert(id, now)
        } else {
            online.remove(&id)
        };
        match (before, presence.online) {
            (None, true) => {
                self.announce(EventKind::PeerJoin, id, &name, &pubkey);
                self.joined.notify_one();
            }
            (Some(_), false) => self.announce(EventKind::PeerLeave, id, &name, &pubkey),
            (Some(_), true) | (None, false) => {}
        }
    }

    fn announce(&self, kind: EventKind, id: MemberId, name: &str, pubkey: &str) {
        let data = json!({"member_id": id.to_string(), "name": name, "pubkey": pubkey});
        self.inbox.announce(kind, &data);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MemberId, Online>> {
        self.online.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

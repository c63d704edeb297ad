//! Who is online, as the broker tells it. After a new connection the broker tells everything again:
//! whoever is not told of within a moment has left meanwhile. In a large mesh it tells only how
//! many there are, and is asked for those that matter.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::id::MemberId;
use semel_wire::frame::{Presence, PresenceCount};
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
    telling: Mutex<Telling>,
    /// Somebody has come online who was not.
    pub(crate) joined: Notify,
}

/// What the broker tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Telling {
    /// Who comes and goes.
    Names,
    /// Everybody anew: so many are still to come.
    Anew(u64),
    /// Only that there are so many.
    Count(u64),
}

impl Roster {
    pub(super) fn new(inbox: Arc<Inbox>) -> Self {
        let telling = Mutex::new(Telling::Names);
        Self { inbox, online: Mutex::default(), telling, joined: Notify::new() }
    }

    /// How many are online, where nobody is told by name.
    pub fn only_counted(&self) -> Option<u64> {
        match *self.telling() {
            Telling::Count(online) => Some(online),
            Telling::Names | Telling::Anew(_) => None,
        }
    }

    /// Everybody, by id.
    pub fn online(&self) -> BTreeMap<MemberId, Online> {
        self.lock().clone()
    }

    /// A new connection: everybody is to be told of again.
    pub(super) fn begin(&self) {
        *self.telling() = Telling::Names;
        self.lock().values_mut().for_each(|online| online.told = false);
    }

    /// Whoever was not told of has left.
    pub(super) fn settle(&self) {
        if matches!(*self.telling(), Telling::Anew(_)) {
            return;
        }
        let mut online = self.lock();
        let gone = online.iter().filter(|(_, online)| !online.told);
        let gone: Vec<(MemberId, Online)> =
            gone.map(|(id, online)| (*id, online.clone())).collect();
        for (id, gone) in gone {
            online.remove(&id);
            self.announce(EventKind::PeerLeave, id, &gone.name, &gone.pubkey);
        }
    }

    /// The broker counts: nobody has left by that, but who is online is to be asked for. Or it
    /// tells of everybody anew.
    pub(super) fn counted(&self, count: PresenceCount) {
        if count.names {
            self.begin();
            *self.telling() = Telling::Anew(count.online);
            self.settle_if_all();
        } else {
            *self.telling() = Telling::Count(count.online);
            self.lock().clear();
        }
    }

    fn settle_if_all(&self) {
        let is_all = *self.telling() == Telling::Anew(0);
        if is_all {
            *self.telling() = Telling::Names;
            self.settle();
        }
    }

    /// Somebody came or went.
    pub(super) fn told(&self, presence: &Presence) {
        self.tell(presence);
        let mut telling = self.telling();
        if let Telling::Anew(left) = &mut *telling {
            *left = left.saturating_sub(1);
        }
        drop(telling);
        self.settle_if_all();
    }

    fn tell(&self, presence: &Presence) {
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

    fn telling(&self) -> MutexGuard<'_, Telling> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MemberId, Online>> {
        self.online.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

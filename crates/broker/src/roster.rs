//! Who is connected in a mesh, as this broker has last read it, and what has changed since when.
//! One difference is made for each look, however many are connected; every connection has a place
//! in the log of changes, and whoever is behind its beginning starts anew. A mesh with many members
//! is counted: telling everybody of everybody would be the square of them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::hex::Hex;
use semel_core::id::{MemberId, MeshId};
use semel_wire::frame::Presence;
use tokio::sync::watch;

use crate::limits::{PRESENCE_LOG_MAX, PRESENCE_NAMES_AGAIN, PRESENCE_NAMES_MAX};
use crate::store::Present;

/// Members that are connected, with what is said of them.
pub type Everybody = Arc<BTreeMap<MemberId, Arc<Presence>>>;

/// A roster per mesh that has connections here.
#[derive(Default)]
pub struct Rosters {
    meshes: Mutex<HashMap<MeshId, Arc<Board>>>,
}

impl Rosters {
    /// The roster of a mesh.
    pub fn board(&self, mesh_id: MeshId) -> Arc<Board> {
        Arc::clone(self.lock().entry(mesh_id).or_default())
    }

    /// The same with word of its changes: as long as that is held, it is not forgotten.
    pub fn subscribe(&self, mesh_id: MeshId) -> (Arc<Board>, watch::Receiver<u64>) {
        let mut meshes = self.lock();
        let board = meshes.entry(mesh_id).or_default();
        (Arc::clone(board), board.changed.subscribe())
    }

    /// What was read last.
    pub fn publish(&self, mesh_id: MeshId, present: &[Present]) {
        self.board(mesh_id).publish(present);
    }

    /// Forgets the mesh unless somebody reads.
    pub fn forget(&self, mesh_id: MeshId) {
        let mut meshes = self.lock();
        if meshes.get(&mesh_id).is_some_and(|board| board.changed.receiver_count() == 0) {
            meshes.remove(&mesh_id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<MeshId, Arc<Board>>> {
        self.meshes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The roster of one mesh, and the log of its changes.
pub struct Board {
    book: Mutex<Book>,
    /// Told the number of the next change.
    changed: watch::Sender<u64>,
}

struct Book {
    everybody: Everybody,
    names: Names,
    /// The last changes, oldest first.
    log: VecDeque<Arc<Presence>>,
    /// The number of the first of them.
    first: u64,
}

/// Whether members are told by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// There are few.
    Told,
    /// There are too many.
    Counted,
}

impl Names {
    const fn with(self, members: usize) -> Self {
        match self {
            Self::Told if members > PRESENCE_NAMES_MAX => Self::Counted,
            Self::Counted if members <= PRESENCE_NAMES_AGAIN => Self::Told,
            Self::Told | Self::Counted => self,
        }
    }
}

/// All that there is to know, and from which change on it is not all.
pub struct Whole {
    /// Everybody.
    pub everybody: Everybody,
    /// Whether they are told by name.
    pub names: Names,
    /// The number of the next change.
    pub next: u64,
}

impl Default for Board {
    fn default() -> Self {
        let (everybody, log) = Default::default();
        let book = Book { everybody, names: Names::Told, log, first: 0 };
        Self { book: Mutex::new(book), changed: watch::channel(0).0 }
    }
}

impl Board {
    /// Everything.
    pub fn whole(&self) -> Whole {
        let book = self.book();
        Whole { everybody: Arc::clone(&book.everybody), names: book.names, next: book.next() }
    }

    /// Changes from this number on, so many at the most; nothing when they are not known any more.
    pub fn changes(&self, from: u64, max: usize) -> Option<Vec<Arc<Presence>>> {
        let book = self.book();
        let skipped = usize::try_from(from.checked_sub(book.first)?).ok()?;
        (book.names == Names::Told)
            .then(|| book.log.iter().skip(skipped).take(max).cloned().collect())
    }

    /// Those of these members that are connected.
    pub fn online(&self, members: &[MemberId]) -> Vec<MemberId> {
        let everybody = self.whole().everybody;
        members.iter().copied().filter(|member| everybody.contains_key(member)).collect()
    }

    /// What was read last: one difference, whoever listens.
    fn publish(&self, present: &[Present]) {
        let mut book = self.book();
        let (everybody, changes) = compared(&book.everybody, present);
        if changes.is_empty() {
            return;
        }
        book.everybody = Arc::new(everybody);
        book.record(changes);
        let next = book.next();
        drop(book);
        self.changed.send_replace(next);
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn next(&self) -> u64 {
        self.first + self.log.len() as u64
    }

    fn record(&mut self, changes: Vec<Arc<Presence>>) {
        let names = self.names.with(self.everybody.len());
        if names == Names::Told && self.names == Names::Told {
            self.log.extend(changes);
            let too_many = self.log.len().saturating_sub(PRESENCE_LOG_MAX);
            self.log.drain(..too_many);
            self.first += too_many as u64;
        } else {
            // Nobody goes on from here: all begin anew.
            self.first = self.next() + 1;
            self.log.clear();
        }
        self.names = names;
    }
}

/// Who is there now, one entry per member, however many of its daemons are connected; and what has
/// changed.
fn compared(
    before: &BTreeMap<MemberId, Arc<Presence>>,
    present: &[Present],
) -> (BTreeMap<MemberId, Arc<Presence>>, Vec<Arc<Presence>>) {
    let (mut now, mut changes) = (BTreeMap::new(), Vec::new());
    for present in present {
        let Ok(pubkey) = Hex::parse(&present.pubkey) else { continue };
        let member_id = present.session.member_id;
        let same = |then: &&Arc<Presence>| then.name == present.name && then.pubkey == pubkey;
        match before.get(&member_id).filter(same) {
            Some(then) => drop(now.insert(member_id, Arc::clone(then))),
            None => {
                let name = present.name.clone();
                let come = Arc::new(Presence { member_id, name, pubkey, online: true });
                if now.insert(member_id, Arc::clone(&come)).is_none() {
                    changes.push(come);
                }
            }
        }
    }
    let gone = before.values().filter(|then| !now.contains_key(&then.member_id));
    changes.extend(gone.map(|then| Arc::new(Presence { online: false, ..(**then).clone() })));
    (now, changes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::accept::Session;
    use semel_core::id::UuidId;
    use uuid::Uuid;

    pub(crate) fn present(member: u128, instance: u128, name: &str) -> Present {
        let (member_id, instance_id) =
            (UuidId::new(Uuid::from_u128(member)), UuidId::new(Uuid::from_u128(instance)));
        let session = Session { member_id, instance_id, epoch: 1 };
        Present { session, name: name.to_owned(), pubkey: "a1".repeat(32) }
    }

    /// A board on which so many are.
    pub(crate) fn with(rosters: &Rosters, members: u128) -> Arc<Board> {
        let mesh_id = UuidId::new(Uuid::nil());
        let all: Vec<Present> = (0..members).map(|n| present(n, 1, "x")).collect();
        rosters.publish(mesh_id, &all);
        rosters.board(mesh_id)
    }

    fn told(changes: Option<Vec<Arc<Presence>>>) -> Option<Vec<(String, bool)>> {
        let one = |change: &Arc<Presence>| (change.name.clone(), change.online);
        changes.map(|changes| changes.iter().map(one).collect())
    }

    #[test]
    fn only_differences_are_in_the_log() {
        let board = Board::default();
        board.publish(&[present(1, 1, "ada"), present(1, 2, "ada"), present(2, 1, "bob")]);
        let come = ["ada", "bob"].map(|name| (name.to_owned(), true)).to_vec();
        assert_eq!(told(board.changes(0, 9)), Some(come));
        let mut changed = board.changed.subscribe();
        board.publish(&[present(1, 2, "ada"), present(2, 1, "bob")]);
        assert!(!changed.has_changed().unwrap());
        board.publish(&[present(2, 1, "bert"), present(3, 1, "eve")]);
        assert!(changed.has_changed().unwrap());
        assert_eq!(*changed.borrow_and_update(), 5);
        let expected = [("bert", true), ("eve", true), ("ada", false)];
        let expected = expected.map(|(name, online)| (name.to_owned(), online)).to_vec();
        assert_eq!(told(board.changes(2, 9)), Some(expected.clone()));
        assert_eq!(told(board.changes(2, 1)), Some(expected[..1].to_vec()));
        assert_eq!(board.whole().next, 5);
    }

    #[test]
    fn the_log_has_a_limit() {
        let board = Board::default();
        for round in 0..PRESENCE_LOG_MAX {
            board.publish(&[present(1, 1, &round.to_string())]);
        }
        assert!(board.changes(0, 1).is_some());
        board.publish(&[present(2, 1, "ada")]);
        assert!(board.changes(1, 1).is_none(), "one came and one went");
        assert_eq!(told(board.changes(board.whole().next - 1, 9)).map(|told| told.len()), Some(1));
    }

    #[test]
    fn many_are_counted_until_they_are_few_again() {
        let rosters = Rosters::default();
        let max = PRESENCE_NAMES_MAX as u128;
        let board = with(&rosters, max);
        let then = board.whole();
        assert_eq!(then.names, Names::Told);
        with(&rosters, max + 1);
        assert_eq!(board.whole().names, Names::Counted);
        assert!(board.changes(then.next, 1).is_none() && board.whole().next > then.next);
        with(&rosters, PRESENCE_NAMES_AGAIN as u128 + 1);
        assert_eq!(board.whole().names, Names::Counted);
        with(&rosters, PRESENCE_NAMES_AGAIN as u128);
        let now = board.whole();
        assert_eq!((now.names, now.everybody.len()), (Names::Told, PRESENCE_NAMES_AGAIN));
        assert!(board.changes(then.next, 1).is_none());
        assert_eq!(told(board.changes(now.next, 1)), Some(Vec::new()));
    }
}

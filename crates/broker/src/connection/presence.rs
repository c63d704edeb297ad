//! Who comes and goes, told to one daemon from its place in the log of changes. It takes the room
//! that other frames leave: what does not fit is told later.

use std::ops::Bound;
use std::sync::Arc;

use semel_core::id::MemberId;
use semel_wire::frame::{FromBroker, Presence, PresenceCount, PresenceRequest, PresenceResult};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::outbound::Outbound;
use super::{Connection, End};
use crate::limits::{OUTBOUND_MAX, PRESENCE_COUNT_INTERVAL, PRESENCE_RETRY};
use crate::roster::{Board, Everybody, Names, Whole};

/// Begins once the features are agreed on.
pub(super) async fn run(connection: &Connection, negotiated: &Notify) -> End {
    negotiated.notified().await;
    let (board, mut changed) = connection.broker.rosters.subscribe(connection.mesh.mesh_id);
    let mut teller = Teller::default();
    loop {
        changed.mark_unchanged();
        match teller.tell(&connection.outbound, &board) {
            Told::Some => sleep(PRESENCE_RETRY).await,
            Told::Counted => {
                // Everybody who comes changes it.
                sleep(PRESENCE_COUNT_INTERVAL).await;
                wait(&mut changed).await;
            }
            Told::All => wait(&mut changed).await,
        }
    }
}

/// The board lives as long as we do.
async fn wait(changed: &mut tokio::sync::watch::Receiver<u64>) {
    if changed.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Which of these are connected.
pub(super) fn asked(connection: &Connection, request: &PresenceRequest) -> FromBroker {
    let board = connection.broker.rosters.board(connection.mesh.mesh_id);
    let (request_id, online) = (request.request_id, board.online(&request.members));
    FromBroker::PresenceResult(PresenceResult { request_id, online })
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    All,
    /// There was no room for the rest.
    Some,
    /// How many there are, and nothing else.
    Counted,
}

/// What a daemon was told so far.
#[derive(Default)]
struct Teller {
    place: Place,
    /// Entries that were looked at, for tests: what presence costs.
    looked: usize,
}

#[derive(Default)]
enum Place {
    /// Nothing yet.
    #[default]
    New,
    /// What it knows is not enough to go on from.
    Anew,
    /// Everybody up to this one, as they were before this change.
    Amid { everybody: Everybody, after: Option<MemberId>, next: u64 },
    /// All changes before this one.
    At(u64),
    /// That there are so many.
    Counted(usize),
}

impl Teller {
    /// Never waits, and leaves half of the queue to others.
    fn tell(&mut self, outbound: &Outbound, board: &Board) -> Told {
        loop {
            let room = outbound.capacity().saturating_sub(OUTBOUND_MAX / 2);
            if room == 0 {
                return Told::Some;
            }
            let said = |one: &Arc<Presence>| say(outbound, FromBroker::Presence((**one).clone()));
            match &mut self.place {
                Place::New | Place::Anew | Place::Counted(_) => {
                    if let Some(told) = self.begin(outbound, board) {
                        return told;
                    }
                }
                Place::Amid { everybody, after, next } => {
                    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
                    let mut rest = everybody.range((from, Bound::Unbounded)).take(room).peekable();
                    if rest.peek().is_none() {
                        self.place = Place::At(*next);
                        continue;
                    }
                    for (member_id, one) in rest {
                        self.looked += 1;
                        if !said(one) {
                            return Told::Some;
                        }
                        *after = Some(*member_id);
                    }
                }
                Place::At(at) => {
                    let Some(changes) = board.changes(*at, room) else {
                        self.place = Place::Anew;
                        continue;
                    };
                    if changes.is_empty() {
                        return Told::All;
                    }
                    for change in &changes {
                        self.looked += 1;
                        if !said(change) {
                            return Told::Some;
                        }
                        *at += 1;
                    }
                }
            }
        }
    }

    /// From the beginning; says what was told if that is all.
    fn begin(&mut self, outbound: &Outbound, board: &Board) -> Option<Told> {
        let Whole { everybody, names, next } = board.whole();
        let online = everybody.len();
        let names = match (names, &self.place) {
            (Names::Counted, Place::Counted(told)) if *told == online => {
                return Some(Told::Counted);
            }
            (Names::Counted, _) => false,
            (Names::Told, _) => true,
        };
        // A daemon that knows of nobody need not be told to forget them.
        if !(names && matches!(self.place, Place::New)) {
            let count = PresenceCount { online: online as u64, names };
            if !say(outbound, FromBroker::PresenceCount(count)) {
                return Some(Told::Some);
            }
        }
        if names {
            self.place = Place::Amid { everybody, after: None, next };
            return None;
        }
        self.place = Place::Counted(online);
        Some(Told::Counted)
    }
}

fn say(outbound: &Outbound, frame: FromBroker) -> bool {
    outbound.try_send(frame)
}

#[cfg(test)]
mod tests {
    use tokio::sync::{Semaphore, mpsc};

    use super::super::outbound::Queued;
    use super::*;
    use crate::limits::{PRESENCE_LOG_MAX, PRESENCE_NAMES_AGAIN, PRESENCE_NAMES_MAX};
    use crate::roster::Rosters;
    use crate::roster::tests::with;

    type Queue = mpsc::Receiver<Queued>;

    /// How many frames there are, and the bytes of them.
    fn read(queue: &mut Queue) -> (usize, usize) {
        let (mut frames, mut bytes) = (0, 0);
        while let Ok(frame) = queue.try_recv() {
            frames += 1;
            bytes += frame.outgoing.into_text().len();
        }
        (frames, bytes)
    }

    fn connected(count: usize) -> Vec<(Teller, Outbound, Queue)> {
        let connect = |_| {
            let (outbound, queue) = Outbound::new(&Arc::new(Semaphore::new(1)));
            (Teller::default(), outbound, queue)
        };
        (0..count).map(connect).collect()
    }

    /// What one more member costs all who are connected: entries looked at, frames and bytes.
    fn cost_of_a_join(members: usize) -> (usize, usize, usize) {
        let rosters = Rosters::default();
        let board = with(&rosters, members as u128);
        let mut connections = connected(members);
        for (teller, outbound, queue) in &mut connections {
            assert_ne!(teller.tell(outbound, &board), Told::Some);
            read(queue);
            teller.looked = 0;
        }
        with(&rosters, members as u128 + 1);
        let (mut frames, mut bytes) = (0, 0);
        for (teller, outbound, queue) in &mut connections {
            assert_ne!(teller.tell(outbound, &board), Told::Some);
            let read = read(queue);
            (frames, bytes) = (frames + read.0, bytes + read.1);
        }
        (connections.iter().map(|(teller, ..)| teller.looked).sum(), frames, bytes)
    }

    #[test]
    fn a_join_costs_each_connection_one_change_and_in_a_large_mesh_a_number() {
        for members in [10, 50, PRESENCE_NAMES_MAX - 1] {
            let (looked, frames, _) = cost_of_a_join(members);
            assert_eq!((looked, frames), (members, members), "{members}");
        }
        for members in [300, 800, 3000] {
            let (looked, frames, bytes) = cost_of_a_join(members);
            assert_eq!((looked, frames), (0, members), "{members}");
            assert!(bytes <= 64 * members, "{bytes} for {members}");
        }
    }

    #[test]
    fn who_is_behind_the_log_is_told_everything_anew() {
        let rosters = Rosters::default();
        let (mut connections, board) = (connected(1), with(&rosters, 3));
        let (teller, outbound, queue) = &mut connections[0];
        assert_eq!(teller.tell(outbound, &board), Told::All);
        assert_eq!(read(queue).0, 3, "and nothing before them");
        for _ in 0..PRESENCE_LOG_MAX {
            with(&rosters, 4);
            with(&rosters, 3);
        }
        assert_eq!(teller.tell(outbound, &board), Told::All);
        let count = PresenceCount { online: 3, names: true };
        assert_eq!(next(queue), FromBroker::PresenceCount(count).into());
        assert_eq!(read(queue).0, 3);
        with(&rosters, 4);
        assert_eq!(teller.tell(outbound, &board), Told::All);
        assert_eq!(read(queue).0, 1);
    }

    #[test]
    fn a_mesh_that_becomes_large_and_small_again_is_told_so() {
        let rosters = Rosters::default();
        let (mut connections, board) = (connected(1), with(&rosters, 3));
        let (teller, outbound, queue) = &mut connections[0];
        assert_eq!(teller.tell(outbound, &board), Told::All);
        read(queue);
        with(&rosters, 3000);
        assert_eq!(teller.tell(outbound, &board), Told::Counted);
        let count = PresenceCount { online: 3000, names: false };
        assert_eq!(next(queue), FromBroker::PresenceCount(count).into());
        assert_eq!(teller.tell(outbound, &board), Told::Counted);
        assert_eq!(read(queue).0, 0, "it has not changed");
        with(&rosters, PRESENCE_NAMES_AGAIN as u128);
        assert_eq!(teller.tell(outbound, &board), Told::All);
        let count = PresenceCount { online: PRESENCE_NAMES_AGAIN as u64, names: true };
        assert_eq!(next(queue), FromBroker::PresenceCount(count).into());
        assert_eq!(read(queue).0, PRESENCE_NAMES_AGAIN);
    }

    #[test]
    fn a_reader_that_is_slow_is_told_later() {
        let rosters = Rosters::default();
        let (mut connections, board) = (connected(1), with(&rosters, 200));
        let (teller, outbound, queue) = &mut connections[0];
        let others = OUTBOUND_MAX / 2 - 50;
        (0..others).for_each(|_| assert!(outbound.try_send(ping())));
        assert_eq!(teller.tell(outbound, &board), Told::Some);
        assert_eq!(outbound.capacity(), OUTBOUND_MAX / 2, "the rest is for others");
        with(&rosters, 199);
        assert_eq!(teller.tell(outbound, &board), Told::Some);
        assert_eq!(read(queue).0, others + 50);
        assert_eq!(teller.tell(outbound, &board), Told::All);
        assert_eq!(read(queue).0, 150 + 1, "the rest of them, and who has gone since");
    }

    fn next(queue: &mut Queue) -> super::super::Outgoing {
        queue.try_recv().unwrap_or_else(|_| panic!("nothing was said")).outgoing
    }

    fn ping() -> FromBroker {
        FromBroker::Ping(semel_wire::frame::Ping { id: 1 })
    }
}

//! One state of the model: the daemon's row, the connections, the accepts in progress, the store.
//!
//! Everything is small and `Copy`; `key.rs` packs it.

/// Connections that a state can hold.
pub(crate) const CONNS_MAX: usize = 5;
/// Accepts and ghosts that a state can hold.
pub(crate) const TXS_MAX: usize = 4;
/// The age past the dedupe horizon.
pub(crate) const PAST_HORIZON: u8 = 1;
/// The age 24 h past the dedupe horizon: dedupe rows are swept.
pub(crate) const FORGOTTEN: u8 = 2;
/// The epoch of a session row whose instance was retired: no connection has it.
pub(crate) const RETIRED: u8 = 7;

/// mesh.md §6, with the outcome of §10 in the variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Status {
    Pending,
    Inflight,
    Done,
    Refused,
    NeverSent,
    Unknown,
    /// Retired by a requeue: the same request goes out again under a fresh id.
    Aborted,
}

/// The daemon's outbox row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) status: Status,
    /// "May have been sent".
    pub(crate) maybe_sent: bool,
    /// It may have been sent under another `store_epoch`.
    pub(crate) other_store: bool,
    /// `dead` was told but is not on disk yet (only with `DeadOnDiskFirst` off).
    pub(crate) unwritten: bool,
    /// Somebody was told that the send failed, or it was aborted and sent anew. Never taken back.
    pub(crate) told_failed: bool,
    /// The last `store_epoch` seen, plus one; 0 for none.
    pub(crate) seen_store: u8,
}

/// What the store holds under the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Dedupe {
    Absent,
    Ours,
    /// The same id with another fingerprint, from another host of the member.
    Rival,
}

/// The store, with what the invariants need to remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) store_epoch: u8,
    pub(crate) dedupe: Dedupe,
    /// Message rows of our request.
    pub(crate) messages: u8,
    /// Our request was committed once, in this store or in one that was lost.
    pub(crate) ever: bool,
    /// `session_epoch` per instance; 0 is a missing row.
    pub(crate) session: [u8; 2],
    /// The store-wide sequence of epochs.
    pub(crate) sequence: u8,
}

/// How far a connection's `hello` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Hello {
    Settled,
    OnTheWire,
    /// Acknowledged, yet not raised (only with `AckAfterRaise` off).
    AckedEarly,
}

/// What a broker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Answer {
    /// `201` or `200`.
    Accepted,
    /// A permanent `4xx` or `409`.
    Refused,
    /// `410`.
    TooOld,
    /// `429` or `5xx`.
    Retry,
    ResolvedCommitted,
    ResolvedAbsent,
    ResolvedTooOld,
}

impl Answer {
    /// Every answer.
    pub(crate) const ALL: [Answer; 7] = [
        Answer::Accepted,
        Answer::Refused,
        Answer::TooOld,
        Answer::Retry,
        Answer::ResolvedCommitted,
        Answer::ResolvedAbsent,
        Answer::ResolvedTooOld,
    ];
}

/// One connection with what is on its wire. Frames that are never read are the lost ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Conn {
    pub(crate) instance: u8,
    /// The epoch that its `hello` raised; 0 before.
    pub(crate) epoch: u8,
    /// The `store_epoch` of its `hello_ack`.
    pub(crate) store_epoch: u8,
    pub(crate) hello: Hello,
    /// The daemon's end is open. Only the newest connection can be open.
    pub(crate) open: bool,
    /// The daemon has read `hello_ack`.
    pub(crate) acked: bool,
    /// `hello_ack` is on the wire.
    pub(crate) ack: bool,
    /// The daemon has an open attempt on it.
    pub(crate) attempt: bool,
    /// The broker's end is closed: nothing more is read.
    pub(crate) closed: bool,
    /// Sends on the wire.
    pub(crate) sends: u8,
    /// A `resolve` is on the wire.
    pub(crate) resolve: bool,
    /// Answers on the wire, a set of [`Answer`].
    pub(crate) answers: u8,
}

impl Conn {
    /// A connection that is gone, or has not been.
    pub(crate) const NONE: Conn = Conn {
        instance: 0,
        epoch: 0,
        store_epoch: 0,
        hello: Hello::Settled,
        open: false,
        acked: false,
        ack: false,
        attempt: false,
        closed: false,
        sends: 0,
        resolve: false,
        answers: 0,
    };
}

/// Where an accept is (mesh.md §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Phase {
    Free,
    /// B0 found nothing.
    Missed,
    /// B1 passed; waits for a transaction.
    Queued,
    /// Its COMMIT was uncertain; waits for another transaction.
    Rerun,
    /// The epoch was checked and its row is locked.
    Locked,
    /// The id is claimed.
    Claimed,
    /// B2 passed.
    ReadyNew,
    /// The claim found our own row.
    ReadyDuplicate,
    /// B2 refused, or the claim found another fingerprint: it only rides along.
    ReadyRefused,
    /// B2 refuses, but COMMIT is already written.
    ReadyBlind,
    /// A transaction whose broker has lost it after COMMIT was written.
    Ghost,
}

/// One accept in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tx {
    pub(crate) phase: Phase,
    pub(crate) conn: u8,
    /// It is the second run of its send.
    pub(crate) rerun: bool,
}

impl Tx {
    /// An unused place.
    pub(crate) const FREE: Tx = Tx { phase: Phase::Free, conn: 0, rerun: false };

    /// Whether it has an uncommitted claim on the id.
    pub(crate) fn holds_id(self) -> bool {
        let holding = [Phase::Claimed, Phase::ReadyNew, Phase::ReadyBlind, Phase::Ghost];
        holding.contains(&self.phase)
    }

    /// The accept in one byte.
    pub(crate) fn bits(self) -> u8 {
        (self.phase as u8) << 4 | self.conn << 1 | u8::from(self.rerun)
    }
}

/// One state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) row: Row,
    pub(crate) store: Store,
    /// 0, [`PAST_HORIZON`] or [`FORGOTTEN`].
    pub(crate) age: u8,
    /// Which instance the daemon is: 0, or 1 after an adoption.
    pub(crate) instance: u8,
    /// Connections opened so far.
    pub(crate) used: u8,
    pub(crate) conns: [Conn; CONNS_MAX],
    pub(crate) txs: [Tx; TXS_MAX],
    /// The daemon was sent a definite no for an id that is committed.
    pub(crate) lied: bool,
}

impl State {
    /// A row that was just accepted by a daemon without a connection.
    pub(crate) const START: State = State {
        row: Row {
            status: Status::Pending,
            maybe_sent: false,
            other_store: false,
            unwritten: false,
            told_failed: false,
            seen_store: 0,
        },
        store: Store {
            store_epoch: 0,
            dedupe: Dedupe::Absent,
            messages: 0,
            ever: false,
            session: [0, 0],
            sequence: 0,
        },
        age: 0,
        instance: 0,
        used: 0,
        conns: [Conn::NONE; CONNS_MAX],
        txs: [Tx::FREE; TXS_MAX],
        lied: false,
    };

    /// The connection that the daemon listens to.
    pub(crate) fn current(&self) -> Option<usize> {
        let newest = usize::from(self.used).checked_sub(1)?;
        self.conns[newest].open.then_some(newest)
    }

    /// Whether nothing runs at any broker.
    pub(crate) fn idle(&self) -> bool {
        self.txs[0].phase == Phase::Free
    }

    /// Sorts the accepts and forgets connections that can no longer matter, so that states which
    /// differ in nothing else are one.
    pub(crate) fn tidy(&mut self) {
        self.txs.sort_unstable_by_key(|tx| std::cmp::Reverse(tx.bits()));
        for index in 0..usize::from(self.used) {
            let conn = &self.conns[index];
            let silent = conn.hello == Hello::Settled && conn.sends == 0 && conn.answers == 0;
            let unused = |tx: &Tx| tx.phase == Phase::Free || usize::from(tx.conn) != index;
            if !conn.open && silent && !conn.resolve && self.txs.iter().all(unused) {
                self.conns[index] = Conn::NONE;
            }
        }
    }
}

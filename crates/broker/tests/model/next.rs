//! Every step that is possible in a state, and what the sides share.

use crate::rules::{Rule, Scope};
use crate::state::{Answer, Dedupe, Hello, Phase, State, Tx};
use crate::step::Step;
use crate::{broker, daemon, world};

/// Collects the steps out of one state.
pub(crate) struct Next<'a> {
    pub(crate) from: &'a State,
    pub(crate) scope: &'a Scope,
    found: &'a mut Vec<(Step, State)>,
}

/// Replaces `found` by the steps that are possible in `from`, always in the same order.
pub(crate) fn steps(from: &State, scope: &Scope, found: &mut Vec<(Step, State)>) {
    found.clear();
    let mut next = Next { from, scope, found };
    daemon::steps(&mut next);
    broker::steps(&mut next);
    world::steps(&mut next);
}

impl Next<'_> {
    /// Adds a step and the state that `change` makes.
    pub(crate) fn add(&mut self, step: Step, change: impl FnOnce(&mut State, &Scope)) {
        let mut to = *self.from;
        change(&mut to, self.scope);
        to.tidy();
        self.found.push((step, to));
    }
}

impl State {
    /// Puts an answer on a connection's wire. With the design's rules nobody will read it when the
    /// daemon has left that connection, so it is not kept.
    pub(crate) fn answer(&mut self, scope: &Scope, conn: usize, answer: Answer) {
        if self.conns[conn].open || !scope.on(Rule::OlderAnswersIgnored) {
            self.conns[conn].answers |= 1 << answer as u8;
        }
        let definite_no = answer == Answer::Refused || answer == Answer::Retry;
        if self.conns[conn].open && definite_no && self.store.dedupe == Dedupe::Ours {
            self.lied = true;
        }
    }

    /// The broker closes a connection: it reads nothing more from it. The daemon notices by
    /// losing the connection, which it can at any time.
    pub(crate) fn close(&mut self, conn: usize) {
        let conn = &mut self.conns[conn];
        conn.closed = true;
        conn.hello = Hello::Settled;
        conn.sends = 0;
        conn.resolve = false;
    }

    /// Ends an accept.
    pub(crate) fn end(&mut self, tx: usize) {
        self.txs[tx] = Tx::FREE;
    }

    /// A free place for an accept, within the scope's bound.
    pub(crate) fn free_tx(&self, scope: &Scope) -> Option<usize> {
        (0..scope.txs_max).find(|&tx| self.txs[tx].phase == Phase::Free)
    }

    /// Whether a transaction holds the shared lock on the session row of `instance`.
    pub(crate) fn session_locked(&self, scope: &Scope, instance: u8) -> bool {
        self.txs.iter().any(|tx| {
            let locking = if scope.on(Rule::LockHeldToEnd) {
                tx.phase as u8 >= Phase::Locked as u8
            } else {
                tx.phase == Phase::Locked
            };
            locking && self.conns[usize::from(tx.conn)].instance == instance
        })
    }

    /// Whether a transaction has an uncommitted claim on the id.
    pub(crate) fn id_held(&self) -> bool {
        self.txs.iter().any(|tx| tx.holds_id())
    }

    /// Commits our dedupe and message rows. The unique key stops a second row while the first
    /// one is there.
    pub(crate) fn insert(&mut self) {
        if self.store.dedupe == Dedupe::Absent {
            self.store.dedupe = Dedupe::Ours;
            self.store.messages += 1;
            self.store.ever = true;
        }
    }
}

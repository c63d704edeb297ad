//! Turns the model's steps into the store's, with names for the transactions.

use crate::state::{Answer, CONNS_MAX, Phase, State, Tx};
use crate::step::Step;
use crate::trace::{Resolution, StoreStep};

/// What one run has done to the store so far.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) steps: Vec<StoreStep>,
    begun: usize,
    /// The open transaction of each connection. With all rules on there is one at most, and
    /// beside it one ghost.
    running: [Option<usize>; CONNS_MAX],
    ghosts: [Option<usize>; CONNS_MAX],
}

impl Recorder {
    /// Adds what the store sees of a step, if anything.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most steps are not the store's")]
    pub(crate) fn record(&mut self, step: Step, from: &State, to: &State) {
        let recorded = match step {
            Step::Hello(conn) => {
                let instance = from.conns[conn].instance;
                let epoch = to.store.session[usize::from(instance)];
                Some(StoreStep::Hello { conn, instance, epoch, retires_owner: instance == 1 })
            }
            Step::HelloRefused(conn) => {
                Some(StoreStep::HelloRefused { conn, instance: from.conns[conn].instance })
            }
            Step::Lookup(conn, found) => Some(StoreStep::Lookup { conn, found }),
            Step::Begin(conn) | Step::RerunBegin(conn) => Some(self.begin(conn, Epoch::Current)),
            Step::Stale(conn) | Step::RerunStale(conn) => Some(self.begin(conn, Epoch::Stale)),
            Step::Uncertain(conn) => self.uncertain(conn, to),
            Step::GhostCommits(conn) => {
                self.ghosts[conn].take().map(|accept| StoreStep::Commit { accept })
            }
            Step::GhostRollsBack(conn) => {
                self.ghosts[conn].take().map(|accept| StoreStep::Rollback { accept })
            }
            Step::Resolve(conn, answer) => Some(StoreStep::Resolve { conn, says: says(answer) }),
            Step::TimePasses => Some(StoreStep::TimePasses),
            Step::Sweep => Some(StoreStep::Sweep),
            Step::SessionDeleted(instance) => Some(StoreStep::SessionDeleted { instance }),
            Step::RivalCommits => Some(StoreStep::RivalCommits),
            Step::RivalSwept => Some(StoreStep::RivalSwept),
            Step::Claim(conn, found) => {
                self.running[conn].map(|accept| StoreStep::Claim { accept, found })
            }
            Step::CheckPasses(conn) => {
                self.running[conn].map(|accept| StoreStep::CheckPasses { accept })
            }
            Step::CheckRefuses(conn) => {
                self.running[conn].map(|accept| StoreStep::CheckRefuses { accept })
            }
            Step::Commit(conn) => {
                self.running[conn].take().map(|accept| StoreStep::Commit { accept })
            }
            Step::Rollback(conn) => {
                self.running[conn].take().map(|accept| StoreStep::Rollback { accept })
            }
            _ => None,
        };
        self.steps.extend(recorded);
    }

    /// `resolve` and the other host can go on for ever; once each is enough.
    #[expect(clippy::wildcard_enum_match_arm, reason = "only two steps are tiring")]
    pub(crate) fn is_tired_of(&self, step: Step) -> bool {
        self.steps.iter().any(|known| match step {
            Step::RivalCommits => *known == StoreStep::RivalCommits,
            Step::AskResolve(asked) => {
                matches!(*known, StoreStep::Resolve { conn, .. } if conn == asked)
            }
            _ => false,
        })
    }

    fn begin(&mut self, conn: usize, epoch: Epoch) -> StoreStep {
        let accept = self.begun;
        self.begun += 1;
        let current = epoch == Epoch::Current;
        self.running[conn] = current.then_some(accept);
        StoreStep::Begin { accept, conn, current }
    }

    /// A transaction without a claim has nothing to be uncertain about: it commits at once.
    fn uncertain(&mut self, conn: usize, to: &State) -> Option<StoreStep> {
        let running = self.running[conn].take();
        let ghost = |tx: &Tx| tx.phase == Phase::Ghost && usize::from(tx.conn) == conn;
        if to.txs.iter().any(ghost) {
            self.ghosts[conn] = running;
            return None;
        }
        running.map(|accept| StoreStep::Commit { accept })
    }

    /// The steps; what is still open is rolled back.
    pub(crate) fn finish(mut self) -> Vec<StoreStep> {
        let open = self.running.iter().chain(&self.ghosts).flatten();
        self.steps.extend(open.map(|&accept| StoreStep::Rollback { accept }));
        self.steps
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Epoch {
    Current,
    Stale,
}

fn says(answer: Answer) -> Resolution {
    match answer {
        Answer::ResolvedCommitted => Resolution::Committed,
        Answer::ResolvedAbsent => Resolution::Absent,
        Answer::ResolvedTooOld
        | Answer::Accepted
        | Answer::Refused
        | Answer::TooOld
        | Answer::Retry => Resolution::TooOld,
    }
}

//! The send path as a model to be explored, and what must hold in each of its states.

use semel_testkit::explore::{Explored, Model};

use crate::key::Key;
use crate::next;
use crate::rules::Scope;
use crate::state::{State, Status};
use crate::step::Step;

/// What must hold in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invariant {
    /// I1: nothing that was reported as failed is, or will be, delivered.
    FailedIsNotDelivered,
    /// I2: the store has one message row per id at most.
    OneMessage,
    /// I3: nothing waits for ever: a state without a step has nothing left to do.
    NoDeadlock,
    /// I4: what is `done` was delivered.
    DoneIsDelivered,
    /// I5: a definite no (`4xx`, `429`, `5xx`) that the daemon can hear is never said of an id
    /// that is committed.
    AnswersAreTrue,
}

/// The promise to callers, without the broker's own honesty ([`Invariant::AnswersAreTrue`]).
pub(crate) const PROMISE: &[Invariant] = &[
    Invariant::FailedIsNotDelivered,
    Invariant::OneMessage,
    Invariant::NoDeadlock,
    Invariant::DoneIsDelivered,
];

/// All invariants.
pub(crate) const EVERYTHING: &[Invariant] = &[
    Invariant::FailedIsNotDelivered,
    Invariant::OneMessage,
    Invariant::NoDeadlock,
    Invariant::DoneIsDelivered,
    Invariant::AnswersAreTrue,
];

impl Invariant {
    /// Its name in `docs/model.md`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Invariant::FailedIsNotDelivered => "I1",
            Invariant::OneMessage => "I2",
            Invariant::NoDeadlock => "I3",
            Invariant::DoneIsDelivered => "I4",
            Invariant::AnswersAreTrue => "I5",
        }
    }

    fn holds(self, state: &State, scope: &Scope, found: &[(Step, State)]) -> bool {
        match self {
            Invariant::FailedIsNotDelivered => !(state.row.told_failed && state.store.ever),
            Invariant::OneMessage => state.store.messages <= 1,
            Invariant::NoDeadlock => at_rest(state, scope) || moves(state, found),
            Invariant::DoneIsDelivered => state.row.status != Status::Done || state.store.ever,
            Invariant::AnswersAreTrue => !state.lied,
        }
    }
}

/// Nothing is open, or only the bound on connections ends the run.
fn at_rest(state: &State, scope: &Scope) -> bool {
    let open = state.row.status == Status::Pending || state.row.status == Status::Inflight;
    state.idle() && (!open || usize::from(state.used) == scope.conns_max)
}

/// A crash with nothing to lose leads back to the same state and does not count.
fn moves(state: &State, found: &[(Step, State)]) -> bool {
    found.iter().any(|(_, to)| to != state)
}

/// A scope, and what is looked at in each of its states.
pub(crate) struct Checked<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) invariants: &'a [Invariant],
}

impl Model for Checked<'_> {
    type State = State;
    type Key = Key;
    type Step = Step;
    type Broken = Invariant;

    fn start(&self) -> State {
        State::START
    }

    fn key(&self, state: &State) -> Key {
        state.key()
    }

    fn steps(&self, state: &State, found: &mut Vec<(Step, State)>) {
        next::steps(state, self.scope, found);
    }

    fn broken(&self, state: &State, steps: &[(Step, State)]) -> Option<Invariant> {
        self.invariants.iter().find(|one| !one.holds(state, self.scope, steps)).copied()
    }
}

/// Explores everything within `scope`, or stops at the first state that breaks one of these.
pub(crate) fn explore(scope: &Scope, invariants: &[Invariant]) -> Explored<Step, Invariant> {
    semel_testkit::explore::explore(&Checked { scope, invariants })
}

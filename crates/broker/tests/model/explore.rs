//! Breadth-first search over all states, so that the first violation has a shortest trace.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

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

/// How an exploration ended.
#[derive(Debug)]
pub(crate) struct Explored {
    /// Distinct states that were reached.
    pub(crate) states: usize,
    /// Steps that were taken out of them.
    pub(crate) steps: usize,
    /// The longest shortest path.
    pub(crate) depth: usize,
    /// A shortest trace to a violation, if there is one.
    pub(crate) violation: Option<(Invariant, Vec<Step>)>,
}

/// Explores everything within `scope`, or stops at the first state that breaks one of `checked`.
pub(crate) fn explore(scope: &Scope, checked: &[Invariant]) -> Explored {
    let mut search = Search::new();
    let mut layer = vec![(0, State::START)];
    let mut found = Vec::new();
    let mut explored = Explored { states: 1, steps: 0, depth: 0, violation: None };
    loop {
        let mut below = Vec::new();
        for (number, state) in &layer {
            next::steps(state, scope, &mut found);
            explored.steps += found.len();
            let broken = checked.iter().find(|one| !one.holds(state, scope, &found));
            if let Some(&invariant) = broken {
                explored.states = search.parents.len();
                explored.violation = Some((invariant, search.trace(*number, scope)));
                return explored;
            }
            for (_, to) in &found {
                if let Some(child) = search.enter(*number, to.key()) {
                    below.push((child, *to));
                }
            }
        }
        if below.is_empty() {
            explored.states = search.parents.len();
            return explored;
        }
        explored.depth += 1;
        layer = below;
    }
}

/// The states seen, each with a number and the number of the state that it was first seen from.
struct Search {
    numbers: HashMap<Key, u32, BuildHasherDefault<Mixer>>,
    parents: Vec<u32>,
    count: u32,
}

impl Search {
    fn new() -> Search {
        let mut search = Search { numbers: HashMap::default(), parents: Vec::new(), count: 0 };
        search.enter(0, State::START.key());
        search
    }

    /// The new state's number, or `None` for one that is known.
    fn enter(&mut self, parent: u32, key: Key) -> Option<u32> {
        let Entry::Vacant(place) = self.numbers.entry(key) else { return None };
        assert!(self.count < u32::MAX, "more states than numbers");
        let number = self.count;
        self.count += 1;
        place.insert(number);
        self.parents.push(parent);
        Some(number)
    }

    /// The steps from the start to a state. Steps are not stored: they are found again by walking
    /// the states' numbers.
    fn trace(&self, last: u32, scope: &Scope) -> Vec<Step> {
        let mut numbers = vec![last];
        while let Some(&number) = numbers.last()
            && number != 0
        {
            numbers.push(self.parents[number as usize]);
        }
        let mut state = State::START;
        let mut trace = Vec::new();
        let mut found = Vec::new();
        for wanted in numbers.iter().rev().skip(1) {
            next::steps(&state, scope, &mut found);
            let reached = found.iter().find(|(_, to)| self.numbers.get(&to.key()) == Some(wanted));
            let Some(&(step, to)) = reached else { unreachable!("a parent leads to its child") };
            trace.push(step);
            state = to;
        }
        trace
    }
}

/// Keys are dense bits, so two multiplications spread them well enough; the standard hasher takes
/// most of the time of a debug build.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        (self.0 ^ (self.0 >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }
}

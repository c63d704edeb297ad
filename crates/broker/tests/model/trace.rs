//! Runs of the model as a real store would see them, to be replayed against the stores.
//!
//! A trace has only what a store executes; frames, answers and the daemon are left out. Steps that
//! must wait (a `hello` for shared locks, a claim for another claim) stand where the model lets
//! them through, so a replay that runs the steps in order never blocks, and each result is known.
//! An uncertain COMMIT is a `Commit` or `Rollback` of that accept later in the trace, after its
//! second run, a new accept on the same connection, may have begun.

use semel_testkit::dice::Dice;

use crate::next;
use crate::record::Recorder;
use crate::rules::{Rules, Scope, Trouble};
use crate::state::{Dedupe, State, TXS_MAX};
use crate::step::Step;

/// Steps of one run of the model.
const WALK_STEPS_MAX: usize = 90;
/// Runs that are tried before giving up on more traces.
const WALKS_MAX: usize = 20_000;
/// Connections of one trace.
const TRACE_CONNS_MAX: usize = 4;
/// Steps of one trace.
const TRACE_STEPS_MAX: usize = 40;

/// What `resolve` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Resolution {
    Committed,
    Absent,
    TooOld,
}

/// One step of a store with the result that it must have. `conn` is a connection, in order of
/// birth; `accept` is a transaction, in order of its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoreStep {
    /// Raises the epoch of `instance`. `epoch` counts the store's raises: real epochs may be
    /// other numbers in the same order. `retires_owner`: it retires instance 0 as well.
    Hello {
        conn: usize,
        instance: u8,
        epoch: u8,
        retires_owner: bool,
    },
    /// A `hello` of an instance that was retired: refused.
    HelloRefused {
        conn: usize,
        instance: u8,
    },
    /// B0 for our id and fingerprint.
    Lookup {
        conn: usize,
        found: Dedupe,
    },
    /// Begins an accept of our id and fingerprint with the epoch of `conn`. When that is not
    /// `current` the transaction ends at once.
    Begin {
        accept: usize,
        conn: usize,
        current: bool,
    },
    /// Claims our id.
    Claim {
        accept: usize,
        found: Dedupe,
    },
    /// B2 passes: the message row is written.
    CheckPasses {
        accept: usize,
    },
    /// B2 refuses: the claim is taken back.
    CheckRefuses {
        accept: usize,
    },
    Commit {
        accept: usize,
    },
    Rollback {
        accept: usize,
    },
    Resolve {
        conn: usize,
        says: Resolution,
    },
    /// The clock moves past the horizon of our send, the second time 24 h past it.
    TimePasses,
    /// The sweeper removes our dedupe row; the message row stays.
    Sweep,
    SessionDeleted {
        instance: usize,
    },
    /// Another host of the member commits another request under our id.
    RivalCommits,
    /// The sweeper removes the other request's dedupe row.
    RivalSwept,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Trace {
    pub(crate) steps: Vec<StoreStep>,
    /// What B0 must find at the end.
    pub(crate) dedupe: Dedupe,
    /// Message rows of our request that must be there at the end.
    pub(crate) messages: u8,
}

impl Trace {
    /// Whether at no time two transactions are open, so that a store with one writer can run it.
    pub(crate) fn is_serial(&self) -> bool {
        let mut open = None;
        self.steps.iter().all(|step| match *step {
            StoreStep::Begin { accept, current, .. } => {
                let alone = open.is_none();
                open = current.then_some(accept);
                alone
            }
            StoreStep::Commit { accept } | StoreStep::Rollback { accept } => {
                open.take() == Some(accept)
            }
            StoreStep::Claim { .. }
            | StoreStep::CheckPasses { .. }
            | StoreStep::CheckRefuses { .. }
            | StoreStep::Lookup { .. }
            | StoreStep::Resolve { .. }
            | StoreStep::TimePasses => true,
            StoreStep::Hello { .. }
            | StoreStep::HelloRefused { .. }
            | StoreStep::Sweep
            | StoreStep::SessionDeleted { .. }
            | StoreStep::RivalCommits
            | StoreStep::RivalSwept => open.is_none(),
        })
    }
}

/// `count` different traces, the same ones every time; half of them are serial.
pub(crate) fn traces(count: usize) -> Vec<Trace> {
    let troubles = [Trouble::Age, Trouble::Forget, Trouble::Adopt, Trouble::Rival];
    let scopes = [
        Scope::new(Rules::DESIGN, TRACE_CONNS_MAX, TXS_MAX, &[]),
        Scope::new(Rules::DESIGN, TRACE_CONNS_MAX, TXS_MAX, &troubles),
    ];
    let mut found: Vec<Trace> = Vec::new();
    let mut serial = 0;
    for seed in 0..WALKS_MAX {
        if found.len() == count {
            break;
        }
        let trace = walk(&scopes[seed % scopes.len()], seed as u64);
        let share = if trace.is_serial() { serial } else { found.len() - serial };
        let claims = trace.steps.iter().any(|step| matches!(step, StoreStep::Claim { .. }));
        if claims && share < count.div_ceil(2) && !found.contains(&trace) {
            serial += usize::from(trace.is_serial());
            found.push(trace);
        }
    }
    found
}

/// One random run. What is still open at its end is rolled back.
fn walk(scope: &Scope, seed: u64) -> Trace {
    let mut dice = Dice::new(seed);
    let mut state = State::START;
    let mut recorder = Recorder::default();
    let mut found = Vec::new();
    for _ in 0..WALK_STEPS_MAX {
        next::steps(&state, scope, &mut found);
        found.retain(|(step, to)| *to != state && !recorder.is_tired_of(*step));
        let weights = found.iter().map(|(step, _)| weight(*step));
        let mut left = dice.below(weights.clone().sum::<usize>().max(1));
        let Some(chosen) = weights.into_iter().position(|weight| {
            let hit = left < weight;
            left = left.wrapping_sub(weight);
            hit
        }) else {
            break;
        };
        let (step, to) = found[chosen];
        recorder.record(step, &state, &to);
        state = to;
        if recorder.steps.len() >= TRACE_STEPS_MAX {
            break;
        }
    }
    Trace { steps: recorder.finish(), dedupe: state.store.dedupe, messages: state.store.messages }
}

/// Answers that are heard end a run early, and refusals keep it out of the store: most of the
/// traces should have lost answers, second attempts and uncertain COMMITs.
fn weight(step: Step) -> usize {
    if matches!(step, Step::Uncertain(_) | Step::Pass(_) | Step::RerunBegin(_)) {
        30
    } else if matches!(step, Step::Hear(..) | Step::AskResolve(_) | Step::ConnectionLost(_)) {
        8
    } else if matches!(
        step,
        Step::Crash
            | Step::Expire
            | Step::Requeue
            | Step::Adopt
            | Step::TimePasses
            | Step::SessionDeleted(_)
            | Step::RivalCommits
            | Step::RefuseEarly(_)
            | Step::Deny(_)
    ) {
        1
    } else {
        20
    }
}

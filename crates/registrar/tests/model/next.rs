//! What can happen next, and the rules as switches. A rule that is off is replaced by what a
//! plausible wrong implementation does; its comment names that mistake.

use semel_registrar::decide::{
    Arrival, Binding, Earlier, Facts, Gate, Key, NonceState, Outcome, Time, Verified, decide,
};

use crate::state::{ATTEMPTS, Attempt, KEYS, NONCES, Phase, REQUESTS, State, is_bound, key_of};

/// One switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Rule {
    /// Off: the transaction acts on what the first look has found, and no key is unique.
    DecidedInside,
    /// Off: whether a nonce was used is not looked at.
    NonceHasItsRow,
    /// Off: any grant will do.
    GrantIsBound,
    /// Off: the nonce is consumed by a transaction of its own, before the rest.
    OneTransaction,
    /// Off: a stale request is refused before anything is looked at.
    ConsumedBeforeTime,
    /// Off: a held domain refuses before anything is looked at.
    ConsumedBeforeGate,
    /// Off: what is consumed is swept when it is stale.
    NeverForgotten,
    /// Off: a failed verification frees key and nonce.
    VerdictFreesNothing,
    /// Off: open attempts are not looked at.
    OpenIsUncertain,
    /// Off: an attempt is written down together with its effect.
    StartedFirst,
    /// Off: an attempt does not look whether it was closed meanwhile.
    OwnEntryOpen,
    /// Off: `resolve` does not wait for transactions on the key.
    ResolveWaits,
    /// Off: a lost connection counts as a rollback.
    LostStaysOpen,
    /// Off: two attempts that are both under way both wait for the other.
    OnlyEarlierBlock,
}

impl Rule {
    pub(crate) const ALL: [Self; 14] = [
        Self::DecidedInside,
        Self::NonceHasItsRow,
        Self::GrantIsBound,
        Self::OneTransaction,
        Self::ConsumedBeforeTime,
        Self::ConsumedBeforeGate,
        Self::NeverForgotten,
        Self::VerdictFreesNothing,
        Self::OpenIsUncertain,
        Self::StartedFirst,
        Self::OwnEntryOpen,
        Self::ResolveWaits,
        Self::LostStaysOpen,
        Self::OnlyEarlierBlock,
    ];
}

/// Which rules are on, and how finely transactions are cut.
pub(crate) struct Scope {
    off: Option<Rule>,
    /// A transaction is one step: for traces that a store can replay.
    pub(crate) serial: bool,
}

impl Scope {
    pub(crate) fn design() -> Self {
        Self { off: None, serial: false }
    }

    pub(crate) fn without(rule: Rule) -> Self {
        Self { off: Some(rule), serial: false }
    }

    pub(crate) fn serial() -> Self {
        Self { off: None, serial: true }
    }

    fn on(&self, rule: Rule) -> bool {
        self.off != Some(rule)
    }
}

/// Something that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// An attempt comes and looks. `renewed`: its request was made anew after time has passed.
    Arrive {
        who: usize,
        request: usize,
        nonce: usize,
        renewed: bool,
        says: Outcome,
    },
    Start {
        who: usize,
    },
    /// Its transaction decides; what is not registered is told and closed.
    Act {
        who: usize,
        says: Outcome,
    },
    /// It closes its entry and is told that nobody knows, because an earlier attempt is open.
    GiveUp {
        who: usize,
    },
    Commit {
        who: usize,
    },
    /// Committed, and nobody hears it.
    CommitUnheard {
        who: usize,
    },
    /// The process dies; what is not committed is undone.
    Crash {
        who: usize,
    },
    /// The connection to the store is lost; the transaction goes on alone.
    Lose {
        who: usize,
    },
    GhostCommits {
        who: usize,
    },
    GhostEnds {
        who: usize,
    },
    Resolve {
        key: usize,
        absent: bool,
    },
    Fail,
    TimePasses,
    Hold,
    Open,
    Revoke,
}

/// Everything that can happen in this state.
pub(crate) fn steps(from: &State, scope: &Scope, found: &mut Vec<(Step, State)>) {
    found.clear();
    for who in 0..ATTEMPTS {
        match from.attempts[who].phase {
            Phase::Idle => {
                let next_in_line = who == 0 || from.attempts[who - 1].phase != Phase::Idle;
                if next_in_line {
                    arrivals(from, scope, who, found);
                }
            }
            Phase::Looked => start(from, scope, who, found),
            Phase::Started | Phase::Half => act(from, scope, who, found),
            Phase::GivingUp => {
                let mut to = *from;
                to.attempts[who].phase = Phase::Ended;
                to.attempts[who].open = false;
                found.push((Step::GiveUp { who }, to));
                crash(from, who, found);
            }
            Phase::Inserted => finish(from, scope, who, found),
            Phase::Ghost => ghost(from, scope, who, found),
            Phase::Ended => {}
        }
    }
    resolves(from, scope, found);
    world(from, scope, found);
}

/// What the attempt's transaction, or its look (`entry` past everybody's), reads.
fn facts(from: &State, scope: &Scope, who: usize, entry: u8) -> Facts {
    let mine = from.attempts[who];
    let (request, nonce) = (usize::from(mine.request), usize::from(mine.nonce));
    let key = key_of(request);
    let held_by = from.key_row[key];
    let open = |other: &&Attempt| {
        let same = key_of(usize::from(other.request)) == key && other.entry != mine.entry;
        let blocks = if scope.on(Rule::OnlyEarlierBlock) { other.entry < entry } else { true };
        other.open && same && blocks
    };
    let earlier = from.attempts.iter().filter(open).count() > 0;
    let closed = scope.on(Rule::OwnEntryOpen) && mine.entry != 0 && !mine.open;
    let uncertain = (scope.on(Rule::OpenIsUncertain) && earlier) || closed;
    let bound = is_bound(nonce, key) || !scope.on(Rule::GrantIsBound);
    let nonce_state = match usize::from(from.nonce_row[nonce]) {
        0 if nonce == 1 && from.revoked => NonceState::Revoked,
        0 => NonceState::Fresh,
        used if used == key + 1 => NonceState::SameRow,
        _ if !scope.on(Rule::NonceHasItsRow) => NonceState::Fresh,
        _ => NonceState::OtherRow,
    };
    Facts {
        key: match held_by {
            0 => Key::Free,
            by if by == mine.request + 1 => Key::Same,
            _ => Key::Other,
        },
        nonce: nonce_state,
        binding: if bound { Binding::Bound } else { Binding::Unbound },
        verified: if from.failed && key == 0 { Verified::Failed } else { Verified::NotFailed },
        arrival: if held_by == 0 || mine.entry != 0 { Arrival::Free } else { Arrival::Taken },
        earlier: if uncertain { Earlier::Open } else { Earlier::None },
        gate: if from.held { Gate::Held } else { Gate::Open },
        time: if mine.fresh { Time::Fresh } else { Time::Stale },
    }
}

/// The product's decision, or that of a wrong order of looks.
fn decided(scope: &Scope, facts: Facts) -> Outcome {
    if !scope.on(Rule::ConsumedBeforeTime) && facts.time == Time::Stale {
        return Outcome::Stale;
    }
    if !scope.on(Rule::ConsumedBeforeGate) && facts.gate == Gate::Held {
        return Outcome::Hold;
    }
    decide(facts)
}

fn arrivals(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    for request in 0..REQUESTS {
        for nonce in 0..NONCES {
            for renewed in [false, true] {
                if renewed && !from.stale {
                    continue;
                }
                let mut to = *from;
                let small = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
                to.attempts[who] = Attempt {
                    phase: Phase::Looked,
                    request: small(request),
                    nonce: small(nonce),
                    fresh: !from.stale || renewed,
                    ..Attempt::default()
                };
                let says = decided(scope, facts(&to, scope, who, u8::MAX));
                if says != Outcome::Registered && says != Outcome::Uncertain {
                    to.attempts[who].phase = Phase::Ended;
                    to.tell(who, says, u8::MAX);
                }
                found.push((Step::Arrive { who, request, nonce, renewed, says }, to));
            }
        }
    }
}

fn start(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    let mut to = *from;
    let last = from.attempts.iter().map(|attempt| attempt.entry).max().unwrap_or(0);
    let mine = &mut to.attempts[who];
    mine.phase = Phase::Started;
    mine.entry = last + 1;
    mine.open = scope.on(Rule::StartedFirst);
    found.push((Step::Start { who }, to));
    crash(from, who, found);
}

/// Whether another transaction has this key's or this nonce's lock.
fn locked(from: &State, who: usize) -> bool {
    let mine = from.attempts[who];
    let key = |attempt: &Attempt| key_of(usize::from(attempt.request));
    from.attempts.iter().enumerate().any(|(other, attempt)| {
        let inside = matches!(attempt.phase, Phase::Inserted | Phase::Ghost);
        other != who && inside && (key(attempt) == key(&mine) || attempt.nonce == mine.nonce)
    })
}

fn act(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    let mine = from.attempts[who];
    if mine.phase == Phase::Half {
        let mut to = *from;
        to.attempts[who].phase = Phase::Inserted;
        found.push((Step::Act { who, says: Outcome::Registered }, to));
        return crash(from, who, found);
    }
    crash(from, who, found);
    if scope.on(Rule::DecidedInside) && locked(from, who) {
        return;
    }
    let facts = facts(from, scope, who, mine.entry);
    let missing = !scope.on(Rule::StartedFirst) && facts.earlier == Earlier::Open;
    let facts = if missing { Facts { earlier: Earlier::None, ..facts } } else { facts };
    let says = match facts.earlier {
        Earlier::None if !scope.on(Rule::DecidedInside) => Outcome::Registered,
        Earlier::None | Earlier::Open => decided(scope, facts),
    };
    let mut to = *from;
    if says == Outcome::Registered {
        if scope.on(Rule::OneTransaction) {
            to.attempts[who].phase = Phase::Inserted;
        } else {
            use_nonce(&mut to, who);
            to.attempts[who].phase = Phase::Half;
        }
        if scope.serial {
            commit(&mut to, who);
        }
    } else if says == Outcome::Uncertain {
        // It may look again for a while: nothing changes by that.
        to.attempts[who].phase = Phase::GivingUp;
        to.attempts[who].denied = false;
    } else {
        to.attempts[who] = Attempt { phase: Phase::Ended, open: false, ..mine };
        to.tell(who, says, mine.entry);
    }
    found.push((Step::Act { who, says }, to));
}

fn use_nonce(to: &mut State, who: usize) {
    let mine = to.attempts[who];
    let key = key_of(usize::from(mine.request));
    let nonce = usize::from(mine.nonce);
    to.uses[nonce] += 1;
    to.nonce_row[nonce] = u8::try_from(key).unwrap_or(u8::MAX) + 1;
}

fn commit(to: &mut State, who: usize) {
    let mine = to.attempts[who];
    let key = key_of(usize::from(mine.request));
    if usize::from(to.nonce_row[usize::from(mine.nonce)]) != key + 1 || to.key_row[key] != 0 {
        use_nonce(to, who);
    }
    to.key_row[key] = mine.request + 1;
    to.effects[key] += 1;
    to.lied |= mine.denied;
    to.unbound |= !is_bound(usize::from(mine.nonce), key);
    to.attempts[who] = Attempt { phase: Phase::Ended, open: false, denied: false, ..mine };
}

fn finish(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    let mut to = *from;
    commit(&mut to, who);
    found.push((Step::Commit { who }, to));
    to.trouble = true;
    found.push((Step::CommitUnheard { who }, to));
    crash(from, who, found);
    let mut to = *from;
    to.trouble = true;
    to.attempts[who].phase = Phase::Ghost;
    if !scope.on(Rule::LostStaysOpen) {
        to.attempts[who].open = false;
        to.tell(who, Outcome::Undone, u8::MAX);
    }
    found.push((Step::Lose { who }, to));
}

fn ghost(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    let mut to = *from;
    commit(&mut to, who);
    found.push((Step::GhostCommits { who }, to));
    let mut to = *from;
    to.attempts[who].phase = Phase::Ended;
    to.attempts[who].denied = false;
    to.attempts[who].open &= scope.on(Rule::LostStaysOpen);
    found.push((Step::GhostEnds { who }, to));
}

fn crash(from: &State, who: usize, found: &mut Vec<(Step, State)>) {
    let mut to = *from;
    to.trouble = true;
    to.attempts[who].phase = Phase::Ended;
    to.attempts[who].denied = false;
    found.push((Step::Crash { who }, to));
}

fn resolves(from: &State, scope: &Scope, found: &mut Vec<(Step, State)>) {
    for key in 0..KEYS {
        let of_key = |attempt: &Attempt| key_of(usize::from(attempt.request)) == key;
        let inside = |attempt: &&Attempt| {
            of_key(attempt) && matches!(attempt.phase, Phase::Inserted | Phase::Ghost)
        };
        if scope.on(Rule::ResolveWaits) && from.attempts.iter().any(|a| inside(&a)) {
            continue;
        }
        if !from.attempts.iter().any(|attempt| attempt.open && of_key(attempt)) {
            continue;
        }
        let mut to = *from;
        to.trouble = true;
        let absent = from.key_row[key] == 0;
        if absent {
            to.deny(key, u8::MAX);
        }
        for attempt in to.attempts.iter_mut().filter(|attempt| of_key(attempt)) {
            attempt.open = false;
        }
        found.push((Step::Resolve { key, absent }, to));
    }
}

fn world(from: &State, scope: &Scope, found: &mut Vec<(Step, State)>) {
    let mut add = |step, change: &dyn Fn(&mut State)| {
        let mut to = State { trouble: true, ..*from };
        change(&mut to);
        found.push((step, to));
    };
    if from.key_row[0] != 0 && !from.failed {
        let frees = !scope.on(Rule::VerdictFreesNothing);
        add(Step::Fail, &|to| {
            to.failed = true;
            if frees {
                forget(to, 0);
            }
        });
    }
    if !from.stale {
        add(Step::TimePasses, &|to| {
            to.stale = true;
            if !scope.on(Rule::NeverForgotten) {
                (0..KEYS).for_each(|key| forget(to, key));
            }
        });
    }
    if from.held {
        add(Step::Open, &|to| to.held = false);
    } else {
        add(Step::Hold, &|to| to.held = true);
    }
    if !from.revoked && from.nonce_row[1] == 0 {
        let busy = from.attempts.iter().any(|attempt| {
            attempt.nonce == 1 && matches!(attempt.phase, Phase::Inserted | Phase::Ghost)
        });
        if !busy {
            add(Step::Revoke, &|to| to.revoked = true);
        }
    }
}

fn forget(to: &mut State, key: usize) {
    to.key_row[key] = 0;
    for row in to.nonce_row.iter_mut().filter(|row| usize::from(**row) == key + 1) {
        *row = 0;
    }
}

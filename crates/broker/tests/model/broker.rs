//! What brokers read from connections: `hello`, sends up to B0, and `resolve` (mesh.md §7, §10).
//!
//! Brokers keep nothing, so any number of them is one set of accepts in progress.

use crate::accept;
use crate::next::Next;
use crate::rules::{Rule, Scope};
use crate::state::{Answer, CONNS_MAX, Dedupe, Hello, PAST_HORIZON, Phase, RETIRED, State, Tx};
use crate::step::Step;

/// Connections as an accept remembers them.
const NUMBERS: [u8; CONNS_MAX] = [0, 1, 2, 3, 4];

/// Everything that a broker, or the store on its behalf, can do.
pub(crate) fn steps(next: &mut Next<'_>) {
    for conn in 0..usize::from(next.from.used) {
        hello(next, conn);
        lookup(next, conn);
        resolve(next, conn);
    }
    for index in 0..next.scope.txs_max {
        let tx = next.from.txs[index];
        // Equal accepts are next to each other and do the same.
        if index > 0 && next.from.txs[index - 1] == tx {
            continue;
        }
        accept::steps(next, index, tx);
    }
}

/// `hello` raises the epoch in one transaction of its own. Its ack may be lost, its connection
/// may long be left: it raises all the same.
fn hello(next: &mut Next<'_>, conn: usize) {
    let at = next.from.conns[conn];
    if at.hello == Hello::Settled {
        return;
    }
    if next.from.store.session[usize::from(at.instance)] == RETIRED {
        next.add(Step::HelloRefused(conn), |to, _| to.close(conn));
        return;
    }
    let retires = at.instance == 1 && next.scope.on(Rule::AdoptionRetiresOwner);
    let locked = next.from.session_locked(next.scope, at.instance)
        || retires && next.from.session_locked(next.scope, 0);
    let free = !locked || !next.scope.on(Rule::HelloWaitsForLocks);
    if at.hello == Hello::OnTheWire && !next.scope.on(Rule::AckAfterRaise) {
        next.add(Step::AckEarly(conn), |to, scope| {
            take_epoch(to, scope, conn);
            to.conns[conn].hello = Hello::AckedEarly;
        });
    } else if free {
        let late = at.hello == Hello::AckedEarly;
        let step = if late { Step::RaiseLate(conn) } else { Step::Hello(conn) };
        next.add(step, |to, scope| {
            if !late {
                take_epoch(to, scope, conn);
            }
            to.conns[conn].hello = Hello::Settled;
            to.store.session[usize::from(at.instance)] = to.conns[conn].epoch;
            if retires {
                to.store.session[0] = RETIRED;
            }
        });
    }
}

fn take_epoch(to: &mut State, scope: &Scope, conn: usize) {
    let at = &mut to.conns[conn];
    at.epoch = if scope.on(Rule::EpochsNeverRepeat) {
        to.store.sequence += 1;
        to.store.sequence
    } else {
        to.store.session[usize::from(at.instance)] + 1
    };
    at.store_epoch = to.store.store_epoch;
    at.ack = at.open;
}

/// A send is read and B0 looks its id up. The limiter and shedding come later.
fn lookup(next: &mut Next<'_>, conn: usize) {
    if next.from.conns[conn].sends == 0 {
        return;
    }
    let found = next.from.store.dedupe;
    let too_old = next.from.age >= PAST_HORIZON && next.scope.on(Rule::ConflictPastHorizonIsTooOld);
    let free = next.from.free_tx(next.scope);
    let room = found != Dedupe::Absent || free.is_some();
    if room {
        next.add(Step::Lookup(conn, found), |to, scope| {
            to.conns[conn].sends -= 1;
            match (found, free) {
                (Dedupe::Ours, _) => to.answer(scope, conn, Answer::Accepted),
                (Dedupe::Rival, _) if too_old => to.answer(scope, conn, Answer::TooOld),
                (Dedupe::Rival, _) => to.answer(scope, conn, Answer::Refused),
                (Dedupe::Absent, Some(place)) => {
                    to.txs[place] = Tx { phase: Phase::Missed, conn: NUMBERS[conn], rerun: false };
                }
                (Dedupe::Absent, None) => {}
            }
        });
    }
    if !next.scope.on(Rule::DedupeBeforeLimiter) {
        next.add(Step::Deny(conn), |to, scope| {
            to.conns[conn].sends -= 1;
            to.answer(scope, conn, Answer::Retry);
        });
    }
}

fn resolve(next: &mut Next<'_>, conn: usize) {
    if !next.from.conns[conn].resolve {
        return;
    }
    let by_id = !next.scope.on(Rule::ResolveComparesFingerprint);
    let committed = match next.from.store.dedupe {
        Dedupe::Ours => true,
        Dedupe::Rival => by_id,
        Dedupe::Absent => false,
    };
    let answer = if committed {
        Answer::ResolvedCommitted
    } else if next.from.age >= PAST_HORIZON && next.scope.on(Rule::ResolveTooOld) {
        Answer::ResolvedTooOld
    } else {
        Answer::ResolvedAbsent
    };
    next.add(Step::Resolve(conn, answer), |to, scope| {
        to.conns[conn].resolve = false;
        to.answer(scope, conn, answer);
    });
}

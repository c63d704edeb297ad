//! What neither side does: time, sweeps, restores, and other users of the id.

use crate::next::Next;
use crate::rules::{Rule, Scope, Trouble};
use crate::state::{Dedupe, FORGOTTEN, PAST_HORIZON, Phase, RETIRED, State, Tx};
use crate::step::Step;

/// Everything that happens to the store from outside.
pub(crate) fn steps(next: &mut Next<'_>) {
    if next.scope.has(Trouble::Age) {
        age(next);
    }
    if next.scope.has(Trouble::Forget) {
        forget(next);
    }
    if next.scope.has(Trouble::Restore) && next.from.store.store_epoch == 0 {
        restore(next);
    }
    if next.scope.has(Trouble::Rival) {
        rival(next);
    }
}

fn age(next: &mut Next<'_>) {
    let in_time = next.from.idle() || !next.scope.on(Rule::AcceptEndsBeforeSweep);
    if next.from.age < PAST_HORIZON || next.from.age < FORGOTTEN && in_time {
        next.add(Step::TimePasses, |to, _| to.age += 1);
    }
    let sweep_at = if next.scope.on(Rule::SweepAfterGrace) { FORGOTTEN } else { PAST_HORIZON };
    if next.from.store.dedupe == Dedupe::Ours && next.from.age >= sweep_at {
        next.add(Step::Sweep, |to, _| to.store.dedupe = Dedupe::Absent);
    }
}

/// A DELETE waits for shared locks like any other write.
fn forget(next: &mut Next<'_>) {
    for instance in [0, 1] {
        let epoch = next.from.store.session[usize::from(instance)];
        let there = epoch != 0 && epoch != RETIRED;
        if there && !next.from.session_locked(next.scope, instance) {
            let instance = usize::from(instance);
            next.add(Step::SessionDeleted(instance), |to, _| to.store.session[instance] = 0);
        }
    }
}

/// Two backups are worth telling apart: one that has the sessions but not yet the message, and one
/// from before everything, whose sequence gives the same epochs again.
fn restore(next: &mut Next<'_>) {
    next.add(Step::RestoreMessage, replace);
    next.add(Step::RestoreAll, |to, scope| {
        replace(to, scope);
        to.store.session = [0, 0];
        to.store.sequence = 0;
    });
}

fn replace(to: &mut State, scope: &Scope) {
    let stops = scope.on(Rule::RestoreStopsBrokers);
    to.store.store_epoch = 1;
    to.store.dedupe = Dedupe::Absent;
    to.store.messages = 0;
    for tx in &mut to.txs {
        let in_store = tx.phase as u8 >= Phase::Locked as u8;
        if stops || tx.phase == Phase::Ghost {
            *tx = Tx::FREE;
        } else if in_store {
            // Its broker has lost it with the old store, and runs it again in the new one.
            *tx = Tx { phase: Phase::Rerun, conn: tx.conn, rerun: false };
        }
    }
    if stops {
        for conn in 0..usize::from(to.used) {
            to.close(conn);
        }
    }
}

fn rival(next: &mut Next<'_>) {
    match next.from.store.dedupe {
        Dedupe::Absent if !next.from.id_held() => {
            next.add(Step::RivalCommits, |to, _| to.store.dedupe = Dedupe::Rival);
        }
        // Its send is older than ours, and so is its horizon.
        Dedupe::Rival => next.add(Step::RivalSwept, |to, _| to.store.dedupe = Dedupe::Absent),
        Dedupe::Absent | Dedupe::Ours => {}
    }
}

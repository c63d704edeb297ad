//! An accept from B1 to its answer (mesh.md §7, the accept pipeline of broker.md).

use crate::next::Next;
use crate::rules::{Rule, Scope};
use crate::state::{Answer, Dedupe, PAST_HORIZON, Phase, State, Tx};
use crate::step::Step;

/// What one accept can do next.
pub(crate) fn steps(next: &mut Next<'_>, index: usize, tx: Tx) {
    let conn = usize::from(tx.conn);
    match tx.phase {
        Phase::Free => {}
        Phase::Missed => judge(next, index, conn),
        Phase::Queued => begin(next, index, conn),
        Phase::Rerun => rerun(next, index, conn),
        Phase::Locked => claim(next, index, tx),
        Phase::Claimed => check(next, index, tx),
        Phase::ReadyNew | Phase::ReadyDuplicate | Phase::ReadyRefused | Phase::ReadyBlind => {
            commit(next, index, tx);
        }
        Phase::Ghost => {
            next.add(Step::GhostCommits(conn), |to, _| {
                to.insert();
                to.end(index);
            });
            next.add(Step::GhostRollsBack(conn), |to, _| to.end(index));
        }
    }
}

/// B1. Whether it refuses, denies or passes is open: size, member and limiter are not modelled.
fn judge(next: &mut Next<'_>, tx: usize, conn: usize) {
    let too_old = next.from.age >= PAST_HORIZON;
    if too_old {
        ends(next, Step::TooOld(conn), tx, conn, Answer::TooOld);
    }
    if !too_old || !next.scope.on(Rule::TooOldBeforeRefusal) {
        ends(next, Step::RefuseEarly(conn), tx, conn, Answer::Refused);
        ends(next, Step::Deny(conn), tx, conn, Answer::Retry);
    }
    if !too_old {
        next.add(Step::Pass(conn), |to, _| to.txs[tx].phase = Phase::Queued);
    }
}

fn ends(next: &mut Next<'_>, step: Step, tx: usize, conn: usize, answer: Answer) {
    next.add(step, |to, scope| {
        to.end(tx);
        to.answer(scope, conn, answer);
    });
}

fn epoch_current(next: &Next<'_>, conn: usize) -> bool {
    let at = next.from.conns[conn];
    let session = next.from.store.session[usize::from(at.instance)];
    let forgiven = session == 0 && !next.scope.on(Rule::MissingSessionIsStale);
    at.epoch != 0 && (session == at.epoch || forgiven)
}

fn begin(next: &mut Next<'_>, tx: usize, conn: usize) {
    if epoch_current(next, conn) {
        next.add(Step::Begin(conn), |to, _| to.txs[tx].phase = Phase::Locked);
    } else {
        stale(next, Step::Stale(conn), tx, conn);
    }
}

fn stale(next: &mut Next<'_>, step: Step, tx: usize, conn: usize) {
    next.add(step, |to, scope| {
        to.end(tx);
        if scope.on(Rule::StaleCloses) {
            to.close(conn);
        } else {
            to.answer(scope, conn, Answer::Refused);
        }
    });
}

fn rerun(next: &mut Next<'_>, tx: usize, conn: usize) {
    if next.scope.on(Rule::RerunChecksArrivalEpoch) && !epoch_current(next, conn) {
        stale(next, Step::RerunStale(conn), tx, conn);
    } else if next.scope.on(Rule::RerunClaims) {
        next.add(Step::RerunBegin(conn), |to, _| {
            to.txs[tx].phase = Phase::Locked;
            to.txs[tx].rerun = true;
        });
    } else {
        let found = next.from.store.dedupe == Dedupe::Ours;
        let answer = if found { Answer::Accepted } else { Answer::Retry };
        ends(next, Step::RerunSelect(conn), tx, conn, answer);
    }
    next.add(Step::RerunFails(conn), |to, scope| fail(to, scope, tx));
}

/// A run ends without having committed. Only a first run may say so: behind a second one there may
/// be a ghost.
fn fail(to: &mut State, scope: &Scope, index: usize) {
    let tx = to.txs[index];
    let conn = usize::from(tx.conn);
    let first = !tx.rerun && tx.phase != Phase::Rerun;
    to.end(index);
    if first || !scope.on(Rule::RerunFailureCloses) {
        to.answer(scope, conn, Answer::Retry);
    } else {
        to.close(conn);
    }
}

fn rolls_back(next: &mut Next<'_>, index: usize, tx: Tx) {
    let step = Step::Rollback(usize::from(tx.conn));
    next.add(step, |to, scope| fail(to, scope, index));
}

/// The claim waits for whoever holds the id, a ghost included.
fn claim(next: &mut Next<'_>, index: usize, tx: Tx) {
    if !next.from.id_held() {
        let found = next.from.store.dedupe;
        next.add(Step::Claim(usize::from(tx.conn), found), |to, _| {
            to.txs[index].phase = match found {
                Dedupe::Absent => Phase::Claimed,
                Dedupe::Ours => Phase::ReadyDuplicate,
                Dedupe::Rival => Phase::ReadyRefused,
            };
        });
    }
    rolls_back(next, index, tx);
}

/// B2. A refusal takes back its own claim and rides along in the batch.
fn check(next: &mut Next<'_>, index: usize, tx: Tx) {
    let conn = usize::from(tx.conn);
    next.add(Step::CheckPasses(conn), |to, _| to.txs[index].phase = Phase::ReadyNew);
    next.add(Step::CheckRefuses(conn), |to, scope| {
        let read = scope.on(Rule::CommitAfterResults);
        to.txs[index].phase = if read { Phase::ReadyRefused } else { Phase::ReadyBlind };
        if !scope.on(Rule::AnswersAfterLastRun) {
            to.answer(scope, conn, Answer::Refused);
        }
    });
    rolls_back(next, index, tx);
}

fn commit(next: &mut Next<'_>, index: usize, tx: Tx) {
    let conn = usize::from(tx.conn);
    let inserts = tx.holds_id();
    let accepted = tx.phase == Phase::ReadyNew || tx.phase == Phase::ReadyDuplicate;
    next.add(Step::Commit(conn), |to, scope| {
        if inserts {
            to.insert();
        }
        to.end(index);
        to.answer(scope, conn, if accepted { Answer::Accepted } else { Answer::Refused });
    });
    // Only a ghost that holds the id can change anything; the others end at once.
    let free = next.from.free_tx(next.scope);
    if !inserts || free.is_some() {
        next.add(Step::Uncertain(conn), |to, _| {
            if let (true, Some(place)) = (inserts, free) {
                to.txs[place] = Tx { phase: Phase::Ghost, conn: tx.conn, rerun: false };
            }
            to.txs[index] = Tx { phase: Phase::Rerun, conn: tx.conn, rerun: false };
        });
    }
    if inserts && !next.scope.on(Rule::ServerErrorIsDefinite) {
        next.add(Step::UncertainAnswered(conn), |to, scope| {
            to.txs[index] = Tx { phase: Phase::Ghost, conn: tx.conn, rerun: false };
            to.answer(scope, conn, Answer::Retry);
        });
    }
    rolls_back(next, index, tx);
}

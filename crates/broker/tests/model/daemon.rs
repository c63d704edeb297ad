//! The daemon's steps: mesh.md §6 and the daemon's rules of §10.

use crate::next::Next;
use crate::rules::{Rule, Scope, Trouble};
use crate::state::{Answer, Conn, Hello, State, Status};
use crate::step::Step;

/// Sends of one id that can be on one wire; more than one only with a rule off.
const SENDS_MAX: u8 = 2;

/// Everything that the daemon, its operator or its host can do.
pub(crate) fn steps(next: &mut Next<'_>) {
    connection(next);
    if let Some(conn) = next.from.current() {
        send(next, conn);
    }
    answers(next);
    row(next);
    if next.from.instance == 0 && next.scope.has(Trouble::Adopt) {
        next.add(Step::Adopt, adopt);
    }
}

fn connection(next: &mut Next<'_>) {
    let used = usize::from(next.from.used);
    let Some(conn) = next.from.current() else {
        if used < next.scope.conns_max {
            next.add(Step::Connect(used), |to, _| {
                let instance = to.instance;
                to.conns[used] =
                    Conn { instance, hello: Hello::OnTheWire, open: true, ..Conn::NONE };
                to.used += 1;
            });
        }
        next.add(Step::Crash, crash);
        return;
    };
    if next.from.conns[conn].ack {
        next.add(Step::HelloAcked(conn), |to, _| hello_acked(to, conn));
    }
    next.add(Step::ConnectionLost(conn), lose_connection);
    next.add(Step::Crash, crash);
}

/// The store's name is compared, written down and stamped on the rows before anything is sent.
fn hello_acked(to: &mut State, conn: usize) {
    to.conns[conn].ack = false;
    to.conns[conn].acked = true;
    let seen = to.conns[conn].store_epoch + 1;
    let changed = to.row.seen_store != 0 && to.row.seen_store != seen;
    if changed && to.row.maybe_sent {
        to.row.other_store = true;
    }
    to.row.seen_store = seen;
}

fn lose_connection(to: &mut State, scope: &Scope) {
    if let Some(conn) = to.current() {
        let conn = &mut to.conns[conn];
        conn.open = false;
        conn.acked = false;
        conn.ack = false;
        conn.attempt = false;
        conn.closed = false;
        if scope.on(Rule::OlderAnswersIgnored) {
            conn.answers = 0;
            conn.resolve = false;
        }
    }
    if to.row.status == Status::Inflight {
        to.row.status = Status::Pending;
    }
}

/// What is in memory is lost, and so is the inflight mark: it rides along with a later commit.
fn crash(to: &mut State, scope: &Scope) {
    lose_connection(to, scope);
    if to.row.unwritten {
        to.row.unwritten = false;
        to.row.status = Status::Pending;
    }
    if to.row.status == Status::Pending {
        to.row.maybe_sent = scope.on(Rule::StartMarksOpenRows);
    }
    if !scope.on(Rule::SeenStoreIsDurable) {
        to.row.seen_store = 0;
    }
}

/// A copy of the outbox may be older than what its owner has told since, so the adopter finds
/// the row open whatever became of it.
fn adopt(to: &mut State, scope: &Scope) {
    lose_connection(to, scope);
    to.instance = 1;
    to.row.unwritten = false;
    to.row.maybe_sent = true;
    to.row.status =
        if scope.on(Rule::AdoptedNeverSent) { Status::Unknown } else { Status::Pending };
}

fn send(next: &mut Next<'_>, conn: usize) {
    let at = next.from.conns[conn];
    if !at.acked && next.scope.on(Rule::NothingBeforeAck) {
        return;
    }
    let free = !at.attempt || !next.scope.on(Rule::OneAttemptPerConnection);
    let status = next.from.row.status;
    if status == Status::Pending && free && at.sends < SENDS_MAX {
        next.add(Step::Send(conn), |to, _| {
            to.row.status = Status::Inflight;
            to.row.maybe_sent = true;
            put_send(to, conn);
        });
    }
    // Only what the restore may have lost is offered again.
    if status == Status::Done && at.acked && at.store_epoch == 1 && !at.attempt {
        next.add(Step::OfferAgain(conn), |to, _| put_send(to, conn));
    }
    if status == Status::Unknown && !at.resolve && !at.closed {
        next.add(Step::AskResolve(conn), |to, _| to.conns[conn].resolve = true);
    }
    if status == Status::Inflight && !next.scope.on(Rule::OneAttemptPerConnection) {
        next.add(Step::TimeOut(conn), |to, _| to.row.status = Status::Pending);
    }
}

fn put_send(to: &mut State, conn: usize) {
    let conn = &mut to.conns[conn];
    conn.attempt = true;
    if !conn.closed {
        conn.sends += 1;
    }
}

fn answers(next: &mut Next<'_>) {
    for conn in 0..usize::from(next.from.used) {
        for answer in Answer::ALL {
            if next.from.conns[conn].answers & (1 << answer as u8) != 0 {
                next.add(Step::Hear(conn, answer), |to, scope| hear(to, scope, conn, answer));
            }
        }
    }
}

/// An answer moves the row by compare-and-swap: from `inflight`, or for `resolve` from `dead`
/// with `unknown`. Anything else changes nothing.
fn hear(to: &mut State, scope: &Scope, conn: usize, answer: Answer) {
    to.conns[conn].answers &= !(1 << answer as u8);
    let inflight = to.row.status == Status::Inflight;
    let unknown = to.row.status == Status::Unknown;
    match answer {
        Answer::Accepted | Answer::Refused | Answer::TooOld | Answer::Retry => {
            to.conns[conn].attempt = false;
        }
        Answer::ResolvedCommitted | Answer::ResolvedAbsent | Answer::ResolvedTooOld => {}
    }
    match answer {
        Answer::Accepted if inflight => to.row.status = Status::Done,
        Answer::Refused if inflight => refused(to, scope),
        Answer::TooOld if inflight => dead(to, scope, Status::Unknown),
        Answer::Retry if inflight => {
            to.row.status = Status::Pending;
            to.row.maybe_sent = scope.on(Rule::MaybeSentSticky);
        }
        Answer::ResolvedCommitted if unknown => to.row.status = Status::Done,
        Answer::ResolvedAbsent if unknown => refused(to, scope),
        Answer::Accepted
        | Answer::Refused
        | Answer::TooOld
        | Answer::Retry
        | Answer::ResolvedCommitted
        | Answer::ResolvedAbsent
        | Answer::ResolvedTooOld => {}
    }
}

fn refused(to: &mut State, scope: &Scope) {
    let judged = !to.row.other_store || !scope.on(Rule::OtherStoreNeverRefuses);
    dead(to, scope, if judged { Status::Refused } else { Status::Unknown });
}

fn dead(to: &mut State, scope: &Scope, status: Status) {
    to.row.status = status;
    to.row.told_failed |= status != Status::Unknown;
    to.row.unwritten = !scope.on(Rule::DeadOnDiskFirst);
}

fn row(next: &mut Next<'_>) {
    let row = next.from.row;
    let pending = row.status == Status::Pending;
    let inflight = row.status == Status::Inflight;
    if pending || inflight && !next.scope.on(Rule::OnlyPendingExpires) {
        let outcome = if row.maybe_sent { Status::Unknown } else { Status::NeverSent };
        next.add(Step::Expire, |to, scope| dead(to, scope, outcome));
    }
    if pending {
        let resolve_first = row.maybe_sent && next.scope.on(Rule::RequeueResolves);
        let status = if resolve_first { Status::Unknown } else { Status::Aborted };
        next.add(Step::Requeue, |to, scope| dead(to, scope, status));
    }
    if row.unwritten {
        next.add(Step::WriteDead, |to, _| to.row.unwritten = false);
    }
}

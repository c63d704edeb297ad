//! The steps of the model, and how a trace of them reads.

use std::fmt;

use crate::state::{Answer, Dedupe};

/// One atomic step. A number is a connection, in order of birth from 1 in print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    // The daemon.
    Connect(usize),
    HelloAcked(usize),
    Send(usize),
    OfferAgain(usize),
    AskResolve(usize),
    Hear(usize, Answer),
    TimeOut(usize),
    ConnectionLost(usize),
    Crash,
    Expire,
    Requeue,
    WriteDead,
    Adopt,
    // The broker.
    Hello(usize),
    HelloRefused(usize),
    AckEarly(usize),
    RaiseLate(usize),
    Lookup(usize, Dedupe),
    Deny(usize),
    TooOld(usize),
    RefuseEarly(usize),
    Pass(usize),
    Begin(usize),
    Stale(usize),
    RerunBegin(usize),
    RerunStale(usize),
    RerunSelect(usize),
    RerunFails(usize),
    Claim(usize, Dedupe),
    CheckPasses(usize),
    CheckRefuses(usize),
    Commit(usize),
    Rollback(usize),
    Uncertain(usize),
    UncertainAnswered(usize),
    GhostCommits(usize),
    GhostRollsBack(usize),
    Resolve(usize, Answer),
    // The world.
    TimePasses,
    Sweep,
    SessionDeleted(usize),
    RestoreMessage,
    RestoreAll,
    RivalCommits,
    RivalSwept,
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (who, what, conn) = self.words();
        match conn {
            Some(conn) => write!(out, "{who}: {what} (connection {})", conn + 1),
            None => write!(out, "{who}: {what}"),
        }
    }
}

impl Step {
    #[rustfmt::skip]
    fn words(self) -> (&'static str, &'static str, Option<usize>) {
        match self {
            Step::Connect(c) => ("daemon", "connects and says hello", Some(c)),
            Step::HelloAcked(c) => ("daemon", "reads hello_ack", Some(c)),
            Step::Send(c) => ("daemon", "claims the row and sends it", Some(c)),
            Step::OfferAgain(c) => ("daemon", "offers the done row again", Some(c)),
            Step::AskResolve(c) => ("daemon", "asks resolve", Some(c)),
            Step::Hear(c, answer) => ("daemon", heard(answer), Some(c)),
            Step::TimeOut(c) => ("daemon", "gives up waiting, keeps the connection", Some(c)),
            Step::ConnectionLost(c) => ("daemon", "loses the connection", Some(c)),
            Step::Crash => ("daemon", "crashes and starts again", None),
            Step::Expire => ("daemon", "the row reaches its max age", None),
            Step::Requeue => ("daemon", "an operator requeues the row", None),
            Step::WriteDead => ("daemon", "dead reaches the disk", None),
            Step::Adopt => ("daemon", "another instance adopts a copy of the outbox", None),
            Step::Hello(c) => ("broker", "hello raises the epoch", Some(c)),
            Step::HelloRefused(c) => ("broker", "refuses the hello of a retired instance", Some(c)),
            Step::AckEarly(c) => ("broker", "sends hello_ack before the raise", Some(c)),
            Step::RaiseLate(c) => ("broker", "hello raises the epoch, late", Some(c)),
            Step::Lookup(c, found) => ("broker", looked_up(found), Some(c)),
            Step::Deny(c) => ("broker", "limiter or shedding denies, 429/503", Some(c)),
            Step::TooOld(c) => ("broker", "past the horizon, 410", Some(c)),
            Step::RefuseEarly(c) => ("broker", "B1 refuses, 4xx", Some(c)),
            Step::Pass(c) => ("broker", "B1 passes", Some(c)),
            Step::Begin(c) => ("broker", "begins: epoch current, row locked", Some(c)),
            Step::Stale(c) => ("broker", "begins: epoch stale", Some(c)),
            Step::RerunBegin(c) => ("broker", "runs again: epoch accepted", Some(c)),
            Step::RerunStale(c) => ("broker", "runs again: epoch stale", Some(c)),
            Step::RerunSelect(c) => ("broker", "runs again with a plain SELECT", Some(c)),
            Step::RerunFails(c) => ("broker", "cannot run again", Some(c)),
            Step::Claim(c, found) => ("broker", claimed(found), Some(c)),
            Step::CheckPasses(c) => ("broker", "B2 passes", Some(c)),
            Step::CheckRefuses(c) => ("broker", "B2 refuses", Some(c)),
            Step::Commit(c) => ("broker", "COMMIT, confirmed, answers", Some(c)),
            Step::Rollback(c) => ("broker", "rolls back, for certain", Some(c)),
            Step::Uncertain(c) => ("broker", "COMMIT, outcome unknown", Some(c)),
            Step::UncertainAnswered(c) => ("broker", "COMMIT, outcome unknown, says 5xx", Some(c)),
            Step::GhostCommits(c) => ("store", "the ghost transaction commits", Some(c)),
            Step::GhostRollsBack(c) => ("store", "the ghost transaction rolls back", Some(c)),
            Step::Resolve(c, answer) => ("broker", resolved(answer), Some(c)),
            Step::TimePasses => ("world", "time passes: horizon, then 24 h", None),
            Step::Sweep => ("store", "the dedupe row is swept", None),
            Step::SessionDeleted(0) => ("store", "the session row is deleted", None),
            Step::SessionDeleted(_) => ("store", "the adopter's session row is deleted", None),
            Step::RestoreMessage => ("store", "restored from a backup without the message", None),
            Step::RestoreAll => ("store", "restored from a backup from before all", None),
            Step::RivalCommits => ("store", "another request commits under the id", None),
            Step::RivalSwept => ("store", "the other request's dedupe row is swept", None),
        }
    }
}

fn heard(answer: Answer) -> &'static str {
    match answer {
        Answer::Accepted => "hears 201/200",
        Answer::Refused => "hears 4xx/409",
        Answer::TooOld => "hears 410",
        Answer::Retry => "hears 429/5xx",
        Answer::ResolvedCommitted => "hears: resolved, committed",
        Answer::ResolvedAbsent => "hears: resolved, absent",
        Answer::ResolvedTooOld => "hears: resolved, too_old",
    }
}

fn looked_up(found: Dedupe) -> &'static str {
    match found {
        Dedupe::Absent => "B0 misses",
        Dedupe::Ours => "B0 hits, 200",
        Dedupe::Rival => "B0 finds another fingerprint",
    }
}

fn claimed(found: Dedupe) -> &'static str {
    match found {
        Dedupe::Absent => "claims the id",
        Dedupe::Ours => "the claim finds our row",
        Dedupe::Rival => "the claim finds another fingerprint",
    }
}

fn resolved(answer: Answer) -> &'static str {
    if answer == Answer::ResolvedCommitted {
        "resolve: committed"
    } else if answer == Answer::ResolvedAbsent {
        "resolve: absent"
    } else {
        "resolve: too_old"
    }
}

//! The counter-example of each rule: what breaks when it is off, after how many steps, and how.
//!
//! The search is breadth-first and its order fixed, so a shortest trace is the same every time.

use crate::explore::Invariant;
use crate::rules::Rule::{self, *};
use crate::rules::Trouble::{self, Adopt, Age, Forget, Restore, Rival};
use crate::state::Answer::{Refused, ResolvedAbsent, ResolvedCommitted};
use crate::step::Step::{self, Commit, Deny, Expire, Hear};

/// One rule and what its absence does.
pub(crate) struct Case {
    pub(crate) rule: Rule,
    /// The troubles that it takes, beside those that are always there.
    pub(crate) troubles: &'static [Trouble],
    pub(crate) breaks: Invariant,
    /// The length of a shortest trace.
    pub(crate) steps: usize,
    /// Its last step; connections count from 0 here.
    pub(crate) last: Step,
}

const fn case(
    rule: Rule,
    troubles: &'static [Trouble],
    breaks: Invariant,
    steps: usize,
    last: Step,
) -> Case {
    Case { rule, troubles, breaks, steps, last }
}

const I1: Invariant = Invariant::FailedIsNotDelivered;
const I2: Invariant = Invariant::OneMessage;
const I4: Invariant = Invariant::DoneIsDelivered;
const I5: Invariant = Invariant::AnswersAreTrue;

/// One line per rule, in the rules' order.
#[rustfmt::skip]
pub(crate) const CASES: [Case; Rule::ALL.len()] = [
    case(LockHeldToEnd,               &[],           I1, 18, Commit(0)),
    case(HelloWaitsForLocks,          &[],           I1, 18, Commit(0)),
    case(EpochsNeverRepeat,           &[Forget],     I1, 19, Commit(0)),
    case(MissingSessionIsStale,       &[Forget],     I1, 19, Commit(0)),
    case(AckAfterRaise,               &[],           I1, 19, Commit(0)),
    case(StaleCloses,                 &[],           I1, 16, Hear(1, Refused)),
    case(CommitAfterResults,          &[],           I1, 11, Hear(0, Refused)),
    case(AnswersAfterLastRun,         &[],           I1, 15, Commit(0)),
    case(RerunChecksArrivalEpoch,     &[],           I1, 22, Commit(0)),
    case(RerunClaims,                 &[],           I1, 17, Hear(0, Refused)),
    case(RerunFailureCloses,          &[],           I1, 17, Hear(0, Refused)),
    case(ServerErrorIsDefinite,       &[],           I1, 16, Hear(0, Refused)),
    case(DedupeBeforeLimiter,         &[],           I5, 16, Deny(1)),
    case(TooOldBeforeRefusal,         &[Age],        I1, 21, Hear(1, Refused)),
    case(ResolveTooOld,               &[Age],        I1, 21, Hear(1, ResolvedAbsent)),
    case(SweepAfterGrace,             &[Age],        I2, 17, Commit(0)),
    case(AcceptEndsBeforeSweep,       &[Age],        I2, 18, Commit(0)),
    case(NothingBeforeAck,            &[],           I1, 15, Commit(0)),
    case(OlderAnswersIgnored,         &[],           I1, 18, Hear(0, Refused)),
    case(OneAttemptPerConnection,     &[],           I1, 15, Commit(0)),
    case(MaybeSentSticky,             &[Restore],    I1,              20, Expire),
    case(StartMarksOpenRows,          &[],           I1, 12, Commit(0)),
    case(OnlyPendingExpires,          &[],           I1, 14, Commit(0)),
    case(DeadOnDiskFirst,             &[],           I1, 12, Commit(0)),
    case(RequeueResolves,             &[],           I1, 12, Commit(0)),
    case(OtherStoreNeverRefuses,      &[Restore],    I1,              19, Hear(1, ResolvedAbsent)),
    case(AdoptionRetiresOwner,        &[Adopt],      I1, 17, Commit(0)),
    case(AdoptedNeverSent,            &[Adopt],      I1, 12, Commit(0)),
    case(SeenStoreIsDurable,          &[Restore],    I1,              19, Hear(1, ResolvedAbsent)),
    case(RestoreStopsBrokers,         &[Restore],    I1,              17, Hear(0, Refused)),
    case(ResolveComparesFingerprint,  &[Rival],      I4,  9, Hear(0, ResolvedCommitted)),
    case(ConflictPastHorizonIsTooOld, &[Age, Rival], I1, 21, Hear(1, Refused)),
];

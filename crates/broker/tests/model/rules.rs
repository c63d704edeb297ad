//! The rules of mesh.md §10 as switches, and what a run of the model may do.
//!
//! A rule that is off is replaced by what a plausible wrong implementation does; the comment of
//! each rule names that mistake.

/// One switch. The order is that of the table at the end of mesh.md §10; the last four are rules
/// that this model needs and the table does not state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Rule {
    /// Off: the shared lock on the session row ends with the claim.
    LockHeldToEnd,
    /// Off: `hello` overtakes the shared locks.
    HelloWaitsForLocks,
    /// Off: a session row that was deleted starts again at 1.
    EpochsNeverRepeat,
    /// Off: an accept that finds no session row goes on.
    MissingSessionIsStale,
    /// Off: `hello_ack` leaves before the raise commits.
    AckAfterRaise,
    /// Off: a stale epoch is answered `4xx`.
    StaleCloses,
    /// Off: COMMIT is written in the same breath as claim and B2.
    CommitAfterResults,
    /// Off: a B2 refusal is answered before its batch has committed.
    AnswersAfterLastRun,
    /// Off: a re-run takes whatever epoch is current.
    RerunChecksArrivalEpoch,
    /// Off: a re-run looks with a plain SELECT, which does not wait for the ghost.
    RerunClaims,
    /// Off: a re-run that fails is answered `5xx`.
    RerunFailureCloses,
    /// Off: an uncertain COMMIT is answered `5xx`.
    ServerErrorIsDefinite,
    /// Off: limiter and shedding come before B0.
    DedupeBeforeLimiter,
    /// Off: after a B0 miss B1 may refuse before it looks at the horizon.
    TooOldBeforeRefusal,
    /// Off: `resolve` says absent whatever the age.
    ResolveTooOld,
    /// Off: dedupe rows are swept at the horizon itself.
    SweepAfterGrace,
    /// Off: an accept may outlive the 24 h after the horizon.
    AcceptEndsBeforeSweep,
    /// Off: sends follow `hello` at once.
    NothingBeforeAck,
    /// Off: an answer counts whatever connection brings it.
    OlderAnswersIgnored,
    /// Off: a time-out retries on the same connection.
    OneAttemptPerConnection,
    /// Off: `429` and `5xx` clear "may have been sent".
    MaybeSentSticky,
    /// Off: after a crash a row whose mark was lost counts as never sent.
    StartMarksOpenRows,
    /// Off: max age also kills rows whose attempt is open.
    OnlyPendingExpires,
    /// Off: somebody is told of `dead` before it is on disk.
    DeadOnDiskFirst,
    /// Off: requeue aborts at once a row that may have been sent.
    RequeueResolves,
    /// Off: a store that was restored may refuse what its predecessor accepted.
    OtherStoreNeverRefuses,
    /// Off: another instance adopts an outbox without retiring the owner.
    AdoptionRetiresOwner,
    /// Off: adopted rows are sent again.
    AdoptedNeverSent,
    /// Off: the last seen `store_epoch` is forgotten in a crash.
    SeenStoreIsDurable,
    /// Off: brokers and their connections live through a restore of the store.
    RestoreStopsBrokers,
    /// Off: `resolve` goes by the id alone.
    ResolveComparesFingerprint,
    /// Off: past the horizon another fingerprint under the id is still a `409`.
    ConflictPastHorizonIsTooOld,
}

impl Rule {
    /// Every rule, in order.
    pub(crate) const ALL: [Rule; 32] = [
        Rule::LockHeldToEnd,
        Rule::HelloWaitsForLocks,
        Rule::EpochsNeverRepeat,
        Rule::MissingSessionIsStale,
        Rule::AckAfterRaise,
        Rule::StaleCloses,
        Rule::CommitAfterResults,
        Rule::AnswersAfterLastRun,
        Rule::RerunChecksArrivalEpoch,
        Rule::RerunClaims,
        Rule::RerunFailureCloses,
        Rule::ServerErrorIsDefinite,
        Rule::DedupeBeforeLimiter,
        Rule::TooOldBeforeRefusal,
        Rule::ResolveTooOld,
        Rule::SweepAfterGrace,
        Rule::AcceptEndsBeforeSweep,
        Rule::NothingBeforeAck,
        Rule::OlderAnswersIgnored,
        Rule::OneAttemptPerConnection,
        Rule::MaybeSentSticky,
        Rule::StartMarksOpenRows,
        Rule::OnlyPendingExpires,
        Rule::DeadOnDiskFirst,
        Rule::RequeueResolves,
        Rule::OtherStoreNeverRefuses,
        Rule::AdoptionRetiresOwner,
        Rule::AdoptedNeverSent,
        Rule::SeenStoreIsDurable,
        Rule::RestoreStopsBrokers,
        Rule::ResolveComparesFingerprint,
        Rule::ConflictPastHorizonIsTooOld,
    ];
}

/// The rules that are on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules(u32);

impl Rules {
    /// The design.
    pub(crate) const DESIGN: Rules = Rules(u32::MAX);

    /// The design without one rule.
    pub(crate) fn without(rule: Rule) -> Rules {
        Rules(u32::MAX ^ (1 << rule as u8))
    }

    /// Whether `rule` is on.
    pub(crate) fn on(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u8) != 0
    }
}

/// A kind of trouble that a run may meet, beside lost connections, crashes of the daemon, expiry,
/// requeue and uncertain COMMITs, which are always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Trouble {
    /// Time passes: the horizon, then 24 h more, then sweeps.
    Age,
    /// Session rows are deleted.
    Forget,
    /// The store is restored from an older backup, once.
    Restore,
    /// Another instance adopts the outbox, once.
    Adopt,
    /// Another host of the member uses the same id for another request.
    Rival,
}

impl Trouble {
    /// Every kind.
    pub(crate) const ALL: [Trouble; 5] =
        [Trouble::Age, Trouble::Forget, Trouble::Restore, Trouble::Adopt, Trouble::Rival];
}

/// The bounds of one exploration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) rules: Rules,
    /// Connections over the whole run, at most [`crate::state::CONNS_MAX`].
    pub(crate) conns_max: usize,
    /// Accepts and ghosts at one time, at most [`crate::state::TXS_MAX`].
    pub(crate) txs_max: usize,
    troubles: u8,
}

impl Scope {
    /// A scope with these bounds and troubles.
    pub(crate) fn new(
        rules: Rules,
        conns_max: usize,
        txs_max: usize,
        troubles: &[Trouble],
    ) -> Scope {
        let troubles = troubles.iter().fold(0, |set, &trouble| set | 1 << trouble as u8);
        Scope { rules, conns_max, txs_max, troubles }
    }

    /// Whether `rule` is on.
    pub(crate) fn on(&self, rule: Rule) -> bool {
        self.rules.on(rule)
    }

    /// Whether `trouble` happens.
    pub(crate) fn has(&self, trouble: Trouble) -> bool {
        self.troubles & (1 << trouble as u8) != 0
    }
}

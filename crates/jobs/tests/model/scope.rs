//! The rules as switches, and what is explored. A rule that is off is replaced by what a plausible
//! wrong implementation does; its comment names that mistake.

use crate::state::{State, WORKERS};

/// One switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Off: a worker's write does not name the fence.
    WritesNameTheFence,
    /// Off: a claim leaves the fence as it is.
    ClaimRaisesTheFence,
    /// Off: a person's word leaves the fence as it is.
    PersonRaisesTheFence,
    /// Off: a lease that is not over keeps nobody from claiming.
    LeaseIsKept,
    /// Off: only what has no worker is claimed.
    DeadAreFollowed,
    /// Off: a step is written down when it has ended.
    StartedFirst,
    /// Off: a step that was begun by somebody who is gone counts as one that failed.
    BegunIsUncertain,
    /// Off: a step that was begun by somebody who is gone counts as one that was done.
    BegunIsNotDone,
    /// Off: whoever takes a job over begins with its first step.
    DoneIsDone,
    /// Off: what declares `resolve` is run again without being asked.
    GearIsAsked,
    /// Off: nobody counts the dead.
    DeathsAreCounted,
    /// Off: a lease is renewed by whoever asks.
    RenewalNamesTheFence,
    /// Off: a job that was approved waits for nothing, and nobody looks.
    ApprovedIsDue,
    /// Off: a write of which nothing was heard counts as none, and its step is run again.
    UnheardIsLookedUp,
    /// Off: whoever cannot renew its claim goes on, and only its writes are refused.
    HolderStopsInTime,
    /// Off: two claimants count to the same next fence, and one that was undone takes the claim of
    /// the other for its own.
    FencesAreDrawn,
    /// Off: who looks for what it wrote takes the job for its own if somebody works on it.
    LookNamesTheFence,
    /// Off: who cannot look stops looking, and keeps the job.
    LookIsTriedOn,
    /// Off: a word that is said again answers whatever is asked by then.
    WordNamesItsQuestion,
}

impl Rule {
    pub(crate) const ALL: [Self; 19] = [
        Self::WritesNameTheFence,
        Self::ClaimRaisesTheFence,
        Self::PersonRaisesTheFence,
        Self::LeaseIsKept,
        Self::DeadAreFollowed,
        Self::StartedFirst,
        Self::BegunIsUncertain,
        Self::BegunIsNotDone,
        Self::DoneIsDone,
        Self::GearIsAsked,
        Self::DeathsAreCounted,
        Self::RenewalNamesTheFence,
        Self::ApprovedIsDue,
        Self::UnheardIsLookedUp,
        Self::HolderStopsInTime,
        Self::FencesAreDrawn,
        Self::LookNamesTheFence,
        Self::LookIsTriedOn,
        Self::WordNamesItsQuestion,
    ];
}

/// Which answers can be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Losses {
    /// Those of claims, of submissions and of how a step ended.
    Moves,
    /// Those of every write.
    Every,
}

/// What is explored.
pub(crate) struct Scope {
    off: Option<Rule>,
    /// How many have the job, or believe so, at a time.
    pub(crate) workers: usize,
    pub(crate) losses: Losses,
}

impl Scope {
    /// Everything. Too many states to look at each.
    pub(crate) fn whole() -> Self {
        Self { off: None, workers: WORKERS, losses: Losses::Every }
    }

    /// Many workers.
    pub(crate) fn wide() -> Self {
        Self { losses: Losses::Moves, ..Self::whole() }
    }

    /// Many losses.
    pub(crate) fn deep() -> Self {
        Self { workers: 2, ..Self::whole() }
    }

    pub(crate) fn without(rule: Rule) -> Self {
        Self { off: Some(rule), ..Self::deep() }
    }

    pub(crate) fn on(&self, rule: Rule) -> bool {
        self.off != Some(rule)
    }

    /// Whether a write can be undone, and its worker or person tries again.
    pub(crate) fn undoes(&self, from: &State) -> bool {
        self.losses == Losses::Every && !from.has_undone()
    }
}

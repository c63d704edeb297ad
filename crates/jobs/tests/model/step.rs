//! What can happen, by name.

use crate::state::Word;

/// How a gear's work ended, as its worker saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    /// The gear said no, and nothing has happened.
    Failed,
    /// The gear is gone without a word.
    Lost,
}

/// What a gear says of an earlier attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Done,
    NotDone,
    Unknown,
}

/// What every run must have met.
pub(crate) const NAMES: [&str; 28] = [
    "submit",
    "submit begun",
    "submit unheard",
    "claim",
    "claim unheard",
    "claim undone",
    "renew",
    "renew lost",
    "renew unheard",
    "effect",
    "record",
    "record lost",
    "record unheard",
    "record undone",
    "settle",
    "resolved",
    "resolved unheard",
    "crash",
    "let go",
    "let go unheard",
    "let go undone",
    "time",
    "still",
    "cancel",
    "say",
    "say unheard",
    "say undone",
    "say again",
];

/// Something that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The job is submitted, and waits.
    Submit,
    /// It is submitted, and its engine claims it in the same write.
    SubmitBegun {
        who: usize,
    },
    /// The same, and the answer is lost.
    SubmitUnheard {
        who: usize,
    },
    /// A worker claims the job, and makes its first move.
    Claim {
        who: usize,
    },
    /// The same, and the answer is lost.
    ClaimUnheard {
        who: usize,
    },
    /// The same, and the claim was undone.
    ClaimUndone {
        who: usize,
    },
    /// Its lease is made longer, or it hears that the job is lost and stops its gear.
    Renew {
        who: usize,
        held: bool,
    },
    /// Its lease is made longer, and the answer is lost.
    RenewUnheard {
        who: usize,
    },
    /// The gear does what it is for.
    Effect {
        who: usize,
    },
    /// It writes how the step ended, together with what follows.
    Record {
        who: usize,
        end: End,
        written: bool,
    },
    /// The same, and the answer is lost.
    RecordUnheard {
        who: usize,
        end: End,
    },
    /// How the gear ended is not written, and nothing is heard of that.
    RecordUndone {
        who: usize,
        end: End,
    },
    /// It finds out.
    Settle {
        who: usize,
    },
    /// It cannot find out. Whoever tries on is where it was.
    SettleFails {
        who: usize,
    },
    /// It writes what the gear says of an earlier attempt, together with what follows.
    Resolved {
        who: usize,
        told: Told,
        written: bool,
    },
    /// The same, and the answer is lost.
    ResolvedUnheard {
        who: usize,
        told: Told,
    },
    /// The process dies, and the kernel kills its gears.
    Crash {
        who: usize,
    },
    /// The engine stops: its gear is stopped, and the claim given back.
    LetGo {
        who: usize,
    },
    /// The same, and the answer is lost.
    LetGoUnheard {
        who: usize,
    },
    /// Its gear is stopped, the claim is not given back, and nothing is heard of that.
    LetGoUndone {
        who: usize,
    },
    /// A lease or a pause is over.
    TimePasses,
    /// A lease is over whose holder stands still, and does not know.
    StandStill,
    Cancel,
    /// A person answers what is asked.
    Say(Word),
    /// The same, and the answer is lost.
    SayUnheard(Word),
    /// The same, nothing is written, and the answer is lost.
    SayUndone(Word),
    /// A person who has heard nothing says it again.
    SayAgain {
        counts: bool,
    },
}

impl Step {
    /// How a test calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::SubmitBegun { .. } => "submit begun",
            Self::SubmitUnheard { .. } => "submit unheard",
            Self::Claim { .. } => "claim",
            Self::ClaimUnheard { .. } => "claim unheard",
            Self::ClaimUndone { .. } => "claim undone",
            Self::Renew { held: true, .. } => "renew",
            Self::Renew { held: false, .. } => "renew lost",
            Self::RenewUnheard { .. } => "renew unheard",
            Self::Effect { .. } => "effect",
            Self::Record { written: true, .. } => "record",
            Self::Record { written: false, .. } => "record lost",
            Self::RecordUnheard { .. } => "record unheard",
            Self::RecordUndone { .. } => "record undone",
            Self::Settle { .. } => "settle",
            Self::SettleFails { .. } => "settle fails",
            Self::Resolved { .. } => "resolved",
            Self::ResolvedUnheard { .. } => "resolved unheard",
            Self::Crash { .. } => "crash",
            Self::LetGo { .. } => "let go",
            Self::LetGoUnheard { .. } => "let go unheard",
            Self::LetGoUndone { .. } => "let go undone",
            Self::TimePasses => "time",
            Self::StandStill => "still",
            Self::Cancel => "cancel",
            Self::Say(_) => "say",
            Self::SayUnheard(_) => "say unheard",
            Self::SayUndone(_) => "say undone",
            Self::SayAgain { .. } => "say again",
        }
    }

    /// Whether somebody else has the job from then on, or nobody.
    pub(crate) fn changes_hands(self) -> bool {
        match self {
            Self::SubmitBegun { .. }
            | Self::SubmitUnheard { .. }
            | Self::Claim { .. }
            | Self::ClaimUnheard { .. }
            | Self::Cancel
            | Self::Say(_)
            | Self::SayUnheard(_) => true,
            Self::SayAgain { counts } => counts,
            Self::Submit
            | Self::ClaimUndone { .. }
            | Self::Renew { .. }
            | Self::RenewUnheard { .. }
            | Self::Effect { .. }
            | Self::Record { .. }
            | Self::RecordUnheard { .. }
            | Self::RecordUndone { .. }
            | Self::Settle { .. }
            | Self::SettleFails { .. }
            | Self::Resolved { .. }
            | Self::ResolvedUnheard { .. }
            | Self::Crash { .. }
            | Self::LetGo { .. }
            | Self::LetGoUnheard { .. }
            | Self::LetGoUndone { .. }
            | Self::TimePasses
            | Self::StandStill
            | Self::SayUndone(_) => false,
        }
    }
}

//! What is done with a step, by what its line in the execution log says (jobs.md §4, §1).
//! `docs/design/jobs.md` shows the same table; a test compares them.

use semel_core::status;

use crate::gear::manifest::Recovery;

status! {
    /// Where an execution stands.
    pub enum ExecutionStatus {
        /// An attempt was begun.
        Started = "started",
        /// The gear gave its result.
        Completed = "completed",
        /// The last attempt has failed.
        Failed = "failed",
    }
}

/// What the log says of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logged {
    /// Nothing.
    Nothing,
    /// It was done.
    Completed,
    /// A worker that is gone began it.
    Crashed,
    /// The gear said that it failed.
    Failed,
    /// It ended without the gear's word.
    Uncertain,
}

/// Whether the line is about the same work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The fingerprint is equal.
    Same,
    /// It differs.
    Other,
}

/// Whether it may be tried again in this plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempts {
    /// It may.
    Left,
    /// It was tried often enough.
    Spent,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// Write down that it begins, commit, run it.
    Start,
    /// Take the recorded result and run nothing.
    Recorded,
    /// The name was used for other work: refuse.
    Refuse,
    /// Close the attempt as crashed; then look again.
    Close,
    /// Ask the gear what became of it.
    Resolve,
    /// Ask a person.
    Ask,
    /// It has failed for good.
    GiveUp,
}

/// The table: line for line that of `docs/design/jobs.md`.
#[rustfmt::skip]
pub fn dispatch(
    logged: Logged, content: Content, attempts: Attempts, recovery: Recovery,
) -> Dispatch {
    use Attempts::{Left, Spent};
    use Content::{Other, Same};
    match (logged, content, attempts, recovery) {
        (Logged::Nothing,   _,     _,     _                   ) => Dispatch::Start,
        (Logged::Completed, Same,  _,     _                   ) => Dispatch::Recorded,
        (Logged::Completed, Other, _,     _                   ) => Dispatch::Refuse,
        (Logged::Crashed,   Other, _,     _                   ) => Dispatch::Refuse,
        (Logged::Failed,    Other, _,     _                   ) => Dispatch::Refuse,
        (Logged::Uncertain, Other, _,     _                   ) => Dispatch::Refuse,
        (Logged::Crashed,   Same,  _,     _                   ) => Dispatch::Close,
        (Logged::Failed,    Same,  Left,  _                   ) => Dispatch::Start,
        (Logged::Failed,    Same,  Spent, _                   ) => Dispatch::GiveUp,
        (Logged::Uncertain, Same,  Left,  Recovery::Idempotent) => Dispatch::Start,
        (Logged::Uncertain, Same,  Spent, Recovery::Idempotent) => Dispatch::GiveUp,
        (Logged::Uncertain, Same,  _,     Recovery::Resolve   ) => Dispatch::Resolve,
        (Logged::Uncertain, Same,  _,     Recovery::Ask       ) => Dispatch::Ask,
    }
}

#[cfg(test)]
mod tests;

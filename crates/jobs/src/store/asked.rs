//! What is asked of many jobs at once: lists, patterns, and what is too old.

use semel_core::clock::UnixMs;

use super::model::{Job, JobNo};
use crate::gear::FailureClass;
use crate::life::JobStatus;

/// What is old enough to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age {
    /// What ended before then.
    pub before: UnixMs,
    /// The time: what says that it came later says nothing.
    pub now: UnixMs,
}

/// Which jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// That stand there.
    pub status: Option<JobStatus>,
    /// That failed so.
    pub class: Option<FailureClass>,
    /// Of this conversation.
    pub conversation: Option<String>,
    /// That came before this one.
    pub before: Option<JobNo>,
    /// How many at the most.
    pub limit: u32,
}

/// A page of jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The newest first.
    pub jobs: Vec<Job>,
    /// Where the next page begins.
    pub next: Option<JobNo>,
}

/// What fails again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// How.
    pub class: FailureClass,
    /// Where.
    pub action: Option<String>,
    /// How often.
    pub count: u64,
    /// When last.
    pub last_at: UnixMs,
}

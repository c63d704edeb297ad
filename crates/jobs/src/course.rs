//! What a job does next: pure, and the same for a job that was just claimed, one that is under way
//! and one whose worker died. Everything it decides is an [`Advance`]: one transaction.
//!
//! Reading order: a move under construction ([`Move`]), the first move of a claim ([`begin`]), what
//! follows what has ended (`steps`).

mod begin;
mod moves;
mod permits;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use serde_json::Value;

pub use begin::{begin, judge};
pub(crate) use begin::{close_started, question_no, question_of};
pub use moves::Move;
pub(crate) use moves::{error_of, failure_of};
pub(crate) use steps::{ask_about, replan_around, start};
pub use steps::{follow, for_good};

use crate::gear::manifest::Risk;
use crate::gear::registry::{Prepared, Registry};
use crate::policy::{Policy, Verdict};

/// What is known besides the job.
pub struct Facts<'a> {
    /// What a plan may name.
    pub gears: &'a Registry,
    /// What may be done.
    pub policy: &'a Policy,
    /// Whether another validator has a say: then the policy alone approves nothing.
    pub more_validators: bool,
    /// Whether a breaker is closed, as far as is known here.
    pub closed: &'a (dyn Fn(&str) -> bool + Sync),
    /// How long a person may take.
    pub approval_timeout: Duration,
    /// A number that nobody can guess, for waits.
    pub random: u64,
    /// This engine's home, where several share a store.
    pub home: Option<&'a str>,
    /// Whether all of these actions can be run by the engine of another home and not by this one,
    /// for a job that was taken in then.
    pub for_another: &'a (dyn Fn(&[String], UnixMs) -> bool + Sync),
}

/// A step that is to be run.
#[derive(Clone)]
pub struct ToRun {
    /// Which step.
    pub step_id: String,
    /// `gear.action`.
    pub action: String,
    /// The breaker that decides over it.
    pub breaker: String,
    /// Its number, when it is that breaker's probe.
    pub probe: Option<i64>,
    /// What runs it.
    pub prepared: Arc<Prepared>,
    /// The action's own name.
    pub name: String,
    /// What it is given.
    pub params: Value,
    /// How its plan sees it.
    pub risk: Option<Risk>,
    /// What the policy says of it with these parameters.
    pub verdict: Verdict,
    /// What it does, whatever it is called.
    pub fingerprint: Hex<32>,
    /// The how-manieth attempt in this plan.
    pub attempt: u32,
    /// How long it may take.
    pub timeout: Duration,
    /// Its siblings are stopped when it fails for good.
    pub fail_fast: bool,
}

/// What a job does next.
pub enum Next {
    /// These begin.
    Run(Vec<ToRun>),
    /// These would begin, if their breakers let them.
    Admit(Vec<ToRun>),
    /// The gear must say what became of an earlier attempt.
    Resolve(Box<ToRun>),
    /// A planner must say.
    Plan,
    /// A validator must say.
    Validate,
    /// Nothing before this moment; the worker goes.
    Wait(UnixMs),
    /// Nothing by this worker: it ended, or somebody is asked.
    Over,
    /// Nothing at all: the engine of another home can do it, and this one cannot.
    Left,
}

/// `gear.action`.
pub fn action_name(gear: &str, action: &str) -> String {
    format!("{gear}.{action}")
}

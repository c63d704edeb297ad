//! The job engine from the command line: run one, give it jobs, look at them, answer it.

mod about;
mod artifact;
mod backup;
mod engine;
mod intake;
mod place;
mod restored;
mod serve;
mod unsure;
mod verbs;
mod watch;

pub(crate) use engine::{RunningJobs, Start, config};
pub(crate) use place::Place;
pub(crate) use verbs::{Arguments, run};

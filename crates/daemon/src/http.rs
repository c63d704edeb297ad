//! The daemon's part of the local API (daemon.md, "Local API"). Who may call, how calls are read
//! and how they are answered is in `semel_api`; here are the calls themselves: the list of all of
//! them (`table`) and the handlers, one file per subject.

mod metrics;
mod schema;
mod table;

mod about;
mod events;
mod inbox;
mod mesh;
mod outbox;
mod queue;
mod send;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use semel_api::part::{Part, State};
use semel_api::problem::Problem;
use semel_api::route::Verb;
use semel_core::clock::Clock;
use semel_core::code::Code;
use serde_json::Value;
use tokio::sync::watch;

use self::metrics::Metrics;
use crate::engine::{Access, Engine};
use crate::link::{Fatal, LinkStatus};
use crate::remote::Remote;

/// Who answers.
#[derive(Debug, Clone)]
pub struct Member {
    /// The mesh's name.
    pub mesh: String,
    /// This member's public key, in hex.
    pub pubkey: String,
    /// This program's version.
    pub version: String,
}

/// What the daemon's calls share.
struct Daemon {
    engine: Arc<Engine>,
    member: Member,
    remote: Option<Arc<dyn Remote>>,
    clock: Arc<dyn Clock>,
    began: Duration,
    link: watch::Receiver<LinkStatus>,
    metrics: Metrics,
    token_rotations: AtomicU64,
}

/// The calls of a running daemon.
pub fn part(
    engine: Arc<Engine>,
    member: Member,
    remote: Option<Arc<dyn Remote>>,
    clock: Arc<dyn Clock>,
) -> Part {
    let daemon = Daemon {
        link: engine.link.watch(),
        engine,
        member,
        remote,
        began: clock.monotonic(),
        clock,
        metrics: Metrics::new(),
        token_rotations: AtomicU64::new(0),
    };
    Part::new(Arc::new(daemon), table::ROUTES)
}

impl State for Daemon {
    fn gate(&self, verb: Verb) -> Option<Problem> {
        if verb == Verb::Get {
            return None;
        }
        if self.engine.access == Access::ReadOnly {
            let detail = "this daemon is read-only; semel daemon recover says what you can do";
            return Some(Problem::new(Code::ReadOnly, detail));
        }
        if self.link.borrow().fatal != Some(Fatal::Revoked) {
            return None;
        }
        let detail = "this member was revoked and can do nothing now";
        Some(Problem::new(Code::MemberInactive, detail))
    }

    fn problem_fields() -> Vec<(&'static str, Value)> {
        schema::problem_fields()
    }
}

#[cfg(test)]
mod tests;

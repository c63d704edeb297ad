//! The rate limiter, idempotent over `(mesh, sender, id, window)` (mesh.md §7, "Rate limiter").
//!
//! A sliding window per sender: an id that is in the window is not charged again, a denied attempt
//! leaves everything as it was, and nothing is ever refunded — an entry leaves by its age alone. A
//! refund that comes after its window would leave a counter below zero, without an expiry, for ever
//! (traps.md 47).
//!
//! Two implementations, held to one suite: `memory` for one broker, `server` (Redis or Valkey) for
//! many. While the server is away the `fallback` decides, and says that it did.

mod fallback;
mod link;
mod memory;
mod place;
mod script;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_core::clock::Clock;
use semel_store::tls::TlsError;

pub use fallback::{Fallback, FallbackMode};

use crate::limits::{LIMITER_KEYS_MAX, LIMITER_WINDOW_MAX, LIMITER_WINDOW_MIN};
use memory::Memory;
use server::Server;

/// One send that asks to be counted.
#[derive(Debug, Clone, Copy)]
pub struct LimitRequest<'a> {
    /// The mesh, as its id is spelled.
    pub mesh: &'a str,
    /// The member who sends; what it asks is counted under names of their own.
    pub sender: &'a str,
    /// What is counted once.
    pub client_message_id: &'a str,
    /// Sends in one window at the most; zero lets none through.
    pub limit: u32,
    /// How long a send counts.
    pub window: Duration,
}

/// Under which name a member's questions over its connections are counted.
pub fn questions_of(member: &str) -> String {
    format!("{member}/questions")
}

/// Under which name a member's requests over HTTP are.
pub fn requests_of(member: &str) -> String {
    format!("{member}/requests")
}

impl LimitRequest<'_> {
    /// One name for each pair of mesh and sender: the length keeps `a:b` + `c` from being
    /// `a` + `b:c`.
    fn key(&self) -> String {
        [&self.mesh.len().to_string(), self.mesh, self.sender].join(":")
    }

    fn window(&self) -> Duration {
        self.window.clamp(LIMITER_WINDOW_MIN, LIMITER_WINDOW_MAX)
    }
}

/// What was decided, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Whether the send may go on.
    pub verdict: Verdict,
    /// Who says so.
    pub by: DecidedBy,
}

impl Decision {
    /// Whether the send may go on.
    pub fn is_allowed(&self) -> bool {
        match self.verdict {
            Verdict::Counted | Verdict::Free => true,
            Verdict::Denied { .. } => false,
        }
    }
}

/// Whether a send may go on, and what it cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Allowed; it took one unit.
    Counted,
    /// Allowed; the id was counted already and still is.
    Free,
    /// Not allowed, and nothing was changed by asking.
    Denied {
        /// When there is room again, if nobody else takes it.
        retry_after: Duration,
    },
}

/// Who decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecidedBy {
    /// The limiter that was configured.
    Limiter,
    /// Its stand-in: the limiter's server is away.
    Fallback,
}

/// The limiter's server cannot be what the configuration says it is.
#[derive(Debug, thiserror::Error)]
pub enum LimiterAddressError {
    /// The driver cannot read it.
    #[error("the limiter's address is not a Redis URL")]
    Url(#[source] redis::RedisError),

    /// It says something that makes no sense; nothing of it is repeated.
    #[error("the limiter's address {0}")]
    Parameters(&'static str),

    /// What is counted would be heard, and could be changed, by others.
    #[error(
        "{host} is not on this machine, and the connection would be plain text: nothing was sent"
    )]
    PlainText {
        /// Which server.
        host: String,
    },

    /// TLS cannot be spoken.
    #[error("no TLS with the limiter's server")]
    Tls(#[source] TlsError),
}

/// Decisions since the start, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimiterCounts {
    /// Sends that took one unit.
    pub allowed: u64,
    /// Sends that cost nothing, because their id was counted already.
    pub free: u64,
    /// Sends that were not allowed.
    pub denied: u64,
    /// Those among all three that the fallback decided.
    pub fallback: u64,
    /// Times the limiter's server went away.
    pub outages: u64,
    /// Questions and requests that had to wait or were refused, beside all of these.
    pub held: u64,
}

/// The broker's rate limiter.
pub struct Limiter {
    backend: Backend,
    allowed: AtomicU64,
    free: AtomicU64,
    denied: AtomicU64,
    fallback: AtomicU64,
    held: AtomicU64,
}

enum Backend {
    Memory(Memory),
    Server(Box<Server>),
}

impl Limiter {
    /// For one broker: everything in this process.
    pub fn memory(clock: Arc<dyn Clock>) -> Self {
        Self::new(Backend::Memory(Memory::new(clock, LIMITER_KEYS_MAX)))
    }

    /// For many brokers: `address` is `redis://…` or `rediss://…`. It is not contacted before the
    /// first take, so a broker starts without it.
    pub fn redis(
        address: &str,
        clock: Arc<dyn Clock>,
        fallback: Fallback,
    ) -> Result<Self, LimiterAddressError> {
        let server = Server::new(address, clock, fallback)?;
        Ok(Self::new(Backend::Server(Box::new(server))))
    }

    fn new(backend: Backend) -> Self {
        Self {
            backend,
            allowed: AtomicU64::new(0),
            free: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            fallback: AtomicU64::new(0),
            held: AtomicU64::new(0),
        }
    }

    /// Why the limiter's server was found away the last time, in words that may be its own.
    pub async fn why_away(&self) -> Option<String> {
        match &self.backend {
            Backend::Memory(_) => None,
            Backend::Server(server) => server.why_away().await,
        }
    }

    /// Counts a send, or finds it counted, or denies it. Asking again with the same id is safe at
    /// any time, also when this future was dropped.
    pub async fn take(&self, request: &LimitRequest<'_>) -> Decision {
        match &self.backend {
            Backend::Memory(memory) => self.taken(memory, request),
            Backend::Server(server) => self.counted(server.take(request).await),
        }
    }

    /// The same for what is asked instead of sent: how long to wait where it is too much. While the
    /// limiter's server is away this process decides, whatever the fallback does with sends: what
    /// waits for a member must reach it.
    pub async fn ask(&self, request: &LimitRequest<'_>) -> Option<Duration> {
        let verdict = match &self.backend {
            Backend::Memory(memory) => memory.take(request),
            Backend::Server(server) => server.ask_here_or_there(request).await,
        };
        match verdict {
            Verdict::Counted | Verdict::Free => None,
            Verdict::Denied { retry_after } => {
                self.held.fetch_add(1, Ordering::Relaxed);
                Some(retry_after)
            }
        }
    }

    /// The same without waiting; nothing where a server has to be asked.
    pub(crate) fn take_here(&self, request: &LimitRequest<'_>) -> Option<Decision> {
        match &self.backend {
            Backend::Memory(memory) => Some(self.taken(memory, request)),
            Backend::Server(_) => None,
        }
    }

    /// Whether it decides without waiting.
    pub(crate) const fn is_here(&self) -> bool {
        matches!(self.backend, Backend::Memory(_))
    }

    fn taken(&self, memory: &Memory, request: &LimitRequest<'_>) -> Decision {
        self.counted(Decision { verdict: memory.take(request), by: DecidedBy::Limiter })
    }

    fn counted(&self, decision: Decision) -> Decision {
        let counter = match decision.verdict {
            Verdict::Counted => &self.allowed,
            Verdict::Free => &self.free,
            Verdict::Denied { .. } => &self.denied,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if decision.by == DecidedBy::Fallback {
            self.fallback.fetch_add(1, Ordering::Relaxed);
        }
        decision
    }

    /// How it decided so far.
    pub fn counts(&self) -> LimiterCounts {
        LimiterCounts {
            allowed: self.allowed.load(Ordering::Relaxed),
            free: self.free.load(Ordering::Relaxed),
            denied: self.denied.load(Ordering::Relaxed),
            fallback: self.fallback.load(Ordering::Relaxed),
            held: self.held.load(Ordering::Relaxed),
            outages: match &self.backend {
                Backend::Memory(_) => 0,
                Backend::Server(server) => server.outages(),
            },
        }
    }
}

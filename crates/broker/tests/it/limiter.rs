//! The rate limiter: one suite for both implementations, a model for the one whose clock can be
//! moved, and what only a server can do: race, forget its script, be away.

mod conformance;
mod encrypted;
mod model;
mod outage;
mod server;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use semel_broker::limiter::{
    DecidedBy, Fallback, FallbackMode, LimitRequest, Limiter, LimiterCounts, Verdict,
};
use semel_core::clock::{Clock, SystemClock};
use semel_testkit::clock::SimClock;
use semel_testkit::servers;

/// Longer than any run, so that nothing leaves its window by itself.
const LONG: Duration = Duration::from_secs(600);

/// What takes longer than this does not come about.
const BOUND: Duration = Duration::from_secs(20);

/// A limiter under test, twice: what two brokers hold of it.
struct Bench {
    limiters: [Arc<Limiter>; 2],
    mesh: String,
    time: Time,
}

enum Time {
    Simulated(SimClock),
    /// The server's; ours only measures it.
    Real(SystemClock),
}

impl Bench {
    fn memory() -> Self {
        let clock = SimClock::at_ms(1_000_000);
        let limiter = Arc::new(Limiter::memory(Arc::new(clock.clone())));
        Self {
            limiters: [Arc::clone(&limiter), limiter],
            mesh: "mesh".to_owned(),
            time: Time::Simulated(clock),
        }
    }

    fn redis() -> Self {
        let limiter = || Arc::new(redis(&servers::redis(), SystemClock::new(), closed()));
        Self {
            limiters: [limiter(), limiter()],
            mesh: servers::redis_prefix(),
            time: Time::Real(SystemClock::new()),
        }
    }

    fn request<'a>(&'a self, sender: &'a str, id: &'a str, limit: u32) -> LimitRequest<'a> {
        request(&self.mesh, sender, id, limit)
    }

    /// Asks the first of the two.
    async fn take(&self, sender: &str, id: &str, limit: u32) -> Verdict {
        self.ask(&self.request(sender, id, limit)).await
    }

    async fn ask(&self, request: &LimitRequest<'_>) -> Verdict {
        own(&self.limiters[0], request).await
    }

    fn counts(&self) -> LimiterCounts {
        self.limiters[0].counts()
    }

    fn now(&self) -> Duration {
        match &self.time {
            Time::Simulated(clock) => clock.monotonic(),
            Time::Real(clock) => clock.monotonic(),
        }
    }

    /// Asks until the verdict is as wanted; returns when that was.
    async fn until(&self, request: &LimitRequest<'_>, wanted: fn(Verdict) -> bool) -> Duration {
        let asking = async {
            while !wanted(self.ask(request).await) {
                self.pass().await;
            }
        };
        tokio::time::timeout(BOUND, asking).await.expect("it comes about");
        self.now()
    }

    /// Some time passes.
    async fn pass(&self) {
        if let Time::Simulated(clock) = &self.time {
            clock.advance(Duration::from_millis(1));
        }
        tokio::task::yield_now().await;
    }
}

fn redis(address: &str, clock: impl Clock + 'static, fallback: Fallback) -> Limiter {
    Limiter::redis(address, Arc::new(clock), fallback).expect("an address")
}

fn closed() -> Fallback {
    Fallback { mode: FallbackMode::Closed, brokers: NonZeroU32::MIN }
}

fn request<'a>(mesh: &'a str, sender: &'a str, id: &'a str, limit: u32) -> LimitRequest<'a> {
    LimitRequest { mesh, sender, client_message_id: id, limit, window: LONG }
}

/// A verdict of the limiter itself.
async fn own(limiter: &Limiter, request: &LimitRequest<'_>) -> Verdict {
    let decision = limiter.take(request).await;
    assert_eq!(decision.by, DecidedBy::Limiter, "{decision:?}");
    decision.verdict
}

fn is_denied(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Denied { .. })
}

#[track_caller]
fn retry_after(verdict: Verdict) -> Duration {
    match verdict {
        Verdict::Denied { retry_after } => retry_after,
        Verdict::Counted | Verdict::Free => panic!("allowed: {verdict:?}"),
    }
}

//! The limiter's server is away: who decides, who waits, who is told, and how it comes back.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use semel_broker::limiter::{DecidedBy, Decision, Fallback, FallbackMode, Limiter, Verdict};
use semel_broker::limits::{LIMITER_CLOSED_RETRY_AFTER, LIMITER_PROBE_INTERVAL};
use semel_testkit::clock::SimClock;
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers;
use tokio::net::TcpListener;
use tracing::span;

use super::{closed, is_denied, own, redis, request, retry_after};

fn local(brokers: u32) -> Fallback {
    Fallback { mode: FallbackMode::Local, brokers: NonZeroU32::new(brokers).unwrap() }
}

/// An address at which nobody listens any more.
async fn nowhere() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("redis://{}/", listener.local_addr().unwrap())
}

/// The test server's address and, for that, its URL with another place in it.
fn place() -> (SocketAddr, impl Fn(SocketAddr) -> String) {
    let url = servers::redis();
    let (scheme, place) = url.rsplit_once('@').unwrap();
    let scheme = scheme.to_owned();
    let address = place.trim_end_matches('/').parse().unwrap();
    (address, move |place| format!("{scheme}@{place}/"))
}

/// A verdict of the stand-in.
#[track_caller]
fn stood_in(decision: Decision) -> Verdict {
    assert_eq!(decision.by, DecidedBy::Fallback, "{decision:?}");
    decision.verdict
}

/// Counts what is logged on this thread.
#[derive(Clone, Default)]
struct Log {
    warnings: Arc<AtomicUsize>,
    notices: Arc<AtomicUsize>,
}

impl Log {
    fn lines(&self) -> (usize, usize) {
        (self.warnings.load(Ordering::SeqCst), self.notices.load(Ordering::SeqCst))
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("semel_broker")
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let is_warning = *event.metadata().level() == tracing::Level::WARN;
        let count = if is_warning { &self.warnings } else { &self.notices };
        count.fetch_add(1, Ordering::SeqCst);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn local_limits_at_its_share_and_is_logged_once() {
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let clock = SimClock::at_ms(0);
    let limiter = redis(&nowhere().await, clock.clone(), local(4));
    let take = async |id| stood_in(limiter.take(&request("m", "a", id, 10)).await);

    for (id, verdict) in [
        ("x", Verdict::Counted),
        ("x", Verdict::Free),
        ("y", Verdict::Counted),
        ("y", Verdict::Free),
    ] {
        assert_eq!(take(id).await, verdict, "{id}");
    }
    for _ in 0..20 {
        // Each of them is a probe that fails; it is still the same outage.
        clock.advance(LIMITER_PROBE_INTERVAL);
        assert!(is_denied(take("z").await));
    }
    let counts = limiter.counts();
    assert_eq!((counts.allowed, counts.free, counts.denied), (2, 2, 20));
    assert_eq!((counts.fallback, counts.outages), (24, 1));
    assert_eq!(log.lines(), (1, 0));
}

#[tokio::test]
async fn closed_lets_nothing_through() {
    let limiter = redis(&nowhere().await, SimClock::at_ms(0), closed());
    for _ in 0..3 {
        let verdict = stood_in(limiter.take(&request("m", "a", "x", 10)).await);
        assert_eq!(retry_after(verdict), LIMITER_CLOSED_RETRY_AFTER);
    }
    assert_eq!((limiter.counts().denied, limiter.counts().fallback), (3, 3));
}

/// A server that takes connections and says nothing: one sender waits for each probe, no other.
#[tokio::test]
async fn an_outage_costs_nobody_else_a_wait() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("redis://{}/", silent.local_addr().unwrap());
    let clock = SimClock::at_ms(0);
    let limiter = redis(&address, clock.clone(), local(1));
    let (one, other) = (request("m", "a", "1", 10), request("m", "a", "2", 10));

    let first = tokio::time::timeout(Duration::from_secs(10), limiter.take(&one)).await;
    assert_eq!(stood_in(first.expect("it is bounded")), Verdict::Counted);
    let between = limiter.take(&one).now_or_never().expect("no wait between two probes");
    assert_eq!(stood_in(between), Verdict::Free);

    clock.advance(LIMITER_PROBE_INTERVAL);
    let mut probe = Box::pin(limiter.take(&one));
    assert!(probe.as_mut().now_or_never().is_none(), "it waits for the server");
    let beside = limiter.take(&other).now_or_never().expect("no wait beside a probe");
    assert_eq!(stood_in(beside), Verdict::Counted);
    assert_eq!(stood_in(probe.await), Verdict::Free);
    assert_eq!(limiter.counts().outages, 1);
}

#[tokio::test]
async fn a_server_that_comes_back_is_used_again() {
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let (server, url) = place();
    let proxy = Proxy::start(server).await;
    let clock = SimClock::at_ms(0);
    let limiter = redis(&url(proxy.address()), clock.clone(), local(2));
    let mesh = servers::redis_prefix();
    let ask = |id| request(&mesh, "a", id, 4);

    assert_eq!(own(&limiter, &ask("before")).await, Verdict::Counted);
    for outage in 1..=3 {
        proxy.fail_next("EVALSHA", Fault::Stall);
        assert_eq!(stood_in(limiter.take(&ask("during")).await), first_is_counted(outage));
        // Until the next probe nobody asks the server, be it well or not.
        proxy.fail_next("nothing has these bytes", Fault::CutBefore);
        assert_eq!(stood_in(limiter.take(&ask("during")).await), Verdict::Free);
        assert_eq!(log.lines(), (outage, outage - 1));

        clock.advance(LIMITER_PROBE_INTERVAL);
        assert_eq!(own(&limiter, &ask("before")).await, Verdict::Free, "the server remembers");
        assert_eq!(log.lines(), (outage, outage));
        assert_eq!(limiter.counts().outages, u64::try_from(outage).unwrap());
    }
    // The server got "during" though its answer stalled: it is counted there, once.
    assert_eq!(own(&limiter, &ask("during")).await, Verdict::Free);
    assert_eq!(limiter.counts().fallback, 6);
}

/// The stand-in remembers over outages, as long as the window is.
fn first_is_counted(outage: usize) -> Verdict {
    if outage == 1 { Verdict::Counted } else { Verdict::Free }
}

#[tokio::test]
async fn a_cut_connection_is_no_outage_and_costs_nothing_twice() {
    let (server, url) = place();
    let proxy = Proxy::start(server).await;
    let limiter = redis(&url(proxy.address()), SimClock::at_ms(0), closed());
    let mesh = servers::redis_prefix();
    let take = async |id| own(&limiter, &request(&mesh, "a", id, 3)).await;

    assert_eq!(take("1").await, Verdict::Counted);
    proxy.fail_next("EVALSHA", Fault::CutBefore);
    assert_eq!(take("2").await, Verdict::Counted, "the first request was lost");
    proxy.fail_next("EVALSHA", Fault::CutAfter);
    assert!(!is_denied(take("3").await), "the first answer was lost");
    assert_eq!(proxy.fired(), 2);
    for id in ["1", "2", "3"] {
        assert_eq!(take(id).await, Verdict::Free);
    }
    assert!(is_denied(take("4").await));
    assert_eq!((limiter.counts().fallback, limiter.counts().outages), (0, 0));
}

#[tokio::test]
async fn a_server_that_refuses_us_is_away() {
    let (server, _) = place();
    let address = format!("redis://:wrong@{server}/");
    let limiter = redis(&address, SimClock::at_ms(0), local(1));
    let decision = limiter.take(&request("m", "a", "x", 1)).await;
    assert_eq!(stood_in(decision), Verdict::Counted);
}

#[test]
fn an_address_that_is_none_is_refused_without_its_password() {
    for address in [
        "",
        "localhost",
        "http://:secret@localhost/",
        "rediss://:secret@localhost/#insecure",
        "rediss://:secret@localhost/?sslmode=require",
        "rediss://:secret@localhost/?sslrootcert=/nowhere/ca.pem",
        "redis://:se?cret@localhost/",
        "redis://:secret@192.0.2.1/",
        "redis://:secret@cache.example:6379/",
    ] {
        let clock = Arc::new(SimClock::at_ms(0));
        let error = Limiter::redis(address, clock, closed()).err().expect(address);
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
}

/// What waits for a member must reach it, whatever becomes of sends.
#[tokio::test]
async fn what_is_asked_goes_on_while_the_server_is_away() {
    for fallback in [closed(), local(2)] {
        let clock = SimClock::at_ms(0);
        let limiter = Limiter::redis(&nowhere().await, Arc::new(clock.clone()), fallback).unwrap();
        assert_eq!(limiter.ask(&request("m", "a", "1", 4)).await, None);
        let sends = fallback.mode == FallbackMode::Local;
        assert_eq!(limiter.take(&request("m", "b", "1", 4)).await.is_allowed(), sends);
        // This process has its share.
        let shares = 4 / u32::from(fallback.brokers);
        for number in 2..=shares {
            let id = number.to_string();
            assert_eq!(limiter.ask(&request("m", "a", &id, 4)).await, None);
        }
        assert!(limiter.ask(&request("m", "a", "more", 4)).await.is_some());
        assert_eq!(limiter.ask(&request("m", "a", "1", 4)).await, None, "it was counted");
        assert_eq!(limiter.counts().held, 1);
    }
    // The same from the server.
    let limiter = redis(&servers::redis(), SimClock::at_ms(0), closed());
    let mesh = servers::redis_prefix();
    assert_eq!(limiter.ask(&request(&mesh, "a", "1", 1)).await, None);
    assert!(limiter.ask(&request(&mesh, "a", "2", 1)).await.is_some());
    assert_eq!(limiter.ask(&request(&mesh, "a", "1", 1)).await, None);
}

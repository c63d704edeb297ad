//! The one connection to the limiter's server: made when it is needed, dropped when it fails, and
//! left alone for a while after that, so that an outage costs the senders no waiting.
//!
//! `away` is what the log and the metrics call an outage. It begins when the connection that is in
//! use fails or none can be made, and ends with the first verdict; each end is logged once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};
use semel_core::clock::Clock;
use tokio::sync::Mutex;

use super::LimiterAddressError;
use super::place::Place;
use crate::limits::{
    LIMITER_ANSWER_TIMEOUT, LIMITER_CONNECT_TIMEOUT, LIMITER_PIPELINE_MAX, LIMITER_PROBE_INTERVAL,
};

pub(super) struct Link {
    place: Place,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Written under the lock of `state`.
    away: AtomicBool,
    outages: AtomicU64,
}

#[derive(Default)]
struct State {
    connection: Option<MultiplexedConnection>,
    /// Which connection: a late failure of an old one says nothing about its successor.
    generation: u64,
    /// No connection is tried before.
    probe_at: Duration,
    /// What the server, or the way to it, said when it was found away.
    why: Option<String>,
}

/// A connection to run one request on.
pub(super) struct Lease {
    pub(super) connection: MultiplexedConnection,
    generation: u64,
}

impl Link {
    pub(super) fn new(address: &str, clock: Arc<dyn Clock>) -> Result<Self, LimiterAddressError> {
        Ok(Self {
            place: Place::of(address)?,
            clock,
            state: Mutex::default(),
            away: AtomicBool::new(false),
            outages: AtomicU64::new(0),
        })
    }

    /// Why the server was found away the last time.
    pub(super) async fn why_away(&self) -> Option<String> {
        self.state.lock().await.why.clone()
    }

    pub(super) fn outages(&self) -> u64 {
        self.outages.load(Ordering::Relaxed)
    }

    /// The connection, made if need be. `None`: the server is away.
    pub(super) async fn lease(&self) -> Option<Lease> {
        // One connects, the others wait for it; but in an outage they do not wait.
        let mut state =
            if self.is_away() { self.state.try_lock().ok()? } else { self.state.lock().await };
        if let Some(connection) = &state.connection {
            return Some(Lease { connection: connection.clone(), generation: state.generation });
        }
        if self.clock.monotonic() < state.probe_at {
            return None;
        }
        match self.connect().await {
            Ok(connection) => {
                state.generation += 1;
                state.connection = Some(connection.clone());
                Some(Lease { connection, generation: state.generation })
            }
            Err(error) => {
                self.lose(&mut state, &error);
                None
            }
        }
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(LIMITER_ANSWER_TIMEOUT))
            .set_pipeline_buffer_size(LIMITER_PIPELINE_MAX);
        let connected = self.place.connect(config);
        let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
        tokio::time::timeout(LIMITER_CONNECT_TIMEOUT, connected).await.map_err(late)?
    }

    /// The request on this lease got its verdict.
    pub(super) async fn answered(&self, lease: &Lease) {
        if !self.is_away() {
            return;
        }
        let state = self.state.lock().await;
        if state.is_current(lease) && self.away.swap(false, Ordering::Relaxed) {
            tracing::info!("the limiter's server is reachable again");
        }
    }

    /// The connection broke; the next lease tries another at once.
    pub(super) async fn broken(&self, lease: &Lease) {
        let mut state = self.state.lock().await;
        if state.is_current(lease) {
            state.connection = None;
        }
    }

    /// The server does not answer, or not as it should.
    pub(super) async fn failed(&self, lease: &Lease, error: &RedisError) {
        let mut state = self.state.lock().await;
        if state.is_current(lease) {
            self.lose(&mut state, error);
        }
    }

    fn lose(&self, state: &mut State, error: &RedisError) {
        state.connection = None;
        state.why = Some(error.to_string());
        state.probe_at = self.clock.monotonic().saturating_add(LIMITER_PROBE_INTERVAL);
        if !self.away.swap(true, Ordering::Relaxed) {
            self.outages.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "the limiter's server is unreachable; the fallback decides");
        }
    }

    fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }
}

impl State {
    fn is_current(&self, lease: &Lease) -> bool {
        self.connection.is_some() && self.generation == lease.generation
    }
}

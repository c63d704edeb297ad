//! What an operator's tools see of a daemon (daemon.md, "Metrics"). What is counted on the way of a
//! call is counted in plain numbers; what lives elsewhere is read when somebody asks. No id is ever
//! a label.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use semel_core::envelope::DestinationKind;
use semel_core::status;

use super::access::Door;
use super::table::ROUTES;
use crate::link::Loss;

/// What [`Metrics::encode`] writes.
pub(super) const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Statuses that are told apart; what else there is comes last.
const STATUSES: &[u16] = &[200, 202, 400, 401, 403, 404, 405, 408, 409, 413, 429, 500, 503, 507, 0];

status! {
    /// How a send was answered.
    pub enum SendResult {
        /// It is new and on disk.
        Queued = "queued",
        /// It was there already.
        Duplicate = "duplicate",
        /// Its id is of another request, or of one that has ended.
        Conflict = "conflict",
        /// Nobody of that name.
        Refused = "refused",
    }
}

/// What is read elsewhere at the moment of asking.
pub(super) struct Live {
    pub(super) connected: bool,
    pub(super) reconnects: [u64; Loss::ALL.len()],
    pub(super) received: [(DestinationKind, u64); DestinationKind::ALL.len()],
    pub(super) repeated: u64,
    pub(super) outbox_pct: u64,
    pub(super) disk_pct: u64,
    pub(super) token_rotations: u64,
    pub(super) lag: Option<Duration>,
    pub(super) waiting: u64,
    pub(super) inflight: u64,
    pub(super) dead: u64,
    pub(super) oldest_ms: i64,
    pub(super) accepted: u64,
    pub(super) outbox_bytes: u64,
    pub(super) inbox_bytes: u64,
}

type Labels = Vec<(&'static str, &'static str)>;

/// Everything that is counted here.
pub(super) struct Metrics {
    /// By call, door and status; calls of no known path come last.
    calls: Vec<AtomicU64>,
    /// By call, in the same order.
    seconds: Vec<Histogram>,
    seconds_family: Family<Labels, Histogram, fn() -> Histogram>,
    /// By kind of destination and result.
    sends: Vec<AtomicU64>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let seconds_family: Family<Labels, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(seconds);
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let of = |number| seconds_family.get_or_create_owned(&vec![("endpoint", endpoint(number))]);
        Self {
            calls: zeros((ROUTES.len() + 1) * Door::ALL.len() * STATUSES.len()),
            seconds: (0..=ROUTES.len()).map(of).collect(),
            sends: zeros(DestinationKind::ALL.len() * SendResult::ALL.len()),
            seconds_family,
        }
    }

    /// A call was answered.
    pub(super) fn answered(&self, number: usize, door: Door, status: u16, took: Duration) {
        let last = STATUSES.len() - 1;
        let status = STATUSES.iter().position(|known| *known == status).unwrap_or(last);
        let cell = (number * Door::ALL.len() + door as usize) * STATUSES.len() + status;
        if let (Some(calls), Some(seconds)) = (self.calls.get(cell), self.seconds.get(number)) {
            calls.fetch_add(1, Ordering::Relaxed);
            seconds.observe(took.as_secs_f64());
        }
    }

    /// A send was answered.
    pub(super) fn sent(&self, kind: DestinationKind, result: SendResult) {
        if let Some(cell) = self.sends.get(kind as usize * SendResult::ALL.len() + result as usize)
        {
            cell.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The text that a scraper reads.
    pub(super) fn encode(&self, live: &Live) -> String {
        let mut registry = Registry::with_prefix("cm_daemon");
        self.register_calls(&mut registry, live);
        register_live(&mut registry, live);
        let mut text = String::new();
        // Writing to memory does not fail.
        let _ = encode(&mut text, &registry);
        text
    }

    fn register_calls(&self, registry: &mut Registry, live: &Live) {
        let calls: Family<Labels, Counter> = Family::default();
        let sends: Family<Labels, Counter> = Family::default();
        let dedupe: Family<Labels, Counter> = Family::default();
        for (cell, count) in counted(&self.calls) {
            let (rest, status) = (cell / STATUSES.len(), cell % STATUSES.len());
            let door = Door::ALL[rest % Door::ALL.len()].as_str();
            let endpoint = endpoint(rest / Door::ALL.len());
            let status = status_word(STATUSES[status]);
            let labels = vec![("endpoint", endpoint), ("status", status), ("transport", door)];
            calls.get_or_create(&labels).inc_by(count);
        }
        for (cell, count) in counted(&self.sends) {
            let kind = DestinationKind::ALL[cell / SendResult::ALL.len()].as_str();
            let result = SendResult::ALL[cell % SendResult::ALL.len()];
            let labels = vec![("kind", kind), ("status", result.as_str())];
            sends.get_or_create(&labels).inc_by(count);
            if result == SendResult::Duplicate {
                dedupe.get_or_create(&vec![("direction", "out")]).inc_by(count);
            }
        }
        registry.register("ipc_request", "Calls of the local API", calls);
        let help = "What a call of the local API took";
        registry.register("ipc_duration_seconds", help, self.seconds_family.clone());
        registry.register("send", "Sends by how they were answered", sends);
        dedupe.get_or_create(&vec![("direction", "in")]).inc_by(live.repeated);
        registry.register("dedupe", "What was repeated and took no effect", dedupe);
    }
}

fn register_live(registry: &mut Registry, live: &Live) {
    let gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    let help = "Whether the broker is there";
    registry.register("connected", help, gauge(live.connected.into()));
    let reconnects: Family<Labels, Counter> = Family::default();
    for (loss, count) in Loss::ALL.iter().zip(live.reconnects) {
        reconnects.get_or_create(&vec![("reason", loss.as_str())]).inc_by(count);
    }
    let help = "Connections after the first, by what ended the one before";
    registry.register("reconnects", help, reconnects);
    let received: Family<Labels, Counter> = Family::default();
    for (kind, count) in live.received {
        received.get_or_create(&vec![("kind", kind.as_str())]).inc_by(count);
    }
    registry.register("recv", "New messages in the inbox", received);
    let help = "Times that the token of the local API was replaced";
    registry.register("local_token_rotations", help, ConstCounter::new(live.token_rotations));
    if let Some(lag) = live.lag {
        let lag = u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
        registry.register("lag_ms", "How long the last answered send took", gauge(lag));
    }
    let depth: Family<Labels, Gauge> = Family::default();
    let rows = [("pending", live.waiting), ("inflight", live.inflight), ("dead", live.dead)];
    for (status, count) in rows {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        depth.get_or_create(&vec![("status", status)]).set(count);
    }
    registry.register("outbox_depth", "Rows of the outbox", depth);
    let help = "Age of the oldest row that waits";
    registry.register("outbox_age_seconds", help, ConstGauge::new(live.oldest_ms / 1000));
    let help = "Sends accepted since the start";
    registry.register("outbox_accepted", help, ConstCounter::new(live.accepted));
    let bytes: Family<Labels, Gauge> = Family::default();
    for (kind, count) in [("outbox", live.outbox_bytes), ("inbox", live.inbox_bytes)] {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        bytes.get_or_create(&vec![("kind", kind)]).set(count);
    }
    let percent: Family<Labels, Gauge> = Family::default();
    for (kind, count) in [("outbox", live.outbox_pct), ("disk", live.disk_pct)] {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        percent.get_or_create(&vec![("kind", kind)]).set(count);
    }
    registry.register("disk_pct", "How full the outbox and its disk are", percent);
    registry.register("disk_bytes", "Bytes of the databases", bytes);
}

fn counted(cells: &[AtomicU64]) -> impl Iterator<Item = (usize, u64)> {
    let counts = cells.iter().map(|cell| cell.load(Ordering::Relaxed)).enumerate();
    counts.filter(|(_, count)| *count > 0)
}

fn seconds() -> Histogram {
    // From a twentieth of a millisecond to about three seconds.
    Histogram::new(exponential_buckets(0.00005, 2.0, 16))
}

fn endpoint(number: usize) -> &'static str {
    ROUTES.get(number).map_or("other", |route| route.path)
}

fn status_word(status: u16) -> &'static str {
    const WORDS: &[&str] = &[
        "200", "202", "400", "401", "403", "404", "405", "408", "409", "413", "429", "500", "503",
        "507", "other",
    ];
    let at = STATUSES.iter().position(|known| *known == status);
    at.and_then(|at| WORDS.get(at)).copied().unwrap_or("other")
}

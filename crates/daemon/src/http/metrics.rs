//! What an operator's tools see of a daemon (daemon.md, "Metrics"). What is counted on the way of a
//! send is counted in plain numbers; what lives elsewhere is read when somebody asks. No id is ever
//! a label.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use semel_api::Api;
use semel_core::envelope::DestinationKind;
use semel_core::status;

use crate::link::Loss;

/// What [`Metrics::encode`] writes.
pub(super) const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
    pub(super) nonsense: u64,
    pub(super) inbox_full: bool,
    pub(super) outbox_pct: u64,
    pub(super) inbox_pct: u64,
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
    /// By kind of destination and result.
    sends: Vec<AtomicU64>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let cells = DestinationKind::ALL.len() * SendResult::ALL.len();
        Self { sends: (0..cells).map(|_| AtomicU64::new(0)).collect() }
    }

    /// A send was answered.
    pub(super) fn sent(&self, kind: DestinationKind, result: SendResult) {
        if let Some(cell) = self.sends.get(kind as usize * SendResult::ALL.len() + result as usize)
        {
            cell.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The text that a scraper reads.
    pub(super) fn encode(&self, api: &Api, live: &Live) -> String {
        let mut registry = Registry::with_prefix("semel_daemon");
        api.register_metrics(&mut registry);
        self.register_sends(&mut registry, live);
        register_live(&mut registry, live);
        let mut text = String::new();
        // Writing to memory does not fail.
        let _ = encode(&mut text, &registry);
        // One document has one end.
        if let Some(own) = text.strip_suffix("# EOF\n") {
            text = format!("{own}{}", api.parts_metrics());
        }
        text
    }

    fn register_sends(&self, registry: &mut Registry, live: &Live) {
        let sends: Family<Labels, Counter> = Family::default();
        let dedupe: Family<Labels, Counter> = Family::default();
        for (cell, count) in self.sends.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count == 0 {
                continue;
            }
            let kind = DestinationKind::ALL[cell / SendResult::ALL.len()].as_str();
            let result = SendResult::ALL[cell % SendResult::ALL.len()];
            let labels = vec![("kind", kind), ("status", result.as_str())];
            sends.get_or_create(&labels).inc_by(count);
            if result == SendResult::Duplicate {
                dedupe.get_or_create(&vec![("direction", "out")]).inc_by(count);
            }
        }
        registry.register("send", "Sends by their answer", sends);
        dedupe.get_or_create(&vec![("direction", "in")]).inc_by(live.repeated);
        registry.register("dedupe", "Repeated messages and sends, which took no effect", dedupe);
    }
}

fn register_live(registry: &mut Registry, live: &Live) {
    let gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    let help = "Whether the broker is connected";
    registry.register("connected", help, gauge(live.connected.into()));
    let reconnects: Family<Labels, Counter> = Family::default();
    for (loss, count) in Loss::ALL.iter().zip(live.reconnects) {
        reconnects.get_or_create(&vec![("reason", loss.as_str())]).inc_by(count);
    }
    let help = "Connections after the first, by the cause of the previous one's end";
    registry.register("reconnects", help, reconnects);
    let received: Family<Labels, Counter> = Family::default();
    for (kind, count) in live.received {
        received.get_or_create(&vec![("kind", kind.as_str())]).inc_by(count);
    }
    registry.register("recv", "New messages in the inbox", received);
    let help = "Messages that could not be accepted and were set aside";
    registry.register("invalid_inbound", help, ConstCounter::new(live.nonsense));
    let help = "Whether unread messages fill the inbox";
    registry.register("inbox_full", help, gauge(live.inbox_full.into()));
    let help = "Times that the token of the local API was replaced";
    registry.register("local_token_rotations", help, ConstCounter::new(live.token_rotations));
    if let Some(lag) = live.lag {
        let lag = u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
        registry.register("lag_ms", "Duration of the last answered send", gauge(lag));
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
    let kinds = [("outbox", live.outbox_pct), ("inbox", live.inbox_pct), ("disk", live.disk_pct)];
    for (kind, count) in kinds {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        percent.get_or_create(&vec![("kind", kind)]).set(count);
    }
    registry.register("disk_pct", "Percentage in use of the databases and their disk", percent);
    registry.register("disk_bytes", "Bytes of the databases", bytes);
}

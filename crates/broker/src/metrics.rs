//! What an operator's tools see of a broker (mesh.md §7, broker.md "Operating it").
//!
//! Metrics follow what happened and decide nothing. What is counted on the way of a send is
//! counted in handles that a lane has looked up once, and what lives elsewhere (connections, the
//! limiter's decisions) is read when somebody asks, so that it cannot drift (traps.md 13). Labels
//! name a mesh at the most, and a bounded number of them; ids go to the log.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use semel_core::status;
use semel_store::StoreError;

use crate::accept::{AcceptItem, Verdict};
use crate::limiter::LimiterCounts;
use crate::limits::METRIC_MESHES_MAX;
use crate::pipeline::Answer;
use crate::store::{Mesh, Report};

/// What [`Metrics::encode`] writes.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// In front of every name.
const PREFIX: &str = "semel_broker";

/// The label of meshes beyond those that are told apart.
const OTHER: &str = "other";

type Labels = Vec<(&'static str, String)>;

status! {
    /// How a send was answered.
    pub enum AcceptResult {
        /// `201`.
        Accepted = "accepted",
        /// `200`.
        Duplicate = "duplicate",
        /// `409`: the id belongs to another request.
        Reused = "reused",
        /// Another `4xx`.
        Refused = "refused",
        /// `429`.
        RateLimited = "rate_limited",
        /// `503`.
        Later = "later",
        /// Not at all: its connection is closed.
        Closed = "closed",
    }
}

impl AcceptResult {
    fn of(answer: &Answer) -> Self {
        match answer {
            Answer::Decided(Verdict::Accepted { .. }) => Self::Accepted,
            Answer::Decided(Verdict::Duplicate(_)) => Self::Duplicate,
            Answer::Decided(Verdict::Reused(_)) => Self::Reused,
            Answer::Decided(Verdict::Refused(_)) => Self::Refused,
            Answer::Decided(Verdict::RateLimited { .. }) => Self::RateLimited,
            Answer::Later | Answer::Stuck => Self::Later,
            Answer::Decided(Verdict::Stale) | Answer::Close => Self::Closed,
        }
    }
}

status! {
    /// Why a batch was not committed.
    pub enum FailureCause {
        /// The disk is full.
        Full = "full",
        /// It was more than one write may be; it is run in halves.
        TooManyRows = "too_many_rows",
        /// Nobody knows whether it was.
        Uncertain = "uncertain",
        /// A statement was refused.
        Statement = "statement",
        /// The store is away or busy.
        Store = "store",
    }
}

impl FailureCause {
    fn of(error: &StoreError) -> Self {
        match error {
            StoreError::Full => Self::Full,
            StoreError::TooManyRows { .. } => Self::TooManyRows,
            StoreError::Uncertain { .. } => Self::Uncertain,
            StoreError::Sqlite(_) | StoreError::Postgres(_) => Self::Statement,
            StoreError::Unavailable { .. }
            | StoreError::RolledBack { .. }
            | StoreError::Panicked
            | StoreError::Behind
            | StoreError::Contended { .. }
            | StoreError::Copy { .. }
            | StoreError::Busy
            | StoreError::Stopped
            | StoreError::Damaged { .. }
            | StoreError::Corrupt { .. } => Self::Store,
        }
    }
}

/// What is read elsewhere at the moment of asking.
#[derive(Debug, Clone, Copy)]
pub struct Live {
    /// Daemons that are connected.
    pub connections: usize,
    /// Bytes that wait to be written to them, and to callers over HTTP.
    pub unwritten: usize,
    /// How the limiter decided so far.
    pub limiter: LimiterCounts,
}

/// Everything that is counted.
pub struct Metrics {
    registry: Registry,
    meshes: Mutex<HashSet<String>>,
    accepts: Family<Labels, Counter>,
    mismatches: Family<Labels, Counter>,
    batch_size: Histogram,
    batch_rows: Histogram,
    failures: Family<Labels, Counter>,
    commit_seconds: Histogram,
    /// Ids that were found before the transaction (B0).
    pub(crate) hits_looked_up: Counter,
    /// Ids that were found by the claim (B2).
    pub(crate) hits_claimed: Counter,
    /// Units of the rate limit that were spent on what was then refused in the transaction.
    pub(crate) spent_then_refused: Counter,
    /// Deliveries that went out, repeated ones included.
    pub(crate) pushes: Counter,
    /// Deliveries that were acknowledged.
    pub(crate) acks: Counter,
    /// Deliveries that were set aside.
    pub(crate) set_aside: Counter,
    /// Messages that a page of history left out.
    pub(crate) damaged: Counter,
    lag_seconds: Family<Labels, Gauge>,
    orphan_checks: Counter,
    orphans: Family<Labels, Gauge>,
    atomicity_violations: Gauge,
}

/// The counters of one mesh.
pub(crate) struct LaneMetrics {
    /// In the order of [`AcceptResult::ALL`].
    results: Vec<Counter>,
    mismatches: Counter,
}

impl LaneMetrics {
    /// A send is answered. A few nanoseconds: only the lane writes to its counters.
    pub(crate) fn answered(&self, item: &AcceptItem, answer: &Answer) {
        let result = AcceptResult::of(answer);
        self.results[result as usize].inc();
        if result == AcceptResult::Reused {
            self.mismatches.inc();
            let id = item.client_message_id.as_str();
            let member_id = item.session.member_id;
            tracing::warn!(%member_id, client_message_id = id, "an id came with another request");
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        // From a tenth of a millisecond to three seconds, and from one send to a full batch.
        let seconds = exponential_buckets(0.0001, 2.0, 16);
        let sends = exponential_buckets(1.0, 2.0, 10);
        let rows = exponential_buckets(4.0, 4.0, 9);
        let mut metrics = Self {
            registry: Registry::with_prefix(PREFIX),
            meshes: Mutex::default(),
            accepts: Family::default(),
            mismatches: Family::default(),
            batch_size: Histogram::new(sends),
            batch_rows: Histogram::new(rows),
            failures: Family::default(),
            commit_seconds: Histogram::new(seconds),
            hits_looked_up: Counter::default(),
            hits_claimed: Counter::default(),
            spent_then_refused: Counter::default(),
            pushes: Counter::default(),
            acks: Counter::default(),
            set_aside: Counter::default(),
            damaged: Counter::default(),
            lag_seconds: Family::default(),
            orphan_checks: Counter::default(),
            orphans: Family::default(),
            atomicity_violations: Gauge::default(),
        };
        metrics.register_accepts();
        metrics.register_others();
        metrics
    }
}

impl Metrics {
    fn register_accepts(&mut self) {
        let hits: Family<Labels, Counter> = Family::default();
        self.hits_looked_up = hits.get_or_create_owned(&vec![("phase", "b0".to_owned())]);
        self.hits_claimed = hits.get_or_create_owned(&vec![("phase", "b2".to_owned())]);
        FailureCause::ALL.iter().for_each(|why| drop(self.failure(*why)));
        let registry = &mut self.registry;
        registry.register("accepts", "Sends by their answer", self.accepts.clone());
        let help = "Sends that shared one accept transaction";
        registry.register("batch_size", help, self.batch_size.clone());
        let help = "Approximate number of rows that an accept transaction wrote";
        registry.register("batch_rows", help, self.batch_rows.clone());
        let help = "Accept transactions that were not committed, by cause";
        registry.register("batch_failures", help, self.failures.clone());
        let help = "Duration of an accept transaction with its commit";
        registry.register("commit_seconds", help, self.commit_seconds.clone());
        registry.register("dedupe_hits", "Sends whose id was known", hits);
        let help = "Sends whose id belongs to another request; the id is in the log";
        registry.register("dedupe_fingerprint_mismatch", help, self.mismatches.clone());
        let help = "Units of the rate limit spent on sends that B2 then refused";
        let counter = self.spent_then_refused.clone();
        registry.register("rate_limit_consumed_then_b2_rejected", help, counter);
    }

    fn register_others(&mut self) {
        let registry = &mut self.registry;
        let help = "Deliveries that went out, repeated ones included";
        registry.register("pushes", help, self.pushes.clone());
        registry.register("acks", "Deliveries that were acknowledged", self.acks.clone());
        let help = "Deliveries that were set aside: not deliverable, or leased too often";
        registry.register("set_aside", help, self.set_aside.clone());
        let help = "Messages that history left out: they differ from what was accepted";
        registry.register("history_damaged", help, self.damaged.clone());
        let help = "The age of the oldest delivery that still waits";
        registry.register("delivery_lag_seconds", help, self.lag_seconds.clone());
        let help = "Consistency checks of a mesh";
        registry.register("dedupe_orphan_check", help, self.orphan_checks.clone());
        let help = "Ids without their message and messages without their id, at the last check";
        registry.register("dedupe_orphan_found", help, self.orphans.clone());
        let help = "Other effects without their message, or messages without them, at the last \
                    check";
        registry.register("atomicity_violation_found", help, self.atomicity_violations.clone());
    }

    /// The counters of a mesh, to be kept: looking them up is not for every send.
    pub(crate) fn lane(&self, mesh: &Mesh) -> LaneMetrics {
        let (name, mesh_id) = self.labels(mesh);
        let result = |result: &AcceptResult| {
            let labels = vec![("mesh", name.clone()), ("result", result.as_str().to_owned())];
            self.accepts.get_or_create_owned(&labels)
        };
        let results = AcceptResult::ALL.iter().map(result).collect();
        let mismatches = self.mismatches.get_or_create_owned(&vec![("mesh_id", mesh_id)]);
        LaneMetrics { results, mismatches }
    }

    /// A batch was committed or not, wrote about so many rows and took so long.
    pub(crate) fn batch(&self, sends: usize, rows: usize, took: Duration) {
        self.batch_size.observe(f64::from(u32::try_from(sends).unwrap_or(u32::MAX)));
        self.batch_rows.observe(f64::from(u32::try_from(rows).unwrap_or(u32::MAX)));
        self.commit_seconds.observe(took.as_secs_f64());
    }

    /// A batch was not committed.
    pub(crate) fn failed(&self, error: &StoreError) {
        self.failure(FailureCause::of(error)).inc();
    }

    fn failure(&self, why: FailureCause) -> Counter {
        self.failures.get_or_create_owned(&vec![("why", why.as_str().to_owned())])
    }

    /// Every mesh was checked.
    pub(crate) fn checked(&self, reports: &[(&Mesh, Report)]) {
        let (mut others, mut violations) = (0, 0);
        for (mesh, report) in reports {
            let found = report.dedupe_without_message + report.message_without_dedupe;
            let all: u64 = report.findings().iter().map(|(_, count)| count).sum();
            violations += all - found;
            let (name, _) = self.labels(mesh);
            // Those that share a label share its number.
            others += if name == OTHER { found } else { 0 };
            let shown = if name == OTHER { others } else { found };
            self.orphans.get_or_create_owned(&vec![("mesh", name)]).set(gauge(shown));
        }
        self.orphan_checks.inc_by(reports.len() as u64);
        self.atomicity_violations.set(gauge(violations));
    }

    /// The ages of the meshes' oldest deliveries were looked at. Those that share a label share
    /// the highest.
    pub(crate) fn lags(&self, lags: &[(Mesh, u64)]) {
        let mut highest: BTreeMap<String, u64> = BTreeMap::new();
        for (mesh, seconds) in lags {
            let shown = highest.entry(self.labels(mesh).0).or_default();
            *shown = (*shown).max(*seconds);
        }
        for (name, seconds) in highest {
            self.lag_seconds.get_or_create_owned(&vec![("mesh", name)]).set(gauge(seconds));
        }
    }

    /// A mesh as labels name it: the first so many by themselves, the rest together.
    fn labels(&self, mesh: &Mesh) -> (String, String) {
        let mut meshes = self.meshes.lock().unwrap_or_else(PoisonError::into_inner);
        if !meshes.contains(&mesh.slug) {
            if meshes.len() >= METRIC_MESHES_MAX {
                return (OTHER.to_owned(), OTHER.to_owned());
            }
            meshes.insert(mesh.slug.clone());
        }
        (mesh.slug.clone(), mesh.mesh_id.to_string())
    }

    /// Everything as text.
    pub fn encode(&self, live: &Live) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        encode_registry(&mut text, &live.registry())?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}

impl Live {
    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix(PREFIX);
        let connections = ConstGauge::new(gauge(self.connections as u64));
        registry.register("connections", "Daemons that are connected now", connections);
        let help = "Bytes that wait for daemons and callers to read them";
        registry.register("outbound_bytes", help, ConstGauge::new(gauge(self.unwritten as u64)));
        let LimiterCounts { allowed, free, denied, fallback, outages, held } = self.limiter;
        let decisions: Family<Labels, Counter> = Family::default();
        for (decision, count) in [("allowed", allowed), ("free", free), ("denied", denied)] {
            let labels = vec![("decision", decision.to_owned())];
            decisions.get_or_create_owned(&labels).inc_by(count);
        }
        registry.register("limiter", "Decisions of the rate limiter", decisions);
        let help = "Decisions of the rate limiter's fallback";
        registry.register("limiter_fallback", help, ConstCounter::new(fallback));
        let help = "Times that the rate limiter's server became unreachable";
        registry.register("limiter_outages", help, ConstCounter::new(outages));
        let help = "Questions and requests that waited or were refused";
        registry.register("limiter_held", help, ConstCounter::new(held));
        registry
    }
}

fn gauge(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use semel_core::id::UuidId;
    use uuid::Uuid;

    use super::*;
    use crate::accept::DedupeMode;

    const DOCUMENT: &str = include_str!("../../../docs/operating.md");

    fn mesh(number: usize) -> Mesh {
        Mesh {
            mesh_id: UuidId::new(Uuid::from_u128(number as u128)),
            slug: format!("mesh-{number}"),
            dedupe: DedupeMode::Permanent,
            dedupe_known_since: semel_core::clock::UnixMs(0),
            rate_limit: 1,
            rate_window_ms: 1,
            inline_bytes: 1,
            blob_bytes: 1,
            message_retention_days: 1,
            next_seq: 1,
            connection_policy: semel_wire::features::ConnectionPolicy::PreferNewest,
        }
    }

    fn encoded(metrics: &Metrics) -> String {
        let live = Live { connections: 0, unwritten: 0, limiter: LimiterCounts::default() };
        metrics.encode(&live).unwrap_or_default()
    }

    #[test]
    fn the_document_names_every_metric_and_no_other() {
        let metrics = Metrics::default();
        metrics.checked(&[(&mesh(1), Report::default())]);
        metrics.lags(&[(mesh(1), 1)]);
        let _ = metrics.lane(&mesh(1));
        let text = encoded(&metrics);
        let shown: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .filter_map(|line| line.split_once(' '))
            .map(|(name, kind)| match kind {
                "counter" => format!("{name}_total"),
                _ => name.to_owned(),
            })
            .collect();
        let rows = DOCUMENT.lines().filter_map(|line| line.strip_prefix("| `semel_broker"));
        let documented: BTreeSet<String> = rows
            .filter_map(|row| row.split_once('`'))
            .map(|(name, _)| format!("{PREFIX}{name}"))
            .collect();
        assert_eq!(documented, shown);
    }

    #[test]
    fn meshes_beyond_the_limit_share_a_label() {
        let metrics = Metrics::default();
        let meshes: Vec<Mesh> = (0..METRIC_MESHES_MAX + 5).map(mesh).collect();
        for mesh in &meshes {
            let lane = metrics.lane(mesh);
            lane.results[AcceptResult::Later as usize].inc();
        }
        let damaged = Report { dedupe_without_message: 2, history_gaps: 1, ..Report::default() };
        let reports: Vec<(&Mesh, Report)> = meshes.iter().map(|mesh| (mesh, damaged)).collect();
        // Twice: what is found is shown, not added up.
        metrics.checked(&reports);
        metrics.checked(&reports);
        let text = encoded(&metrics);
        let has = |line: &str| text.lines().any(|found| found == line);
        assert!(has(r#"semel_broker_accepts_total{mesh="mesh-999",result="later"} 1"#));
        assert!(has(r#"semel_broker_accepts_total{mesh="other",result="later"} 5"#));
        assert!(!text.contains("mesh-1000"));
        assert!(has(r#"semel_broker_dedupe_orphan_found{mesh="mesh-0"} 2"#));
        assert!(has(r#"semel_broker_dedupe_orphan_found{mesh="other"} 10"#));
        assert!(has("semel_broker_atomicity_violation_found 1005"));
        assert!(has("semel_broker_dedupe_orphan_check_total 2010"));
        let series = text.lines().filter(|line| line.starts_with("semel_broker_accepts_total"));
        assert_eq!(series.count(), (METRIC_MESHES_MAX + 1) * AcceptResult::ALL.len());
    }
}

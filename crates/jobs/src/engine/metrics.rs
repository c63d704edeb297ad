//! What an engine counts (jobs.md §11). No job's id is ever a label.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::breaker::BreakerState;
use crate::gear::FailureClass;
use crate::life::JobStatus;

type Labels = Vec<(&'static str, String)>;

/// Counts since the start.
#[derive(Debug)]
pub struct Metrics {
    jobs: Family<[(&'static str, &'static str); 2], Counter>,
    steps: Family<Labels, Histogram, fn() -> Histogram>,
    waits: Histogram,
    lost: Counter,
    waiting: AtomicU64,
}

/// What is read elsewhere at the moment of asking.
pub struct Live {
    /// Jobs under way here.
    pub busy: usize,
    /// Breakers that are known here.
    pub breakers: Vec<(String, BreakerState)>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            jobs: Family::default(),
            steps: Family::new_with_constructor(seconds),
            waits: seconds(),
            lost: Counter::default(),
            waiting: AtomicU64::new(0),
        }
    }
}

/// From a tenth of a millisecond to minutes.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 4.0, 12))
}

impl Metrics {
    pub(super) fn ended(&self, status: JobStatus, class: Option<FailureClass>) {
        let class = class.map(FailureClass::as_str).unwrap_or_default();
        let labels = [("status", status.as_str()), ("class", class)];
        self.jobs.get_or_create_owned(&labels).inc();
    }

    /// A job was claimed for the first time after so long.
    pub(super) fn waited(&self, wait: Duration) {
        self.waits.observe(wait.as_secs_f64());
    }

    pub(super) fn step(&self, action: &str, took: Duration) {
        let (gear, action) = action.split_once('.').unwrap_or((action, ""));
        let labels = vec![("gear", gear.to_owned()), ("action", action.to_owned())];
        self.steps.get_or_create_owned(&labels).observe(took.as_secs_f64());
    }

    pub(super) fn lost(&self) {
        self.lost.inc();
    }

    pub(super) fn waiting(&self, jobs: u64) {
        self.waiting.store(jobs, Ordering::Relaxed);
    }

    /// What a scraper reads of it.
    pub fn register(&self, registry: &mut Registry, live: &Live) {
        let gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        let busy = u64::try_from(live.busy).unwrap_or(u64::MAX);
        let waiting = self.waiting.load(Ordering::Relaxed);
        let breakers: Family<Labels, Gauge> = Family::default();
        for (action, state) in &live.breakers {
            let place = BreakerState::ALL.iter().position(|other| other == state).unwrap_or(0);
            let labels = vec![("action", action.clone())];
            breakers.get_or_create_owned(&labels).set(i64::try_from(place).unwrap_or(0));
        }
        let help = "Jobs that ended in this engine";
        registry.register("semel_jobs", help, self.jobs.clone());
        let help = "Time from the submission to the first claim";
        registry.register("semel_job_wait_seconds", help, self.waits.clone());
        let help = "Duration of an attempt of a step";
        registry.register("semel_step_seconds", help, self.steps.clone());
        registry.register("semel_workers_busy", "Jobs that this engine is working on", gauge(busy));
        registry.register("semel_queue_depth", "Jobs that wait for a worker", gauge(waiting));
        let help = "0 closed, 1 open, 2 half-open";
        registry.register("semel_breaker_state", help, breakers);
        let help = "Writes of workers that had lost their job";
        registry.register("semel_job_writes_lost", help, self.lost.clone());
    }
}

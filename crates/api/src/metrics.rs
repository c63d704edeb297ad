//! What is counted on the way of a call, in plain numbers. No id is ever a label: a call is named
//! by the path of its table.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::access::Door;

/// Statuses that are told apart, and their words; what else there is comes last.
const STATUSES: &[(u16, &str)] = &[
    (200, "200"),
    (201, "201"),
    (202, "202"),
    (204, "204"),
    (400, "400"),
    (401, "401"),
    (403, "403"),
    (404, "404"),
    (405, "405"),
    (408, "408"),
    (409, "409"),
    (413, "413"),
    (429, "429"),
    (500, "500"),
    (503, "503"),
    (507, "507"),
    (0, "other"),
];

type Labels = Vec<(&'static str, &'static str)>;

/// Everything that is counted of calls.
pub(crate) struct Metrics {
    /// The path of each call; those of no known path come last.
    endpoints: Vec<&'static str>,
    /// By call, door and status.
    calls: Vec<AtomicU64>,
    /// By call.
    seconds: Vec<Histogram>,
    seconds_family: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Metrics {
    pub(crate) fn new(paths: impl Iterator<Item = &'static str>) -> Self {
        let endpoints: Vec<_> = paths.chain(["other"]).collect();
        let seconds_family: Family<Labels, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(seconds);
        let of =
            |path: &&'static str| seconds_family.get_or_create_owned(&vec![("endpoint", *path)]);
        let cells = endpoints.len() * Door::ALL.len() * STATUSES.len();
        Self {
            calls: (0..cells).map(|_| AtomicU64::new(0)).collect(),
            seconds: endpoints.iter().map(of).collect(),
            seconds_family,
            endpoints,
        }
    }

    /// A call was answered.
    pub(crate) fn answered(&self, number: usize, door: Door, status: u16, took: Duration) {
        let last = STATUSES.len() - 1;
        let status = STATUSES.iter().position(|(known, _)| *known == status).unwrap_or(last);
        let cell = (number * Door::ALL.len() + door as usize) * STATUSES.len() + status;
        if let (Some(calls), Some(seconds)) = (self.calls.get(cell), self.seconds.get(number)) {
            calls.fetch_add(1, Ordering::Relaxed);
            seconds.observe(took.as_secs_f64());
        }
    }

    /// What a scraper reads of it.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let calls: Family<Labels, Counter> = Family::default();
        for (cell, count) in self.calls.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count == 0 {
                continue;
            }
            let (rest, status) = (cell / STATUSES.len(), cell % STATUSES.len());
            let door = Door::ALL[rest % Door::ALL.len()].as_str();
            let endpoint = self.endpoints[rest / Door::ALL.len()];
            let status = STATUSES[status].1;
            let labels = vec![("endpoint", endpoint), ("status", status), ("transport", door)];
            calls.get_or_create(&labels).inc_by(count);
        }
        registry.register("ipc_request", "Calls of the local API", calls);
        let help = "Duration of a call of the local API";
        registry.register("ipc_duration_seconds", help, self.seconds_family.clone());
    }
}

fn seconds() -> Histogram {
    // From a twentieth of a millisecond to about three seconds.
    Histogram::new(exponential_buckets(0.00005, 2.0, 16))
}

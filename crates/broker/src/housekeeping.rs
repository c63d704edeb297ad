//! What a broker does at night (mesh.md §7): forgets ids, invites and nonces that have expired,
//! deletes messages that are too old, and looks whether every message has all of its effects. It
//! goes by a clock that has settled (`semel_core::plausible`): what was deleted does not come back.

use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::{Clock, UnixMs};
use semel_core::plausible::{Sweep, SweepClock};
use semel_store::StoreError;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::limits::{
    AUDIT_RETENTION, AUDIT_SWEEP_MAX, DAY, DEDUPE_SWEEP_MAX, HOUSEKEEPING_DELAY,
    HOUSEKEEPING_INTERVAL, LAG_INTERVAL, LAG_RECIPIENTS_MAX, REQUEST_SWEEP_MAX,
    RETENTION_SWEEP_MAX, SWEEP_FIRST, SWEEP_PAUSE, SWEEP_ROUNDS_MAX,
};
use crate::metrics::Metrics;
use crate::store::{Mesh, Report, Store};

/// What a sweep has deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Ids that had expired.
    pub ids: u64,
    /// Messages that were too old.
    pub messages: u64,
    /// Lines of the audit trail that were too old.
    pub audit_events: u64,
    /// Kinds of sweep that came to the end of their rounds: there is more to delete.
    pub unfinished: u64,
    /// What could not be swept, and why. The rest was.
    pub failures: Vec<String>,
}

impl SweepReport {
    /// The rows of one kind of sweep; a failure is noted and stops no other.
    fn add(&mut self, what: &str, swept: Result<Swept, StoreError>) -> u64 {
        match swept {
            Ok(swept) => {
                self.unfinished += swept.unfinished;
                swept.rows
            }
            Err(error) => {
                self.failures.push(format!("{what}: {}", error.chain()));
                0
            }
        }
    }
}

/// Housekeeping every night until `shutdown` comes. What is under way then is undone or finished
/// by the store: every step is one transaction.
pub async fn run(
    store: Store,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    shutdown: impl Future<Output = ()>,
) {
    tokio::select! {
        () = shutdown => {}
        () = nightly(&store, clock.as_ref(), &metrics) => {}
        () = lag(&store, clock.as_ref(), &metrics) => {}
    }
}

async fn nightly(store: &Store, clock: &dyn Clock, metrics: &Metrics) {
    let mut sweeps = sweep_clock(store, clock).await;
    sleep(HOUSEKEEPING_DELAY).await;
    loop {
        let next = match night_when_settled(store, clock, metrics, &mut sweeps).await {
            Ok(next) => next,
            Err(error) => {
                tracing::error!(error = error.chain(), "housekeeping failed; trying again");
                HOUSEKEEPING_INTERVAL
            }
        };
        sleep(next).await;
    }
}

/// How the clocks stand at the start, beside what the store has seen of time.
pub async fn sweep_clock(store: &Store, clock: &dyn Clock) -> SweepClock {
    let mut sweeps = SweepClock::new();
    let newest = store.newest().await.unwrap_or_else(|error| {
        tracing::warn!(error = error.chain(), "the newest message could not be read");
        None
    });
    sweeps.began(newest, clock);
    sweeps
}

/// A night, if the clock may be believed. Says when to come again.
pub async fn night_when_settled(
    store: &Store,
    clock: &dyn Clock,
    metrics: &Metrics,
    sweeps: &mut SweepClock,
) -> Result<Duration, StoreError> {
    if let Some(theirs) = store.now().await? {
        sweeps.heard(theirs, clock.monotonic());
    }
    match sweeps.look_at(clock) {
        Sweep::By(now) => {
            night_once(store, now, metrics).await?;
            Ok(HOUSEKEEPING_INTERVAL)
        }
        Sweep::After(wait) => {
            tracing::warn!(seconds = wait.as_secs(), "the clock has stepped: housekeeping waits");
            Ok(wait)
        }
    }
}

async fn lag(store: &Store, clock: &dyn Clock, metrics: &Metrics) {
    let mut looks = interval(LAG_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if let Err(error) = lag_once(store, clock, metrics).await {
            tracing::warn!(error = error.chain(), "the oldest deliveries could not be read");
        }
    }
}

/// Shows the age of the oldest delivery of every mesh that still waits.
pub async fn lag_once(
    store: &Store,
    clock: &dyn Clock,
    metrics: &Metrics,
) -> Result<(), StoreError> {
    let mut lags = Vec::new();
    for mesh in store.mesh_list().await? {
        let oldest = store.delivery_oldest(mesh.mesh_id, LAG_RECIPIENTS_MAX).await?;
        let age_ms = oldest.map_or(0, |at| clock.wall().0.saturating_sub(at.0).max(0));
        lags.push((mesh, age_ms.unsigned_abs() / 1000));
    }
    metrics.lags(&lags);
    Ok(())
}

/// What is done in one night, by this time.
pub async fn night_once(store: &Store, now: UnixMs, metrics: &Metrics) -> Result<(), StoreError> {
    let meshes = store.mesh_list().await?;
    let swept = sweep_once(store, &meshes, now).await;
    let SweepReport { ids, messages, audit_events, unfinished, failures } = swept;
    tracing::info!(ids, messages, audit_events, unfinished, "swept");
    for failure in failures {
        tracing::error!(failure, "a sweep failed; trying again");
    }
    let mut of_meshes = Vec::with_capacity(meshes.len());
    for (mesh, checked) in meshes.iter().zip(check_once(store, &meshes, now).await) {
        let mesh_id = mesh.mesh_id;
        match checked {
            Ok(report) if report.is_clean() => {
                tracing::info!(%mesh_id, rows = report.rows, "the mesh is consistent");
                of_meshes.push((mesh, report));
            }
            Ok(report) => {
                tracing::error!(%mesh_id, ?report, "the mesh is not consistent");
                of_meshes.push((mesh, report));
            }
            Err(error) => {
                tracing::error!(%mesh_id, error = error.chain(), "the mesh could not be checked");
            }
        }
    }
    metrics.checked(&of_meshes);
    Ok(())
}

/// Sweeps until nothing is left, within limits. What fails, of one mesh or of all, stops nothing
/// else.
pub async fn sweep_once(store: &Store, meshes: &[Mesh], now: UnixMs) -> SweepReport {
    let mut report = SweepReport::default();
    let swept = rounds(DEDUPE_SWEEP_MAX, |limit| store.dedupe_sweep(now, limit)).await;
    report.ids = report.add("ids", swept);
    let older_than = now.saturating_sub(AUDIT_RETENTION);
    let swept = rounds(AUDIT_SWEEP_MAX, |limit| store.audit_sweep(older_than, limit)).await;
    report.audit_events = report.add("audit events", swept);
    let swept = rounds(REQUEST_SWEEP_MAX, |limit| store.invite_sweep(now, limit)).await;
    report.add("invites", swept);
    let swept = rounds(REQUEST_SWEEP_MAX, |limit| store.nonce_sweep(now, limit)).await;
    report.add("nonces", swept);
    for mesh in meshes {
        let older_than = now.saturating_sub(DAY * mesh.message_retention_days);
        let sweep = |limit| store.retention_sweep(mesh.mesh_id, older_than, limit);
        let swept = rounds(RETENTION_SWEEP_MAX, sweep).await;
        report.messages += report.add(&format!("messages of {:?}", mesh.slug), swept);
    }
    report
}

/// Checks every mesh; one that cannot be checked stops no other.
pub async fn check_once(
    store: &Store,
    meshes: &[Mesh],
    now: UnixMs,
) -> Vec<Result<Report, StoreError>> {
    let mut reports = Vec::with_capacity(meshes.len());
    for mesh in meshes {
        reports.push(store.check(mesh, now).await);
    }
    reports
}

struct Swept {
    rows: u64,
    unfinished: u64,
}

/// Runs a limited sweep until it finds nothing. It begins small: a message with so many deliveries
/// that a sweep is more than one write may be is swept with fewer others.
async fn rounds<Sweeping>(most: i64, sweep: impl Fn(i64) -> Sweeping) -> Result<Swept, StoreError>
where
    Sweeping: Future<Output = Result<u64, StoreError>>,
{
    let (mut limit, mut most) = (SWEEP_FIRST.min(most), most);
    let mut swept = Swept { rows: 0, unfinished: 0 };
    for _ in 0..SWEEP_ROUNDS_MAX {
        match sweep(limit).await {
            Ok(0) => return Ok(swept),
            Ok(rows) => {
                swept.rows += rows;
                limit = limit.saturating_mul(2).min(most);
            }
            Err(StoreError::TooManyRows { .. }) if limit > 1 => {
                limit /= 2;
                most = limit;
            }
            Err(error) => return Err(error),
        }
        sleep(SWEEP_PAUSE).await;
    }
    swept.unfinished = 1;
    Ok(swept)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_sweep_that_is_too_large_for_one_write_is_cut() {
        let left = Cell::new(100);
        let sweep = async |limit: i64| {
            let rows = left.get().min(limit.unsigned_abs());
            if rows > 10 {
                return Err(StoreError::TooManyRows { rows, max: 10 });
            }
            left.set(left.get() - rows);
            Ok(rows)
        };
        let swept = rounds(64, sweep).await;
        assert!(matches!(swept, Ok(Swept { rows: 100, unfinished: 0 })));
        let never = async |_| Err(StoreError::TooManyRows { rows: 11, max: 10 });
        assert!(rounds(64, never).await.is_err(), "one message alone is too large");
    }

    #[tokio::test]
    async fn a_sweep_begins_small_and_grows_while_that_goes_well() {
        let (left, asked) = (Cell::new(100), std::cell::RefCell::new(Vec::new()));
        let sweep = async |limit: i64| {
            asked.borrow_mut().push(limit);
            let rows = left.get().min(limit.unsigned_abs());
            left.set(left.get() - rows);
            Ok(rows)
        };
        assert!(matches!(rounds(20, sweep).await, Ok(Swept { rows: 100, unfinished: 0 })));
        assert_eq!(asked.into_inner()[..4], [8, 16, 20, 20]);
    }
}

//! A running engine: claims what the store has, runs it, and never keeps a queue of its own
//! (jobs.md §2).
//!
//! Reading order: what it is made of (here), who takes jobs in and answers questions (`door`), who
//! claims (`claimer`), how a job runs (`runner`, one step of it: `flight`), what a gear talks to
//! (`desk`), breakers, upkeep.

mod artifacts;
mod breakers;
mod children;
mod claimer;
mod desk;
mod detour;
pub(crate) mod door;
mod flight;
mod lease;
mod metrics;
mod neighbours;
mod runner;
mod steady;
mod upkeep;
mod watchdog;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::clock::{Clock, UnixMs};
use semel_core::id::JobId;
use semel_core::mint::IdMint;
use semel_core::plausible::SweepClock;
use semel_registrar::registrar::Registrar;
use semel_registrar::registrar::sweeper::RetentionDays;
use semel_store::StoreError;
use semel_vital::{Ended, Vital};
use tokio::sync::{Notify, Semaphore, broadcast, watch};
use tokio::task::JoinSet;

pub use door::{Answer, Asked, Refused, Taken};
pub use metrics::{Live, Metrics};

use crate::course::Facts;
use crate::gear::registry::Registry;
use crate::gear::room::Room;
use crate::life::JobStatus;
use crate::limits;
use crate::planner::{Planner, Validator};
use crate::policy::Policy;
use crate::store::Store;
use crate::store::postgres::Signal;

use breakers::Breakers;
use lease::Running;
use neighbours::Neighbours;
use steady::Steady;

/// How an engine runs.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Its name among the engines of a store: new with every start.
    pub worker: String,
    /// Jobs under way at once.
    pub workers: usize,
    /// How long a claim lasts without news.
    pub lease: Duration,
    /// The safety net below the signals.
    pub poll: Duration,
    /// How long a person may take.
    pub approval_timeout: Duration,
    /// How long an ended job is kept.
    pub retention: Duration,
    /// How long the registrar beside the jobs keeps grants that are over.
    pub registrar_retention: RetentionDays,
    /// How long a stop waits.
    pub shutdown: Duration,
    /// Where the workspaces of jobs are.
    pub workspaces: PathBuf,
    /// What may be done.
    pub policy: Policy,
    /// The name of the folder in which it works, where engines of several share a store.
    pub home: Option<String>,
}

impl EngineOptions {
    /// The usual limits.
    pub fn new(worker: impl Into<String>, workspaces: impl Into<PathBuf>) -> Self {
        Self {
            worker: worker.into(),
            workers: limits::WORKERS,
            lease: limits::LEASE,
            poll: limits::POLL,
            approval_timeout: limits::APPROVAL_TIMEOUT,
            retention: limits::RETENTION,
            registrar_retention: RetentionDays::default(),
            shutdown: limits::SHUTDOWN_MAX,
            workspaces: workspaces.into(),
            policy: Policy::default(),
            home: None,
        }
    }
}

/// What an engine works with.
pub struct Parts {
    /// Where jobs are kept.
    pub store: Store,
    /// What runs steps.
    pub gears: Arc<Registry>,
    /// Where approvals are used, in the same database.
    pub registrar: Arc<Registrar>,
    /// Who makes plans, if anybody does.
    pub planner: Option<Arc<dyn Planner>>,
    /// Who judges them beside the policy.
    pub validator: Option<Arc<dyn Validator>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Names.
    pub mint: Arc<IdMint>,
    /// Numbers that nobody can guess.
    pub random: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// A running engine. Cheap to share; it runs until [`Engine::stop`].
pub struct Engine {
    inner: Arc<Inner>,
    tasks: Mutex<JoinSet<()>>,
    /// When the store was last seen to take a commit, on the monotonic clock.
    fit_at: Mutex<Option<Duration>>,
    vital: Vital,
}

/// The store has something new of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct News {
    /// Which job.
    pub id: JobId,
    /// Where it stands.
    pub status: JobStatus,
}

/// Why a job's worker must leave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    /// Not yet.
    Stay,
    /// Somebody else holds its fence: it was cancelled, or claimed by another.
    Lost,
    /// The engine stops.
    Shutdown,
}

struct Inner {
    parts: Parts,
    options: EngineOptions,
    slots: Arc<Semaphore>,
    /// Room for processes of gears.
    room: Room,
    /// Slots that a claim holds for whom it finds.
    claiming: AtomicUsize,
    wake: Notify,
    /// Claims may have ended without anybody having told us.
    renew_now: Notify,
    /// A job was cancelled that may have asked for others.
    orphans: Notify,
    running: Mutex<HashMap<JobId, Running>>,
    steady: Steady,
    neighbours: Neighbours,
    /// Which time what is swept goes by.
    sweeps: Mutex<SweepClock>,
    /// Jobs of which the store knows something new.
    news: broadcast::Sender<News>,
    breakers: Breakers,
    metrics: Metrics,
    /// What gears have said and nobody has written yet.
    reports: Arc<desk::Room>,
    stopping: watch::Sender<bool>,
    /// Whether jobs are worked on here, and not only taken in.
    works: AtomicBool,
    /// Every job under way holds a receiver.
    under_way: watch::Sender<()>,
}

/// News that a reader may fall behind before it must look for itself.
const NEWS_MAX: usize = 4096;

impl Engine {
    /// An engine that takes jobs in and does not work yet.
    pub async fn open(parts: Parts, options: EngineOptions) -> Result<Self, StoreError> {
        let now = parts.store.time().await?.unwrap_or_else(|| parts.clock.wall());
        // Before anybody can hand in a job that a calendar which has leapt would make the newest.
        let mut sweeps = SweepClock::new();
        sweeps.began(parts.store.newest().await?, &*parts.clock);
        let inner = Arc::new(Inner {
            sweeps: Mutex::new(sweeps),
            slots: Arc::new(Semaphore::new(options.workers)),
            room: Room::new(options.workers.max(limits::PROCESSES_AT_ONCE)),
            claiming: AtomicUsize::new(0),
            wake: Notify::new(),
            renew_now: Notify::new(),
            orphans: Notify::new(),
            running: Mutex::default(),
            steady: Steady::from(Arc::clone(&parts.clock), now),
            neighbours: Neighbours::default(),
            news: broadcast::channel(NEWS_MAX).0,
            breakers: Breakers::default(),
            metrics: Metrics::default(),
            reports: Arc::default(),
            stopping: watch::channel(false).0,
            works: AtomicBool::new(false),
            under_way: watch::channel(()).0,
            parts,
            options,
        });
        inner.breakers.refresh(&inner.parts.store).await?;
        inner.live().await?;
        let (tasks, vital, fit_at) = (Mutex::default(), Vital::default(), Mutex::default());
        Ok(Self { inner, tasks, vital, fit_at })
    }

    /// Starts to work, once everything that gears call is ready (traps.md 35). What was left by
    /// engines that died is found by its leases.
    pub fn work(&self) {
        let mut tasks = self.lock_tasks();
        if tasks.is_empty() {
            self.inner.works.store(true, Ordering::Relaxed);
            let inner = || Arc::clone(&self.inner);
            tasks.spawn(self.vital.keep("claimer", claimer::run(inner())));
            tasks.spawn(self.vital.keep("leases", lease::renew(inner())));
            tasks.spawn(self.vital.keep("neighbours", neighbours::tell(inner())));
            tasks.spawn(self.vital.keep("late claims", lease::leave_in_time(inner())));
            tasks.spawn(self.vital.keep("clocks", steady::watch(inner())));
            tasks.spawn(self.vital.keep("upkeep", upkeep::run(inner())));
            tasks.spawn(self.vital.keep("orphans", upkeep::after_cancels(inner())));
            tasks.spawn(self.vital.keep("watchdog", watchdog::run(inner())));
        }
    }

    /// Takes no more jobs, gives those under way some time, and leaves the rest to be recovered.
    pub async fn stop(&self) {
        self.vital.stop();
        self.inner.stopping.send_replace(true);
        self.inner.slots.close();
        let drained = self.inner.under_way.closed();
        if tokio::time::timeout(self.inner.options.shutdown, drained).await.is_err() {
            for running in self.inner.running().values() {
                running.leave.send_replace(Leave::Shutdown);
            }
            // Each ends its gear within the grace and lets its claim go.
            let patience = limits::GRACE + Duration::from_secs(2);
            let _ = tokio::time::timeout(patience, self.inner.under_way.closed()).await;
        }
        let mut tasks = std::mem::take(&mut *self.lock_tasks());
        tasks.shutdown().await;
    }

    /// Comes back when a part of it has ended that it cannot work without.
    pub async fn ended(&self) -> Ended {
        self.vital.ended().await
    }

    /// Something new may be there to claim.
    pub fn wake(&self) {
        self.inner.wake.notify_one();
    }

    /// What another engine of the same database says.
    pub fn hear(&self, signal: Signal) {
        match signal {
            Signal::Wake => self.wake(),
            // Whoever works on it here leaves it.
            Signal::Stop(id) => self.inner.leave(id, Leave::Lost),
            Signal::Connected => {
                self.wake();
                self.inner.renew_now.notify_one();
            }
        }
    }

    /// Jobs of which there is news, from now on.
    pub fn news(&self) -> broadcast::Receiver<News> {
        self.inner.news.subscribe()
    }

    /// How long it is since some moment, whatever the calendar says.
    pub(crate) fn monotonic(&self) -> Duration {
        self.inner.parts.clock.monotonic()
    }

    /// The time.
    pub fn now(&self) -> UnixMs {
        self.inner.now()
    }

    /// Closes a breaker by hand, and lets go on what waits for it; whether there was one.
    pub async fn breaker_close(&self, action: &str) -> Result<bool, StoreError> {
        let there = self.store().breaker_close(action, self.now()).await?;
        // It is closed by now, whatever becomes of this.
        if let Err(error) = self.inner.breakers.refresh(self.store()).await {
            tracing::warn!(error = error.chain(), "breakers will be reloaded later");
        }
        self.wake();
        Ok(there)
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.inner.parts.store
    }

    /// Whether the store takes a commit, or took one a moment ago: each look is one.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let now = self.inner.parts.clock.monotonic();
        let fit = || self.fit_at.lock().unwrap_or_else(PoisonError::into_inner);
        if fit().is_some_and(|at| now.saturating_sub(at) < limits::FIT_KEPT) {
            return Ok(());
        }
        self.store().probe().await?;
        *fit() = Some(now);
        Ok(())
    }

    /// Who decides over approvals.
    pub fn registrar(&self) -> &Arc<Registrar> {
        &self.inner.parts.registrar
    }

    /// The gears.
    pub fn gears(&self) -> &Arc<Registry> {
        &self.inner.parts.gears
    }

    /// What an operator's tools see of it.
    pub fn register_metrics(&self, registry: &mut prometheus_client::registry::Registry) {
        let live = Live { busy: self.workers().0, breakers: self.inner.breakers.states() };
        self.inner.metrics.register(registry, &live);
    }

    /// Jobs under way here, and how many may be.
    pub fn workers(&self) -> (usize, usize) {
        (self.inner.running().len(), self.inner.options.workers)
    }

    fn lock_tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn now(&self) -> UnixMs {
        self.steady.now()
    }

    /// A number that nobody else draws: neither another engine at the same moment, nor this one
    /// before.
    fn new_fence(&self) -> i64 {
        let drawn = semel_store::planted!("claim", (self.parts.random)() >> 1, 1);
        drawn.max(1).cast_signed()
    }

    fn running(&self) -> MutexGuard<'_, HashMap<JobId, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, id: JobId, why: Leave) {
        if let Some(running) = self.running().get(&id) {
            running.leave.send_replace(why);
        }
    }

    /// Tells the other engines of the store, again and again until they were told. Once all claims
    /// have been renewed they know it anyway.
    fn stop_elsewhere(self: &Arc<Self>, id: JobId) {
        let Store::Postgres(store) = &self.parts.store else { return };
        let (store, lease) = (store.clone(), self.options.lease);
        tokio::spawn(async move {
            let telling = async {
                while let Err(error) = store.notify(Signal::Stop(id)).await {
                    tracing::warn!(%id, error = error.chain(), "other engines were not notified");
                    tokio::time::sleep(limits::STOP_RETRY).await;
                }
            };
            let _ = tokio::time::timeout(lease, telling).await;
        });
    }

    /// The store has something new of this job.
    fn tell(&self, id: JobId, status: JobStatus) {
        // Nobody needs to listen.
        let _ = self.news.send(News { id, status });
    }

    fn with_facts<T>(&self, use_them: impl FnOnce(&Facts<'_>) -> T) -> T {
        let closed = |action: &str| self.breakers.is_closed(action);
        use_them(&Facts {
            gears: &self.parts.gears,
            policy: &self.options.policy,
            more_validators: self.parts.validator.is_some(),
            closed: &closed,
            approval_timeout: self.options.approval_timeout,
            random: (self.parts.random)(),
            home: self.options.home.as_deref(),
            for_another: &|actions, submitted_at| self.is_for_another(actions, submitted_at),
        })
    }
}

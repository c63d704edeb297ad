//! What a registrar forgets at night: old lines of its ledgers (docs/design/registrar.md, "What is
//! forgotten"). Keys, nonces, registrations, verdicts and revocations are kept for ever.
//!
//! What nobody has asked for goes by a clock that has settled (`semel_core::plausible`): what was
//! deleted does not come back. An operator who asks is believed.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::plausible::Sweep;
use semel_store::StoreError;
use tokio::time::sleep;

use super::Registrar;
use crate::limits::{
    RETENTION_DAYS_DEFAULT, RETENTION_DAYS_MAX, RETENTION_DAYS_MIN, SWEEP_DELAY, SWEEP_INTERVAL,
    SWEEP_LINES_MAX, SWEEP_STEPS_ASKED_MAX, SWEEP_STEPS_MAX,
};
use crate::store::{Entry, Pass};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How many days the ledgers keep their lines: within the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionDays(u32);

impl RetentionDays {
    /// Nothing when it is too short or too long.
    pub fn new(days: u32) -> Option<Self> {
        (RETENTION_DAYS_MIN..=RETENTION_DAYS_MAX).contains(&days).then_some(Self(days))
    }

    fn before(self, now: UnixMs) -> UnixMs {
        now.saturating_sub(DAY * self.0)
    }
}

impl Default for RetentionDays {
    fn default() -> Self {
        Self(RETENTION_DAYS_DEFAULT)
    }
}

/// What a sweep has forgotten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Lines of attempts that were over.
    pub attempts: u64,
    /// Lines of what was refused.
    pub failures: u64,
    /// Grants whose time was over.
    pub grants: u64,
    /// Whether there is more.
    pub more: bool,
}

impl Registrar {
    /// Sweeps for somebody who waits: what is left is for the next time.
    pub async fn sweep(&self, retention: RetentionDays) -> Result<Swept, StoreError> {
        self.sweep_steps(retention, SWEEP_STEPS_ASKED_MAX, self.clock.wall()).await
    }

    /// Sweeps at night, if the clock may be believed; how long to wait, if it may not.
    pub async fn sweep_settled(
        &self,
        retention: RetentionDays,
        steps: u32,
    ) -> Result<Result<Swept, Duration>, StoreError> {
        let theirs = self.store.now().await?;
        let settled = {
            let mut sweeps = self.sweeps.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(theirs) = theirs {
                sweeps.heard(theirs, self.clock.monotonic());
            }
            sweeps.look_at(&*self.clock)
        };
        match settled {
            Sweep::By(now) => self.sweep_steps(retention, steps, now).await.map(Ok),
            Sweep::After(wait) => Ok(Err(wait)),
        }
    }

    /// Every step is one transaction, and each of them leaves something that is true: it may end
    /// after any of them.
    async fn sweep_steps(
        &self,
        retention: RetentionDays,
        steps: u32,
        now: UnixMs,
    ) -> Result<Swept, StoreError> {
        let store = &self.store;
        let before = retention.before(now);
        store.sweep_begin(before, now).await?;
        let sweep = |after| store.attempt_sweep(before, after, SWEEP_LINES_MAX);
        let (attempts, more_attempts) = ledger(steps, sweep).await?;
        let sweep = |after| store.failure_sweep(before, after, SWEEP_LINES_MAX);
        let (failures, more_failures) = ledger(steps, sweep).await?;
        let (mut grants, mut more_grants) = (0, true);
        for _ in 0..steps {
            match store.grant_sweep(before, SWEEP_LINES_MAX).await? {
                0 => {
                    more_grants = false;
                    break;
                }
                rows => grants += rows,
            }
        }
        let more = more_attempts || more_failures || more_grants;
        Ok(Swept { attempts, failures, grants, more })
    }
}

/// The lines of a ledger from its first on; how many are gone, and whether there are more.
async fn ledger<Sweeping>(
    steps: u32,
    sweep: impl Fn(Entry) -> Sweeping,
) -> Result<(u64, bool), StoreError>
where
    Sweeping: Future<Output = Result<Pass, StoreError>>,
{
    let (mut after, mut rows) = (Entry::NONE, 0);
    for _ in 0..steps {
        let pass = sweep(after).await?;
        rows += pass.rows;
        match pass.next {
            Some(next) => after = next,
            None => return Ok((rows, false)),
        }
    }
    Ok((rows, true))
}

/// Sweeps every night, for ever: it ends with the process.
pub async fn nightly(registrar: Arc<Registrar>, retention: RetentionDays) {
    sleep(SWEEP_DELAY).await;
    loop {
        let next = match registrar.sweep_settled(retention, SWEEP_STEPS_MAX).await {
            Ok(Ok(Swept { attempts, failures, grants, more })) => {
                tracing::info!(attempts, failures, grants, more, "the registrar has swept");
                SWEEP_INTERVAL
            }
            Ok(Err(wait)) => {
                tracing::info!(seconds = wait.as_secs(), "a sweep waits until the clock is steady");
                wait
            }
            Err(error) => {
                let error = error.chain();
                tracing::error!(error, "the registrar could not sweep; trying again");
                SWEEP_INTERVAL
            }
        };
        sleep(next).await;
    }
}

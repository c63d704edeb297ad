//! The table `breaker`. Differs from sqlite: whoever writes one holds its lock, so that a cluster
//! has one probe; a closed one is read without any.

use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_store::postgres::{Asked, Transaction};
use semel_store::{StoreError, statements};
use tokio_postgres::Row;

use super::lock::{self, Lock, Locks};
use super::{Parameters, PostgresStore};
use crate::breaker::{Admission, Breaker, BreakerState, Run};
use crate::store::{BreakerRow, corrupt};

statements! {
    FIND = "
        SELECT action, state, run_window, until, open_for_ms, probe
          FROM jobs.breaker
         WHERE action = $1";

    WRITE = "
        INSERT INTO jobs.breaker (action, state, run_window, until, open_for_ms, probe, changed_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
            ON CONFLICT (action) DO UPDATE
           SET state = excluded.state, run_window = excluded.run_window, until = excluded.until,
               open_for_ms = excluded.open_for_ms, probe = excluded.probe,
               changed_at = excluded.changed_at";

    EVERY = "
        SELECT action, state, run_window, until, open_for_ms, probe
          FROM jobs.breaker
         WHERE action > ''
         ORDER BY action";

    /// One with a window may have been told for the last time long ago.
    FORGET = "
        DELETE FROM jobs.breaker
         WHERE action > ''
           AND changed_at < $1
           AND until < $1
     RETURNING action";

    RELEASE = "
        UPDATE jobs.job
           SET due_at = 0
         WHERE no = ANY (ARRAY (SELECT held.no
                                  FROM jobs.job AS held
                                 WHERE held.held_by = $1
                                 ORDER BY held.no
                                   FOR UPDATE))
           AND held_by = $1";
}

impl PostgresStore {
    pub(in crate::store) async fn breaker_admit(
        &self,
        action: &str,
        now: UnixMs,
        probe_time: Duration,
    ) -> Result<Admission, StoreError> {
        let rows = self.postgres().read(FIND, &[&action]).await?;
        let admission = found(rows.first())?.admit(now, probe_time);
        if !matches!(admission, Admission::Probe(_)) {
            return Ok(admission);
        }
        let run = async || {
            let (tx, row) = self.hold_breaker(action).await?;
            let mut breaker = found(row.as_ref())?;
            let admission = breaker.admit(now, probe_time);
            if matches!(admission, Admission::Probe(_)) {
                put_and_commit(tx, action, &breaker, now, Then::Nothing).await?;
            }
            Ok(admission)
        };
        self.postgres().retry(run).await
    }

    pub(in crate::store) async fn breaker_note(
        &self,
        action: &str,
        runs: Vec<Run>,
        probe: Option<i64>,
        now: UnixMs,
    ) -> Result<BreakerRow, StoreError> {
        let run = async || {
            let (tx, row) = self.hold_breaker(action).await?;
            let mut breaker = found(row.as_ref())?;
            let changed = breaker.note(&runs, probe, now);
            let closed = changed && breaker.state == BreakerState::Closed;
            let then = if closed { Then::Release } else { Then::Nothing };
            put_and_commit(tx, action, &breaker, now, then).await?;
            Ok(BreakerRow { action: action.to_owned(), breaker, changed })
        };
        let row = self.postgres().retry(run).await?;
        if row.changed {
            self.shared.bell.ring();
        }
        Ok(row)
    }

    pub(in crate::store) async fn breaker_close(
        &self,
        action: &str,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        let run = async || {
            let (tx, row) = self.hold_breaker(action).await?;
            if row.is_none() {
                return Ok(false);
            }
            let closed = found(row.as_ref())?.closed();
            put_and_commit(tx, action, &closed, now, Then::Release).await?;
            Ok(true)
        };
        let closed = self.postgres().retry(run).await?;
        if closed {
            self.shared.bell.ring();
        }
        Ok(closed)
    }

    pub(in crate::store) async fn breakers_forget(
        &self,
        before: UnixMs,
    ) -> Result<u64, StoreError> {
        let forgotten = self.postgres().write(FORGET, &[&before.0]).await?;
        Ok(u64::try_from(forgotten.len()).unwrap_or(u64::MAX))
    }

    pub(in crate::store) async fn breakers(&self) -> Result<Vec<BreakerRow>, StoreError> {
        let rows = self.postgres().read(EVERY, &[]).await?;
        let breaker = |row: &Row| {
            let (action, breaker) = (row.try_get(0)?, found(Some(row))?);
            Ok(BreakerRow { action, breaker, changed: false })
        };
        rows.iter().map(breaker).collect()
    }

    /// Begins a transaction in which nobody else writes this breaker.
    async fn hold_breaker(&self, action: &str) -> Result<(Transaction, Option<Row>), StoreError> {
        let locks = Locks::of(vec![Lock::Breaker(action).number()]);
        let lock_by = locks.parameters();
        let find_by: Parameters<'_> = &[&action];
        let asked: [Asked<'_>; 2] = [(lock::lock(), &lock_by), (FIND, find_by)];
        let (tx, mut rows) = self.postgres().begin_with(&asked).await?;
        Ok((tx, rows.pop().unwrap_or_default().pop()))
    }
}

fn found(row: Option<&Row>) -> Result<Breaker, StoreError> {
    let Some(row) = row else { return Ok(Breaker::default()) };
    let (action, state): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
    let state =
        BreakerState::parse(state).ok_or_else(|| corrupt("breaker", action, "no such state"))?;
    let open_for = Duration::from_millis(row.try_get::<_, i64>(4)?.cast_unsigned());
    let (window, until, probe) = (row.try_get(2)?, UnixMs(row.try_get(3)?), row.try_get(5)?);
    Ok(Breaker { state, window, until, open_for, probe })
}

/// What else a breaker's write does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    /// Whatever waits for it may go on.
    Release,
}

async fn put_and_commit(
    tx: Transaction,
    action: &str,
    breaker: &Breaker,
    now: UnixMs,
    then: Then,
) -> Result<(), StoreError> {
    let open_for_ms = i64::try_from(breaker.open_for.as_millis()).unwrap_or(i64::MAX);
    let (state, until) = (breaker.state.as_str(), breaker.until.0);
    let Breaker { window, probe, .. } = breaker;
    let row: Parameters<'_> = &[&action, &state, window, &until, &open_for_ms, probe, &now.0];
    let release: Parameters<'_> = &[&action];
    let asked = [(WRITE, row), (RELEASE, release)];
    let asked = if then == Then::Release { &asked[..] } else { &asked[..1] };
    tx.commit_with(asked).await.map(drop)
}

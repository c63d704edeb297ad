//! The table `breaker`.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::SqliteStore;
use crate::breaker::{Admission, Breaker, BreakerState, Run};
use crate::store::{BreakerRow, corrupt};

statements! {
    FIND = "
        SELECT state, run_window, until, open_for_ms, probe
          FROM breaker
         WHERE action = ?1";

    WRITE = "
        INSERT INTO breaker (action, state, run_window, until, open_for_ms, probe, changed_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
            ON CONFLICT (action) DO UPDATE
           SET state = excluded.state, run_window = excluded.run_window, until = excluded.until,
               open_for_ms = excluded.open_for_ms, probe = excluded.probe,
               changed_at = excluded.changed_at";

    NAMES = "
        SELECT action
          FROM breaker
         WHERE action > ''
         ORDER BY action";

    /// One with a window may have been told for the last time long ago.
    FORGET = "
        DELETE FROM breaker
         WHERE action > ''
           AND changed_at < ?1
           AND until < ?1";

    RELEASE = "
        UPDATE job
           SET due_at = 0
         WHERE held_by = ?1";
}

impl SqliteStore {
    pub(in crate::store) async fn breaker_admit(
        &self,
        action: &str,
        now: UnixMs,
        probe_time: Duration,
    ) -> Result<Admission, StoreError> {
        let action = action.to_owned();
        let write = self.sqlite.write(move |tx| {
            let mut breaker = find(tx, &action)?;
            let admission = breaker.admit(now, probe_time);
            if matches!(admission, Admission::Probe(_)) {
                put(tx, &action, &breaker, now)?;
            }
            Ok(admission)
        });
        write.await
    }

    pub(in crate::store) async fn breaker_note(
        &self,
        action: &str,
        runs: Vec<Run>,
        probe: Option<i64>,
        now: UnixMs,
    ) -> Result<BreakerRow, StoreError> {
        let action = action.to_owned();
        let write = self.sqlite.write(move |tx| {
            let mut breaker = find(tx, &action)?;
            let changed = breaker.note(&runs, probe, now);
            put(tx, &action, &breaker, now)?;
            if changed && breaker.state == BreakerState::Closed {
                tx.prepare_cached(RELEASE)?.execute(params![action])?;
            }
            Ok(BreakerRow { action: action.clone(), breaker, changed })
        });
        write.await
    }

    pub(in crate::store) async fn breaker_close(
        &self,
        action: &str,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        let action = action.to_owned();
        let write = self.sqlite.write(move |tx| {
            if !tx.prepare_cached(FIND)?.exists(params![action])? {
                return Ok(false);
            }
            put(tx, &action, &find(tx, &action)?.closed(), now)?;
            tx.prepare_cached(RELEASE)?.execute(params![action])?;
            Ok(true)
        });
        write.await
    }

    pub(in crate::store) async fn breakers_forget(
        &self,
        before: UnixMs,
    ) -> Result<u64, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let forgotten = tx.prepare_cached(FORGET)?.execute(params![before.0])?;
            Ok(u64::try_from(forgotten).unwrap_or(u64::MAX))
        });
        write.await
    }

    pub(in crate::store) async fn breakers(&self) -> Result<Vec<BreakerRow>, StoreError> {
        let read = self.sqlite.read(|tx| {
            let mut statement = tx.prepare_cached(NAMES)?;
            let names = statement.query_map([], |row| row.get::<_, String>(0))?;
            let mut found = Vec::new();
            for action in names {
                let action = action?;
                let breaker = find(tx, &action)?;
                found.push(BreakerRow { action, breaker, changed: false });
            }
            Ok(found)
        });
        read.await
    }
}

fn find(tx: &Connection, action: &str) -> Result<Breaker, StoreError> {
    let mut statement = tx.prepare_cached(FIND)?;
    let row = statement.query_row(params![action], |row| {
        let columns: (String, String, i64, i64, i64) =
            (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
        Ok(columns)
    });
    let Some((state, window, until, open_for_ms, probe)) = row.optional()? else {
        return Ok(Breaker::default());
    };
    let state =
        BreakerState::parse(&state).ok_or_else(|| corrupt("breaker", action, "no such state"))?;
    let open_for = Duration::from_millis(open_for_ms.cast_unsigned());
    Ok(Breaker { state, window, until: UnixMs(until), open_for, probe })
}

fn put(tx: &Connection, action: &str, breaker: &Breaker, now: UnixMs) -> Result<(), StoreError> {
    tx.prepare_cached(WRITE)?.execute(params![
        action,
        breaker.state.as_str(),
        breaker.window,
        breaker.until.0,
        i64::try_from(breaker.open_for.as_millis()).unwrap_or(i64::MAX),
        breaker.probe,
        now.0,
    ])?;
    Ok(())
}

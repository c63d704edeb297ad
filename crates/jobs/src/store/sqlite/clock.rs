//! The table `clock`: by which clock times that lie ahead were written.
//!
//! An engine goes by a clock that does not step. What it writes of times that lie ahead is right
//! for as long as it runs; the next engine begins with the calendar, and so these times are moved
//! along first. Differs from postgres: there the server's clock is everybody's.

use rusqlite::{Connection, OptionalExtension, params};
use semel_core::clock::{UnixMs, Uptime};
use semel_store::{StoreError, statements};

use super::SqliteStore;
use crate::limits::CLOCK_SLEW_MAX;

statements! {
    NOTE = "
        INSERT INTO clock (one, ahead_ms, boot, booted)
        VALUES (1, ?1, ?2, ?3)
            ON CONFLICT (one) DO UPDATE
           SET ahead_ms = excluded.ahead_ms,
               boot = excluded.boot,
               booted = excluded.booted";

    /// As far as the calendar was when it was made.
    NEWEST = "
        SELECT created_at
          FROM job
         WHERE no = (SELECT max(no)
                       FROM job)";

    NOTED = "
        SELECT ahead_ms, boot, booted
          FROM clock
         WHERE one = 1";

    PROBE = "
        UPDATE clock
           SET probed = probed + 1
         WHERE one = 1";

    MOVE_JOBS = "
        UPDATE job
           SET due_at = due_at + ?1, deadline_at = deadline_at + ?1, expires_at = expires_at + ?1
         WHERE no IN (SELECT no FROM job INDEXED BY job_due WHERE due_at IS NOT NULL
                       UNION
                      SELECT no FROM job INDEXED BY job_expires WHERE expires_at IS NOT NULL)";

    MOVE_BREAKERS = "
        UPDATE breaker
           SET until = until + ?1
         WHERE action IN (SELECT action FROM breaker)";

    /// Whoever holds a claim is dead.
    SHORTEN = "
        UPDATE job
           SET due_at = ?1
         WHERE due_at > ?1
           AND worker IS NOT NULL";
}

impl SqliteStore {
    /// What is known of the clock by which this engine goes.
    pub(in crate::store) async fn note_calendar(&self, note: Calendar) -> Result<(), StoreError> {
        self.sqlite.write(move |tx| write(tx, &note)).await
    }

    /// When the newest job was made.
    pub(in crate::store) async fn newest(&self) -> Result<Option<UnixMs>, StoreError> {
        let read = self.sqlite.read(|connection| {
            let mut statement = connection.prepare_cached(NEWEST)?;
            Ok(statement.query_row([], |row| row.get(0).map(UnixMs)).optional()?)
        });
        read.await
    }

    /// Whether something can be written: a full disk answers every read.
    pub(in crate::store) async fn probe(&self) -> Result<(), StoreError> {
        self.sqlite.write(|tx| Ok(tx.prepare_cached(PROBE)?.execute([]).map(drop)?)).await
    }

    /// For an engine that has just opened the file and knows that nobody else works with it: times
    /// that lie ahead are set by the calendar, and claims of whoever died end then at the latest.
    pub async fn begin_life(
        &self,
        now: UnixMs,
        uptime: Option<Uptime>,
        claims_until: UnixMs,
    ) -> Result<(), StoreError> {
        let write = self.sqlite.write(move |tx| {
            let ahead = read(tx)?.map_or(0, |noted| noted.ahead_now(now, uptime.as_ref()));
            if ahead != 0 {
                tx.prepare_cached(MOVE_JOBS)?.execute(params![ahead])?;
                tx.prepare_cached(MOVE_BREAKERS)?.execute(params![ahead])?;
            }
            write(tx, &Calendar::new(0, now, uptime.as_ref()))?;
            tx.prepare_cached(SHORTEN)?.execute([claims_until.0])?;
            Ok(())
        });
        write.await
    }
}

fn read(tx: &Connection) -> Result<Option<Calendar>, StoreError> {
    let noted = tx.prepare_cached(NOTED)?.query_row([], |row| {
        Ok(Calendar { ahead_ms: row.get(0)?, boot: row.get(1)?, booted: row.get(2)? })
    });
    Ok(noted.optional()?)
}

fn write(tx: &Connection, note: &Calendar) -> Result<(), StoreError> {
    let by = params![note.ahead_ms, note.boot, note.booted];
    tx.prepare_cached(NOTE)?.execute(by)?;
    Ok(())
}

/// What one engine leaves to the next about the clock by which it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calendar {
    /// How far the calendar was ahead of it.
    pub ahead_ms: i64,
    boot: Option<String>,
    /// What it said when the machine was started.
    booted: i64,
}

impl Calendar {
    /// Of a clock that says `now`, from which the calendar differs so much.
    pub fn new(ahead_ms: i64, now: UnixMs, uptime: Option<&Uptime>) -> Self {
        let boot = uptime.map(|uptime| uptime.boot.clone());
        let booted = uptime.map_or(0, |uptime| now.0.saturating_sub(uptime.ms));
        Self { ahead_ms, boot, booted }
    }

    /// How far the calendar, which says `now`, is ahead of it by now. Within one run of a machine
    /// that is known, also if the calendar stepped while no engine was there to see it.
    fn ahead_now(&self, now: UnixMs, uptime: Option<&Uptime>) -> i64 {
        match uptime {
            Some(uptime) if self.boot.as_ref() == Some(&uptime.boot) => {
                let would_say = self.booted.saturating_add(uptime.ms);
                let ahead = now.0.saturating_sub(would_say);
                // Calendars and clocks of machines differ a little all the time.
                let is_step = u128::from(ahead.unsigned_abs()) > CLOCK_SLEW_MAX.as_millis();
                if is_step { ahead } else { 0 }
            }
            _ => self.ahead_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn up(boot: &str, ms: i64) -> Uptime {
        Uptime { boot: boot.to_owned(), ms }
    }

    #[test]
    fn a_step_that_nobody_saw_is_known_while_the_machine_runs() {
        let noted = Calendar::new(0, UnixMs(10 * HOUR), Some(&up("a", HOUR)));
        let later = |calendar: i64| noted.ahead_now(UnixMs(calendar), Some(&up("a", 3 * HOUR)));
        assert_eq!(later(12 * HOUR), 0);
        assert_eq!(later(12 * HOUR + 400), 0, "no two clocks are alike");
        assert_eq!(later(12 * HOUR + 9000 * HOUR), 9000 * HOUR);
        assert_eq!(later(11 * HOUR), -HOUR);
    }

    #[test]
    fn after_a_start_of_the_machine_only_a_step_that_was_seen_is_known() {
        let noted = Calendar::new(HOUR, UnixMs(10 * HOUR), Some(&up("a", HOUR)));
        assert_eq!(noted.ahead_now(UnixMs(90 * HOUR), Some(&up("b", 5))), HOUR);
        assert_eq!(noted.ahead_now(UnixMs(90 * HOUR), None), HOUR);
        let blind = Calendar::new(0, UnixMs(10 * HOUR), None);
        assert_eq!(blind.ahead_now(UnixMs(90 * HOUR), Some(&up("a", 5))), 0);
    }
}

//! The table `job`: claiming. What is due goes first, then what waits, by priority and age; both
//! are read from the end of an index that holds nothing else, so that the cost is flat.

use rusqlite::{Connection, params};
use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::SqliteStore;
use super::advance::advance_in_tx;
use super::execution::executions;
use super::job::by_no;
use crate::store::{Advanced, Begin, Claim, Claimed, Claims, JobNo, Kept, corrupt};

statements! {
    DUE = "
        SELECT no
          FROM job
         WHERE due_at <= ?1
         ORDER BY due_at, no
         LIMIT ?2";

    READY = "
        SELECT no
          FROM job
         WHERE ready = 1
         ORDER BY priority, no
         LIMIT ?1";

    CLAIMABLE = "
        SELECT no
          FROM job
         WHERE due_at <= ?1
         UNION ALL
        SELECT no
          FROM job
         WHERE ready = 1
         LIMIT ?2";

    RENEW = "
        UPDATE job
           SET due_at = ?3
         WHERE no = ?1
           AND fence = ?2
           AND worker IS NOT NULL";

    SHORTEN = "
        UPDATE job
           SET due_at = ?1
         WHERE due_at > ?1
           AND worker IS NOT NULL";
}

impl SqliteStore {
    pub(in crate::store) async fn claim(
        &self,
        claim: Claim,
        begin: Begin,
    ) -> Result<Claims, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let (mut jobs, limit) = (Vec::new(), claim.limit as usize);
            // As many again are looked at: the next claim need not guess.
            let found = claimable(tx, claim.now, claim.limit.saturating_mul(2))?;
            let left = found.len().saturating_sub(limit);
            for no in found.into_iter().take(limit) {
                let missing = || corrupt("job", no.0, "an index names it");
                let job = by_no(tx, no)?.ok_or_else(missing)?;
                // One that nobody has claimed yet has begun nothing, unless another has for it.
                let old = job.state.fence > 0 || job.root_id != job.id;
                let executions = if old { executions(tx, job.root_id)? } else { Vec::new() };
                let before = Kept { job, executions };
                let advance = begin(&before, &claim);
                if advance_in_tx(tx, &advance)? == Advanced::Lost {
                    return Err(corrupt("job", no.0, "it changed within a transaction"));
                }
                jobs.push(Claimed { before, advance });
            }
            Ok(Claims { jobs, left })
        });
        write.await
    }

    pub(in crate::store) async fn renew(
        &self,
        held: Vec<(JobNo, i64)>,
        lease_until: UnixMs,
    ) -> Result<Vec<JobNo>, StoreError> {
        let write = self.sqlite.write(move |tx| {
            let mut lost = Vec::new();
            for (no, fence) in &held {
                let by = params![no.0, fence, lease_until.0];
                if tx.prepare_cached(RENEW)?.execute(by)? == 0 {
                    lost.push(*no);
                }
            }
            Ok(lost)
        });
        write.await
    }

    /// Lets every claim end at `until` at the latest. Only for an engine that has just opened the
    /// file and knows that nobody else works with it: whoever holds a claim is dead.
    pub async fn end_claims(&self, until: UnixMs) -> Result<usize, StoreError> {
        self.sqlite.write(move |tx| Ok(tx.prepare_cached(SHORTEN)?.execute([until.0])?)).await
    }

    pub(in crate::store) async fn anything_due(&self, now: UnixMs) -> Result<bool, StoreError> {
        self.sqlite.read(move |tx| Ok(count_claimable(tx, now, 1)? > 0)).await
    }
}

/// How many wait; no more than `most` are counted.
pub(super) fn count_claimable(
    tx: &Connection,
    now: UnixMs,
    most: usize,
) -> Result<usize, StoreError> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let (mut statement, mut count) = (tx.prepare_cached(CLAIMABLE)?, 0);
    let mut rows = statement.query([now.0, most])?;
    while rows.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}

fn claimable(tx: &Connection, now: UnixMs, limit: u32) -> Result<Vec<JobNo>, StoreError> {
    let mut found = numbers(tx, DUE, params![now.0, limit])?;
    let left = limit.saturating_sub(u32::try_from(found.len()).unwrap_or(limit));
    if left > 0 {
        found.extend(numbers(tx, READY, params![left])?);
    }
    Ok(found)
}

fn numbers(
    tx: &Connection,
    sql: &str,
    by: &[&dyn rusqlite::ToSql],
) -> Result<Vec<JobNo>, StoreError> {
    let mut statement = tx.prepare_cached(sql)?;
    let rows = statement.query_map(by, |row| row.get(0).map(JobNo))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

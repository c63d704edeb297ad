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

    NEXT = "
        SELECT no, due_at
          FROM job
         WHERE due_at IS NOT NULL
         ORDER BY due_at, no
         LIMIT ?1";

    RENEW = "
        UPDATE job
           SET due_at = ?3
         WHERE no = ?1
           AND fence = ?2
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
            let found = claimable(tx, &claim, claim.limit.saturating_mul(2))?;
            let left = found.len().saturating_sub(limit);
            for no in found.into_iter().take(limit) {
                let missing = || corrupt("job", no.0, "an index names it");
                let job = by_no(tx, no)?.ok_or_else(missing)?;
                // One that nobody has claimed yet has begun nothing, unless another has for it.
                let old = job.state.fence > 0 || job.root_id != job.id;
                let executions = if old { executions(tx, job.root_id)? } else { Vec::new() };
                let before = Kept { job, executions };
                let Some(advance) = begin(&before, &claim) else { continue };
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

    /// In milliseconds from now.
    pub(in crate::store) async fn next_due(
        &self,
        now: UnixMs,
        held: Vec<JobNo>,
    ) -> Result<Option<i64>, StoreError> {
        let read = self.sqlite.read(move |tx| {
            if !numbers(tx, READY, params![1])?.is_empty() {
                return Ok(Some(0));
            }
            let looked_at = i64::try_from(held.len()).unwrap_or(i64::MAX).saturating_add(1);
            let mut statement = tx.prepare_cached(NEXT)?;
            let mut rows = statement.query(params![looked_at])?;
            while let Some(row) = rows.next()? {
                let (no, due_at) = (JobNo(row.get(0)?), row.get::<_, i64>(1)?);
                if !held.contains(&no) {
                    return Ok(Some(due_at.saturating_sub(now.0)));
                }
            }
            Ok(None)
        });
        read.await
    }
}

/// How many wait; no more than `most` are counted.
pub(super) fn count_claimable(
    tx: &Connection,
    now: UnixMs,
    held: &[JobNo],
    most: usize,
) -> Result<usize, StoreError> {
    let looked_at = i64::try_from(most.saturating_add(held.len())).unwrap_or(i64::MAX);
    let found = numbers(tx, CLAIMABLE, params![now.0, looked_at])?;
    Ok(found.iter().filter(|no| !held.contains(no)).count().min(most))
}

fn claimable(tx: &Connection, claim: &Claim, limit: u32) -> Result<Vec<JobNo>, StoreError> {
    // What its worker has is not due, however late it is with the renewal.
    let held = u32::try_from(claim.held.len()).unwrap_or(u32::MAX);
    let mut found = numbers(tx, DUE, params![claim.now.0, limit.saturating_add(held)])?;
    found.retain(|no| !claim.held.contains(no));
    found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
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

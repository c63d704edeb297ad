//! The table `job`: pages, the newest first.

use rusqlite::{Connection, params};
use semel_store::{StoreError, statements};

use super::SqliteStore;
use super::job::by_no;
use crate::limits::PAGE_SCAN_MAX;
use crate::store::{JobNo, List, Listed, corrupt, readable};

statements! {
    LIVE = "
        SELECT no
          FROM job
         WHERE completed_at IS NULL
           AND no < ?1
         ORDER BY no DESC
         LIMIT ?2";

    FAILED = "
        SELECT no
          FROM job
         WHERE failure_class = ?3
           AND no < ?1
         ORDER BY no DESC
         LIMIT ?2";

    OF_CONVERSATION = "
        SELECT no
          FROM job
         WHERE conversation = ?3
           AND no < ?1
         ORDER BY no DESC
         LIMIT ?2";

    EVERY = "
        SELECT no
          FROM job
         WHERE no < ?1
         ORDER BY no DESC
         LIMIT ?2";

    WAITING = "
        SELECT count(*)
          FROM job
         WHERE completed_at IS NULL
           AND status = 'pending'";

    UNDER_WAY = "
        SELECT count(*)
          FROM job
         WHERE completed_at IS NULL
           AND status <> 'pending'";
}

impl SqliteStore {
    pub(in crate::store) async fn list(&self, list: List) -> Result<Listed, StoreError> {
        self.sqlite.read(move |tx| page(tx, &list)).await
    }

    pub(in crate::store) async fn depth(&self) -> Result<(u64, u64), StoreError> {
        let count = |tx: &Connection, sql: &str| -> Result<u64, StoreError> {
            let count: i64 = tx.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
            Ok(count.cast_unsigned())
        };
        self.sqlite.read(move |tx| Ok((count(tx, WAITING)?, count(tx, UNDER_WAY)?))).await
    }
}

/// Looks along the narrowest index; what else is asked for is looked at row by row, within a limit,
/// so that a page may be short and still not be the last.
fn page(tx: &Connection, list: &List) -> Result<Listed, StoreError> {
    let before = list.before.map_or(i64::MAX, |no| no.0);
    let (bound, class) = (PAGE_SCAN_MAX, list.class.map(|class| class.as_str()));
    let live = list.status.is_some_and(|status| !status.is_terminal());
    let numbers = match (&list.conversation, class, live) {
        (Some(of), _, _) => numbers(tx, OF_CONVERSATION, params![before, bound, of])?,
        (None, Some(class), _) => numbers(tx, FAILED, params![before, bound, class])?,
        (None, None, true) => numbers(tx, LIVE, params![before, bound])?,
        (None, None, false) => numbers(tx, EVERY, params![before, bound])?,
    };
    let limit = usize::try_from(list.limit).unwrap_or(usize::MAX);
    let full = numbers.len() >= usize::try_from(PAGE_SCAN_MAX).unwrap_or(usize::MAX);
    let last = numbers.last().copied();
    let mut jobs = Vec::new();
    for no in numbers {
        let found = by_no(tx, no);
        let found = found.and_then(|job| job.ok_or_else(|| corrupt("job", no.0, "it is missing")));
        let Some(job) = readable(no, found)? else { continue };
        let fits = list.status.is_none_or(|status| status == job.state.status)
            && list.class.is_none_or(|class| Some(class) == job.state.failure_class);
        if fits {
            jobs.push(job);
        }
        if jobs.len() > limit {
            jobs.pop();
            let next = jobs.last().map(|job| job.no);
            return Ok(Listed { jobs, next });
        }
    }
    Ok(Listed { jobs, next: last.filter(|_| full) })
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

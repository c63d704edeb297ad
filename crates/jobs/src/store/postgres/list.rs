//! The table `job`: pages, the newest first.

use semel_store::{StoreError, statements};

use super::PostgresStore;
use super::job::by_nos;
use crate::limits::PAGE_SCAN_MAX;
use crate::store::{JobNo, List, Listed};

statements! {
    LIVE = "
        WITH looked AS MATERIALIZED (
            SELECT no, status, failure_class
              FROM jobs.job
             WHERE status IN ('pending', 'planning', 'validating', 'awaiting_approval', 'executing')
               AND no < $1
             ORDER BY no DESC
             LIMIT $2)
        SELECT (SELECT count(*) FROM looked), (SELECT min(no) FROM looked),
               ARRAY (SELECT no
                        FROM looked
                       WHERE status = COALESCE($3, status)
                         AND ($4::text IS NULL OR failure_class = $4)
                       ORDER BY no DESC
                       LIMIT $5)";

    FAILED = "
        WITH looked AS MATERIALIZED (
            SELECT no, status, failure_class
              FROM jobs.job
             WHERE failure_class = $4
               AND no < $1
             ORDER BY no DESC
             LIMIT $2)
        SELECT (SELECT count(*) FROM looked), (SELECT min(no) FROM looked),
               ARRAY (SELECT no
                        FROM looked
                       WHERE status = COALESCE($3, status)
                       ORDER BY no DESC
                       LIMIT $5)";

    OF_CONVERSATION = "
        WITH looked AS MATERIALIZED (
            SELECT no, status, failure_class
              FROM jobs.job
             WHERE conversation COLLATE \"C\" = $6
               AND no < $1
             ORDER BY no DESC
             LIMIT $2)
        SELECT (SELECT count(*) FROM looked), (SELECT min(no) FROM looked),
               ARRAY (SELECT no
                        FROM looked
                       WHERE status = COALESCE($3, status)
                         AND ($4::text IS NULL OR failure_class = $4)
                       ORDER BY no DESC
                       LIMIT $5)";

    EVERY = "
        WITH looked AS MATERIALIZED (
            SELECT no, status, failure_class
              FROM jobs.job
             WHERE no < $1
             ORDER BY no DESC
             LIMIT $2)
        SELECT (SELECT count(*) FROM looked), (SELECT min(no) FROM looked),
               ARRAY (SELECT no
                        FROM looked
                       WHERE status = COALESCE($3, status)
                         AND ($4::text IS NULL OR failure_class = $4)
                       ORDER BY no DESC
                       LIMIT $5)";

    DEPTH = "
        SELECT count(*) FILTER (WHERE status = 'pending'),
               count(*) FILTER (WHERE status <> 'pending')
          FROM jobs.job
         WHERE status IN ('pending', 'planning', 'validating', 'awaiting_approval', 'executing')";
}

impl PostgresStore {
    /// Looks along the narrowest index; what else is asked for is looked at row by row, within a
    /// limit, so that a page may be short and still not be the last.
    pub(in crate::store) async fn list(&self, list: List) -> Result<Listed, StoreError> {
        let tx = self.postgres().snapshot().await?;
        let before = list.before.map_or(i64::MAX, |no| no.0);
        let (status, class) = (list.status.map(|s| s.as_str()), list.class.map(|c| c.as_str()));
        let wanted = i64::from(list.limit) + 1;
        // Whoever takes everything looks at no more than the page.
        let all = status.is_none() && class.is_none();
        let scan = i64::from(PAGE_SCAN_MAX);
        let bound = if all { wanted.min(scan) } else { scan };
        let live = list.status.is_some_and(|status| !status.is_terminal());
        let by: super::Parameters<'_> =
            &[&before, &bound, &status, &class, &wanted, &list.conversation];
        let (sql, by) = match (&list.conversation, class, live) {
            (Some(_), _, _) => (OF_CONVERSATION, by),
            (None, Some(_), _) => (FAILED, &by[..5]),
            (None, None, true) => (LIVE, &by[..5]),
            (None, None, false) => (EVERY, &by[..5]),
        };
        let nothing = Listed { jobs: Vec::new(), next: None };
        let Some(row) = tx.query_opt(sql, by).await? else { return Ok(nothing) };
        let (looked, last): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
        let mut nos: Vec<i64> = row.try_get(2)?;
        let next = if nos.len() > usize::try_from(list.limit).unwrap_or(usize::MAX) {
            nos.pop();
            nos.last().copied()
        } else {
            last.filter(|_| looked >= scan)
        };
        let jobs = if nos.is_empty() { Vec::new() } else { by_nos(&tx, &nos).await? };
        Ok(Listed { jobs, next: next.map(JobNo) })
    }

    pub(in crate::store) async fn depth(&self) -> Result<(u64, u64), StoreError> {
        let rows = self.postgres().read(DEPTH, &[]).await?;
        let Some(row) = rows.first() else { return Ok((0, 0)) };
        let (waiting, under_way): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        Ok((waiting.cast_unsigned(), under_way.cast_unsigned()))
    }
}

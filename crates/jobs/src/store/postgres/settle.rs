//! What became of moves whose COMMIT got no answer.
//!
//! It is never guessed from where a job stands: two claimants lead it to the same place, and others
//! may have led it on since. A move names itself by the fence that its writer drew, which no other
//! writer draws, and by the number of its last line in the ledger, which its writer gives once.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use semel_store::{StoreError, statements};

use super::advance::let_go;
use super::{Parameters, PostgresStore};
use crate::limits::{SETTLE_PAUSE, SETTLE_PAUSE_MAX};
use crate::store::Advance;

statements! {
    /// The rows are locked, so that a transaction that still runs has ended when they are read.
    STANDING = "
        SELECT no, status, fence, entries, worker
          FROM jobs.job
         WHERE no = ANY ($1::bigint[])
         ORDER BY no
           FOR UPDATE";

    WRITTEN = "
        SELECT ledger.job_no, ledger.fence
          FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS asked (job_no, entry, fence)
          JOIN LATERAL (SELECT written.job_no, written.fence
                          FROM jobs.ledger AS written
                         WHERE written.job_no = asked.job_no
                           AND written.entry = asked.entry
                         LIMIT 1) AS ledger ON ledger.fence = asked.fence";
}

/// What became of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    /// It was not written.
    Missing,
    /// It is there, and its writer goes on with the job if it was to.
    Written,
    /// It is there, and the job was taken from its writer since: it was cancelled, or claimed.
    TakenSince,
}

impl PostgresStore {
    /// What became of each of these moves, as soon as the server can be asked.
    pub(super) async fn settle(&self, advances: &[&Advance]) -> Result<Vec<Settled>, StoreError> {
        let patience = semel_store::planted!("settle", self.shared.patience, Duration::ZERO);
        self.settle_within(advances, patience).await
    }

    /// The same, for as long as it matters to the caller. That the server stays away is usual after
    /// an answer was lost: nothing is written again before it was asked.
    pub(super) async fn settle_within(
        &self,
        advances: &[&Advance],
        patience: Duration,
    ) -> Result<Vec<Settled>, StoreError> {
        self.patiently(patience, || self.settle_once(advances)).await
    }

    /// Asks until there is an answer.
    pub(super) async fn patiently<T, Asking>(
        &self,
        patience: Duration,
        ask: impl Fn() -> Asking,
    ) -> Result<T, StoreError>
    where
        Asking: Future<Output = Result<T, StoreError>>,
    {
        let over = tokio::time::sleep(patience);
        tokio::pin!(over);
        let mut rounds = 0_u32;
        loop {
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            rounds = rounds.saturating_add(1);
            let pause = (SETTLE_PAUSE * rounds).min(SETTLE_PAUSE_MAX);
            tokio::select! {
                biased;
                () = &mut over => {
                    return Err(StoreError::Uncertain { cause: error.chain().into() });
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn settle_once(&self, advances: &[&Advance]) -> Result<Vec<Settled>, StoreError> {
        let nos: Vec<i64> = advances.iter().map(|advance| advance.no.0).collect();
        let entries: Vec<i64> = advances.iter().map(|advance| advance.state.entries).collect();
        let fences: Vec<i64> = advances.iter().map(|advance| advance.state.fence).collect();
        let (standing_by, written_by): (Parameters<'_>, Parameters<'_>) =
            (&[&nos], &[&nos, &entries, &fences]);
        let asked = [(STANDING, standing_by), (WRITTEN, written_by)];
        let (tx, rows) = self.postgres().begin_with(&asked).await?;
        let_go(tx).await;
        let [standing, written] = rows.as_slice() else { return Err(StoreError::Stopped) };
        let mut stands = HashMap::new();
        for row in standing {
            let standing = Standing {
                status: row.try_get(1)?,
                fence: row.try_get(2)?,
                entries: row.try_get(3)?,
                worker: row.try_get(4)?,
            };
            stands.insert(row.try_get::<_, i64>(0)?, standing);
        }
        let told = written.iter().map(|row| row.try_get(0));
        let told: HashSet<i64> = told.collect::<Result<_, _>>()?;
        let there = |advance: &&Advance| match advance.lines.is_empty() {
            false => told.contains(&advance.no.0),
            // It has left no line; while nobody has drawn another fence it is seen by what it left.
            true => stands.get(&advance.no.0).is_some_and(|row| row.is_after(advance)),
        };
        let settled = |advance: &&Advance| match there(advance) {
            false => Settled::Missing,
            true if advance.state.worker.is_none() => Settled::Written,
            true => match stands.get(&advance.no.0).is_some_and(|row| row.is_held_by(advance)) {
                true => Settled::Written,
                false => Settled::TakenSince,
            },
        };
        Ok(advances.iter().map(settled).collect())
    }
}

/// Where a job stands.
struct Standing {
    status: String,
    fence: i64,
    entries: i64,
    worker: Option<String>,
}

impl Standing {
    fn is_held_by(&self, advance: &Advance) -> bool {
        self.fence == advance.state.fence && self.is_of(advance)
    }

    /// Beside the fence, which is unlikely enough to be drawn twice.
    fn is_of(&self, advance: &Advance) -> bool {
        self.worker == advance.state.worker || semel_store::planted!("claim")
    }

    fn is_after(&self, advance: &Advance) -> bool {
        let state = &advance.state;
        self.status == state.status.as_str()
            && self.fence == state.fence
            && self.entries == state.entries
            && self.is_of(advance)
    }
}

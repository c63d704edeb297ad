//! One move of each of some jobs: their states as a whole, by compare-and-swap on status and fence,
//! with what they do to the execution log and the ledger.
//!
//! Two round trips whatever the number: BEGIN with the locks, then everything with COMMIT. Who has
//! lost its fence is known after the first, and nothing of it is written by the second.

use std::collections::HashMap;
use std::sync::Arc;

use semel_store::postgres::{Asked, Transaction, Work};
use semel_store::{StoreError, statements};

use super::execution::{Ends, Starts};
use super::ledger::Added;
use super::lock::{self, Lock, Locks};
use super::row::count;
use super::{Parameters, PostgresStore};
use crate::gear::FailureClass;
use crate::limits::SETTLE_ROUNDS_MAX;
use crate::store::{Advance, Advanced, Reach};

statements! {
    /// In the order of their numbers: two who want the same rows must not wait for each other.
    HOLD = "
        SELECT no, status, fence, entries, step_index
          FROM jobs.job
         WHERE no = ANY ($1::bigint[])
         ORDER BY no
           FOR UPDATE";

    MOVE = "
        WITH moved AS (
            UPDATE jobs.job
               SET plan_no = new.plan_no, status = new.status, step_index = new.step_index,
                   revision_count = new.revision_count, replan_count = new.replan_count,
                   fence = new.fence, worker = new.worker, deaths = new.deaths, ready = new.ready,
                   due_at = CASE WHEN new.inside THEN job.due_at ELSE new.due_at END,
                   held_by = new.held_by, budget_ms = new.budget_ms,
                   deadline_at = new.deadline_at, question = new.question::json,
                   expires_at = new.expires_at, answer = new.answer::json,
                   error = new.error::json, failure_class = new.failure_class,
                   failed_action = new.failed_action, entries = new.entries,
                   started_at = new.started_at, completed_at = new.completed_at,
                   plan = CASE WHEN new.new_plan THEN new.plan::json ELSE job.plan END
              FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[],
                          $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::text[],
                          $11::bigint[], $12::boolean[], $13::bigint[], $14::text[],
                          $15::bigint[], $16::bigint[], $17::text[], $18::bigint[], $19::text[],
                          $20::text[], $21::text[], $22::text[], $23::bigint[], $24::bigint[],
                          $25::bigint[], $26::boolean[], $27::text[], $28::boolean[])
                   AS new (no, was, held, plan_no, status, step_index, revision_count,
                           replan_count, fence, worker, deaths, ready, due_at, held_by, budget_ms,
                           deadline_at, question, expires_at, answer, error, failure_class,
                           failed_action, entries, started_at, completed_at, new_plan, plan,
                           inside)
             WHERE job.no = ANY ($1)
               AND job.no = new.no
               AND job.status = new.was
               AND job.fence = new.held
         RETURNING 1)
        SELECT jobs.touched(count(*), $29) FROM moved";

    /// The next one of each conversation waits for a worker from now on.
    HEAD = "
        UPDATE jobs.job
           SET ready = TRUE
         WHERE no = ANY (ARRAY (
                   SELECT head.no
                     FROM unnest($1::text[]) AS ended (conversation),
                          LATERAL (SELECT live.no
                                     FROM jobs.job AS live
                                    WHERE live.conversation = ended.conversation
                                      AND live.completed_at IS NULL
                                    ORDER BY live.no
                                    LIMIT 1) AS head))
           AND status = 'pending'
           AND due_at IS NULL";
}

impl PostgresStore {
    pub(in crate::store) async fn advance(
        &self,
        advance: Arc<Advance>,
    ) -> Result<Advanced, StoreError> {
        self.shared.advances.write(self, advance).await
    }

    /// Writes these, each of another job, in one transaction.
    async fn advance_once(&self, advances: &[Arc<Advance>]) -> Result<Vec<Advanced>, StoreError> {
        let all: Vec<&Advance> = advances.iter().map(Arc::as_ref).collect();
        let locks = conversation_locks(&all);
        let (tx, rows) = self.hold(&locks, &all).await?;
        let owns = |advance: &&Advance| {
            let row = rows.get(&advance.no.0);
            row.is_some_and(|row| row.status == advance.from.as_str() && row.fence == advance.fence)
        };
        let ours: Vec<&Advance> = all.iter().copied().filter(owns).collect();
        if ours.is_empty() {
            let_go(tx).await;
        } else {
            write_and_commit(tx, &ours).await?;
        }
        let said = |advance| if owns(&advance) { Advanced::Written } else { Advanced::Lost };
        Ok(all.into_iter().map(said).collect())
    }

    /// Begins a transaction that holds these jobs.
    async fn hold(
        &self,
        locks: &Locks,
        advances: &[&Advance],
    ) -> Result<(Transaction, HashMap<i64, Standing>), StoreError> {
        let mut nos: Vec<i64> = advances.iter().map(|advance| advance.no.0).collect();
        nos.sort_unstable();
        let lock_by = locks.parameters();
        let hold_by: Parameters<'_> = &[&nos];
        let both: [Asked<'_>; 2] = [(lock::lock(), &lock_by), (HOLD, hold_by)];
        let asked = if locks.is_empty() { &both[1..] } else { &both[..] };
        let (tx, mut rows) = self.postgres().begin_with(asked).await?;
        let mut found = HashMap::new();
        for row in rows.pop().unwrap_or_default() {
            let standing = Standing {
                status: row.try_get(1)?,
                fence: row.try_get(2)?,
                entries: row.try_get(3)?,
                step_index: row.try_get(4)?,
            };
            found.insert(row.try_get(0)?, standing);
        }
        Ok((tx, found))
    }

    /// Of moves whose COMMIT got no answer, whether each was written. The rows are locked for it,
    /// so that a transaction that still runs has ended when they are read.
    pub(super) async fn settle(&self, advances: &[&Advance]) -> Result<Vec<bool>, StoreError> {
        let mut cause = StoreError::Stopped;
        for _ in 0..SETTLE_ROUNDS_MAX {
            match self.hold(&Locks::of(Vec::new()), advances).await {
                Ok((tx, rows)) => {
                    let_go(tx).await;
                    let there = |advance: &&Advance| {
                        rows.get(&advance.no.0).is_some_and(|row| row.is_after(advance))
                    };
                    return Ok(advances.iter().map(there).collect());
                }
                Err(error) => cause = error,
            }
        }
        Err(StoreError::Uncertain { cause: cause.chain().into() })
    }

    /// One by one: what one of them is refused for is no fault of the others.
    async fn advance_alone(&self, advance: &Arc<Advance>) -> Result<Advanced, StoreError> {
        let run = || self.advance_once(std::slice::from_ref(advance));
        for _ in 0..SETTLE_ROUNDS_MAX {
            match self.postgres().retry(run).await {
                Ok(said) => return Ok(said.first().copied().unwrap_or(Advanced::Lost)),
                Err(StoreError::Uncertain { .. }) => {
                    if self.settle(&[advance]).await? == [true] {
                        return Ok(Advanced::Written);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Contended { runs: SETTLE_ROUNDS_MAX })
    }
}

impl Work<Arc<Advance>, Advanced> for PostgresStore {
    fn fits(batch: &[Arc<Advance>], item: &Arc<Advance>) -> bool {
        batch.iter().all(|advance| advance.no != item.no)
    }

    async fn run(&self, batch: Vec<Arc<Advance>>) -> Vec<Result<Advanced, StoreError>> {
        let known = match self.postgres().retry(|| self.advance_once(&batch)).await {
            Ok(said) => {
                if batch.iter().any(|advance| frees_another(advance)) {
                    self.shared.bell.ring();
                }
                return said.into_iter().map(Ok).collect();
            }
            Err(StoreError::Uncertain { .. }) => {
                let all: Vec<&Advance> = batch.iter().map(Arc::as_ref).collect();
                match self.settle(&all).await {
                    Ok(there) => there,
                    Err(error) => return batch.iter().map(|_| Err(uncertain(&error))).collect(),
                }
            }
            Err(error) if batch.len() == 1 => return vec![Err(error)],
            Err(_) => vec![false; batch.len()],
        };
        let mut said = Vec::with_capacity(batch.len());
        for (advance, there) in batch.iter().zip(known) {
            said.push(if there {
                Ok(Advanced::Written)
            } else {
                self.advance_alone(advance).await
            });
        }
        self.shared.bell.ring();
        said
    }
}

fn uncertain(error: &StoreError) -> StoreError {
    StoreError::Uncertain { cause: error.chain().into() }
}

/// Whether somebody else may go on after this move.
pub(super) fn frees_another(advance: &Advance) -> bool {
    advance.conversation.is_some() && advance.state.completed_at.is_some()
}

/// The locks of the conversations in which these end a job.
pub(super) fn conversation_locks(advances: &[&Advance]) -> Locks {
    let ending = advances.iter().filter(|advance| frees_another(advance));
    let names = ending.filter_map(|advance| advance.conversation.as_deref());
    Locks::of(names.map(|name| Lock::Conversation(name).number()).collect())
}

/// The last round trip. The caller holds the rows and has seen that every move is its own to make.
pub(super) async fn write_and_commit(
    tx: Transaction,
    advances: &[&Advance],
) -> Result<(), StoreError> {
    let (moves, ends, starts) = (Moves::of(advances), Ends::of(advances)?, Starts::of(advances));
    let lines = Added::of(advances);
    let ended = advances.iter().filter(|advance| frees_another(advance));
    let heads: Vec<&str> = ended.filter_map(|advance| advance.conversation.as_deref()).collect();
    let (move_by, end_by, start_by) = (moves.parameters(), ends.parameters(), starts.parameters());
    let line_by = lines.parameters();
    let head_by: Parameters<'_> = &[&heads];
    let asked = [
        Some((MOVE, move_by.as_slice())),
        // Ends before starts: the same step may be begun anew.
        (!ends.is_empty()).then_some((Ends::SQL, end_by.as_slice())),
        (!starts.is_empty()).then_some((Starts::SQL, start_by.as_slice())),
        (!lines.is_empty()).then_some((Added::SQL, line_by.as_slice())),
        (!heads.is_empty()).then_some((HEAD, head_by)),
    ];
    let asked: Vec<Asked<'_>> = asked.into_iter().flatten().collect();
    tx.commit_with(&asked).await.map(drop)
}

/// Ends a transaction that has written nothing, before anything is answered: whoever claims next
/// would pass over what it still holds.
pub(super) async fn let_go(tx: Transaction) {
    // Whatever becomes of it, there is nothing to keep.
    let _ = tx.commit().await;
}

/// Where a job stands.
struct Standing {
    status: String,
    fence: i64,
    entries: i64,
    step_index: i64,
}

impl Standing {
    /// Whether it stands where this move leads. Only the holder of the fence could have led it.
    fn is_after(&self, advance: &Advance) -> bool {
        let state = &advance.state;
        self.status == state.status.as_str()
            && self.fence == state.fence
            && self.entries == state.entries
            && self.step_index == i64::from(state.step_index)
    }
}

/// The parameters of `MOVE`, kept alive.
#[derive(Default)]
struct Moves<'a> {
    no: Vec<i64>,
    was: Vec<&'static str>,
    held: Vec<i64>,
    plan_no: Vec<i64>,
    status: Vec<&'static str>,
    step_index: Vec<i64>,
    revision_count: Vec<i64>,
    replan_count: Vec<i64>,
    fence: Vec<i64>,
    worker: Vec<Option<&'a str>>,
    deaths: Vec<i64>,
    ready: Vec<bool>,
    due_at: Vec<Option<i64>>,
    held_by: Vec<Option<&'a str>>,
    budget_ms: Vec<i64>,
    deadline_at: Vec<Option<i64>>,
    question: Vec<Option<&'a str>>,
    expires_at: Vec<Option<i64>>,
    answer: Vec<Option<&'a str>>,
    error: Vec<Option<&'a str>>,
    failure_class: Vec<Option<&'static str>>,
    failed_action: Vec<Option<&'a str>>,
    entries: Vec<i64>,
    started_at: Vec<Option<i64>>,
    completed_at: Vec<Option<i64>>,
    new_plan: Vec<bool>,
    inside: Vec<bool>,
    plan: Vec<Option<&'a str>>,
    told: i64,
}

impl<'a> Moves<'a> {
    fn of(advances: &[&'a Advance]) -> Self {
        let mut moves = Self { told: count(advances.len()), ..Self::default() };
        for advance in advances {
            moves.add(advance);
        }
        moves
    }

    fn add(&mut self, advance: &'a Advance) {
        let state = &advance.state;
        self.no.push(advance.no.0);
        self.was.push(advance.from.as_str());
        self.held.push(advance.fence);
        self.plan_no.push(i64::from(state.plan_no));
        self.status.push(state.status.as_str());
        self.step_index.push(i64::from(state.step_index));
        self.revision_count.push(i64::from(state.revision_count));
        self.replan_count.push(i64::from(state.replan_count));
        self.fence.push(state.fence);
        self.worker.push(state.worker.as_deref());
        self.deaths.push(i64::from(state.deaths));
        self.ready.push(state.ready);
        self.due_at.push(state.due_at.map(|at| at.0));
        self.held_by.push(state.held_by.as_deref());
        self.budget_ms.push(state.budget_ms);
        self.deadline_at.push(state.deadline_at.map(|at| at.0));
        self.question.push(state.question.as_deref());
        self.expires_at.push(state.expires_at.map(|at| at.0));
        self.answer.push(state.answer.as_deref());
        self.error.push(state.error.as_deref());
        self.failure_class.push(state.failure_class.map(FailureClass::as_str));
        self.failed_action.push(state.failed_action.as_deref());
        self.entries.push(state.entries);
        self.started_at.push(state.started_at.map(|at| at.0));
        self.completed_at.push(state.completed_at.map(|at| at.0));
        self.new_plan.push(advance.new_plan);
        self.inside.push(advance.reach == Reach::Inside);
        self.plan.push(state.plan.as_deref().filter(|_| advance.new_plan));
    }

    #[rustfmt::skip]
    fn parameters(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 29] {
        [
            &self.no, &self.was, &self.held, &self.plan_no, &self.status, &self.step_index,
            &self.revision_count, &self.replan_count, &self.fence, &self.worker, &self.deaths,
            &self.ready, &self.due_at, &self.held_by, &self.budget_ms, &self.deadline_at,
            &self.question, &self.expires_at, &self.answer, &self.error, &self.failure_class,
            &self.failed_action, &self.entries, &self.started_at, &self.completed_at,
            &self.new_plan, &self.plan, &self.inside, &self.told,
        ]
    }
}

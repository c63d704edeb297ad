//! One move of each of some jobs: their states as a whole, by compare-and-swap on status and fence,
//! with what they do to the execution log and the ledger.
//!
//! One statement whatever the number, which is a transaction of its own. It fails as a whole when
//! somebody has lost its fence, and it cannot touch a row twice. Then, and where the end of a job
//! lets another one go on, there are two round trips: BEGIN with the locks, then everything with
//! COMMIT. Who has lost its fence is known after the first, and nothing of it is written by the
//! second.

use std::collections::HashMap;
use std::sync::Arc;

use semel_store::postgres::{Asked, Transaction, Work};
use semel_store::{StoreError, statements};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::execution::{Ends, Starts};
use super::ledger::Added;
use super::lock::{self, Lock, Locks};
use super::row::count;
use super::settle::Settled;
use super::{Parameters, PostgresStore};
use crate::gear::FailureClass;
use crate::limits::SETTLE_ROUNDS_MAX;
use crate::policy::Verdict;
use crate::store::{Advance, Advanced, Reach, corrupt};

statements! {
    /// In the order of their numbers: two who want the same rows must not wait for each other.
    HOLD = "
        SELECT no, status, fence
          FROM jobs.job
         WHERE no = ANY ($1::bigint[])
         ORDER BY no
           FOR UPDATE";

    /// The moves with all that belongs to them.
    ADVANCE = "
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
                   started_at = new.started_at, completed_at = new.completed_at, home = new.home,
                   consent = new.consent,
                   plan = CASE WHEN new.new_plan THEN new.plan::json ELSE job.plan END
              FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::text[],
                          $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::text[],
                          $11::bigint[], $12::boolean[], $13::bigint[], $14::text[],
                          $15::bigint[], $16::bigint[], $17::text[], $18::bigint[], $19::text[],
                          $20::text[], $21::text[], $22::text[], $23::bigint[], $24::bigint[],
                          $25::bigint[], $26::text[], $27::text[], $28::boolean[], $29::text[],
                          $30::boolean[])
                   AS new (no, was, held, plan_no, status, step_index, revision_count,
                           replan_count, fence, worker, deaths, ready, due_at, held_by, budget_ms,
                           deadline_at, question, expires_at, answer, error, failure_class,
                           failed_action, entries, started_at, completed_at, home, consent,
                           new_plan, plan, inside)
             WHERE job.no = ANY ($1)
               AND job.no = new.no
               AND job.status = new.was
               AND job.fence = new.held
         RETURNING 1),
             ended AS (
            -- Differs from sqlite: named twice, so that no plan reads other lines than these jobs'.
            UPDATE jobs.execution_log
               SET status = new.status, certain = new.certain, result = new.result::json,
                   artifact_sha256 = new.artifact, error = new.error::json, completed_at = new.at,
                   attempts = CASE WHEN new.forgiven THEN 0 ELSE execution_log.attempts END
              FROM unnest($32::uuid[], $33::text[], $34::text[], $35::boolean[], $36::text[],
                          $37::bytea[], $38::text[], $39::bigint[], $40::boolean[])
                   AS new (root_id, step_id, status, certain, result, artifact, error, at, forgiven)
             WHERE execution_log.root_id = ANY ($32)
               AND execution_log.root_id = new.root_id
               AND execution_log.step_id = new.step_id
               AND execution_log.status <> 'completed'
         RETURNING 1),
             begun AS (
            INSERT INTO jobs.execution_log (root_id, step_id, job_no, plan_no, gear, action,
                                            step_fingerprint, status, attempts, certain,
                                            started_at, via)
            SELECT new.root_id, new.step_id, new.job_no, new.plan_no, new.gear, new.action,
                   new.fingerprint, 'started', new.attempts, TRUE, new.at, new.via
              FROM unnest($42::uuid[], $43::text[], $44::bigint[], $45::bigint[], $46::text[],
                          $47::text[], $48::bytea[], $49::bigint[], $50::bigint[], $51::text[])
                   AS new (root_id, step_id, job_no, plan_no, gear, action, fingerprint, attempts,
                           at, via)
                ON CONFLICT (root_id, step_id) DO UPDATE
               SET job_no = excluded.job_no, plan_no = excluded.plan_no, status = 'started',
                   attempts = excluded.attempts, certain = TRUE, error = NULL,
                   completed_at = NULL, started_at = excluded.started_at,
                   via = excluded.via
             WHERE execution_log.status = 'failed'
               AND execution_log.step_fingerprint = excluded.step_fingerprint
         RETURNING 1),
             told AS (
            INSERT INTO jobs.ledger (job_no, entry, at, lines, fence)
            SELECT new.job_no, new.entry, new.at, new.lines::json, new.fence
              FROM unnest($53::bigint[], $54::bigint[], $55::bigint[], $56::text[],
                          $57::bigint[])
                   AS new (job_no, entry, at, lines, fence))
        SELECT jobs.touched((SELECT count(*) FROM moved), $31),
               jobs.touched((SELECT count(*) FROM ended), $41),
               jobs.touched((SELECT count(*) FROM begun), $52)";

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

    /// A move that may have been written before. Writing it again without a look would find the job
    /// where it leads, and take that for somebody else's work.
    pub(in crate::store) async fn advance_again(
        &self,
        advance: Arc<Advance>,
    ) -> Result<Advanced, StoreError> {
        match self.settle(&[&advance]).await?.first() {
            Some(Settled::Written) => Ok(Advanced::Written),
            Some(Settled::TakenSince) => Ok(Advanced::Lost),
            Some(Settled::Missing) | None => self.advance(advance).await,
        }
    }

    /// Writes these, each of another job, in one transaction.
    async fn advance_once(&self, advances: &[Arc<Advance>]) -> Result<Vec<Advanced>, StoreError> {
        let all: Vec<&Advance> = advances.iter().map(Arc::as_ref).collect();
        if self.advance_at_once(&all).await? {
            return Ok(vec![Advanced::Written; all.len()]);
        }
        let locks = conversation_locks(&all);
        let (tx, rows) = self.hold(&locks, &all).await?;
        let owns = |advance: &&Advance| {
            let row = rows.get(&advance.no.0);
            row.is_some_and(|(status, fence)| {
                status == advance.from.as_str() && *fence == advance.fence
            })
        };
        let ours: Vec<&Advance> = all.iter().copied().filter(owns).collect();
        if ours.is_empty() {
            let_go(tx).await;
        } else {
            write_and_commit(tx, &ours).await.map_err(|error| impossible(error, &ours))?;
        }
        let said = |advance| if owns(&advance) { Advanced::Written } else { Advanced::Lost };
        Ok(all.into_iter().map(said).collect())
    }

    /// Whether one statement could write these; nothing is written otherwise.
    async fn advance_at_once(&self, advances: &[&Advance]) -> Result<bool, StoreError> {
        let written = Written::of(advances)?;
        if !written.is_one_statement() {
            return Ok(false);
        }
        match self.postgres().write(ADVANCE, &written.parameters()).await {
            Ok(_) => Ok(true),
            // Somebody is not where its worker thinks: who it is must be looked up.
            Err(StoreError::Postgres(error)) if is_amiss(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Begins a transaction that holds these jobs.
    async fn hold(
        &self,
        locks: &Locks,
        advances: &[&Advance],
    ) -> Result<(Transaction, HashMap<i64, (String, i64)>), StoreError> {
        let mut nos: Vec<i64> = advances.iter().map(|advance| advance.no.0).collect();
        nos.sort_unstable();
        let lock_by = locks.parameters();
        let hold_by: Parameters<'_> = &[&nos];
        let both: [Asked<'_>; 2] = [(lock::lock(), &lock_by), (HOLD, hold_by)];
        let asked = if locks.is_empty() { &both[1..] } else { &both[..] };
        let (tx, mut rows) = self.postgres().begin_with(asked).await?;
        let mut found = HashMap::new();
        for row in rows.pop().unwrap_or_default() {
            found.insert(row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?));
        }
        Ok((tx, found))
    }

    /// One by one: what one of them is refused for is no fault of the others.
    async fn advance_alone(&self, advance: &Arc<Advance>) -> Result<Advanced, StoreError> {
        let run = || self.advance_once(std::slice::from_ref(advance));
        for _ in 0..SETTLE_ROUNDS_MAX {
            match self.postgres().retry(run).await {
                Ok(said) => return Ok(said.first().copied().unwrap_or(Advanced::Lost)),
                Err(StoreError::Uncertain { .. }) => match self.settle(&[advance]).await?.first() {
                    Some(Settled::Written) => return Ok(Advanced::Written),
                    Some(Settled::TakenSince) => return Ok(Advanced::Lost),
                    Some(Settled::Missing) | None => {}
                },
                // A request that was given up may have arrived all the same, and written it.
                Err(error @ StoreError::Corrupt { .. }) => {
                    return match self.settle(&[advance]).await?.first() {
                        Some(Settled::Written) => Ok(Advanced::Written),
                        Some(Settled::TakenSince) => Ok(Advanced::Lost),
                        Some(Settled::Missing) | None => Err(error),
                    };
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
                if batch.iter().any(|advance| wakes_another(advance)) {
                    self.shared.bell.ring();
                }
                return said.into_iter().map(Ok).collect();
            }
            Err(StoreError::Uncertain { .. }) => {
                let all: Vec<&Advance> = batch.iter().map(Arc::as_ref).collect();
                match self.settle(&all).await {
                    Ok(settled) => settled,
                    Err(error) => return batch.iter().map(|_| Err(uncertain(&error))).collect(),
                }
            }
            Err(error) if batch.len() == 1 && !matches!(error, StoreError::Corrupt { .. }) => {
                return vec![Err(error)];
            }
            Err(_) => vec![Settled::Missing; batch.len()],
        };
        let mut said = Vec::with_capacity(batch.len());
        for (advance, settled) in batch.iter().zip(known) {
            said.push(match settled {
                Settled::Written => Ok(Advanced::Written),
                Settled::TakenSince => Ok(Advanced::Lost),
                Settled::Missing => self.advance_alone(advance).await,
            });
        }
        self.shared.bell.ring();
        said
    }
}

/// The server says that these moves do not fit the log, although their worker holds the fence and
/// nobody else writes there: trying them again would change nothing.
fn impossible(error: StoreError, advances: &[&Advance]) -> StoreError {
    let StoreError::Postgres(cause) = &error else { return error };
    match advances {
        _ if semel_store::planted!("settle") => error,
        [advance] if is_amiss(cause) => corrupt("job", advance.no.0, error.chain()),
        _ => error,
    }
}

/// Whether the server says that something is not as the writer of a move knows it.
fn is_amiss(error: &tokio_postgres::Error) -> bool {
    let wrong = [&SqlState::DATA_CORRUPTED, &SqlState::UNIQUE_VIOLATION];
    error.code().is_some_and(|code| wrong.contains(&code))
}

fn uncertain(error: &StoreError) -> StoreError {
    StoreError::Uncertain { cause: error.chain().into() }
}

/// Whether an engine may go on after this move: with this job, now or when it is due, or with one
/// that waits for it.
pub(super) fn wakes_another(advance: &Advance) -> bool {
    let is_left = advance.state.worker.is_none() && advance.state.due_at.is_some();
    is_left || frees_another(advance)
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
    let written = Written::of(advances)?;
    let (all_by, again_by) = (written.parameters(), written.again.parameters());
    let head_by: Parameters<'_> = &[&written.heads];
    let asked = [
        Some((ADVANCE, all_by.as_slice())),
        (!written.again.is_empty()).then_some((Starts::SQL, again_by.as_slice())),
        (!written.heads.is_empty()).then_some((HEAD, head_by)),
    ];
    let asked: Vec<Asked<'_>> = asked.into_iter().flatten().collect();
    tx.commit_with(&asked).await.map(drop)
}

/// What some moves write.
struct Written<'a> {
    moves: Moves<'a>,
    ends: Ends<'a>,
    starts: Starts<'a>,
    lines: Added,
    /// What ends and begins anew in the same move.
    again: Starts<'a>,
    /// The conversations that go on.
    heads: Vec<&'a str>,
}

impl<'a> Written<'a> {
    fn of(advances: &[&'a Advance]) -> Result<Self, StoreError> {
        let mut advances = advances.to_vec();
        // Rows are written in this order: two who want the same ones seldom meet crosswise.
        advances.sort_unstable_by_key(|advance| advance.no);
        let (starts, again) = Starts::of(&advances);
        let ended = advances.iter().filter(|advance| frees_another(advance));
        Ok(Self {
            moves: Moves::of(&advances),
            ends: Ends::of(&advances)?,
            starts,
            lines: Added::of(&advances),
            again,
            heads: ended.filter_map(|advance| advance.conversation.as_deref()).collect(),
        })
    }

    fn is_one_statement(&self) -> bool {
        self.again.is_empty() && self.heads.is_empty()
    }

    /// Of `ADVANCE`.
    fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        let (moves, ends) = (self.moves.parameters(), self.ends.parameters());
        let (starts, lines) = (self.starts.parameters(), self.lines.parameters());
        [moves.as_slice(), &ends, &starts, &lines].concat()
    }
}

/// Ends a transaction that has written nothing, before anything is answered: whoever claims next
/// would pass over what it still holds.
pub(super) async fn let_go(tx: Transaction) {
    // Whatever becomes of it, there is nothing to keep.
    let _ = tx.commit().await;
}

/// The parameters of the moves in `ADVANCE`, kept alive.
#[derive(Default)]
pub(super) struct Moves<'a> {
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
    home: Vec<Option<&'a str>>,
    consent: Vec<Option<&'static str>>,
    new_plan: Vec<bool>,
    inside: Vec<bool>,
    plan: Vec<Option<&'a str>>,
    told: i64,
}

impl<'a> Moves<'a> {
    pub(super) fn of(advances: &[&'a Advance]) -> Self {
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
        self.home.push(state.home.as_deref());
        self.consent.push(state.consent.map(Verdict::as_str));
        self.new_plan.push(advance.new_plan);
        self.inside.push(advance.reach == Reach::Inside);
        self.plan.push(state.plan.as_deref().filter(|_| advance.new_plan));
    }

    /// The state as a whole, but for the plan.
    #[rustfmt::skip]
    pub(super) fn state(&self) -> [&(dyn ToSql + Sync); 24] {
        [
            &self.plan_no, &self.status, &self.step_index, &self.revision_count,
            &self.replan_count, &self.fence, &self.worker, &self.deaths, &self.ready,
            &self.due_at, &self.held_by, &self.budget_ms, &self.deadline_at, &self.question,
            &self.expires_at, &self.answer, &self.error, &self.failure_class,
            &self.failed_action, &self.entries, &self.started_at, &self.completed_at,
            &self.home, &self.consent,
        ]
    }

    fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        let before: [&(dyn ToSql + Sync); 3] = [&self.no, &self.was, &self.held];
        let after: [&(dyn ToSql + Sync); 4] =
            [&self.new_plan, &self.plan, &self.inside, &self.told];
        [before.as_slice(), &self.state(), &after].concat()
    }
}

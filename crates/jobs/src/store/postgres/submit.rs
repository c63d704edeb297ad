//! The table `job`: taking some in.
//!
//! Differs from sqlite: other engines do the same at the same time. So each name under which a job
//! may be there already is locked first, and its conversation with them, all in one order; what is
//! there is read after that: two round trips whatever the number.
//!
//! Jobs that have no names need no locks: one statement takes them in, together with the first move
//! of each, if all who wait have room beside them. Whose turn it is among engines only a claim can
//! say; where nobody waits for room it is everybody's.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;
use semel_core::id::JobId;
use semel_store::postgres::{Asked, Work};
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::advance::{Moves, let_go};
use super::execution::Starts;
use super::ledger::Added;
use super::lock::{self, Lock, Locks};
use super::row::{Id, count, hash};
use super::{Parameters, PostgresStore};
use crate::gear::grants::Grants;
use crate::life::JobStatus;
use crate::store::{Advance, JobNo, NewJob, Submitted, corrupt};

statements! {
    /// What is being repeated stays for as long as it takes.
    HOLD_REPEATED = "
        SELECT no
          FROM jobs.job
         WHERE id = ANY ($1::uuid[])
         ORDER BY no
           FOR SHARE";

    FACTS = "
        -- Limits inside, so that every look-up goes row by row, whatever the plan was made on.
        SELECT named.id, named.status, named.fingerprint, equal.id, equal.status,
               (SELECT 1
                  FROM jobs.job AS failed
                 WHERE failed.id = asked.retry_of
                   AND failed.status = 'failed'
                 LIMIT 1) IS NOT NULL,
               (SELECT 1
                  FROM jobs.job AS repeat
                 WHERE repeat.root_id = asked.root_id
                   AND repeat.retry_of IS NOT NULL
                   AND repeat.completed_at IS NULL
                 LIMIT 1) IS NOT NULL,
               (SELECT 1
                  FROM jobs.job AS live
                 WHERE live.conversation = asked.conversation
                   AND live.completed_at IS NULL
                 LIMIT 1) IS NOT NULL
          FROM unnest($1::text[], $2::bytea[], $3::bytea[], $4::bytea[], $5::uuid[], $6::uuid[],
                      $7::text[])
               WITH ORDINALITY
               AS asked (key, last, own, next, retry_of, root_id, conversation, number)
          LEFT JOIN LATERAL (SELECT job.id, job.status, job.fingerprint
                               FROM jobs.job
                              WHERE job.key = asked.key
                              UNION ALL
                             SELECT spent.job_id, spent.status, spent.fingerprint
                               FROM jobs.spent_key AS spent
                              WHERE spent.scope = 'job'
                                AND spent.key = asked.key
                              LIMIT 1) AS named ON TRUE
          LEFT JOIN LATERAL (SELECT job.id, job.status
                               FROM jobs.job
                              WHERE job.dedup_hash IN (asked.last, asked.own, asked.next)
                                AND job.completed_at IS NULL
                              ORDER BY job.no
                              LIMIT 1) AS equal ON TRUE
         ORDER BY asked.number";

    INSERT = "
        INSERT INTO jobs.job (id, root_id, retry_of, parent_id, depth, source, priority,
                              conversation, request, carries_plan, key, fingerprint,
                              dedup_hash, created_at, plan, plan_no, status, ready, budget_ms,
                              entries, home, asker, grants)
        SELECT new.id, new.root_id, new.retry_of, new.parent_id, new.depth, new.source,
               new.priority, new.conversation, new.request, new.plan IS NOT NULL, new.key,
               new.fingerprint, new.dedup_hash, new.created_at, new.plan::json,
               CASE WHEN new.plan IS NULL THEN 0 ELSE 1 END, 'pending', new.ready,
               new.budget_ms, 1, new.home, new.asker, new.grants::json
          FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::bigint[],
                      $6::text[], $7::bigint[], $8::text[], $9::text[], $10::text[],
                      $11::bytea[], $12::bytea[], $13::bigint[], $14::text[], $15::boolean[],
                      $16::bigint[], $17::text[], $18::text[], $19::text[])
               WITH ORDINALITY
               AS new (id, root_id, retry_of, parent_id, depth, source, priority, conversation,
                       request, key, fingerprint, dedup_hash, created_at, plan, ready,
                       budget_ms, home, asker, grants, number)
         ORDER BY new.number";

    /// Taken in and begun; no rows when more others wait than have room beside these.
    BEGIN = "
        WITH made AS (
            INSERT INTO jobs.job (id, root_id, retry_of, parent_id, depth, source, priority,
                                  conversation, request, carries_plan, key, fingerprint,
                                  dedup_hash, created_at, plan, plan_no, status, step_index,
                                  revision_count, replan_count, fence, worker, deaths, ready,
                                  due_at, held_by, budget_ms, deadline_at, question, expires_at,
                                  answer, error, failure_class, failed_action, entries,
                                  started_at, completed_at, home, consent, asker, grants)
            SELECT new.id, new.root_id, new.retry_of, new.parent_id, new.depth, new.source,
                   new.priority, new.conversation, new.request, new.plan IS NOT NULL, new.key,
                   new.fingerprint, new.dedup_hash, new.created_at, new.plan::json, new.plan_no,
                   new.status, new.step_index, new.revision_count, new.replan_count, new.fence,
                   new.worker, new.deaths, new.ready, new.due_at - new.created_at + jobs.now_ms(),
                   new.held_by, new.budget_ms, new.deadline_at, new.question::json,
                   new.expires_at, new.answer::json, new.error::json, new.failure_class,
                   new.failed_action, new.entries, new.started_at, new.completed_at, new.home,
                   new.consent, new.asker, new.grants::json
              FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::bigint[],
                          $6::text[], $7::bigint[], $8::text[], $9::text[], $10::text[],
                          $11::bytea[], $12::bytea[], $13::bigint[], $14::text[],
                          $15::bigint[], $16::text[], $17::bigint[], $18::bigint[],
                          $19::bigint[], $20::bigint[], $21::text[], $22::bigint[],
                          $23::boolean[], $24::bigint[], $25::text[], $26::bigint[],
                          $27::bigint[], $28::text[], $29::bigint[], $30::text[], $31::text[],
                          $32::text[], $33::text[], $34::bigint[], $35::bigint[],
                          $36::bigint[], $37::text[], $38::text[], $54::text[], $55::text[])
                   WITH ORDINALITY
                   AS new (id, root_id, retry_of, parent_id, depth, source, priority,
                           conversation, request, key, fingerprint, dedup_hash, created_at, plan,
                           plan_no, status, step_index, revision_count, replan_count, fence,
                           worker, deaths, ready, due_at, held_by, budget_ms, deadline_at,
                           question, expires_at, answer, error, failure_class, failed_action,
                           entries, started_at, completed_at, home, consent, asker, grants,
                           number)
             -- Of the others those that whoever begins these could go on with.
             WHERE (SELECT count(*)
                      FROM (SELECT '' AS home UNION SELECT * FROM unnest($37::text[])) AS place
                     CROSS JOIN LATERAL (SELECT 1
                                           FROM jobs.job AS next
                                          WHERE next.ready
                                            AND COALESCE(next.home, '') = place.home
                                          LIMIT $39::bigint + 1) AS waiting)
                 + (SELECT count(*)
                      FROM (SELECT '' AS home UNION SELECT * FROM unnest($37::text[])) AS place
                     CROSS JOIN LATERAL (SELECT 1
                                           FROM jobs.job AS next
                                          WHERE next.due_at <= jobs.now_ms()
                                            AND COALESCE(next.home, '') = place.home
                                          LIMIT $39::bigint + 1) AS due) <= $39
             ORDER BY new.number
         RETURNING no, id),
             begun AS (
            INSERT INTO jobs.execution_log (root_id, step_id, job_no, plan_no, gear, action,
                                            step_fingerprint, status, attempts, certain,
                                            started_at, via)
            SELECT made.id, new.step_id, made.no, new.plan_no, new.gear, new.action,
                   new.fingerprint, 'started', new.attempts, TRUE, new.at, new.via
              FROM unnest($40::uuid[], $41::text[], $42::bigint[], $43::text[], $44::text[],
                          $45::bytea[], $46::bigint[], $47::bigint[], $48::text[])
                   AS new (id, step_id, plan_no, gear, action, fingerprint, attempts, at, via)
              JOIN made ON made.id = new.id),
             told AS (
            INSERT INTO jobs.ledger (job_no, entry, at, lines, fence)
            SELECT made.no, new.entry, new.at, new.lines::json, new.fence
              FROM unnest($49::uuid[], $50::bigint[], $51::bigint[], $52::text[], $53::bigint[])
                   AS new (id, entry, at, lines, fence)
              JOIN made ON made.id = new.id)
        SELECT made.id, made.no
          FROM made";

    STANDING_OF = "
        SELECT no, fence
          FROM jobs.job
         WHERE id = $1";
}

impl PostgresStore {
    pub(in crate::store) async fn submit(&self, job: NewJob) -> Result<Submitted, StoreError> {
        self.shared.submits.write(self, job).await
    }

    pub(in crate::store) async fn submit_begun(
        &self,
        job: NewJob,
        first: Advance,
        room: usize,
    ) -> Result<(Submitted, Option<JobNo>), StoreError> {
        if job.has_a_name() {
            return self.submit(job).await.map(|said| (said, None));
        }
        let beginning = Arc::new(Beginning { job, first, room: count(room) });
        match self.shared.begins.write(self, Arc::clone(&beginning)).await? {
            Began::At(no) => Ok((Submitted::Made, Some(no))),
            Began::Waits(said) => Ok((said, None)),
            Began::BehindOthers => {
                self.submit(beginning.job.clone()).await.map(|said| (said, None))
            }
        }
    }

    /// Takes these in and begins them; nothing is written when too many others wait.
    async fn begin_once(&self, batch: &[Arc<Beginning>]) -> Result<Vec<Began>, StoreError> {
        let mut new = NewRows::default();
        batch.iter().for_each(|beginning| new.add(&beginning.job, false));
        let firsts: Vec<&Advance> = batch.iter().map(|beginning| &beginning.first).collect();
        let (moves, lines) = (Moves::of(&firsts), Added::of(&firsts));
        let (starts, _) = Starts::of(&firsts);
        let room = batch.iter().map(|beginning| beginning.room).min().unwrap_or(0);
        let (starts, lines) = (starts.of_new_jobs(), lines.of_new_jobs());
        let by: [&[&(dyn ToSql + Sync)]; 6] =
            [&new.names(), &moves.state(), &[&room], &starts, &lines, &[&new.askers, &new.grants]];
        let rows = self.postgres().write(BEGIN, &by.concat()).await?;
        if rows.is_empty() {
            return Ok(batch.iter().map(|_| Began::BehindOthers).collect());
        }
        let mut numbers = HashMap::with_capacity(rows.len());
        for row in &rows {
            numbers.insert(row.try_get::<_, Uuid>(0)?, JobNo(row.try_get(1)?));
        }
        let number = |beginning: &Arc<Beginning>| {
            let id = beginning.job.id;
            let no = numbers.get(&id.as_uuid()).copied().map(Began::At);
            no.ok_or_else(|| corrupt("job", id, "no number was given to it"))
        };
        batch.iter().map(number).collect()
    }

    /// One that may have been written. Whether it was begun, and is still the one who began it who
    /// has it, is said by its fence: another engine may have it by now.
    async fn begin_again(&self, one: &Beginning) -> Result<Began, StoreError> {
        let ask = || async {
            // Waits for whoever holds its id, and so for the transaction that got no answer.
            let said = self.submit_alone(&one.job).await;
            match (self.standing_of(one.job.id).await?, said) {
                (Some((no, fence)), _) if fence == one.first.state.fence => Ok(Began::At(no)),
                (Some(_), _) => Ok(Began::Waits(Submitted::Made)),
                (None, Ok(said)) => Ok(Began::Waits(said)),
                (None, Err(error)) => Err(error),
            }
        };
        self.patiently(self.shared.patience, ask).await
    }

    async fn standing_of(&self, id: JobId) -> Result<Option<(JobNo, i64)>, StoreError> {
        let rows = self.postgres().read(STANDING_OF, &[&id.as_uuid()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some((JobNo(row.try_get(0)?), row.try_get(1)?)))
    }

    /// Takes these in, which have no name in common, in one transaction.
    async fn submit_once(&self, jobs: &[NewJob]) -> Result<Vec<Submitted>, StoreError> {
        let (locks, asked) = (Locks::of(names(jobs)), FactsAsked::of(jobs));
        let repeated = repeated(jobs);
        let (lock_by, facts_by) = (locks.parameters(), asked.parameters());
        let repeated_by: Parameters<'_> = &[&repeated];
        let begin = [
            (!locks.is_empty()).then_some((lock::lock(), lock_by.as_slice())),
            (!repeated.is_empty()).then_some((HOLD_REPEATED, repeated_by)),
            (!locks.is_empty()).then_some((FACTS, facts_by.as_slice())),
        ];
        let begin: Vec<Asked<'_>> = begin.into_iter().flatten().collect();
        let (tx, mut rows) = self.postgres().begin_with(&begin).await?;
        let facts = rows.pop().unwrap_or_default();
        let mut conversations = HashSet::new();
        let (mut said, mut new) = (Vec::with_capacity(jobs.len()), NewRows::default());
        for (number, job) in jobs.iter().enumerate() {
            let facts = facts.get(number).map(Facts::read).transpose()?.unwrap_or_default();
            let answer = facts.decide(job);
            if answer == Submitted::Made {
                let first = job.conversation.as_deref().is_none_or(|c| conversations.insert(c));
                new.add(job, first && !facts.any_before);
            }
            said.push(answer);
        }
        if new.ids.is_empty() {
            let_go(tx).await;
        } else {
            tx.commit_with(&[(INSERT, &new.parameters())]).await?;
        }
        Ok(said)
    }

    /// One that may have been written: whatever is said of it now, if it is there it was made.
    async fn submit_again(&self, job: &NewJob) -> Result<Submitted, StoreError> {
        let ask = || async {
            // Waits for whoever holds its names, and so for the transaction that got no answer.
            let said = self.submit_alone(job).await;
            match self.standing_of(job.id).await? {
                Some(_) => Ok(Submitted::Made),
                None => said,
            }
        };
        self.patiently(self.shared.patience, ask).await
    }

    async fn submit_alone(&self, job: &NewJob) -> Result<Submitted, StoreError> {
        let run = || self.submit_once(std::slice::from_ref(job));
        let mut said = self.postgres().retry(run).await?;
        said.pop().ok_or_else(|| corrupt("job", job.id, "nothing was said of it"))
    }
}

impl Work<NewJob, Submitted> for PostgresStore {
    fn fits(batch: &[NewJob], item: &NewJob) -> bool {
        batch.iter().all(|job| !have_a_name_in_common(job, item))
    }

    async fn run(&self, batch: Vec<NewJob>) -> Vec<Result<Submitted, StoreError>> {
        let mut said = Vec::with_capacity(batch.len());
        match self.postgres().retry(|| self.submit_once(&batch)).await {
            Ok(answers) => said.extend(answers.into_iter().map(Ok)),
            Err(StoreError::Uncertain { .. }) => {
                // All at once: the patience of one is that of all.
                said = join_all(batch.iter().map(|job| self.submit_again(job))).await;
            }
            Err(error) if batch.len() == 1 => said.push(Err(error)),
            // What one of them is refused for is no fault of the others.
            Err(_) => {
                for job in &batch {
                    let alone = self.submit_alone(job).await;
                    let unknown = matches!(alone, Err(StoreError::Uncertain { .. }));
                    said.push(if unknown { self.submit_again(job).await } else { alone });
                }
            }
        }
        if said.iter().any(|answer| matches!(answer, Ok(Submitted::Made))) {
            self.shared.bell.ring();
        }
        said
    }
}

/// A job that is taken in together with its first move.
pub(super) struct Beginning {
    job: NewJob,
    first: Advance,
    /// For how many others there is room beside it.
    room: i64,
}

/// What became of it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Began {
    /// It has this number and is under way.
    At(JobNo),
    /// It was taken in, and not begun.
    Waits(Submitted),
    /// Others wait; nothing was written.
    BehindOthers,
}

impl PostgresStore {
    /// What one of them is refused for is no fault of the others.
    async fn begin_alone(&self, one: &Arc<Beginning>) -> Result<Began, StoreError> {
        match self.begin_once(std::slice::from_ref(one)).await {
            Err(StoreError::Uncertain { .. }) => self.begin_again(one).await,
            Ok(began) => {
                let silent = || corrupt("job", one.job.id, "no word of it");
                began.first().copied().ok_or_else(silent)
            }
            Err(error) => Err(error),
        }
    }
}

impl Work<Arc<Beginning>, Began> for PostgresStore {
    /// They have no names in common, because they have none.
    fn fits(_: &[Arc<Beginning>], _: &Arc<Beginning>) -> bool {
        true
    }

    async fn run(&self, batch: Vec<Arc<Beginning>>) -> Vec<Result<Began, StoreError>> {
        let lost = match self.postgres().retry(|| self.begin_once(&batch)).await {
            Ok(began) => return began.into_iter().map(Ok).collect(),
            Err(StoreError::Uncertain { .. }) => true,
            Err(error) if batch.len() == 1 => return vec![Err(error)],
            Err(_) => false,
        };
        let said = match lost {
            // All at once: the patience of one is that of all.
            true => join_all(batch.iter().map(|one| self.begin_again(one))).await,
            false => {
                let mut said = Vec::with_capacity(batch.len());
                for one in &batch {
                    said.push(self.begin_alone(one).await);
                }
                said
            }
        };
        if said.iter().any(|began| matches!(began, Ok(Began::Waits(Submitted::Made)))) {
            self.shared.bell.ring();
        }
        said
    }
}

/// Whether the later one may find the earlier one.
fn have_a_name_in_common(one: &NewJob, other: &NewJob) -> bool {
    let words = |job: &NewJob| job.dedup.into_iter().flatten().collect::<Vec<_>>();
    let equal = || {
        let known = words(one);
        words(other).iter().any(|hash| known.contains(hash))
    };
    one.id == other.id
        || (one.key.is_some() && one.key == other.key)
        || (one.retry_of.is_some() && other.retry_of.is_some() && one.root_id == other.root_id)
        || (one.dedup.is_some() && other.dedup.is_some() && equal())
}

/// The locks of these jobs: of what they may be known by, and of their conversations.
fn names(jobs: &[NewJob]) -> Vec<i32> {
    let mut numbers = Vec::new();
    for job in jobs {
        numbers.extend(job.conversation.as_deref().map(|name| Lock::Conversation(name).number()));
        numbers.extend(job.key.as_deref().map(|key| Lock::Key(key).number()));
        let words = job.dedup.iter().flatten().map(|hash| Lock::Words(&hash.0).number());
        numbers.extend(words);
        let root = job.retry_of.map(|_| job.root_id.as_uuid());
        numbers.extend(root.map(|root| Lock::Root(root.as_bytes()).number()));
    }
    numbers
}

fn repeated(jobs: &[NewJob]) -> Vec<Uuid> {
    let both = |job: &NewJob| job.retry_of.map(|of| [of.as_uuid(), job.root_id.as_uuid()]);
    jobs.iter().filter_map(both).flatten().collect()
}

/// What is there of one job.
#[derive(Default)]
struct Facts {
    named: Option<(JobId, JobStatus, Option<semel_core::hex::Hex<32>>)>,
    equal: Option<(JobId, JobStatus)>,
    failed: bool,
    repeating: bool,
    any_before: bool,
}

impl Facts {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let id = |column| Ok::<_, StoreError>(row.try_get::<_, Option<Uuid>>(column)?.map(Id::new));
        let named = id(0)?.map(|id| {
            let fingerprint: Option<&[u8]> = row.try_get(2)?;
            Ok::<_, StoreError>((id, status(row, 1, id)?, fingerprint.and_then(hash)))
        });
        let equal = id(3)?.map(|id| Ok::<_, StoreError>((id, status(row, 4, id)?)));
        Ok(Self {
            named: named.transpose()?,
            equal: equal.transpose()?,
            failed: row.try_get(5)?,
            repeating: row.try_get(6)?,
            any_before: row.try_get(7)?,
        })
    }

    /// The key goes before the words (jobs.md §2).
    fn decide(&self, job: &NewJob) -> Submitted {
        if job.key.is_some() {
            if let Some((id, status, fingerprint)) = self.named {
                let same = fingerprint == Some(job.fingerprint);
                return if same { Submitted::There(id, status) } else { Submitted::Reused(id) };
            }
        } else if let Some((id, status)) = self.equal {
            return Submitted::There(id, status);
        }
        match job.retry_of {
            Some(_) if !self.failed => Submitted::NotFailed,
            Some(_) if self.repeating => Submitted::Repeating,
            Some(_) | None => Submitted::Made,
        }
    }
}

fn status(row: &Row, column: usize, id: Id) -> Result<JobStatus, StoreError> {
    let text: &str = row.try_get(column)?;
    JobStatus::parse(text).ok_or_else(|| corrupt("job", id, "no such status"))
}

/// The parameters of `FACTS`, kept alive.
struct FactsAsked<'a> {
    keys: Vec<Option<&'a str>>,
    words: [Vec<Option<&'a [u8]>>; 3],
    retry_of: Vec<Option<Uuid>>,
    roots: Vec<Uuid>,
    conversations: Vec<Option<&'a str>>,
}

impl<'a> FactsAsked<'a> {
    fn of(jobs: &'a [NewJob]) -> Self {
        let words = |bucket: usize| {
            let of = |job: &'a NewJob| job.dedup.as_ref().map(|hashes| &hashes[bucket].0[..]);
            jobs.iter().map(of).collect()
        };
        Self {
            keys: jobs.iter().map(|job| job.key.as_deref()).collect(),
            words: [words(0), words(1), words(2)],
            retry_of: jobs.iter().map(|job| job.retry_of.map(|of| of.as_uuid())).collect(),
            roots: jobs.iter().map(|job| job.root_id.as_uuid()).collect(),
            conversations: jobs.iter().map(|job| job.conversation.as_deref()).collect(),
        }
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 7] {
        let [last, own, next] = &self.words;
        [&self.keys, last, own, next, &self.retry_of, &self.roots, &self.conversations]
    }
}

/// The parameters of `INSERT`, and the first ones of `BEGIN`, kept alive.
#[derive(Default)]
struct NewRows<'a> {
    ids: Vec<Uuid>,
    roots: Vec<Uuid>,
    retry_of: Vec<Option<Uuid>>,
    parents: Vec<Option<Uuid>>,
    depths: Vec<i64>,
    sources: Vec<&'static str>,
    priorities: Vec<i64>,
    conversations: Vec<Option<&'a str>>,
    requests: Vec<Option<&'a str>>,
    keys: Vec<Option<&'a str>>,
    fingerprints: Vec<&'a [u8]>,
    words: Vec<Option<&'a [u8]>>,
    created_at: Vec<i64>,
    plans: Vec<Option<&'a str>>,
    ready: Vec<bool>,
    budgets: Vec<i64>,
    homes: Vec<Option<&'a str>>,
    askers: Vec<Option<&'a str>>,
    grants: Vec<Option<String>>,
}

impl<'a> NewRows<'a> {
    fn add(&mut self, job: &'a NewJob, ready: bool) {
        self.ids.push(job.id.as_uuid());
        self.roots.push(job.root_id.as_uuid());
        self.retry_of.push(job.retry_of.map(|of| of.as_uuid()));
        self.parents.push(job.parent_id.map(|of| of.as_uuid()));
        self.depths.push(i64::from(job.depth));
        self.sources.push(job.source.as_str());
        self.priorities.push(job.priority.rank());
        self.conversations.push(job.conversation.as_deref());
        self.requests.push(job.request.as_deref());
        self.keys.push(job.key.as_deref());
        self.fingerprints.push(&job.fingerprint.0);
        self.words.push(job.dedup.as_ref().map(|[_, own, _]| &own.0[..]));
        self.created_at.push(job.now.0);
        self.plans.push(job.plan.as_deref());
        self.ready.push(ready);
        self.budgets.push(job.budget_ms);
        self.homes.push(job.home.as_deref());
        self.askers.push(job.asker.as_deref());
        self.grants.push(job.grants.as_ref().map(Grants::to_json));
    }

    /// What never changes, and the plan.
    #[rustfmt::skip]
    fn names(&self) -> [&(dyn ToSql + Sync); 14] {
        [
            &self.ids, &self.roots, &self.retry_of, &self.parents, &self.depths, &self.sources,
            &self.priorities, &self.conversations, &self.requests, &self.keys,
            &self.fingerprints, &self.words, &self.created_at, &self.plans,
        ]
    }

    fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        let others: [&(dyn ToSql + Sync); 5] =
            [&self.ready, &self.budgets, &self.homes, &self.askers, &self.grants];
        [self.names().as_slice(), &others].concat()
    }
}

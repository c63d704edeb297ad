//! Jobs and moves as an engine would make them, on either store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_core::id::{JobId, UuidId};
use semel_jobs::gear::FailureClass;
use semel_jobs::life::JobStatus;
use semel_jobs::store::{
    Advance, Advanced, Begin, Claim, Claimed, Ended, Kept, LedgerEvent, Line, NewJob,
    PostgresStore, Priority, Reach, Source, SqliteStore, Started, Store, Submitted, postgres,
    sqlite,
};
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_store::sqlite::{Sqlite, SqliteOptions};
use semel_testkit::servers;
use uuid::Uuid;

pub(crate) const NOW: UnixMs = UnixMs(1_800_000_000_000);
const LEASE: Duration = Duration::from_secs(15);

/// A store, and where its tables are.
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) database: Database,
}

pub(crate) enum Database {
    Sqlite(Arc<Sqlite>, #[expect(dead_code, reason = "it is removed with it")] tempfile::TempDir),
    Postgres(Postgres, String),
}

pub(crate) fn sqlite_options(folder: &Path) -> SqliteOptions {
    let on_uncertain = Arc::new(|error: &semel_store::StoreError| panic!("{error}"));
    let migrations = vec![sqlite::MIGRATIONS, semel_registrar::store::sqlite::MIGRATIONS];
    SqliteOptions::new(folder.join("j.db"), sqlite::APPLICATION_ID, migrations, NOW.0, on_uncertain)
}

pub(crate) async fn on_sqlite() -> World {
    let folder = tempfile::tempdir().unwrap();
    let file = Arc::new(Sqlite::open(&sqlite_options(folder.path())).unwrap());
    let store = Store::Sqlite(SqliteStore::new(Arc::clone(&file)));
    World { store, database: Database::Sqlite(file, folder) }
}

pub(crate) async fn postgres_at(address: &str) -> Postgres {
    let migrations = [postgres::MIGRATIONS, semel_registrar::store::postgres::MIGRATIONS];
    Postgres::open(PostgresOptions::new(address), &migrations, NOW.0).await.unwrap()
}

pub(crate) async fn on_postgres() -> World {
    on_postgres_at(servers::fresh_postgres().await).await
}

/// In a database that is there already.
pub(crate) async fn on_postgres_at(address: String) -> World {
    let pool = postgres_at(&address).await;
    let store = Store::Postgres(PostgresStore::new(pool.clone()));
    let world = World { store, database: Database::Postgres(pool, address) };
    world.plant(TEST_CLOCK).await;
    world.set_time(NOW).await;
    world
}

/// The server's time is what a table says.
const TEST_CLOCK: &str = "
    CREATE TABLE jobs.test_clock (at BIGINT NOT NULL);
    INSERT INTO jobs.test_clock VALUES (0);
    CREATE OR REPLACE FUNCTION jobs.now_ms() RETURNS BIGINT LANGUAGE plpgsql STABLE AS
        $$ BEGIN RETURN (SELECT at FROM jobs.test_clock); END $$";

impl World {
    /// A store that others share goes by its own clock, which is set here.
    pub(crate) async fn set_time(&self, now: UnixMs) {
        if let Database::Postgres(pool, _) = &self.database {
            let sql = "UPDATE jobs.test_clock SET at = $1 WHERE at <> $1";
            pool.write(sql, &[&now.0]).await.unwrap();
        }
    }

    /// Runs SQL written for PostgreSQL's schema, behind the store's back.
    pub(crate) async fn plant(&self, sql: &str) {
        match &self.database {
            Database::Sqlite(file, _) => {
                let sql = sql.replace("jobs.", "");
                file.write(move |tx| Ok(tx.execute_batch(&sql)?)).await.unwrap();
            }
            Database::Postgres(_, address) => {
                let connected = tokio_postgres::connect(address, tokio_postgres::NoTls).await;
                let (client, connection) = connected.unwrap();
                tokio::spawn(connection);
                client.batch_execute(sql).await.unwrap();
            }
        }
    }

    /// Why a change behind the store's back is not made.
    pub(crate) async fn refusal(&self, sql: &str) -> String {
        match &self.database {
            Database::Sqlite(file, _) => {
                let sql = sql.replace("jobs.", "");
                let refused = file.write(move |tx| Ok(tx.execute_batch(&sql)?)).await;
                refused.expect_err("it was made").chain()
            }
            Database::Postgres(_, address) => {
                let connected = tokio_postgres::connect(address, tokio_postgres::NoTls).await;
                let (client, connection) = connected.unwrap();
                tokio::spawn(connection);
                let refused = client.batch_execute(sql).await.expect_err("it was made");
                refused.as_db_error().expect("an error of the server").message().to_owned()
            }
        }
    }

    /// The only number that a query gives.
    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        match &self.database {
            Database::Sqlite(file, _) => {
                let sql = sql.replace("jobs.", "").replace("registrar.", "");
                let read = file.read(move |tx| Ok(tx.query_row(&sql, [], |row| row.get(0))?));
                read.await.unwrap()
            }
            Database::Postgres(pool, _) => pool.read(sql, &[]).await.unwrap()[0].get(0),
        }
    }

    /// As it stands.
    pub(crate) async fn kept(&self, id: JobId) -> Kept {
        self.store.job(id).await.unwrap().expect("it is there")
    }

    pub(crate) async fn made(&self, job: NewJob) -> JobId {
        let id = job.id;
        assert_eq!(self.store.submit(job).await.unwrap(), Submitted::Made);
        id
    }

    pub(crate) async fn claim(&self, worker: &str, limit: u32, now: UnixMs) -> Vec<Claimed> {
        self.set_time(now).await;
        self.store.claim(claim_of(worker, limit, now), begin()).await.unwrap().jobs
    }

    /// Ends a job that was claimed.
    pub(crate) async fn finish(&self, claimed: &Claimed, now: UnixMs) -> Advanced {
        let advance = moved(&after(claimed), JobStatus::Completed, now);
        self.store.advance(advance).await.unwrap()
    }
}

pub(crate) fn id(number: u128) -> JobId {
    UuidId::new(Uuid::from_u128(number))
}

pub(crate) fn new_job(number: u128) -> NewJob {
    NewJob {
        id: id(number),
        root_id: id(number),
        retry_of: None,
        parent_id: None,
        depth: 0,
        source: Source::Api,
        priority: Priority::Normal,
        conversation: None,
        request: None,
        plan: Some("{\"steps\":[]}".into()),
        budget_ms: 300_000,
        key: None,
        fingerprint: Hex([1; 32]),
        dedup: None,
        home: None,
        asker: None,
        grants: None,
        now: NOW,
    }
}

pub(crate) fn in_conversation(number: u128, conversation: &str) -> NewJob {
    NewJob { conversation: Some(conversation.to_owned()), ..new_job(number) }
}

pub(crate) fn claim_of(worker: &str, limit: u32, now: UnixMs) -> Claim {
    let (worker, fence) = (worker.to_owned(), new_fence());
    Claim { worker, fence, lease: LEASE, limit, held: Vec::new(), home: None, now }
}

/// A number that nobody has drawn yet, as an engine would.
pub(crate) fn new_fence() -> i64 {
    static DRAWN: AtomicI64 = AtomicI64::new(1);
    DRAWN.fetch_add(1, Ordering::SeqCst)
}

/// As an engine begins: a first claim leads on, a later one stays where the job stands.
pub(crate) fn begin() -> Begin {
    Arc::new(|kept, claim| {
        let state = &kept.job.state;
        let first = match (state.started_at, kept.job.carries_plan) {
            (Some(_), _) => JobStatus::Executing,
            (None, true) => JobStatus::Validating,
            (None, false) => JobStatus::Planning,
        };
        let to = if state.status == JobStatus::Pending { first } else { state.status };
        let mut advance = moved(kept, to, claim.now);
        let died = state.worker.is_some();
        advance.state.fence = claim.fence;
        advance.state.worker = Some(claim.worker.clone());
        advance.state.deaths += u32::from(died);
        advance.state.due_at = Some(claim.lease_until());
        advance.state.held_by = None;
        advance.state.started_at = state.started_at.or(Some(claim.now));
        if advance.state.deaths >= 3 {
            return Some(died_over(kept, claim));
        }
        Some(advance)
    })
}

fn died_over(kept: &Kept, claim: &Claim) -> Advance {
    let mut advance = moved(kept, JobStatus::Failed, claim.now);
    advance.state.fence = claim.fence;
    advance
}

/// A move to there, with everything that the columns ask for.
pub(crate) fn moved(kept: &Kept, to: JobStatus, now: UnixMs) -> Advance {
    let mut state = kept.job.state.clone();
    let (ended, asked) = (to.is_terminal(), to == JobStatus::AwaitingApproval);
    state.status = to;
    state.ready = false;
    state.question = asked.then(|| "{\"ask\":1}".to_owned());
    state.expires_at = asked.then(|| now.saturating_add(LEASE));
    state.failure_class = (to == JobStatus::Failed).then_some(FailureClass::Transient);
    state.error = (to == JobStatus::Failed).then(|| "{\"code\":\"x\"}".to_owned());
    state.completed_at = ended.then_some(now);
    if ended || asked {
        (state.worker, state.due_at) = (None, None);
    }
    state.entries += 1;
    let detail = format!("{{\"status\":\"{to}\"}}");
    Advance {
        no: kept.job.no,
        root_id: kept.job.root_id,
        conversation: kept.job.conversation.clone(),
        from: kept.job.state.status,
        fence: kept.job.state.fence,
        state,
        new_plan: false,
        reach: Reach::All,
        ended: Vec::new(),
        started: Vec::new(),
        lines: vec![Line { event: LedgerEvent::Moved, step_id: None, detail }],
        now,
    }
}

/// A job as its worker knows it after the claim.
pub(crate) fn after(claimed: &Claimed) -> Kept {
    let mut kept = claimed.before.clone();
    kept.apply(&claimed.advance);
    kept
}

pub(crate) fn started(step: &str, fingerprint: u8, attempts: u32) -> Started {
    Started {
        step_id: step.to_owned(),
        gear: "web".to_owned(),
        action: "get".to_owned(),
        fingerprint: Hex([fingerprint; 32]),
        attempts,
        via: None,
    }
}

pub(crate) fn completed(step: &str) -> Ended {
    Ended {
        step_id: step.to_owned(),
        status: semel_jobs::dispatch::ExecutionStatus::Completed,
        certain: true,
        result: Some("{\"n\":1}".to_owned()),
        artifact: None,
        error: None,
        attempts_forgiven: false,
    }
}

pub(crate) fn failed(step: &str, certain: bool) -> Ended {
    Ended {
        status: semel_jobs::dispatch::ExecutionStatus::Failed,
        certain,
        result: None,
        error: Some("{\"code\":\"x\"}".to_owned()),
        ..completed(step)
    }
}

//! SIGKILL at every statement of the writer: each move of a job is there with everything that
//! belongs to it, or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rusqlite::Connection;
use semel_jobs::life::JobStatus;
use semel_jobs::store::{Advance, Advanced, Kept, SqliteStore, Store, Submitted, Wrote};
use semel_store::sqlite::Sqlite;
use semel_testkit::crash::{self, Child, Left};

use crate::people::{approval, word};
use crate::support::{
    NOW, after, begin, claim_of, completed, id, in_conversation, moved, sqlite_options, started,
};

/// Only the writer's statements are counted.
fn writer_only(connection: &mut Connection) -> rusqlite::Result<()> {
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    match OPENED.fetch_add(1, Ordering::SeqCst) {
        0 => crash::instrument(connection),
        _ => Ok(()),
    }
}

fn block_on<T>(running: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(running)
}

/// What an acknowledged number of lines in the first job's ledger stands for.
struct Stage {
    status: JobStatus,
    fence: i64,
    executions: &'static [(&'static str, &'static str)],
    grants: i64,
    next_is_ready: bool,
}

#[rustfmt::skip]
const STAGES: &[Stage] = {
    use JobStatus::{AwaitingApproval, Completed, Executing, Pending, Validating};
    const fn stage(
        status: JobStatus,
        fence: i64,
        executions: &'static [(&'static str, &'static str)],
        grants: i64,
    ) -> Stage {
        Stage { status, fence, executions, grants, next_is_ready: matches!(status, Completed) }
    }
    const BOTH: &[(&str, &str)] = &[("fetch", "completed"), ("send", "completed")];
    &[
        stage(Pending,          0, &[],                                             0),
        stage(Validating,       1, &[],                                             0),
        stage(Executing,        1, &[("fetch", "started")],                         0),
        stage(Executing,        1, &[("fetch", "completed"), ("send", "started")],  0),
        stage(AwaitingApproval, 1, BOTH,                                            0),
        stage(Executing,        2, BOTH,                                            1),
        stage(Executing,        3, BOTH,                                            1),
        stage(Completed,        3, BOTH,                                            1),
    ]
};

async fn work(child: &Child) {
    let file = Arc::new(Sqlite::open(&sqlite_options(&child.folder)).unwrap());
    let registrar = semel_registrar::store::SqliteStore::new(Arc::clone(&file));
    let registrar = semel_registrar::store::Store::Sqlite(registrar);
    registrar.grant_issue(&approval("r1").grant, NOW).await.unwrap();
    drop((registrar, file));
    let mut options = sqlite_options(&child.folder);
    options.instrument = Some(writer_only);
    let store = Store::Sqlite(SqliteStore::new(Arc::new(Sqlite::open(&options).unwrap())));
    for number in [1, 2] {
        let made = store.submit(in_conversation(number, "c")).await.unwrap();
        assert_eq!(made, Submitted::Made);
        if number == 1 {
            child.acknowledge("submitted");
        }
    }
    let mut kept = claimed(&store).await;
    child.acknowledge("claimed");
    let mut advance = moved(&kept, JobStatus::Executing, NOW);
    advance.started = vec![started("fetch", 1, 1)];
    written(&store, &mut kept, advance).await;
    child.acknowledge("started");
    let mut advance = moved(&kept, JobStatus::Executing, NOW);
    (advance.ended, advance.started) = (vec![completed("fetch")], vec![started("send", 1, 1)]);
    written(&store, &mut kept, advance).await;
    child.acknowledge("stepped");
    let mut advance = moved(&kept, JobStatus::AwaitingApproval, NOW);
    advance.ended = vec![completed("send")];
    written(&store, &mut kept, advance).await;
    child.acknowledge("asked");
    let approve = word(JobStatus::AwaitingApproval, JobStatus::Executing);
    let said = store.person(id(1), Some(approval("r1")), approve).await.unwrap();
    assert!(matches!(said, Wrote::Written(_)), "{said:?}");
    child.acknowledge("approved");
    let mut kept = claimed(&store).await;
    child.acknowledge("claimed again");
    let advance = moved(&kept, JobStatus::Completed, NOW);
    written(&store, &mut kept, advance).await;
    child.acknowledge("completed");
}

async fn claimed(store: &Store) -> Kept {
    let claimed = store.claim(claim_of("w", 1, NOW), begin()).await.unwrap().jobs;
    assert_eq!(claimed[0].before.job.id, id(1));
    after(&claimed[0])
}

async fn written(store: &Store, kept: &mut Kept, advance: Advance) {
    assert_eq!(store.advance(advance.clone()).await.unwrap(), Advanced::Written);
    kept.apply(&advance);
}

#[test]
fn everything_of_a_move_or_nothing_at_every_point() {
    let mut seen = [0_u32; STAGES.len() + 1];
    let points = crash::every_point(
        "crash::everything_of_a_move_or_nothing_at_every_point",
        |child| block_on(work(child)),
        |left| seen[block_on(judge(left))] += 1,
    );
    assert!(points > 50, "only {points} crash points");
    assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
}

/// What a dead process left, as a new one finds it. Gives how far it got.
async fn judge(left: &Left) -> usize {
    let point = left.point;
    let file = Arc::new(Sqlite::open(&sqlite_options(&left.folder)).unwrap());
    let count = |sql: &'static str| {
        let file = Arc::clone(&file);
        async move { file.read(|tx| Ok(tx.query_row(sql, [], |row| row.get(0))?)).await.unwrap() }
    };
    let store = Store::Sqlite(SqliteStore::new(Arc::clone(&file)));
    let (first, second) = (store.job(id(1)).await.unwrap(), store.job(id(2)).await.unwrap());
    let lines: i64 = count("SELECT count(*) FROM ledger").await;
    let executions: i64 = count("SELECT count(*) FROM execution_log").await;
    let grants: i64 = count("SELECT count(*) FROM nonce_use").await;
    let Some(first) = first else {
        assert_eq!((lines, executions, grants), (0, 0, 0), "half there at {point:?}");
        assert!(left.acknowledged.is_empty(), "lost at {point:?}");
        return 0;
    };
    let entries = usize::try_from(first.job.state.entries).unwrap();
    assert!(entries >= left.acknowledged.len(), "an acknowledged move is lost at {point:?}");
    let stage = &STAGES[entries - 1];
    let state = &first.job.state;
    assert_eq!((state.status, state.fence), (stage.status, stage.fence), "{point:?}");
    let logged: Vec<(&str, &str)> =
        first.executions.iter().map(|line| (&*line.step_id, line.status.as_str())).collect();
    assert_eq!(logged, stage.executions, "{point:?}");
    assert_eq!(grants, stage.grants, "{point:?}");
    // The first line of each is the job itself.
    let others = second.as_ref().map_or(0, |second| second.job.state.entries - 1);
    assert_eq!(lines, first.job.state.entries - 1 + others, "{point:?}");
    if let Some(second) = second {
        assert_eq!(second.job.state.ready, stage.next_is_ready, "{point:?}");
    }
    entries
}

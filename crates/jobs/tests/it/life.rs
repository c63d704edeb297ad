//! Every status and every event through the real statements, and every row of the dispatch table on
//! a real row.

use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::hex::Hex;
use semel_jobs::dispatch::{Attempts, Content, Dispatch, ExecutionStatus, Logged, dispatch};
use semel_jobs::gear::manifest::Recovery;
use semel_jobs::life::{JOB, JobEvent, JobStatus, next};
use semel_jobs::limits::ATTEMPTS_MAX;
use semel_jobs::store::{Advanced, Ended, Execution, Kept};
use semel_testkit::tables::{Life, Moved, database_moves_as_told};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::support::{
    NOW, World, completed, failed, id, moved, new_job, on_postgres, on_sqlite, started,
};

/// A job that stands there.
async fn seeded(world: &World, status: JobStatus) -> Kept {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let number = u128::from(NUMBERS.fetch_add(1, Ordering::SeqCst));
    world.made(new_job(number)).await;
    let mut kept = world.kept(id(number)).await;
    if status != JobStatus::Pending {
        let advance = moved(&kept, status, NOW);
        assert_eq!(world.store.advance(advance).await.unwrap(), Advanced::Written);
        kept = world.kept(id(number)).await;
    }
    kept
}

/// Writes what an engine would that believes the event to be possible.
async fn drive(world: &World, from: JobStatus, event: JobEvent) -> Moved<JobStatus> {
    let kept = seeded(world, from).await;
    let believed = JOB.iter().find(|(_, happens, _)| *happens == event).unwrap();
    let (believed, to) = match next(from, event) {
        Some(to) => (from, to),
        None => (believed.0, believed.2),
    };
    let mut advance = moved(&kept, to, NOW);
    advance.from = believed;
    let said = world.store.advance(advance).await.unwrap();
    let after = world.kept(kept.job.id).await;
    match said {
        Advanced::Written => Moved::To(after.job.state.status),
        Advanced::Lost => {
            assert_eq!(after, kept, "it was touched");
            Moved::Refused
        }
    }
}

fn walks_the_table(world: &World) {
    let life = Life {
        rows: JOB,
        states: JobStatus::ALL,
        events: JobEvent::ALL,
        initial: JobStatus::Pending,
        terminal: &[JobStatus::Completed, JobStatus::Failed, JobStatus::Cancelled],
    };
    let walked = database_moves_as_told(&life, |from, event| {
        block_in_place(|| Handle::current().block_on(drive(world, from, event)))
    });
    assert_eq!(walked, JobStatus::ALL.len() * JobEvent::ALL.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_moves_as_the_table_says() {
    walks_the_table(&on_sqlite().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_moves_as_the_table_says() {
    walks_the_table(&on_postgres().await);
}

const LOGGED: [Logged; 5] =
    [Logged::Nothing, Logged::Completed, Logged::Crashed, Logged::Failed, Logged::Uncertain];

/// A job whose step has this line in the log.
async fn logged(world: &World, logged: Logged, attempts: u32) -> Kept {
    let kept = seeded(world, JobStatus::Executing).await;
    if logged == Logged::Nothing {
        return kept;
    }
    let mut advance = moved(&kept, JobStatus::Executing, NOW);
    advance.started = vec![started("fetch", 1, attempts)];
    assert_eq!(world.store.advance(advance).await.unwrap(), Advanced::Written);
    let ended: Option<Ended> = match logged {
        Logged::Nothing | Logged::Crashed => None,
        Logged::Completed => Some(completed("fetch")),
        Logged::Failed => Some(failed("fetch", true)),
        Logged::Uncertain => Some(failed("fetch", false)),
    };
    if let Some(ended) = ended {
        let mut advance = moved(&world.kept(kept.job.id).await, JobStatus::Executing, NOW);
        advance.ended = vec![ended];
        assert_eq!(world.store.advance(advance).await.unwrap(), Advanced::Written);
    }
    world.kept(kept.job.id).await
}

/// What a row says, as the dispatch table asks for it.
fn read(line: Option<&Execution>, fingerprint: u8) -> (Logged, Content, Attempts) {
    let Some(line) = line else { return (Logged::Nothing, Content::Same, Attempts::Left) };
    let logged = match (line.status, line.certain) {
        (ExecutionStatus::Completed, _) => Logged::Completed,
        (ExecutionStatus::Started, _) => Logged::Crashed,
        (ExecutionStatus::Failed, true) => Logged::Failed,
        (ExecutionStatus::Failed, false) => Logged::Uncertain,
    };
    let same = line.fingerprint == Hex([fingerprint; 32]);
    let content = if same { Content::Same } else { Content::Other };
    let spent = line.attempts >= ATTEMPTS_MAX;
    (logged, content, if spent { Attempts::Spent } else { Attempts::Left })
}

pub(crate) async fn every_dispatch_rests_on_a_row(world: &World) {
    for what in LOGGED {
        for (attempts, left) in [(1, Attempts::Left), (ATTEMPTS_MAX, Attempts::Spent)] {
            let kept = logged(world, what, attempts).await;
            for (fingerprint, content) in [(1, Content::Same), (2, Content::Other)] {
                let seen = read(kept.executions.first(), fingerprint);
                let told = (what, content, left);
                if what != Logged::Nothing {
                    assert_eq!(seen, told);
                }
                for recovery in [Recovery::Idempotent, Recovery::Resolve, Recovery::Ask] {
                    let does = dispatch(seen.0, seen.1, seen.2, recovery);
                    assert_eq!(does, dispatch(told.0, told.1, told.2, recovery));
                    follow(world, &kept, fingerprint, does).await;
                }
            }
        }
    }
}

/// A start that the table allows is written; one that it refuses is an error of the store, too.
async fn follow(world: &World, kept: &Kept, fingerprint: u8, does: Dispatch) {
    let mut advance = moved(kept, JobStatus::Executing, NOW);
    advance.started = vec![started("fetch", fingerprint, 1)];
    match does {
        // Written by another case: here it would change the row under the others.
        Dispatch::Start | Dispatch::Resolve | Dispatch::Ask | Dispatch::GiveUp => {}
        Dispatch::Recorded | Dispatch::Refuse | Dispatch::Close => {
            let refused = world.store.advance(advance).await;
            assert!(refused.is_err(), "{does:?}: {refused:?}");
            assert_eq!(world.kept(kept.job.id).await, *kept, "{does:?}");
        }
    }
}

pub(crate) async fn an_execution_is_begun_only_where_it_may(world: &World) {
    for what in LOGGED {
        for fingerprint in [1, 2] {
            let kept = logged(world, what, 1).await;
            let mut advance = moved(&kept, JobStatus::Executing, NOW);
            advance.started = vec![started("fetch", fingerprint, 2)];
            let said = world.store.advance(advance.clone()).await;
            let may = match what {
                Logged::Nothing => true,
                Logged::Completed | Logged::Crashed => false,
                Logged::Failed | Logged::Uncertain => fingerprint == 1,
            };
            assert_eq!(said.is_ok(), may, "{what:?} {fingerprint}: {said:?}");
            let mut told = kept.clone();
            if may {
                told.apply(&advance);
            }
            assert_eq!(world.kept(kept.job.id).await, told, "{what:?} {fingerprint}");
        }
    }
    // Closed as crashed and begun anew in one move, as recovery does it; and closed twice.
    let kept = logged(world, Logged::Crashed, 1).await;
    let mut advance = moved(&kept, JobStatus::Executing, NOW);
    advance.ended = vec![failed("fetch", true), failed("fetch", false)];
    advance.started = vec![started("fetch", 1, 2)];
    assert_eq!(world.store.advance(advance.clone()).await.unwrap(), Advanced::Written);
    let mut told = kept.clone();
    told.apply(&advance);
    assert_eq!(world.kept(kept.job.id).await, told);
}

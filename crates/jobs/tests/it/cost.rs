//! What a claim costs does not grow with what waits (jobs.md §2).

use std::time::Duration;

use futures_util::future::join_all;
use semel_jobs::life::JobStatus;

use crate::support::{Database, NOW, World, after, moved, new_job, on_postgres, on_sqlite};

/// Jobs that wait, each alone or all in one conversation.
const WAITING: &str = "
    WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 50000)
    INSERT INTO jobs.job (id, root_id, depth, source, priority, conversation, carries_plan,
                          fingerprint, created_at, status, ready, budget_ms, entries)
    SELECT {id}, {id}, 0, 'api', 2, {conversation}, FALSE, {hash}, 1, 'pending', {ready}, 1, 0
      FROM n";

async fn plant(world: &World, offset: &str, conversation: &str, ready: &str) {
    let number = format!("(n + {offset})");
    let (id, hash) = match &world.database {
        Database::Sqlite(..) => {
            (format!("unhex(printf('%032x', {number}))"), "zeroblob(32)".to_owned())
        }
        Database::Postgres(..) => (
            format!("lpad(to_hex({number}), 32, '0')::uuid"),
            "decode(repeat('01', 32), 'hex')".to_owned(),
        ),
    };
    let sql = WAITING.replace("{id}", &id).replace("{hash}", &hash);
    let sql = sql.replace("{conversation}", conversation).replace("{ready}", ready);
    world.plant(&sql).await;
}

fn statements(world: &World) -> u64 {
    match &world.database {
        Database::Sqlite(..) => 0,
        Database::Postgres(pool, _) => pool.statements_sent(),
    }
}

/// Statements of a claim, and of moves that came at once.
async fn spent(world: &World, limit: u32) -> u64 {
    let before = statements(world);
    let claimed = world.claim("w", limit, NOW).await;
    assert_eq!(claimed.len(), usize::try_from(limit).unwrap());
    let spent = statements(world) - before;
    let moves = claimed.iter().map(|job| moved(&after(job), JobStatus::Executing, NOW));
    let moves = join_all(moves.map(|advance| world.store.advance(advance))).await;
    assert!(moves.iter().all(Result::is_ok));
    spent
}

async fn a_claim_is_flat(world: &World) {
    for number in 0..200 {
        world.made(new_job(1 << 64 | number)).await;
    }
    let few = spent(world, 1).await;
    assert_eq!(spent(world, 50).await, few, "of one and of fifty");
    plant(world, "0", "NULL", "TRUE").await;
    plant(world, "100000", "'one'", "FALSE").await;
    assert_eq!(spent(world, 1).await, few);
    assert_eq!(spent(world, 64).await, few);
    let due_in = world.store.next_due(NOW, Vec::new(), None).await.unwrap();
    assert_eq!(due_in, Some(Duration::ZERO));
    assert!(world.store.depth().await.unwrap().0 > 99_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_flat_on_sqlite() {
    a_claim_is_flat(&on_sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_flat_on_postgres() {
    let world = on_postgres().await;
    a_claim_is_flat(&world).await;
    // Moves that come at once share transactions: far fewer statements than moves.
    let claimed = world.claim("w", 64, NOW).await;
    let before = statements(&world);
    let moves = claimed.iter().map(|job| moved(&after(job), JobStatus::Executing, NOW));
    join_all(moves.map(|advance| world.store.advance(advance))).await;
    let spent = statements(&world) - before;
    assert!(spent <= 30, "{spent} statements for 64 moves");
}

//! PostgreSQL: honest commits, repeated transactions, round trips, migrations.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use semel_store::migration::{Migration, MigrationSet};
use semel_store::postgres::{Asked, Heard, Postgres, PostgresOptions, Transaction};
use semel_store::{Fate, OpenError, StoreError};
use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers;
use tokio::sync::Barrier;

use crate::support::ITEMS;

const PUT: &str = "INSERT INTO item (key, value) VALUES ($1, $2)";
const COUNT: &str = "SELECT count(*) FROM item";
const ADD: &str = "UPDATE item SET value = value + $2 WHERE key = $1";

async fn open(address: &str) -> Postgres {
    Postgres::open(PostgresOptions::new(address), &[ITEMS], 0).await.unwrap()
}

async fn fresh() -> Postgres {
    open(&servers::fresh_postgres().await).await
}

async fn put_in_tx(tx: &Transaction, key: &str) -> Result<(), StoreError> {
    tx.execute(PUT, &[&key, &1_i64]).await.map(drop)
}

async fn put(postgres: &Postgres, key: &str) -> Result<(), StoreError> {
    let tx = postgres.begin().await?;
    put_in_tx(&tx, key).await?;
    tx.commit().await
}

async fn number(postgres: &Postgres, sql: &str) -> i64 {
    let tx = postgres.snapshot().await.unwrap();
    tx.query_opt(sql, &[]).await.unwrap().unwrap().get(0)
}

async fn count(postgres: &Postgres) -> i64 {
    number(postgres, COUNT).await
}

/// A store that reaches its server through a proxy, and one that reaches it directly.
async fn proxied(answer_timeout: Duration) -> (Proxy, Postgres, Postgres) {
    let address = servers::fresh_postgres().await;
    let config: tokio_postgres::Config = address.parse().unwrap();
    let server = format!("127.0.0.1:{}", config.get_ports()[0]);
    let proxy = Proxy::start(server.parse().unwrap()).await;
    let direct = open(&address).await;
    let through = address.replace(&server, &proxy.address().to_string());
    let mut options = PostgresOptions::new(through);
    options.answer_timeout = answer_timeout;
    options.pool_max = 1;
    let through = Postgres::open(options, &[ITEMS], 0).await.unwrap();
    (proxy, through, direct)
}

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_commit_whose_request_or_answer_is_lost_is_uncertain() {
    for (fault, rows) in [(Fault::CutBefore, 0), (Fault::CutAfter, 1)] {
        let (proxy, postgres, direct) = proxied(LONG).await;
        proxy.fail_next("COMMIT", fault);
        let error = put(&postgres, "a").await.expect_err("no answer came");
        assert_eq!(error.fate(), Fate::Uncertain, "{fault:?}: {error:?}");
        assert_eq!(proxy.fired(), 1);
        assert_eq!(count(&direct).await, rows, "{fault:?}");
        put(&postgres, "b").await.expect("the next one gets a new connection");
    }
}

#[tokio::test]
async fn a_commit_without_an_answer_in_time_is_uncertain() {
    let (proxy, postgres, direct) = proxied(Duration::from_millis(500)).await;
    proxy.fail_next("COMMIT", Fault::Stall);
    let error = put(&postgres, "a").await.expect_err("no answer came");
    assert_eq!(error.fate(), Fate::Uncertain, "{error:?}");
    assert_eq!(count(&direct).await, 1);
}

#[tokio::test]
async fn a_connection_lost_before_commit_is_undone() {
    for fault in [Fault::CutBefore, Fault::CutAfter, Fault::Stall] {
        let limit = if fault == Fault::Stall { Duration::from_millis(500) } else { LONG };
        let (proxy, postgres, direct) = proxied(limit).await;
        put(&postgres, "first").await.unwrap();
        // The statement is prepared by now, so its key travels with its execution.
        proxy.fail_next("doomed", fault);
        let error = put(&postgres, "doomed").await.expect_err("cut");
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
        assert_eq!(error.fate(), Fate::Undone);
        assert_eq!(count(&direct).await, 1);
        put(&postgres, "second").await.expect("the pool recovers");
    }
}

#[tokio::test]
async fn a_statement_that_is_its_own_transaction_is_as_honest_as_a_commit() {
    for (fault, left) in [(Fault::CutBefore, 1), (Fault::CutAfter, 2), (Fault::Stall, 2)] {
        let limit = if fault == Fault::Stall { Duration::from_millis(500) } else { LONG };
        let (proxy, postgres, direct) = proxied(limit).await;
        let put = async |key: &str| postgres.write(PUT, &[&key, &1_i64]).await.map(drop);
        put("first").await.unwrap();
        assert_eq!(count(&direct).await, 1, "it is there when it is answered");
        let turns = proxy.turns();
        let refused = put("first").await.expect_err("the key is taken");
        assert_eq!((refused.fate(), proxy.turns() - turns), (Fate::Undone, 1), "{refused:?}");
        proxy.fail_next("doomed", fault);
        let error = put("doomed").await.expect_err("no answer came");
        assert_eq!(error.fate(), Fate::Uncertain, "{fault:?}: {error:?}");
        assert_eq!(count(&direct).await, left, "{fault:?}");
    }
}

#[tokio::test]
async fn a_transaction_in_one_round_trip_is_as_honest_as_a_commit() {
    for (fault, left) in [(Fault::CutBefore, 2), (Fault::CutAfter, 4), (Fault::Stall, 4)] {
        let limit = if fault == Fault::Stall { Duration::from_millis(500) } else { LONG };
        let (proxy, postgres, direct) = proxied(limit).await;
        let both = async |one: &str, two: &str| {
            let puts: [Asked<'_>; 2] = [(PUT, &[&one, &1_i64]), (PUT, &[&two, &1_i64])];
            postgres.transact(&puts).await.map(drop)
        };
        both("first", "second").await.unwrap();
        assert_eq!(count(&direct).await, 2, "they are there when they are answered");
        let turns = proxy.turns();
        let refused = both("third", "first").await.expect_err("the key is taken");
        assert_eq!((refused.fate(), proxy.turns() - turns), (Fate::Undone, 1), "{refused:?}");
        assert_eq!(count(&direct).await, 2, "all of them or none");
        proxy.fail_next("doomed", fault);
        let error = both("doomed", "with it").await.expect_err("no answer came");
        assert_eq!(error.fate(), Fate::Uncertain, "{fault:?}: {error:?}");
        assert_eq!(count(&direct).await, left, "{fault:?}");
    }
}

/// A statement that writes in the round trip of BEGIN.
const PUT_IN_TX: &str = "INSERT INTO item (key, value)
                         SELECT $1, $2 WHERE current_setting('semel.tx', true) = 'on'";

/// A cancelled query is enough for it.
#[tokio::test]
async fn a_transaction_that_was_refused_to_begin_has_written_nothing() {
    for (refused, rows) in [(1, 1), (2, 0)] {
        let (proxy, postgres, direct) = proxied(LONG).await;
        let begun = async |key: &str| {
            let asked: [Asked<'_>; 2] = [(PUT_IN_TX, &[&key, &1_i64]), (COUNT, &[])];
            let (tx, mut rows) = postgres.begin_with(&asked).await?;
            let seen: i64 = rows.pop().unwrap()[0].get(0);
            tx.commit().await.map(|()| seen)
        };
        assert_eq!(begun("first").await.unwrap(), 1, "it is in its transaction");
        match refused {
            1 => proxy.fail_next("BEGIN", Fault::Spoil),
            _ => proxy.fail_always("BEGIN", Fault::Spoil),
        }
        match begun("second").await {
            Ok(seen) => assert_eq!((refused, seen), (1, 2), "tried again, on another connection"),
            Err(error) => assert_eq!((refused, error.fate()), (2, Fate::Uncertain), "{error:?}"),
        }
        assert_eq!(proxy.fired(), refused);
        assert_eq!(count(&direct).await, 1 + rows);
        proxy.fail_next("nothing has these bytes", Fault::Spoil);
        assert_eq!(begun("third").await.unwrap(), 2 + rows);
    }
}

#[tokio::test]
async fn a_transaction_in_one_round_trip_that_was_refused_to_begin_has_written_nothing() {
    let (proxy, postgres, direct) = proxied(LONG).await;
    let both = async |one: &str, two: &str| {
        let puts: [Asked<'_>; 2] = [(PUT_IN_TX, &[&one, &1_i64]), (PUT_IN_TX, &[&two, &1_i64])];
        postgres.transact(&puts).await.map(drop)
    };
    both("first", "second").await.unwrap();
    proxy.fail_next("BEGIN", Fault::Spoil);
    let error = both("third", "fourth").await.expect_err("it was not begun");
    assert_eq!(error.fate(), Fate::Uncertain, "{error:?}");
    assert_eq!(count(&direct).await, 2);
    both("third", "fourth").await.unwrap();
}

/// COMMIT that is refused (cancelled) leaves a transaction that can only fail. Nobody else is to
/// hear of it.
#[tokio::test]
async fn a_connection_whose_commit_was_refused_spoils_nothing_after_it() {
    for way in 0..4 {
        let (proxy, postgres, direct) = proxied(LONG).await;
        postgres.write(PUT, &[&"warm", &1_i64]).await.unwrap();
        let (key, taken): (&str, &str) = ("refused", "warm");
        let refused = async || match way {
            0 => put(&postgres, key).await,
            1 => {
                let tx = postgres.begin().await?;
                tx.commit_with(&[(PUT, &[&key, &1_i64])]).await.map(drop)
            }
            // A statement fails as well, and is what the caller hears of.
            2 => {
                let tx = postgres.begin().await?;
                tx.commit_with(&[(PUT, &[&taken, &1_i64])]).await.map(drop)
            }
            _ => postgres.transact(&[(PUT_IN_TX, &[&key, &1_i64])]).await.map(drop),
        };
        proxy.fail_next("COMMIT", Fault::Spoil);
        let error = refused().await.expect_err("it was not committed");
        assert_eq!((error.fate(), proxy.fired()), (Fate::Undone, 1), "{way}: {error:?}");
        for n in 0..100 {
            let key = format!("{n}");
            let written = postgres.write(PUT, &[&key, &1_i64]).await;
            assert!(written.is_ok(), "{way}, {n}: {written:?}");
        }
        assert_eq!(count(&direct).await, 101, "{way}");
    }
}

/// It accepts the connection and says nothing: that is given up, and tried again.
#[tokio::test]
async fn a_listener_does_not_wait_for_a_silent_server_for_ever() {
    let (proxy, postgres, _) = proxied(Duration::from_millis(500)).await;
    proxy.fail_next("semel listener", Fault::Stall);
    let (_notifier, mut listener) = postgres.listen("hints").unwrap();
    assert_eq!(listener.next().await.unwrap(), Heard::Lost);
    assert!(proxy.fired() > 0);
    proxy.fail_next("nothing has these bytes", Fault::Stall);
    while listener.next().await.unwrap() != Heard::Connected {}
}

#[tokio::test]
async fn statements_polled_together_share_a_round_trip() {
    let (proxy, postgres, _) = proxied(LONG).await;
    let five = async || {
        let tx = postgres.begin().await?;
        let one = async |n: i64| tx.query("SELECT $1::bigint + 1", &[&n]).await;
        let (a, b, c, d, e) = tokio::try_join!(one(0), one(1), one(2), one(3), one(4))?;
        let sums: Vec<i64> = [a, b, c, d, e].iter().map(|rows| rows[0].get(0)).collect();
        assert_eq!(sums, [1, 2, 3, 4, 5]);
        tx.commit().await
    };
    five().await.unwrap();
    let (turns, statements) = (proxy.turns(), postgres.statements_sent());
    five().await.unwrap();
    assert_eq!(postgres.statements_sent() - statements, 5);
    assert_eq!(proxy.turns() - turns, 3, "BEGIN, five statements, COMMIT");
}

#[tokio::test]
async fn a_transaction_whose_failed_statement_was_overlooked_is_not_committed() {
    let postgres = fresh().await;
    let tx = postgres.begin().await.unwrap();
    put_in_tx(&tx, "a").await.unwrap();
    assert!(put_in_tx(&tx, "a").await.is_err(), "the key is taken");
    let error = tx.commit().await.expect_err("COMMIT would have answered ROLLBACK");
    assert!(matches!(error, StoreError::RolledBack { .. }), "{error:?}");
    assert_eq!(count(&postgres).await, 0);
}

#[tokio::test]
async fn a_transaction_whose_statement_was_given_up_is_not_committed() {
    let postgres = fresh().await;
    let tx = postgres.begin().await.unwrap();
    let mut given_up = Box::pin(put_in_tx(&tx, "a"));
    assert!(futures_util::poll!(&mut given_up).is_pending());
    drop(given_up);
    let error = tx.commit().await.expect_err("nobody knows what the statement did");
    assert!(matches!(error, StoreError::RolledBack { .. }), "{error:?}");
    assert_eq!(count(&postgres).await, 0);
}

#[tokio::test]
async fn a_constraint_that_fails_at_commit_is_undone() {
    let postgres = fresh().await;
    let tx = postgres.begin().await.unwrap();
    let table = "CREATE TABLE late (x INT UNIQUE DEFERRABLE INITIALLY DEFERRED)";
    tx.execute(table, &[]).await.unwrap();
    tx.execute("INSERT INTO late VALUES (1), (1)", &[]).await.unwrap();
    let error = tx.commit().await.expect_err("two equal values");
    assert!(matches!(error, StoreError::Postgres(_)), "{error:?}");
    assert_eq!(error.fate(), Fate::Undone);
}

/// Locks two rows in this order, and meets the other transaction in between on the first run.
/// Returns how often it ran.
async fn cross(postgres: &Postgres, meet: &Barrier, keys: [&str; 2]) -> u32 {
    let runs = AtomicU32::new(0);
    let write = postgres.retry(async || {
        let first_run = runs.fetch_add(1, SeqCst) == 0;
        let tx = postgres.begin().await?;
        tx.execute(ADD, &[&keys[0], &1_i64]).await?;
        if first_run {
            meet.wait().await;
        }
        tx.execute(ADD, &[&keys[1], &1_i64]).await?;
        tx.commit().await
    });
    write.await.unwrap();
    runs.load(SeqCst)
}

#[tokio::test]
async fn a_deadlock_is_run_again() {
    let postgres = fresh().await;
    put(&postgres, "a").await.unwrap();
    put(&postgres, "b").await.unwrap();
    let meet = Barrier::new(2);
    let (one, other) =
        tokio::join!(cross(&postgres, &meet, ["a", "b"]), cross(&postgres, &meet, ["b", "a"]));
    assert_eq!(one + other, 3, "one of them ran twice");
    assert_eq!(number(&postgres, "SELECT sum(value)::bigint FROM item").await, 6);
}

#[tokio::test]
async fn a_serialization_failure_is_run_again() {
    let postgres = fresh().await;
    put(&postgres, "a").await.unwrap();
    let (meet, runs) = (Barrier::new(2), AtomicU32::new(0));
    let increment = || {
        postgres.retry(async || {
            let run = runs.fetch_add(1, SeqCst);
            let tx = postgres.begin().await?;
            tx.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", &[]).await?;
            let rows = tx.query("SELECT value FROM item WHERE key = 'a'", &[]).await?;
            let value: i64 = rows[0].get(0);
            if run < 2 {
                meet.wait().await;
            }
            let sql = "UPDATE item SET value = $1 WHERE key = 'a'";
            tx.execute(sql, &[&(value + 1)]).await?;
            tx.commit().await
        })
    };
    let (one, other) = tokio::join!(increment(), increment());
    one.and(other).unwrap();
    let value = number(&postgres, "SELECT value FROM item WHERE key = 'a'").await;
    assert_eq!(value, 3, "no increment was lost");
    assert!(runs.load(SeqCst) > 2);
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_no_open_transaction_behind() {
    let mut options = PostgresOptions::new(servers::fresh_postgres().await);
    options.pool_max = 1;
    let postgres = Postgres::open(options, &[ITEMS], 0).await.unwrap();
    let inserted = tokio::sync::Notify::new();
    let leaving = async {
        let tx = postgres.begin().await.unwrap();
        put_in_tx(&tx, "orphan").await.unwrap();
        inserted.notify_one();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = leaving => panic!("it never ends by itself"),
        () = inserted.notified() => {}
    }
    put(&postgres, "next").await.expect("the only connection is free again");
    assert_eq!(count(&postgres).await, 1);
    put(&postgres, "orphan").await.expect("its lock and its row are gone");
}

#[tokio::test]
async fn a_transaction_can_run_in_a_task_of_its_own() {
    let postgres = fresh().await;
    let task = tokio::spawn({
        let postgres = postgres.clone();
        let key = String::from("spawned");
        async move { postgres.retry(|| put(&postgres, &key)).await }
    });
    task.await.unwrap().unwrap();
    assert_eq!(count(&postgres).await, 1);
}

#[tokio::test]
async fn a_server_that_may_forget_is_refused() {
    let address = servers::fresh_postgres().await;
    let lax = format!("{address}?options=-c%20synchronous_commit%3Doff");
    let refused = Postgres::open(PostgresOptions::new(lax), &[ITEMS], 0).await.map(drop);
    let unfit = matches!(refused, Err(OpenError::Unfit { setting: "synchronous_commit", .. }));
    assert!(unfit, "{refused:?}");
    let nobody = Postgres::open(PostgresOptions::new("postgres://x@127.0.0.1:1/x"), &[], 0).await;
    assert!(matches!(nobody.map(drop), Err(OpenError::Unreachable(_))));
}

#[tokio::test]
async fn many_openers_migrate_once() {
    let address = servers::fresh_postgres().await;
    let openers = (0..8).map(|_| open(&address));
    let opened = futures_util::future::join_all(openers).await;
    let sql = "SELECT count(*) FROM public.semel_schema_migration";
    assert_eq!(number(&opened[0], sql).await, 1);
}

#[tokio::test]
async fn a_newer_or_changed_schema_is_refused_and_a_failed_migration_undone() {
    const OLD: MigrationSet = MigrationSet { component: "items", migrations: &[] };
    const CHANGED: MigrationSet = MigrationSet {
        component: "items",
        migrations: &[Migration { version: 1, name: "items", sql: "CREATE TABLE other (x INT)" }],
    };
    const BROKEN: MigrationSet = MigrationSet {
        component: "broken",
        migrations: &[Migration {
            version: 1,
            name: "broken",
            sql: "CREATE TABLE half (x INT); GARBAGE",
        }],
    };
    let address = servers::fresh_postgres().await;
    let postgres = open(&address).await;
    let reopen =
        async |set| Postgres::open(PostgresOptions::new(&address), &[set], 0).await.map(drop);
    assert!(matches!(reopen(OLD).await, Err(OpenError::Newer { found: 1, known: 0, .. })));
    let changed = reopen(CHANGED).await;
    assert!(matches!(changed, Err(OpenError::MigrationChanged { version: 1, .. })));
    assert!(matches!(reopen(BROKEN).await, Err(OpenError::Postgres(_))));
    let sql = "SELECT count(*) FROM pg_tables WHERE tablename IN ('half', 'other')";
    assert_eq!(number(&postgres, sql).await, 0);
}

/// What somebody has cancelled can be asked for again; what makes no sense cannot.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_that_passes_is_told_from_one_that_does_not() {
    let postgres = open(&servers::fresh_postgres().await).await;
    let cancelled = "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(60)";
    assert!(postgres.read(cancelled, &[]).await.unwrap_err().passes());
    assert!(!postgres.read("SELECT nothing", &[]).await.unwrap_err().passes());
}

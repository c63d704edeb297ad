//! Any interleaving of callers through the writer equals running the same writes one by one.

use proptest::prelude::*;
use rusqlite::Connection;
use semel_store::StoreError;
use semel_store::migration::{Migration, MigrationSet};
use semel_store::sqlite::{Sqlite, SqliteOptions};

const CELLS: MigrationSet = MigrationSet {
    component: "cells",
    migrations: &[Migration {
        version: 1,
        name: "cells",
        sql: "CREATE TABLE cell (key INTEGER PRIMARY KEY, value INTEGER NOT NULL);
              CREATE TABLE turn (n INTEGER NOT NULL);
              INSERT INTO turn VALUES (0);",
    }],
};

/// What a caller does in one write. Every answer depends on what was written before.
#[derive(Debug, Clone)]
enum Op {
    Add {
        key: i64,
        amount: i64,
    },
    Remove {
        key: i64,
    },
    /// Writes, and then fails.
    AddAndFail {
        key: i64,
    },
    /// Writes, and then panics.
    AddAndPanic {
        key: i64,
    },
    /// Breaks a constraint after having written.
    AddAndViolate {
        key: i64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..6_i64;
    prop_oneof![
        4 => (key.clone(), 1..100_i64).prop_map(|(key, amount)| Op::Add { key, amount }),
        2 => key.clone().prop_map(|key| Op::Remove { key }),
        1 => key.clone().prop_map(|key| Op::AddAndFail { key }),
        1 => key.clone().prop_map(|key| Op::AddAndPanic { key }),
        1 => key.prop_map(|key| Op::AddAndViolate { key }),
    ]
}

const ADD: &str = "INSERT INTO cell (key, value) VALUES (?1, ?2)
                   ON CONFLICT (key) DO UPDATE SET value = value + excluded.value
                   RETURNING value";

/// The answer and the turn it was given at; an error leaves no turn.
fn apply(connection: &Connection, op: &Op) -> Result<(i64, i64), StoreError> {
    let add = |key: i64, amount: i64| {
        connection.query_row(ADD, (key, amount), |row| row.get::<_, i64>(0))
    };
    let answer = match op {
        Op::Add { key, amount } => add(*key, *amount)?,
        Op::Remove { key } => {
            let sql = "DELETE FROM cell WHERE key = ?1";
            i64::try_from(connection.execute(sql, [key])?).unwrap()
        }
        Op::AddAndFail { key } => {
            add(*key, 1_000_000)?;
            return Err(StoreError::Busy);
        }
        Op::AddAndPanic { key } => {
            add(*key, 1_000_000)?;
            panic!("on purpose");
        }
        Op::AddAndViolate { key } => {
            add(*key, 1_000_000)?;
            connection.execute("INSERT INTO cell (key, value) VALUES (99, NULL)", [])?;
            unreachable!("the column refuses NULL");
        }
    };
    let sql = "UPDATE turn SET n = n + 1 RETURNING n";
    Ok((connection.query_row(sql, [], |row| row.get(0))?, answer))
}

fn rows(connection: &Connection) -> Vec<(i64, i64)> {
    let mut statement = connection.prepare("SELECT key, value FROM cell ORDER BY key").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

/// The writes that succeeded, each with its turn and its answer, and the rows they left.
async fn through_the_writer(callers: Vec<Vec<Op>>) -> (Vec<(i64, i64, Op)>, Vec<(i64, i64)>) {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(
        folder.path().join("cells.db"),
        1,
        vec![CELLS],
        0,
        std::sync::Arc::new(|error| panic!("{error}")),
    );
    let store = std::sync::Arc::new(Sqlite::open(&options).unwrap());
    let mut tasks = tokio::task::JoinSet::new();
    for ops in callers {
        let store = std::sync::Arc::clone(&store);
        tasks.spawn(async move {
            let mut answered = Vec::new();
            for op in ops {
                let (own, succeeds) =
                    (op.clone(), matches!(op, Op::Add { .. } | Op::Remove { .. }));
                let answer = store.write(move |tx| apply(tx, &own)).await;
                assert_eq!(answer.is_ok(), succeeds, "{op:?} {answer:?}");
                answered.extend(answer.ok().map(|(turn, answer)| (turn, answer, op)));
            }
            answered
        });
    }
    let mut answered: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    answered.sort_by_key(|(turn, ..)| *turn);
    let rows = store.read(|connection| Ok(rows(connection))).await.unwrap();
    (answered, rows)
}

/// The same writes, in the order of their turns, each in a transaction of its own.
fn one_by_one(writes: &[(i64, i64, Op)]) -> (Vec<i64>, Vec<(i64, i64)>) {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(CELLS.migrations[0].sql).unwrap();
    let answers = writes.iter().map(|(_, _, op)| apply(&connection, op).unwrap().1).collect();
    (answers, rows(&connection))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn equal_running_them_one_by_one(
        callers in prop::collection::vec(prop::collection::vec(op(), 1..12), 1..9),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build();
        let runtime = runtime.unwrap();
        let (grouped, grouped_rows) = runtime.block_on(through_the_writer(callers));
        let (answers, rows) = one_by_one(&grouped);
        let turns: Vec<i64> = grouped.iter().map(|(turn, ..)| *turn).collect();
        prop_assert_eq!(turns, (1..=i64::try_from(grouped.len()).unwrap()).collect::<Vec<_>>());
        prop_assert_eq!(grouped.iter().map(|(_, answer, _)| *answer).collect::<Vec<_>>(), answers);
        prop_assert_eq!(grouped_rows, rows);
    }
}

//! What both stores promise, as one suite.

use semel_store::StoreError;
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_store::sqlite::Sqlite;
use semel_testkit::conformance::{Case, conforms};
use semel_testkit::servers;

use crate::support::{self, ITEMS};

/// Either store, with the one table of these tests.
enum Store {
    Sqlite(Sqlite, #[expect(dead_code, reason = "kept until the store is gone")] tempfile::TempDir),
    Postgres(Postgres),
}

/// How a write ends after its row was inserted.
#[derive(Clone, Copy)]
enum Then {
    Commit,
    Fail,
}

impl Store {
    /// Inserts unless the key is there; says whether it did.
    async fn put(&self, key: &str, value: i64, then: Then) -> Result<bool, StoreError> {
        let key = key.to_owned();
        let end = move |inserted| match then {
            Then::Commit => Ok(inserted),
            Then::Fail => Err(StoreError::Busy),
        };
        match self {
            Self::Sqlite(sqlite, _) => {
                sqlite.write(move |tx| end(support::put(tx, &key, value)?)).await
            }
            Self::Postgres(postgres) => {
                let sql = "INSERT INTO item (key, value) VALUES ($1, $2) ON CONFLICT DO NOTHING";
                let tx = postgres.begin().await?;
                let inserted = end(tx.execute(sql, &[&key, &value]).await? == 1)?;
                tx.commit().await.map(|()| inserted)
            }
        }
    }

    async fn get(&self, key: &str) -> Option<i64> {
        match self {
            Self::Sqlite(sqlite, _) => support::get(sqlite, key).await,
            Self::Postgres(postgres) => {
                let tx = postgres.snapshot().await.unwrap();
                let row = tx.query_opt("SELECT value FROM item WHERE key = $1", &[&key]).await;
                row.unwrap().map(|row| row.get(0))
            }
        }
    }
}

const CASES: &[Case<Store>] = &[
    Case {
        name: "a committed write is read back",
        run: |store| {
            Box::pin(async move {
                assert!(store.put("a", 1, Then::Commit).await.unwrap());
                assert_eq!(store.get("a").await, Some(1));
                assert_eq!(store.get("b").await, None);
            })
        },
    },
    Case {
        name: "a failed write leaves nothing and takes no key",
        run: |store| {
            Box::pin(async move {
                let failed = store.put("a", 1, Then::Fail).await;
                assert!(matches!(failed, Err(StoreError::Busy)), "{failed:?}");
                assert_eq!(store.get("a").await, None);
                assert!(store.put("a", 2, Then::Commit).await.unwrap());
            })
        },
    },
    Case {
        name: "of many racers for one key exactly one inserts",
        run: |store| {
            Box::pin(async move {
                let racers = (0..32).map(|racer| store.put("a", racer, Then::Commit));
                let answers = futures_util::future::join_all(racers).await;
                let winners: Vec<usize> =
                    (0..32).filter(|n| *answers[*n].as_ref().unwrap()).collect();
                assert_eq!(winners.len(), 1, "{winners:?}");
                assert_eq!(store.get("a").await, Some(i64::try_from(winners[0]).unwrap()));
            })
        },
    },
    Case {
        name: "a name is just a name",
        run: |store| {
            Box::pin(async move {
                let name = "o'brien'); DROP TABLE item; --";
                assert!(store.put(name, 1, Then::Commit).await.unwrap());
                assert_eq!(store.get(name).await, Some(1));
            })
        },
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_conforms() {
    let ran = conforms(CASES, || async {
        let folder = tempfile::tempdir().unwrap();
        Store::Sqlite(support::open(folder.path()), folder)
    });
    assert_eq!(ran.await, CASES.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_conforms() {
    let ran = conforms(CASES, || async {
        let options = PostgresOptions::new(servers::fresh_postgres().await);
        Store::Postgres(Postgres::open(options, &[ITEMS], 0).await.unwrap())
    });
    assert_eq!(ran.await, CASES.len());
}

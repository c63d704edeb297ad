//! `consume_in_tx`: what a grant allows and the using up of the grant are one transaction of
//! somebody else's.

use std::sync::Arc;

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_crypto::keys::KeyPair;
use semel_registrar::decide::Outcome;
use semel_registrar::envelope::{Envelope, validate};
use semel_registrar::grant::{Grant, Nonce};
use semel_registrar::store::{
    Attempt, JOBS_DOMAIN, PostgresStore, SqliteStore, Store, postgres, sqlite,
};
use semel_store::StoreError;
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_store::sqlite::Sqlite;
use semel_testkit::servers;

use crate::support::{NOW, envelope, sqlite_options, with};

/// The approval of a plan, in the domain that is open from the beginning.
fn approval(run: &str) -> Attempt {
    let text = with(&with(&envelope("plan"), "domain", JOBS_DOMAIN), "run_id", run).to_string();
    let valid = validate(Envelope::parse(text.as_bytes()).unwrap(), NOW).unwrap();
    let (authority, key) = (KeyPair::from_secret(&[9; 32]), valid.logical_request_key);
    let window = (NOW, UnixMs(NOW.0 + 1000));
    let grant = Grant::issue(&authority, JOBS_DOMAIN, Nonce(Hex([7; 16])), key, window);
    let (attempt_id, result) = ("a".to_owned(), b"{}".to_vec());
    Attempt { valid, grant, compensates: None, attempt_id, result, now: NOW }
}

#[tokio::test(flavor = "multi_thread")]
async fn consuming_shares_the_callers_transaction_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = Arc::new(Sqlite::open(&sqlite_options(folder.path())).unwrap());
    let store = Store::Sqlite(SqliteStore::new(Arc::clone(&file)));
    store.grant_issue(&approval("r1").grant, NOW).await.unwrap();
    let undone = file.write(|tx| {
        assert_eq!(sqlite::consume_in_tx(tx, &approval("r1"))?.outcome, Outcome::Registered);
        // What it allows goes wrong, and the approval was not used.
        Err::<(), _>(StoreError::Busy)
    });
    assert!(undone.await.is_err());
    let key = approval("r1").valid.logical_request_key;
    assert_eq!(store.effect_find(key).await.unwrap(), None);
    for (run, outcome) in
        [("r1", Outcome::Registered), ("r1", Outcome::Replayed), ("r2", Outcome::NoBypass)]
    {
        let consumed = file.write(move |tx| sqlite::consume_in_tx(tx, &approval(run)));
        assert_eq!(consumed.await.unwrap().outcome, outcome, "{run}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn consuming_shares_the_callers_transaction_on_postgres() {
    let options = PostgresOptions::new(servers::fresh_postgres().await);
    let pool = Postgres::open(options, &[postgres::MIGRATIONS], NOW.0).await.unwrap();
    let store = Store::Postgres(PostgresStore::new(pool.clone()));
    store.grant_issue(&approval("r1").grant, NOW).await.unwrap();
    let tx = pool.begin().await.unwrap();
    let done = postgres::consume_in_tx(&tx, &approval("r1")).await.unwrap();
    assert_eq!(done.outcome, Outcome::Registered);
    // What it allows goes wrong, and the approval was not used.
    drop(tx);
    let key = approval("r1").valid.logical_request_key;
    assert_eq!(store.effect_find(key).await.unwrap(), None);
    for (run, outcome) in
        [("r1", Outcome::Registered), ("r1", Outcome::Replayed), ("r2", Outcome::NoBypass)]
    {
        let tx = pool.begin().await.unwrap();
        let done = postgres::consume_in_tx(&tx, &approval(run)).await.unwrap();
        assert_eq!(done.outcome, outcome, "{run}");
        tx.commit().await.unwrap();
    }
}

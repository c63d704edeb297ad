//! RP-10 on PostgreSQL: each constraint and trigger is taken away, the proof refuses, and with it
//! back the proof holds. (SQLite's part is beside its catalogue.)

use semel_core::code::Code;
use semel_registrar::fitness::{APPEND_ONLY, SWEPT, Unfit};
use semel_registrar::registrar::StartError;
use semel_registrar::store::Store;
use semel_testkit::clock::SimClock;
use semel_testkit::servers;
use tokio_postgres::Client;

use crate::support::{NOW, connect, postgres_store, sqlite_store, start};

async fn proved(store: &Store) -> Result<(), Unfit> {
    match start(store.clone(), &SimClock::at_ms(NOW.0)).await {
        Ok(_) => Ok(()),
        Err(StartError::Unfit(unfit)) => Err(unfit),
        Err(StartError::Store(error)) => panic!("{}", error.chain()),
    }
}

/// Refused with this code while it is broken, and fit again after.
async fn refuses(store: &Store, client: &Client, broken: &str, mended: &str) -> Code {
    client.batch_execute(broken).await.unwrap_or_else(|error| panic!("{broken}: {error}"));
    let unfit = proved(store).await.expect_err(broken);
    client.batch_execute(mended).await.unwrap_or_else(|error| panic!("{mended}: {error}"));
    assert_eq!(proved(store).await, Ok(()), "{mended}");
    unfit.code
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_lost_anything_is_refused_on_postgres() {
    let address = servers::fresh_postgres().await;
    let (store, client) = (postgres_store(&address).await, connect(&address).await);
    assert_eq!(proved(&store).await, Ok(()));
    let constraints = client
        .query(
            "SELECT conrelid::regclass::text, conname::text, contype::text,
                    pg_get_constraintdef(oid)
               FROM pg_constraint
              WHERE connamespace = 'registrar'::regnamespace AND contype IN ('c', 'u', 'p')",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(constraints.len(), 14 + 13);
    for row in constraints {
        let (table, name, kind, definition): (String, String, String, String) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let broken = format!("ALTER TABLE {table} DROP CONSTRAINT {name}");
        let mended = format!("ALTER TABLE {table} ADD CONSTRAINT {name} {definition}");
        let code = refuses(&store, &client, &broken, &mended).await;
        let expected = match kind.as_str() {
            "c" => Code::ReplayDomainFailClosed,
            _ => Code::ReplaySurfaceNotFit,
        };
        assert_eq!(code, expected, "{broken}");
    }
    let columns = client
        .query(
            "SELECT attrelid::regclass::text, attname::text
               FROM pg_attribute
               JOIN pg_class ON pg_class.oid = attrelid AND relkind = 'r'
              WHERE relnamespace = 'registrar'::regnamespace AND attnum > 0 AND attnotnull
                AND NOT EXISTS (SELECT 1 FROM pg_constraint
                                 WHERE conrelid = attrelid AND contype = 'p'
                                   AND attnum = ANY (conkey))",
            &[],
        )
        .await
        .unwrap();
    assert!(columns.len() > 30, "{}", columns.len());
    for row in columns {
        let (table, column): (String, String) = (row.get(0), row.get(1));
        let broken = format!("ALTER TABLE {table} ALTER {column} DROP NOT NULL");
        let mended = format!("ALTER TABLE {table} ALTER {column} SET NOT NULL");
        let code = refuses(&store, &client, &broken, &mended).await;
        assert_eq!(code, Code::ReplayDomainFailClosed, "{broken}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_without_a_trigger_or_with_strangers_is_refused_on_postgres() {
    let address = servers::fresh_postgres().await;
    let (store, client) = (postgres_store(&address).await, connect(&address).await);
    for table in APPEND_ONLY {
        for trigger in ["no_change", "no_truncate"] {
            let trigger = format!("TRIGGER {table}_{trigger}");
            let broken = format!("ALTER TABLE registrar.{table} DISABLE {trigger}");
            let mended = format!("ALTER TABLE registrar.{table} ENABLE {trigger}");
            let code = refuses(&store, &client, &broken, &mended).await;
            assert_eq!(code, Code::ReplayDomainFailClosed, "{broken}");
        }
    }
    for table in SWEPT {
        let trigger = format!("TRIGGER {table}_no_delete");
        let broken = format!("ALTER TABLE registrar.{table} DISABLE {trigger}");
        let mended = format!("ALTER TABLE registrar.{table} ENABLE {trigger}");
        let code = refuses(&store, &client, &broken, &mended).await;
        assert_eq!(code, Code::ReplayDomainFailClosed, "{broken}");
    }
    let hollow = "CREATE OR REPLACE FUNCTION registrar.refuse_change() RETURNS trigger
                  LANGUAGE plpgsql AS $$ BEGIN RETURN OLD; END $$";
    let whole = "CREATE OR REPLACE FUNCTION registrar.refuse_change() RETURNS trigger
                 LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'the registrar''s rows are never changed'; END $$";
    let code = refuses(&store, &client, hollow, whole).await;
    assert_eq!(code, Code::ReplayDomainFailClosed);
    for privilege in ["INSERT", "UPDATE", "DELETE", "TRUNCATE", "INSERT (issuer)"] {
        let broken = format!("GRANT {privilege} ON registrar.nonce_use TO PUBLIC");
        let mended = format!("REVOKE {privilege} ON registrar.nonce_use FROM PUBLIC");
        let code = refuses(&store, &client, &broken, &mended).await;
        assert_eq!(code, Code::ReplayDomainFailClosed, "{broken}");
    }
    let keyed = "CREATE UNIQUE INDEX keyed ON registrar.registration
                        (logical_request_key, attempt_id)";
    let code = refuses(&store, &client, keyed, "DROP INDEX registrar.keyed").await;
    assert_eq!(code, Code::ReplaySurfaceNotFit, "an attempt is part of a key");
}

/// What lets a ledger be swept says exactly which lines: each of its conditions weakened, and the
/// function of one ledger on another table.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_that_may_forget_more_is_refused_on_postgres() {
    let address = servers::fresh_postgres().await;
    let (store, client) = (postgres_store(&address).await, connect(&address).await);
    let mut weakened = 0;
    for table in SWEPT {
        let sql =
            format!("SELECT pg_get_functiondef('registrar.refuse_unswept_{table}'::regproc::oid)");
        let whole: String = client.query_one(&sql, &[]).await.unwrap().get(0);
        for (word, weaker) in [
            ("IF ", "IF true OR "),
            (" < (", " < 1 + ("),
            ("DESC", "ASC"),
            ("AND NOT (OLD.event = 'started'", "AND NOT (OLD.event = 'begun'"),
            ("AND NOT (OLD.event = 'closed'", "AND NOT (OLD.event = 'ended'"),
            ("greatest(", "least("),
        ] {
            let broken = whole.replacen(word, weaker, 1);
            if broken == whole {
                continue;
            }
            let code = refuses(&store, &client, &broken, &whole).await;
            assert_eq!(code, Code::ReplayDomainFailClosed, "{broken}");
            weakened += 1;
        }
    }
    assert_eq!(weakened, 3 * 3 + 2 + 1);
    let other = "DROP TRIGGER nonce_use_no_change ON registrar.nonce_use;
        CREATE TRIGGER nonce_use_no_change BEFORE UPDATE ON registrar.nonce_use
           FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change();
        CREATE TRIGGER nonce_use_no_delete BEFORE DELETE ON registrar.nonce_use
           FOR EACH ROW EXECUTE FUNCTION registrar.refuse_unswept_failure_audit()";
    let mended = "DROP TRIGGER nonce_use_no_change ON registrar.nonce_use;
        DROP TRIGGER nonce_use_no_delete ON registrar.nonce_use;
        CREATE TRIGGER nonce_use_no_change BEFORE UPDATE OR DELETE ON registrar.nonce_use
           FOR EACH ROW EXECUTE FUNCTION registrar.refuse_change()";
    let code = refuses(&store, &client, other, mended).await;
    assert_eq!(code, Code::ReplayDomainFailClosed, "what was used is never swept");
}

/// The store that the contract was written against: a ledger of retries.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_ledger_is_refused_on_postgres() {
    let address = servers::fresh_postgres().await;
    let (store, client) = (postgres_store(&address).await, connect(&address).await);
    let ledger = "DROP TABLE registrar.effect_key;
        CREATE TABLE registrar.effect_key (
            id BIGINT PRIMARY KEY, idempotency_key TEXT NOT NULL, attempt_no INT NOT NULL,
            CHECK (attempt_no >= 1), UNIQUE (idempotency_key, attempt_no))";
    client.batch_execute(ledger).await.unwrap();
    let unfit = proved(&store).await.expect_err("a ledger");
    assert_eq!(unfit.code, Code::ReplaySurfaceNotFit);
    assert!(unfit.what.contains("attempt_no"), "{unfit}");
}

/// The rows themselves: what was written cannot be changed by anybody who uses SQL.
#[tokio::test(flavor = "multi_thread")]
async fn rows_refuse_to_change() {
    let address = servers::fresh_postgres().await;
    let folder = tempfile::tempdir().unwrap();
    drop((postgres_store(&address).await, sqlite_store(folder.path())));
    let client = connect(&address).await;
    let file = semel_testkit::sqlite::open(folder.path().join("r.db")).unwrap();
    client
        .batch_execute("INSERT INTO registrar.gate (domain, action, at) VALUES ('d','open',1)")
        .await
        .unwrap();
    file.execute_batch("INSERT INTO gate (domain, action, at) VALUES ('d', 'open', 1)").unwrap();
    for sql in ["UPDATE registrar.gate SET action = 'hold'", "DELETE FROM registrar.gate"] {
        let refused = client.batch_execute(sql).await.expect_err(sql);
        let refused = refused.as_db_error().expect("an error of the server").message().to_owned();
        assert!(refused.contains("never changed"), "{refused}");
        let refused = file.execute_batch(&sql.replace("registrar.", "")).expect_err(sql);
        assert!(refused.to_string().contains("never changed"), "{refused}");
    }
    assert!(client.batch_execute("TRUNCATE registrar.gate").await.is_err());
}

//! SIGKILL at every statement of the writer: an effect is there with everything that belongs to it
//! or not at all, and `resolve` tells which.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rusqlite::Connection;
use semel_registrar::decide::{Gate, Outcome};
use semel_registrar::envelope::Envelope;
use semel_registrar::grant::Grant;
use semel_registrar::key::LogicalRequestKey;
use semel_registrar::registrar::{Answer, Asked, Registrar};
use semel_registrar::store::{SqliteStore, Store};
use semel_store::sqlite::Sqlite;
use semel_testkit::clock::SimClock;
use semel_testkit::crash::{self, Left};

use crate::support::{NOW, envelope, sqlite_options, sqlite_store, start, with};

const GRANT: &str = "grant.json";

/// Only the writer's statements are counted; the readers of a proof would be hundreds more.
pub(crate) fn writer_only(connection: &mut Connection) -> rusqlite::Result<()> {
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    match OPENED.fetch_add(1, Ordering::SeqCst) {
        0 => crash::instrument(connection),
        _ => Ok(()),
    }
}

fn mine() -> Envelope {
    Envelope::parse(envelope("crash").to_string().as_bytes()).unwrap()
}

pub(crate) async fn try_it(
    registrar: &Registrar,
    grant: &Grant,
    envelope: Envelope,
    id: &str,
) -> Answer {
    let asked = Asked { envelope, grant: grant.clone(), attempt_id: id.to_owned() };
    registrar.register(asked).await.unwrap().unwrap()
}

pub(crate) fn block_on<T>(running: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(running)
}

#[test]
fn nothing_or_everything_at_every_point() {
    let clock = SimClock::at_ms(NOW.0);
    let mut seen = [0, 0];
    let points = crash::every_point(
        "crash::nothing_or_everything_at_every_point",
        |child| {
            block_on(async {
                let registrar = start(sqlite_store(&child.folder), &clock).await.unwrap();
                registrar.gate_set("deploys", Gate::Open).await.unwrap();
                let issued = registrar.grant_issue(&mine(), (None, None)).await.unwrap();
                let grant = issued.unwrap();
                std::fs::write(child.folder.join(GRANT), grant.to_json().to_string()).unwrap();
                drop(registrar);
                let mut options = sqlite_options(&child.folder);
                options.instrument = Some(writer_only);
                let sqlite = Arc::new(Sqlite::open(&options).unwrap());
                let store = Store::Sqlite(SqliteStore::new(sqlite));
                let registrar = start(store, &clock).await.unwrap();
                let answer = try_it(&registrar, &grant, mine(), "first").await;
                assert_eq!(answer.outcome, Outcome::Registered);
                child.acknowledge("registered");
                let other = with(&envelope("crash"), "run_id", "r2").to_string();
                let other = Envelope::parse(other.as_bytes()).unwrap();
                let answer = try_it(&registrar, &grant, other, "second").await;
                assert_eq!(answer.outcome, Outcome::NoBypass);
                child.acknowledge("refused");
            });
        },
        |left| block_on(judge(left, &clock, &mut seen)),
    );
    assert!(points > 20, "only {points} crash points");
    assert!(seen[0] > 3 && seen[1] > 3, "{seen:?}");
}

/// What a dead process left, as a new one finds it.
async fn judge(left: &Left, clock: &SimClock, seen: &mut [u32; 2]) {
    let point = left.point;
    let count = |table: &str| -> i64 {
        let file = semel_testkit::sqlite::open(left.folder.join("r.db")).unwrap();
        file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    let registrar = start(sqlite_store(&left.folder), clock).await.unwrap();
    let rows = ["effect_key", "nonce_use", "registration"].map(count);
    assert!(rows == [0; 3] || rows == [1; 3], "half there at {point:?}: {rows:?}");
    let there = rows[0] == 1;
    let acknowledged = left.acknowledged.iter().any(|what| what == "registered");
    assert!(there || !acknowledged, "an acknowledged effect is lost at {point:?}");
    let text = std::fs::read(left.folder.join(GRANT)).unwrap();
    let grant = Grant::parse(&text).unwrap();
    let key = LogicalRequestKey::of(&mine());
    let begun = count("attempt") > 0;
    if begun && !there {
        let early = try_it(&registrar, &grant, mine(), "too early").await;
        assert_eq!(early.outcome, Outcome::Uncertain, "{point:?}");
        assert_eq!(count("effect_key"), 0);
    }
    let resolved = registrar.resolve(key).await.unwrap();
    assert_eq!(resolved.effect.is_some(), there, "{point:?}");
    assert_eq!(resolved.closed, u64::from(begun && !there), "{point:?}");
    seen[usize::from(there)] += 1;
    let again = try_it(&registrar, &grant, mine(), "again").await;
    match resolved.effect {
        Some(effect) => {
            assert_eq!(again.outcome, Outcome::Replayed, "{point:?}");
            assert_eq!(again.result, Some(effect.result));
        }
        None => assert_eq!(again.outcome, Outcome::Registered, "{point:?}"),
    }
    assert_eq!(["effect_key", "nonce_use", "registration"].map(count), [1; 3]);
}

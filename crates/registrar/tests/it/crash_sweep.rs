//! SIGKILL in the middle of a sweep, on both stores: of each batch everything is gone or nothing,
//! and whatever decides is there.

use std::sync::Arc;
use std::time::Duration;

use semel_registrar::decide::{Gate, Outcome};
use semel_registrar::envelope::Envelope;
use semel_registrar::grant::Grant;
use semel_registrar::key::LogicalRequestKey;
use semel_registrar::registrar::Registrar;
use semel_registrar::registrar::sweeper::RetentionDays;
use semel_registrar::store::{SqliteStore, Store};
use semel_store::sqlite::Sqlite;
use semel_testkit::clock::SimClock;
use semel_testkit::crash::postgres::Points;
use semel_testkit::crash::{self, Child, Left};
use semel_testkit::servers;

use crate::crash::{block_on, try_it, writer_only};
use crate::support::{
    NOW, alone, connect, envelope, postgres_store, server_of, sqlite_options, sqlite_store, start,
    through, with,
};

const ADDRESS: &str = "address";
const GRANT: &str = "grant.json";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Lines of each ledger that are planted beside one attempt that was registered, one that was
/// refused and one that is open. On SQLite every row that a trigger looks at is a point: there they
/// are few and one batch, on PostgreSQL two.
const FEW: i64 = 5;
const MANY: i64 = 1500;
const BATCH: i64 = 1000;

fn mine(run: &str) -> Envelope {
    let text = with(&envelope("swept"), "run_id", run).to_string();
    Envelope::parse(text.as_bytes()).unwrap()
}

fn lost() -> LogicalRequestKey {
    LogicalRequestKey::of(&Envelope::parse(envelope("lost").to_string().as_bytes()).unwrap())
}

/// The rows that no call would make so many of; `bytes` is how a database writes some.
fn planted(numbers: &str, bytes: impl Fn(usize) -> String) -> String {
    let (key, at) = (bytes(32), NOW.0);
    let nonce = bytes(16);
    let lost = lost().to_string();
    let lost = if nonce.starts_with('z') { format!("x'{lost}'") } else { format!("'\\x{lost}'") };
    format!(
        "INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, at)
         VALUES ('started', {lost}, 'lost', {at});
         INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, outcome, at)
         SELECT 'answered', {key}, 'a', 'UNDONE', {at} FROM {numbers};
         INSERT INTO registrar.failure_audit (domain, logical_request_key, authorization_nonce,
                                              attempt_id, outcome, at)
         SELECT 'deploys', {key}, {nonce}, 'a', 'UNDONE', {at} FROM {numbers};
         INSERT INTO registrar.grant_issued (authorization_nonce, domain, logical_request_key,
                                             not_before, not_after, issuer, issued_at)
         SELECT {fresh}, 'deploys', {key}, 1, {at}, {key}, {at} FROM {numbers};",
        fresh = bytes(0),
    )
}

/// One that was registered, and one that was refused.
async fn used(registrar: &Registrar, child: &Child) {
    registrar.gate_set("deploys", Gate::Open).await.unwrap();
    let issued = registrar.grant_issue(&mine("r1"), (None, None)).await.unwrap();
    let grant = issued.unwrap();
    std::fs::write(child.folder.join(GRANT), grant.to_json().to_string()).unwrap();
    let answer = try_it(registrar, &grant, mine("r1"), "first").await;
    assert_eq!(answer.outcome, Outcome::Registered);
    let answer = try_it(registrar, &grant, mine("r2"), "second").await;
    assert_eq!(answer.outcome, Outcome::NoBypass);
}

fn later() -> SimClock {
    let clock = SimClock::at_ms(NOW.0);
    clock.advance(400 * DAY);
    clock
}

async fn sweep(store: Store) {
    let registrar = start(store, &later()).await.unwrap();
    let swept = registrar.sweep(RetentionDays::new(1).unwrap()).await.unwrap();
    assert!(!swept.more);
}

#[test]
fn a_batch_or_nothing_on_sqlite() {
    let mut seen = [0; 3];
    let work = async |child: &Child| {
        let clock = SimClock::at_ms(NOW.0);
        let registrar = start(sqlite_store(&child.folder), &clock).await.unwrap();
        used(&registrar, child).await;
        drop(registrar);
        let numbers = "(WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n
                                                  WHERE n < 5) SELECT n FROM n)";
        let bytes = |count| match count {
            0 => "randomblob(16)".to_owned(),
            _ => format!("zeroblob({count})"),
        };
        let sql = planted(numbers, bytes).replace("registrar.", "");
        semel_testkit::sqlite::open(child.folder.join("r.db"))
            .unwrap()
            .execute_batch(&sql)
            .unwrap();
        let mut options = sqlite_options(&child.folder);
        options.instrument = Some(writer_only);
        sweep(Store::Sqlite(SqliteStore::new(Arc::new(Sqlite::open(&options).unwrap())))).await;
    };
    let points = crash::every_point(
        "crash_sweep::a_batch_or_nothing_on_sqlite",
        |child| block_on(work(child)),
        |left| {
            let count = async |table: &str| {
                let file = semel_testkit::sqlite::open(left.folder.join("r.db")).unwrap();
                let sql = format!("SELECT count(*) FROM {table}");
                file.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
            };
            block_on(judge(left, (sqlite_store(&left.folder), FEW), &count, &mut seen));
        },
    );
    assert!(points > 20, "only {points} crash points");
    assert!(seen[0] > 0 && seen[2] > 0, "{seen:?}");
}

#[test]
fn a_batch_or_nothing_on_postgres() {
    let mut seen = [0; 3];
    let work = async |child: &Child| {
        let clock = SimClock::at_ms(NOW.0);
        let address = servers::fresh_postgres().await;
        std::fs::write(child.folder.join(ADDRESS), &address).unwrap();
        let registrar = start(postgres_store(&address).await, &clock).await.unwrap();
        used(&registrar, child).await;
        let bytes = |count| match count {
            0 => "decode(md5(n::text), 'hex')".to_owned(),
            _ => format!("decode(repeat('00', {count}), 'hex')"),
        };
        let sql = planted("generate_series(1, 1500) AS n", bytes);
        connect(&address).await.batch_execute(&sql).await.unwrap();
        let points = Points::start(server_of(&address).await).await;
        let store = postgres_store(&through(points.address(), &address)).await;
        points.arm();
        sweep(store).await;
    };
    let judged = async |left: &Left, seen: &mut [u32; 3]| {
        let address = std::fs::read_to_string(left.folder.join(ADDRESS)).unwrap();
        let client = alone(&address).await;
        let count = async |table: &str| {
            let sql = format!("SELECT count(*) FROM registrar.{table}");
            client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0)
        };
        judge(left, (postgres_store(&address).await, MANY), &count, seen).await;
    };
    let points = crash::every_point(
        "crash_sweep::a_batch_or_nothing_on_postgres",
        |child| block_on(work(child)),
        |left| block_on(judged(left, &mut seen)),
    );
    assert!(points > 10, "only {points} crash points");
    assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
}

/// What a dead process left, as a new one finds it.
async fn judge(
    left: &Left,
    (store, planted): (Store, i64),
    count: &impl AsyncFn(&str) -> i64,
    seen: &mut [u32; 3],
) {
    let point = &left.point;
    // Before it, after the first batch of many, and in the end. One attempt is open and stays.
    let ledgers = [
        ("attempt", [planted + 4, planted + 4 - (BATCH - 1), 1]),
        ("failure_audit", [planted + 1, planted + 1 - BATCH, 0]),
        ("grant_issued", [planted + 1, planted + 1 - BATCH, 0]),
    ];
    let mut batches = Vec::new();
    for (table, whole) in ledgers {
        let rows = count(table).await;
        let gone = whole.iter().position(|left| *left == rows);
        batches
            .push(gone.unwrap_or_else(|| panic!("half a batch of {table} at {point:?}: {rows}")));
    }
    assert!(batches.is_sorted_by(|one, next| *one == 2 || *next == 0), "{batches:?} at {point:?}");
    seen[batches[0]] += 1;
    for table in ["effect_key", "nonce_use", "registration"] {
        assert_eq!(count(table).await, 1, "{table} at {point:?}");
    }
    let registrar = start(store, &later()).await.unwrap();
    let grant = Grant::parse(&std::fs::read(left.folder.join(GRANT)).unwrap()).unwrap();
    let again = try_it(&registrar, &grant, mine("r1"), "again").await;
    assert_eq!(again.outcome, Outcome::Replayed, "{point:?}");
    let bypass = try_it(&registrar, &grant, mine("r2"), "again").await;
    assert_eq!(bypass.outcome, Outcome::NoBypass, "{point:?}");
    registrar.sweep(RetentionDays::new(1).unwrap()).await.unwrap();
    // The open one, and the two that were just answered.
    let kept = [count("attempt").await, count("failure_audit").await, count("grant_issued").await];
    assert_eq!(kept, [3, 1, 0], "{point:?}");
    assert_eq!(registrar.resolve(lost()).await.unwrap().closed, 1, "{point:?}");
}

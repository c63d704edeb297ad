//! Commits whose answer is lost, on PostgreSQL: `UNCERTAIN_COMMIT`, then `resolve` tells the truth.

use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers;
use serde_json::{Value, json};

use crate::support::{
    Database, MANY, Served, connect, envelope, one_winner, postgres_store, serve, server_of,
    through,
};

/// The same database through a proxy, and directly.
async fn both() -> (Proxy, Served, Served) {
    let address = servers::fresh_postgres().await;
    let direct = serve(postgres_store(&address).await, Database::Postgres(address.clone())).await;
    let proxy = Proxy::start(server_of(&address).await).await;
    let through = through(proxy.address(), &address);
    let far = serve(postgres_store(&through).await, Database::Postgres(address)).await;
    (proxy, far, direct)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_never_arrived_is_absent() {
    let (proxy, far, direct) = both().await;
    let mine = envelope("lost/before");
    let grant = far.grant(&mine).await;
    proxy.fail_next("\"replay_key\"", Fault::CutBefore);
    let lost = far.register(&mine, &grant, 0).await;
    assert_eq!(lost.said(), (409, "uncertain_commit", "UNCERTAIN_COMMIT"));
    assert_eq!(proxy.fired(), 1);
    let early = direct.register(&mine, &grant, 1).await;
    assert_eq!(early.said().2, "UNCERTAIN_COMMIT", "until somebody resolves it");
    let key = lost.body["logical_request_key"].as_str().unwrap();
    let grant_header = format!("Semel-Grant: {grant}\r\n");
    let resolved = direct.ask("GET", &format!("/v1/effects/{key}"), &grant_header, "").await;
    assert_eq!(
        (&resolved.body["state"], &resolved.body["closed_attempts"]),
        (&json!("absent"), &json!(1))
    );
    assert_eq!(direct.register(&mine, &grant, 2).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_was_lost_is_there() {
    let (proxy, far, direct) = both().await;
    let mine = envelope("lost/after");
    let grant = far.grant(&mine).await;
    proxy.fail_next("\"replay_key\"", Fault::CutAfter);
    let lost = far.register(&mine, &grant, 0).await;
    assert_eq!(lost.said(), (409, "uncertain_commit", "UNCERTAIN_COMMIT"));
    let key = lost.body["logical_request_key"].as_str().unwrap();
    let resolved = direct.resolve(key).await;
    assert_eq!(resolved.body["state"], "committed");
    assert_eq!(resolved.body["result"]["attempt_id"], "attempt-0");
    let again = far.register(&mine, &grant, 1).await;
    assert_eq!((again.status, again.result()), (200, resolved.result()));
}

/// BEGIN that the server refuses lets what was sent with it run alone: nothing of it writes then.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_was_refused_to_begin_has_consumed_nothing() {
    const BEGIN: &str = "BEGIN; SET LOCAL";
    let (proxy, far, direct) = both().await;
    let mine = envelope("begun");
    let grant = far.grant(&mine).await;
    proxy.fail_next(BEGIN, Fault::Spoil);
    let lost = far.register(&mine, &grant, 0).await;
    assert_eq!(proxy.fired(), 1);
    let key = lost.body["logical_request_key"].as_str().unwrap();
    if lost.status != 201 {
        assert_eq!(lost.said(), (409, "uncertain_commit", "UNCERTAIN_COMMIT"));
        proxy.fail_next(BEGIN, Fault::Spoil);
        let resolved = far.resolve(key).await;
        assert_eq!((proxy.fired(), &resolved.body["state"]), (2, &json!("absent")));
        assert_eq!(far.register(&mine, &grant, 1).await.status, 201);
    }
    assert_eq!(direct.resolve(key).await.body["state"], "committed");
}

/// A transaction whose client is gone may still commit: `resolve` waits for its end.
#[tokio::test(flavor = "multi_thread")]
async fn resolve_waits_for_the_ghost() {
    let address = servers::fresh_postgres().await;
    let served = serve(postgres_store(&address).await, Database::Postgres(address.clone())).await;
    let mine = envelope("ghost");
    let issued = served.operate("POST", "/v1/grants", &json!({"envelope": mine})).await;
    let key = issued.body["logical_request_key"].as_str().unwrap().to_owned();
    let nonce = issued.body["nonce"].as_str().unwrap().to_owned();
    let lock = u32::from_str_radix(&key[..8], 16).unwrap().cast_signed();
    let (ghost, watcher) = (connect(&address).await, connect(&address).await);
    let rows = format!(
        "BEGIN; SELECT pg_advisory_xact_lock(7305, {lock});
         INSERT INTO registrar.effect_key VALUES ('\\x{key}', '\\x{key}', 1, 'deploys', 'deploy',
             'ghost', '\\x{hash}', 'team-web', 'r1', '\\x{nonce}', 1);
         INSERT INTO registrar.nonce_use VALUES ('\\x{nonce}', '\\x{key}', '\\x{hash}', 1);
         INSERT INTO registrar.registration VALUES ('\\x{key}', 'ghost', '{{}}', 1)",
        hash = "ab".repeat(32),
    );
    ghost.batch_execute(&rows).await.unwrap();
    let (resolved, ()) = tokio::join!(served.resolve(&key), async {
        let waiting = "SELECT count(*) FROM pg_locks
                        WHERE locktype = 'advisory' AND NOT granted AND classid = 7305";
        let mut seen = false;
        for _ in 0..10_000 {
            let row = watcher.query_one(waiting, &[]).await.unwrap();
            seen = row.get::<_, i64>(0) == 1;
            if seen {
                break;
            }
        }
        assert!(seen, "resolve does not wait");
        ghost.batch_execute("COMMIT").await.unwrap();
    });
    assert_eq!(resolved.body["state"], "committed", "{resolved:?}");
    assert_eq!(resolved.body["result"], Value::Object(serde_json::Map::new()));
}

/// Two processes that share a database: one attempt wins, the others wait for it and are told.
#[tokio::test(flavor = "multi_thread")]
async fn two_registrars_have_one_winner() {
    let address = servers::fresh_postgres().await;
    let one = serve(postgres_store(&address).await, Database::Postgres(address.clone())).await;
    let two = serve(postgres_store(&address).await, Database::Postgres(address.clone())).await;
    for round in 0..5 {
        let mine = envelope(&format!("two/{round}"));
        let grant = one.grant(&mine).await;
        let (here, there) =
            tokio::join!(one.race(&mine, &grant, MANY), two.race(&mine, &grant, MANY));
        let (won, others) = one_winner([here, there].concat());
        for other in others {
            assert!(
                other.status == 200 || other.said().2 == "ATTEMPT_COLLISION",
                "nobody may be left in doubt: {other:?}"
            );
            assert_eq!(other.result(), won.result());
        }
    }
    assert_eq!(one.database.count("SELECT count(*) FROM registrar.effect_key").await, 5);
}

/// An earlier attempt of another process that is slow, and not lost, is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_attempt_elsewhere_is_waited_for() {
    let address = servers::fresh_postgres().await;
    let served = serve(postgres_store(&address).await, Database::Postgres(address.clone())).await;
    let mine = envelope("earlier");
    let issued = served.operate("POST", "/v1/grants", &json!({"envelope": mine})).await;
    let key = issued.body["logical_request_key"].as_str().unwrap();
    let elsewhere = connect(&address).await;
    let started = format!(
        "INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, at)
         VALUES ('started', '\\x{key}', 'elsewhere', 0)"
    );
    elsewhere.batch_execute(&started).await.unwrap();
    let (answer, ()) = tokio::join!(served.register(&mine, &issued.body["grant"], 0), async {
        let begun = "SELECT count(*) FROM registrar.attempt WHERE event = 'started'";
        let mut seen = 0;
        for _ in 0..10_000 {
            seen = elsewhere.query_one(begun, &[]).await.unwrap().get::<_, i64>(0);
            if seen == 2 {
                break;
            }
        }
        assert_eq!(seen, 2, "the attempt does not begin");
        let closed = format!(
            "INSERT INTO registrar.attempt
                    (event, logical_request_key, attempt_id, closes, outcome, at)
             SELECT 'closed', logical_request_key, attempt_id, entry, 'NONCE_REVOKED', 1
               FROM registrar.attempt WHERE attempt_id = 'elsewhere' AND event = 'started'
                AND logical_request_key = '\\x{key}'"
        );
        elsewhere.batch_execute(&closed).await.unwrap();
    });
    assert_eq!(answer.status, 201, "{answer:?}");
}

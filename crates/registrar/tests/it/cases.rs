//! RP-01 … RP-09 and S0 … S4 (registrar.md), each by one attempt and by 32 at once. RP-10 is in
//! `fitness`, the crash of RP-06 in `crash` and `lost`.

use std::time::Duration;

use semel_testkit::conformance::{Case, conforms};
use serde_json::{Value, json};

use crate::support::{
    MANY, Response, Served, all_say, attempt, envelope, on_postgres, on_sqlite, one_winner, with,
};

#[rustfmt::skip]
const CASES: &[Case<Served>] = &[
    Case { name: "RP-01: same key, new attempt", run: |s| Box::pin(rp_01(s)) },
    Case { name: "RP-02: fresh nonce, same effect", run: |s| Box::pin(rp_02(s)) },
    Case { name: "RP-03: consumed nonce, other request", run: |s| Box::pin(rp_03(s)) },
    Case { name: "RP-04: nonce not bound or outside its window", run: |s| Box::pin(rp_04(s)) },
    Case { name: "RP-05, S2: exact retry after the commit", run: |s| Box::pin(rp_05(s)) },
    Case { name: "RP-06, S1: an attempt that was lost", run: |s| Box::pin(rp_06(s)) },
    Case { name: "RP-07, S3: verification failed", run: |s| Box::pin(rp_07(s)) },
    Case { name: "RP-08: stale request, consume row exists", run: |s| Box::pin(rp_08(s)) },
    Case { name: "RP-09, S4: concurrent attempts", run: |s| Box::pin(rp_09(s)) },
    Case { name: "S0: consumed state is looked at first", run: |s| Box::pin(s_0(s)) },
    Case { name: "the gate", run: |s| Box::pin(gate(s)) },
    Case { name: "a revoked grant", run: |s| Box::pin(revoked(s)) },
    Case { name: "the ledgers as they are read", run: |s| Box::pin(ledgers(s)) },
];

#[tokio::test(flavor = "multi_thread")]
async fn cases_on_sqlite() {
    assert_eq!(conforms(CASES, on_sqlite).await, CASES.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn cases_on_postgres() {
    assert_eq!(conforms(CASES, on_postgres).await, CASES.len());
}

const COUNTS: [usize; 2] = [1, MANY];

/// Those who came late are told what the winner did.
fn told_of(won: &Response, others: &[Response]) {
    for other in others {
        let said = other.said();
        let collided = said == (409, "attempt_collision", "ATTEMPT_COLLISION");
        let replayed = said == (200, "", "REGISTERED") && other.body["replayed"] == true;
        assert!(collided || replayed, "{other:?}");
        assert_eq!(other.result(), won.result());
    }
}

async fn rp_01(served: &Served) {
    for count in COUNTS {
        let envelope = envelope(&format!("rp-01/{count}"));
        let grant = served.grant(&envelope).await;
        let (won, others) = one_winner(served.race(&envelope, &grant, count).await);
        told_of(&won, &others);
        let again = served.race(&envelope, &grant, count).await;
        all_say(&again, (200, "", "REGISTERED"));
        assert!(again.iter().all(|again| again.result() == won.result()));
        let other_run = with(&envelope, "run_id", "r2");
        let refused = served.race(&other_run, &grant, count).await;
        all_say(&refused, (409, "replay_attempt_no_bypass", "REPLAY_ATTEMPT_NO_BYPASS"));
        assert!(refused.iter().all(|refused| refused.body["result"].is_null()));
    }
    assert_eq!(served.database.count("SELECT count(*) FROM registrar.effect_key").await, 2);
}

async fn rp_02(served: &Served) {
    for count in COUNTS {
        let envelope = envelope(&format!("rp-02/{count}"));
        let mut grants = Vec::new();
        for _ in 0..count + 1 {
            grants.push(served.grant(&envelope).await);
        }
        let bodies = grants.iter().enumerate().map(|(n, grant)| attempt(&envelope, grant, n));
        let (won, others) = one_winner(served.all(bodies.collect()).await);
        all_say(&others, (409, "replay_duplicate", "REPLAY_DUPLICATE"));
        assert!(others.iter().all(|other| other.result() == won.result()));
        let mut consumed = 0;
        for grant in &grants {
            match served.grant_state(grant).await.as_str() {
                "consumed" => {
                    consumed += 1;
                    assert_eq!(grant["nonce"], won.body["result"]["nonce"]);
                }
                state => assert_eq!(state, "issued"),
            }
        }
        assert_eq!(consumed, 1, "the others stay unconsumed");
    }
}

async fn rp_03(served: &Served) {
    for count in COUNTS {
        let first = envelope(&format!("rp-03/{count}"));
        let grant = served.grant(&first).await;
        assert_eq!(served.register(&first, &grant, 0).await.status, 201);
        let other = |n: usize| envelope(&format!("rp-03/{count}/other-{n}"));
        let bodies = (0..count).map(|n| attempt(&other(n), &grant, n)).collect();
        let refused = served.all(bodies).await;
        all_say(&refused, (409, "replay_nonce_consumed", "REPLAY_NONCE_CONSUMED"));
        for refused in &refused {
            let key = refused.body["logical_request_key"].as_str().unwrap();
            assert_eq!(served.resolve(key).await.body["state"], "absent", "the key stays free");
        }
        // A used grant with another effect that has happened: the alarm, in the same words.
        let second = envelope(&format!("rp-03/{count}/second"));
        let of_second = served.grant(&second).await;
        assert_eq!(served.register(&second, &of_second, 0).await.status, 201);
        let alarmed = served.race(&second, &grant, count).await;
        all_say(&alarmed, (409, "replay_nonce_consumed", "REPLAY_NONCE_CONSUMED"));
        let alarms = "SELECT count(*) FROM registrar.failure_audit \
                      WHERE outcome = 'REPLAY_NONCE_CONSUMED_ALARM'";
        assert!(served.database.count(alarms).await >= i64::try_from(count).unwrap());
    }
}

async fn rp_04(served: &Served) {
    for count in COUNTS {
        let mine = envelope(&format!("rp-04/{count}"));
        let other = envelope(&format!("rp-04/{count}/other"));
        let (grant, foreign) = (served.grant(&mine).await, served.grant(&other).await);
        let unbound = (409, "nonce_unbound", "NONCE_UNBOUND");
        let mut spoilt = vec![foreign];
        for (field, value) in [
            ("nonce", "00".repeat(16)),
            ("issuer", "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025".into()),
            ("domain", "payments".to_owned()),
            ("not_after", "2099-01-01T00:00:00.000Z".to_owned()),
            ("signature", "00".repeat(64)),
        ] {
            spoilt.push(with(&grant, field, value));
        }
        for spoilt in &spoilt {
            all_say(&served.race(&mine, spoilt, count).await, unbound);
        }
        let body = json!({"envelope": mine, "not_before": "2027-06-01T00:00:00.000Z",
                          "not_after": "2028-06-01T00:00:00.000Z"});
        let early = served.operate("POST", "/v1/grants", &body).await.body["grant"].clone();
        all_say(&served.race(&mine, &early, count).await, unbound);
        // Beside one that is bound, all the others lose.
        let mut bodies: Vec<Value> = (0..count).map(|n| attempt(&mine, &spoilt[0], n)).collect();
        bodies.push(attempt(&mine, &grant, count));
        let (_, others) = one_winner(served.all(bodies).await);
        all_say(&others, unbound);
    }
}

async fn rp_05(served: &Served) {
    let mut won = Vec::new();
    for count in COUNTS {
        let envelope = envelope(&format!("rp-05/{count}"));
        let grant = served.grant(&envelope).await;
        won.push((envelope.clone(), grant.clone(), served.register(&envelope, &grant, 0).await));
        assert_eq!(won.last().unwrap().2.status, 201);
    }
    // However old it is.
    served.clock.advance(Duration::from_secs(400 * 24 * 60 * 60));
    for ((envelope, grant, won), count) in won.iter().zip(COUNTS) {
        let again = served.race(envelope, grant, count).await;
        all_say(&again, (200, "", "REGISTERED"));
        for again in &again {
            assert_eq!(
                (again.body["replayed"].clone(), again.result()),
                (true.into(), won.result())
            );
        }
    }
    assert_eq!(served.database.count("SELECT count(*) FROM registrar.registration").await, 2);
}

async fn rp_06(served: &Served) {
    for count in COUNTS {
        let envelope = envelope(&format!("rp-06/{count}"));
        let issued = served.operate("POST", "/v1/grants", &json!({"envelope": envelope})).await;
        let (grant, key) = (&issued.body["grant"], &issued.body["logical_request_key"]);
        let key = key.as_str().unwrap();
        let literal = match &served.database {
            crate::support::Database::Sqlite(_) => format!("x'{key}'"),
            crate::support::Database::Postgres(_) => format!("'\\x{key}'"),
        };
        // What a process leaves that was killed after its first commit.
        let started = format!(
            "INSERT INTO registrar.attempt (event, logical_request_key, attempt_id, at)
             VALUES ('started', {literal}, 'lost', 0)"
        );
        served.database.plant(&started).await;
        let refused = served.race(&envelope, grant, count).await;
        all_say(&refused, (409, "uncertain_commit", "UNCERTAIN_COMMIT"));
        let resolved = served.resolve(key).await;
        assert_eq!(resolved.body["state"], "absent");
        assert_eq!(resolved.body["closed_attempts"], 1);
        assert_eq!(served.resolve(key).await.body["closed_attempts"], 0);
        let (won, others) = one_winner(served.race(&envelope, grant, count).await);
        told_of(&won, &others);
        let resolved = served.resolve(key).await;
        assert_eq!(
            (&resolved.body["state"], resolved.result()),
            (&"committed".into(), won.result())
        );
    }
}

async fn rp_07(served: &Served) {
    for count in COUNTS {
        let mine = envelope(&format!("rp-07/{count}"));
        let grant = served.grant(&mine).await;
        let won = served.register(&mine, &grant, 0).await;
        let key = won.body["logical_request_key"].as_str().unwrap();
        let mut undo = with(&mine, "operation", "compensate");
        undo["canonical_target"] = key.into();
        let undo_grant = served.grant(&undo).await;
        let compensate = format!("/v1/effects/{key}/compensate");
        let early = attempt(&undo, &undo_grant, 0).to_string();
        let early = served.ask("POST", &compensate, "", &early).await;
        let refused = (409, "compensation_not_allowed", "COMPENSATION_NOT_ALLOWED");
        assert_eq!(early.said(), refused, "nothing has failed yet");
        let verdict = json!({"verdict": "failed", "note": "it answers 500"});
        let verify = format!("/v1/effects/{key}/verify");
        assert_eq!(served.operate("POST", &verify, &verdict).await.status, 200);
        assert_eq!(served.operate("POST", &verify, &verdict).await.status, 200, "the same again");
        let other = served.operate("POST", &verify, &json!({"verdict": "passed"})).await;
        assert_eq!(other.said().1, "verdict_exists");

        let failed = (409, "verification_failed", "VERIFICATION_FAILED");
        all_say(&served.race(&mine, &grant, count).await, failed);
        let fresh = served.grant(&mine).await;
        all_say(&served.race(&mine, &fresh, count).await, failed);
        assert_eq!(served.grant_state(&grant).await, "consumed");
        assert_eq!(served.grant_state(&fresh).await, "issued");
        let resolved = served.resolve(key).await;
        assert_eq!((&resolved.body["state"], resolved.result()), (&"failed".into(), won.result()));

        // Whoever asks for it and with whatever: one effect is undone once.
        let others = [
            with(&undo, "owner_binding", "somebody-else"),
            with(&undo, "artifact_hash", "ef".repeat(32)),
        ];
        let mut bodies: Vec<Value> =
            (0..count).map(|number| attempt(&undo, &undo_grant, number)).collect();
        for other in &others {
            let grant = served.grant(other).await;
            bodies.extend((0..count).map(|number| attempt(other, &grant, number)));
        }
        let (won, lost) = one_winner(served.all(bodies.clone()).await);
        assert_eq!(lost.len(), 3 * count - 1);
        let key = |body: &Value| body["logical_request_key"].clone();
        let bypass = (409, "replay_attempt_no_bypass", "REPLAY_ATTEMPT_NO_BYPASS");
        let again = served.all(bodies).await;
        let of_others = |told: &&Response| key(&told.body) != key(&won.body);
        let of_others: Vec<_> = again.iter().filter(of_others).cloned().collect();
        assert_eq!(of_others.len(), 2 * count);
        all_say(&of_others, bypass);
    }
    let undone = "SELECT count(*) FROM registrar.effect_key WHERE operation = 'compensate'";
    assert_eq!(served.database.count(undone).await, 2, "one of each");
}

async fn rp_08(served: &Served) {
    let made: Vec<Value> = COUNTS.iter().map(|count| envelope(&format!("rp-08/{count}"))).collect();
    let mut grants = Vec::new();
    for envelope in &made {
        let grant = served.grant(envelope).await;
        assert_eq!(served.register(envelope, &grant, 0).await.status, 201);
        grants.push(grant);
    }
    served.clock.advance(Duration::from_secs(3601));
    for ((mine, grant), count) in made.iter().zip(&grants).zip(COUNTS) {
        let new = envelope(&format!("rp-08/{count}/new"));
        let body = json!({"envelope": new, "not_after": "2099-01-01T00:00:00.000Z"});
        let late = served.operate("POST", "/v1/grants", &body).await.body["grant"].clone();
        let stale = (409, "request_stale", "REQUEST_STALE");
        all_say(&served.race(&new, &late, count).await, stale);
        // Consumed by another, or by itself: still blocked.
        let other_run = with(mine, "run_id", "r2");
        let bypass = (409, "replay_attempt_no_bypass", "REPLAY_ATTEMPT_NO_BYPASS");
        all_say(&served.race(&other_run, grant, count).await, bypass);
        let body = json!({"envelope": mine, "not_after": "2099-01-01T00:00:00.000Z"});
        let fresh = served.operate("POST", "/v1/grants", &body).await.body["grant"].clone();
        let duplicate = (409, "replay_duplicate", "REPLAY_DUPLICATE");
        all_say(&served.race(mine, &fresh, count).await, duplicate);
    }
    assert_eq!(served.database.count("SELECT count(*) FROM registrar.effect_key").await, 2);
}

async fn rp_09(served: &Served) {
    let mut collisions = 0;
    for round in 0..4 {
        let envelope = envelope(&format!("rp-09/{round}"));
        let grant = served.grant(&envelope).await;
        let (won, others) = one_winner(served.race(&envelope, &grant, MANY).await);
        told_of(&won, &others);
        collisions += others.iter().filter(|other| other.status == 409).count();
    }
    assert!(collisions > 0, "nobody met anybody");
    assert_eq!(served.database.count("SELECT count(*) FROM registrar.nonce_use").await, 4);
    let open = "SELECT count(*) FROM registrar.attempt AS started WHERE started.event = 'started'
                AND NOT EXISTS (SELECT 1 FROM registrar.attempt AS closing
                                 WHERE closing.closes = started.entry)";
    assert_eq!(served.database.count(open).await, 0, "every attempt was closed");
}

async fn s_0(served: &Served) {
    for count in COUNTS {
        let mine = envelope(&format!("s-0/{count}"));
        let grant = served.grant(&mine).await;
        let (won, _) = one_winner(served.race(&mine, &grant, count).await);
        served.gate("deploys", "hold").await;
        let again = served.race(&mine, &grant, count).await;
        all_say(&again, (200, "", "REGISTERED"));
        assert!(again.iter().all(|again| again.result() == won.result()));
        served.gate("deploys", "open").await;
    }
}

async fn gate(served: &Served) {
    let shown = served.operate("GET", "/v1/registrar/gate?domain=new", &Value::Null).await;
    assert_eq!(shown.body, json!({"domain": "new", "gate": "hold", "can_proceed": "NO"}));
    let jobs = served.operate("GET", "/v1/registrar/gate?domain=jobs", &Value::Null).await;
    assert_eq!(jobs.body["can_proceed"], "YES");
    for count in COUNTS {
        let mine = with(&envelope("gate"), "domain", format!("new-{count}"));
        let grant = served.grant(&mine).await;
        let held = served.race(&mine, &grant, count).await;
        all_say(&held, (403, "registration_hold", "REGISTRATION_HOLD"));
        assert!(held.iter().all(|held| held.body["can_proceed"] == "NO"));
        served.gate(&format!("new-{count}"), "open").await;
        one_winner(served.race(&mine, &grant, count).await);
    }
    let audited = "SELECT count(*) FROM registrar.gate WHERE domain LIKE 'new-%'";
    assert_eq!(served.database.count(audited).await, 2);
}

async fn revoked(served: &Served) {
    for count in COUNTS {
        let mine = envelope(&format!("revoked/{count}"));
        let (grant, other) = (served.grant(&mine).await, served.grant(&mine).await);
        let path = |grant: &Value| format!("/v1/grants/{}", grant["nonce"].as_str().unwrap());
        assert_eq!(served.operate("DELETE", &path(&grant), &Value::Null).await.status, 204);
        assert_eq!(served.operate("DELETE", &path(&grant), &Value::Null).await.status, 204);
        let refused = served.race(&mine, &grant, count).await;
        all_say(&refused, (409, "nonce_revoked", "NONCE_REVOKED"));
        assert_eq!(served.grant_state(&grant).await, "revoked");
        one_winner(served.race(&mine, &other, count).await);
        let late = served.operate("DELETE", &path(&other), &Value::Null).await;
        assert_eq!(late.said().1, "replay_nonce_consumed");
    }
    let unknown = format!("/v1/grants/{}", "ff".repeat(16));
    let none = served.operate("DELETE", &unknown, &Value::Null).await;
    assert_eq!(none.said().1, "grant_not_found");
}

async fn ledgers(served: &Served) {
    let mine = envelope("ledgers");
    let grant = served.grant(&mine).await;
    assert_eq!(served.register(&mine, &grant, 0).await.status, 201);
    let other_run = with(&mine, "run_id", "r2");
    for number in 1..=3 {
        assert_eq!(served.register(&other_run, &grant, number).await.status, 409);
    }
    let read = async |query: &str| {
        let path = format!("/v1/registrar/audit?{query}");
        served.operate("GET", &path, &Value::Null).await
    };
    let refused = read("ledger=failures&limit=2").await;
    let outcomes = |page: &Response| -> Vec<(String, String)> {
        let items = page.body["items"].as_array().unwrap().iter();
        let word = |item: &Value, field: &str| item[field].as_str().unwrap_or("").to_owned();
        items.map(|item| (word(item, "attempt_id"), word(item, "outcome"))).collect()
    };
    let bypass = |number: u32| (format!("attempt-{number}"), "REPLAY_ATTEMPT_NO_BYPASS".to_owned());
    assert_eq!(outcomes(&refused), [bypass(3), bypass(2)], "the newest first");
    assert_eq!(refused.body["items"][0]["nonce"], grant["nonce"]);
    let next = refused.body["next"].as_str().expect("one more").to_owned();
    let rest = served.operate("GET", &next, &Value::Null).await;
    assert_eq!((outcomes(&rest), &rest.body["next"]), (vec![bypass(1)], &Value::Null));
    let attempts = read("ledger=attempts").await;
    let events: Vec<&str> = attempts.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|item| item["event"].as_str().unwrap())
        .collect();
    assert_eq!(events[..2], ["started", "closed"], "{attempts:?}");
    for wrong in ["", "ledger=none", "ledger=attempts&before=0", "ledger=attempts&more=1"] {
        assert_eq!(read(wrong).await.status, 400, "{wrong}");
    }
    let stranger = served.ask("GET", "/v1/registrar/audit?ledger=failures", "", "").await;
    assert_eq!(stranger.status, 401);
}

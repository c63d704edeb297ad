//! SIGKILL of the client between any two statements to PostgreSQL, with several attempts under way:
//! each effect is there with everything that belongs to it or not at all, and `resolve` tells
//! which.

use futures_util::future::join_all;
use semel_registrar::decide::{Gate, Outcome};
use semel_registrar::envelope::Envelope;
use semel_registrar::grant::Grant;
use semel_registrar::key::LogicalRequestKey;
use semel_registrar::registrar::Registrar;
use semel_testkit::clock::SimClock;
use semel_testkit::crash::postgres::Points;
use semel_testkit::crash::{self, Child, Left};
use semel_testkit::servers;
use tokio_postgres::Client;

use crate::crash::{block_on, try_it};
use crate::support::{NOW, alone, envelope, postgres_store, server_of, start, through, with};

const ADDRESS: &str = "address";
/// Under way at once, so that they share transactions.
const EFFECTS: usize = 3;

fn of(target: &str, run: &str) -> Envelope {
    let text = with(&envelope(target), "run_id", run).to_string();
    Envelope::parse(text.as_bytes()).unwrap()
}

fn mine(number: usize) -> Envelope {
    of(&format!("killed/{number}"), "r1")
}

async fn granted(registrar: &Registrar, envelope: &Envelope) -> Grant {
    registrar.grant_issue(envelope, (None, None)).await.unwrap().unwrap()
}

#[test]
fn nothing_or_everything_between_any_two_statements() {
    let clock = SimClock::at_ms(NOW.0);
    let mut seen = [0, 0];
    let points = crash::every_point(
        "crash_postgres::nothing_or_everything_between_any_two_statements",
        |child| block_on(work(child, &clock)),
        |left| block_on(judge(left, &clock, &mut seen)),
    );
    assert!(points > 10, "only {points} crash points");
    assert!(seen[0] > 3 && seen[1] > 3, "{seen:?}");
}

async fn work(child: &Child, clock: &SimClock) {
    let address = servers::fresh_postgres().await;
    std::fs::write(child.folder.join(ADDRESS), &address).unwrap();
    let points = Points::start(server_of(&address).await).await;
    let store = postgres_store(&through(points.address(), &address)).await;
    let registrar = start(store, clock).await.unwrap();
    registrar.gate_set("deploys", Gate::Open).await.unwrap();
    let mut grants = Vec::new();
    for number in 0..EFFECTS {
        let grant = granted(&registrar, &mine(number)).await;
        let file = child.folder.join(number.to_string());
        std::fs::write(file, grant.to_json().to_string()).unwrap();
        grants.push(grant);
    }
    // Every statement is prepared before the points begin.
    let first = granted(&registrar, &of("first", "r1")).await;
    let answer = try_it(&registrar, &first, of("first", "r1"), "first").await;
    assert_eq!(answer.outcome, Outcome::Registered);
    let answer = try_it(&registrar, &first, of("first", "r2"), "second").await;
    assert_eq!(answer.outcome, Outcome::NoBypass);
    points.arm();
    let each = grants.iter().enumerate().map(async |(number, grant)| {
        let answer = try_it(&registrar, grant, mine(number), "first").await;
        assert_eq!(answer.outcome, Outcome::Registered);
        child.acknowledge(&number.to_string());
    });
    join_all(each).await;
    let answer = try_it(&registrar, &grants[0], of("killed/0", "r2"), "second").await;
    assert_eq!(answer.outcome, Outcome::NoBypass);
}

/// What a dead process left, as a new one finds it.
async fn judge(left: &Left, clock: &SimClock, seen: &mut [u32; 2]) {
    let address = std::fs::read_to_string(left.folder.join(ADDRESS)).unwrap();
    let client = alone(&address).await;
    let registrar = start(postgres_store(&address).await, clock).await.unwrap();
    let each = (0..EFFECTS).map(|number| judge_one(left, &registrar, &client, number));
    for there in join_all(each).await {
        seen[usize::from(there)] += 1;
    }
}

async fn judge_one(left: &Left, registrar: &Registrar, client: &Client, number: usize) -> bool {
    let key = LogicalRequestKey::of(&mine(number));
    let at = format!("effect {number} at {:?}", left.point);
    let rows = async || {
        let sql = "SELECT (SELECT count(*) FROM registrar.effect_key
                            WHERE logical_request_key = $1),
                          (SELECT count(*) FROM registrar.nonce_use
                            WHERE logical_request_key = $1),
                          (SELECT count(*) FROM registrar.registration
                            WHERE logical_request_key = $1),
                          (SELECT count(*) FROM registrar.attempt
                            WHERE logical_request_key = $1)";
        let row = client.query_one(sql, &[&key.0.0.as_slice()]).await.unwrap();
        let used: [i64; 3] = [row.get(0), row.get(1), row.get(2)];
        (used, row.get::<_, i64>(3) > 0)
    };
    let (used, begun) = rows().await;
    assert!(used == [0; 3] || used == [1; 3], "half there, {at}: {used:?}");
    let there = used == [1; 3];
    assert!(begun || !there, "not in the ledger, {at}");
    let acknowledged = left.acknowledged.contains(&number.to_string());
    assert!(there || !acknowledged, "acknowledged and lost, {at}");
    let grant = Grant::parse(&std::fs::read(left.folder.join(number.to_string())).unwrap());
    let grant = grant.unwrap();
    if begun && !there {
        let early = try_it(registrar, &grant, mine(number), "too early").await;
        assert_eq!(early.outcome, Outcome::Uncertain, "{at}");
        assert_eq!(rows().await.0, [0; 3], "{at}");
    }
    let resolved = registrar.resolve(key).await.unwrap();
    assert_eq!(resolved.effect.is_some(), there, "{at}");
    assert_eq!(resolved.closed, u64::from(begun && !there), "{at}");
    let again = try_it(registrar, &grant, mine(number), "again").await;
    match resolved.effect {
        Some(effect) => {
            assert_eq!(again.outcome, Outcome::Replayed, "{at}");
            assert_eq!(again.result, Some(effect.result), "{at}");
        }
        None => assert_eq!(again.outcome, Outcome::Registered, "{at}"),
    }
    assert_eq!(rows().await.0, [1; 3], "{at}");
    there
}

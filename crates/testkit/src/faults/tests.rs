//! The faults themselves: what a client hears of each, and that a promise which is not kept is
//! found.

use std::collections::BTreeMap;
use std::sync::Mutex;

use semel_store::Fate;

use super::*;

async fn seed(address: String) {
    connect(&address).await.batch_execute("CREATE TABLE word (said TEXT)").await.expect("a table");
}

async fn open(faulty: &Faulty) -> Postgres {
    Postgres::open(faulty.options(), &[], 0).await.expect("the server answers")
}

async fn say(postgres: &Postgres) -> Result<(), StoreError> {
    let tx = postgres.begin().await?;
    tx.execute("INSERT INTO word (said) VALUES ($1)", &[&"yes"]).await?;
    tx.commit().await
}

async fn said_so_far(faulty: &Faulty) -> i64 {
    let row = faulty.look().await.query_one("SELECT count(*) FROM word", &[]).await;
    row.expect("a row").get(0)
}

/// BEGIN, prepare, INSERT, COMMIT.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_of_a_transaction_is_true_whatever_happens_to_it() {
    let seen: Mutex<BTreeMap<(&str, i64), u32>> = Mutex::default();
    let tried = every_fault(seed, async |faulty| {
        let postgres = open(faulty).await;
        let told = faulty.alone(say(&postgres)).await;
        let there = said_so_far(faulty).await;
        let word = match told.map_err(|error| error.fate()) {
            Ok(()) => "done",
            Err(Fate::Undone) => "undone",
            Err(Fate::Uncertain) => "uncertain",
        };
        *seen.lock().expect("a count").entry((word, there)).or_default() += 1;
        assert!(
            !(word == "done" && there != 1 || word == "undone" && there != 0),
            "{word} {there}"
        );
    })
    .await;
    assert_eq!((tried.requests, tried.singles), (4, 32));
    let seen = seen.into_inner().expect("a count");
    let kinds: Vec<_> = seen.keys().copied().collect();
    assert_eq!(kinds, [("done", 1), ("uncertain", 0), ("uncertain", 1), ("undone", 0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_an_answer_that_was_lost_for_a_no_is_found() {
    let run = every_fault(seed, async |faulty| {
        let postgres = open(faulty).await;
        if faulty.alone(say(&postgres)).await.is_err() {
            assert_eq!(said_so_far(faulty).await, 0, "it was said after all");
        }
    });
    let found = AssertUnwindSafe(run).catch_unwind().await.expect_err("it is found");
    let found = said(found.as_ref());
    for told in ["CutAfter at 3 (COMMIT)", "Late at 3 (COMMIT)", "Outage at 3 (COMMIT)"] {
        assert!(found.contains(told), "{told} is not in {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn others_have_their_turn_while_a_request_is_held_up() {
    let turns = AtomicUsize::new(0);
    let tried = every_fault(seed, async |faulty| {
        let postgres = open(faulty).await;
        let meanwhile = async {
            turns.fetch_add(1, Ordering::SeqCst);
        };
        let _ = faulty.during(say(&postgres), meanwhile).await;
    })
    .await;
    // Those of the first fault, and some of the second.
    let turns = turns.load(Ordering::SeqCst);
    assert!(turns >= 8 && turns < tried.singles + tried.pairs, "{turns} turns");
}

//! Arbitrary sequences of batches, retries, conflicts, new sessions and revocations: both stores
//! give equal answers and equal deliveries, and a batch equals its items one by one.

use proptest::prelude::*;
use semel_broker::accept::Verdict;
use semel_broker::store::MemberStatus;

use crate::support::{self, Fixture, pubkey};

#[derive(Debug, Clone)]
enum Step {
    Sends(Vec<Send>),
    Hello(usize),
    Revoke(usize),
    Acknowledge { member: usize, seq: i64 },
}

#[derive(Debug, Clone)]
struct Send {
    sender: usize,
    id: u8,
    to: usize,
    body: u8,
}

fn step() -> impl Strategy<Value = Step> {
    let send = (0..3_usize, 0..12_u8, 0..6_usize, 0..2_u8)
        .prop_map(|(sender, id, to, body)| Send { sender, id, to, body });
    prop_oneof![
        12 => prop::collection::vec(send, 1..8).prop_map(Step::Sends),
        2 => (0..3_usize).prop_map(Step::Hello),
        1 => (1..3_usize).prop_map(Step::Revoke),
        2 => (0..3_usize, 0..20_i64).prop_map(|(member, seq)| Step::Acknowledge { member, seq }),
    ]
}

/// How a batch is handed to the store.
#[derive(Clone, Copy)]
enum Handing {
    Whole,
    OneByOne,
}

/// Everything that can be seen from outside: the verdicts, then what waits for whom.
async fn observe(mut f: Fixture, steps: &[Step], handing: Handing) -> Vec<String> {
    let (builds, two, nobody) = ("builds".to_owned(), pubkey(2), pubkey(99));
    let places = [
        ("topic", builds.as_str()),
        ("topic", "nowhere"),
        ("dm", two.as_str()),
        ("dm", nobody.as_str()),
        ("queue", "work"),
        ("queue", "nowhere"),
    ];
    let mut seen = Vec::new();
    for step in steps {
        match step {
            Step::Sends(sends) => {
                let item = |s: &Send| {
                    f.item(s.sender, &format!("id-{}", s.id), places[s.to], &s.body.to_string())
                };
                let items: Vec<_> = sends.iter().map(item).collect();
                let verdicts = match handing {
                    Handing::Whole => f.accept(items).await,
                    Handing::OneByOne => {
                        let mut verdicts = Vec::new();
                        for item in items {
                            verdicts.push(f.accept_one(item).await);
                        }
                        verdicts
                    }
                };
                seen.extend(verdicts.iter().map(shown));
            }
            Step::Hello(number) => {
                let new = f.new_session(*number, *number);
                // Every other session of a member stays with its old epoch and goes stale.
                match f.store.hello(&new).await.unwrap() {
                    semel_broker::store::Greeted::Welcome { session, .. } => {
                        seen.push("welcome".to_owned());
                        f.sessions[*number] = session;
                    }
                    other => seen.push(format!("{other:?}")),
                }
            }
            Step::Revoke(number) => {
                let member = f.members[*number];
                let (revoked, audited) = (MemberStatus::Revoked, f.audited());
                let ended = f.store.member_end(f.mesh_id, member, revoked, audited).await;
                seen.push(format!("revoked {:?}", ended.unwrap()));
            }
            Step::Acknowledge { member, seq } => {
                let recipient = f.members[*member].as_uuid();
                let done = f.done(recipient, *seq).await;
                seen.push(format!("acknowledged {done}"));
            }
        }
    }
    for member in 0..3 {
        let recipient = f.members[member].as_uuid();
        let waiting = support::deliveries(&f.store, f.mesh_id, recipient, (0, 1000)).await.unwrap();
        seen.extend(
            waiting.whole.iter().map(|delivery| format!("{member} waits for {delivery:?}")),
        );
    }
    seen
}

/// Verdicts name ids that were minted in the same order in every run, so they compare as text.
fn shown(verdict: &Verdict) -> String {
    format!("{verdict:?}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn both_stores_answer_alike_whole_or_one_by_one(steps in prop::collection::vec(step(), 1..16)) {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        let reference = runtime.block_on(async {
            observe(support::sqlite().await, &steps, Handing::OneByOne).await
        });
        let sqlite = runtime.block_on(async {
            observe(support::sqlite().await, &steps, Handing::Whole).await
        });
        let postgres = runtime.block_on(async {
            observe(support::postgres().await, &steps, Handing::Whole).await
        });
        prop_assert_eq!(&sqlite, &reference);
        prop_assert_eq!(&postgres, &reference);
    }
}

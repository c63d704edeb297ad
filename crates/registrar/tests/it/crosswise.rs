//! Many attempts that share keys and nonces crosswise, from several registrars over one database:
//! their batches never wait for each other, and each key and each nonce is used once.

use std::collections::HashSet;

use futures_util::future::join_all;
use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_crypto::keys::KeyPair;
use semel_registrar::decide::{Gate, Outcome};
use semel_registrar::envelope::Envelope;
use semel_registrar::grant::{Grant, Nonce};
use semel_registrar::key::LogicalRequestKey;
use semel_registrar::registrar::Asked;
use semel_testkit::clock::SimClock;
use semel_testkit::servers;

use crate::support::{NOW, alone, envelope, postgres_store, start};

const REGISTRARS: usize = 3;
const KEYS: usize = 24;
/// Each nonce is signed for so many keys, each key has so many nonces.
const SHIFTS: usize = 6;
const ROUNDS: usize = 4;

/// The attempt for a key by the nonce of another one.
fn asked(round: usize, key: usize, nonce: usize) -> Asked {
    let text = envelope(&format!("crosswise/{round}/{key}")).to_string();
    let envelope = Envelope::parse(text.as_bytes()).unwrap();
    let mut bytes = [u8::try_from(round + 1).unwrap(); 16];
    // The order of the nonces is not that of the keys, and their locks differ.
    bytes[0] = u8::try_from(nonce * 37 % 251).unwrap();
    let (authority, window) = (KeyPair::from_secret(&[9; 32]), (UnixMs(0), UnixMs(i64::MAX)));
    let of = LogicalRequestKey::of(&envelope);
    let grant = Grant::issue(&authority, "deploys", Nonce(Hex(bytes)), of, window);
    Asked { envelope, grant, attempt_id: format!("{key} by {nonce}") }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_several_registrars_never_wait_for_each_other() {
    let address = servers::fresh_postgres().await;
    let clock = SimClock::at_ms(NOW.0);
    let mut registrars = Vec::new();
    for _ in 0..REGISTRARS {
        registrars.push(start(postgres_store(&address).await, &clock).await.unwrap());
    }
    registrars[0].gate_set("deploys", Gate::Open).await.unwrap();
    let trusted = asked(ROUNDS, 0, 0).envelope;
    registrars[0].grant_issue(&trusted, (None, None)).await.unwrap();
    let mut won_in_all = 0;
    for round in 0..ROUNDS {
        let pairs = (0..SHIFTS).flat_map(|shift| {
            (0..KEYS).map(move |at| {
                // Half of them come from the other end.
                let key = if shift % 2 == 0 { at } else { KEYS - 1 - at };
                (shift % REGISTRARS, key, (key + shift) % KEYS)
            })
        });
        let answers = join_all(pairs.map(async |(by, key, nonce)| {
            let answer = registrars[by].register(asked(round, key, nonce)).await;
            (key, nonce, answer.unwrap().unwrap().outcome)
        }))
        .await;
        let won: Vec<_> = answers.iter().filter(|won| won.2 == Outcome::Registered).collect();
        let keys: HashSet<usize> = won.iter().map(|won| won.0).collect();
        let nonces: HashSet<usize> = won.iter().map(|won| won.1).collect();
        assert_eq!((keys.len(), nonces.len()), (won.len(), won.len()), "{won:?}");
        for (key, nonce, said) in &answers {
            let lost_to = keys.contains(key) || nonces.contains(nonce);
            assert!(lost_to || *said == Outcome::Uncertain, "{key} by {nonce}: {said:?}");
        }
        won_in_all += i64::try_from(won.len()).unwrap();
    }
    assert!(won_in_all >= i64::try_from(ROUNDS * KEYS / 2).unwrap(), "{won_in_all}");
    // A server counts what it had to undo when its connections have ended.
    drop(registrars);
    let client = alone(&address).await;
    let sql = "SELECT (SELECT count(*) FROM registrar.effect_key),
                      (SELECT count(*) FROM registrar.nonce_use),
                      (SELECT count(*) FROM registrar.registration),
                      (SELECT deadlocks FROM pg_stat_database WHERE datname = current_database())";
    let row = client.query_one(sql, &[]).await.unwrap();
    let found: Vec<i64> = (0..4).map(|column| row.get(column)).collect();
    assert_eq!(found, [won_in_all, won_in_all, won_in_all, 0]);
}

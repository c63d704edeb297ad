//! Sends without end while the sender's daemon, the receiver's and the broker are killed again and
//! again: what was accepted is in the receiver's inbox exactly once and in order, what was refused
//! is not there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_client::Client;
use serde_json::{Value, json};

use crate::process::{MESH, Mesh, arrived};

const SENDERS: usize = 8;
const DAEMON_KILLS: usize = 200;
const BROKER_KILLS: usize = 50;
/// Sends that are accepted between two kills, on average.
const BETWEEN: usize = 12;

#[tokio::test(flavor = "multi_thread")]
async fn daemons_and_a_broker_killed_under_load_lose_and_repeat_nothing() {
    let mut mesh = Mesh::new();
    // What is tested is not the limit.
    mesh.broker(&["mesh", "set", MESH, "rate_limit=1000000"]);
    let (one, two) = (mesh.join("one", "member"), mesh.join("two", "member"));
    let (mut sending, mut receiving) = (one.up(), two.up());
    let to = receiving.ready["pubkey"].as_str().unwrap().to_owned();
    let (accepted, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut senders = tokio::task::JoinSet::new();
    for number in 0..SENDERS {
        let (client, to) = (one.client(), to.clone());
        let (accepted, stop) = (Arc::clone(&accepted), Arc::clone(&stop));
        senders.spawn(async move { run_sender(number, &client, &to, &accepted, &stop).await });
    }
    let mut random = Lottery(0x5e_3e1);
    let mut kills: Vec<Victim> = [Victim::Sender, Victim::Receiver].repeat(DAEMON_KILLS / 2);
    kills.extend(vec![Victim::Broker; BROKER_KILLS]);
    while !kills.is_empty() {
        let victim = kills.swap_remove(random.below(kills.len()));
        let until = accepted.load(Ordering::SeqCst) + random.below(2 * BETWEEN);
        while accepted.load(Ordering::SeqCst) < until {
            tokio::task::yield_now().await;
        }
        match victim {
            Victim::Sender => {
                sending.kill();
                sending = one.up();
            }
            Victim::Receiver => {
                receiving.kill();
                receiving = two.up();
            }
            Victim::Broker => {
                mesh.broker.take().unwrap().kill();
                mesh.serve();
            }
        }
    }
    stop.store(1, Ordering::SeqCst);
    let sent: Vec<usize> = {
        let mut sent = senders.join_all().await;
        sent.sort_unstable();
        sent.into_iter().map(|(_, count)| count).collect()
    };
    let total: usize = sent.iter().sum();
    let messages = arrived(&two, total).await;
    check(&sent, &messages);
    mesh.broker(&["check"]);
    let outbox = one.run_json(&["outbox", "list", "--failed"]);
    assert_eq!(outbox["items"], json!([]), "nothing that was accepted is dead");
}

#[derive(Clone, Copy)]
enum Victim {
    Sender,
    Receiver,
    Broker,
}

/// Numbers that are the same in every run.
struct Lottery(u64);

impl Lottery {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

/// Sends one after the other, each until it is accepted, and now and then something else under an
/// id that is taken.
async fn run_sender(
    number: usize,
    client: &Client,
    to: &str,
    accepted: &AtomicUsize,
    stop: &AtomicUsize,
) -> (usize, usize) {
    let mut count = 0;
    while stop.load(Ordering::SeqCst) == 0 {
        let key = format!("{number}-{count}");
        send_until(client, to, &key, &format!("{number} {count}"), &[200, 202]).await;
        accepted.fetch_add(1, Ordering::SeqCst);
        if count % 7 == 0 {
            send_until(client, to, &key, "something else", &[409]).await;
        }
        count += 1;
    }
    (number, count)
}

async fn send_until(client: &Client, to: &str, key: &str, message: &str, wanted: &[u16]) {
    let body = json!({"to": to, "message": message});
    loop {
        match client.post("/v1/send", &body, Some(key)).await {
            Ok(answer) if wanted.contains(&answer.status) => return,
            Ok(answer) if [429, 503].contains(&answer.status) => {}
            Ok(answer) => panic!("{key}: {answer:?}"),
            // The daemon was killed: the same key again is safe.
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

fn check(sent: &[usize], messages: &[Value]) {
    let mut next: HashMap<usize, usize> = HashMap::new();
    for message in messages {
        let body = message["body"].as_str().unwrap();
        let (sender, count) = body.split_once(' ').expect("nothing that was refused is here");
        let (sender, count): (usize, usize) = (sender.parse().unwrap(), count.parse().unwrap());
        let expected = next.entry(sender).or_insert(0);
        assert_eq!(count, *expected, "of sender {sender}: each once, in the order of accept");
        *expected += 1;
    }
    for (sender, count) in sent.iter().enumerate() {
        assert_eq!(next.get(&sender).copied().unwrap_or(0), *count, "all of sender {sender}");
    }
}

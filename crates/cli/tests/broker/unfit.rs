//! A broker whose database takes no commit, or is away, says so, and so does one that is stopped.

use std::io::{Read, Write};
use std::net::TcpStream;

use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{ReadOnly, fresh_postgres};

use crate::daemon::{Daemon, pubkey};
use crate::full_disk::ready;
use crate::process::{Broker, succeeds};

/// How often a broker is stopped until it has read half a question before.
const STOPS_MAX: usize = 20;

/// Asks until it is ready, or is not and says why.
async fn until(broker: &Broker, wanted: Result<(), &str>) {
    let asking = async {
        while ready(broker) != wanted.map_err(str::to_owned) {
            tokio::task::yield_now().await;
        }
    };
    let asked = tokio::time::timeout(std::time::Duration::from_secs(60), asking).await;
    assert!(asked.is_ok(), "never {wanted:?}: {:?}", ready(broker));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whose_database_takes_no_commit_is_not_ready() {
    let store = fresh_postgres().await;
    let broker = Broker::start(&store, &[]);
    until(&broker, Ok(())).await;
    let read_only = ReadOnly::make(&store).await;
    until(&broker, Err("the store accepts no writes\n")).await;
    read_only.undo().await;
    until(&broker, Ok(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whose_database_is_away_is_not_ready() {
    let (proxy, far) = Proxy::before(&fresh_postgres().await).await;
    let broker = Broker::start(&far, &[]);
    until(&broker, Ok(())).await;
    proxy.go_away();
    until(&broker, Err("the store is not reachable\n")).await;
    proxy.come_back();
    until(&broker, Ok(())).await;
}

/// What a broker answers that is stopped while somebody asks; nothing when it had read nothing yet.
async fn asked_while_stopping(store: &str) -> Option<String> {
    let mut broker = Broker::start(store, &[]);
    // It stays until everybody has gone.
    let mut daemon = Daemon::connect(&broker.url, 1).await.expect("it is let in");
    let address = broker.url.strip_prefix("ws://").unwrap().split('/').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: broker\r\n").unwrap();
    // Whoever came before has been let in by now.
    ready(&broker).unwrap();
    broker.terminate();
    while daemon.next().await.is_some() {}
    let mut answer = String::new();
    let asked = stream.write_all(b"Connection: close\r\n\r\n");
    let answered = asked.and_then(|()| stream.read_to_string(&mut answer));
    assert_eq!(broker.stop_code(), Some(0));
    answered.is_ok_and(|bytes| bytes > 0).then_some(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_stopped_is_not_ready() {
    let store = fresh_postgres().await;
    let create = ["broker", "mesh", "create", "test", "--owner", "one", "--owner-key", &pubkey(1)];
    succeeds(&[&create[..], &["--store", &store]].concat());
    for _ in 0..STOPS_MAX {
        if let Some(answer) = asked_while_stopping(&store).await {
            assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("draining\n"));
            return;
        }
    }
    panic!("it has never read the question");
}

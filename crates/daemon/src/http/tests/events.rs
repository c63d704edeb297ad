//! Events: from now on, from where one was, across restarts, each once; and the end of a daemon.

use std::time::Duration;

use semel_testkit::http::PATIENCE;
use serde_json::json;
use tokio::time::timeout;

use super::support::{Heard, Listening, options, served, served_in, served_with};
use crate::store::event::EventKind;

/// Only messages: what else happens has its own time.
const MESSAGES: &str = "/v1/events?kinds=message";

fn seqs(heard: &[Heard]) -> Vec<i64> {
    heard.iter().map(|event| event.data["seq"].as_i64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_now_and_carries_items_of_the_inbox() {
    let served = served().await;
    served.arrive(1, &["before"]).await;
    let mut stream = Listening::to(&served, MESSAGES, &[]).await;
    let mut too = Listening::to(&served, MESSAGES, &[]).await;
    served.arrive(2, &["line\nbreak"]).await;
    let heard = stream.event().await.unwrap();
    assert_eq!(heard.kind, "message");
    let items = served.get("/v1/inbox?after=1").await.json()["items"].clone();
    assert_eq!(json!([heard.data]), items);
    assert_eq!(too.event().await, Some(heard), "every stream gets everything");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_before_its_first_event_misses_nothing() {
    let served = served().await;
    served.arrive(1, &["before"]).await;
    let began = Listening::to(&served, MESSAGES, &[]).await.began;
    served.arrive(2, &["meanwhile"]).await;
    let mut resumed =
        Listening::to(&served, MESSAGES, &[("Last-Event-ID", &began.to_string())]).await;
    assert_eq!((resumed.began, seqs(&resumed.events(1).await)), (began, vec![2]));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_resumes_without_gaps_or_repetitions_also_after_a_restart() {
    let served = served().await;
    let mut stream = Listening::to(&served, MESSAGES, &[]).await;
    served.arrive(1, &["1", "2", "3"]).await;
    let heard = stream.events(3).await;
    assert_eq!(seqs(&heard), [1, 2, 3]);
    drop(stream);
    served.arrive(4, &["4", "5"]).await;

    let folder = served.stop().await.unwrap();
    let served = served_in(folder.path(), options(), None, u64::MAX).await;
    // Other events have come between, of the restart itself.
    let last = heard[2].id.to_string();
    let mut stream = Listening::to(&served, MESSAGES, &[("Last-Event-ID", &last)]).await;
    served.arrive(6, &["6"]).await;
    let more = stream.events(3).await;
    assert_eq!(seqs(&more), [4, 5, 6]);
    assert!(more.iter().all(|event| event.id > heard[2].id));

    // The header says what was seen last, the address only where it began.
    let last = more[1].id.to_string();
    let path = format!("{MESSAGES}&after={}", heard[0].id);
    let mut stream = Listening::to(&served, &path, &[("Last-Event-ID", &last)]).await;
    assert_eq!(seqs(&stream.events(1).await), [6]);
    let mut stream = Listening::to(&served, &path, &[]).await;
    assert_eq!(seqs(&stream.events(5).await), [2, 3, 4, 5, 6]);
    // A number from before the inbox was lost: all there is has happened since.
    let mut stream = Listening::to(&served, MESSAGES, &[("Last-Event-ID", "99999")]).await;
    assert_eq!(seqs(&stream.events(6).await), [1, 2, 3, 4, 5, 6]);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_missed_while_much_happens() {
    let served = served().await;
    let mut stream = Listening::to(&served, MESSAGES, &[]).await;
    let mut all = Vec::new();
    for round in 0..20_i64 {
        let bodies: Vec<String> = (0..25).map(|n| format!("{round}/{n}")).collect();
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        served.arrive(round * 25 + 1, &bodies).await;
        if round == 10 {
            // In the middle of it all, somebody loses the connection and comes back.
            all.extend(stream.events(130).await);
            let last = all.last().map(|event: &Heard| event.id.to_string()).unwrap();
            stream = Listening::to(&served, MESSAGES, &[("Last-Event-ID", &last)]).await;
        }
    }
    all.extend(stream.events(500 - all.len()).await);
    assert_eq!(seqs(&all), (1..=500).collect::<Vec<_>>());
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_chosen_and_unknown_ones_refused() {
    let served = served().await;
    let path = "/v1/events?kinds=outbox_pressure_high,message";
    let mut stream = Listening::to(&served, path, &[]).await;
    let data = json!({"pressure": "high"});
    served.engine.inbox.announce(EventKind::PeerJoin, &data);
    served.engine.inbox.announce(EventKind::OutboxPressureHigh, &data);
    let heard = stream.event().await.unwrap();
    assert_eq!(heard.kind, "outbox_pressure_high");
    assert_eq!(heard.data["pressure"], "high");
    assert_eq!(heard.data["at"], "2027-01-15T08:00:00.000Z");
    for path in ["/v1/events?kinds=", "/v1/events?kinds=mail", "/v1/events?after=-1"] {
        assert_eq!(served.get(path).await.problem(), (400, "invalid_field".to_owned()), "{path}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_news_says_so() {
    let mut options = options();
    options.keep_alive = Duration::from_millis(50);
    let served = served_with(options, None).await;
    let mut stream = Listening::to(&served, MESSAGES, &[]).await;
    for _ in 0..2 {
        while stream.line().await.unwrap() != ": nothing new" {}
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_streams() {
    let mut options = options();
    options.drain_max = PATIENCE * 10;
    let served = served_with(options, None).await;
    let mut stream = Listening::to(&served, MESSAGES, &[]).await;
    let idle = served.connect().await;
    timeout(PATIENCE, served.stop()).await.expect("it ends");
    while stream.line().await.is_some() {}
    drop(idle);
}

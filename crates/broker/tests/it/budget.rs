//! What a member may ask: questions wait, requests are told when to come again, and others notice
//! nothing of it.

use std::sync::Arc;
use std::time::Duration;

use semel_broker::limiter::{LimitRequest, questions_of, requests_of};
use semel_broker::limits::{
    QUESTIONS_MAX, QUESTIONS_TOGETHER, QUESTIONS_WINDOW, REQUESTS_OF_MEMBER_MAX,
    REQUESTS_OF_MEMBER_WINDOW,
};
use semel_wire::frame::{FromBroker, FromDaemon, HistoryRequest, QueueTake};

use crate::client::{Daemon, Served, send_frame, serve, until};
use crate::http::{Asking, ask};
use crate::support::{self, keys};

const TOPIC: (&str, &str) = ("topic", "builds");

/// Uses up what the member may ask under this name, but for `left`.
async fn use_up(served: &Served, sender: &str, (limit, window): (u32, Duration), left: u32) {
    let mesh = served.fixture.mesh_id.to_string();
    for number in 0..limit - left {
        let id = format!("used-{number}");
        let request = LimitRequest { mesh: &mesh, sender, client_message_id: &id, limit, window };
        assert_eq!(served.broker.pipeline.limiter().ask(&request).await, None);
    }
}

fn held(served: &Served) -> u64 {
    served.broker.pipeline.limiter_counts().held
}

fn history(request_id: u64) -> FromDaemon {
    FromDaemon::HistoryRequest(HistoryRequest { request_id, after_seq: 0, limit: 1 })
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_questions_wait_and_are_answered() {
    for fixture in [support::sqlite().await, support::postgres().await] {
        let served = serve(fixture).await;
        let sender = questions_of(&served.fixture.members[0].to_string());
        use_up(&served, &sender, (QUESTIONS_MAX, QUESTIONS_WINDOW), 1).await;
        let mut daemon = Daemon::welcomed(served.address, 0).await;
        // The last ones that there is room for are counted together.
        for number in 0..u64::from(QUESTIONS_TOGETHER) {
            daemon.say(&history(number)).await;
            let answer = daemon.next().await;
            assert!(
                matches!(&answer, Ok(FromBroker::History(it)) if it.request_id == number),
                "{answer:?}"
            );
        }
        assert_eq!(held(&served), 0);
        let take = QueueTake { request_id: 900, queue: "work".to_owned(), max: 1, lease_ms: None };
        daemon.say(&FromDaemon::QueueTake(take)).await;
        daemon.say(&FromDaemon::Send(send_frame("after", TOPIC, "hi"))).await;
        until(async || held(&served) > 0).await;
        // Another member, and this one's deliveries, wait for nothing.
        let mut other = Daemon::welcomed(served.address, 1).await;
        other.say(&history(7)).await;
        assert!(matches!(other.next().await, Ok(FromBroker::History(_))));
        assert_eq!(other.send(send_frame("mine", TOPIC, "hi")).await.status, 201);
        let pushed = daemon.pushed().await;
        assert_eq!(pushed.deliveries[0].client_message_id.as_str(), "mine");
        served.clock.advance(QUESTIONS_WINDOW);
        let answer = daemon.next().await;
        let Ok(FromBroker::QueueTaken(taken)) = &answer else { panic!("{answer:?}") };
        assert_eq!(taken.request_id, 900);
        let sent = daemon.answer().await;
        assert_eq!((sent.status, sent.client_message_id.as_str()), (201, "after"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_are_told_when_to_come_again() {
    for fixture in [support::sqlite().await, support::postgres().await] {
        let served = Arc::new(serve(fixture).await);
        let sender = requests_of(&served.fixture.members[1].to_string());
        let limit = (REQUESTS_OF_MEMBER_MAX, REQUESTS_OF_MEMBER_WINDOW);
        use_up(&served, &sender, limit, 1).await;
        let path = "/v1/meshes/test/topics";
        let last = Asking::new("GET", path, "").signed(&keys(1));
        assert_eq!(last.send(&served).await.status, 200);
        let again = Asking::new("GET", path, "").signed(&keys(1));
        let refused = again.send(&served).await;
        assert_eq!(refused.code(), (429, "rate_limited"), "{refused:?}");
        assert_eq!(refused.body["retry_after_ms"], 60_000);
        assert!(refused.head.contains("retry-after: 60"), "{}", refused.head);
        assert_eq!(held(&served), 1);
        assert_eq!(ask(&served, 2, "GET", path, "").await.status, 200, "others go on");
        // One that was served before is that, and not one more.
        assert_eq!(last.send(&served).await.code(), (401, "nonce_reused"));
        served.clock.advance(REQUESTS_OF_MEMBER_WINDOW);
        assert_eq!(again.send(&served).await.status, 200, "its nonce was not used");
    }
}

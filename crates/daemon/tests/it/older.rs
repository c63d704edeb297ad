//! One of a daemon's two files is put back as it was before: nothing that the broker still has is
//! missing afterwards, and nothing comes twice.

use std::path::Path;

use semel_core::outbox::OutboxStatus;
use semel_daemon::engine::Engine;
use semel_daemon::store::inbox::Message;

use crate::support::{Host, Mesh, arrived, dm, row, send, texts};

/// Sends so many more, and gives all that has arrived then.
async fn exchange(one: &Engine, two: &Engine, from: usize, to: usize) -> Vec<Message> {
    for number in from..to {
        send(one, dm(&format!("dm-{number}"), 1, &format!("{number}"))).await;
    }
    let messages = arrived(two, to).await;
    // How far the inbox goes rides along with the next commit: a send makes one.
    let ride = format!("ride-{to}");
    send(two, dm(&ride, 1, "to myself")).await;
    row(two, &ride, |row| row.status == OutboxStatus::Done).await;
    messages
}

fn put_back(copy: &Path, file: &Path) {
    for suffix in ["-wal", "-shm", ".sums"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    std::fs::copy(copy, file).unwrap();
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

/// What was said to this member by the other, in the order of arrival.
fn of_the_other(messages: &[Message]) -> Vec<String> {
    let mut texts = texts(messages);
    texts.retain(|text| text != "to myself");
    texts
}

async fn announced(engine: &Engine) -> Vec<String> {
    let events = engine.inbox.events(0, 10_000).await.unwrap();
    let news = events.iter().filter_map(|event| event.message.as_ref());
    news.map(|it| it.arrived.client_message_id.as_str().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_inbox_gets_everything_that_it_lacks_once() {
    let mesh = Mesh::of(2).await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start().await, two.start().await);
    let first = exchange(&sender, &receiver, 0, 20).await;
    receiver.inbox.reader_set("me", first[9].id, None).await.unwrap();
    arrived(&receiver, 21).await;
    receiver.stop().await;
    let copy = two.file("copy.db");
    std::fs::copy(two.file("inbox.db"), &copy).unwrap();
    let receiver = two.start().await;
    for number in 20..120 {
        send(&sender, dm(&format!("dm-{number}"), 1, &format!("{number}"))).await;
    }
    arrived(&receiver, 121).await;
    send(&receiver, dm("ride-120", 1, "to myself")).await;
    arrived(&receiver, 122).await;
    send(&receiver, dm("ride-121", 1, "to myself")).await;
    row(&receiver, "ride-121", |row| row.status == OutboxStatus::Done).await;
    arrived(&receiver, 123).await;
    receiver.stop().await;
    put_back(&copy, &two.file("inbox.db"));

    let receiver = two.start().await;
    let messages = arrived(&receiver, 123).await;
    assert_eq!(of_the_other(&messages), numbers(120), "each once, in order");
    assert_eq!(receiver.inbox.reader("me").await.unwrap(), Some(first[9].id));
    assert_eq!(messages[..20], first[..], "what was there is as it was");
    send(&sender, dm("news", 1, "120")).await;
    let messages = arrived(&receiver, 124).await;
    assert_eq!(of_the_other(&messages), numbers(121));
    let announced = announced(&receiver).await;
    let of_old = |id: &&String| id.starts_with("dm-") || *id == "news";
    let announced: Vec<_> = announced.iter().filter(of_old).collect();
    let mut expected: Vec<String> = (0..20).map(|number| format!("dm-{number}")).collect();
    expected.push("news".to_owned());
    assert_eq!(announced, expected.iter().collect::<Vec<_>>(), "nothing is announced twice");
    sender.stop().await;
    receiver.stop().await;
    // And nothing of it comes again after the next start.
    let receiver = two.start().await;
    assert_eq!(of_the_other(&arrived(&receiver, 124).await), numbers(121));
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_outbox_changes_nothing_in_the_inbox() {
    let mesh = Mesh::of(2).await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start().await, two.start().await);
    exchange(&sender, &receiver, 0, 20).await;
    arrived(&receiver, 21).await;
    receiver.stop().await;
    let copy = two.file("copy.db");
    std::fs::copy(two.file("outbox.db"), &copy).unwrap();
    let receiver = two.start().await;
    for number in 20..60 {
        send(&sender, dm(&format!("dm-{number}"), 1, &format!("{number}"))).await;
    }
    arrived(&receiver, 61).await;
    receiver.stop().await;
    put_back(&copy, &two.file("outbox.db"));
    send(&sender, dm("away", 1, "60")).await;

    let receiver = two.start().await;
    assert_eq!(of_the_other(&arrived(&receiver, 62).await), numbers(61), "each once, in order");
    let announced = announced(&receiver).await;
    assert_eq!(announced.len(), 62, "each once: {announced:?}");
    sender.stop().await;
    receiver.stop().await;
}

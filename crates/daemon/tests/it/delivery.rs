//! What is accepted arrives, once and in order, whatever goes away meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use semel_broker::store::{NewMember, Role};
use semel_core::canonical::Meta;
use semel_core::clock::UnixMs;
use semel_core::envelope::{Destination, DestinationKind, Envelope};
use semel_core::id::{ClientMessageId, UuidId};
use semel_core::outbox::{Accept, OutboxStatus, Outcome};
use semel_daemon::broker_api::ApiError;
use semel_daemon::engine::Engine;
use semel_daemon::link::{Fatal, LinkState};
use semel_daemon::outbox::NewSend;
use semel_daemon::store::outbox::{Accepted, Draft};
use semel_store::OpenError;
use uuid::Uuid;

use crate::support::{Host, Mesh, arrived, dm, post, pubkey, row, send, state, texts};

#[tokio::test(flavor = "multi_thread")]
async fn a_send_arrives_once_at_everybody_who_should_have_it() {
    let mesh = Mesh::of(3).await;
    let hosts: Vec<Host> = (0..3).map(|number| Host::new(number, mesh.url())).collect();
    let (one, two, three) =
        (hosts[0].start().await, hosts[1].start().await, hosts[2].start().await);
    let answer = send(&one, post("post-1", "to all")).await;
    assert!(matches!(answer.accepted, Accepted::Inserted { .. }));
    assert_eq!(texts(&arrived(&two, 1).await), ["to all"]);
    assert_eq!(texts(&arrived(&three, 1).await), ["to all"]);
    send(&two, dm("dm-1", 2, "to three")).await;
    assert_eq!(texts(&arrived(&three, 2).await), ["to all", "to three"]);
    let done = row(&one, "post-1", |row| row.status == OutboxStatus::Done).await;
    assert!(done.delivery.is_some());
    // The same again is the same.
    let again = send(&one, post("post-1", "to all")).await;
    assert!(matches!(again.accepted, Accepted::Found { .. }));
    send(&one, post("post-2", "more")).await;
    assert_eq!(texts(&arrived(&two, 2).await), ["to all", "more"]);
    for engine in [one, two, three] {
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_is_the_normal_case() {
    let mut mesh = Mesh::of(2).await;
    mesh.stop().await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start().await, two.start().await);
    let count = 600;
    for number in 0..count {
        send(&sender, dm(&format!("dm-{number}"), 1, &format!("{number}"))).await;
    }
    state(&sender, LinkState::Waiting).await;
    mesh.start().await;
    let messages = arrived(&receiver, count).await;
    let reconnects = |engine: &Engine| engine.link.status().reconnects.iter().sum::<u64>();
    assert_eq!(reconnects(&sender), 0, "attempts that failed are no connections");
    let expected: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    assert_eq!(texts(&messages), expected, "each once, in the order of accept");
    // Once more, now that everybody was connected.
    mesh.stop().await;
    state(&sender, LinkState::Waiting).await;
    send(&sender, dm("later", 1, "later")).await;
    mesh.start().await;
    assert_eq!(arrived(&receiver, count + 1).await.len(), count + 1);
    assert_eq!(reconnects(&sender), 1);
    sender.stop().await;
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_broker_refuses_is_dead_and_known_to_be_refused() {
    let mesh = Mesh::of(2).await;
    let host = Host::new(0, mesh.url());
    let engine = host.start().await;
    send(&engine, dm("nobody", 7, "hello")).await;
    let dead = row(&engine, "nobody", |row| row.status == OutboxStatus::Dead).await;
    assert_eq!(dead.outcome, Some(Outcome::Refused));
    assert!(dead.last_error.unwrap().contains("recipient_not_found"));
    send(&engine, dm("somebody", 0, "to myself")).await;
    assert_eq!(texts(&arrived(&engine, 1).await), ["to myself"]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_starts_again_goes_on() {
    let mut mesh = Mesh::of(2).await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    mesh.stop().await;
    let sender = one.start().await;
    for number in 0..10 {
        send(&sender, dm(&format!("dm-{number}"), 1, &format!("{number}"))).await;
    }
    sender.stop().await;
    mesh.start().await;
    let (sender, receiver) = (one.start().await, two.start().await);
    let expected: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    assert_eq!(texts(&arrived(&receiver, 10).await), expected);
    row(&sender, "dm-9", |row| row.status == OutboxStatus::Done).await;
    receiver.stop().await;
    let receiver = two.start().await;
    send(&sender, dm("dm-10", 1, "10")).await;
    assert_eq!(arrived(&receiver, 11).await.len(), 11);
    sender.stop().await;
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_delays_and_nothing_else() {
    let mut mesh = Mesh::of(2).await;
    mesh.stop().await;
    assert_eq!(mesh.plant("UPDATE mesh SET rate_limit = 50, rate_window_ms = 1000"), 1);
    mesh.start().await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start().await, two.start().await);
    let count = 1000;
    for number in 0..count {
        send(&sender, dm(&format!("dm-{number}"), 1, &format!("{number}"))).await;
    }
    let expected: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    assert_eq!(texts(&arrived(&receiver, count).await), expected, "all, once, in order");
    assert_eq!(sender.outbox.counts().await.unwrap().1, 0, "none is dead");
    sender.stop().await;
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_restored_broker_lost_is_there_again_once() {
    let mut mesh = Mesh::of(2).await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start().await, two.start().await);
    for number in 0..5 {
        send(&sender, dm(&format!("before-{number}"), 1, "before")).await;
    }
    arrived(&receiver, 5).await;
    row(&sender, "before-4", |row| row.status == OutboxStatus::Done).await;
    let backup = mesh.backup();
    for number in 0..5 {
        send(&sender, dm(&format!("lost-{number}"), 1, "lost")).await;
    }
    arrived(&receiver, 10).await;
    for number in 0..5 {
        row(&sender, &format!("lost-{number}"), |row| row.status == OutboxStatus::Done).await;
    }
    mesh.stop().await;
    mesh.restore(&backup);
    send(&sender, dm("after", 1, "after")).await;
    mesh.start().await;
    assert_eq!(arrived(&receiver, 11).await.len(), 11);
    // Everything is in the broker's history once; the receiver has nothing twice.
    let member = mesh.members[1];
    let all = async {
        loop {
            let page =
                mesh.store().history(mesh.mesh_id, member, 0, 500, usize::MAX).await.unwrap();
            if page.deliveries.len() == 11 {
                return page.deliveries;
            }
            tokio::task::yield_now().await;
        }
    };
    let history = tokio::time::timeout(crate::support::PATIENCE, all).await.expect("all of it");
    let mut ids: Vec<_> = history.iter().map(|it| it.client_message_id.clone()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 11);
    send(&sender, dm("last", 1, "last")).await;
    assert_eq!(texts(&arrived(&receiver, 12).await)[11], "last");
    sender.stop().await;
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_inbox_is_set_aside_and_rebuilt_without_announcing_anything_twice() {
    let mesh = Mesh::of(2).await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (sender, receiver) = (one.start().await, two.start().await);
    let count = 200;
    for number in 0..count {
        send(&sender, dm(&format!("dm-{number}"), 1, &format!("{number}"))).await;
    }
    let before = texts(&arrived(&receiver, count).await);
    // How far the inbox goes rides along with the next commit: a send makes one.
    send(&receiver, dm("ride", 0, "along")).await;
    arrived(&sender, 1).await;
    receiver.stop().await;
    let damaged = vec![0x5a; 8192];
    std::fs::write(two.file("inbox.db"), damaged).unwrap();
    let receiver = two.start().await;
    assert_eq!(texts(&arrived(&receiver, count).await), before);
    let aside = std::fs::read_dir(two.path()).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        let name = name.to_str().unwrap();
        name.starts_with("inbox.db.corrupt-") && !name.ends_with(".sums")
    });
    assert_eq!(aside.count(), 1);
    send(&sender, dm("news", 1, "news")).await;
    arrived(&receiver, count + 1).await;
    let events = receiver.inbox.events(0, 1000).await.unwrap();
    let news = events.iter().filter_map(|event| event.message.as_ref());
    let news: Vec<_> = news.map(|it| it.arrived.client_message_id.as_str().to_owned()).collect();
    assert_eq!(news, ["news"], "only what is new is announced");
    sender.stop().await;
    receiver.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_the_broker_is_asked_over_http() {
    let mesh = Mesh::of(2).await;
    let (one, two) = (Host::new(0, mesh.url()), Host::new(1, mesh.url()));
    let (owner, member) = (one.start().await, two.start().await);
    let name = "o'brien'); -- / deploys";
    assert!(owner.api.topic_create(name).await.unwrap());
    assert!(!owner.api.topic_create(name).await.unwrap(), "it was there");
    member.api.topic_subscribe(name).await.unwrap();
    owner.api.topic_subscribe(name).await.unwrap();
    let topics = member.api.topic_list().await.unwrap();
    assert!(topics.iter().any(|topic| topic.name == name));
    let topic = Destination::new(DestinationKind::Topic, name).unwrap();
    let envelope = Envelope::new(topic.clone(), b"hello".to_vec()).unwrap();
    let new = NewSend {
        client_message_id: None,
        to_given: format!("#{name}"),
        resolved: Ok(topic),
        draft: Draft::of(&envelope),
    };
    send(&owner, new).await;
    assert_eq!(arrived(&member, 1).await[0].arrived.topic.as_deref(), Some(name));
    assert!(owner.api.queue_create("work").await.unwrap());
    let refused = member.api.member_revoke(mesh.members[0]).await.unwrap_err();
    assert!(matches!(refused, ApiError::Refused(_)), "{refused:?}");
    // Names are known without asking again.
    let known = async {
        while owner.outbox.peers_named("member-1", 2).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, known).await.expect("members are known");
    assert_eq!(owner.outbox.peers_named("member-1", 2).await.unwrap()[0].pubkey, pubkey(1));
    // A member that is thrown out is told, and ends.
    owner.api.member_revoke(mesh.members[1]).await.unwrap();
    state(&member, LinkState::Ended).await;
    assert_eq!(member.ended().await, Fatal::Revoked);
    owner.stop().await;
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_can_be_named_while_the_first_connection_is_made() {
    let mesh = Mesh::of(2).await;
    let engine = Host::new(0, mesh.url()).start().await;
    let found = engine.peers_of(&["member-1", "nobody"], 2).await.unwrap();
    let keys = found.iter().map(|peers| peers.first().map(|peer| peer.pubkey.clone()));
    assert_eq!(keys.collect::<Vec<_>>(), [Some(pubkey(1)), None]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_just_joined_can_be_named() {
    let mesh = Mesh::of(2).await;
    let host = Host::new(0, mesh.url());
    let engine = host.start().await;
    engine.outbox.peers_known().await.unwrap();
    let bob = NewMember {
        member_id: UuidId::new(Uuid::new_v4()),
        name: "bob".to_owned(),
        role: Role::Member,
        key_id: "key-bob".to_owned(),
        pubkey: pubkey(7),
    };
    mesh.store().member_add(mesh.mesh_id, &bob, UnixMs(1)).await.unwrap();
    assert!(engine.outbox.peers_named("bob", 2).await.unwrap().is_empty(), "nobody was told");
    // Many ask at once; nobody is there of the other names.
    let names = ["bob", "nobody", "bob", "ghost"];
    let asked = names.iter().map(|name| engine.peers_of(std::slice::from_ref(name), 2));
    let found = futures_util::future::join_all(asked).await;
    let keys = found.into_iter().map(|peers| peers.unwrap()[0].first().map(|it| it.pubkey.clone()));
    let keys: Vec<_> = keys.collect();
    assert_eq!(keys, [Some(pubkey(7)), None, Some(pubkey(7)), None]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn however_many_names_are_unknown_the_broker_is_asked_once() {
    let mesh = Mesh::of(2).await;
    let host = Host::new(0, mesh.url());
    let drawn = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&drawn);
    let counting = |link: &mut semel_daemon::link::LinkOptions| {
        link.random = Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
            Uuid::new_v4().as_u128()
        });
    };
    let engine = host.start_as(1, counting).await;
    engine.outbox.peers_known().await.unwrap();
    state(&engine, LinkState::Connected).await;
    let before = drawn.load(Ordering::SeqCst);
    let names = ["ada", "member-1", "bob", "eve", "mallory"];
    let found = engine.peers_of(&names, 2).await.unwrap();
    let keys = found.iter().map(|peers| peers.first().map(|peer| peer.pubkey.clone()));
    assert_eq!(keys.collect::<Vec<_>>(), [None, Some(pubkey(1)), None, None, None]);
    // Each question to the broker is signed with a number that is drawn for it.
    // One was under way, or came when somebody was seen online.
    let asked = drawn.load(Ordering::SeqCst) - before;
    assert!(asked <= 2, "{asked}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_what_was_delivered_is_the_same_after_its_payload_is_gone() {
    let mesh = Mesh::of(2).await;
    let host = Host::new(0, mesh.url());
    let engine = host.start().await;
    let topic = Destination::new(DestinationKind::Topic, "builds").unwrap();
    let new = || {
        let meta = serde_json::json!({"mentions": [pubkey(1)], "a": 1});
        let meta = Meta::new(meta.as_object().unwrap()).unwrap();
        let envelope = Envelope::new(topic.clone(), b"hello".to_vec()).unwrap().with_meta(meta);
        let given = Some(r#"["@member-1"]"#.to_owned());
        NewSend {
            client_message_id: Some(ClientMessageId::parse("post").unwrap()),
            to_given: "#builds".to_owned(),
            resolved: Ok(topic.clone()),
            draft: Draft { mentions_given: given, ..Draft::of(&envelope) },
        }
    };
    send(&engine, new()).await;
    row(&engine, "post", |row| row.status == OutboxStatus::Done).await;
    assert_eq!(engine.outbox.prune(std::time::Duration::ZERO).await.unwrap(), 1);
    let again = send(&engine, new()).await;
    let Accepted::Found { accept, .. } = again.accepted else { panic!("{again:?}") };
    assert_eq!(accept, Accept::Duplicate);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfit_outbox_is_refused_and_left_alone() {
    let mesh = Mesh::of(1).await;
    let damaged = Host::new(0, mesh.url());
    std::fs::write(damaged.file("outbox.db"), vec![0x5a; 8192]).unwrap();
    let refused = damaged.try_start(1, |_| {}).await.err().expect("refused");
    assert!(matches!(refused, OpenError::Sqlite { .. }), "{refused:?}");
    assert_eq!(std::fs::read(damaged.file("outbox.db")).unwrap(), vec![0x5a; 8192]);
    let newer = Host::new(0, mesh.url());
    newer.start().await.stop().await;
    let sql = "INSERT INTO schema_migration (component, version, name, checksum, applied_at)
               SELECT component, 99, name, checksum, applied_at
                 FROM schema_migration WHERE component = 'outbox'";
    assert_eq!(newer.plant("outbox.db", sql), 1);
    let refused = newer.try_start(1, |_| {}).await.err().expect("refused");
    assert!(matches!(refused, OpenError::Newer { found: 99, .. }), "{refused:?}");
    let foreign = Host::new(0, mesh.url());
    foreign.start().await.stop().await;
    std::fs::copy(foreign.file("inbox.db"), foreign.file("outbox.db")).unwrap();
    semel_testkit::sqlite::forget_sums(&foreign.file("outbox.db"));
    let refused = foreign.try_start(1, |_| {}).await.err().expect("refused");
    assert!(matches!(refused, OpenError::NotOurs { .. }), "{refused:?}");
}

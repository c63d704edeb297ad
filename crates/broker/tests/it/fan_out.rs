//! Bursts to topics with many subscribers: nobody is told to come again, each session's sends keep
//! their order, and no transaction writes more rows than it may.

use semel_broker::housekeeping::sweep_once;
use semel_broker::limits::SWEEP_ROWS;
use semel_broker::meshes::Meshes;
use semel_broker::store::{MeshChange, NewMember, Role, Store};
use semel_core::clock::UnixMs;
use semel_wire::features::ConnectionPolicy;
use semel_wire::frame::FromDaemon;

use crate::client::{Daemon, Served, get, send_frame, serve, until};
use crate::support::{self, Fixture};

const TOPIC: (&str, &str) = ("topic", "builds");

/// The topic gets so many subscribers more.
async fn subscribe(fixture: &Fixture, count: usize) {
    let mesh = fixture.mesh_id.as_uuid();
    let sql = if fixture.address.is_some() {
        format!(
            "INSERT INTO mesh.topic_subscription (mesh_id, topic, member_id, from_seq)
             SELECT '{mesh}', 'builds', gen_random_uuid(), 1 FROM generate_series(1, {count})"
        )
    } else {
        format!(
            "WITH RECURSIVE one (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM one WHERE n < {count})
             INSERT INTO topic_subscription (mesh_id, topic, member_id, from_seq)
             SELECT x'{}', 'builds', randomblob(16), 1 FROM one",
            mesh.simple()
        )
    };
    assert_eq!(fixture.plant(&sql).await, count as u64);
}

/// Sends so many at once and gives their history numbers, in the order of the sends. A server on a
/// busy machine may be too slow for a transaction: what it undoes is sent again, as daemons do.
async fn burst(daemon: &mut Daemon, count: usize, server: Server) -> Vec<i64> {
    let mut seqs = vec![0; count];
    while let Some(first) = seqs.iter().position(|seq| *seq == 0) {
        let left: Vec<usize> = (first..count).filter(|number| seqs[*number] == 0).collect();
        for number in &left {
            let frame = send_frame(&format!("burst-{number}"), TOPIC, "hi");
            daemon.say(&FromDaemon::Send(frame)).await;
        }
        for _ in left {
            let result = daemon.answer().await;
            if result.status == 503 && server == Server::MayBeSlow {
                continue;
            }
            assert!(matches!(result.status, 200 | 201), "{result:?}");
            let id = result.client_message_id.as_str();
            let number: usize = id.trim_start_matches("burst-").parse().unwrap();
            seqs[number] = result.history_id.unwrap();
        }
    }
    seqs
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    None,
    MayBeSlow,
}

impl Server {
    fn of(fixture: &Fixture) -> Self {
        if fixture.address.is_some() { Self::MayBeSlow } else { Self::None }
    }
}

/// Of the batches that were run, how many wrote more rows than these.
async fn batches_above(served: &Served, rows: usize) -> u64 {
    let (status, metrics) = get(served.address, "/metrics").await;
    assert_eq!(status, 200);
    let value = |name: &str| -> u64 {
        let line = metrics.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()).unwrap().parse().unwrap()
    };
    let le = format!("semel_broker_batch_rows_bucket{{le=\"{rows}.0\"}}");
    value("semel_broker_batch_rows_count") - value(&le)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_to_many_subscribers_is_accepted_in_order() {
    const SUBSCRIBERS: usize = 1000;
    const SENDS: usize = 256;
    for fixture in [support::sqlite().await, support::postgres().await] {
        subscribe(&fixture, SUBSCRIBERS).await;
        let server = Server::of(&fixture);
        let served = serve(fixture).await;
        let mut one = Daemon::welcomed(served.address, 0).await;
        let mut other = Daemon::welcomed(served.address, 1).await;
        let seqs = burst(&mut one, SENDS, server);
        let meanwhile = async {
            for number in 0..20 {
                let to = support::pubkey(2);
                let frame = send_frame(&format!("note-{number}"), ("dm", &to), "hi");
                let status = other.send(frame).await.status;
                assert!(
                    status == 201 || (status == 503 && server == Server::MayBeSlow),
                    "{status}"
                );
            }
        };
        let (seqs, ()) = tokio::join!(seqs, meanwhile);
        assert!(seqs.is_sorted(), "{seqs:?}");
        let rows = "UPDATE mesh.delivery_queue SET attempts = 0";
        let expected = (SENDS * (SUBSCRIBERS + 2)) as u64;
        let left = served.fixture.plant(rows).await;
        // The two that are connected may have acknowledged theirs.
        assert!((SENDS * SUBSCRIBERS) as u64 <= left && left <= expected + 20, "{left}");
        assert_eq!(batches_above(&served, 4096).await, 0);
        let mesh = served.fixture.store.mesh_find("test").await.unwrap().unwrap();
        let report = served.fixture.store.check(&mesh, support::NOW).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_to_more_subscribers_than_a_batch_has_rows_is_accepted() {
    const SUBSCRIBERS: usize = 10_000;
    for fixture in [support::sqlite().await, support::postgres().await] {
        subscribe(&fixture, SUBSCRIBERS).await;
        let server = Server::of(&fixture);
        let served = serve(fixture).await;
        let mut one = Daemon::welcomed(served.address, 0).await;
        let seqs = burst(&mut one, 3, server).await;
        assert_eq!(seqs, [1, 2, 3]);
        assert_eq!(served.fixture.waiting(1).await, [1, 2, 3]);
    }
}

/// Nobody has counted these rows before: a trigger writes them.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_much_for_one_transaction_is_run_in_halves() {
    let fixture = support::sqlite().await;
    fixture.plant("CREATE TABLE ballast (n INTEGER)").await;
    let trigger = "CREATE TRIGGER ballast AFTER INSERT ON topic_message
                   BEGIN
                       INSERT INTO ballast
                       SELECT value FROM json_each('[' || substr(replace(hex(zeroblob(
                              CASE WHEN NEW.client_message_id LIKE 'burst-%' THEN 40000
                                   WHEN NEW.client_message_id LIKE 'large-%' THEN 101000
                                   ELSE 1 END)), '00', ',1'), 2) || ']');
                   END";
    fixture.plant(trigger).await;
    let served = serve(fixture).await;
    let mut one = Daemon::welcomed(served.address, 0).await;
    assert_eq!(burst(&mut one, 8, Server::None).await, [1, 2, 3, 4, 5, 6, 7, 8]);
    // One that alone is too much is told so alone, and nobody waits for it.
    assert_eq!(one.send(send_frame("large-1", TOPIC, "hi")).await.status, 503);
    assert_eq!(one.send(send_frame("small-1", TOPIC, "hi")).await.status, 201);
    let (_, metrics) = get(served.address, "/metrics").await;
    let shown = "semel_broker_batch_failures_total{why=\"too_many_rows\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(shown)).unwrap();
    assert!(line.parse::<u64>().unwrap() >= 1, "{line}");
}

/// Whoever accepts meanwhile waits for one page, not for all.
#[tokio::test(flavor = "multi_thread")]
async fn what_went_to_many_is_swept_in_pages_of_rows() {
    const SENDS: usize = 20;
    const SUBSCRIBERS: usize = 400;
    let fixture = support::sqlite().await;
    subscribe(&fixture, SUBSCRIBERS).await;
    // Deliveries are looked for by member.
    let members = "INSERT INTO member (mesh_id, member_id, name, role, status, joined_at)
                   SELECT mesh_id, member_id, hex(member_id), 'member', 'active', 1
                     FROM topic_subscription
                    WHERE true ON CONFLICT DO NOTHING";
    assert_eq!(fixture.plant(members).await, SUBSCRIBERS as u64);
    for number in 0..SENDS {
        fixture.accept_one(fixture.item(0, &format!("old-{number}"), TOPIC, "hi")).await;
    }
    let Store::Sqlite(store) = &fixture.store else { panic!("it is SQLite") };
    let before = store.sqlite().commits();
    let mesh = fixture.store.mesh_find("test").await.unwrap().unwrap();
    let later = UnixMs(support::NOW.0 + 400 * 24 * 60 * 60 * 1000);
    let swept = sweep_once(&fixture.store, &[mesh], later).await;
    assert_eq!((swept.messages, swept.failures), (SENDS as u64, Vec::new()));
    let pages = SENDS * SUBSCRIBERS / usize::try_from(SWEEP_ROWS).unwrap();
    assert!(store.sqlite().commits() - before >= pages as u64);
    assert_eq!(fixture.plant("DELETE FROM delivery_queue").await, 0);
}

/// Members who are subscribed to the topic, and connected.
async fn online(served: &Served, numbers: std::ops::Range<usize>) -> Vec<Daemon> {
    let (store, mesh_id) = (&served.fixture.store, served.fixture.mesh_id);
    let mut online = Vec::new();
    for number in numbers {
        let member = NewMember {
            member_id: served.fixture.mint.uuid(),
            name: format!("member {number}"),
            role: Role::Member,
            key_id: format!("key-{number}"),
            pubkey: support::pubkey(number),
        };
        store.member_add(mesh_id, &member, support::NOW).await.unwrap();
        assert!(store.topic_subscribe(mesh_id, TOPIC.1, member.member_id).await.unwrap());
        online.push(Daemon::welcomed(served.address, number).await);
    }
    online
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_reaches_all_who_are_connected_in_order() {
    const SENDS: usize = 60;
    for policy in [ConnectionPolicy::PreferNewest, ConnectionPolicy::AllowConcurrent] {
        for fixture in [support::sqlite().await, support::postgres().await] {
            let change = MeshChange { connection_policy: Some(policy), ..MeshChange::default() };
            let mesh = fixture.store.mesh_find("test").await.unwrap().unwrap();
            assert!(fixture.store.mesh_set(&mesh, &change, support::NOW).await.unwrap());
            let server = Server::of(&fixture);
            let served = serve(fixture).await;
            let readers = online(&served, 3..50).await.into_iter().map(|mut daemon| {
                tokio::spawn(async move {
                    let mut seqs = Vec::new();
                    while seqs.len() < SENDS {
                        let push = daemon.pushed().await;
                        seqs.extend(push.deliveries.iter().map(|delivery| delivery.seq));
                        daemon.ack(*seqs.last().unwrap()).await;
                    }
                    seqs
                })
            });
            let readers: Vec<_> = readers.collect();
            let mut one = Daemon::welcomed(served.address, 0).await;
            let sent = burst(&mut one, SENDS, server).await;
            for reader in readers {
                assert_eq!(reader.await.unwrap(), sent);
            }
        }
    }
}

/// Whoever has a turn with the store uses it, also while its connection waits for another one: else
/// all turns are held so, and nobody gets any further.
#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_holds_no_turn_that_its_own_connection_waits_for() {
    for policy in [ConnectionPolicy::PreferNewest, ConnectionPolicy::AllowConcurrent] {
        let fixture = support::postgres().await;
        let change = MeshChange { connection_policy: Some(policy), ..MeshChange::default() };
        let mesh = fixture.store.mesh_find("test").await.unwrap().unwrap();
        assert!(fixture.store.mesh_set(&mesh, &change, support::NOW).await.unwrap());
        let address = fixture.address.clone().unwrap();
        let served = serve(fixture).await;
        let mut one = Daemon::welcomed(served.address, 0).await;
        let mut others = online(&served, 3..33).await;
        let first = one.send(send_frame("first", TOPIC, "hi")).await.history_id.unwrap();
        for other in &mut others {
            assert_eq!(other.pushed().await.deliveries[0].seq, first);
        }
        let (client, connection) =
            tokio_postgres::connect(&address, tokio_postgres::NoTls).await.unwrap();
        let driving = tokio::spawn(connection);
        client.batch_execute("BEGIN; LOCK TABLE mesh.delivery_queue").await.unwrap();
        for other in &mut others {
            other.ack(first).await;
        }
        let sql = "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
                    WHERE NOT granted AND datname = current_database()";
        let waiting = async || client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
        let at_once = if policy == ConnectionPolicy::AllowConcurrent { 8 } else { 1 };
        until(async || waiting().await >= at_once).await;
        // All of them want to read meanwhile.
        served.hub.wake_meshes(&Meshes::one(served.fixture.mesh_id));
        for _ in 0..20 {
            assert!(waiting().await >= at_once);
        }
        client.batch_execute("ROLLBACK").await.unwrap();
        let second = one.send(send_frame("second", TOPIC, "hi")).await.history_id.unwrap();
        for other in &mut others {
            assert_eq!(other.pushed().await.deliveries[0].seq, second);
        }
        driving.abort();
    }
}

/// A commit wakes all of its recipients at once: they share what they ask of the store.
#[tokio::test(flavor = "multi_thread")]
async fn many_who_are_connected_are_served_with_few_statements() {
    const SENDS: usize = 8;
    let served = serve(support::postgres().await).await;
    let mut one = Daemon::welcomed(served.address, 0).await;
    let mut others = online(&served, 3..60).await;
    let Store::Postgres(store) = &served.fixture.store else { panic!("it is PostgreSQL") };
    let (before, mut pushes) = (store.statements_sent(), 0);
    for number in 0..SENDS {
        let sent = one.send(send_frame(&format!("note-{number}"), TOPIC, "hi")).await;
        let seq = sent.history_id.unwrap();
        for other in &mut others {
            let push = other.pushed().await;
            assert_eq!(push.deliveries.iter().map(|d| d.seq).collect::<Vec<_>>(), [seq]);
            other.ack(seq).await;
            pushes += 1;
        }
    }
    // One alone takes BEGIN, two reads and ROLLBACK, and to end it BEGIN, DELETE and COMMIT.
    let sent = store.statements_sent() - before;
    assert!(sent < 3 * pushes, "{sent} statements for {pushes} pushes");
}

/// A commit wakes all of its recipients at once; whoever accepts must still find a connection.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_deliveries_leaves_connections_to_others() {
    let fixture = support::postgres().await;
    let address = fixture.address.as_ref().unwrap();
    let (client, connection) =
        tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
    let driving = tokio::spawn(connection);
    client.batch_execute("BEGIN; LOCK TABLE mesh.delivery_queue").await.unwrap();
    let recipient = fixture.members[0].as_uuid();
    let readers = (0..200).map(|_| {
        let (store, mesh_id) = (fixture.store.clone(), fixture.mesh_id);
        tokio::spawn(async move {
            support::deliveries(&store, mesh_id, recipient, (0, 10)).await.is_ok()
        })
    });
    let readers: Vec<_> = readers.collect();
    let sql = "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
                WHERE NOT granted AND datname = current_database()";
    let waiting = async || client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
    until(async || waiting().await >= 8).await;
    for _ in 0..50 {
        assert_eq!(fixture.store.store_epoch().await.unwrap(), "epoch-1");
        assert!(waiting().await <= 8, "half of the pool");
    }
    client.batch_execute("ROLLBACK").await.unwrap();
    for reader in readers {
        reader.abort();
        let _ = reader.await;
    }
    driving.abort();
}

//! Ten thousand reconnects leave nothing behind but those who are there.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use semel_broker::store::{NewMember, Role};

use crate::client::{Daemon, Served, serve};
use crate::metrics::until;
use crate::support::{self, NOW, pubkey};

const DAEMONS: usize = 16;
const RECONNECTS: usize = 10_016;

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_reconnects_leave_nothing_behind() {
    let served = serve(support::sqlite().await).await;
    let fixture = &served.fixture;
    // The fixture has three members; the rest come here.
    for number in 3..DAEMONS {
        let member = NewMember {
            member_id: fixture.mint.uuid(),
            name: format!("member {number}"),
            role: Role::Member,
            key_id: format!("key-{number}"),
            pubkey: pubkey(number),
        };
        fixture.store.member_add(fixture.mesh_id, &member, NOW).await.unwrap();
    }
    let before = rows(&served);
    let coming = (0..DAEMONS).map(|number| tokio::spawn(come_and_go(served.address, number)));
    let live = futures_util::future::join_all(coming).await;
    until(&served, &format!("semel_broker_connections {DAEMONS}")).await;
    assert_eq!(served.hub.connections(), DAEMONS);
    let mut expected = before;
    expected.insert("session".to_owned(), DAEMONS);
    expected.insert("presence".to_owned(), DAEMONS);
    assert_eq!(rows(&served), expected, "no table grows by coming and going");
    drop(live);
    until(&served, "semel_broker_connections 0").await;
}

/// The last of a daemon's many connections. Every other time it comes back before it has left, so
/// that the broker closes the older one.
async fn come_and_go(address: SocketAddr, number: usize) -> Daemon {
    let mut live = Daemon::welcomed(address, number).await;
    for _ in 0..RECONNECTS / DAEMONS / 2 {
        drop(live);
        let older = Daemon::welcomed(address, number).await;
        live = Daemon::welcomed(address, number).await;
        drop(older);
    }
    live
}

/// How many rows every table of the store has.
fn rows(served: &Served) -> BTreeMap<String, usize> {
    let file = semel_testkit::sqlite::open(served.fixture.folder().join("broker.db")).unwrap();
    file.busy_timeout(crate::client::PATIENCE).unwrap();
    let mut tables = file.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
    let names = tables.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let count = |name: String| {
        let sql = format!("SELECT count(*) FROM \"{name}\"");
        let rows: i64 = file.query_row(&sql, [], |row| row.get(0)).unwrap();
        (name, usize::try_from(rows).unwrap())
    };
    names.map(|name| count(name.unwrap())).collect()
}

//! Who comes and goes, told to one daemon. It takes the room that other frames leave: what does not
//! fit is told later, and what has changed back by then is not told at all.

use std::collections::BTreeMap;

use semel_core::id::MemberId;
use semel_wire::frame::{FromBroker, Presence};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::{Connection, End};
use crate::limits::{OUTBOUND_MAX, PRESENCE_RETRY};
use crate::roster::{Roster, changes};

/// Begins once the features are agreed on.
pub(super) async fn run(connection: &Connection, negotiated: &Notify) -> End {
    negotiated.notified().await;
    let mut roster = connection.broker.rosters.subscribe(connection.mesh.mesh_id);
    let mut shown = BTreeMap::new();
    loop {
        let current = Roster::clone(&roster.borrow_and_update());
        let told = tell(connection, &current, &mut shown);
        tokio::select! {
            changed = roster.changed() => if changed.is_err() {
                roster = connection.broker.rosters.subscribe(connection.mesh.mesh_id);
            },
            () = sleep(PRESENCE_RETRY), if told == Told::Some => {}
        }
    }
}

#[derive(PartialEq, Eq)]
enum Told {
    All,
    Some,
}

/// Never waits, and leaves half of the queue to others.
fn tell(
    connection: &Connection,
    roster: &Roster,
    shown: &mut BTreeMap<MemberId, Presence>,
) -> Told {
    for change in changes(roster, shown) {
        if connection.outbound.capacity() <= OUTBOUND_MAX / 2 {
            return Told::Some;
        }
        if connection.outbound.try_send(FromBroker::Presence(change.clone())).is_err() {
            return Told::Some;
        }
        if change.online {
            shown.insert(change.member_id, change);
        } else {
            shown.remove(&change.member_id);
        }
    }
    Told::All
}

//! Who comes and goes, told to one daemon. It takes the room that other frames leave: what does not
//! fit is told later, and what has changed back by then is not told at all.

use std::collections::BTreeMap;

use semel_core::id::MemberId;
use semel_wire::frame::{FromBroker, Presence};
use tokio::sync::{Notify, mpsc};
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
        let told = tell(&connection.outbound, &current, &mut shown);
        tokio::select! {
            changed = roster.changed() => if changed.is_err() {
                roster = connection.broker.rosters.subscribe(connection.mesh.mesh_id);
            },
            () = sleep(PRESENCE_RETRY), if told == Told::Some => {}
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    All,
    Some,
}

/// Never waits, and leaves half of the queue to others.
fn tell(
    outbound: &mpsc::Sender<FromBroker>,
    roster: &Roster,
    shown: &mut BTreeMap<MemberId, Presence>,
) -> Told {
    for change in changes(roster, shown) {
        if outbound.capacity() <= OUTBOUND_MAX / 2 {
            return Told::Some;
        }
        if outbound.try_send(FromBroker::Presence(change.clone())).is_err() {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use semel_core::hex::Hex;
    use semel_core::id::UuidId;
    use uuid::Uuid;

    use super::*;

    fn roster(members: u128) -> Roster {
        let presence = |n| {
            let member_id = UuidId::new(Uuid::from_u128(n));
            let (name, pubkey) = (n.to_string(), Hex([1; 32]));
            (member_id, Presence { member_id, name, pubkey, online: true })
        };
        Arc::new((0..members).map(presence).collect())
    }

    #[test]
    fn a_reader_that_is_slow_is_told_later_and_only_what_is_true_then() {
        let (outbound, mut queue) = mpsc::channel(OUTBOUND_MAX);
        let mut shown = BTreeMap::new();
        assert_eq!(tell(&outbound, &roster(1000), &mut shown), Told::Some);
        assert_eq!(outbound.capacity(), OUTBOUND_MAX / 2, "the rest is for others");
        assert_eq!(tell(&outbound, &roster(1000), &mut shown), Told::Some);
        assert_eq!(queue.len(), OUTBOUND_MAX / 2);
        // Most have gone by the time that it reads on: of those it was not told of, it is not.
        let mut read = 0;
        while queue.try_recv().is_ok() {
            read += 1;
        }
        assert_eq!(tell(&outbound, &roster(500), &mut shown), Told::All);
        assert_eq!(queue.len(), read - 500);
        assert_eq!(shown, *roster(500));
        assert_eq!(tell(&outbound, &roster(500), &mut shown), Told::All);
        assert_eq!(queue.len(), read - 500, "nothing twice");
    }
}

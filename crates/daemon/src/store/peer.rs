//! The table `peer`: who is in the mesh, as the broker said last.

use rusqlite::{Connection, Row, params};
use semel_core::id::{MemberId, UuidId};
use semel_store::{StoreError, statements};
use uuid::Uuid;

statements! {
    FORGET = "DELETE FROM peer";

    ADD = "
        INSERT INTO peer (member_id, name, pubkey, role, profile)
        VALUES (?1, ?2, ?3, ?4, ?5)
            ON CONFLICT DO UPDATE SET name = excluded.name, pubkey = excluded.pubkey,
                                      role = excluded.role, profile = excluded.profile";

    NAMED = "
        SELECT member_id, name, pubkey, role, profile
          FROM peer
         WHERE name = ?1
         ORDER BY pubkey
         LIMIT ?2";

    LIST = "
        SELECT member_id, name, pubkey, role, profile
          FROM peer
         WHERE member_id > ?1
         ORDER BY member_id
         LIMIT ?2";
}

/// A member of the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its key.
    pub member_id: MemberId,
    /// What it is called; several may be called the same.
    pub name: String,
    /// Its current public key.
    pub pubkey: String,
    /// What it may do.
    pub role: String,
    /// What it says of itself, as JSON.
    pub profile: String,
}

/// Replaces everybody.
pub fn replace_in_tx(tx: &Connection, peers: &[Peer]) -> Result<(), StoreError> {
    tx.prepare_cached(FORGET)?.execute([])?;
    peers.iter().try_for_each(|peer| add_in_tx(tx, peer))
}

/// Adds somebody, or what is new about it.
pub fn add_in_tx(tx: &Connection, peer: &Peer) -> Result<(), StoreError> {
    let member = peer.member_id.as_uuid().into_bytes();
    let by = params![member, peer.name, peer.pubkey, peer.role, peer.profile];
    tx.prepare_cached(ADD)?.execute(by)?;
    Ok(())
}

/// Those of that name, up to `limit`.
pub fn named(connection: &Connection, name: &str, limit: i64) -> Result<Vec<Peer>, StoreError> {
    let mut statement = connection.prepare_cached(NAMED)?;
    let rows = statement.query_map(params![name, limit], peer)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Everybody after this one, in the order of their ids.
pub fn list(
    connection: &Connection,
    after: Option<MemberId>,
    limit: i64,
) -> Result<Vec<Peer>, StoreError> {
    let after = after.map_or([0; 16], |id| id.as_uuid().into_bytes());
    let mut statement = connection.prepare_cached(LIST)?;
    let (mut found, mut after, mut left) = (Vec::new(), after, limit);
    // As long as it was asked to be, whatever is passed over.
    while left > 0 {
        let (mut rows, mut count) = (statement.query(params![after, left])?, 0);
        while let Some(row) = rows.next()? {
            (after, count) = (row.get(0)?, count + 1);
            match peer(row) {
                Ok(peer) => found.push(peer),
                Err(error) => tracing::error!(%error, "a member of the mesh cannot be shown"),
            }
        }
        if count < left {
            break;
        }
        left = limit - i64::try_from(found.len()).unwrap_or(limit);
    }
    Ok(found)
}

fn peer(row: &Row<'_>) -> rusqlite::Result<Peer> {
    let member: [u8; 16] = row.get(0)?;
    Ok(Peer {
        member_id: UuidId::new(Uuid::from_bytes(member)),
        name: row.get(1)?,
        pubkey: row.get(2)?,
        role: row.get(3)?,
        profile: row.get(4)?,
    })
}

//! The table `session`: which connection speaks for a daemon (mesh.md §10). On SQLite the writer
//! runs one transaction at a time, so a raise waits for every accept by going through it.

use rusqlite::{OptionalExtension, named_params};
use semel_core::id::MeshId;
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};

use super::{Key, SqliteStore, key};
use crate::accept::{Epoch, Session};
use crate::store::{Greeted, MemberStatus, NewSession};

statements! {
    MEMBER_OF_KEY = "
        SELECT member.member_id, member.status, member.name
          FROM member_key
          JOIN member ON member.mesh_id = member_key.mesh_id
                     AND member.member_id = member_key.member_id
         WHERE member_key.mesh_id = :mesh_id
           AND member_key.pubkey = :pubkey
           AND member_key.status = 'current'";

    EPOCH_TAKE = "
        UPDATE store
           SET next_session_epoch = next_session_epoch + 1
         WHERE one = 1
     RETURNING next_session_epoch - 1";

    RAISE = "
        INSERT INTO session (mesh_id, member_id, instance_id, session_epoch, broker_id)
        VALUES (:mesh_id, :member_id, :instance_id, :session_epoch, :broker_id)
            ON CONFLICT (mesh_id, member_id, instance_id)
            DO UPDATE SET session_epoch = excluded.session_epoch, broker_id = excluded.broker_id";

    EPOCH_OF = "
        SELECT session_epoch
          FROM session
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND instance_id = :instance_id";
}

impl SqliteStore {
    pub(in crate::store) async fn hello(&self, new: &NewSession) -> Result<Greeted, StoreError> {
        let new = new.clone();
        self.sqlite.write(move |tx| hello_in_tx(tx, &new)).await
    }
}

fn hello_in_tx(tx: &Tx<'_>, new: &NewSession) -> Result<Greeted, StoreError> {
    let by = named_params! {":mesh_id": key(new.mesh_id), ":pubkey": new.pubkey};
    let found: Option<(Key, String, String)> = tx
        .prepare_cached(MEMBER_OF_KEY)?
        .query_row(by, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let Some((member_id, status, name)) = found else { return Ok(Greeted::Unknown) };
    if status != MemberStatus::Active.as_str() {
        return Ok(Greeted::Inactive);
    }
    let epoch: i64 = tx.prepare_cached(EPOCH_TAKE)?.query_row([], |row| row.get(0))?;
    let session = Session { member_id: member_id.id(), instance_id: new.instance_id, epoch };
    tx.prepare_cached(RAISE)?.execute(named_params! {
        ":mesh_id": key(new.mesh_id), ":member_id": key(session.member_id),
        ":instance_id": key(session.instance_id), ":session_epoch": epoch,
        ":broker_id": key(new.broker_id),
    })?;
    Ok(Greeted::Welcome { session, name })
}

/// A missing row is stale, like any other number.
pub(super) fn epoch_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    session: &Session,
) -> Result<Epoch, StoreError> {
    let by = named_params! {
        ":mesh_id": key(mesh_id), ":member_id": key(session.member_id),
        ":instance_id": key(session.instance_id),
    };
    let now: Option<i64> =
        tx.prepare_cached(EPOCH_OF)?.query_row(by, |row| row.get(0)).optional()?;
    Ok(if now == Some(session.epoch) { Epoch::Current } else { Epoch::Stale })
}

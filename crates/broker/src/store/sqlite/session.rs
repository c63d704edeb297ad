//! The tables `session` and `retired_instance`: which connection speaks for a daemon (mesh.md §10).
//! On SQLite the writer runs one transaction at a time, so a raise waits for every accept by going
//! through it.

use rusqlite::{Connection, OptionalExtension, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::{InstanceId, MemberId, MeshId};
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};

use super::audit::audit_in_tx;
use super::presence::{presence_end_in_tx, presence_in_tx, presence_others_end_in_tx};
use super::{Beating, Key, SqliteStore, exists, key};
use crate::accept::{Epoch, Session};
use crate::limits::RETIRED_OF_MEMBER_MAX;
use crate::store::session::{Admission, Connected, Greeter, policy};
use crate::store::{Greeted, NewSession};

statements! {
    MEMBER_OF_KEY = "
        SELECT member.member_id, member.name, member.status, member_key.status,
               mesh.clone_concurrency_policy, store.store_epoch, member_key.key_id
          FROM member_key
          JOIN member ON member.mesh_id = member_key.mesh_id
                     AND member.member_id = member_key.member_id
          JOIN mesh ON mesh.mesh_id = member_key.mesh_id
          JOIN store ON store.one = 1
         WHERE member_key.mesh_id = :mesh_id
           AND member_key.pubkey = :pubkey";

    RETIRED = "
        SELECT 1
          FROM retired_instance
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND instance_id = :instance_id";

    CONNECTED = "
        SELECT instance_id, host_fingerprint, heartbeat_at
          FROM presence
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id";

    RETIRED_COUNT = "
        SELECT count(*)
          FROM retired_instance
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id";

    RETIRE = "
        INSERT INTO retired_instance (mesh_id, member_id, instance_id, retired_at)
        VALUES (:mesh_id, :member_id, :instance_id, :now)
            ON CONFLICT DO NOTHING";

    SESSION_END = "
        DELETE FROM session
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND instance_id = :instance_id";

    SESSIONS_OTHERS_END = "
        DELETE FROM session
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND instance_id <> :instance_id";

    EPOCH_TAKE = "
        UPDATE store
           SET next_session_epoch = next_session_epoch + 1
         WHERE one = 1
     RETURNING next_session_epoch - 1";

    RAISE = "
        INSERT INTO session (mesh_id, member_id, instance_id, session_epoch, broker_id, hello_nonce)
        VALUES (:mesh_id, :member_id, :instance_id, :session_epoch, :broker_id, :hello_nonce)
            ON CONFLICT (mesh_id, member_id, instance_id)
            DO UPDATE SET session_epoch = excluded.session_epoch,
                          broker_id = excluded.broker_id,
                          hello_nonce = excluded.hello_nonce";

    EPOCH_OF = "
        SELECT session_epoch
          FROM session
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND instance_id = :instance_id";
}

impl SqliteStore {
    pub(in crate::store) async fn hello(&self, new: &NewSession) -> Result<Greeted, StoreError> {
        let (new, beating) = (new.clone(), self.beating(new.pulse));
        self.sqlite.write(move |tx| hello_in_tx(tx, &new, beating)).await
    }
}

fn hello_in_tx(tx: &Tx<'_>, new: &NewSession, beating: Beating) -> Result<Greeted, StoreError> {
    let by = named_params! {":mesh_id": key(new.mesh_id), ":pubkey": new.pubkey};
    let found = tx.prepare_cached(MEMBER_OF_KEY)?.query_row(by, |row| {
        let greeter = Greeter {
            member_status: row.get(2)?,
            key_status: row.get(3)?,
            key_id: row.get(6)?,
            store_epoch: row.get(5)?,
            is_retired: false,
        };
        Ok((row.get::<_, Key>(0)?.id(), row.get(1)?, row.get::<_, String>(4)?, greeter))
    });
    let Some((member_id, name, text, mut greeter)) = found.optional()? else {
        return Ok(Greeted::Unknown);
    };
    let member_id: MemberId = member_id;
    let one = named_params! {
        ":mesh_id": key(new.mesh_id), ":member_id": key(member_id),
        ":instance_id": key(new.instance_id),
    };
    greeter.is_retired = exists(tx, RETIRED, one)?;
    if let Some(refused) = greeter.refused(new) {
        return Ok(refused);
    }
    let connected = connected_in_tx(tx, new, member_id, beating)?;
    let admission = Admission::new(policy(&new.mesh_id.to_string(), &text)?, new, &connected);
    if admission.is_refused() {
        audit_in_tx(tx, new.mesh_id, &admission.events(new, member_id, &[]))?;
        return Ok(Greeted::AlreadyConnected);
    }
    if !may_retire_in_tx(tx, new, member_id)? {
        return Ok(Greeted::TooManyRetired);
    }
    let retired = retire_in_tx(tx, new, member_id)?;
    if admission.ends_others() {
        tx.prepare_cached(SESSIONS_OTHERS_END)?.execute(one)?;
        presence_others_end_in_tx(tx, new.mesh_id, member_id, new.instance_id)?;
    }
    let epoch: i64 = tx.prepare_cached(EPOCH_TAKE)?.query_row([], |row| row.get(0))?;
    let session = Session { member_id, instance_id: new.instance_id, epoch };
    tx.prepare_cached(RAISE)?.execute(named_params! {
        ":mesh_id": key(new.mesh_id), ":member_id": key(session.member_id),
        ":instance_id": key(session.instance_id), ":session_epoch": epoch,
        ":broker_id": key(new.broker_id), ":hello_nonce": new.hello_nonce.0,
    })?;
    presence_in_tx(tx, new.mesh_id, new.broker_id, &new.live(session), beating.now)?;
    audit_in_tx(tx, new.mesh_id, &admission.events(new, member_id, &retired))?;
    Ok(Greeted::Welcome { session, name, policy: admission.policy })
}

fn connected_in_tx(
    tx: &Tx<'_>,
    new: &NewSession,
    member_id: MemberId,
    beating: Beating,
) -> Result<Vec<Connected>, StoreError> {
    let by = named_params! {":mesh_id": key(new.mesh_id), ":member_id": key(member_id)};
    let mut statement = tx.prepare_cached(CONNECTED)?;
    let rows = statement.query_map(by, |row| {
        Ok(Connected {
            instance_id: row.get::<_, Key>(0)?.id(),
            host_fingerprint: row.get(1)?,
            is_live: UnixMs(row.get(2)?) > beating.live_from,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Whoever is retired is remembered for ever, also one of which this store knows nothing: it may
/// never have come, or be older than a backup. So there is a most of them.
fn may_retire_in_tx(
    tx: &Tx<'_>,
    new: &NewSession,
    member_id: MemberId,
) -> Result<bool, StoreError> {
    let mut unknown = 0;
    for instance_id in &new.retire {
        let by = named_params! {
            ":mesh_id": key(new.mesh_id), ":member_id": key(member_id),
            ":instance_id": key(*instance_id),
        };
        unknown += i64::from(!exists(tx, RETIRED, by)?);
    }
    let by = named_params! {":mesh_id": key(new.mesh_id), ":member_id": key(member_id)};
    let known: i64 = tx.prepare_cached(RETIRED_COUNT)?.query_row(by, |row| row.get(0))?;
    Ok(unknown == 0 || known + unknown <= RETIRED_OF_MEMBER_MAX)
}

/// Says which were not retired before.
fn retire_in_tx(
    tx: &Tx<'_>,
    new: &NewSession,
    member_id: MemberId,
) -> Result<Vec<InstanceId>, StoreError> {
    let mut retired = Vec::new();
    for instance_id in &new.retire {
        let made = tx.prepare_cached(RETIRE)?.execute(named_params! {
            ":mesh_id": key(new.mesh_id), ":member_id": key(member_id),
            ":instance_id": key(*instance_id), ":now": new.now.0,
        })?;
        if made == 1 {
            retired.push(*instance_id);
        }
        session_end_in_tx(tx, new.mesh_id, member_id, *instance_id)?;
    }
    Ok(retired)
}

fn session_end_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    member_id: MemberId,
    instance_id: InstanceId,
) -> Result<(), StoreError> {
    tx.prepare_cached(SESSION_END)?.execute(named_params! {
        ":mesh_id": key(mesh_id), ":member_id": key(member_id), ":instance_id": key(instance_id),
    })?;
    presence_end_in_tx(tx, mesh_id, member_id, instance_id)
}

/// A missing row is stale, like any other number.
pub(super) fn epoch_in_tx(
    tx: &Connection,
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

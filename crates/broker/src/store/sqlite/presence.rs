//! The table `presence`: who is connected to any broker, by heartbeat. A heartbeat is also the
//! question whether the connection still speaks for its daemon: a row that is not there any more
//! says that something has happened.

use rusqlite::{OptionalExtension, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::{BrokerId, InstanceId, MemberId, MeshId};
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};
use semel_wire::features::ConnectionPolicy;

use super::delivery::done_in_tx;
use super::{Beating, Key, STORE_EPOCH, SqliteStore, key};
use crate::accept::Session;
use crate::store::session::Found;
use crate::store::{Acked, Arrived, Beat, Live, Present, Pulse, Standing};

statements! {
    PRESENCE_INSERT = "
        INSERT INTO presence (mesh_id, member_id, instance_id, session_epoch, broker_id,
                              host_fingerprint, heartbeat_at)
        VALUES (:mesh_id, :member_id, :instance_id, :session_epoch, :broker_id,
                :host_fingerprint, :now)
            ON CONFLICT (mesh_id, member_id, instance_id)
            DO UPDATE SET session_epoch = excluded.session_epoch,
                          broker_id = excluded.broker_id,
                          host_fingerprint = excluded.host_fingerprint,
                          heartbeat_at = excluded.heartbeat_at,
                          acked_seq = 0";

    PRESENCE_END = "
        DELETE FROM presence
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND instance_id = :instance_id";

    PRESENCE_OTHERS_END = "
        DELETE FROM presence
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND instance_id <> :instance_id";

    HEARTBEAT = "
        UPDATE presence
           SET heartbeat_at = :now
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND instance_id = :instance_id
           AND session_epoch = :session_epoch";

    STANDING = "
        SELECT member.status, retired.instance_id IS NOT NULL,
               session.session_epoch, session.hello_nonce,
               (SELECT latest.hello_nonce
                  FROM session AS latest
                 WHERE latest.mesh_id = :mesh_id
                   AND latest.member_id = :member_id
                 ORDER BY latest.session_epoch DESC
                 LIMIT 1)
          FROM member
          LEFT JOIN retired_instance AS retired
                 ON retired.mesh_id = member.mesh_id
                AND retired.member_id = member.member_id
                AND retired.instance_id = :instance_id
          LEFT JOIN session
                 ON session.mesh_id = member.mesh_id
                AND session.member_id = member.member_id
                AND session.instance_id = :instance_id
         WHERE member.mesh_id = :mesh_id
           AND member.member_id = :member_id";

    DEPART = "
        DELETE FROM presence
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND instance_id = :instance_id
           AND session_epoch = :session_epoch";

    GHOSTS = "
        DELETE FROM presence
         WHERE (mesh_id, member_id, instance_id) IN (
               SELECT ghost.mesh_id, ghost.member_id, ghost.instance_id
                 FROM presence AS ghost
                WHERE ghost.heartbeat_at <= :live_from
                ORDER BY ghost.heartbeat_at
                LIMIT :limit)";

    /// Up to `limit` heartbeats of an earlier process whose clock was ahead.
    AHEAD = "
        UPDATE presence
           SET heartbeat_at = :now
         WHERE (mesh_id, member_id, instance_id) IN (
               SELECT early.mesh_id, early.member_id, early.instance_id
                 FROM presence AS early
                WHERE early.heartbeat_at > :now
                ORDER BY early.heartbeat_at
                LIMIT :limit)";

    ROSTER = "
        SELECT presence.member_id, presence.instance_id, presence.session_epoch, member.name,
               member_key.pubkey
          FROM presence
          JOIN member ON member.mesh_id = presence.mesh_id
                     AND member.member_id = presence.member_id
          JOIN member_key ON member_key.mesh_id = presence.mesh_id
                         AND member_key.member_id = presence.member_id
                         AND member_key.status <> 'rotated_out'
         WHERE presence.mesh_id = :mesh_id
           AND presence.heartbeat_at > :live_from
         ORDER BY presence.member_id, presence.instance_id
         LIMIT :limit";

    ACKED = "
        UPDATE presence
           SET acked_seq = max(acked_seq, :seq)
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND instance_id = :instance_id
           AND session_epoch = :session_epoch";

    ACKED_BY_ALL = "
        SELECT min(acked_seq)
          FROM presence
         WHERE mesh_id = :mesh_id
           AND member_id = :member_id
           AND heartbeat_at > :live_from";
}

impl SqliteStore {
    pub(in crate::store) async fn heartbeat(
        &self,
        mesh_id: MeshId,
        broker_id: BrokerId,
        live: &[Live],
        pulse: Pulse,
    ) -> Result<Beat, StoreError> {
        let (live, Beating { now, .. }) = (live.to_vec(), self.beating(pulse));
        let write = self.sqlite.write(move |tx| {
            let store_epoch = tx.query_row(STORE_EPOCH, [], |row| row.get(0))?;
            let beat = |live: &Live| beat_in_tx(tx, mesh_id, broker_id, live, now);
            let standings = live.iter().map(beat).collect::<Result<_, _>>()?;
            Ok(Beat { store_epoch, standings })
        });
        write.await
    }

    pub(in crate::store) async fn depart(
        &self,
        mesh_id: MeshId,
        session: &Session,
        policy: ConnectionPolicy,
        pulse: Pulse,
    ) -> Result<(), StoreError> {
        let (session, Beating { live_from, .. }) = (*session, self.beating(pulse));
        let write = self.sqlite.write(move |tx| {
            tx.prepare_cached(DEPART)?.execute(named_params! {
                ":mesh_id": key(mesh_id), ":member_id": key(session.member_id),
                ":instance_id": key(session.instance_id), ":session_epoch": session.epoch,
            })?;
            if policy == ConnectionPolicy::AllowConcurrent {
                trim_in_tx(tx, mesh_id, session.member_id, 0, live_from)?;
            }
            Ok(())
        });
        write.await
    }

    /// Up to `limit` that were heard of later than now were heard of now, or they would be there
    /// until then.
    pub(in crate::store) async fn presence_begin(
        &self,
        pulse: Pulse,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let Beating { now, .. } = self.beating(pulse);
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":now": now.0, ":limit": limit};
            Ok(tx.prepare_cached(AHEAD)?.execute(by)?)
        });
        write.await.map(|rows| rows as u64)
    }

    pub(in crate::store) async fn ghosts_sweep(
        &self,
        pulse: Pulse,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let Beating { live_from, .. } = self.beating(pulse);
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":live_from": live_from.0, ":limit": limit};
            Ok(tx.prepare_cached(GHOSTS)?.execute(by)?)
        });
        write.await.map(|rows| rows as u64)
    }

    pub(in crate::store) async fn roster(
        &self,
        mesh_id: MeshId,
        pulse: Pulse,
        limit: i64,
    ) -> Result<Vec<Present>, StoreError> {
        let Beating { live_from, .. } = self.beating(pulse);
        let read = self.sqlite.read(move |connection| {
            let mut statement = connection.prepare_cached(ROSTER)?;
            let by = named_params! {
                ":mesh_id": key(mesh_id), ":live_from": live_from.0, ":limit": limit,
            };
            let rows = statement.query_map(by, |row| {
                let (member_id, instance_id) =
                    (row.get::<_, Key>(0)?.id(), row.get::<_, Key>(1)?.id());
                let session = Session { member_id, instance_id, epoch: row.get(2)? };
                Ok(Present { session, name: row.get(3)?, pubkey: row.get(4)? })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        });
        read.await
    }

    pub(in crate::store) async fn deliveries_acked(
        &self,
        mesh_id: MeshId,
        session: &Session,
        (after, seq): (i64, i64),
        pulse: Pulse,
    ) -> Result<Acked, StoreError> {
        let (session, Beating { live_from, .. }) = (*session, self.beating(pulse));
        let write = self.sqlite.write(move |tx| {
            tx.prepare_cached(ACKED)?.execute(named_params! {
                ":mesh_id": key(mesh_id), ":member_id": key(session.member_id),
                ":instance_id": key(session.instance_id), ":session_epoch": session.epoch,
                ":seq": seq,
            })?;
            trim_in_tx(tx, mesh_id, session.member_id, after, live_from)
        });
        write.await
    }
}

/// Ends what all connected daemons of the member have; nothing when none is connected.
fn trim_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    member_id: MemberId,
    after: i64,
    live_from: UnixMs,
) -> Result<Acked, StoreError> {
    let by = named_params! {
        ":mesh_id": key(mesh_id), ":member_id": key(member_id), ":live_from": live_from.0,
    };
    let acked: Option<i64> = tx.prepare_cached(ACKED_BY_ALL)?.query_row(by, |row| row.get(0))?;
    let seq = acked.unwrap_or(after).max(after);
    let ended = done_in_tx(tx, mesh_id, &Arrived { recipient: member_id.as_uuid(), after, seq })?;
    Ok(Acked { up_to: seq, ended })
}

fn beat_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    broker_id: BrokerId,
    live: &Live,
    now: UnixMs,
) -> Result<Standing, StoreError> {
    let session = &live.session;
    let beaten = tx.prepare_cached(HEARTBEAT)?.execute(named_params! {
        ":mesh_id": key(mesh_id), ":member_id": key(session.member_id),
        ":instance_id": key(session.instance_id), ":session_epoch": session.epoch, ":now": now.0,
    })?;
    if beaten == 1 {
        return Ok(Standing::Current);
    }
    let by = named_params! {
        ":mesh_id": key(mesh_id), ":member_id": key(session.member_id),
        ":instance_id": key(session.instance_id),
    };
    let found = tx.prepare_cached(STANDING)?.query_row(by, |row| {
        let (epoch, nonce): (Option<i64>, Option<[u8; 16]>) = (row.get(2)?, row.get(3)?);
        Ok(Found {
            member_status: row.get(0)?,
            is_retired: row.get(1)?,
            session: epoch.zip(nonce),
            latest_nonce: row.get(4)?,
        })
    });
    let standing = found.optional()?.map_or(Standing::Revoked, |found| found.standing(session));
    if standing == Standing::Revived {
        presence_in_tx(tx, mesh_id, broker_id, live, now)?;
    }
    Ok(standing)
}

pub(super) fn presence_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    broker_id: BrokerId,
    live: &Live,
    now: UnixMs,
) -> Result<(), StoreError> {
    let session = &live.session;
    tx.prepare_cached(PRESENCE_INSERT)?.execute(named_params! {
        ":mesh_id": key(mesh_id), ":member_id": key(session.member_id),
        ":instance_id": key(session.instance_id), ":session_epoch": session.epoch,
        ":broker_id": key(broker_id), ":now": now.0,
        ":host_fingerprint": live.host_fingerprint.map(|host| host.0),
    })?;
    Ok(())
}

pub(super) fn presence_end_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    member_id: MemberId,
    instance_id: InstanceId,
) -> Result<(), StoreError> {
    tx.prepare_cached(PRESENCE_END)?.execute(named_params! {
        ":mesh_id": key(mesh_id), ":member_id": key(member_id), ":instance_id": key(instance_id),
    })?;
    Ok(())
}

pub(super) fn presence_others_end_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    member_id: MemberId,
    instance_id: InstanceId,
) -> Result<(), StoreError> {
    tx.prepare_cached(PRESENCE_OTHERS_END)?.execute(named_params! {
        ":mesh_id": key(mesh_id), ":member_id": key(member_id), ":instance_id": key(instance_id),
    })?;
    Ok(())
}

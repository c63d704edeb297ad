//! The table `presence`: who is connected to any broker, by heartbeat. A heartbeat is also the
//! question whether the connection still speaks for its daemon: a row that is not there any more
//! says that something has happened.
//!
//! Differs from sqlite: what is asked for many connections is one statement, and what is read
//! before it is written is locked, because other brokers write at the same time. The time is the
//! server's: the clocks of brokers may differ by more than a heartbeat.

use std::collections::HashSet;

use semel_core::id::{BrokerId, MemberId, MeshId, UuidId};
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};
use semel_wire::features::ConnectionPolicy;
use tokio_postgres::Row;
use uuid::Uuid;

use super::delivery::done_in_tx;
use super::{PostgresStore, STORE_EPOCH};
use crate::accept::Session;
use crate::store::session::Found;
use crate::store::{Acked, Beat, Live, Present, Pulse, Standing};

statements! {
    PRESENCE_INSERT = "
        INSERT INTO mesh.presence (mesh_id, member_id, instance_id, session_epoch, broker_id,
                                   host_fingerprint, heartbeat_at)
        SELECT $1, live.member_id, live.instance_id, live.session_epoch, $6,
               live.host_fingerprint, mesh.now_ms()
          FROM unnest($2::uuid[], $3::uuid[], $4::bigint[], $5::bytea[])
               AS live (member_id, instance_id, session_epoch, host_fingerprint)
         ORDER BY live.member_id, live.instance_id
            ON CONFLICT (mesh_id, member_id, instance_id)
            DO UPDATE SET session_epoch = excluded.session_epoch,
                          broker_id = excluded.broker_id,
                          host_fingerprint = excluded.host_fingerprint,
                          heartbeat_at = excluded.heartbeat_at,
                          acked_seq = 0";

    PRESENCE_END = "
        DELETE FROM mesh.presence
         WHERE mesh_id = $1
           AND member_id = $2
           AND instance_id = ANY ($3)";

    PRESENCE_OTHERS_END = "
        DELETE FROM mesh.presence
         WHERE mesh_id = $1
           AND member_id = $2
           AND instance_id <> $3";

    HEARTBEAT = "
        UPDATE mesh.presence
           SET heartbeat_at = mesh.now_ms()
          FROM (SELECT $1::uuid, asked.member_id, asked.instance_id, asked.session_epoch
                  FROM unnest($2::uuid[], $3::uuid[], $4::bigint[])
                       AS asked (member_id, instance_id, session_epoch)
                OFFSET 0) AS live (mesh_id, member_id, instance_id, session_epoch)
         WHERE presence.mesh_id = live.mesh_id
           AND presence.member_id = live.member_id
           AND presence.instance_id = live.instance_id
           AND presence.session_epoch = live.session_epoch
     RETURNING presence.session_epoch";

    /// No hello may delete what is revived below while it is.
    SESSIONS_SHARE = "
        SELECT held.session_epoch
          FROM (SELECT DISTINCT asked.member_id, asked.instance_id
                  FROM unnest($2::uuid[], $3::uuid[]) AS asked (member_id, instance_id)
                 ORDER BY asked.member_id, asked.instance_id
                OFFSET 0) AS asked,
               LATERAL (SELECT session.session_epoch
                          FROM mesh.session
                         WHERE session.mesh_id = $1
                           AND session.member_id = asked.member_id
                           AND session.instance_id = asked.instance_id
                           FOR SHARE) AS held";

    STANDING = "
        SELECT member.status, retired.instance_id IS NOT NULL,
               session.session_epoch, session.hello_nonce,
               (SELECT latest.hello_nonce
                  FROM mesh.session AS latest
                 WHERE latest.mesh_id = $1
                   AND latest.member_id = asked.member_id
                 ORDER BY latest.session_epoch DESC
                 LIMIT 1)
          FROM unnest($2::uuid[], $3::uuid[])
               WITH ORDINALITY AS asked (member_id, instance_id, number)
          LEFT JOIN LATERAL (SELECT known.status
                               FROM mesh.member AS known
                              WHERE known.mesh_id = $1
                                AND known.member_id = asked.member_id
                              LIMIT 1) AS member ON TRUE
          LEFT JOIN LATERAL (SELECT gone.instance_id
                               FROM mesh.retired_instance AS gone
                              WHERE gone.mesh_id = $1
                                AND gone.member_id = asked.member_id
                                AND gone.instance_id = asked.instance_id
                              LIMIT 1) AS retired ON TRUE
          LEFT JOIN LATERAL (SELECT held.session_epoch, held.hello_nonce
                               FROM mesh.session AS held
                              WHERE held.mesh_id = $1
                                AND held.member_id = asked.member_id
                                AND held.instance_id = asked.instance_id
                              LIMIT 1) AS session ON TRUE
         ORDER BY asked.number";

    DEPART = "
        DELETE FROM mesh.presence
         WHERE mesh_id = $1
           AND member_id = $2
           AND instance_id = $3
           AND session_epoch = $4";

    GHOSTS = "
        -- Differs from sqlite: by ctid, which is never planned as a scan of the table; rows that
        -- another sweep holds are left to it.
        DELETE FROM mesh.presence
         WHERE ctid = ANY (ARRAY (
               SELECT ghost.ctid
                 FROM mesh.presence AS ghost
                WHERE ghost.heartbeat_at <= mesh.now_ms() - $1
                ORDER BY ghost.heartbeat_at
                LIMIT $2
                  FOR UPDATE SKIP LOCKED))";

    ROSTER = "
        SELECT presence.member_id, presence.instance_id, presence.session_epoch, member.name,
               member_key.pubkey
          FROM (SELECT live.member_id, live.instance_id, live.session_epoch
                  FROM mesh.presence AS live
                 WHERE live.mesh_id = $1
                   AND live.heartbeat_at > mesh.now_ms() - $2
                 ORDER BY live.member_id, live.instance_id
                 LIMIT $3) AS presence,
               LATERAL (SELECT known.name
                          FROM mesh.member AS known
                         WHERE known.mesh_id = $1
                           AND known.member_id = presence.member_id
                         LIMIT 1) AS member,
               LATERAL (SELECT shown.pubkey
                          FROM mesh.member_key AS shown
                         WHERE shown.mesh_id = $1
                           AND shown.member_id = presence.member_id
                           AND shown.status <> 'rotated_out'
                         LIMIT 1) AS member_key
         ORDER BY presence.member_id, presence.instance_id";

    /// Two daemons of a member that acknowledge at once must see each other's number.
    MEMBER_LOCK = "
        SELECT instance_id
          FROM mesh.presence
         WHERE mesh_id = $1
           AND member_id = $2
         ORDER BY instance_id
           FOR UPDATE";

    ACKED = "
        UPDATE mesh.presence
           SET acked_seq = greatest(acked_seq, $5)
         WHERE mesh_id = $1
           AND member_id = $2
           AND instance_id = $3
           AND session_epoch = $4";

    ACKED_BY_ALL = "
        SELECT min(acked_seq)
          FROM mesh.presence
         WHERE mesh_id = $1
           AND member_id = $2
           AND heartbeat_at > mesh.now_ms() - $3";
}

impl PostgresStore {
    pub(in crate::store) async fn heartbeat(
        &self,
        mesh_id: MeshId,
        broker_id: BrokerId,
        live: &[Live],
    ) -> Result<Beat, StoreError> {
        self.postgres.retry(|| self.heartbeat_once(mesh_id, broker_id, live)).await
    }

    async fn heartbeat_once(
        &self,
        mesh_id: MeshId,
        broker_id: BrokerId,
        live: &[Live],
    ) -> Result<Beat, StoreError> {
        let mesh = mesh_id.as_uuid();
        let tx = self.postgres.begin().await?;
        let store_epoch = tx.query_opt(STORE_EPOCH, &[]).await?;
        let store_epoch = store_epoch.map_or(Ok(String::new()), |row| row.try_get(0))?;
        let (members, instances, epochs) = columns(live);
        let by: super::Parameters<'_> = &[&mesh, &members, &instances, &epochs];
        let rows = tx.query(HEARTBEAT, by).await?;
        // Epochs are of the whole store, so that one names its connection.
        let beaten = rows.iter().map(|row| Ok(row.try_get(0)?));
        let beaten: HashSet<i64> = beaten.collect::<Result<_, StoreError>>()?;
        let missing = live.iter().filter(|live| !beaten.contains(&live.session.epoch));
        let missing: Vec<Live> = missing.copied().collect();
        let mut found = standings_in_tx(&tx, mesh_id, &missing).await?.into_iter();
        let standings: Vec<Standing> = live
            .iter()
            .map(|live| {
                let is_beaten = beaten.contains(&live.session.epoch);
                let missed = if is_beaten { None } else { found.next() };
                missed.unwrap_or(Standing::Current)
            })
            .collect();
        let revived = live.iter().zip(&standings);
        let revived = revived.filter(|(_, standing)| **standing == Standing::Revived);
        let revived: Vec<Live> = revived.map(|(live, _)| *live).collect();
        if !revived.is_empty() {
            presence_in_tx(&tx, mesh_id, broker_id, &revived).await?;
        }
        tx.commit().await.map(|()| Beat { store_epoch, standings })
    }

    pub(in crate::store) async fn depart(
        &self,
        mesh_id: MeshId,
        session: &Session,
        policy: ConnectionPolicy,
        pulse: Pulse,
    ) -> Result<(), StoreError> {
        let (member_id, epoch) = (session.member_id, session.epoch);
        let (mesh, member, instance) =
            (mesh_id.as_uuid(), member_id.as_uuid(), session.instance_id.as_uuid());
        let run = async || {
            let tx = self.postgres.begin().await?;
            let is_shared = policy == ConnectionPolicy::AllowConcurrent;
            if is_shared {
                tx.query(MEMBER_LOCK, &[&mesh, &member]).await?;
            }
            tx.execute(DEPART, &[&mesh, &member, &instance, &epoch]).await?;
            if is_shared {
                trim_in_tx(&tx, mesh_id, member_id, 0, pulse).await?;
            }
            tx.commit().await
        };
        self.postgres.retry(run).await
    }

    pub(in crate::store) async fn ghosts_sweep(
        &self,
        pulse: Pulse,
        limit: i64,
    ) -> Result<u64, StoreError> {
        self.execute(GHOSTS, &[&pulse.ghost_after_ms(), &limit]).await
    }

    pub(in crate::store) async fn roster(
        &self,
        mesh_id: MeshId,
        pulse: Pulse,
        limit: i64,
    ) -> Result<Vec<Present>, StoreError> {
        let tx = self.postgres.snapshot().await?;
        let rows = tx.query(ROSTER, &[&mesh_id.as_uuid(), &pulse.ghost_after_ms(), &limit]).await?;
        let present = |row: &Row| {
            let (member_id, instance_id) =
                (UuidId::new(row.try_get(0)?), UuidId::new(row.try_get(1)?));
            let session = Session { member_id, instance_id, epoch: row.try_get(2)? };
            Ok(Present { session, name: row.try_get(3)?, pubkey: row.try_get(4)? })
        };
        rows.iter().map(present).collect()
    }

    pub(in crate::store) async fn deliveries_acked(
        &self,
        mesh_id: MeshId,
        session: &Session,
        (after, seq): (i64, i64),
        pulse: Pulse,
    ) -> Result<Acked, StoreError> {
        let (member_id, epoch) = (session.member_id, session.epoch);
        let (mesh, member, instance) =
            (mesh_id.as_uuid(), member_id.as_uuid(), session.instance_id.as_uuid());
        let run = async || {
            let tx = self.postgres.begin().await?;
            tx.query(MEMBER_LOCK, &[&mesh, &member]).await?;
            tx.execute(ACKED, &[&mesh, &member, &instance, &epoch, &seq]).await?;
            let acked = trim_in_tx(&tx, mesh_id, member_id, after, pulse).await?;
            tx.commit().await.map(|()| acked)
        };
        self.postgres.retry(run).await
    }
}

/// Ends what all connected daemons of the member have; nothing when none is connected.
async fn trim_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    member_id: MemberId,
    after: i64,
    pulse: Pulse,
) -> Result<Acked, StoreError> {
    let ghost_after = pulse.ghost_after_ms();
    let by: super::Parameters<'_> = &[&mesh_id.as_uuid(), &member_id.as_uuid(), &ghost_after];
    let row = tx.query_opt(ACKED_BY_ALL, by).await?;
    let acked: Option<i64> = row.map_or(Ok(None), |row| row.try_get(0))?;
    let seq = acked.unwrap_or(after).max(after);
    let ended = done_in_tx(tx, mesh_id, member_id.as_uuid(), (after, seq)).await?;
    Ok(Acked { up_to: seq, ended })
}

fn columns(live: &[Live]) -> (Vec<Uuid>, Vec<Uuid>, Vec<i64>) {
    let members = live.iter().map(|live| live.session.member_id.as_uuid()).collect();
    let instances = live.iter().map(|live| live.session.instance_id.as_uuid()).collect();
    (members, instances, live.iter().map(|live| live.session.epoch).collect())
}

/// What became of connections whose heartbeat found no row, in order.
async fn standings_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    missing: &[Live],
) -> Result<Vec<Standing>, StoreError> {
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let (members, instances, _) = columns(missing);
    let by: super::Parameters<'_> = &[&mesh_id.as_uuid(), &members, &instances];
    tx.query(SESSIONS_SHARE, by).await?;
    let rows = tx.query(STANDING, by).await?;
    let standing = |(row, live): (&Row, &Live)| {
        let epoch: Option<i64> = row.try_get(2)?;
        let found = Found {
            member_status: row.try_get(0)?,
            is_retired: row.try_get(1)?,
            session: epoch.zip(bytes(row, 3)?),
            latest_nonce: bytes(row, 4)?,
        };
        Ok(found.standing(&live.session))
    };
    rows.iter().zip(missing).map(standing).collect()
}

/// A column of so many bytes, or nothing.
pub(super) fn bytes<const N: usize>(
    row: &Row,
    column: usize,
) -> Result<Option<[u8; N]>, StoreError> {
    let bytes: Option<Vec<u8>> = row.try_get(column)?;
    Ok(bytes.and_then(|bytes| bytes.try_into().ok()))
}

pub(super) async fn presence_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    broker_id: BrokerId,
    live: &[Live],
) -> Result<(), StoreError> {
    let (mesh, broker) = (mesh_id.as_uuid(), broker_id.as_uuid());
    let (members, instances, epochs) = columns(live);
    let hosts: Vec<Option<Vec<u8>>> =
        live.iter().map(|live| live.host_fingerprint.map(|host| host.0.to_vec())).collect();
    let by: super::Parameters<'_> = &[&mesh, &members, &instances, &epochs, &hosts, &broker];
    tx.execute(PRESENCE_INSERT, by).await.map(drop)
}

pub(super) async fn presence_end_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    member_id: MemberId,
    instances: &[Uuid],
) -> Result<(), StoreError> {
    let by: super::Parameters<'_> = &[&mesh_id.as_uuid(), &member_id.as_uuid(), &instances];
    tx.execute(PRESENCE_END, by).await.map(drop)
}

pub(super) async fn presence_others_end_in_tx(
    tx: &Transaction,
    mesh_id: MeshId,
    member_id: MemberId,
    instance: Uuid,
) -> Result<(), StoreError> {
    let by: super::Parameters<'_> = &[&mesh_id.as_uuid(), &member_id.as_uuid(), &instance];
    tx.execute(PRESENCE_OTHERS_END, by).await.map(drop)
}

//! The tables `session` and `retired_instance`: which connection speaks for a daemon (mesh.md §10).
//! Accepts hold a shared lock on their row to the end. A raise updates it and a replacement deletes
//! it: both wait for them.
//!
//! Differs from sqlite: hellos of one member come one after the other because each locks the
//! member first, and a member's end does too.

use semel_core::id::{InstanceId, MemberId, UuidId};
use semel_store::postgres::Transaction;
use semel_store::{StoreError, statements};
use uuid::Uuid;

use super::PostgresStore;
use super::audit::audit_in_tx;
use super::presence::{bytes, presence_end_in_tx, presence_in_tx, presence_others_end_in_tx};
use crate::accept::Session;
use crate::limits::RETIRED_OF_MEMBER_MAX;
use crate::store::session::{Admission, Connected, Greeter, policy};
use crate::store::{Greeted, NewSession};

statements! {
    MEMBER_OF_KEY = "
        SELECT member.member_id, member.name, member.status, member_key.status,
               mesh.clone_concurrency_policy, store.store_epoch, member_key.key_id
          FROM mesh.member_key
          JOIN mesh.member ON member.mesh_id = member_key.mesh_id
                          AND member.member_id = member_key.member_id
          JOIN mesh.mesh ON mesh.mesh_id = member_key.mesh_id
          JOIN mesh.store ON store.one = 1
         WHERE member_key.mesh_id = $1
           AND member_key.pubkey = $2
           FOR NO KEY UPDATE OF member";

    RETIRED = "
        SELECT 1
          FROM mesh.retired_instance
         WHERE mesh_id = $1
           AND member_id = $2
           AND instance_id = $3";

    CONNECTED = "
        SELECT instance_id, host_fingerprint, heartbeat_at > mesh.now_ms() - $3
          FROM mesh.presence
         WHERE mesh_id = $1
           AND member_id = $2";

    /// In the order in which accepts lock them: what is deleted below in any order cannot make a
    /// deadlock with them.
    SESSIONS_LOCK = "
        SELECT instance_id
          FROM mesh.session
         WHERE mesh_id = $1
           AND member_id = $2
           AND ($3 OR instance_id = ANY ($4))
         ORDER BY instance_id
           FOR UPDATE";

    /// How many there would be, and how many of these are new.
    RETIRED_COUNT = "
        SELECT (SELECT count(*)
                  FROM (SELECT 1
                          FROM mesh.retired_instance AS known
                         WHERE known.mesh_id = $1
                           AND known.member_id = $2
                         ORDER BY known.instance_id
                         LIMIT $4) AS counted),
               (SELECT count(*)
                  FROM unnest($3::uuid[]) AS asked (instance_id)
                 WHERE (SELECT 1
                          FROM mesh.retired_instance AS known
                         WHERE known.mesh_id = $1
                           AND known.member_id = $2
                           AND known.instance_id = asked.instance_id
                         LIMIT 1) IS NULL)";

    RETIRE = "
        INSERT INTO mesh.retired_instance (mesh_id, member_id, instance_id, retired_at)
        SELECT $1, $2, retired.instance_id, $4
          FROM unnest($3::uuid[]) AS retired (instance_id)
            ON CONFLICT DO NOTHING
     RETURNING instance_id";

    SESSION_END = "
        DELETE FROM mesh.session
         WHERE mesh_id = $1
           AND member_id = $2
           AND instance_id = ANY ($3)";

    SESSIONS_OTHERS_END = "
        DELETE FROM mesh.session
         WHERE mesh_id = $1
           AND member_id = $2
           AND instance_id <> $3";

    RAISE = "
        INSERT INTO mesh.session (mesh_id, member_id, instance_id, session_epoch, broker_id,
                                  hello_nonce)
        VALUES ($1, $2, $3, nextval('mesh.session_epoch'), $4, $5)
            ON CONFLICT (mesh_id, member_id, instance_id)
            DO UPDATE SET session_epoch = excluded.session_epoch,
                          broker_id = excluded.broker_id,
                          hello_nonce = excluded.hello_nonce
     RETURNING session_epoch";
}

impl PostgresStore {
    pub(in crate::store) async fn hello(&self, new: &NewSession) -> Result<Greeted, StoreError> {
        self.postgres.retry(|| self.hello_once(new)).await
    }

    async fn hello_once(&self, new: &NewSession) -> Result<Greeted, StoreError> {
        let mesh = new.mesh_id.as_uuid();
        let tx = self.postgres.begin().await?;
        let Some(row) = tx.query_opt(MEMBER_OF_KEY, &[&mesh, &new.pubkey]).await? else {
            return Ok(Greeted::Unknown);
        };
        let (member_id, name): (MemberId, String) = (UuidId::new(row.try_get(0)?), row.try_get(1)?);
        let (member, instance) = (member_id.as_uuid(), new.instance_id.as_uuid());
        let retired = tx.query_opt(RETIRED, &[&mesh, &member, &instance]).await?;
        let greeter = Greeter {
            member_status: row.try_get(2)?,
            key_status: row.try_get(3)?,
            key_id: row.try_get(6)?,
            store_epoch: row.try_get(5)?,
            is_retired: retired.is_some(),
        };
        if let Some(refused) = greeter.refused(new) {
            return Ok(refused);
        }
        let ghost_after = new.pulse.ghost_after_ms();
        let rows = tx.query(CONNECTED, &[&mesh, &member, &ghost_after]).await?;
        let connected = rows.iter().map(connected).collect::<Result<Vec<_>, _>>()?;
        let policy = policy(&new.mesh_id.to_string(), row.try_get(4)?)?;
        let admission = Admission::new(policy, new, &connected);
        if admission.is_refused() {
            audit_in_tx(&tx, new.mesh_id, &admission.events(new, member_id, &[])).await?;
            return tx.commit().await.map(|()| Greeted::AlreadyConnected);
        }
        if !may_retire_in_tx(&tx, new, member_id).await? {
            return Ok(Greeted::TooManyRetired);
        }
        let retired = end_in_tx(&tx, new, member_id, &admission).await?;
        let broker = new.broker_id.as_uuid();
        let nonce = new.hello_nonce.0.as_slice();
        let row = tx.query_opt(RAISE, &[&mesh, &member, &instance, &broker, &nonce]).await?;
        let row = row.ok_or(StoreError::Corrupt {
            table: "session",
            id: instance.to_string(),
            what: "the raise returned nothing".to_owned(),
        })?;
        let session = Session { member_id, instance_id: new.instance_id, epoch: row.try_get(0)? };
        presence_in_tx(&tx, new.mesh_id, new.broker_id, &[new.live(session)]).await?;
        audit_in_tx(&tx, new.mesh_id, &admission.events(new, member_id, &retired)).await?;
        tx.commit().await.map(|()| Greeted::Welcome { session, name, policy: admission.policy })
    }
}

fn connected(row: &tokio_postgres::Row) -> Result<Connected, StoreError> {
    Ok(Connected {
        instance_id: UuidId::new(row.try_get(0)?),
        host_fingerprint: bytes(row, 1)?,
        is_live: row.try_get(2)?,
    })
}

/// Whoever is retired is remembered for ever, also one of which this store knows nothing: it may
/// never have come, or be older than a backup. So there is a most of them.
async fn may_retire_in_tx(
    tx: &Transaction,
    new: &NewSession,
    member_id: MemberId,
) -> Result<bool, StoreError> {
    if new.retire.is_empty() {
        return Ok(true);
    }
    let (mesh, member) = (new.mesh_id.as_uuid(), member_id.as_uuid());
    let retire: Vec<Uuid> = new.retire.iter().map(|id| id.as_uuid()).collect();
    let by: super::Parameters<'_> = &[&mesh, &member, &retire, &RETIRED_OF_MEMBER_MAX];
    let Some(row) = tx.query_opt(RETIRED_COUNT, by).await? else { return Ok(true) };
    let (known, unknown): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    Ok(unknown == 0 || known + unknown <= RETIRED_OF_MEMBER_MAX)
}

/// Ends the sessions that this hello takes the place of or retires, and says which instances were
/// not retired before.
async fn end_in_tx(
    tx: &Transaction,
    new: &NewSession,
    member_id: MemberId,
    admission: &Admission,
) -> Result<Vec<InstanceId>, StoreError> {
    let (mesh, member, own) =
        (new.mesh_id.as_uuid(), member_id.as_uuid(), new.instance_id.as_uuid());
    let all = admission.ends_others();
    let retire: Vec<Uuid> = new.retire.iter().map(|id| id.as_uuid()).collect();
    let touched: Vec<Uuid> = retire.iter().copied().chain([own]).collect();
    tx.query(SESSIONS_LOCK, &[&mesh, &member, &all, &touched]).await?;
    let mut retired = Vec::new();
    if !retire.is_empty() {
        let rows = tx.query(RETIRE, &[&mesh, &member, &retire, &new.now.0]).await?;
        for row in &rows {
            retired.push(UuidId::new(row.try_get(0)?));
        }
        tx.execute(SESSION_END, &[&mesh, &member, &retire]).await?;
        presence_end_in_tx(tx, new.mesh_id, member_id, &retire).await?;
    }
    if all {
        tx.execute(SESSIONS_OTHERS_END, &[&mesh, &member, &own]).await?;
        presence_others_end_in_tx(tx, new.mesh_id, member_id, own).await?;
    }
    Ok(retired)
}

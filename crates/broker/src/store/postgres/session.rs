//! The table `session`: which connection speaks for a daemon (mesh.md §10). Accepts hold a shared
//! lock on their row to the end; a raise updates it and therefore waits for them.

use semel_core::id::UuidId;
use semel_store::{StoreError, statements};

use super::PostgresStore;
use crate::accept::Session;
use crate::store::{Greeted, MemberStatus, NewSession};

statements! {
    MEMBER_OF_KEY = "
        SELECT member.member_id, member.status, member.name
          FROM mesh.member_key
          JOIN mesh.member ON member.mesh_id = member_key.mesh_id
                          AND member.member_id = member_key.member_id
         WHERE member_key.mesh_id = $1
           AND member_key.pubkey = $2
           AND member_key.status = 'current'";

    RAISE = "
        INSERT INTO mesh.session (mesh_id, member_id, instance_id, session_epoch, broker_id)
        VALUES ($1, $2, $3, nextval('mesh.session_epoch'), $4)
            ON CONFLICT (mesh_id, member_id, instance_id)
            DO UPDATE SET session_epoch = excluded.session_epoch, broker_id = excluded.broker_id
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
        let (member, status, name): (uuid::Uuid, String, String) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        if status != MemberStatus::Active.as_str() {
            return Ok(Greeted::Inactive);
        }
        let (instance, broker) = (new.instance_id.as_uuid(), new.broker_id.as_uuid());
        let rows = tx.query_and_commit(RAISE, &[&mesh, &member, &instance, &broker]).await?;
        let row = rows.first().ok_or(StoreError::Corrupt {
            table: "session",
            id: instance.to_string(),
            what: "the raise returned nothing".to_owned(),
        })?;
        let member_id = UuidId::new(member);
        let session = Session { member_id, instance_id: new.instance_id, epoch: row.try_get(0)? };
        Ok(Greeted::Welcome { session, name })
    }
}

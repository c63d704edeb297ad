//! The end of a `topic`, with its subscriptions, and of a `queue`, with its work where that may
//! end.
//!
//! Differs from sqlite: others accept at the same time. Who sends to a queue holds its row to the
//! end, so that no work can come into one that is gone.

use semel_core::id::{MeshId, UuidId};
use semel_store::{StoreError, statements};
use uuid::Uuid;

use super::PostgresStore;
use super::audit::audit_in_tx;
use crate::limits::QUEUE_DISCARD_ROWS;
use crate::store::{AuditKind, Audited, Deleted, Deleter, InUse};

statements! {
    TOPIC_MADE_BY = "
        SELECT created_by
          FROM mesh.topic
         WHERE mesh_id = $1
           AND name = $2
           FOR UPDATE";

    /// Who has left gets nothing that would end.
    SUBSCRIBED_BY_OTHERS = "
        SELECT 1
          FROM mesh.topic_subscription AS subscription,
               LATERAL (SELECT member.member_id
                          FROM mesh.member
                         WHERE member.mesh_id = $1
                           AND member.member_id = subscription.member_id
                           AND member.status = 'active'
                         LIMIT 1) AS subscriber
         WHERE subscription.mesh_id = $1
           AND subscription.topic = $2
           AND subscription.member_id <> $3
         LIMIT 1";

    SUBSCRIPTIONS_DELETE = "
        DELETE FROM mesh.topic_subscription
         WHERE mesh_id = $1
           AND topic = $2";

    TOPIC_DELETE = "
        DELETE FROM mesh.topic
         WHERE mesh_id = $1
           AND name = $2";

    QUEUE_MADE_BY = "
        SELECT queue_id, created_by
          FROM mesh.queue
         WHERE mesh_id = $1
           AND name = $2
           FOR UPDATE";

    HAS_WORK = "
        SELECT 1
          FROM mesh.delivery_queue
         WHERE mesh_id = $1
           AND recipient = $2
         LIMIT 1";

    QUEUE_DISCARD = "
        DELETE FROM mesh.delivery_queue
         WHERE ctid = ANY (ARRAY (
               SELECT work.ctid
                 FROM mesh.delivery_queue AS work
                WHERE work.mesh_id = $1
                  AND work.recipient = $2
                ORDER BY work.seq
                LIMIT $3
                  FOR UPDATE))";

    QUEUE_DELETE = "
        DELETE FROM mesh.queue
         WHERE mesh_id = $1
           AND name = $2";
}

impl PostgresStore {
    pub(in crate::store) async fn topic_delete(
        &self,
        mesh_id: MeshId,
        name: &str,
        by: (Deleter, InUse),
        audited: Audited,
    ) -> Result<Deleted, StoreError> {
        self.postgres.retry(|| self.topic_delete_once(mesh_id, name, by, audited)).await
    }

    async fn topic_delete_once(
        &self,
        mesh_id: MeshId,
        name: &str,
        (deleter, in_use): (Deleter, InUse),
        audited: Audited,
    ) -> Result<Deleted, StoreError> {
        let mesh = mesh_id.as_uuid();
        let tx = self.postgres.begin().await?;
        let row = tx.query_opt(TOPIC_MADE_BY, &[&mesh, &name]).await?;
        let Some(row) = row else { return Ok(Deleted::NotFound) };
        let made_by: Option<Uuid> = row.try_get(0)?;
        if !deleter.may(made_by.map(UuidId::new)) {
            return Ok(Deleted::NotYours);
        }
        let member = deleter.member_id.map_or(Uuid::nil(), |member| member.as_uuid());
        let others = tx.query_opt(SUBSCRIBED_BY_OTHERS, &[&mesh, &name, &member]).await?;
        if in_use == InUse::Refuse && others.is_some() {
            return Ok(Deleted::InUse);
        }
        for statement in [SUBSCRIPTIONS_DELETE, TOPIC_DELETE] {
            tx.execute(statement, &[&mesh, &name]).await?;
        }
        let event = deleter.event(AuditKind::TopicDeleted, name, audited);
        audit_in_tx(&tx, mesh_id, &[event]).await?;
        tx.commit().await.map(|()| Deleted::Done)
    }

    pub(in crate::store) async fn queue_delete(
        &self,
        mesh_id: MeshId,
        name: &str,
        by: (Deleter, InUse),
        audited: Audited,
    ) -> Result<Deleted, StoreError> {
        self.postgres.retry(|| self.queue_delete_once(mesh_id, name, by, audited)).await
    }

    async fn queue_delete_once(
        &self,
        mesh_id: MeshId,
        name: &str,
        (deleter, in_use): (Deleter, InUse),
        audited: Audited,
    ) -> Result<Deleted, StoreError> {
        let mesh = mesh_id.as_uuid();
        let tx = self.postgres.begin().await?;
        let row = tx.query_opt(QUEUE_MADE_BY, &[&mesh, &name]).await?;
        let Some(row) = row else { return Ok(Deleted::NotFound) };
        let (queue_id, made_by): (Uuid, Option<Uuid>) = (row.try_get(0)?, row.try_get(1)?);
        if !deleter.may(made_by.map(UuidId::new)) {
            return Ok(Deleted::NotYours);
        }
        if tx.query_opt(HAS_WORK, &[&mesh, &queue_id]).await?.is_some() {
            if in_use == InUse::Refuse {
                return Ok(Deleted::InUse);
            }
            tx.execute(QUEUE_DISCARD, &[&mesh, &queue_id, &QUEUE_DISCARD_ROWS]).await?;
            if tx.query_opt(HAS_WORK, &[&mesh, &queue_id]).await?.is_some() {
                return tx.commit().await.map(|()| Deleted::More);
            }
        }
        tx.execute(QUEUE_DELETE, &[&mesh, &name]).await?;
        let event = deleter.event(AuditKind::QueueDeleted, name, audited);
        audit_in_tx(&tx, mesh_id, &[event]).await?;
        tx.commit().await.map(|()| Deleted::Done)
    }
}

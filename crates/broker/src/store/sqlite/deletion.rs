//! The end of a `topic`, with its subscriptions, and of a `queue`, with its work where that may
//! end.

use rusqlite::{OptionalExtension, named_params};
use semel_core::id::{MemberId, MeshId, UuidId};
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};
use uuid::Uuid;

use super::audit::audit_in_tx;
use super::{Key, SqliteStore, exists, key};
use crate::limits::QUEUE_DISCARD_ROWS;
use crate::store::{AuditKind, Audited, Deleted, Deleter, InUse};

statements! {
    TOPIC_MADE_BY = "
        SELECT created_by
          FROM topic
         WHERE mesh_id = :mesh_id
           AND name = :name";

    /// Who has left gets nothing that would end.
    SUBSCRIBED_BY_OTHERS = "
        SELECT 1
          FROM topic_subscription AS subscription
          JOIN member
            ON member.mesh_id = subscription.mesh_id
           AND member.member_id = subscription.member_id
         WHERE subscription.mesh_id = :mesh_id
           AND subscription.topic = :name
           AND subscription.member_id <> :member_id
           AND member.status = 'active'
         LIMIT 1";

    SUBSCRIPTIONS_DELETE = "
        DELETE FROM topic_subscription
         WHERE mesh_id = :mesh_id
           AND topic = :name";

    TOPIC_DELETE = "
        DELETE FROM topic
         WHERE mesh_id = :mesh_id
           AND name = :name";

    QUEUE_MADE_BY = "
        SELECT queue_id, created_by
          FROM queue
         WHERE mesh_id = :mesh_id
           AND name = :name";

    HAS_WORK = "
        SELECT 1
          FROM delivery_queue
         WHERE recipient = (SELECT no
                              FROM recipient
                             WHERE mesh_id = :mesh_id
                               AND id = :queue_id)
         LIMIT 1";

    QUEUE_DISCARD = "
        DELETE FROM delivery_queue
         WHERE recipient = (SELECT no
                              FROM recipient
                             WHERE mesh_id = :mesh_id
                               AND id = :queue_id)
           AND seq IN (SELECT seq
                         FROM delivery_queue
                        WHERE recipient = (SELECT no
                                             FROM recipient
                                            WHERE mesh_id = :mesh_id
                                              AND id = :queue_id)
                        ORDER BY seq
                        LIMIT :limit)";

    QUEUE_DELETE = "
        DELETE FROM queue
         WHERE mesh_id = :mesh_id
           AND name = :name";
}

impl SqliteStore {
    pub(in crate::store) async fn topic_delete(
        &self,
        mesh_id: MeshId,
        name: &str,
        by: (Deleter, InUse),
        audited: Audited,
    ) -> Result<Deleted, StoreError> {
        let name = name.to_owned();
        self.sqlite.write(move |tx| topic_delete_in_tx(tx, mesh_id, &name, by, audited)).await
    }

    pub(in crate::store) async fn queue_delete(
        &self,
        mesh_id: MeshId,
        name: &str,
        by: (Deleter, InUse),
        audited: Audited,
    ) -> Result<Deleted, StoreError> {
        let name = name.to_owned();
        self.sqlite.write(move |tx| queue_delete_in_tx(tx, mesh_id, &name, by, audited)).await
    }
}

fn topic_delete_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    name: &str,
    (deleter, in_use): (Deleter, InUse),
    audited: Audited,
) -> Result<Deleted, StoreError> {
    let by = named_params! {":mesh_id": key(mesh_id), ":name": name};
    let mut statement = tx.prepare_cached(TOPIC_MADE_BY)?;
    let made_by = statement.query_row(by, |row| row.get::<_, Option<Key>>(0)).optional()?;
    let Some(made_by) = made_by else { return Ok(Deleted::NotFound) };
    if !deleter.may(made_by.map(Key::id)) {
        return Ok(Deleted::NotYours);
    }
    let nobody: MemberId = UuidId::new(Uuid::nil());
    let others = named_params! {
        ":mesh_id": key(mesh_id), ":name": name,
        ":member_id": key(deleter.member_id.unwrap_or(nobody)),
    };
    if in_use == InUse::Refuse && exists(tx, SUBSCRIBED_BY_OTHERS, others)? {
        return Ok(Deleted::InUse);
    }
    for statement in [SUBSCRIPTIONS_DELETE, TOPIC_DELETE] {
        tx.prepare_cached(statement)?.execute(by)?;
    }
    audit_in_tx(tx, mesh_id, &[deleter.event(AuditKind::TopicDeleted, name, audited)])?;
    Ok(Deleted::Done)
}

fn queue_delete_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    name: &str,
    (deleter, in_use): (Deleter, InUse),
    audited: Audited,
) -> Result<Deleted, StoreError> {
    let named = named_params! {":mesh_id": key(mesh_id), ":name": name};
    let mut statement = tx.prepare_cached(QUEUE_MADE_BY)?;
    let found = statement
        .query_row(named, |row| Ok((row.get::<_, Key>(0)?, row.get::<_, Option<Key>>(1)?)));
    let Some((queue_id, made_by)) = found.optional()? else { return Ok(Deleted::NotFound) };
    if !deleter.may(made_by.map(Key::id)) {
        return Ok(Deleted::NotYours);
    }
    let queue = queue_id.0.into_bytes();
    let work = named_params! {
        ":mesh_id": key(mesh_id), ":queue_id": queue, ":limit": QUEUE_DISCARD_ROWS,
    };
    if exists(tx, HAS_WORK, &work[..2])? {
        if in_use == InUse::Refuse {
            return Ok(Deleted::InUse);
        }
        tx.prepare_cached(QUEUE_DISCARD)?.execute(work)?;
        if exists(tx, HAS_WORK, &work[..2])? {
            return Ok(Deleted::More);
        }
    }
    tx.prepare_cached(QUEUE_DELETE)?.execute(named)?;
    audit_in_tx(tx, mesh_id, &[deleter.event(AuditKind::QueueDeleted, name, audited)])?;
    Ok(Deleted::Done)
}

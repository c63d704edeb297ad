//! The tables `topic`, `topic_subscription` and `queue`.

use rusqlite::{Connection, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId, QueueId};
use semel_store::{StoreError, statements};

use super::{SqliteStore, exists, key};
use crate::limits::{QUEUES_MAX, QUEUES_OF_MEMBER_MAX, TOPICS_MAX, TOPICS_OF_MEMBER_MAX};
use crate::store::Made;

statements! {
    TOPIC_INSERT = "
        INSERT INTO topic (mesh_id, name, created_at, created_by)
        VALUES (:mesh_id, :name, :now, :by)
            ON CONFLICT DO NOTHING";

    TOPIC_FIND = "
        SELECT 1
          FROM topic
         WHERE mesh_id = :mesh_id
           AND name = :name";

    TOPICS_FULL = "
        SELECT 1
          FROM topic
         WHERE mesh_id = :mesh_id
         ORDER BY name
         LIMIT 1 OFFSET :max - 1";

    TOPICS_OF_MEMBER_FULL = "
        SELECT 1
          FROM topic
         WHERE mesh_id = :mesh_id
           AND created_by = :by
         LIMIT 1 OFFSET :max - 1";

    /// Every name is more than empty: nothing is before the first page.
    TOPIC_LIST = "
        SELECT name
          FROM topic
         WHERE mesh_id = :mesh_id
           AND name > :after
         ORDER BY name
         LIMIT :limit";

    TOPIC_LIST_OF = "
        SELECT name,
               EXISTS (SELECT 1
                         FROM topic_subscription AS subscription
                        WHERE subscription.mesh_id = topic.mesh_id
                          AND subscription.topic = topic.name
                          AND subscription.member_id = :member_id)
          FROM topic
         WHERE mesh_id = :mesh_id
           AND name > :after
         ORDER BY name
         LIMIT :limit";

    SUBSCRIBE = "
        INSERT INTO topic_subscription (mesh_id, topic, member_id, from_seq)
        SELECT :mesh_id, :name, :member_id, next_seq
          FROM mesh
         WHERE mesh_id = :mesh_id
            ON CONFLICT DO NOTHING";

    UNSUBSCRIBE = "
        DELETE FROM topic_subscription
         WHERE mesh_id = :mesh_id
           AND topic = :name
           AND member_id = :member_id";

    AUDIENCE = "
        SELECT count(*)
          FROM topic_subscription
         WHERE mesh_id = :mesh_id
           AND topic = :name";

    QUEUE_INSERT = "
        INSERT INTO queue (mesh_id, name, queue_id, created_at, created_by)
        VALUES (:mesh_id, :name, :queue_id, :now, :by)
            ON CONFLICT DO NOTHING";

    QUEUE_FIND = "
        SELECT 1
          FROM queue
         WHERE mesh_id = :mesh_id
           AND name = :name";

    QUEUES_FULL = "
        SELECT 1
          FROM queue
         WHERE mesh_id = :mesh_id
         ORDER BY name
         LIMIT 1 OFFSET :max - 1";

    QUEUES_OF_MEMBER_FULL = "
        SELECT 1
          FROM queue
         WHERE mesh_id = :mesh_id
           AND created_by = :by
         LIMIT 1 OFFSET :max - 1";

    QUEUE_LIST = "
        SELECT name
          FROM queue
         WHERE mesh_id = :mesh_id
           AND name > :after
         ORDER BY name
         LIMIT :limit";
}

/// How many get what is sent there.
pub(super) fn audience_in_tx(
    tx: &Connection,
    mesh_id: MeshId,
    topic: &str,
) -> Result<usize, StoreError> {
    let by = named_params! {":mesh_id": key(mesh_id), ":name": topic};
    let count: i64 = tx.prepare_cached(AUDIENCE)?.query_row(by, |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

impl SqliteStore {
    pub(in crate::store) async fn audiences(
        &self,
        mesh_id: MeshId,
        topics: &[String],
    ) -> Result<Vec<usize>, StoreError> {
        let topics = topics.to_vec();
        let count = move |tx: &Connection| {
            topics.iter().map(|topic| audience_in_tx(tx, mesh_id, topic)).collect()
        };
        self.sqlite.read(count).await
    }

    pub(in crate::store) async fn topic_create(
        &self,
        mesh_id: MeshId,
        name: &str,
        member: Option<MemberId>,
        now: UnixMs,
    ) -> Result<Made, StoreError> {
        let name = name.to_owned();
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":mesh_id": key(mesh_id), ":name": name};
            if exists(tx, TOPIC_FIND, by)? {
                return Ok(Made::There);
            }
            let full = (TOPICS_FULL, TOPICS_MAX);
            let of_member = (TOPICS_OF_MEMBER_FULL, TOPICS_OF_MEMBER_MAX);
            if full_in_tx(tx, mesh_id, member, [full, of_member])? {
                return Ok(Made::TooMany);
            }
            tx.prepare_cached(TOPIC_INSERT)?.execute(named_params! {
                ":mesh_id": key(mesh_id), ":name": name, ":now": now.0, ":by": member.map(key),
            })?;
            Ok(Made::New)
        });
        write.await
    }

    pub(in crate::store) async fn topic_subscribe(
        &self,
        mesh_id: MeshId,
        name: &str,
        member_id: MemberId,
    ) -> Result<bool, StoreError> {
        self.subscription(SUBSCRIBE, mesh_id, name, member_id).await
    }

    pub(in crate::store) async fn topic_unsubscribe(
        &self,
        mesh_id: MeshId,
        name: &str,
        member_id: MemberId,
    ) -> Result<bool, StoreError> {
        self.subscription(UNSUBSCRIBE, mesh_id, name, member_id).await
    }

    async fn subscription(
        &self,
        change: &'static str,
        mesh_id: MeshId,
        name: &str,
        member_id: MemberId,
    ) -> Result<bool, StoreError> {
        let name = name.to_owned();
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":mesh_id": key(mesh_id), ":name": name};
            let found = exists(tx, TOPIC_FIND, by)?;
            if found {
                tx.prepare_cached(change)?.execute(named_params! {
                    ":mesh_id": key(mesh_id), ":name": name, ":member_id": key(member_id),
                })?;
            }
            Ok(found)
        });
        write.await
    }

    pub(in crate::store) async fn topic_list(
        &self,
        mesh_id: MeshId,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<String>, StoreError> {
        let after = after.unwrap_or_default().to_owned();
        self.sqlite.read(move |c| names(c, TOPIC_LIST, mesh_id, &after, limit)).await
    }

    pub(in crate::store) async fn topic_list_of(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<(String, bool)>, StoreError> {
        let after = after.unwrap_or_default().to_owned();
        let read = self.sqlite.read(move |connection| {
            let mut statement = connection.prepare_cached(TOPIC_LIST_OF)?;
            let by = named_params! {
                ":mesh_id": key(mesh_id), ":member_id": key(member_id), ":after": after,
                ":limit": limit,
            };
            let rows = statement.query_map(by, |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        });
        read.await
    }

    pub(in crate::store) async fn queue_create(
        &self,
        mesh_id: MeshId,
        (name, queue_id): (&str, QueueId),
        member: Option<MemberId>,
        now: UnixMs,
    ) -> Result<Made, StoreError> {
        let name = name.to_owned();
        let write = self.sqlite.write(move |tx| {
            let by = named_params! {":mesh_id": key(mesh_id), ":name": name};
            if exists(tx, QUEUE_FIND, by)? {
                return Ok(Made::There);
            }
            let full = (QUEUES_FULL, QUEUES_MAX);
            let of_member = (QUEUES_OF_MEMBER_FULL, QUEUES_OF_MEMBER_MAX);
            if full_in_tx(tx, mesh_id, member, [full, of_member])? {
                return Ok(Made::TooMany);
            }
            tx.prepare_cached(QUEUE_INSERT)?.execute(named_params! {
                ":mesh_id": key(mesh_id), ":name": name, ":queue_id": key(queue_id),
                ":now": now.0, ":by": member.map(key),
            })?;
            Ok(Made::New)
        });
        write.await
    }

    pub(in crate::store) async fn queue_list(
        &self,
        mesh_id: MeshId,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<String>, StoreError> {
        let after = after.unwrap_or_default().to_owned();
        self.sqlite.read(move |c| names(c, QUEUE_LIST, mesh_id, &after, limit)).await
    }
}

/// Whether there is no room for one more: in the mesh, or of what the member has made.
fn full_in_tx(
    tx: &Connection,
    mesh_id: MeshId,
    member: Option<MemberId>,
    [(all, all_max), (own, own_max)]: [(&str, i64); 2],
) -> Result<bool, StoreError> {
    let by = named_params! {":mesh_id": key(mesh_id), ":max": all_max};
    if exists(tx, all, by)? {
        return Ok(true);
    }
    let Some(member) = member else { return Ok(false) };
    let by = named_params! {":mesh_id": key(mesh_id), ":by": key(member), ":max": own_max};
    exists(tx, own, by)
}

fn names(
    connection: &Connection,
    list: &str,
    mesh_id: MeshId,
    after: &str,
    limit: i64,
) -> Result<Vec<String>, StoreError> {
    let by = named_params! {":mesh_id": key(mesh_id), ":after": after, ":limit": limit};
    let mut statement = connection.prepare_cached(list)?;
    let rows = statement.query_map(by, |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

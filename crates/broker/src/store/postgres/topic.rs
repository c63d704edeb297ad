//! The tables `topic`, `topic_subscription` and `queue`.

use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId, QueueId};
use semel_store::{StoreError, statements};

use super::PostgresStore;
use crate::limits::{
    POSTGRES_BATCH_ROWS, QUEUES_MAX, QUEUES_OF_MEMBER_MAX, TOPICS_MAX, TOPICS_OF_MEMBER_MAX,
};
use crate::store::Made;

statements! {
    TOPIC_INSERT = "
        INSERT INTO mesh.topic (mesh_id, name, created_at, created_by)
        VALUES ($1, $2, $3, $4)
            ON CONFLICT DO NOTHING";

    TOPIC_FIND = "
        SELECT 1
          FROM mesh.topic
         WHERE mesh_id = $1
           AND name = $2";

    TOPICS_FULL = "
        SELECT 1
          FROM mesh.topic
         WHERE mesh_id = $1
         ORDER BY name
         LIMIT 1 OFFSET $2::bigint - 1";

    TOPICS_OF_MEMBER_FULL = "
        SELECT 1
          FROM mesh.topic
         WHERE mesh_id = $1
           AND created_by = $2
         LIMIT 1 OFFSET $3::bigint - 1";

    /// Every name is more than empty: nothing is before the first page.
    TOPIC_LIST = "
        SELECT name
          FROM mesh.topic
         WHERE mesh_id = $1
           AND name > $2
         ORDER BY name
         LIMIT $3";

    TOPIC_LIST_OF = "
        SELECT name,
               (SELECT 1
                  FROM mesh.topic_subscription AS subscription
                 WHERE subscription.mesh_id = $1
                   AND subscription.topic = topic.name
                   AND subscription.member_id = $2
                 LIMIT 1) IS NOT NULL
          FROM mesh.topic AS topic
         WHERE mesh_id = $1
           AND name > $3
         ORDER BY name
         LIMIT $4";

    SUBSCRIBE = "
        -- Whoever accepts meanwhile and sees the subscription gives a number that is not smaller.
        INSERT INTO mesh.topic_subscription (mesh_id, topic, member_id, from_seq)
        SELECT $1, $2, $3, next_seq
          FROM mesh.mesh
         WHERE mesh_id = $1
            ON CONFLICT DO NOTHING";

    UNSUBSCRIBE = "
        DELETE FROM mesh.topic_subscription
         WHERE mesh_id = $1
           AND topic = $2
           AND member_id = $3";

    /// No further than anybody wants to know.
    AUDIENCES = "
        SELECT (SELECT count(*)
                  FROM (SELECT 1
                          FROM mesh.topic_subscription AS subscription
                         WHERE subscription.mesh_id = $1
                           AND subscription.topic = asked.name
                         ORDER BY subscription.member_id
                         LIMIT $3) AS subscribed)
          FROM unnest($2::text[]) WITH ORDINALITY AS asked (name, number)
         ORDER BY asked.number";

    QUEUE_INSERT = "
        INSERT INTO mesh.queue (mesh_id, name, queue_id, created_at, created_by)
        VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT DO NOTHING";

    QUEUE_FIND = "
        SELECT 1
          FROM mesh.queue
         WHERE mesh_id = $1
           AND name = $2";

    QUEUES_FULL = "
        SELECT 1
          FROM mesh.queue
         WHERE mesh_id = $1
         ORDER BY name
         LIMIT 1 OFFSET $2::bigint - 1";

    QUEUES_OF_MEMBER_FULL = "
        SELECT 1
          FROM mesh.queue
         WHERE mesh_id = $1
           AND created_by = $2
         LIMIT 1 OFFSET $3::bigint - 1";

    QUEUE_LIST = "
        SELECT name
          FROM mesh.queue
         WHERE mesh_id = $1
           AND name > $2
         ORDER BY name
         LIMIT $3";
}

impl PostgresStore {
    pub(in crate::store) async fn audiences(
        &self,
        mesh_id: MeshId,
        topics: &[String],
    ) -> Result<Vec<usize>, StoreError> {
        let most = i64::try_from(POSTGRES_BATCH_ROWS).unwrap_or(i64::MAX);
        let mesh = mesh_id.as_uuid();
        let rows = self.postgres.read(AUDIENCES, &[&mesh, &topics, &most]).await?;
        let count = |row: &tokio_postgres::Row| {
            let count: i64 = row.try_get(0)?;
            Ok(usize::try_from(count).unwrap_or(0))
        };
        rows.iter().map(count).collect()
    }

    pub(in crate::store) async fn topic_create(
        &self,
        mesh_id: MeshId,
        name: &str,
        by: Option<MemberId>,
        now: UnixMs,
    ) -> Result<Made, StoreError> {
        let (mesh, by) = (mesh_id.as_uuid(), by.map(|member| member.as_uuid()));
        let tx = self.postgres.begin().await?;
        if tx.query_opt(TOPIC_FIND, &[&mesh, &name]).await?.is_some() {
            return Ok(Made::There);
        }
        let full = tx.query_opt(TOPICS_FULL, &[&mesh, &TOPICS_MAX]).await?;
        let max = TOPICS_OF_MEMBER_MAX;
        let of_member = tx.query_opt(TOPICS_OF_MEMBER_FULL, &[&mesh, &by, &max]).await?;
        if full.or(of_member).is_some() {
            return Ok(Made::TooMany);
        }
        let made = tx.execute(TOPIC_INSERT, &[&mesh, &name, &now.0, &by]).await?;
        tx.commit().await.map(|()| if made == 1 { Made::New } else { Made::There })
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
        let (mesh, member) = (mesh_id.as_uuid(), member_id.as_uuid());
        let tx = self.postgres.begin().await?;
        let found = tx.query_opt(TOPIC_FIND, &[&mesh, &name]).await?.is_some();
        if found {
            tx.execute(change, &[&mesh, &name, &member]).await?;
        }
        tx.commit().await.map(|()| found)
    }

    pub(in crate::store) async fn topic_list(
        &self,
        mesh_id: MeshId,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<String>, StoreError> {
        self.names(TOPIC_LIST, mesh_id, after, limit).await
    }

    pub(in crate::store) async fn topic_list_of(
        &self,
        mesh_id: MeshId,
        member_id: MemberId,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<(String, bool)>, StoreError> {
        let tx = self.postgres.snapshot().await?;
        let after = after.unwrap_or_default();
        let (mesh, member) = (mesh_id.as_uuid(), member_id.as_uuid());
        let rows = tx.query(TOPIC_LIST_OF, &[&mesh, &member, &after, &limit]).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
    }

    pub(in crate::store) async fn queue_create(
        &self,
        mesh_id: MeshId,
        (name, queue_id): (&str, QueueId),
        by: Option<MemberId>,
        now: UnixMs,
    ) -> Result<Made, StoreError> {
        let (mesh, queue) = (mesh_id.as_uuid(), queue_id.as_uuid());
        let by = by.map(|member| member.as_uuid());
        let tx = self.postgres.begin().await?;
        if tx.query_opt(QUEUE_FIND, &[&mesh, &name]).await?.is_some() {
            return Ok(Made::There);
        }
        let full = tx.query_opt(QUEUES_FULL, &[&mesh, &QUEUES_MAX]).await?;
        let max = QUEUES_OF_MEMBER_MAX;
        let of_member = tx.query_opt(QUEUES_OF_MEMBER_FULL, &[&mesh, &by, &max]).await?;
        if full.or(of_member).is_some() {
            return Ok(Made::TooMany);
        }
        let made = tx.execute(QUEUE_INSERT, &[&mesh, &name, &queue, &now.0, &by]).await?;
        tx.commit().await.map(|()| if made == 1 { Made::New } else { Made::There })
    }

    pub(in crate::store) async fn queue_list(
        &self,
        mesh_id: MeshId,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<String>, StoreError> {
        self.names(QUEUE_LIST, mesh_id, after, limit).await
    }

    async fn names(
        &self,
        list: &str,
        mesh_id: MeshId,
        after: Option<&str>,
        limit: i64,
    ) -> Result<Vec<String>, StoreError> {
        let tx = self.postgres.snapshot().await?;
        let after = after.unwrap_or_default();
        let rows = tx.query(list, &[&mesh_id.as_uuid(), &after, &limit]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }
}

//! The consistency check over the five effects (mesh.md §7). Every page is one statement, and so of
//! one moment, in which a message has all of its effects or none; no moment is held any longer.

use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId, UuidId};
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Parameters, PostgresStore};
use crate::limits::CHECK_PAGE_ROWS;
use crate::store::housekeeping::{HistoryRow, HistoryWalk, Horizon};
use crate::store::{Mesh, Report};

statements! {
    /// What is missing is looked for row by row: `NOT EXISTS` may be planned as a list of all that
    /// is there.
    DEDUPE_PAGE = "
        SELECT page.sender_member_id, page.client_message_id,
               page.history_available
               AND (SELECT 1
                      FROM mesh.topic_message AS topic
                     WHERE topic.mesh_id = $1
                       AND topic.broker_message_id = page.broker_message_id
                     LIMIT 1) IS NULL
               AND (SELECT 1
                      FROM mesh.message_queue AS direct
                     WHERE direct.mesh_id = $1
                       AND direct.broker_message_id = page.broker_message_id
                     LIMIT 1) IS NULL
          FROM (SELECT sender_member_id, client_message_id, broker_message_id, history_available
                  FROM mesh.client_message_dedupe
                 WHERE mesh_id = $1
                   AND (sender_member_id, client_message_id) > ($2, $3)
                 ORDER BY sender_member_id, client_message_id
                 LIMIT $4) AS page
         ORDER BY page.sender_member_id, page.client_message_id";

    TOPIC_PAGE = "
        SELECT page.broker_message_id,
               page.accepted_at > $4
               AND (SELECT 1
                      FROM mesh.client_message_dedupe AS dedupe
                     WHERE dedupe.mesh_id = $1
                       AND dedupe.sender_member_id = page.sender_member_id
                       AND dedupe.client_message_id = page.client_message_id
                       AND dedupe.broker_message_id = page.broker_message_id
                     LIMIT 1) IS NULL,
               (SELECT 1
                  FROM mesh.message_history AS history
                 WHERE history.mesh_id = $1
                   AND history.broker_message_id = page.broker_message_id
                 LIMIT 1) IS NULL
          FROM (SELECT broker_message_id, sender_member_id, client_message_id, accepted_at
                  FROM mesh.topic_message
                 WHERE mesh_id = $1
                   AND broker_message_id > $2
                 ORDER BY broker_message_id
                 LIMIT $3) AS page
         ORDER BY page.broker_message_id";

    DIRECT_PAGE = "
        SELECT page.broker_message_id,
               page.accepted_at > $4
               AND (SELECT 1
                      FROM mesh.client_message_dedupe AS dedupe
                     WHERE dedupe.mesh_id = $1
                       AND dedupe.sender_member_id = page.sender_member_id
                       AND dedupe.client_message_id = page.client_message_id
                       AND dedupe.broker_message_id = page.broker_message_id
                     LIMIT 1) IS NULL,
               (SELECT 1
                  FROM mesh.message_history AS history
                 WHERE history.mesh_id = $1
                   AND history.broker_message_id = page.broker_message_id
                 LIMIT 1) IS NULL
          FROM (SELECT broker_message_id, sender_member_id, client_message_id, accepted_at
                  FROM mesh.message_queue
                 WHERE mesh_id = $1
                   AND broker_message_id > $2
                 ORDER BY broker_message_id
                 LIMIT $3) AS page
         ORDER BY page.broker_message_id";

    /// The counter is in every page, and alone in the page after the last number: the end of
    /// history is compared with a counter of the same moment.
    HISTORY_PAGE = "
        SELECT mesh.next_seq, page.seq, COALESCE(topic.accepted_at, direct.accepted_at)
          FROM mesh.mesh
          LEFT JOIN (SELECT seq, broker_message_id
                       FROM mesh.message_history
                      WHERE mesh_id = $1
                        AND seq > $2
                      ORDER BY seq
                      LIMIT $3) AS page
                 ON TRUE
          LEFT JOIN LATERAL (SELECT topic_message.accepted_at
                               FROM mesh.topic_message
                              WHERE topic_message.mesh_id = $1
                                AND topic_message.broker_message_id = page.broker_message_id
                              LIMIT 1) AS topic ON TRUE
          LEFT JOIN LATERAL (SELECT message_queue.accepted_at
                               FROM mesh.message_queue
                              WHERE message_queue.mesh_id = $1
                                AND message_queue.broker_message_id = page.broker_message_id
                              LIMIT 1) AS direct ON TRUE
         WHERE mesh.mesh_id = $1
         ORDER BY page.seq";

    DELIVERY_PAGE = "
        SELECT page.recipient, page.seq,
               (SELECT 1
                  FROM mesh.message_history AS history
                 WHERE history.mesh_id = $1
                   AND history.seq = page.seq
                 LIMIT 1) IS NULL
          FROM (SELECT recipient, seq
                  FROM mesh.delivery_queue
                 WHERE mesh_id = $1
                   AND (recipient, seq) > ($2, $3)
                 ORDER BY recipient, seq
                 LIMIT $4) AS page
         ORDER BY page.recipient, page.seq";

    MENTION_PAGE = "
        SELECT page.member_id, page.seq,
               (SELECT 1
                  FROM mesh.message_history AS history
                 WHERE history.mesh_id = $1
                   AND history.seq = page.seq
                 LIMIT 1) IS NULL
          FROM (SELECT member_id, seq
                  FROM mesh.mention_index
                 WHERE mesh_id = $1
                   AND (member_id, seq) > ($2, $3)
                 ORDER BY member_id, seq
                 LIMIT $4) AS page
         ORDER BY page.member_id, page.seq";

    SET_ASIDE_PAGE = "
        SELECT recipient, seq, TRUE
          FROM mesh.delivery_set_aside
         WHERE mesh_id = $1
           AND (recipient, seq) > ($2, $3)
         ORDER BY recipient, seq
         LIMIT $4";
}

/// A page's rows, as a statement takes the number.
const LIMIT: i64 = CHECK_PAGE_ROWS as i64;

impl PostgresStore {
    pub(in crate::store) async fn check(
        &self,
        mesh: &Mesh,
        now: UnixMs,
    ) -> Result<Report, StoreError> {
        let (mesh_id, horizon) = (mesh.mesh_id, Horizon::new(mesh, now));
        let mut report = Report::default();
        self.check_dedupe(mesh_id, &mut report).await?;
        self.check_messages(TOPIC_PAGE, mesh_id, horizon, &mut report).await?;
        self.check_messages(DIRECT_PAGE, mesh_id, horizon, &mut report).await?;
        self.check_history(mesh_id, horizon, &mut report).await?;
        report.delivery_without_history =
            self.check_numbers(DELIVERY_PAGE, mesh_id, &mut report).await?;
        report.mention_without_history =
            self.check_numbers(MENTION_PAGE, mesh_id, &mut report).await?;
        report.delivery_set_aside =
            self.check_numbers(SET_ASIDE_PAGE, mesh_id, &mut report).await?;
        Ok(report)
    }

    async fn check_dedupe(&self, mesh_id: MeshId, report: &mut Report) -> Result<(), StoreError> {
        let mut after = (Uuid::nil(), String::new());
        loop {
            let page = self.dedupe_page(mesh_id, &after).await?;
            report.rows += page.len() as u64;
            for (sender, id, is_orphan) in &page {
                report.dedupe_without_message += u64::from(*is_orphan);
                after = (*sender, id.clone());
            }
            if page.len() < CHECK_PAGE_ROWS as usize {
                return Ok(());
            }
        }
    }

    pub(in crate::store) async fn dedupe_orphans(
        &self,
        mesh_id: MeshId,
        limit: usize,
    ) -> Result<Vec<(MemberId, String)>, StoreError> {
        let (mut after, mut orphans) = ((Uuid::nil(), String::new()), Vec::new());
        loop {
            let page = self.dedupe_page(mesh_id, &after).await?;
            let is_last = page.len() < CHECK_PAGE_ROWS as usize;
            for (sender, id, is_orphan) in page {
                after = (sender, id.clone());
                if is_orphan && orphans.len() < limit {
                    orphans.push((UuidId::new(sender), id));
                }
            }
            if is_last || orphans.len() >= limit {
                return Ok(orphans);
            }
        }
    }

    /// Ids and whether their message is missing.
    async fn dedupe_page(
        &self,
        mesh_id: MeshId,
        (sender, id): &(Uuid, String),
    ) -> Result<Vec<(Uuid, String, bool)>, StoreError> {
        let by: Parameters<'_> = &[&mesh_id.as_uuid(), sender, id, &LIMIT];
        let read = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
        self.rows(DEDUPE_PAGE, by, read).await
    }

    async fn check_messages(
        &self,
        sql: &'static str,
        mesh_id: MeshId,
        horizon: Horizon,
        report: &mut Report,
    ) -> Result<(), StoreError> {
        let mut after = Uuid::nil();
        loop {
            let from = horizon.dedupe_from.0;
            let by: Parameters<'_> = &[&mesh_id.as_uuid(), &after, &LIMIT, &from];
            let page = self.rows(sql, by, |row| {
                let id: Uuid = row.try_get(0)?;
                Ok((id, row.try_get::<_, bool>(1)?, row.try_get::<_, bool>(2)?))
            });
            let page = page.await?;
            report.rows += page.len() as u64;
            for (id, has_free_id, has_no_history) in &page {
                report.message_without_dedupe += u64::from(*has_free_id);
                report.message_without_history += u64::from(*has_no_history);
                after = *id;
            }
            if page.len() < CHECK_PAGE_ROWS as usize {
                return Ok(());
            }
        }
    }

    async fn check_history(
        &self,
        mesh_id: MeshId,
        horizon: Horizon,
        report: &mut Report,
    ) -> Result<(), StoreError> {
        let mut walk = HistoryWalk::new(horizon);
        loop {
            let by: Parameters<'_> = &[&mesh_id.as_uuid(), &walk.after(), &LIMIT];
            let page = self.rows(HISTORY_PAGE, by, |row| {
                let (next_seq, seq) = (row.try_get(0)?, row.try_get(1)?);
                Ok(HistoryRow { next_seq, seq, accepted_at: row.try_get(2)? })
            });
            let page = page.await?;
            if !walk.take(&page, CHECK_PAGE_ROWS as usize, report) {
                return Ok(());
            }
        }
    }

    /// Counts the rows, of deliveries or of mentions, whose number history does not have.
    async fn check_numbers(
        &self,
        sql: &'static str,
        mesh_id: MeshId,
        report: &mut Report,
    ) -> Result<u64, StoreError> {
        let (mut who, mut what) = (Uuid::nil(), i64::MIN);
        let mut orphans = 0;
        loop {
            let by: Parameters<'_> = &[&mesh_id.as_uuid(), &who, &what, &LIMIT];
            let page = self.rows(sql, by, |row| {
                let (recipient, seq): (Uuid, i64) = (row.try_get(0)?, row.try_get(1)?);
                Ok((recipient, seq, row.try_get::<_, bool>(2)?))
            });
            let page = page.await?;
            report.rows += page.len() as u64;
            for (recipient, seq, is_orphan) in &page {
                orphans += u64::from(*is_orphan);
                (who, what) = (*recipient, *seq);
            }
            if page.len() < CHECK_PAGE_ROWS as usize {
                return Ok(orphans);
            }
        }
    }

    async fn rows<T>(
        &self,
        sql: &str,
        by: Parameters<'_>,
        read: impl Fn(&Row) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let tx = self.postgres.snapshot().await?;
        tx.query(sql, by).await?.iter().map(read).collect()
    }
}

//! The consistency check over the five effects (mesh.md §7). Every page is one statement, and so of
//! one moment, in which a message has all of its effects or none; no moment is held any longer.
//! It runs on the maintenance connection: sends wait for the readers.

use rusqlite::{Connection, Row, ToSql, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId, UuidId};
use semel_store::{StoreError, statements};
use uuid::Uuid;

use super::{Key, SqliteStore, key};
use crate::limits::CHECK_PAGE_ROWS;
use crate::store::housekeeping::{HistoryRow, HistoryWalk, Horizon};
use crate::store::{Mesh, Report};

statements! {
    DEDUPE_PAGE = "
        SELECT page.sender_member_id, page.client_message_id,
               page.history_available
               AND NOT EXISTS (SELECT 1
                                 FROM topic_message AS topic
                                WHERE topic.mesh_id = :mesh_id
                                  AND topic.broker_message_id = page.broker_message_id)
               AND NOT EXISTS (SELECT 1
                                 FROM message_queue AS direct
                                WHERE direct.mesh_id = :mesh_id
                                  AND direct.broker_message_id = page.broker_message_id)
          FROM (SELECT sender_member_id, client_message_id, broker_message_id, history_available
                  FROM client_message_dedupe
                 WHERE mesh_id = :mesh_id
                   AND (sender_member_id, client_message_id) > (:who, :what)
                 ORDER BY sender_member_id, client_message_id
                 LIMIT :limit) AS page
         ORDER BY page.sender_member_id, page.client_message_id";

    TOPIC_PAGE = "
        SELECT page.broker_message_id,
               page.accepted_at > :dedupe_from
               AND NOT EXISTS (SELECT 1
                                 FROM client_message_dedupe AS dedupe
                                WHERE dedupe.mesh_id = :mesh_id
                                  AND dedupe.sender_member_id = page.sender_member_id
                                  AND dedupe.client_message_id = page.client_message_id
                                  AND dedupe.broker_message_id = page.broker_message_id),
               NOT EXISTS (SELECT 1
                             FROM message_history AS history
                            WHERE history.mesh_id = :mesh_id
                              AND history.seq = page.seq
                              AND history.broker_message_id = page.broker_message_id)
          FROM (SELECT broker_message_id, sender_member_id, client_message_id, accepted_at, seq
                  FROM topic_message
                 WHERE mesh_id = :mesh_id
                   AND broker_message_id > :after
                 ORDER BY broker_message_id
                 LIMIT :limit) AS page
         ORDER BY page.broker_message_id";

    DIRECT_PAGE = "
        SELECT page.broker_message_id,
               page.accepted_at > :dedupe_from
               AND NOT EXISTS (SELECT 1
                                 FROM client_message_dedupe AS dedupe
                                WHERE dedupe.mesh_id = :mesh_id
                                  AND dedupe.sender_member_id = page.sender_member_id
                                  AND dedupe.client_message_id = page.client_message_id
                                  AND dedupe.broker_message_id = page.broker_message_id),
               NOT EXISTS (SELECT 1
                             FROM message_history AS history
                            WHERE history.mesh_id = :mesh_id
                              AND history.seq = page.seq
                              AND history.broker_message_id = page.broker_message_id)
          FROM (SELECT broker_message_id, sender_member_id, client_message_id, accepted_at, seq
                  FROM message_queue
                 WHERE mesh_id = :mesh_id
                   AND broker_message_id > :after
                 ORDER BY broker_message_id
                 LIMIT :limit) AS page
         ORDER BY page.broker_message_id";

    /// The counter is in every page, and alone in the page after the last number: the end of
    /// history is compared with a counter of the same moment.
    HISTORY_PAGE = "
        SELECT mesh.next_seq, page.seq, COALESCE(topic.accepted_at, direct.accepted_at)
          FROM mesh
          LEFT JOIN (SELECT seq, broker_message_id
                       FROM message_history
                      WHERE mesh_id = :mesh_id
                        AND seq > :after
                      ORDER BY seq
                      LIMIT :limit) AS page
                 ON TRUE
          LEFT JOIN topic_message AS topic
                 ON topic.mesh_id = :mesh_id
                AND topic.broker_message_id = page.broker_message_id
          LEFT JOIN message_queue AS direct
                 ON direct.mesh_id = :mesh_id
                AND direct.broker_message_id = page.broker_message_id
         WHERE mesh.mesh_id = :mesh_id
         ORDER BY page.seq";

    DELIVERY_PAGE = "
        SELECT page.recipient, page.seq,
               NOT EXISTS (SELECT 1
                             FROM message_history AS history
                            WHERE history.mesh_id = :mesh_id
                              AND history.seq = page.seq)
          FROM (SELECT recipient.id AS recipient, waiting.seq
                  FROM recipient
                 CROSS JOIN delivery_queue AS waiting
                 WHERE recipient.mesh_id = :mesh_id
                   AND recipient.id >= :who
                   AND waiting.recipient = recipient.no
                   AND waiting.seq > iif(recipient.id = :who, :what, -9223372036854775808)
                 ORDER BY recipient.id, waiting.seq
                 LIMIT :limit) AS page
         ORDER BY page.recipient, page.seq";

    MENTION_PAGE = "
        SELECT page.member_id, page.seq,
               NOT EXISTS (SELECT 1
                             FROM message_history AS history
                            WHERE history.mesh_id = :mesh_id
                              AND history.seq = page.seq)
          FROM (SELECT member_id, seq
                  FROM mention_index
                 WHERE mesh_id = :mesh_id
                   AND (member_id, seq) > (:who, :what)
                 ORDER BY member_id, seq
                 LIMIT :limit) AS page
         ORDER BY page.member_id, page.seq";

    SET_ASIDE_PAGE = "
        SELECT recipient, seq, TRUE
          FROM delivery_set_aside
         WHERE mesh_id = :mesh_id
           AND (recipient, seq) > (:who, :what)
         ORDER BY recipient, seq
         LIMIT :limit";
}

/// A page's rows, as a statement takes the number.
const LIMIT: i64 = CHECK_PAGE_ROWS as i64;

impl SqliteStore {
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
            let page = self.dedupe_page(mesh_id, after.clone()).await?;
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
            let page = self.dedupe_page(mesh_id, after.clone()).await?;
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
        (sender, id): (Uuid, String),
    ) -> Result<Vec<(Uuid, String, bool)>, StoreError> {
        let page = self.sqlite.maintain(move |connection| {
            let by = named_params! {
                ":mesh_id": key(mesh_id), ":who": sender.into_bytes(), ":what": id,
                ":limit": LIMIT,
            };
            let read = |row: &Row<'_>| Ok((row.get::<_, Key>(0)?.0, row.get(1)?, row.get(2)?));
            rows(connection, DEDUPE_PAGE, by, read)
        });
        page.await
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
            let by = after.into_bytes();
            let page = self.sqlite.maintain(move |connection| {
                let by = named_params! {
                    ":mesh_id": key(mesh_id), ":after": by, ":limit": LIMIT,
                    ":dedupe_from": horizon.dedupe_from.0,
                };
                rows(connection, sql, by, |row| {
                    Ok((row.get::<_, Key>(0)?.0, row.get::<_, bool>(1)?, row.get::<_, bool>(2)?))
                })
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
            let after = walk.after();
            let page = self.sqlite.maintain(move |connection| {
                let by = named_params! {
                    ":mesh_id": key(mesh_id), ":after": after, ":limit": LIMIT,
                };
                rows(connection, HISTORY_PAGE, by, |row| {
                    let (next_seq, seq) = (row.get(0)?, row.get(1)?);
                    Ok(HistoryRow { next_seq, seq, accepted_at: row.get(2)? })
                })
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
            let by = who.into_bytes();
            let page = self.sqlite.maintain(move |connection| {
                let by = named_params! {
                    ":mesh_id": key(mesh_id), ":who": by, ":what": what, ":limit": LIMIT,
                };
                rows(connection, sql, by, |row| {
                    Ok((row.get::<_, Key>(0)?.0, row.get::<_, i64>(1)?, row.get::<_, bool>(2)?))
                })
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
}

fn rows<T>(
    connection: &Connection,
    sql: &str,
    by: &[(&str, &dyn ToSql)],
    read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql)?;
    Ok(statement.query_map(by, read)?.collect::<Result<_, _>>()?)
}

//! The table `delivery_queue` where the recipient is a work queue: each message goes to one
//! consumer, with a lease (broker.md). A lease that is over is not taken away: its holder may
//! still acknowledge until somebody else takes the message.
//!
//! Differs from sqlite: others take at the same time, also through other brokers. What one has
//! locked the next one passes by, so that a slow taker holds nobody up.

use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId};
use semel_store::{StoreError, statements};
use tokio_postgres::Row;
use uuid::Uuid;

use super::PostgresStore;
use super::delivery::set_aside_in_tx;
use super::history::messages_in_tx;
use crate::limits::{QUEUE_LEASE_BELIEVED, QUEUE_OVER_MAX, QUEUE_TAKES_MAX};
use crate::store::{DAMAGED, Messages, Room, TAKEN_TOO_OFTEN, Take, Taken};

statements! {
    QUEUE_NAMED = "
        -- Differs from sqlite: the server's time comes with it, by which all brokers lease.
        SELECT queue_id, mesh.now_ms()
          FROM mesh.queue
         WHERE mesh_id = $1
           AND name = $2";

    /// What may be taken, with its size, in order; locked. What was taken before comes first: in a
    /// queue that is taken in order that is also what has the lower numbers.
    ///
    /// A lease of later than $6 was given by a clock that has been set back since.
    ///
    /// `ended` and `never_taken` need `delivery_queue_lease`, whose order they name: by the primary
    /// key they would read everything that is leased. Hence a range instead of `= 0`: a constant
    /// would leave the order to `seq` alone, which the primary key gives as well. `over` locks one
    /// by one, no more than it takes, each found by its whole key: `COALESCE` keeps that index out.
    FREE = "
        WITH ended AS MATERIALIZED (
            (SELECT seq
               FROM mesh.delivery_queue
              WHERE mesh_id = $1
                AND recipient = $2
                AND lease_until BETWEEN 1 AND $3
              ORDER BY lease_until, seq
              LIMIT $5)
             UNION ALL
            (SELECT seq
               FROM mesh.delivery_queue
              WHERE mesh_id = $1
                AND recipient = $2
                AND lease_until >= $6
              ORDER BY lease_until, seq
              LIMIT $5)
        ), over AS (
            SELECT locked.seq, locked.attempts
              FROM (SELECT seq FROM ended ORDER BY seq) AS ended
             CROSS JOIN LATERAL (SELECT delivery.seq, delivery.attempts
                                   FROM mesh.delivery_queue AS delivery
                                  WHERE delivery.mesh_id = $1
                                    AND delivery.recipient = $2
                                    AND delivery.seq = ended.seq
                                    AND (COALESCE(delivery.lease_until, 0) BETWEEN 1 AND $3
                                         OR COALESCE(delivery.lease_until, 0) >= $6)
                                    FOR UPDATE SKIP LOCKED) AS locked
             ORDER BY ended.seq
             LIMIT $4
        ), never_taken AS (
            SELECT seq
              FROM mesh.delivery_queue
             WHERE mesh_id = $1
               AND recipient = $2
               AND lease_until < 1
             ORDER BY lease_until, seq
             LIMIT $4 - (SELECT count(*) FROM over)
               FOR UPDATE SKIP LOCKED
        )
        SELECT free.seq, COALESCE(octet_length(message.body), 0)::bigint,
               COALESCE(octet_length(message.meta), 0)::bigint, free.attempts
          FROM (SELECT seq, attempts::bigint FROM over
                UNION ALL
                SELECT seq, 0 FROM never_taken) AS free
          LEFT JOIN LATERAL (SELECT message_history.broker_message_id
                               FROM mesh.message_history
                              WHERE message_history.mesh_id = $1
                                AND message_history.seq = free.seq
                              LIMIT 1) AS history ON TRUE
          LEFT JOIN LATERAL (SELECT message_queue.body, message_queue.meta
                               FROM mesh.message_queue
                              WHERE message_queue.mesh_id = $1
                                AND message_queue.broker_message_id = history.broker_message_id
                              LIMIT 1) AS message ON TRUE
         ORDER BY free.seq";

    LEASE = "
        UPDATE mesh.delivery_queue
           SET leased_by = $4,
               lease_until = $5,
               attempts = attempts + 1
         WHERE ctid = ANY (ARRAY (
               SELECT taken.ctid
                 FROM unnest($3::bigint[]) AS asked (seq),
                      LATERAL (SELECT free.ctid
                                 FROM mesh.delivery_queue AS free
                                WHERE free.mesh_id = $1
                                  AND free.recipient = $2
                                  AND free.seq = asked.seq
                                LIMIT 1) AS taken))";

    ACK = "
        DELETE FROM mesh.delivery_queue AS delivery
         WHERE delivery.ctid = ANY (ARRAY (
               SELECT taken.ctid
                 FROM (SELECT queue.queue_id
                         FROM mesh.queue
                        WHERE queue.mesh_id = $1
                          AND queue.name = $2
                        LIMIT 1) AS named,
                      unnest($4::bigint[]) AS asked (seq),
                      LATERAL (SELECT work.ctid
                                 FROM mesh.delivery_queue AS work
                                WHERE work.mesh_id = $1
                                  AND work.recipient = named.queue_id
                                  AND work.seq = asked.seq
                                LIMIT 1) AS taken))
           AND delivery.leased_by = $3
     RETURNING delivery.seq";
}

impl PostgresStore {
    pub(in crate::store) async fn queue_take(
        &self,
        mesh_id: MeshId,
        queue: &str,
        take: Take,
    ) -> Result<Taken, StoreError> {
        self.postgres.retry(|| self.take_once(mesh_id, queue, take)).await
    }

    async fn take_once(
        &self,
        mesh_id: MeshId,
        queue: &str,
        take: Take,
    ) -> Result<Taken, StoreError> {
        let mesh = mesh_id.as_uuid();
        let tx = self.postgres.begin().await?;
        let named = tx.query_opt(QUEUE_NAMED, &[&mesh, &queue]).await?;
        let Some(named) = named else { return Ok(Taken::NoQueue) };
        let (recipient, now): (Uuid, UnixMs) = (named.try_get(0)?, UnixMs(named.try_get(1)?));
        let latest = now.saturating_add(QUEUE_LEASE_BELIEVED);
        let by: super::Parameters<'_> =
            &[&mesh, &recipient, &now.0, &take.max, &QUEUE_OVER_MAX, &latest.0];
        let (seqs, over) = fitting(&tx.query(FREE, by).await?, take.bytes_max)?;
        let set_aside = if over.is_empty() {
            0
        } else {
            let at = take.at.wall;
            set_aside_in_tx(&tx, mesh_id, recipient, &over, TAKEN_TOO_OFTEN, at).await?
        };
        if seqs.is_empty() && over.is_empty() {
            return Ok(Taken::Leased { taken: Vec::new(), set_aside, damaged: 0 });
        }
        let (taker, until) = (take.taker.as_uuid(), now.saturating_add(take.lease).0);
        let lease: super::Parameters<'_> = &[&mesh, &recipient, &seqs, &taker, &until];
        let (_, Messages { whole: taken, damaged }) =
            tokio::try_join!(tx.execute(LEASE, lease), messages_in_tx(&tx, mesh_id, &seqs))?;
        let damaged = if damaged.is_empty() {
            0
        } else {
            let at = take.at.wall;
            set_aside_in_tx(&tx, mesh_id, recipient, &damaged, DAMAGED, at).await?
        };
        tx.commit().await?;
        Ok(Taken::Leased { taken, set_aside, damaged })
    }

    pub(in crate::store) async fn queue_ack(
        &self,
        mesh_id: MeshId,
        queue: &str,
        taker: MemberId,
        seqs: &[i64],
    ) -> Result<Vec<i64>, StoreError> {
        let (mesh, taker) = (mesh_id.as_uuid(), taker.as_uuid());
        let by: super::Parameters<'_> = &[&mesh, &queue, &taker, &seqs];
        let run = async || {
            let tx = self.postgres.begin().await?;
            tx.query_and_commit(ACK, by).await
        };
        let rows = self.postgres.retry(run).await?;
        let mut acked = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        acked.sort_unstable();
        Ok(acked)
    }
}

/// The first of them that fit, and before them those that were leased too often; the others are
/// free again when the transaction ends.
fn fitting(rows: &[Row], bytes_max: usize) -> Result<(Vec<i64>, Vec<i64>), StoreError> {
    let mut room = Room::new(bytes_max);
    let (mut seqs, mut over) = (Vec::new(), Vec::new());
    for row in rows {
        if row.try_get::<_, i64>(3)? >= QUEUE_TAKES_MAX {
            over.push(row.try_get(0)?);
            continue;
        }
        let (body, meta): (i64, i64) = (row.try_get(1)?, row.try_get(2)?);
        let bytes = |count: i64| usize::try_from(count).unwrap_or(usize::MAX);
        if !room.admits(bytes(body), bytes(meta)) {
            break;
        }
        seqs.push(row.try_get(0)?);
    }
    Ok((seqs, over))
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_testkit::servers;
    use tokio_postgres::NoTls;

    /// Of others, leased, over, never taken.
    const ROWS: &str = "
        INSERT INTO mesh.delivery_queue (mesh_id, recipient, seq, leased_by, lease_until)
        SELECT gen_random_uuid(), gen_random_uuid(), seq, NULL::uuid, NULL::bigint
          FROM generate_series(1, 20000) AS seq
         UNION ALL
        SELECT '00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000002',
               seq, CASE WHEN seq <= 22000 THEN gen_random_uuid() END,
               CASE WHEN seq <= 20000 THEN 9000000000000 WHEN seq <= 22000 THEN seq ELSE 0 END
          FROM generate_series(1, 22200) AS seq";

    /// Whatever the server knows about the table, and whether it plans for these values or any.
    #[tokio::test]
    async fn a_take_does_not_read_what_is_leased() {
        let address = servers::fresh_postgres().await;
        let options = semel_store::postgres::PostgresOptions::new(&address);
        let now = UnixMs(1);
        let _store = PostgresStore::open(options, "epoch-1", now).await.expect("it opens");
        let (client, connection) =
            tokio_postgres::connect(&address, NoTls).await.expect("it connects");
        drop(tokio::spawn(connection));
        client.batch_execute(ROWS).await.expect("rows");
        let types = "uuid, uuid, bigint, bigint, bigint, bigint";
        let prepare = format!("PREPARE take ({types}) AS {FREE}");
        client.batch_execute(&prepare).await.expect("a statement");
        for command in ["SELECT 1", "ANALYZE mesh.delivery_queue"] {
            for setting in ["force_generic_plan", "force_custom_plan"] {
                let set = format!("SET plan_cache_mode = {setting}; {command}");
                client.batch_execute(&set).await.expect("a setting");
                let explain = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) EXECUTE take (
                    '00000000-0000-0000-0000-000000000001',
                    '00000000-0000-0000-0000-000000000002', 1800000000000, 100, 1024,
                    9500000000000)";
                let plan = client.simple_query(explain).await.expect("a plan");
                let plan = format!("{plan:#?}");
                assert!(!plan.contains("Rows Removed by Filter"), "{plan}");
                assert_eq!(plan.matches(" delivery_queue_lease ").count(), 3, "{plan}");
                assert_eq!(plan.matches(" delivery_queue_pkey ").count(), 1, "{plan}");
                assert!(plan.contains("AND (seq = ended.seq)"), "{plan}");
            }
        }
    }
}

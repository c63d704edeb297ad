//! The table `delivery_queue` where the recipient is a work queue: each message goes to one
//! consumer, with a lease (broker.md). A lease that is over is not taken away: its holder may
//! still acknowledge until somebody else takes the message.

use rusqlite::{OptionalExtension, named_params};
use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId};
use semel_store::sqlite::Tx;
use semel_store::{StoreError, statements};
use uuid::Uuid;

use super::delivery::set_aside_in_tx;
use super::history::message;
use super::{Key, SqliteStore, key};
use crate::limits::{QUEUE_LEASE_BELIEVED, QUEUE_OVER_MAX, QUEUE_TAKES_MAX};
use crate::store::{
    DAMAGED, Messages, RawDelivery, Room, TAKEN_TOO_OFTEN, Take, Taken, Unreadable,
};

statements! {
    QUEUE_NAMED = "
        SELECT queue_id
          FROM queue
         WHERE mesh_id = :mesh_id
           AND name = :name";

    /// Needs `delivery_queue_lease`, whose order it names: by the primary key it would read
    /// everything that is leased.
    OVER = "
        SELECT seq, attempts
          FROM delivery_queue
         WHERE recipient = (SELECT no
                              FROM recipient
                             WHERE mesh_id = :mesh_id
                               AND id = :recipient)
           AND seq IN (SELECT seq
                         FROM delivery_queue
                        WHERE recipient = (SELECT no
                                             FROM recipient
                                            WHERE mesh_id = :mesh_id
                                              AND id = :recipient)
                          AND lease_until BETWEEN :from AND :until
                        ORDER BY lease_until, seq
                        LIMIT :over_max)
         ORDER BY seq
         LIMIT :max";

    /// Needs `delivery_queue_lease` too. A range, not `= 0`: a constant would leave the order to
    /// `seq` alone, which the primary key gives as well, with everything leased in between.
    NEVER_TAKEN = "
        SELECT seq
          FROM delivery_queue
         WHERE recipient = (SELECT no
                              FROM recipient
                             WHERE mesh_id = :mesh_id
                               AND id = :recipient)
           AND lease_until < 1
         ORDER BY lease_until, seq
         LIMIT :max";

    LEASE = "
        UPDATE delivery_queue
           SET leased_by = :taker,
               lease_until = :lease_until,
               attempts = attempts + 1
         WHERE recipient = (SELECT no
                              FROM recipient
                             WHERE mesh_id = :mesh_id
                               AND id = :recipient)
           AND seq = :seq";

    ACK = "
        DELETE FROM delivery_queue
         WHERE recipient = (SELECT no
                              FROM recipient
                             WHERE mesh_id = :mesh_id
                               AND id = :recipient)
           AND seq = :seq
           AND leased_by = :taker";
}

impl SqliteStore {
    pub(in crate::store) async fn queue_take(
        &self,
        mesh_id: MeshId,
        queue: &str,
        take: Take,
    ) -> Result<Taken, StoreError> {
        let (queue, now) = (queue.to_owned(), self.steady.now(take.at));
        let leased =
            self.sqlite.write(move |tx| take_in_tx(tx, mesh_id, &queue, take, now)).await?;
        let Some(Leased { recipient, rows, set_aside }) = leased else {
            return Ok(Taken::NoQueue);
        };
        // Checked here: the writer is everybody's. Who is killed in between leaves a lease.
        let Messages { whole: taken, damaged } = Messages::of(rows);
        let mut moved = 0;
        if !damaged.is_empty() {
            let recipient = Uuid::from_bytes(recipient);
            let at = take.at.wall;
            moved = self.deliveries_set_aside(mesh_id, recipient, &damaged, DAMAGED, at).await?;
        }
        Ok(Taken::Leased { taken, set_aside, damaged: moved })
    }

    pub(in crate::store) async fn queue_ack(
        &self,
        mesh_id: MeshId,
        queue: &str,
        taker: MemberId,
        seqs: &[i64],
    ) -> Result<Vec<i64>, StoreError> {
        let (queue, mut seqs) = (queue.to_owned(), seqs.to_vec());
        seqs.sort_unstable();
        let write = self.sqlite.write(move |tx| {
            let mut acked = Vec::new();
            let Some(recipient) = queue_in_tx(tx, mesh_id, &queue)? else { return Ok(acked) };
            let mut statement = tx.prepare_cached(ACK)?;
            for seq in &seqs {
                let rows = statement.execute(named_params! {
                    ":mesh_id": key(mesh_id), ":recipient": recipient, ":seq": seq,
                    ":taker": key(taker),
                })?;
                if rows > 0 {
                    acked.push(*seq);
                }
            }
            Ok(acked)
        });
        write.await
    }
}

/// What was leased, as it was read.
struct Leased {
    recipient: [u8; 16],
    rows: Vec<Result<RawDelivery, Unreadable>>,
    set_aside: u64,
}

fn queue_in_tx(tx: &Tx<'_>, mesh_id: MeshId, name: &str) -> Result<Option<[u8; 16]>, StoreError> {
    let by = named_params! {":mesh_id": key(mesh_id), ":name": name};
    let mut statement = tx.prepare_cached(QUEUE_NAMED)?;
    Ok(statement.query_row(by, |row| Ok(row.get::<_, Key>(0)?.0.into_bytes())).optional()?)
}

fn take_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    queue: &str,
    take: Take,
    now: UnixMs,
) -> Result<Option<Leased>, StoreError> {
    let Some(recipient) = queue_in_tx(tx, mesh_id, queue)? else { return Ok(None) };
    let mut room = Room::new(take.bytes_max);
    let lease_until = now.saturating_add(take.lease).0;
    let (mut rows, mut set_aside) = (Vec::new(), 0);
    for (seq, attempts) in free_in_tx(tx, mesh_id, recipient, (take.max, now))? {
        if attempts >= QUEUE_TAKES_MAX {
            let at = take.at.wall;
            set_aside += set_aside_in_tx(tx, mesh_id, recipient, seq, TAKEN_TOO_OFTEN, at)?;
            continue;
        }
        let row = message(tx, mesh_id, seq)?;
        if row.as_ref().is_ok_and(|row| !row.fits(&mut room)) {
            break;
        }
        tx.prepare_cached(LEASE)?.execute(named_params! {
            ":mesh_id": key(mesh_id), ":recipient": recipient, ":seq": seq,
            ":taker": key(take.taker), ":lease_until": lease_until,
        })?;
        rows.push(row);
    }
    Ok(Some(Leased { recipient, rows, set_aside }))
}

/// What may be taken, in order, and how often it was. What was taken before comes first: in a
/// queue that is taken in order that is also what has the lower numbers.
fn free_in_tx(
    tx: &Tx<'_>,
    mesh_id: MeshId,
    recipient: [u8; 16],
    (max, now): (i64, UnixMs),
) -> Result<Vec<(i64, i64)>, StoreError> {
    let latest = now.saturating_add(QUEUE_LEASE_BELIEVED);
    let mut statement = tx.prepare_cached(OVER)?;
    let (mut seqs, mut left): (Vec<(i64, i64)>, i64) = (Vec::new(), max);
    for (from, until) in [(1, now.0), (latest.0, i64::MAX)] {
        let by = named_params! {
            ":mesh_id": key(mesh_id), ":recipient": recipient, ":from": from, ":until": until,
            ":over_max": QUEUE_OVER_MAX, ":max": left,
        };
        for over in statement.query_map(by, |row| Ok((row.get(0)?, row.get(1)?)))? {
            seqs.push(over?);
            left = left.saturating_sub(1);
        }
    }
    let mut statement = tx.prepare_cached(NEVER_TAKEN)?;
    let by = named_params! {":mesh_id": key(mesh_id), ":recipient": recipient, ":max": left.max(0)};
    for seq in statement.query_map(by, |row| row.get(0))? {
        seqs.push((seq?, 0));
    }
    seqs.sort_unstable();
    Ok(seqs)
}

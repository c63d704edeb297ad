//! A row's transitions: one compare-and-swap statement each, row for row the table of mesh.md §6.

use rusqlite::{Connection, OptionalExtension, ToSql, params};
use semel_core::clock::UnixMs;
use semel_core::envelope::Destination;
use semel_core::id::{BrokerMessageId, OutboxId};
use semel_core::outbox::{AbortedBy, OUTBOX, OutboxEvent, OutboxStatus, Outcome};
use semel_store::StoreError;
use semel_store::statements;

use super::{NewOutboxRow, outbox_insert_in_tx};

statements! {
    STATUS = "
        SELECT status
          FROM outbox
         WHERE id = ?1";

    CLAIM = "
        UPDATE outbox
           SET status = 'inflight', attempts = attempts + 1, maybe_sent = 1
         WHERE id = ?1
           AND status = 'pending'";

    /// What may have been sent is not known to have failed, and what an earlier life of the daemon
    /// left open may have been sent.
    EXPIRE = "
        UPDATE outbox
           SET status = 'dead', last_error = ?2,
               outcome = CASE WHEN maybe_sent = 0 AND life = ?3 THEN 'never_sent'
                              ELSE 'unknown' END
         WHERE id = ?1
           AND status = 'pending'";

    ACCEPTED = "
        UPDATE outbox
           SET status = 'done', delivered_at = ?4, last_error = NULL,
               broker_message_id = ?2, history_id = ?3
         WHERE id = ?1
           AND status = 'inflight'";

    /// `claim` and `accepted` at once, for a row whose answer came before its claim was written.
    SENT = "
        UPDATE outbox
           SET status = 'done', attempts = attempts + 1, maybe_sent = 1, delivered_at = ?4,
               last_error = NULL, broker_message_id = ?2,
               history_id = ?3
         WHERE id = ?1
           AND status = 'pending'";

    /// A row that does not wait on its own is due at once, whatever the clock says later.
    TRANSIENT = "
        UPDATE outbox
           SET status = 'pending', last_error = ?2,
               next_attempt_at = COALESCE(?3, enqueued_at)
         WHERE id = ?1
           AND status = 'inflight'";

    /// As `transient`; what the broker takes from nobody just now was no attempt of this row.
    LIMITED = "
        UPDATE outbox
           SET status = 'pending', last_error = ?2, next_attempt_at = enqueued_at,
               attempts = max(attempts - 1, 0)
         WHERE id = ?1
           AND status = 'inflight'";

    PERMANENT = "
        UPDATE outbox
           SET status = 'dead', last_error = ?2, outcome = ?3
         WHERE id = ?1
           AND status = 'inflight'";

    RESTART = "
        UPDATE outbox
           SET status = 'pending', next_attempt_at = enqueued_at
         WHERE id = ?1
           AND status = 'inflight'";

    COMMITTED = "
        UPDATE outbox
           SET status = 'done', delivered_at = ?4, last_error = NULL, outcome = NULL,
               broker_message_id = ?2, history_id = ?3
         WHERE id = ?1
           AND status = 'dead'
           AND outcome = 'unknown'";

    /// What the broker called it is gone with the broker's store of then.
    DISOWNED = "
        UPDATE outbox
           SET status = 'dead', outcome = 'unknown', last_error = ?2, delivered_at = NULL,
               broker_message_id = NULL, history_id = NULL
         WHERE id = ?1
           AND status = 'done'";

    /// Never of a row that may have been delivered: that is resolved first (mesh.md §10), unless
    /// the operator does not mind.
    REQUEUE = "
        UPDATE outbox
           SET status = 'aborted', aborted_at = ?2, aborted_by = ?3,
               superseded_by = ?4
         WHERE id = ?1
           AND (   (status = 'pending' AND maybe_sent = 0 AND life = ?5)
                OR (status = 'dead'    AND (outcome <> 'unknown' OR ?6)))";
}

/// What became of a transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    /// The row is in this state now.
    To(OutboxStatus),
    /// The table, or its guard, forbids it; the row is as it was.
    Illegal {
        /// Where the row is.
        found: OutboxStatus,
        /// What was to happen to it.
        event: OutboxEvent,
    },
    /// There is no such row.
    Absent,
}

/// What the broker calls a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Its id.
    pub broker_message_id: BrokerMessageId,
    /// Its number in the mesh's history; none for a duplicate whose message retention has taken.
    pub history_id: Option<i64>,
}

impl Delivery {
    pub(super) fn read(broker_message_id: &str, history_id: Option<i64>) -> Option<Self> {
        let broker_message_id = BrokerMessageId::parse(broker_message_id)?;
        Some(Self { broker_message_id, history_id })
    }
}

/// The sender takes a row for the live connection.
pub fn outbox_claim_in_tx(tx: &Connection, id: OutboxId) -> Result<Moved, StoreError> {
    let key = id.to_string();
    step(tx, &key, OutboxEvent::Claim, CLAIM, params![key])
}

/// A row grew older than the max age, or is given up unsent.
pub fn outbox_expire_in_tx(
    tx: &Connection,
    id: OutboxId,
    why: &str,
    life: i64,
) -> Result<Moved, StoreError> {
    let key = id.to_string();
    step(tx, &key, OutboxEvent::Expire, EXPIRE, params![key, why, life])
}

/// The broker accepted it, now or earlier.
pub fn outbox_accepted_in_tx(
    tx: &Connection,
    id: OutboxId,
    delivery: &Delivery,
    now: UnixMs,
) -> Result<Moved, StoreError> {
    delivered(tx, id, OutboxEvent::Accepted, ACCEPTED, delivery, now)
}

/// The sender took it and the broker accepted it, written down together.
pub fn outbox_sent_in_tx(
    tx: &Connection,
    id: OutboxId,
    delivery: &Delivery,
    now: UnixMs,
) -> Result<Moved, StoreError> {
    delivered(tx, id, OutboxEvent::Accepted, SENT, delivery, now)
}

/// A `resolve` found that the broker had accepted a row that was given up as unknown.
pub fn outbox_committed_in_tx(
    tx: &Connection,
    id: OutboxId,
    delivery: &Delivery,
    now: UnixMs,
) -> Result<Moved, StoreError> {
    delivered(tx, id, OutboxEvent::Committed, COMMITTED, delivery, now)
}

fn delivered(
    tx: &Connection,
    id: OutboxId,
    event: OutboxEvent,
    sql: &str,
    delivery: &Delivery,
    now: UnixMs,
) -> Result<Moved, StoreError> {
    let (key, broker_message_id) = (id.to_string(), delivery.broker_message_id.to_string());
    let parameters = params![key, broker_message_id, delivery.history_id, now.0];
    step(tx, &key, event, sql, parameters)
}

/// The attempt failed in a way that may pass. Without a time it does not wait on its own.
pub fn outbox_transient_in_tx(
    tx: &Connection,
    id: OutboxId,
    why: &str,
    next_attempt_at: Option<UnixMs>,
) -> Result<Moved, StoreError> {
    let (key, next_attempt_at) = (id.to_string(), next_attempt_at.map(|at| at.0));
    step(tx, &key, OutboxEvent::Transient, TRANSIENT, params![key, why, next_attempt_at])
}

/// The broker takes nothing of anybody just now.
pub fn outbox_limited_in_tx(tx: &Connection, id: OutboxId, why: &str) -> Result<Moved, StoreError> {
    let key = id.to_string();
    step(tx, &key, OutboxEvent::Transient, LIMITED, params![key, why])
}

/// A broker that was restored did not take a done row again.
pub fn outbox_disowned_in_tx(
    tx: &Connection,
    id: OutboxId,
    why: &str,
) -> Result<Moved, StoreError> {
    let key = id.to_string();
    step(tx, &key, OutboxEvent::Disowned, DISOWNED, params![key, why])
}

/// The broker refused it for good, or cannot judge it any more.
pub fn outbox_permanent_in_tx(
    tx: &Connection,
    id: OutboxId,
    why: &str,
    outcome: Outcome,
) -> Result<Moved, StoreError> {
    let key = id.to_string();
    step(tx, &key, OutboxEvent::Permanent, PERMANENT, params![key, why, outcome.as_str()])
}

/// The connection that carried it is gone.
pub fn outbox_restart_in_tx(tx: &Connection, id: OutboxId) -> Result<Moved, StoreError> {
    let key = id.to_string();
    step(tx, &key, OutboxEvent::Restart, RESTART, params![key])
}

/// Retires a row in favour of a new one under a fresh id, which goes to `destination`.
pub fn outbox_requeue_in_tx(
    tx: &Connection,
    id: OutboxId,
    successor: &NewOutboxRow,
    destination: &Destination,
    by: AbortedBy,
    even_if_delivered: bool,
) -> Result<Moved, StoreError> {
    // The reference to the successor is checked at the end of the statement, so it comes first;
    // a requeue that turns out illegal takes it back.
    tx.execute_batch("SAVEPOINT requeue")?;
    let fingerprint = successor.draft.fingerprint(destination);
    if !outbox_insert_in_tx(tx, successor, destination, fingerprint)? {
        let what = "the successor's id is taken";
        return Err(super::corrupt(successor.client_message_id.as_str(), what));
    }
    let (key, superseded_by) = (id.to_string(), successor.id.to_string());
    let (now, by, life) = (successor.now.0, by.as_str(), successor.life);
    let parameters = params![key, now, by, superseded_by, life, even_if_delivered];
    let moved = step(tx, &key, OutboxEvent::Requeue, REQUEUE, parameters)?;
    if !matches!(moved, Moved::To(_)) {
        tx.execute_batch("ROLLBACK TO requeue")?;
    }
    tx.execute_batch("RELEASE requeue")?;
    Ok(moved)
}

/// Runs a compare-and-swap with the key as its first parameter; when it changes nothing, says why.
/// The statement names the states that the event may start from, and wherever it starts it ends in
/// one.
fn step(
    tx: &Connection,
    key: &str,
    event: OutboxEvent,
    sql: &str,
    parameters: &[&dyn ToSql],
) -> Result<Moved, StoreError> {
    let changed = tx.prepare_cached(sql)?.execute(parameters)?;
    if changed > 0 {
        let to = OUTBOX.iter().find(|(_, on, _)| *on == event).map(|(_, _, to)| *to);
        return to.map(Moved::To).ok_or_else(|| super::corrupt(key, "an event without a row"));
    }
    match status(tx, key)? {
        Some(found) => Ok(Moved::Illegal { found, event }),
        None => Ok(Moved::Absent),
    }
}

fn status(tx: &Connection, id: &str) -> Result<Option<OutboxStatus>, StoreError> {
    let mut statement = tx.prepare_cached(STATUS)?;
    let text: Option<String> = statement.query_row([id], |row| row.get(0)).optional()?;
    text.map(|text| super::status(id, &text)).transpose()
}

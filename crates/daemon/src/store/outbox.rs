//! The table `outbox`: accepting a send (mesh.md §5) and every step of a row's life (mesh.md §6).
//!
//! Who may set which column: `outbox_accept_in_tx` sets what describes the request, once; the
//! transitions set `status` and what belongs to the new status, nothing else. Each transition
//! is one statement that names the status it starts from; when it changes no row, the row is read
//! again and the caller is told what was found.

mod transition;

use rusqlite::{Connection, OptionalExtension, Row, named_params};
use semel_core::clock::UnixMs;
use semel_core::envelope::{Destination, Priority};
use semel_core::fingerprint::Fingerprint;
use semel_core::id::{ClientMessageId, OutboxId};
use semel_core::outbox::{Accept, Compared, OutboxStatus, outbox_accept};
use semel_store::StoreError;
use semel_store::migration::{Migration, MigrationSet};
use semel_store::statements;

pub use transition::{
    Delivery, Moved, outbox_accepted_in_tx, outbox_claim_in_tx, outbox_committed_in_tx,
    outbox_expire_in_tx, outbox_permanent_in_tx, outbox_requeue_in_tx, outbox_restart_in_tx,
    outbox_transient_in_tx,
};

/// "SMLO" in the file's header.
pub const OUTBOX_APPLICATION_ID: i32 = 0x534d_4c4f;

/// The schema of `outbox.db`.
pub const OUTBOX_MIGRATIONS: MigrationSet = MigrationSet {
    component: "outbox",
    migrations: &[Migration {
        version: 1,
        name: "outbox",
        sql: include_str!("../../migrations/outbox/0001_outbox.sql"),
    }],
};

statements! {
    LOOK_UP = "
        SELECT id, request_fingerprint, status, last_error, broker_message_id, history_id
          FROM outbox
         WHERE client_message_id = :client_message_id";

    INSERT = "
        INSERT INTO outbox (id, client_message_id, request_fingerprint, payload, to_given,
                            destination_kind, destination_ref, priority, enqueued_at,
                            next_attempt_at, status)
        VALUES (:id, :client_message_id, :request_fingerprint, :payload, :to_given,
                :destination_kind, :destination_ref, :priority, :now, :now, 'pending')";
}

/// A send that is about to become a row.
#[derive(Debug, Clone)]
pub struct NewOutboxRow {
    /// The row's key, minted for it.
    pub id: OutboxId,
    /// The id under which it happens once.
    pub client_message_id: ClientMessageId,
    /// What identifies the request.
    pub request_fingerprint: Fingerprint,
    /// What is sent.
    pub payload: Vec<u8>,
    /// The destination as the caller wrote it.
    pub to_given: String,
    /// The destination as it was resolved.
    pub destination: Destination,
    /// When it is sent, relative to others.
    pub priority: Priority,
    /// The time of accept.
    pub now: UnixMs,
}

/// What the row under an id says to somebody who sends it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRow {
    /// Its key.
    pub id: OutboxId,
    /// What it was accepted as.
    pub request_fingerprint: Fingerprint,
    /// Where it is in its life.
    pub status: OutboxStatus,
    /// Why it died, or why the last attempt failed.
    pub last_error: Option<String>,
    /// The broker's ids, once it is done.
    pub delivery: Option<Delivery>,
}

/// An answer to a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The table's decision.
    pub accept: Accept,
    /// The row it was made on; `None` when the row is new.
    pub found: Option<FoundRow>,
}

/// Looks the id up, applies the table of mesh.md §5, and inserts where there is no row.
pub fn outbox_accept_in_tx(tx: &Connection, new: &NewOutboxRow) -> Result<Accepted, StoreError> {
    let found = outbox_find_in_tx(tx, &new.client_message_id)?;
    let compared = found.as_ref().map_or(Compared::Differs, |row| {
        Compared::of(&row.request_fingerprint, &new.request_fingerprint)
    });
    let accept = outbox_accept(found.as_ref().map(|row| row.status), compared);
    if accept == Accept::Insert {
        outbox_insert_in_tx(tx, new)?;
    }
    Ok(Accepted { accept, found })
}

/// The row under this id.
pub fn outbox_find_in_tx(
    tx: &Connection,
    client_message_id: &ClientMessageId,
) -> Result<Option<FoundRow>, StoreError> {
    let mut statement = tx.prepare_cached(LOOK_UP)?;
    let found = statement
        .query_row(named_params! {":client_message_id": client_message_id.as_str()}, |row| {
            Ok(found_row(row))
        })
        .optional()?;
    found.transpose()
}

fn outbox_insert_in_tx(tx: &Connection, new: &NewOutboxRow) -> Result<(), StoreError> {
    tx.prepare_cached(INSERT)?.execute(named_params! {
        ":id": new.id.to_string(),
        ":client_message_id": new.client_message_id.as_str(),
        ":request_fingerprint": new.request_fingerprint.0,
        ":payload": new.payload,
        ":to_given": new.to_given,
        ":destination_kind": new.destination.kind().as_str(),
        ":destination_ref": new.destination.reference(),
        ":priority": new.priority.rank(),
        ":now": new.now.0,
    })?;
    Ok(())
}

/// An impossible combination is `Corrupt`, never a panic.
fn found_row(row: &Row<'_>) -> Result<FoundRow, StoreError> {
    let key: String = row.get(0)?;
    let corrupt = |what: &str| StoreError::Corrupt {
        table: "outbox",
        id: key.clone(),
        what: what.to_owned(),
    };
    let id = OutboxId::parse(&key).ok_or_else(|| corrupt("the id is not a ULID"))?;
    let fingerprint: [u8; 32] = row.get(1)?;
    let status: String = row.get(2)?;
    let status = OutboxStatus::parse(&status).ok_or_else(|| corrupt("the status is unknown"))?;
    let delivery = match (status, row.get(4)?, row.get(5)?) {
        (OutboxStatus::Done, Some(text), Some(history_id)) => {
            let delivery = Delivery::read(text, history_id);
            Some(delivery.ok_or_else(|| corrupt("the broker's id is not a UUID"))?)
        }
        (
            OutboxStatus::Pending
            | OutboxStatus::Inflight
            | OutboxStatus::Dead
            | OutboxStatus::Aborted,
            None,
            None,
        ) => None,
        _ => return Err(corrupt("the broker's ids do not fit the status")),
    };
    let request_fingerprint = Fingerprint(fingerprint);
    Ok(FoundRow { id, request_fingerprint, status, last_error: row.get(3)?, delivery })
}

#[cfg(test)]
mod tests;

//! The table `outbox`: accepting a send (mesh.md §5) and every step of a row's life (mesh.md §6).
//!
//! Who may set which column: `outbox_accept_in_tx` sets what describes the request, once; the
//! transitions set `status` and what belongs to the new status, nothing else. Each transition
//! is one statement that names the status it starts from; when it changes no row, the row is read
//! again and the caller is told what was found.

pub(super) mod transition;

use rusqlite::{Connection, OptionalExtension, Row, params};
use semel_core::canonical::Meta;
use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::envelope::{Destination, DestinationKind, Envelope, Priority};
use semel_core::fingerprint::{BodyHash, Fingerprint};
use semel_core::id::{ClientMessageId, OutboxId};
use semel_core::outbox::{Accept, Compared, OutboxStatus, outbox_accept};
use semel_core::refusal::Refusal;
use semel_store::{StoreError, statements};

pub use transition::{
    Delivery, Moved, outbox_accepted_in_tx, outbox_claim_in_tx, outbox_committed_in_tx,
    outbox_expire_in_tx, outbox_permanent_in_tx, outbox_requeue_in_tx, outbox_restart_in_tx,
    outbox_sent_in_tx, outbox_transient_in_tx,
};

statements! {
    LOOK_UP = "
        SELECT id, request_fingerprint, status, last_error, broker_message_id, history_id,
               to_given, destination_kind, destination_ref
          FROM outbox
         WHERE client_message_id = ?1";

    INSERT = "
        INSERT INTO outbox (id, client_message_id, request_fingerprint, payload, meta,
                            reply_to_id, to_given, destination_kind, destination_ref, priority,
                            enqueued_at, next_attempt_at, life, status)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?11, ?12, 'pending')
            ON CONFLICT (client_message_id) DO NOTHING";
}

/// What is sent, apart from where.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The message it replies to.
    pub reply_to_id: Option<String>,
    /// When it is sent, relative to others.
    pub priority: Priority,
    /// Canonical.
    pub meta: Meta,
    /// The body.
    pub body: Vec<u8>,
    /// What stands for the body in the fingerprint.
    pub body_hash: BodyHash,
}

impl Draft {
    /// What an envelope says, apart from where it goes.
    pub fn of(envelope: &Envelope) -> Self {
        Self {
            reply_to_id: envelope.reply_to_id().map(str::to_owned),
            priority: envelope.priority(),
            meta: envelope.meta().clone(),
            body: envelope.body().to_owned(),
            body_hash: BodyHash::of(envelope.body()),
        }
    }

    /// What a row says, as it was stored.
    pub fn again(
        priority: Priority,
        meta: &str,
        reply_to_id: Option<String>,
        body: Vec<u8>,
    ) -> Result<Self, Refusal> {
        let meta = match meta {
            "" => Meta::default(),
            text => {
                let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text)
                    .map_err(|error| Refusal::new(Code::InvalidJson, error.to_string()))?;
                Meta::new(&object)?
            }
        };
        let body_hash = BodyHash::of(&body);
        Ok(Self { reply_to_id, priority, meta, body, body_hash })
    }

    /// The fingerprint of this, sent there.
    pub fn fingerprint(&self, destination: &Destination) -> Fingerprint {
        let reply_to_id = self.reply_to_id.as_deref();
        Fingerprint::of_parts(destination, reply_to_id, self.priority, &self.meta, self.body_hash)
    }
}

/// A send that wants to become a row.
#[derive(Debug, Clone)]
pub struct NewOutboxRow {
    /// The row's key, minted for it.
    pub id: OutboxId,
    /// The id under which it happens once.
    pub client_message_id: ClientMessageId,
    /// What is sent.
    pub draft: Draft,
    /// The destination as the caller wrote it.
    pub to_given: String,
    /// The destination as it was resolved, or why it could not be.
    pub resolved: Result<Destination, Refusal>,
    /// The life of the daemon that accepts it.
    pub life: i64,
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
    /// The destination as its caller wrote it.
    pub to_given: String,
    /// What that was resolved to.
    pub destination: Destination,
}

/// An answer to a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// There was no such id: it is a row now.
    Inserted {
        /// Of the request.
        fingerprint: Fingerprint,
    },
    /// The table's decision on the row that was there.
    Found {
        /// What the table says.
        accept: Accept,
        /// The row.
        row: FoundRow,
        /// Of the request, where it could be told.
        fingerprint: Option<Fingerprint>,
    },
    /// There was no such id, and nowhere to send to: nothing is written.
    Unresolved(Refusal),
}

/// Inserts where there is no row, and applies the table of mesh.md §5 where there is one. Most
/// sends are new, so the insert comes first: it says by itself whether the id is taken.
///
/// Names are resolved once: a retry that says `to` in the same words is compared under what they
/// meant the first time.
pub fn outbox_accept_in_tx(tx: &Connection, new: &NewOutboxRow) -> Result<Accepted, StoreError> {
    if let Ok(destination) = &new.resolved
        && let Some(fingerprint) = outbox_insert_in_tx(tx, new, destination)?
    {
        return Ok(Accepted::Inserted { fingerprint });
    }
    match (outbox_find_in_tx(tx, &new.client_message_id)?, &new.resolved) {
        (None, Err(refusal)) => Ok(Accepted::Unresolved(refusal.clone())),
        (None, Ok(_)) => Err(corrupt(new.client_message_id.as_str(), "taken, but not found")),
        (Some(row), resolved) => {
            let same_words = row.to_given == new.to_given;
            let destination =
                if same_words { Some(&row.destination) } else { resolved.as_ref().ok() };
            let fingerprint = destination.map(|destination| new.draft.fingerprint(destination));
            let compared = Compared::of(&Some(row.request_fingerprint), &fingerprint);
            let accept = outbox_accept(Some(row.status), compared);
            Ok(Accepted::Found { accept, row, fingerprint })
        }
    }
}

/// The row under this id.
pub fn outbox_find_in_tx(
    tx: &Connection,
    client_message_id: &ClientMessageId,
) -> Result<Option<FoundRow>, StoreError> {
    let mut statement = tx.prepare_cached(LOOK_UP)?;
    let found = statement
        .query_row(params![client_message_id.as_str()], |row| Ok(found_row(row)))
        .optional()?;
    found.transpose()
}

/// Nothing when the id is taken.
fn outbox_insert_in_tx(
    tx: &Connection,
    new: &NewOutboxRow,
    destination: &Destination,
) -> Result<Option<Fingerprint>, StoreError> {
    let draft = &new.draft;
    let fingerprint = draft.fingerprint(destination);
    let inserted = tx.prepare_cached(INSERT)?.execute(params![
        new.id.to_string(),
        new.client_message_id.as_str(),
        fingerprint.0,
        draft.body,
        draft.meta.as_str(),
        draft.reply_to_id,
        new.to_given,
        destination.kind().as_str(),
        destination.reference(),
        draft.priority.rank(),
        new.now.0,
        new.life,
    ])?;
    Ok((inserted == 1).then_some(fingerprint))
}

/// What makes a row impossible.
pub(super) fn corrupt(id: &str, what: impl Into<String>) -> StoreError {
    StoreError::Corrupt { table: "outbox", id: id.to_owned(), what: what.into() }
}

pub(super) fn outbox_id(key: &str) -> Result<OutboxId, StoreError> {
    OutboxId::parse(key).ok_or_else(|| corrupt(key, "the id is not a ULID"))
}

pub(super) fn destination(key: &str, kind: &str, name: &str) -> Result<Destination, StoreError> {
    let kind = DestinationKind::parse(kind).ok_or_else(|| corrupt(key, "the kind is unknown"))?;
    Destination::new(kind, name).map_err(|refusal| corrupt(key, refusal.detail))
}

pub(super) fn status(key: &str, text: &str) -> Result<OutboxStatus, StoreError> {
    OutboxStatus::parse(text).ok_or_else(|| corrupt(key, format!("the status {text:?} is unknown")))
}

/// An impossible combination is `Corrupt`, never a panic.
fn found_row(row: &Row<'_>) -> Result<FoundRow, StoreError> {
    let key: String = row.get(0)?;
    let fingerprint: [u8; 32] = row.get(1)?;
    let status = status(&key, row.get_ref(2)?.as_str().unwrap_or_default())?;
    let delivery = delivery(&key, status, row.get(4)?, row.get(5)?)?;
    let (kind, name): (String, String) = (row.get(7)?, row.get(8)?);
    Ok(FoundRow {
        id: outbox_id(&key)?,
        request_fingerprint: Fingerprint(fingerprint),
        status,
        last_error: row.get(3)?,
        delivery,
        to_given: row.get(6)?,
        destination: destination(&key, &kind, &name)?,
    })
}

/// The broker's ids, which a row has exactly while it is done.
pub(super) fn delivery(
    key: &str,
    status: OutboxStatus,
    broker_message_id: Option<String>,
    history_id: Option<i64>,
) -> Result<Option<Delivery>, StoreError> {
    match (status, broker_message_id) {
        (OutboxStatus::Done, Some(text)) => {
            let delivery = Delivery::read(&text, history_id);
            delivery.map(Some).ok_or_else(|| corrupt(key, "the broker's id is not a UUID"))
        }
        (
            OutboxStatus::Pending
            | OutboxStatus::Inflight
            | OutboxStatus::Dead
            | OutboxStatus::Aborted,
            None,
        ) => Ok(None),
        (_, _) => Err(corrupt(key, "the broker's ids do not fit the status")),
    }
}

#[cfg(test)]
mod tests;

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
use semel_store::{StoreError, is_of_one_row, statements};
use serde_json::{Map, Value};

pub use transition::{
    Delivery, Moved, outbox_accepted_in_tx, outbox_claim_in_tx, outbox_committed_in_tx,
    outbox_disowned_in_tx, outbox_expire_in_tx, outbox_limited_in_tx, outbox_permanent_in_tx,
    outbox_requeue_in_tx, outbox_restart_in_tx, outbox_sent_in_tx, outbox_transient_in_tx,
};

statements! {
    LOOK_UP = "
        SELECT id, request_fingerprint, status, last_error, broker_message_id, history_id,
               to_given, destination_kind, destination_ref, meta, mentions_given
          FROM outbox
         WHERE client_message_id = ?1";

    INSERT = "
        INSERT INTO outbox (id, client_message_id, request_fingerprint, payload, meta,
                            reply_to_id, to_given, destination_kind, destination_ref, priority,
                            enqueued_at, next_attempt_at, life, mentions_given, status)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?11, ?12, ?13, 'pending')
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
    /// Everybody who is mentioned in it as the caller wrote them, if there are names among them.
    pub mentions_given: Option<String>,
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
            mentions_given: None,
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
        let meta = Meta::new(&object(meta)?)?;
        let body_hash = BodyHash::of(&body);
        Ok(Self { reply_to_id, priority, meta, mentions_given: None, body, body_hash })
    }

    /// This, with the mentions that a stored meta has.
    fn mentioning_as(&self, stored: &str) -> Result<Self, Refusal> {
        let (mut meta, mut stored) = (object(self.meta.as_str())?, object(stored)?);
        meta.remove("mentions");
        meta.extend(stored.remove("mentions").map(|mentions| ("mentions".to_owned(), mentions)));
        Ok(Self { meta: Meta::new(&meta)?, ..self.clone() })
    }

    /// The fingerprint of this, sent there.
    pub fn fingerprint(&self, destination: &Destination) -> Fingerprint {
        let reply_to_id = self.reply_to_id.as_deref();
        Fingerprint::of_parts(destination, reply_to_id, self.priority, &self.meta, self.body_hash)
    }
}

/// A meta as it is stored: nothing at all is the empty object.
fn object(meta: &str) -> Result<Map<String, Value>, Refusal> {
    match meta {
        "" => Ok(Map::new()),
        text => serde_json::from_str(text)
            .map_err(|error| Refusal::new(Code::InvalidJson, error.to_string())),
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

impl NewOutboxRow {
    /// Its fingerprint, if there is somewhere to send it.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.resolved.as_ref().ok().map(|destination| self.draft.fingerprint(destination))
    }
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
    /// Its meta, mentions resolved.
    pub meta: String,
    /// Those mentioned as its caller wrote them, if there were names among them.
    pub mentions_given: Option<String>,
}

impl FoundRow {
    /// What the table says of a request under this row's id. Names are resolved once: where the
    /// request says them in the row's words they mean what they meant to the row.
    fn decide(self, new: &NewOutboxRow) -> Accepted {
        let resolved = new.resolved.as_ref().ok();
        let same_words = self.to_given == new.to_given;
        let destination = if same_words { Some(&self.destination) } else { resolved };
        let given = &new.draft.mentions_given;
        let draft = match given {
            None => Some(new.draft.clone()),
            Some(_) if *given == self.mentions_given => new.draft.mentioning_as(&self.meta).ok(),
            Some(_) => resolved.map(|_| new.draft.clone()),
        };
        let fingerprint = destination.zip(draft).map(|(to, draft)| draft.fingerprint(to));
        let compared = Compared::of(&Some(self.request_fingerprint), &fingerprint);
        let accept = outbox_accept(Some(self.status), compared);
        Accepted::Found { accept, row: Box::new(self), fingerprint }
    }
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
        row: Box<FoundRow>,
        /// Of the request, where it could be told.
        fingerprint: Option<Fingerprint>,
    },
    /// There was no such id, and nowhere to send to: nothing is written.
    Unresolved(Refusal),
}

/// Inserts where there is no row, and applies the table of mesh.md §5 where there is one. Most
/// sends are new, so the insert comes first: it says by itself whether the id is taken. The
/// fingerprint is the new row's own: whoever waits for the writer need not wait for it too.
pub fn outbox_accept_in_tx(
    tx: &Connection,
    new: &NewOutboxRow,
    fingerprint: Option<Fingerprint>,
) -> Result<Accepted, StoreError> {
    if let (Ok(destination), Some(fingerprint)) = (&new.resolved, fingerprint)
        && outbox_insert_in_tx(tx, new, destination, fingerprint)?
    {
        return Ok(Accepted::Inserted { fingerprint });
    }
    match (outbox_find_in_tx(tx, &new.client_message_id)?, &new.resolved) {
        (None, Err(refusal)) => Ok(Accepted::Unresolved(refusal.clone())),
        (None, Ok(_)) => Err(corrupt(new.client_message_id.as_str(), "taken, but not found")),
        (Some(row), _) => Ok(row.decide(new)),
    }
}

/// The table's answer where there is a row, without writing anything; nothing where there is none.
pub fn outbox_again(
    connection: &Connection,
    new: &NewOutboxRow,
) -> Result<Option<Accepted>, StoreError> {
    let found = outbox_find_in_tx(connection, &new.client_message_id)?;
    Ok(found.map(|row| row.decide(new)))
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

/// `false` when the id is taken.
fn outbox_insert_in_tx(
    tx: &Connection,
    new: &NewOutboxRow,
    destination: &Destination,
    fingerprint: Fingerprint,
) -> Result<bool, StoreError> {
    let draft = &new.draft;
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
        draft.mentions_given,
    ])?;
    Ok(inserted == 1)
}

/// What makes a row impossible.
pub(super) fn corrupt(id: &str, what: impl Into<String>) -> StoreError {
    StoreError::Corrupt { table: "outbox", id: id.to_owned(), what: what.into() }
}

/// Text that is no text, or a value of another type than its column's: it is the row that is
/// damaged, and the others can be read.
pub(super) fn damaged(key: &str, error: StoreError) -> StoreError {
    if let StoreError::Sqlite(what) = &error
        && is_of_one_row(what)
    {
        return corrupt(key, what.to_string());
    }
    error
}

/// The key of a row, which is the first of its columns; nothing where it cannot be read.
pub(super) fn key_of(row: &Row<'_>) -> Result<Option<OutboxId>, StoreError> {
    Ok(row.get_ref(0)?.as_str().ok().and_then(OutboxId::parse))
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
        meta: row.get(9)?,
        mentions_given: row.get(10)?,
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

//! What the sender reads of the outbox: what is due, what is to be asked about, and what is offered
//! again. Ids are ULIDs of one monotonic mint, so their order is the order of accept.

use std::collections::HashSet;
use std::time::Duration;

use rusqlite::{Connection, Row, params};
use semel_core::clock::UnixMs;
use semel_core::envelope::{Destination, Priority};
use semel_core::fingerprint::Fingerprint;
use semel_core::id::{ClientMessageId, OutboxId};
use semel_core::limits::BACKOFF_CAP_MS;
use semel_store::{StoreError, statements};

use super::outbox::{NewOutboxRow, corrupt, damaged, destination, key_of, outbox_id};

statements! {
    /// In the order in which they are to be sent. Only what waits on its own is not due, and not if
    /// it would wait for longer than anything does: then the clock was set back.
    DUE = "
        SELECT id, client_message_id, request_fingerprint, payload, meta, reply_to_id,
               destination_kind, destination_ref, priority, enqueued_at, attempts
          FROM outbox
         WHERE status = 'pending'
           AND priority = ?1
           AND (next_attempt_at <= enqueued_at
                OR next_attempt_at NOT BETWEEN ?2 + 1 AND ?3)
         ORDER BY id
         LIMIT ?4";

    /// When the next of what waits on its own may be tried; a look ahead that is bounded.
    NEXT_DUE = "
        SELECT min(next_attempt_at)
          FROM (SELECT next_attempt_at, enqueued_at
                  FROM outbox
                 WHERE status = 'pending'
                   AND priority = ?1
                 ORDER BY id
                 LIMIT ?2)
         WHERE next_attempt_at > enqueued_at";

    /// Without a limit, as INFLIGHT and UNKNOWN are: whoever reads stops at what it can use, and
    /// passes over what it cannot read.
    NEWEST = "
        SELECT id
          FROM outbox
         WHERE id > ''
         ORDER BY id DESC";

    OLDEST = "
        SELECT id, enqueued_at
          FROM outbox
         WHERE status = 'pending'
           AND priority = ?1
         ORDER BY id
         LIMIT ?2";

    /// From a time that has not come to one that has.
    COUNT_FROM = "
        UPDATE outbox
           SET enqueued_at = ?2, next_attempt_at = min(next_attempt_at, ?2)
         WHERE id = ?1
           AND status = 'pending'
           AND enqueued_at > ?2";

    INFLIGHT = "
        SELECT id
          FROM outbox
         WHERE status = 'inflight'
           AND id > ''
         ORDER BY id";

    UNKNOWN = "
        SELECT id, client_message_id, request_fingerprint, enqueued_at
          FROM outbox
         WHERE status = 'dead'
           AND outcome = 'unknown'
           AND too_old = 0
           AND id > ?1
         ORDER BY id";

    /// The broker said that it had not and never will: not of rows from before its store was
    /// restored (mesh.md §10).
    REFUSED = "
        UPDATE outbox
           SET outcome = 'refused'
         WHERE id = ?1
           AND status = 'dead'
           AND outcome = 'unknown'";

    TOO_OLD = "
        UPDATE outbox
           SET too_old = 1
         WHERE id = ?1
           AND status = 'dead'
           AND outcome = 'unknown'";

    OFFERED = "
        SELECT id, client_message_id, request_fingerprint, payload, meta, reply_to_id,
               destination_kind, destination_ref, priority, enqueued_at, attempts
          FROM outbox
         WHERE status = 'done'
           AND payload IS NOT NULL
           AND id > ?1
           AND id < ?2
         ORDER BY id
         LIMIT ?3";

    /// What a restored broker calls a message that it was offered again.
    OFFER_TAKEN = "
        UPDATE outbox
           SET broker_message_id = ?2, history_id = ?3
         WHERE id = ?1
           AND status = 'done'";
}

/// A row as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Its key.
    pub id: OutboxId,
    /// The id under which it happens once.
    pub client_message_id: ClientMessageId,
    /// Frozen at accept.
    pub request_fingerprint: Fingerprint,
    /// The body.
    pub body: Vec<u8>,
    /// Canonical JSON, or empty.
    pub meta: String,
    /// The message it replies to.
    pub reply_to_id: Option<String>,
    /// Where it goes.
    pub destination: Destination,
    /// How urgent it is.
    pub priority: Priority,
    /// When it was accepted.
    pub enqueued_at: UnixMs,
    /// Attempts before this one.
    pub attempts: u32,
}

impl Due {
    /// A row that was just inserted, as it would be read; nothing of one without a destination.
    pub(crate) fn fresh(new: NewOutboxRow, request_fingerprint: Fingerprint) -> Option<Self> {
        Some(Self {
            id: new.id,
            client_message_id: new.client_message_id,
            request_fingerprint,
            body: new.draft.body,
            meta: new.draft.meta.into_string(),
            reply_to_id: new.draft.reply_to_id,
            destination: new.resolved.ok()?,
            priority: new.draft.priority,
            enqueued_at: new.now,
            attempts: 0,
        })
    }
}

/// What was found of rows that are to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Those that can be.
    pub due: Vec<Due>,
    /// Those that can not.
    pub unreadable: Vec<Unreadable>,
    /// Those of which not even the key can be read. They are passed over.
    pub nameless: usize,
}

/// A row that says something impossible. It must not keep the others from being read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Its key.
    pub id: OutboxId,
    /// What is wrong with it.
    pub what: String,
}

impl Found {
    fn add(&mut self, id: OutboxId, row: &Row<'_>) -> Result<(), StoreError> {
        match read_due(row).map_err(|error| damaged(&id.to_string(), error)) {
            Ok(due) => self.due.push(due),
            Err(StoreError::Corrupt { what, .. }) => {
                let what = format!("the row is damaged: {what}");
                self.unreadable.push(Unreadable { id, what });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// A row whose fate the broker is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// Its key.
    pub id: OutboxId,
    /// The id it was sent under.
    pub client_message_id: ClientMessageId,
    /// What it was.
    pub request_fingerprint: Fingerprint,
    /// When it was accepted.
    pub enqueued_at: UnixMs,
}

/// Up to `limit` rows that are due, by priority and then in the order of accept, without those that
/// are taken already: their marks may not be on disk yet.
pub fn due(
    connection: &Connection,
    taken: &HashSet<OutboxId>,
    now: UnixMs,
    limit: usize,
) -> Result<Found, StoreError> {
    let latest = now.saturating_add(Duration::from_millis(BACKOFF_CAP_MS));
    let mut found = Found::default();
    for priority in Priority::ALL {
        if found.due.len() >= limit {
            break;
        }
        let read = i64::try_from(limit + taken.len()).unwrap_or(i64::MAX);
        let mut statement = connection.prepare_cached(DUE)?;
        let mut rows = statement.query(params![priority.rank(), now.0, latest.0, read])?;
        while let Some(row) = rows.next()? {
            if found.due.len() >= limit {
                break;
            }
            match key_of(row)? {
                Some(id) if taken.contains(&id) => {}
                Some(id) => found.add(id, row)?,
                None => found.nameless += 1,
            }
        }
    }
    Ok(found)
}

/// When the next row that waits on its own is due, of the first `look` rows of each priority.
pub fn next_due(connection: &Connection, look: i64) -> Result<Option<UnixMs>, StoreError> {
    let mut next: Option<i64> = None;
    for priority in Priority::ALL {
        let mut statement = connection.prepare_cached(NEXT_DUE)?;
        let at: Option<i64> =
            statement.query_row(params![priority.rank(), look], |row| row.get(0))?;
        next = next.into_iter().chain(at).min();
    }
    Ok(next.map(UnixMs))
}

/// The row that was accepted last, of those whose keys can be read.
pub fn newest(connection: &Connection) -> Result<Option<OutboxId>, StoreError> {
    let mut statement = connection.prepare_cached(NEWEST)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if let Some(id) = key_of(row)? {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// What a look at the ages of rows has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ages {
    /// Those that waited too long.
    pub expired: Vec<OutboxId>,
    /// Those from a time that has not come.
    pub ahead: Vec<OutboxId>,
}

/// Of the first `look` pending rows of each priority those that were accepted before `before`, and
/// those that seem to be from later than `latest`.
pub fn ages(
    connection: &Connection,
    before: UnixMs,
    latest: UnixMs,
    look: i64,
) -> Result<Ages, StoreError> {
    let mut found = Ages::default();
    for priority in Priority::ALL {
        let mut statement = connection.prepare_cached(OLDEST)?;
        let mut rows = statement.query(params![priority.rank(), look])?;
        while let Some(row) = rows.next()? {
            let enqueued_at = row.get::<_, i64>(1)?;
            if enqueued_at < before.0 {
                found.expired.extend(key_of(row)?);
            } else if enqueued_at > latest.0 {
                found.ahead.extend(key_of(row)?);
            }
        }
    }
    Ok(found)
}

/// The age of a row that seems to be from later is counted from this time on.
pub fn count_from_in_tx(tx: &Connection, id: OutboxId, time: UnixMs) -> Result<(), StoreError> {
    tx.prepare_cached(COUNT_FROM)?.execute(params![id.to_string(), time.0])?;
    Ok(())
}

/// Up to `limit` rows that are marked as on the wire. One without a key that can be read stays.
pub fn inflight(connection: &Connection, limit: i64) -> Result<Vec<OutboxId>, StoreError> {
    let mut statement = connection.prepare_cached(INFLIGHT)?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    let limit = usize::try_from(limit).unwrap_or(0);
    while found.len() < limit
        && let Some(row) = rows.next()?
    {
        found.extend(key_of(row)?);
    }
    Ok(found)
}

/// Up to `limit` dead rows whose outcome is not known, after this id, and how many that cannot be
/// read were passed over.
pub fn unknown(
    connection: &Connection,
    after: Option<OutboxId>,
    limit: i64,
) -> Result<(Vec<Unknown>, usize), StoreError> {
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    let mut statement = connection.prepare_cached(UNKNOWN)?;
    let mut rows = statement.query([after])?;
    let (mut found, mut unreadable) = (Vec::new(), 0);
    let limit = usize::try_from(limit).unwrap_or(0);
    while found.len() < limit
        && let Some(row) = rows.next()?
    {
        let key = row.get_ref(0)?.as_str().unwrap_or_default();
        match read_unknown(key, row).map_err(|error| damaged(key, error)) {
            Ok(unknown) => found.push(unknown),
            Err(StoreError::Corrupt { .. }) => unreadable += 1,
            Err(error) => return Err(error),
        }
    }
    Ok((found, unreadable))
}

fn read_unknown(key: &str, row: &Row<'_>) -> Result<Unknown, StoreError> {
    Ok(Unknown {
        id: outbox_id(key)?,
        client_message_id: client_message_id(key, &row.get::<_, String>(1)?)?,
        request_fingerprint: Fingerprint(row.get(2)?),
        enqueued_at: UnixMs(row.get(3)?),
    })
}

/// An unknown outcome turned out to be a refusal.
pub fn resolve_refused_in_tx(tx: &Connection, id: OutboxId) -> Result<(), StoreError> {
    tx.prepare_cached(REFUSED)?.execute([id.to_string()])?;
    Ok(())
}

/// An unknown outcome can not be found out any more.
pub fn resolve_too_old_in_tx(tx: &Connection, id: OutboxId) -> Result<(), StoreError> {
    tx.prepare_cached(TOO_OLD)?.execute([id.to_string()])?;
    Ok(())
}

/// Done rows between two ids whose payloads are still there.
pub fn offered(
    connection: &Connection,
    after: &str,
    before: &str,
    limit: i64,
) -> Result<Found, StoreError> {
    let mut statement = connection.prepare_cached(OFFERED)?;
    let mut rows = statement.query(params![after, before, limit])?;
    let mut found = Found::default();
    while let Some(row) = rows.next()? {
        match key_of(row)? {
            Some(id) => found.add(id, row)?,
            None => found.nameless += 1,
        }
    }
    Ok(found)
}

/// A restored broker has taken a done row again, perhaps under another name.
pub fn offer_taken_in_tx(
    tx: &Connection,
    id: OutboxId,
    delivery: &super::outbox::Delivery,
) -> Result<(), StoreError> {
    let broker_message_id = delivery.broker_message_id.to_string();
    let by = params![id.to_string(), broker_message_id, delivery.history_id];
    tx.prepare_cached(OFFER_TAKEN)?.execute(by)?;
    Ok(())
}

fn client_message_id(key: &str, text: &str) -> Result<ClientMessageId, StoreError> {
    ClientMessageId::parse(text).map_err(|refusal| corrupt(key, refusal.detail))
}

fn read_due(row: &Row<'_>) -> Result<Due, StoreError> {
    let key: String = row.get(0)?;
    let (kind, name): (String, String) = (row.get(6)?, row.get(7)?);
    let priority = Priority::from_rank(row.get(8)?);
    let body: Option<Vec<u8>> = row.get(3)?;
    Ok(Due {
        id: outbox_id(&key)?,
        client_message_id: client_message_id(&key, &row.get::<_, String>(1)?)?,
        request_fingerprint: Fingerprint(row.get(2)?),
        body: body.ok_or_else(|| corrupt(&key, "an open row has no payload"))?,
        meta: row.get(4)?,
        reply_to_id: row.get(5)?,
        destination: destination(&key, &kind, &name)?,
        priority: priority.ok_or_else(|| corrupt(&key, "the priority is unknown"))?,
        enqueued_at: UnixMs(row.get(9)?),
        attempts: u32::try_from(row.get::<_, i64>(10)?).unwrap_or(u32::MAX),
    })
}

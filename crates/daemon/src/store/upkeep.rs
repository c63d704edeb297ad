//! What operators see and do of the outbox: lists, one row with all of its columns, counts, and the
//! pruning of payloads. The id, the fingerprint and the status of a row stay for ever.

use std::ops::RangeInclusive;

use rusqlite::{Connection, OptionalExtension, Row, params};
use semel_core::clock::UnixMs;
use semel_core::envelope::{Destination, Priority};
use semel_core::fingerprint::Fingerprint;
use semel_core::id::{ClientMessageId, OutboxId};
use semel_core::outbox::{AbortedBy, OutboxStatus, Outcome};
use semel_store::{StoreError, statements};

use super::outbox::{Delivery, corrupt, damaged, delivery, destination, outbox_id, status};

statements! {
    /// Without a limit, as LIST_DEAD is: whoever reads stops when it has enough that can be shown.
    LIST = "
        SELECT id, client_message_id, request_fingerprint, to_given, destination_kind,
               destination_ref, priority, enqueued_at, attempts, next_attempt_at, status,
               last_error, delivered_at, outcome, broker_message_id, history_id, aborted_at,
               aborted_by, superseded_by, length(payload), life, maybe_sent
          FROM outbox
         WHERE id > ?1
         ORDER BY id";

    LIST_DEAD = "
        SELECT id, client_message_id, request_fingerprint, to_given, destination_kind,
               destination_ref, priority, enqueued_at, attempts, next_attempt_at, status,
               last_error, delivered_at, outcome, broker_message_id, history_id, aborted_at,
               aborted_by, superseded_by, length(payload), life, maybe_sent
          FROM outbox
         WHERE status = 'dead'
           AND id > ?1
         ORDER BY id";

    ONE = "
        SELECT id, client_message_id, request_fingerprint, to_given, destination_kind,
               destination_ref, priority, enqueued_at, attempts, next_attempt_at, status,
               last_error, delivered_at, outcome, broker_message_id, history_id, aborted_at,
               aborted_by, superseded_by, length(payload), life, maybe_sent
          FROM outbox
         WHERE id = ?1";

    BY_CLIENT_ID = "
        SELECT id
          FROM outbox
         WHERE client_message_id = ?1";

    PAYLOAD = "
        SELECT payload, meta, reply_to_id
          FROM outbox
         WHERE id = ?1";

    PENDING_COUNT = "
        SELECT count(*)
          FROM outbox
         WHERE status = 'pending'
           AND priority BETWEEN 0 AND 2";

    DEAD_COUNT = "
        SELECT count(*)
          FROM outbox
         WHERE status = 'dead'
           AND id > ''";

    OLDEST_PENDING = "
        SELECT enqueued_at
          FROM outbox
         WHERE status = 'pending'
           AND priority = ?1
         ORDER BY id
         LIMIT 1";

    /// In the order of accept: the oldest payloads go first.
    /// Ids are in the order of accept, also where the clock was not: the first ones are looked at.
    /// Whom names meant stays, because a retry in the same words is compared with that.
    PRUNE = "
        UPDATE outbox
           SET payload = NULL,
               meta = CASE WHEN mentions_given IS NULL THEN ''
                           ELSE json_object('mentions', json_extract(meta, '$.mentions')) END
         WHERE id IN (SELECT id
                        FROM outbox
                       WHERE status = 'done'
                         AND payload IS NOT NULL
                         AND id > ''
                       ORDER BY id
                       LIMIT ?3)
           AND enqueued_at NOT BETWEEN ?1 AND ?2";
}

/// A row with everything but its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its key.
    pub id: OutboxId,
    /// The id under which it happens once.
    pub client_message_id: ClientMessageId,
    /// What it was accepted as.
    pub request_fingerprint: Fingerprint,
    /// The destination as its caller wrote it.
    pub to_given: String,
    /// What that was resolved to.
    pub destination: Destination,
    /// How urgent it is.
    pub priority: Priority,
    /// When it was accepted.
    pub enqueued_at: UnixMs,
    /// How often it was sent.
    pub attempts: u32,
    /// When it may be sent next.
    pub next_attempt_at: UnixMs,
    /// Where it is in its life.
    pub status: OutboxStatus,
    /// Why it died, or why the last attempt failed.
    pub last_error: Option<String>,
    /// When the broker's answer came.
    pub delivered_at: Option<UnixMs>,
    /// Of a dead row: what is known of its effect.
    pub outcome: Option<Outcome>,
    /// The broker's ids.
    pub delivery: Option<Delivery>,
    /// When it was retired.
    pub aborted_at: Option<UnixMs>,
    /// By whom.
    pub aborted_by: Option<AbortedBy>,
    /// The row that took its place.
    pub superseded_by: Option<OutboxId>,
    /// Bytes of its body; none once it was pruned.
    pub payload_bytes: Option<u64>,
    /// The life of the daemon in which it was accepted.
    pub life: i64,
    /// It was claimed once.
    pub maybe_sent: bool,
}

/// Which rows an operator wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// Those that were given up.
    Dead,
}

/// A page of rows after this one, in the order of accept. One that cannot be read is passed over:
/// it must not hide the others.
pub fn list(
    connection: &Connection,
    which: Which,
    after: Option<OutboxId>,
    limit: i64,
) -> Result<Vec<OutboxRow>, StoreError> {
    let sql = match which {
        Which::All => LIST,
        Which::Dead => LIST_DEAD,
    };
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([after])?;
    let mut found = Vec::new();
    let limit = usize::try_from(limit).unwrap_or(0);
    while found.len() < limit
        && let Some(row) = rows.next()?
    {
        match outbox_row(row) {
            Ok(row) => found.push(row),
            Err(error @ StoreError::Corrupt { .. }) => {
                tracing::error!(error = error.chain(), "a row of outbox.db cannot be listed");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// One row.
pub fn one(connection: &Connection, id: OutboxId) -> Result<Option<OutboxRow>, StoreError> {
    let mut statement = connection.prepare_cached(ONE)?;
    let row = statement.query_row([id.to_string()], |row| Ok(outbox_row(row))).optional()?;
    row.transpose()
}

/// The key of the row under a client's id.
pub fn by_client_id(
    connection: &Connection,
    id: &ClientMessageId,
) -> Result<Option<OutboxId>, StoreError> {
    let mut statement = connection.prepare_cached(BY_CLIENT_ID)?;
    let key: Option<String> = statement.query_row([id.as_str()], |row| row.get(0)).optional()?;
    key.map(|key| outbox_id(&key)).transpose()
}

/// What a row would send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// None once it was pruned.
    pub body: Option<Vec<u8>>,
    /// Canonical JSON, or empty.
    pub meta: String,
    /// The message it replies to.
    pub reply_to_id: Option<String>,
}

/// What a row would send.
pub fn payload(connection: &Connection, id: OutboxId) -> Result<Option<Payload>, StoreError> {
    let mut statement = connection.prepare_cached(PAYLOAD)?;
    let row = |row: &Row<'_>| {
        Ok(Payload { body: row.get(0)?, meta: row.get(1)?, reply_to_id: row.get(2)? })
    };
    Ok(statement.query_row([id.to_string()], row).optional()?)
}

/// How many rows wait, and how many were given up.
pub fn counts(connection: &Connection) -> Result<(u64, u64), StoreError> {
    let count = |sql: &str| -> Result<u64, StoreError> {
        let count: i64 = connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        Ok(u64::try_from(count).unwrap_or(0))
    };
    Ok((count(PENDING_COUNT)?, count(DEAD_COUNT)?))
}

/// When the oldest row that waits was accepted.
pub fn oldest_pending(connection: &Connection) -> Result<Option<UnixMs>, StoreError> {
    let mut oldest: Option<i64> = None;
    for priority in Priority::ALL {
        let mut statement = connection.prepare_cached(OLDEST_PENDING)?;
        let at = statement.query_row([priority.rank()], |row| row.get(0)).optional()?;
        oldest = oldest.into_iter().chain(at).min();
    }
    Ok(oldest.map(UnixMs))
}

/// Bytes of the pages that hold something.
pub fn bytes_used(connection: &Connection) -> Result<u64, StoreError> {
    let number = |name: &str| -> Result<u64, StoreError> {
        let value: i64 = connection.pragma_query_value(None, name, |row| row.get(0))?;
        Ok(u64::try_from(value).unwrap_or(0))
    };
    let pages = number("page_count")?.saturating_sub(number("freelist_count")?);
    Ok(pages.saturating_mul(number("page_size")?))
}

/// Drops up to `limit` payloads of done rows before this id, and says how many.
pub fn prune_in_tx(
    tx: &Connection,
    kept: &RangeInclusive<UnixMs>,
    limit: i64,
) -> Result<usize, StoreError> {
    Ok(tx.prepare_cached(PRUNE)?.execute(params![kept.start().0, kept.end().0, limit])?)
}

fn outbox_row(row: &Row<'_>) -> Result<OutboxRow, StoreError> {
    let key = row.get_ref(0)?.as_str().unwrap_or_default();
    read_row(key, row).map_err(|error| damaged(key, error))
}

fn read_row(key: &str, row: &Row<'_>) -> Result<OutboxRow, StoreError> {
    let text = |number: usize| -> Result<String, StoreError> { Ok(row.get(number)?) };
    let optional = |number: usize| -> Result<Option<String>, StoreError> { Ok(row.get(number)?) };
    let time = |number: usize| -> Result<Option<UnixMs>, StoreError> {
        Ok(row.get::<_, Option<i64>>(number)?.map(UnixMs))
    };
    let status = status(key, &text(10)?)?;
    let successor = optional(18)?.map(|key| outbox_id(&key)).transpose()?;
    let bytes: Option<i64> = row.get(19)?;
    Ok(OutboxRow {
        id: outbox_id(key)?,
        client_message_id: ClientMessageId::parse(&text(1)?)
            .map_err(|refusal| corrupt(key, refusal.detail))?,
        request_fingerprint: Fingerprint(row.get(2)?),
        to_given: row.get(3)?,
        destination: destination(key, &text(4)?, &text(5)?)?,
        priority: Priority::from_rank(row.get(6)?)
            .ok_or_else(|| corrupt(key, "the priority is unknown"))?,
        enqueued_at: UnixMs(row.get(7)?),
        attempts: u32::try_from(row.get::<_, i64>(8)?).unwrap_or(u32::MAX),
        next_attempt_at: UnixMs(row.get(9)?),
        status,
        last_error: row.get(11)?,
        delivered_at: time(12)?,
        outcome: optional(13)?.and_then(|text| Outcome::parse(&text)),
        delivery: delivery(key, status, row.get(14)?, row.get(15)?)?,
        aborted_at: time(16)?,
        aborted_by: optional(17)?.and_then(|text| AbortedBy::parse(&text)),
        superseded_by: successor,
        payload_bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
        life: row.get(20)?,
        maybe_sent: row.get(21)?,
    })
}

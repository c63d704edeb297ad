//! The tables `inbox` and `inbox_key`: what arrived, each message once (daemon.md, "Inbox").

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Rows, ToSql, params};
use semel_core::clock::UnixMs;
use semel_core::envelope::{DestinationKind, Priority};
use semel_core::fingerprint::BodyHash;
use semel_core::id::{BrokerMessageId, ClientMessageId, MemberId, UuidId};
use semel_store::{StoreError, is_of_one_row, statements};
use uuid::Uuid;

use super::aside::{self, AsideSource, NewAside};
use super::event;
use crate::limits::ROW_BYTES;

statements! {
    /// Decides whether a message is new.
    KEY = "
        INSERT INTO inbox_key (sender_member_id, client_message_id, received_at)
        VALUES (?1, ?2, ?3)
            ON CONFLICT DO NOTHING";

    INSERT = "
        INSERT INTO inbox (sender_member_id, client_message_id, broker_message_id, seq,
                           destination_kind, topic, sender_pubkey, sender_name, priority,
                           reply_to_id, meta, body, accepted_at, received_at, digest)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";

    LIST = "
        SELECT id, sender_member_id, client_message_id, broker_message_id, seq,
               destination_kind, topic, sender_pubkey, sender_name, priority, reply_to_id,
               meta, body, accepted_at, received_at, digest
          FROM inbox
         WHERE id > ?1
           AND received_at >= ?3
         ORDER BY id
         LIMIT ?2";

    LIST_TOPIC = "
        SELECT id, sender_member_id, client_message_id, broker_message_id, seq,
               destination_kind, topic, sender_pubkey, sender_name, priority, reply_to_id,
               meta, body, accepted_at, received_at, digest
          FROM inbox
         WHERE id > ?1
           AND received_at >= ?3
           AND topic = ?4
         ORDER BY id
         LIMIT ?2";

    LIST_SENDER = "
        SELECT id, sender_member_id, client_message_id, broker_message_id, seq,
               destination_kind, topic, sender_pubkey, sender_name, priority, reply_to_id,
               meta, body, accepted_at, received_at, digest
          FROM inbox
         WHERE id > ?1
           AND received_at >= ?3
           AND sender_pubkey = ?4
         ORDER BY id
         LIMIT ?2";

    LIST_BOTH = "
        SELECT id, sender_member_id, client_message_id, broker_message_id, seq,
               destination_kind, topic, sender_pubkey, sender_name, priority, reply_to_id,
               meta, body, accepted_at, received_at, digest
          FROM inbox
         WHERE id > ?1
           AND received_at >= ?3
           AND sender_pubkey = ?4
           AND topic = ?5
         ORDER BY id
         LIMIT ?2";

    /// The best first is not asked for: the newest are, and pages must not shift.
    SEARCH = "
        SELECT inbox.id, inbox.sender_member_id, inbox.client_message_id,
               inbox.broker_message_id, inbox.seq, inbox.destination_kind, inbox.topic,
               inbox.sender_pubkey, inbox.sender_name, inbox.priority, inbox.reply_to_id,
               inbox.meta, inbox.body, inbox.accepted_at, inbox.received_at,
               inbox.digest
          FROM inbox_fts
          JOIN inbox ON inbox.id = inbox_fts.rowid
         WHERE inbox_fts MATCH ?1
           AND inbox_fts.rowid > ?2
         ORDER BY inbox_fts.rowid
         LIMIT ?3";

    /// Whatever their types: what is damaged is kept as it is.
    DAMAGED = "
        SELECT seq, client_message_id, sender_pubkey, sender_name, topic, meta, body
          FROM inbox
         WHERE id = ?1";

    REMOVE = "
        DELETE FROM inbox
         WHERE id = ?1";

    INDEXED = "
        SELECT inbox_id
          FROM inbox_indexed
         WHERE one = 1";

    TO_INDEX = "
        SELECT id
          FROM inbox
         WHERE id > ?1
         ORDER BY id
         LIMIT ?2";

    INDEX = "
        INSERT INTO inbox_fts (rowid, body, sender_name, topic)
        SELECT id, CAST(body AS TEXT), sender_name, topic
          FROM inbox
         WHERE id > ?1
           AND id <= ?2
         ORDER BY id";

    INDEXED_TO = "
        UPDATE inbox_indexed
           SET inbox_id = ?1
         WHERE one = 1";

    /// Also when it was swept: SQLite keeps the last number that it gave.
    NEWEST = "
        SELECT COALESCE(max(seq), 0)
          FROM sqlite_sequence
         WHERE name = 'inbox'";

    /// Only what was read.
    SWEEP = "
        DELETE FROM inbox
         WHERE id IN (SELECT inbox_id
                        FROM inbox_read
                       WHERE received_at < ?1
                       ORDER BY received_at
                       LIMIT ?2)";

    OLDEST_SIZES = "
        SELECT length(inbox.body)
          FROM inbox_read
          JOIN inbox ON inbox.id = inbox_read.inbox_id
         WHERE inbox_read.received_at < ?1
         ORDER BY inbox_read.received_at
         LIMIT ?2";

    SWEEP_KEYS = "
        DELETE FROM inbox_key
         WHERE (sender_member_id, client_message_id) IN (
               SELECT sender_member_id, client_message_id
                 FROM inbox_key
                WHERE received_at < ?1
                ORDER BY received_at
                LIMIT ?2)";
}

/// A message as it came from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// Who sent it.
    pub sender_member_id: MemberId,
    /// The sender's id for it.
    pub client_message_id: ClientMessageId,
    /// The broker's.
    pub broker_message_id: BrokerMessageId,
    /// Its number in the mesh's history.
    pub seq: i64,
    /// Topic or dm.
    pub destination_kind: DestinationKind,
    /// The topic, if it was sent to one.
    pub topic: Option<String>,
    /// The sender's key.
    pub sender_pubkey: String,
    /// What the sender is called.
    pub sender_name: String,
    /// How urgent it is.
    pub priority: Priority,
    /// The message it replies to.
    pub reply_to_id: Option<String>,
    /// Canonical JSON, or empty.
    pub meta: String,
    /// The body.
    pub body: Vec<u8>,
    /// When the broker accepted it.
    pub accepted_at: UnixMs,
}

impl Arrived {
    /// Of everything that it says, each part with its length: nothing can be moved from one to
    /// another.
    pub fn digest(&self) -> [u8; 32] {
        let (seq, accepted_at) = (self.seq.to_be_bytes(), self.accepted_at.0.to_be_bytes());
        let (sender, message) = (self.sender_member_id.as_uuid(), self.broker_message_id.as_uuid());
        let body = BodyHash::of(&self.body).0;
        let parts: [Option<&[u8]>; 13] = [
            Some(sender.as_bytes()),
            Some(self.client_message_id.as_str().as_bytes()),
            Some(message.as_bytes()),
            Some(&seq),
            Some(self.destination_kind.as_str().as_bytes()),
            self.topic.as_deref().map(str::as_bytes),
            Some(self.sender_pubkey.as_bytes()),
            Some(self.sender_name.as_bytes()),
            Some(self.priority.as_str().as_bytes()),
            self.reply_to_id.as_deref().map(str::as_bytes),
            Some(self.meta.as_bytes()),
            Some(&accepted_at),
            Some(&body),
        ];
        let mut joined = Vec::with_capacity(self.meta.len() + 1024);
        for part in parts {
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            joined.extend_from_slice(&length.to_be_bytes());
            joined.extend_from_slice(part.unwrap_or_default());
        }
        BodyHash::of(&joined).0
    }
}

/// A message on its way into the inbox, with what it will be compared with. Made before the
/// transaction: the writer has more to do.
#[derive(Debug, Clone)]
pub struct Incoming {
    arrived: Arrived,
    digest: [u8; 32],
}

impl From<Arrived> for Incoming {
    fn from(arrived: Arrived) -> Self {
        let digest = arrived.digest();
        Self { arrived, digest }
    }
}

/// Messages that were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Those that are what arrived.
    pub whole: Vec<Message>,
    /// The numbers of those that are not any more.
    pub damaged: Vec<i64>,
}

impl Found {
    /// Adds a row; only that it is damaged is no reason to end.
    pub(super) fn add(&mut self, row: &Row<'_>, first: usize) -> Result<i64, StoreError> {
        let id = row.get(first)?;
        match message(row, first) {
            Ok(message) => self.whole.push(message),
            Err(StoreError::Corrupt { what, .. }) => {
                tracing::error!(id, what, "a message in inbox.db is not the one that arrived");
                self.damaged.push(id);
            }
            Err(error) => return Err(error),
        }
        Ok(id)
    }
}

/// A message in the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its number here.
    pub id: i64,
    /// What arrived.
    pub arrived: Arrived,
    /// When.
    pub received_at: UnixMs,
}

/// Which messages a reader wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// After this number.
    pub after: i64,
    /// Received at or after this time.
    pub since: Option<UnixMs>,
    /// Of this topic.
    pub topic: Option<String>,
    /// Of the sender with this key.
    pub from: Option<String>,
}

/// How a message came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It is news: somebody may wait for it.
    Live,
    /// The inbox is rebuilt: it was announced long ago.
    Rebuilt,
}

/// Stores what has not been stored yet, and says of which kinds it was. Only that is announced.
pub fn receive_in_tx(
    tx: &Connection,
    incoming: &[Incoming],
    now: UnixMs,
    way: Way,
) -> Result<Vec<DestinationKind>, StoreError> {
    let (mut new, mut first) = (Vec::new(), None);
    let (mut key, mut insert) = (tx.prepare_cached(KEY)?, tx.prepare_cached(INSERT)?);
    for Incoming { arrived: message, digest } in incoming {
        let sender = message.sender_member_id.as_uuid().into_bytes();
        let id = message.client_message_id.as_str();
        // A clock that was behind must not make the key look old: the broker may send it again.
        let at = now.max(message.accepted_at);
        let is_known = key.execute(params![sender, id, at.0])? == 0;
        if is_known && !semel_store::planted!("dedupe") {
            continue;
        }
        new.push(message.destination_kind);
        insert.execute(params![
            sender,
            id,
            message.broker_message_id.to_string(),
            message.seq,
            message.destination_kind.as_str(),
            message.topic,
            message.sender_pubkey,
            message.sender_name,
            message.priority.rank(),
            message.reply_to_id,
            message.meta,
            message.body,
            message.accepted_at.0,
            now.0,
            digest,
        ])?;
        first.get_or_insert_with(|| tx.last_insert_rowid());
    }
    if let (Some(first), Way::Live) = (first, way) {
        event::add_arrived_in_tx(tx, first, now)?;
    }
    Ok(new)
}

/// Makes up to `limit` more messages searchable, and says how many.
pub fn index_in_tx(tx: &Connection, limit: i64) -> Result<i64, StoreError> {
    let after: i64 = tx.prepare_cached(INDEXED)?.query_row([], |row| row.get(0))?;
    let mut statement = tx.prepare_cached(TO_INDEX)?;
    let ids = statement.query_map([after, limit], |row| row.get::<_, i64>(0))?;
    let (mut count, mut last) = (0, after);
    for id in ids {
        (count, last) = (count + 1, id?);
    }
    if count > 0 {
        tx.prepare_cached(INDEX)?.execute([after, last])?;
        tx.prepare_cached(INDEXED_TO)?.execute([last])?;
    }
    Ok(count)
}

/// A page of messages, in the order of arrival.
pub fn list(connection: &Connection, filter: &Filter, limit: i64) -> Result<Found, StoreError> {
    let mut found = Found::default();
    let (mut after, mut left) = (filter.after, limit);
    // As long as it was asked to be, whatever is passed over.
    while left > 0 {
        let read = list_in(connection, filter, (after, left), &mut found)?;
        let Some(last) = read else { break };
        after = last;
        left = limit - i64::try_from(found.whole.len()).unwrap_or(limit);
    }
    Ok(found)
}

/// Reads on after a number, and says the last that was read if there may be more.
fn list_in(
    connection: &Connection,
    filter: &Filter,
    (after, limit): (i64, i64),
    found: &mut Found,
) -> Result<Option<i64>, StoreError> {
    let since = filter.since.map_or(0, |since| since.0);
    let mut by: Vec<&dyn ToSql> = vec![&after, &limit, &since];
    let sql = match (&filter.from, &filter.topic) {
        (None, None) => LIST,
        (None, Some(topic)) => {
            by.push(topic);
            LIST_TOPIC
        }
        (Some(from), None) => {
            by.push(from);
            LIST_SENDER
        }
        (Some(from), Some(topic)) => {
            by.extend([from as &dyn ToSql, topic]);
            LIST_BOTH
        }
    };
    let mut statement = connection.prepare_cached(sql)?;
    read_all(statement.query(by.as_slice())?, limit, found)
}

fn read_all(mut rows: Rows<'_>, limit: i64, found: &mut Found) -> Result<Option<i64>, StoreError> {
    let (mut count, mut last) = (0, None);
    while let Some(row) = rows.next()? {
        last = Some(found.add(row, 0)?);
        count += 1;
    }
    Ok(last.filter(|_| count == limit))
}

/// Messages that say all of these words.
pub fn search(
    connection: &Connection,
    words: &str,
    after: i64,
    limit: i64,
) -> Result<Found, StoreError> {
    // Each word quoted: whatever it contains is looked for, and nothing is an operator.
    let quoted = words.split_whitespace().map(|word| format!("\"{}\"", word.replace('"', "\"\"")));
    let query = quoted.collect::<Vec<_>>().join(" ");
    let mut found = Found::default();
    if query.is_empty() {
        return Ok(found);
    }
    let mut statement = connection.prepare_cached(SEARCH)?;
    let (mut after, mut left) = (after, limit);
    while left > 0 {
        let rows = statement.query(params![query, after, left])?;
        let Some(last) = read_all(rows, left, &mut found)? else { break };
        after = last;
        left = limit - i64::try_from(found.whole.len()).unwrap_or(limit);
    }
    Ok(found)
}

/// Takes a damaged message out of the inbox and keeps what can be read of it; `false` when it is
/// not there. Its key stays: it does not arrive again.
pub fn set_aside_in_tx(tx: &Connection, id: i64, now: UnixMs) -> Result<bool, StoreError> {
    let mut statement = tx.prepare_cached(DAMAGED)?;
    let mut rows = statement.query([id])?;
    let Some(row) = rows.next()? else { return Ok(false) };
    let text = |column: usize| -> Result<String, StoreError> {
        Ok(match row.get_ref(column)? {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                String::from_utf8_lossy(bytes).into_owned()
            }
            ValueRef::Integer(number) => number.to_string(),
            ValueRef::Real(_) | ValueRef::Null => String::new(),
        })
    };
    let kept = serde_json::json!({
        "id": id, "client_message_id": text(1)?, "sender_pubkey": text(2)?,
        "sender_name": text(3)?, "topic": text(4)?, "meta": text(5)?, "body": text(6)?,
    });
    let aside = NewAside {
        source: AsideSource::Inbox,
        reason: "it is not the one that arrived: bytes were changed in inbox.db".to_owned(),
        seq: row.get(0).ok(),
        frame: kept.to_string().into_bytes(),
    };
    aside::add_in_tx(tx, &aside, now)?;
    drop(rows);
    Ok(tx.prepare_cached(REMOVE)?.execute([id])? == 1)
}

/// The newest message's number, or 0; it may have been swept.
pub fn newest(connection: &Connection) -> Result<i64, StoreError> {
    Ok(connection.prepare_cached(NEWEST)?.query_row([], |row| row.get(0))?)
}

/// Deletes up to `limit` messages that were read and were received before this, and says how many.
/// Their keys stay.
pub fn sweep_in_tx(tx: &Connection, before: UnixMs, limit: i64) -> Result<usize, StoreError> {
    Ok(tx.prepare_cached(SWEEP)?.execute(params![before.0, limit])?)
}

/// Deletes so many of the oldest messages that were read that about so many bytes become free,
/// `limit` at the most, and says how many.
pub fn sweep_bytes_in_tx(tx: &Connection, bytes: u64, limit: i64) -> Result<usize, StoreError> {
    let mut statement = tx.prepare_cached(OLDEST_SIZES)?;
    let mut rows = statement.query(params![i64::MAX, limit])?;
    let (mut freed, mut count) = (0_u64, 0);
    while freed < bytes
        && let Some(row) = rows.next()?
    {
        let body: i64 = row.get(0)?;
        freed = freed.saturating_add(u64::try_from(body).unwrap_or(0)).saturating_add(ROW_BYTES);
        count += 1;
    }
    drop(rows);
    sweep_in_tx(tx, UnixMs(i64::MAX), count)
}

/// Forgets up to `limit` keys of messages received before this: the broker has forgotten them too.
pub fn sweep_keys_in_tx(tx: &Connection, before: UnixMs, limit: i64) -> Result<usize, StoreError> {
    Ok(tx.prepare_cached(SWEEP_KEYS)?.execute(params![before.0, limit])?)
}

/// A message whose columns begin at this one. One that is not what arrived is `Corrupt`.
pub(super) fn message(row: &Row<'_>, first: usize) -> Result<Message, StoreError> {
    let id: i64 = row.get(first)?;
    let message = read(row, id, first).map_err(|error| damaged(id, error))?;
    let digest: [u8; 32] =
        row.get(first + 15).map_err(|error| damaged(id, StoreError::Sqlite(error)))?;
    if message.arrived.digest() != digest {
        return Err(corrupt(id, "its digest differs"));
    }
    Ok(message)
}

fn corrupt(id: i64, what: impl Into<String>) -> StoreError {
    StoreError::Corrupt { table: "inbox", id: id.to_string(), what: what.into() }
}

/// A value that is not what its column holds: it is the row that is damaged.
fn damaged(id: i64, error: StoreError) -> StoreError {
    if let StoreError::Sqlite(what) = &error
        && is_of_one_row(what)
    {
        return corrupt(id, what.to_string());
    }
    error
}

fn read(row: &Row<'_>, id: i64, first: usize) -> Result<Message, StoreError> {
    let corrupt = |what: &str| corrupt(id, what);
    let sender: [u8; 16] = row.get(first + 1)?;
    let client_message_id: String = row.get(first + 2)?;
    let broker_message_id: String = row.get(first + 3)?;
    let kind: String = row.get(first + 5)?;
    let arrived = Arrived {
        sender_member_id: UuidId::new(Uuid::from_bytes(sender)),
        client_message_id: ClientMessageId::parse(&client_message_id)
            .map_err(|refusal| corrupt(&refusal.detail))?,
        broker_message_id: BrokerMessageId::parse(&broker_message_id)
            .ok_or_else(|| corrupt("the broker's id is not a UUID"))?,
        seq: row.get(first + 4)?,
        destination_kind: DestinationKind::parse(&kind)
            .ok_or_else(|| corrupt("the destination's kind is unknown"))?,
        topic: row.get(first + 6)?,
        sender_pubkey: row.get(first + 7)?,
        sender_name: row.get(first + 8)?,
        priority: Priority::from_rank(row.get(first + 9)?)
            .ok_or_else(|| corrupt("the priority is unknown"))?,
        reply_to_id: row.get(first + 10)?,
        meta: row.get(first + 11)?,
        body: row.get(first + 12)?,
        accepted_at: UnixMs(row.get(first + 13)?),
    };
    Ok(Message { id, arrived, received_at: UnixMs(row.get(first + 14)?) })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::store::INBOX_MIGRATIONS;
    use crate::store::reader::{mark_read_in_tx, reader_set_in_tx};
    use semel_testkit::sql;

    pub(in crate::store) fn arrived(number: u128, body: &str) -> Arrived {
        Arrived {
            sender_member_id: UuidId::new(Uuid::from_u128(1)),
            client_message_id: ClientMessageId::parse(&format!("m-{number}")).unwrap(),
            broker_message_id: UuidId::new(Uuid::from_u128(number)),
            seq: 1,
            destination_kind: DestinationKind::Dm,
            topic: None,
            sender_pubkey: "key".to_owned(),
            sender_name: "alice".to_owned(),
            priority: Priority::Next,
            reply_to_id: None,
            meta: String::new(),
            body: body.as_bytes().to_owned(),
            accepted_at: UnixMs(1),
        }
    }

    #[test]
    fn messages_are_indexed_once_and_what_was_swept_before_is_not() {
        let inbox = sql::migrated(INBOX_MIGRATIONS.migrations);
        let found = |word: &str| -> Vec<i64> {
            search(&inbox, word, 0, 10).unwrap().whole.iter().map(|message| message.id).collect()
        };
        receive_in_tx(&inbox, &[arrived(1, "old red").into()], UnixMs(1), Way::Live).unwrap();
        let rest = [arrived(2, "red"), arrived(3, "blue"), arrived(4, "red blue")];
        let rest = rest.map(Incoming::from);
        receive_in_tx(&inbox, &rest, UnixMs(9), Way::Live).unwrap();
        reader_set_in_tx(&inbox, "me", 1, None, UnixMs(9)).unwrap();
        while mark_read_in_tx(&inbox, 10).unwrap() > 0 {}
        assert_eq!(sweep_in_tx(&inbox, UnixMs(5), 10).unwrap(), 1, "before it was indexed");
        assert_eq!(index_in_tx(&inbox, 2).unwrap(), 2);
        assert_eq!((found("red"), found("blue")), (vec![2], vec![3]));
        assert_eq!(index_in_tx(&inbox, 2).unwrap(), 1);
        assert_eq!(index_in_tx(&inbox, 2).unwrap(), 0, "nothing is left");
        assert_eq!((found("red"), found("blue"), found("old")), (vec![2, 4], vec![3, 4], vec![]));
        reader_set_in_tx(&inbox, "me", 4, None, UnixMs(9)).unwrap();
        while mark_read_in_tx(&inbox, 10).unwrap() > 0 {}
        assert_eq!(sweep_in_tx(&inbox, UnixMs(10), 10).unwrap(), 3);
        assert!(found("red").is_empty());
    }
}

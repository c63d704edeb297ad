//! The table `event`: what happened, in order, for streams that come and go. A message's event is
//! written with the message and names it.

use rusqlite::{Connection, Row, params};
use semel_core::clock::UnixMs;
use semel_core::status;
use semel_store::{StoreError, statements};

use super::inbox::{Found, Message};

statements! {
    ADD = "
        INSERT INTO event (at, kind, data)
        VALUES (?1, ?2, ?3)";

    ADD_ARRIVED = "
        INSERT INTO event (at, kind, inbox_id, data)
        SELECT ?1, ?2, id, ''
          FROM inbox
         WHERE id >= ?3
         ORDER BY id";

    AFTER = "
        SELECT event.id, event.at, event.kind, event.data,
               inbox.id, inbox.sender_member_id, inbox.client_message_id,
               inbox.broker_message_id, inbox.seq, inbox.destination_kind, inbox.topic,
               inbox.sender_pubkey, inbox.sender_name, inbox.priority, inbox.reply_to_id,
               inbox.meta, inbox.body, inbox.accepted_at, inbox.received_at,
               inbox.digest
          FROM event
          LEFT JOIN inbox ON inbox.id = event.inbox_id
         WHERE event.id > ?1
         ORDER BY event.id
         LIMIT ?2";

    NEWEST_AT = "
        SELECT max(at)
          FROM event
         WHERE at > 0";

    NEWEST_KEY_AT = "
        SELECT max(received_at)
          FROM inbox_key
         WHERE received_at > 0";

    NEWEST = "
        SELECT COALESCE(max(id), 0)
          FROM event";

    SWEEP = "
        DELETE FROM event
         WHERE id IN (SELECT id
                        FROM event
                       WHERE at < ?1
                       ORDER BY at
                       LIMIT ?2)";
}

status! {
    /// What happened.
    pub enum EventKind {
        /// A message arrived.
        Message = "message",
        /// A member came online.
        PeerJoin = "peer_join",
        /// A member went offline.
        PeerLeave = "peer_leave",
        /// The broker is away.
        DaemonDisconnect = "daemon_disconnect",
        /// The broker is there again.
        DaemonReconnect = "daemon_reconnect",
        /// A send was given up.
        OutboxDead = "outbox_dead",
        /// Messages that nobody has read fill the inbox: nothing more is taken.
        InboxFull = "inbox_full",
        /// The outbox is nearly full.
        OutboxPressureHigh = "outbox_pressure_high",
        /// The broker does not offer what is needed.
        FeatureNegotiationFailed = "feature_negotiation_failed",
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its number; streams resume by it.
    pub id: i64,
    /// When.
    pub at: UnixMs,
    /// What.
    pub kind: EventKind,
    /// JSON, or empty.
    pub data: String,
    /// The message, if it is about one that is still there.
    pub message: Option<Message>,
}

/// Notes what happened.
pub fn add_in_tx(
    tx: &Connection,
    kind: EventKind,
    data: &str,
    now: UnixMs,
) -> Result<(), StoreError> {
    tx.prepare_cached(ADD)?.execute(params![now.0, kind.as_str(), data])?;
    Ok(())
}

/// Notes the arrival of every message from this one on.
pub fn add_arrived_in_tx(tx: &Connection, first: i64, now: UnixMs) -> Result<(), StoreError> {
    let kind = EventKind::Message.as_str();
    tx.prepare_cached(ADD_ARRIVED)?.execute(params![now.0, kind, first])?;
    Ok(())
}

/// A page of what happened after this, and the numbers of messages in it that are damaged: of those
/// only that they came is told. An event that makes no sense is passed over.
pub fn after(
    connection: &Connection,
    id: i64,
    limit: i64,
) -> Result<(Vec<Event>, Vec<i64>), StoreError> {
    let mut statement = connection.prepare_cached(AFTER)?;
    let (mut events, mut found) = (Vec::new(), Found::default());
    let (mut after, mut left) = (id, limit);
    while left > 0 {
        let mut rows = statement.query(params![after, left])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            after = row.get(0)?;
            count += 1;
            let about: Option<i64> = row.get(4)?;
            if about.is_some() {
                found.add(row, 4)?;
            }
            let message = found.whole.pop();
            match event(row, message) {
                Some(event) => events.push(event),
                None => tracing::error!(id = after, "an event cannot be understood"),
            }
        }
        if count < left {
            break;
        }
        left = limit - i64::try_from(events.len()).unwrap_or(limit);
    }
    Ok((events, found.damaged))
}

fn event(row: &Row<'_>, message: Option<Message>) -> Option<Event> {
    let kind = EventKind::parse(row.get_ref(2).ok()?.as_str().ok()?)?;
    let (id, at) = (row.get(0).ok()?, UnixMs(row.get(1).ok()?));
    Some(Event { id, at, kind, data: row.get(3).ok()?, message })
}

/// When something was last written into the file: an event, or a message.
pub fn newest_at(connection: &Connection) -> Result<Option<UnixMs>, StoreError> {
    let mut newest: Option<i64> = None;
    for statement in [NEWEST_AT, NEWEST_KEY_AT] {
        newest = newest.max(connection.prepare_cached(statement)?.query_row([], |row| row.get(0))?);
    }
    Ok(newest.map(UnixMs))
}

/// The newest event's number, or 0.
pub fn newest(connection: &Connection) -> Result<i64, StoreError> {
    Ok(connection.prepare_cached(NEWEST)?.query_row([], |row| row.get(0))?)
}

/// Deletes up to `limit` events from before this, and says how many.
pub fn sweep_in_tx(tx: &Connection, before: UnixMs, limit: i64) -> Result<usize, StoreError> {
    Ok(tx.prepare_cached(SWEEP)?.execute(params![before.0, limit])?)
}

//! Every message of the file, whoever may read it: is it what was accepted?

use rusqlite::{Connection, Row};
use semel_store::sqlite::{Start, TableRows};
use semel_store::{StoreError, statements};

use super::delivery::read_row;

statements! {
    TOPIC_COUNT = "
        SELECT count(*)
          FROM topic_message";

    /// The columns of a delivery. Its sender's name and key are no part of what was accepted.
    TOPIC_PAGE = "
        SELECT seq, broker_message_id, sender_member_id, '', NULL, 'topic', client_message_id,
               topic, reply_to_id, priority, meta, body, body_commitment, accepted_at,
               request_fingerprint, rowid
          FROM topic_message
         WHERE rowid > ?1
         ORDER BY rowid
         LIMIT ?2";

    DIRECT_COUNT = "
        SELECT count(*)
          FROM message_queue";

    DIRECT_PAGE = "
        SELECT seq, broker_message_id, sender_member_id, '', NULL, destination_kind,
               client_message_id, destination_ref, reply_to_id, priority, meta, body,
               body_commitment, accepted_at, request_fingerprint, rowid
          FROM message_queue
         WHERE rowid > ?1
         ORDER BY rowid
         LIMIT ?2";
}

/// The messages of a broker's file.
pub static ROWS: &[TableRows] = &[
    TableRows {
        table: "topic_message",
        count: TOPIC_COUNT,
        page: TOPIC_PAGE,
        start: Start::Number,
        look,
    },
    TableRows {
        table: "message_queue",
        count: DIRECT_COUNT,
        page: DIRECT_PAGE,
        start: Start::Number,
        look,
    },
];

/// Recomputes the fingerprint.
fn look(_: &Connection, row: &Row<'_>) -> Result<(), StoreError> {
    match read_row(row)? {
        Ok(message) => message.checked().map(|_| ()),
        Err(unreadable) => Err(StoreError::Corrupt {
            table: "message",
            id: unreadable.seq.to_string(),
            what: unreadable.why,
        }),
    }
}

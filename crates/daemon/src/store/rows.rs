//! Every row of both databases: is it what was accepted, or what arrived?

use rusqlite::{Connection, Row};
use semel_core::envelope::Priority;
use semel_core::fingerprint::Fingerprint;
use semel_store::sqlite::{Start, TableRows};
use semel_store::{StoreError, statements};

use super::inbox;
use super::outbox::{Draft, corrupt, destination, outbox_id, status};

statements! {
    OUTBOX_COUNT = "
        SELECT count(*)
          FROM outbox";

    OUTBOX_PAGE = "
        SELECT id, request_fingerprint, payload, meta, reply_to_id, destination_kind,
               destination_ref, priority, status, rowid
          FROM outbox
         WHERE rowid > ?1
         ORDER BY rowid
         LIMIT ?2";

    INBOX_COUNT = "
        SELECT count(*)
          FROM inbox";

    INBOX_PAGE = "
        SELECT id, sender_member_id, client_message_id, broker_message_id, seq,
               destination_kind, topic, sender_pubkey, sender_name, priority, reply_to_id,
               meta, body, accepted_at, received_at, digest, id
          FROM inbox
         WHERE id > ?1
         ORDER BY id
         LIMIT ?2";
}

/// What was accepted here.
pub static OUTBOX_ROWS: &[TableRows] = &[TableRows {
    table: "outbox",
    count: OUTBOX_COUNT,
    page: OUTBOX_PAGE,
    start: Start::Number,
    look: look_at_send,
}];

/// What arrived.
pub static INBOX_ROWS: &[TableRows] = &[TableRows {
    table: "inbox",
    count: INBOX_COUNT,
    page: INBOX_PAGE,
    start: Start::Number,
    look: |_, row| inbox::message(row, 0).map(|_| ()),
}];

/// Recomputes the fingerprint, unless the payload was pruned.
fn look_at_send(_: &Connection, row: &Row<'_>) -> Result<(), StoreError> {
    let key: String = row.get(0)?;
    outbox_id(&key)?;
    status(&key, &row.get::<_, String>(8)?)?;
    let to = destination(&key, &row.get::<_, String>(5)?, &row.get::<_, String>(6)?)?;
    let priority = Priority::from_rank(row.get(7)?);
    let priority = priority.ok_or_else(|| corrupt(&key, "the priority is unknown"))?;
    let (meta, reply_to_id): (String, Option<String>) = (row.get(3)?, row.get(4)?);
    let Some(body) = row.get::<_, Option<Vec<u8>>>(2)? else { return Ok(()) };
    let draft = Draft::again(priority, &meta, reply_to_id, body);
    let draft = draft.map_err(|refusal| corrupt(&key, refusal.detail))?;
    let is_whole = draft.fingerprint(&to) == Fingerprint(row.get(1)?);
    let what = "its fingerprint differs from that of the accepted message";
    is_whole.then_some(()).ok_or_else(|| corrupt(&key, what))
}

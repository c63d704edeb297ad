//! Every effect of the file: does its key still name what has happened?

use rusqlite::{Connection, Row};
use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_store::sqlite::{Start, TableRows};
use semel_store::{StoreError, statements};

use crate::envelope::Envelope;
use crate::key::{LogicalRequestKey, ReplayKey};

statements! {
    EFFECT_COUNT = "
        SELECT count(*)
          FROM effect_key";

    EFFECT_PAGE = "
        SELECT protocol_version, domain, operation, canonical_target, artifact_hash,
               owner_binding, run_id, replay_key, logical_request_key
          FROM effect_key
         WHERE logical_request_key > ?1
         ORDER BY logical_request_key
         LIMIT ?2";
}

/// The effects of a registrar's file.
pub static ROWS: &[TableRows] = &[TableRows {
    table: "effect_key",
    count: EFFECT_COUNT,
    page: EFFECT_PAGE,
    start: Start::Bytes,
    look,
}];

/// Recomputes both keys.
fn look(_: &Connection, row: &Row<'_>) -> Result<(), StoreError> {
    let envelope = Envelope {
        protocol_version: row.get::<_, i64>(0)?.cast_unsigned(),
        domain: row.get(1)?,
        operation: row.get(2)?,
        canonical_target: row.get(3)?,
        artifact_hash: Hex(row.get(4)?),
        owner_binding: row.get(5)?,
        run_id: row.get(6)?,
        // Neither is part of a key.
        issued_at: UnixMs(0),
        ttl_s: 1,
    };
    let (replay, logical): ([u8; 32], [u8; 32]) = (row.get(7)?, row.get(8)?);
    let is_whole =
        LogicalRequestKey::of(&envelope).0.0 == logical && ReplayKey::of(&envelope).0.0 == replay;
    is_whole.then_some(()).ok_or_else(|| StoreError::Corrupt {
        table: "effect_key",
        id: Hex(logical).to_string(),
        what: "its key is not the key of what it says has happened".to_owned(),
    })
}

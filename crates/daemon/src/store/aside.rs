//! The table `set_aside`: what arrived and could not be taken. It is kept until somebody has looked
//! at it (traps.md 8).

use rusqlite::{Connection, params};
use semel_core::clock::UnixMs;
use semel_core::fingerprint::BodyHash;
use semel_core::status;
use semel_store::{StoreError, statements};

statements! {
    ADD = "
        INSERT INTO set_aside (at, source, reason, seq, frame, digest)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6)
            ON CONFLICT (digest) DO NOTHING";

    LIST = "
        SELECT id, at, source, reason, seq, frame
          FROM set_aside
         WHERE id > ?1
         ORDER BY id
         LIMIT ?2";

    COUNT = "
        SELECT count(*)
          FROM set_aside
         WHERE id > 0";

    DROP = "
        DELETE FROM set_aside
         WHERE id = ?1";
}

status! {
    /// Who could not take it.
    pub enum AsideSource {
        /// The connection to the broker: it makes no sense.
        Link = "link",
        /// The job engine: it is no job.
        Jobs = "jobs",
        /// The inbox: it is not what arrived any more.
        Inbox = "inbox",
    }
}

/// Something that could not be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAside {
    /// Who could not.
    pub source: AsideSource,
    /// Why.
    pub reason: String,
    /// Its number in the mesh's history, where that is known.
    pub seq: Option<i64>,
    /// As it came.
    pub frame: Vec<u8>,
}

/// Something that was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aside {
    /// Its number here.
    pub id: i64,
    /// When it came.
    pub at: UnixMs,
    /// Who could not take it.
    pub source: AsideSource,
    /// Why.
    pub reason: String,
    /// Its number in the mesh's history, where that is known.
    pub seq: Option<i64>,
    /// As it came.
    pub frame: Vec<u8>,
}

/// Keeps it; `false` when it is there already.
pub fn add_in_tx(tx: &Connection, aside: &NewAside, now: UnixMs) -> Result<bool, StoreError> {
    let whole = [aside.source.as_str().as_bytes(), &[0], aside.frame.as_slice()].concat();
    let (source, digest) = (aside.source.as_str(), BodyHash::of(&whole).0);
    let by = params![now.0, source, aside.reason, aside.seq, aside.frame, digest];
    Ok(tx.prepare_cached(ADD)?.execute(by)? == 1)
}

/// A page of what was set aside, oldest first.
pub fn list(connection: &Connection, after: i64, limit: i64) -> Result<Vec<Aside>, StoreError> {
    let mut statement = connection.prepare_cached(LIST)?;
    let mut rows = statement.query(params![after, limit])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let (id, source): (i64, String) = (row.get(0)?, row.get(2)?);
        let source = AsideSource::parse(&source).ok_or_else(|| StoreError::Corrupt {
            table: "set_aside",
            id: id.to_string(),
            what: format!("the source {source:?} is unknown"),
        })?;
        let (at, reason, seq) = (UnixMs(row.get(1)?), row.get(3)?, row.get(4)?);
        found.push(Aside { id, at, source, reason, seq, frame: row.get(5)? });
    }
    Ok(found)
}

/// How much is set aside.
pub fn count(connection: &Connection) -> Result<u64, StoreError> {
    let count: i64 = connection.prepare_cached(COUNT)?.query_row([], |row| row.get(0))?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Somebody has looked at it: it goes. `false` when it is not there.
pub fn drop_in_tx(tx: &Connection, id: i64) -> Result<bool, StoreError> {
    Ok(tx.prepare_cached(DROP)?.execute([id])? == 1)
}

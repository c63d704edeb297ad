//! The table `set_aside`: what arrived and could not be taken. It is kept until somebody has looked
//! at it (traps.md 8).

use rusqlite::{Connection, Row, params};
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

/// A page of what was set aside, oldest first. A row that makes no sense is passed over.
pub fn list(connection: &Connection, after: i64, limit: i64) -> Result<Vec<Aside>, StoreError> {
    let mut statement = connection.prepare_cached(LIST)?;
    let (mut found, mut after, mut left) = (Vec::new(), after, limit);
    while left > 0 {
        let (mut rows, mut count) = (statement.query(params![after, left])?, 0);
        while let Some(row) = rows.next()? {
            (after, count) = (row.get(0)?, count + 1);
            match aside(row) {
                Some(aside) => found.push(aside),
                None => tracing::error!(id = after, "a message that was set aside cannot be read"),
            }
        }
        if count < left {
            break;
        }
        left = limit - i64::try_from(found.len()).unwrap_or(limit);
    }
    Ok(found)
}

fn aside(row: &Row<'_>) -> Option<Aside> {
    Some(Aside {
        id: row.get(0).ok()?,
        at: UnixMs(row.get(1).ok()?),
        source: AsideSource::parse(row.get_ref(2).ok()?.as_str().ok()?)?,
        reason: row.get(3).ok()?,
        seq: row.get(4).ok()?,
        frame: row.get(5).ok()?,
    })
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

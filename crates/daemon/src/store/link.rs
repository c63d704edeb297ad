//! The table `link`: whose outbox this is, and what is known of the broker's store (mesh.md §10).

use rusqlite::{Connection, OptionalExtension, Row, params};
use semel_core::id::{InstanceId, OutboxId, UuidId};
use semel_core::max_age::DedupeWindow;
use semel_store::{StoreError, statements};
use uuid::Uuid;

use super::extent::Extent;

statements! {
    READ = "
        SELECT instance_id, retiring, life, store_epoch, epoch_floor, offered_to, history_epoch,
               history_seq, adopted_life, dedupe_days
          FROM link
         WHERE one = 1";

    BORN = "
        INSERT INTO link (one, instance_id, life)
        VALUES (1, ?1, 1)";

    LIFE = "
        UPDATE link
           SET life = life + 1
         WHERE one = 1";

    /// Whoever owned it before is to be retired before anything is sent.
    ADOPT = "
        UPDATE link
           SET retiring = CAST(retiring || instance_id AS BLOB), instance_id = ?1,
               life = life + 1, adopted_life = life + 1
         WHERE one = 1";

    /// Open rows of another instance are never sent under their ids.
    ADOPTED = "
        UPDATE outbox
           SET status = 'dead', outcome = 'unknown',
               last_error = 'this outbox was taken over from another daemon'
         WHERE id IN (SELECT id
                        FROM outbox
                       WHERE status = 'pending'
                         AND priority BETWEEN 0 AND 2
                         AND life < ?2
                       LIMIT ?1)";

    RETIRED = "
        UPDATE link
           SET retiring = x''
         WHERE one = 1";

    /// Everything accepted before may have been sent under the epoch before.
    EPOCH_CHANGED = "
        UPDATE link
           SET store_epoch = ?1, epoch_floor = ?2, offered_to = ''
         WHERE one = 1";

    WINDOW = "
        UPDATE link
           SET dedupe_days = ?1
         WHERE one = 1
           AND dedupe_days IS NOT ?1";

    EPOCH_FIRST = "
        UPDATE link
           SET store_epoch = ?1
         WHERE one = 1";

    OFFERED_TO = "
        UPDATE link
           SET offered_to = ?1
         WHERE one = 1";

    HISTORY = "
        UPDATE link
           SET history_epoch = ?1, history_seq = ?2
         WHERE one = 1
           AND (history_epoch IS NOT ?1 OR history_seq < ?2)";
}

/// What is known of the broker's store, and of this daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkRow {
    /// The daemon that may send these rows.
    pub instance_id: InstanceId,
    /// Daemons that owned them before and are not retired yet.
    pub retiring: Vec<InstanceId>,
    /// Raised by every start after an unclean stop, and when marks could not be written.
    pub life: i64,
    /// The broker's, as last seen.
    pub store_epoch: Option<String>,
    /// Rows before this id may have been sent under an earlier epoch.
    pub epoch_floor: String,
    /// Done rows up to here were offered again.
    pub offered_to: String,
    /// Everything up to here was in the inbox.
    pub history: Option<Extent>,
    /// Rows of lives before this one were accepted by another daemon.
    pub adopted_life: i64,
    /// For how long the broker remembers ids, as it said last.
    pub window: Option<DedupeWindow>,
}

impl LinkRow {
    /// Whether a refusal of this row says nothing about an earlier life of the broker's store.
    pub fn may_have_been_sent_before(&self, id: OutboxId) -> bool {
        id.to_string() < self.epoch_floor
    }
}

/// Raises the life: marks of the last one may have been lost.
pub fn raise_life_in_tx(tx: &Connection) -> Result<i64, StoreError> {
    tx.prepare_cached(LIFE)?.execute([])?;
    Ok(read_open(tx)?.life)
}

/// Finds or makes the row at start. `unclean` raises the life: the marks of the last one may have
/// been lost. Another owner is noted for retirement.
pub fn open_in_tx(
    tx: &Connection,
    instance_id: InstanceId,
    unclean: bool,
) -> Result<LinkRow, StoreError> {
    let instance = instance_id.as_uuid().into_bytes();
    match read(tx)? {
        None => tx.prepare_cached(BORN)?.execute([instance])?,
        Some(link) if link.instance_id != instance_id => {
            tx.prepare_cached(ADOPT)?.execute([instance])?
        }
        Some(_) if unclean => tx.prepare_cached(LIFE)?.execute([])?,
        Some(_) => 0,
    };
    read(tx)?.ok_or_else(missing)
}

/// Gives up to `limit` open rows of lives before this one up as unknown, and says how many.
pub fn adopt_in_tx(tx: &Connection, life: i64, limit: i64) -> Result<usize, StoreError> {
    Ok(tx.prepare_cached(ADOPTED)?.execute([limit, life])?)
}

/// How long the broker remembers ids: rows must die before it forgets, also while it is away.
pub fn window_in_tx(tx: &Connection, window: DedupeWindow) -> Result<(), StoreError> {
    let days = match window {
        DedupeWindow::Permanent => 0,
        DedupeWindow::RetentionScoped { days } => days,
    };
    tx.prepare_cached(WINDOW)?.execute([days])?;
    Ok(())
}

/// The row.
pub fn read(connection: &Connection) -> Result<Option<LinkRow>, StoreError> {
    let mut statement = connection.prepare_cached(READ)?;
    let row = statement.query_row([], |row| {
        let instance: [u8; 16] = row.get(0)?;
        let retiring: Vec<u8> = row.get(1)?;
        let id = |bytes: &[u8]| Uuid::from_slice(bytes).ok().map(UuidId::new);
        Ok(LinkRow {
            instance_id: UuidId::new(Uuid::from_bytes(instance)),
            retiring: retiring.chunks(16).filter_map(id).collect(),
            life: row.get(2)?,
            store_epoch: row.get(3)?,
            epoch_floor: row.get(4)?,
            offered_to: row.get(5)?,
            history: history(row)?,
            adopted_life: row.get(8)?,
            window: row.get::<_, Option<u32>>(9)?.map(|days| match days {
                0 => DedupeWindow::Permanent,
                days => DedupeWindow::RetentionScoped { days },
            }),
        })
    });
    Ok(row.optional()?)
}

fn history(row: &Row<'_>) -> rusqlite::Result<Option<Extent>> {
    let (store_epoch, seq): (Option<String>, i64) = (row.get(6)?, row.get(7)?);
    Ok(store_epoch.map(|store_epoch| Extent { store_epoch, seq }))
}

/// The row, which a start has made.
pub fn read_open(connection: &Connection) -> Result<LinkRow, StoreError> {
    read(connection)?.ok_or_else(missing)
}

/// The broker has retired whoever owned this outbox before.
pub fn retired_in_tx(tx: &Connection) -> Result<(), StoreError> {
    tx.prepare_cached(RETIRED)?.execute([])?;
    Ok(())
}

/// Notes the epoch of the broker's store, before anything is sent under it. `now` is an id that is
/// larger than every row's.
pub fn epoch_seen_in_tx(
    tx: &Connection,
    store_epoch: &str,
    now: OutboxId,
) -> Result<LinkRow, StoreError> {
    let link = read_open(tx)?;
    match link.store_epoch.as_deref() {
        Some(known) if known == store_epoch => return Ok(link),
        Some(_) => {
            tx.prepare_cached(EPOCH_CHANGED)?.execute(params![store_epoch, now.to_string()])?
        }
        None => tx.prepare_cached(EPOCH_FIRST)?.execute([store_epoch])?,
    };
    read_open(tx)
}

/// Done rows up to here were offered again.
pub fn offered_to_in_tx(tx: &Connection, id: &str) -> Result<(), StoreError> {
    tx.prepare_cached(OFFERED_TO)?.execute([id])?;
    Ok(())
}

/// Everything up to here is in the inbox.
pub fn history_in_tx(tx: &Connection, extent: &Extent) -> Result<(), StoreError> {
    tx.prepare_cached(HISTORY)?.execute(params![extent.store_epoch, extent.seq])?;
    Ok(())
}

fn missing() -> StoreError {
    StoreError::Corrupt {
        table: "link",
        id: "1".to_owned(),
        what: "the outbox does not name its owner".to_owned(),
    }
}

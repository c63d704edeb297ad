//! The table `inbox_extent`: how far the broker's history is in the inbox.

use rusqlite::{Connection, OptionalExtension, params};
use semel_store::{StoreError, statements};

statements! {
    READ = "
        SELECT store_epoch, seq
          FROM inbox_extent
         WHERE one = 1";

    /// Never back, but for another life of the broker's store: its numbers are others.
    RAISE = "
        INSERT INTO inbox_extent (one, store_epoch, seq)
        VALUES (1, ?1, ?2)
            ON CONFLICT (one) DO UPDATE
           SET store_epoch = excluded.store_epoch, seq = excluded.seq
         WHERE inbox_extent.store_epoch <> excluded.store_epoch
            OR inbox_extent.seq < excluded.seq";
}

/// How far history is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The life of the broker's store whose history it is.
    pub store_epoch: String,
    /// Everything up to here.
    pub seq: i64,
}

impl Extent {
    /// Whether this is as far as the other, or further.
    pub fn covers(&self, other: &Self) -> bool {
        self.store_epoch == other.store_epoch && self.seq >= other.seq
    }

    /// Where to go on in this life of the broker's store.
    pub fn after(this: Option<&Self>, store_epoch: &str) -> i64 {
        this.filter(|extent| extent.store_epoch == store_epoch).map_or(0, |extent| extent.seq)
    }
}

/// How far the inbox reaches; nothing before anything came.
pub fn read(connection: &Connection) -> Result<Option<Extent>, StoreError> {
    let mut statement = connection.prepare_cached(READ)?;
    let row = statement
        .query_row([], |row| Ok(Extent { store_epoch: row.get(0)?, seq: row.get(1)? }))
        .optional();
    Ok(row?)
}

/// Everything up to here is in the inbox once this transaction is on disk.
pub fn raise_in_tx(tx: &Connection, extent: &Extent) -> Result<(), StoreError> {
    tx.prepare_cached(RAISE)?.execute(params![extent.store_epoch, extent.seq])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::INBOX_MIGRATIONS;
    use semel_testkit::sql;

    #[test]
    fn it_only_grows_within_a_life_of_the_brokers_store() {
        let inbox = sql::migrated(INBOX_MIGRATIONS.migrations);
        assert_eq!(read(&inbox).unwrap(), None);
        for (epoch, seq, expected) in [("a", 0, 0), ("a", 7, 7), ("a", 3, 7), ("b", 2, 2)] {
            let extent = Extent { store_epoch: epoch.to_owned(), seq };
            raise_in_tx(&inbox, &extent).unwrap();
            let read = read(&inbox).unwrap().unwrap();
            assert_eq!((read.store_epoch.as_str(), read.seq), (epoch, expected));
            assert_eq!(Extent::after(Some(&read), epoch), expected);
            assert_eq!(Extent::after(Some(&read), "c"), 0);
        }
    }
}

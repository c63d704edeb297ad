//! The tables `reader` and `inbox_read`: how far readers have read, and which messages that makes
//! read. Only those are ever swept (decision 019), and only an acknowledgement makes a message
//! read: whoever lists or streams messages may not have got to them.
//!
//! A reader says how far it has read with one small write. That these messages are read is noted
//! afterwards, a page at a time, by whoever sweeps.

use rusqlite::{Connection, OptionalExtension, params};
use semel_core::clock::UnixMs;
use semel_store::{StoreError, statements};

use super::inbox;
use crate::limits::READERS_MAX;

statements! {
    /// A reader that reads something else than before is begun with anew.
    SET = "
        INSERT INTO reader (name, inbox_id, topic, at)
        VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT (name)
            DO UPDATE SET inbox_id = excluded.inbox_id, topic = excluded.topic, at = excluded.at,
                          marked_to = CASE WHEN topic IS excluded.topic THEN marked_to ELSE 0 END
                    WHERE excluded.inbox_id > inbox_id";

    GET = "
        SELECT inbox_id
          FROM reader
         WHERE name = ?1";

    /// Those who have read nothing for the longest time.
    BOUND = "
        DELETE FROM reader
         WHERE name IN (SELECT name
                          FROM reader
                         WHERE at > 0
                         ORDER BY at DESC
                         LIMIT -1 OFFSET ?1)";

    SWEEP = "
        DELETE FROM reader
         WHERE name IN (SELECT name
                          FROM reader
                         WHERE at < ?1
                         ORDER BY at
                         LIMIT ?2)";

    BEHIND = "
        SELECT name, inbox_id, topic, marked_to
          FROM reader
         WHERE marked_to < inbox_id
           AND name > ''
         ORDER BY name
         LIMIT 1";

    PAGE_END = "
        SELECT max(id)
          FROM (SELECT id
                  FROM inbox
                 WHERE id > ?1
                   AND id <= ?2
                 ORDER BY id
                 LIMIT ?3)";

    MARK = "
        INSERT INTO inbox_read (inbox_id, received_at)
        SELECT id, received_at
          FROM inbox
         WHERE id > ?1
           AND id <= ?2
           AND (?3 IS NULL OR topic = ?3)
            ON CONFLICT DO NOTHING";

    MARKED = "
        UPDATE reader
           SET marked_to = ?2
         WHERE name = ?1";
}

/// What became of a reader's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// It has read up to here; it never goes back.
    UpTo(i64),
    /// There is nothing of that number yet: what comes later would count as read. The newest is
    /// this one.
    Beyond(i64),
}

/// A reader has read up to here, or all of this topic up to here. One reader too many is forgotten:
/// the one that has read nothing for the longest time.
pub fn reader_set_in_tx(
    tx: &Connection,
    name: &str,
    inbox_id: i64,
    topic: Option<&str>,
    now: UnixMs,
) -> Result<Read, StoreError> {
    let before = reader(tx, name)?;
    let newest = inbox::newest(tx)?;
    if inbox_id > newest.max(before.unwrap_or(0)) {
        return Ok(Read::Beyond(newest));
    }
    tx.prepare_cached(SET)?.execute(params![name, inbox_id, topic, now.0])?;
    if before.is_none() {
        tx.prepare_cached(BOUND)?.execute([READERS_MAX])?;
    }
    Ok(Read::UpTo(before.unwrap_or(0).max(inbox_id)))
}

/// How far a reader has read.
pub fn reader(connection: &Connection, name: &str) -> Result<Option<i64>, StoreError> {
    let mut statement = connection.prepare_cached(GET)?;
    Ok(statement.query_row([name], |row| row.get(0)).optional()?)
}

/// Notes of up to `limit` messages that they were read, where a reader has said so, and says how
/// many were looked at.
pub fn mark_read_in_tx(tx: &Connection, limit: i64) -> Result<i64, StoreError> {
    let mut statement = tx.prepare_cached(BEHIND)?;
    let behind = statement.query_row([], |row| {
        let (name, topic): (String, Option<String>) = (row.get(0)?, row.get(2)?);
        Ok((name, row.get::<_, i64>(1)?, topic, row.get::<_, i64>(3)?))
    });
    let Some((name, read_to, topic, marked_to)) = behind.optional()? else { return Ok(0) };
    let page = params![marked_to, read_to, limit];
    let end: Option<i64> = tx.prepare_cached(PAGE_END)?.query_row(page, |row| row.get(0))?;
    let end = end.unwrap_or(read_to);
    tx.prepare_cached(MARK)?.execute(params![marked_to, end, topic])?;
    tx.prepare_cached(MARKED)?.execute(params![name, end])?;
    Ok(limit)
}

/// Forgets up to `limit` readers that have read nothing since this, and says how many.
pub fn sweep_in_tx(tx: &Connection, before: UnixMs, limit: i64) -> Result<usize, StoreError> {
    Ok(tx.prepare_cached(SWEEP)?.execute(params![before.0, limit])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::INBOX_MIGRATIONS;
    use crate::store::inbox::tests::arrived;
    use crate::store::inbox::{Way, receive_in_tx, sweep_in_tx as sweep_messages_in_tx};
    use semel_testkit::sql;

    fn with_messages(count: u128) -> Connection {
        let inbox = sql::migrated(INBOX_MIGRATIONS.migrations);
        for number in 1..=count {
            let mut message = arrived(number, "hello");
            message.topic = (number % 2 == 0).then(|| "builds".to_owned());
            receive_in_tx(&inbox, &[message.into()], UnixMs(1), Way::Live).unwrap();
        }
        inbox
    }

    fn left(inbox: &Connection) -> Vec<i64> {
        while mark_read_in_tx(inbox, 2).unwrap() > 0 {}
        while sweep_messages_in_tx(inbox, UnixMs(i64::MAX), 3).unwrap() > 0 {}
        let mut statement = inbox.prepare("SELECT id FROM inbox ORDER BY id").unwrap();
        let ids = statement.query_map([], |row| row.get(0)).unwrap();
        ids.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn only_what_was_read_is_swept() {
        let inbox = with_messages(10);
        assert_eq!(left(&inbox).len(), 10, "nobody has read anything");
        let set = |name, id, topic| reader_set_in_tx(&inbox, name, id, topic, UnixMs(2)).unwrap();
        assert_eq!(set("jobs", 6, Some("builds")), Read::UpTo(6));
        assert_eq!(left(&inbox), [1, 3, 5, 7, 8, 9, 10], "the rest is for somebody else");
        assert_eq!(set("me", 3, None), Read::UpTo(3));
        assert_eq!(left(&inbox), [5, 7, 8, 9, 10]);
        assert_eq!(set("me", 1, None), Read::UpTo(3), "it never goes back");
        // It reads everything from now on: what it has passed over is read, too.
        assert_eq!(set("jobs", 8, None), Read::UpTo(8));
        assert_eq!(left(&inbox), [9, 10]);
        let keys = inbox.query_row("SELECT count(*) FROM inbox_key", [], |row| row.get(0));
        assert_eq!(keys, Ok(10), "what has arrived once does not arrive again");
        let read = inbox.query_row("SELECT count(*) FROM inbox_read", [], |row| row.get(0));
        assert_eq!(read, Ok(0));
    }

    #[test]
    fn nobody_has_read_what_has_not_come() {
        let inbox = with_messages(3);
        let set = |id| reader_set_in_tx(&inbox, "me", id, None, UnixMs(2)).unwrap();
        assert_eq!(set(4), Read::Beyond(3));
        assert_eq!(reader(&inbox, "me").unwrap(), None);
        assert_eq!(set(3), Read::UpTo(3));
        assert!(left(&inbox).is_empty());
        assert_eq!(set(3), Read::UpTo(3), "although nothing of it is left");
        let late = |id| reader_set_in_tx(&inbox, "late", id, None, UnixMs(2)).unwrap();
        assert_eq!(late(3), Read::UpTo(3), "another has seen it, too");
        assert_eq!(late(4), Read::Beyond(3));
    }

    #[test]
    fn there_are_so_many_readers_and_the_idlest_goes() {
        let inbox = with_messages(3);
        for number in 0..READERS_MAX {
            reader_set_in_tx(&inbox, &format!("r-{number}"), 1, None, UnixMs(number + 1)).unwrap();
        }
        // It is not the first any more.
        reader_set_in_tx(&inbox, "r-0", 2, None, UnixMs(READERS_MAX + 1)).unwrap();
        assert_eq!(reader(&inbox, "r-1").unwrap(), Some(1));
        reader_set_in_tx(&inbox, "new", 3, None, UnixMs(READERS_MAX + 2)).unwrap();
        let kept = ["r-0", "r-1", "r-2", "new"].map(|name| reader(&inbox, name).unwrap());
        assert_eq!(kept, [Some(2), None, Some(1), Some(3)]);
        assert_eq!(sweep_in_tx(&inbox, UnixMs(5), 500).unwrap(), 2, "the third and fourth");
        assert_eq!(reader(&inbox, "r-3").unwrap(), None);
        assert_eq!(reader(&inbox, "r-4").unwrap(), Some(1));
    }
}

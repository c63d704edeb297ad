//! Real logs with a changed byte, and as power cuts leave them.

use std::io::Cursor;
use std::path::Path;

use proptest::prelude::*;
use rusqlite::Connection;

use super::*;
use crate::sqlite::frames::{FRAME_HEADER_BYTES, word};

/// What is written at once, and survives a power cut as a whole or not at all.
const SECTOR: usize = 512;

/// A database with small pages whose log nobody copies, and what was written to it.
struct Made {
    folder: tempfile::TempDir,
    connection: Connection,
    /// The log after each commit, the empty one first.
    logs: Vec<Vec<u8>>,
    committed: u32,
}

impl Made {
    fn new() -> Self {
        Self::over(tempfile::tempdir().unwrap(), 0)
    }

    fn over(folder: tempfile::TempDir, committed: u32) -> Self {
        let connection = Connection::open(folder.path().join("a.db")).unwrap();
        let setup = "PRAGMA page_size = 512; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
                     PRAGMA wal_autocheckpoint = 0;
                     CREATE TABLE IF NOT EXISTS item (tx INTEGER NOT NULL, body BLOB NOT NULL)";
        connection.execute_batch(setup).unwrap();
        let mut made = Self { folder, connection, logs: Vec::new(), committed };
        made.logs.push(made.log());
        made
    }

    fn log(&self) -> Vec<u8> {
        std::fs::read(wal_path(&self.folder.path().join("a.db"))).unwrap_or_default()
    }

    /// One transaction, of one page and more.
    fn commit(&mut self, bytes: u32) {
        let sql = "INSERT INTO item (tx, body) VALUES (?1, zeroblob(?2))";
        self.connection.execute(sql, (self.committed, bytes)).unwrap();
        self.committed += 1;
        self.logs.push(self.log());
    }

    /// One that is given up after it was too large for memory.
    fn roll_back(&self, bytes: u32) {
        self.connection.execute_batch("PRAGMA cache_size = 1; BEGIN").unwrap();
        let sql = "INSERT INTO item (tx, body) VALUES (-1, zeroblob(?1))";
        for _ in 0..20 {
            self.connection.execute(sql, [bytes]).unwrap();
        }
        self.connection.execute_batch("ROLLBACK").unwrap();
    }

    /// The log is written over from its start.
    fn restart(&mut self) {
        self.connection.execute_batch("PRAGMA wal_checkpoint(RESTART)").unwrap();
        self.logs = vec![self.log()];
    }

    /// The same database with another log, as a power cut leaves it.
    fn with(&self, log: &[u8]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let file = |folder: &Path| folder.join("a.db");
        std::fs::copy(file(self.folder.path()), file(folder.path())).unwrap();
        std::fs::write(wal_path(&file(folder.path())), log).unwrap();
        folder
    }

    /// How many transactions SQLite finds with that log.
    fn found(&self, log: &[u8]) -> u32 {
        let folder = self.with(log);
        let connection = Connection::open(folder.path().join("a.db")).unwrap();
        let sql = "SELECT count(DISTINCT tx) FROM item";
        connection.query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

fn looked_at(log: &[u8]) -> Option<Damage> {
    damage(&mut Cursor::new(log)).unwrap()
}

/// Transactions from one page to eight.
fn size(number: usize) -> u32 {
    [10, 700, 40, 1800, 100, 3500][number % 6]
}

#[test]
fn a_changed_byte_is_found_or_of_the_last_transaction() {
    let mut made = Made::new();
    for number in 0..70 {
        made.commit(size(number));
    }
    let log = made.logs.pop().unwrap();
    let last = made.logs.pop().unwrap().len();
    let frames = (log.len() - HEADER_BYTES) / (FRAME_HEADER_BYTES + 512);
    assert!(frames > 250, "{frames}");
    assert_eq!(looked_at(&log), None);
    assert_eq!(made.found(&log), made.committed);
    // Every byte of the headers, and some of the pages.
    let is_looked_at = |place: &usize| match place.checked_sub(HEADER_BYTES) {
        None => true,
        Some(place) => {
            let place = place % (FRAME_HEADER_BYTES + 512);
            place < FRAME_HEADER_BYTES
                || place.is_multiple_of(127)
                || place == FRAME_HEADER_BYTES + 511
        }
    };
    for place in (0..log.len()).filter(is_looked_at) {
        let mut changed = log.clone();
        // Also to nothing: a frame that ended a transaction seems to end none.
        let erased = if place % 2 == 0 { changed[place] } else { 0 };
        changed[place] ^= if erased == 0 { 1 << (place % 8) } else { erased };
        match looked_at(&changed) {
            Some(_) => {}
            None if place < last => panic!("byte {place} of {last} was not missed"),
            None => assert!(made.found(&changed) + 1 >= made.committed, "byte {place}"),
        }
    }
}

/// Whichever of four bytes says it: a frame that ended a transaction seems to end none.
#[test]
fn an_erased_commit_is_found() {
    let mut made = Made::new();
    let ends: Vec<usize> = (0..12)
        .map(|number| {
            made.commit(size(number));
            made.logs[made.logs.len() - 1].len() - (FRAME_HEADER_BYTES + 512)
        })
        .collect();
    for (number, end) in ends.iter().enumerate().take(ends.len() - 1) {
        let mut changed = made.logs[ends.len()].clone();
        changed[end + 4..end + 8].fill(0);
        assert!(matches!(looked_at(&changed), Some(Damage::Frame(_))), "transaction {number}");
    }
}

#[test]
fn lost_sectors_and_lost_headers_are_found() {
    let mut made = Made::new();
    for number in 0..30 {
        made.commit(size(number));
    }
    let log = made.logs.pop().unwrap();
    let before = made.logs[made.logs.len() - 2].len();
    for start in (0..=before - SECTOR).step_by(SECTOR) {
        let mut changed = log.clone();
        changed[start..start + SECTOR].fill(0);
        assert!(looked_at(&changed).is_some(), "the sector at {start}");
    }
}

#[test]
fn what_is_no_log_is_left_to_sqlite() {
    assert_eq!(looked_at(b""), None);
    assert_eq!(looked_at(&[0; 31]), None);
    assert_eq!(looked_at(&[0; 100_000]), None);
    let noise: Vec<u8> =
        (0_u32..50_000).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert_eq!(looked_at(&noise), None);
}

/// Of what was not synced, any sectors are there.
fn cut(before: &[u8], after: &[u8], sectors: u64) -> Vec<u8> {
    let mut log = after.to_vec();
    let changed = |at: &usize| {
        let end = (at + SECTOR).min(after.len());
        before.get(*at..end) != Some(&after[*at..end])
    };
    let starts = (0..after.len()).step_by(SECTOR).filter(changed);
    for (number, start) in starts.enumerate() {
        if sectors >> (number % 64) & 1 == 0 {
            let end = (start + SECTOR).min(after.len());
            log[start..end].fill(0);
            let kept = before.len().clamp(start, end);
            log[start..kept].copy_from_slice(before.get(start..kept).unwrap_or_default());
        }
    }
    // The header is synced before any frame is written.
    log[..HEADER_BYTES].copy_from_slice(&after[..HEADER_BYTES]);
    log
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A power cut during any commit, again and again, in a log of many rounds, beside frames that
    /// were rolled back: it is never refused, and what was acknowledged is there.
    #[test]
    fn no_power_cut_is_taken_for_damage(
        rounds in prop::collection::vec((0..2_u8, 0..2_u8, 1..6_usize, any::<u64>()), 1..5),
    ) {
        let mut made = Made::new();
        for (restarts, rolls_back, commits, sectors) in rounds {
            if restarts == 1 {
                made.restart();
            }
            for number in 0..commits {
                if rolls_back == 1 {
                    made.roll_back(size(number + commits));
                }
                made.commit(size(number));
            }
            let [.., before, after] = &made.logs[..] else { unreachable!() };
            prop_assert_eq!(looked_at(after), None);
            let log = cut(before, after, sectors);
            prop_assert_eq!(looked_at(&log), None);
            let found = made.found(&log);
            prop_assert!(found + 1 >= made.committed, "{} of {}", found, made.committed);
            // It goes on from there, in a new round of the log, as after every unclean stop.
            let (folder, committed) = (made.with(&log), made.committed);
            made = Made::over(folder, committed);
            made.committed = found;
            made.restart();
        }
    }
}

/// The halves of a frame's head may be in two sectors: what is there after a cut ends a
/// transaction, and has the checksum of one that was rolled back.
#[test]
fn half_a_head_over_what_was_rolled_back_is_no_damage() {
    let head = |number: usize| HEADER_BYTES + number * (FRAME_HEADER_BYTES + 512);
    let mut halves = 0;
    for bytes in (100..16_000).step_by(300) {
        let mut made = Made::new();
        for number in 0..12 {
            made.commit(size(number));
        }
        made.roll_back(size(5));
        let before = made.log();
        made.commit(bytes);
        let after = made.log();
        let frames = (after.len() - HEADER_BYTES) / (FRAME_HEADER_BYTES + 512);
        let last = (0..frames).rfind(|number| word(&after, head(*number) + 4) != 0).unwrap();
        let (start, end) = (head(last), head(last).next_multiple_of(SECTOR));
        if (start + 8..=start + 16).contains(&end) {
            let log = [&after[..end], &before[end..]].concat();
            assert_eq!(looked_at(&log), None, "{bytes}");
            halves += 1;
        }
    }
    assert!(halves > 0);
}

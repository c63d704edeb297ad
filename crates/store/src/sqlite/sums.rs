//! What every page of a file should be, in a file beside it (`.sums`): so that a page that has
//! changed, and a file or a log that is older or shorter than it was, is noticed when the file is
//! opened (traps.md 64, 67). SQLite has checksums in its log alone.
//!
//! **Pages** change only when the log is copied into the file, and all copying is done by
//! [`super::log`], while nobody can write. Before the log may be written over, the sums of all
//! pages that are in it are written here, and synced. So at any moment, also after a power cut: a
//! page that is not in the log has the sum that is here. Of a page in the log nothing needs to be
//! known.
//!
//! **The log** has checksums of its own, which cannot tell a log that ends from one that was cut.
//! So after each commit it is noted here how far it goes. That is not synced: it survives a kill,
//! and after a power cut the note says less than it could, never more.
//!
//! | at | what |
//! |---|---|
//! | 0 | 16 bytes that say what it is, the size of a page, how many pages there are; checksum |
//! | 512 | the [`Note`]; checksum |
//! | 4096 · n | sums of 511 pages, 8 bytes each, zero where none is known; checksum |
//!
//! Whoever deletes it loses nothing but the comparison: it is made anew.

mod format;

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::frames::{
    Contents, FRAME_HEADER_BYTES, Format, HEADER_BYTES, committed, contents, eight, frame_offset,
    sum_at, word,
};
use super::open::{fsync_folder, wal_path};
use crate::{OpenError, limits};
use format::{
    Block, End, Note, SUMS_PER_BLOCK, SumsFile, block_of, first_of, offset_of, page_bytes_of,
    page_sum, read_up_to,
};

/// The sums of a file that is open.
pub(super) struct Sums {
    file: SumsFile,
    /// The database.
    path: PathBuf,
    log: OnceCell<File>,
}

/// What is wrong with a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    is_in_log: bool,
    place: String,
    what: &'static str,
}

/// How a comparison ended.
enum Compared {
    Same,
    Differs(Fault),
    /// The sums themselves cannot be read.
    Unreadable,
}

/// What was found when a file was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// All is as it was written.
    Whole,
    /// It is too large to be read while somebody waits: its pages were not compared yet.
    Large,
    /// There was nothing to compare it with; it is there now.
    Made,
    /// The same, because it was damaged.
    Remade,
}

/// The sums beside a database: what every page of it should be. They are made anew where they are
/// missing, and belong to no other file: whoever moves the database away moves them along.
pub fn path_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".sums");
    name.into()
}

/// Compares a database that nobody can open meanwhile with its sums, and makes them where there are
/// none.
pub(super) fn begin(path: &Path, at_once: u64) -> Result<Found, OpenError> {
    let io = |source| OpenError::Io { path: path_of(path), source };
    let sums = Sums::open(path, true).map_err(io)?;
    let database = open_database(path).map_err(|source| in_file(path, source))?;
    let is_new = sums.file.0.metadata().map_err(io)?.len() == 0;
    let found = match is_new {
        true => Found::Made,
        false => sums.found(database.as_ref(), at_once)?,
    };
    if matches!(found, Found::Made | Found::Remade) {
        sums.make(database.as_ref()).map_err(io)?;
    }
    Ok(found)
}

/// For whoever has opened a database with others: notes that it is open from now on. Nothing where
/// there are no sums: nobody makes them while it is open.
pub(super) fn of_open(path: &Path) -> Result<Option<Sums>, OpenError> {
    let io = |source| OpenError::Io { path: path_of(path), source };
    let sums = match Sums::open(path, false) {
        Ok(sums) => sums,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let is_over = match sums.file.note().map_err(io)? {
        Some(Note::Closed) | None => true,
        // Whoever copied it has emptied or removed it, too, and was killed before that was noted,
        // or still had a reader. The next one begins with the first round.
        Some(Note::Copied(_)) => wal_path(path).metadata().map_or(true, |log| log.len() == 0),
        Some(Note::Open(_)) => false,
    };
    if is_over {
        let open = Note::Open(End::default());
        sums.file.write_note(open).and_then(|()| sums.file.0.sync_data()).map_err(io)?;
    }
    Ok(Some(sums))
}

/// Refuses a database that is not what was written, and touches nothing. `Ok` where nothing can be
/// compared. Who has it open may write meanwhile, so that a fault counts if it is found again.
pub(super) fn refuse_damaged(path: &Path) -> Result<(), OpenError> {
    let io = |source| OpenError::Io { path: path_of(path), source };
    let sums = match Sums::open(path, false) {
        Ok(sums) => sums,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error)),
    };
    let database = open_database(path).map_err(|source| in_file(path, source))?;
    let mut last = None;
    for _ in 0..limits::SUMS_LOOKS {
        let found = match sums.compare(database.as_ref(), true).map_err(io)? {
            Compared::Same => return Ok(()),
            Compared::Differs(fault) => Some(fault),
            Compared::Unreadable => None,
        };
        match (found, last.take()) {
            (Some(found), Some(before)) if found == before => return Err(sums.refusal(found)),
            (found, _) => last = found,
        }
    }
    Ok(())
}

/// Compares all pages of a database that is in use, one block after the other, by a connection that
/// can hold writers back. What is wrong, in words.
pub(super) fn compare_while_open(
    path: &Path,
    database: &File,
    connection: &Connection,
) -> io::Result<Option<String>> {
    let sums = Sums::open(path, false)?;
    let Some((_, pages)) = sums.file.head()? else { return Ok(None) };
    for number in 0..=block_of(pages) {
        if let Compared::Same = sums.compare_block_now(database, number, &BTreeSet::new())? {
            continue;
        }
        // Its pages are in the log, or were being copied. Nobody writes or copies meanwhile.
        connection.execute_batch("BEGIN IMMEDIATE").map_err(io::Error::other)?;
        let log = sums.read_log(0);
        let compared = log.and_then(|log| {
            let in_log = log.map(|log| log.pages).unwrap_or_default();
            sums.compare_block_now(database, number, &in_log)
        });
        connection.execute_batch("ROLLBACK").map_err(io::Error::other)?;
        if let Compared::Differs(fault) = compared? {
            return Ok(Some(format!("at {}: {}", fault.place, fault.what)));
        }
    }
    Ok(None)
}

fn in_file(path: &Path, source: io::Error) -> OpenError {
    OpenError::Io { path: path.to_owned(), source }
}

/// Nothing where there is no database yet.
fn open_database(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Sums {
    fn open(path: &Path, make: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(make).truncate(false).mode(0o600);
        let file = options.open(path_of(path))?;
        Ok(Self { file: SumsFile(file), path: path.to_owned(), log: OnceCell::new() })
    }

    fn found(&self, database: Option<&File>, at_once: u64) -> Result<Found, OpenError> {
        let io = |source| OpenError::Io { path: path_of(&self.path), source };
        let bytes = match database {
            Some(database) => database.metadata().map_err(io)?.len(),
            None => 0,
        };
        let is_large = bytes > at_once;
        match self.compare(database, !is_large).map_err(io)? {
            Compared::Same if is_large => Ok(Found::Large),
            Compared::Same => Ok(Found::Whole),
            Compared::Differs(fault) => Err(self.refusal(fault)),
            Compared::Unreadable => Ok(Found::Remade),
        }
    }

    pub(super) fn refusal(&self, fault: Fault) -> OpenError {
        let path = if fault.is_in_log { wal_path(&self.path) } else { self.path.clone() };
        let (place, sums) = (fault.place, path_of(&self.path));
        let name = sums.file_name().unwrap_or_default().to_string_lossy();
        let what = format!("{} (if another program has changed it, delete {name})", fault.what);
        OpenError::Damaged { path, place, what }
    }

    fn compare(&self, database: Option<&File>, with_pages: bool) -> io::Result<Compared> {
        let (Some((page_bytes, pages)), Some(note)) = (self.file.head()?, self.file.note()?) else {
            return Ok(Compared::Unreadable);
        };
        let asked = match note {
            Note::Closed => 0,
            Note::Open(end) | Note::Copied(end) => end.frames,
        };
        let log = self.read_log(asked)?;
        if let Some(fault) = fault_of_log(note, log.as_ref()) {
            return Ok(Compared::Differs(fault));
        }
        let none = BTreeSet::new();
        let in_log = log.as_ref().map_or(&none, |log| &log.pages);
        let Some(database) = database else {
            let fault = Fault::of_file("its beginning".to_owned(), "there is nothing any more");
            let is_gone = pages > 0;
            return Ok(if is_gone { Compared::Differs(fault) } else { Compared::Same });
        };
        if !with_pages || pages == 0 {
            return Ok(Compared::Same);
        }
        for number in 0..=block_of(pages) {
            match self.compare_block(database, number, (page_bytes, pages), in_log)? {
                Compared::Same => {}
                other @ (Compared::Differs(_) | Compared::Unreadable) => return Ok(other),
            }
        }
        Ok(Compared::Same)
    }

    /// The pages of one block.
    fn compare_block(
        &self,
        database: &File,
        number: u32,
        (page_bytes, pages): (usize, u32),
        in_log: &BTreeSet<u32>,
    ) -> io::Result<Compared> {
        let first = first_of(number);
        let last = first.saturating_add(SUMS_PER_BLOCK - 1).min(pages);
        let Some(block) = self.file.block(number)? else {
            // It was being written when the power was cut, and then its pages are in the log.
            let is_excused = in_log.range(first..=last).next().is_some();
            return Ok(if is_excused { Compared::Same } else { Compared::Unreadable });
        };
        let mut bytes = vec![0; page_bytes * (last - first + 1) as usize];
        let there = read_up_to(database, &mut bytes, offset_of(first, page_bytes))?;
        for (page, content) in (first..=last).zip(bytes.chunks(page_bytes)) {
            let right = block.sum(page);
            if right == 0 || in_log.contains(&page) {
                continue;
            }
            let is_there = (page - first + 1) as usize * page_bytes <= there;
            if !is_there || page_sum(page, content) != right {
                let what = "it is not what was written there";
                return Ok(Compared::Differs(Fault::of_file(format!("page {page}"), what)));
            }
        }
        Ok(Compared::Same)
    }

    /// The same for as many pages as there are now.
    fn compare_block_now(
        &self,
        database: &File,
        number: u32,
        in_log: &BTreeSet<u32>,
    ) -> io::Result<Compared> {
        match self.file.head()? {
            Some(size) if first_of(number) <= size.1 => {
                self.compare_block(database, number, size, in_log)
            }
            Some(_) | None => Ok(Compared::Same),
        }
    }

    /// Everything of a database that nobody has open yet. What is in its log is written again when
    /// that is copied.
    fn make(&self, database: Option<&File>) -> io::Result<()> {
        self.file.0.set_len(0)?;
        let page_bytes = match database {
            Some(database) => page_bytes_of(database)?,
            None => None,
        };
        let (Some(database), Some(page_bytes)) = (database, page_bytes) else {
            return self.file.write_head(0, 0);
        };
        let bytes = database.metadata()?.len();
        let pages = u32::try_from(bytes / page_bytes as u64).unwrap_or(u32::MAX);
        for number in (0..=block_of(pages)).take_while(|_| pages > 0) {
            let first = first_of(number);
            let last = first.saturating_add(SUMS_PER_BLOCK - 1).min(pages);
            let mut content = vec![0; page_bytes * (last - first + 1) as usize];
            let there = read_up_to(database, &mut content, offset_of(first, page_bytes))?;
            let mut block = Block::empty();
            for (page, content) in (first..=last).zip(content[..there].chunks_exact(page_bytes)) {
                block.set(page, page_sum(page, content));
            }
            self.file.write_block(number, &block)?;
        }
        self.file.write_head(page_bytes, pages)
    }

    /// Notes how far the log goes after a commit; nothing depends on its success, and without it
    /// less is known.
    pub(super) fn committed(&self, frames: u32) {
        if let Err(error) = self.end(frames).and_then(|end| match end {
            Some(end) => self.file.write_note(Note::Open(end)),
            None => Ok(()),
        }) {
            tracing::debug!(%error, "the end of the log was not noted");
        }
    }

    /// All of the log up to there is in the file, and nobody writes: it may be written over when
    /// this returns. After an error it may be too, and there are no sums any more.
    pub(super) fn copied(&self, frames: u32) -> io::Result<()> {
        let written = self.write_copied(frames);
        if written.is_err() {
            self.give_up();
        }
        written
    }

    fn write_copied(&self, frames: u32) -> io::Result<()> {
        if !self.is_still_there() {
            return Err(io::Error::new(ErrorKind::NotFound, "the sums are gone"));
        }
        let log = self.open_log()?;
        let Some(copied) = committed(log, frames)? else { return Ok(()) };
        let mut content = vec![0; copied.page_bytes];
        let (mut last, mut block) = (None, Block::empty());
        for (&page, &frame) in copied.last_of.range(..=copied.pages) {
            let at = frame_offset(frame, copied.page_bytes) + FRAME_HEADER_BYTES as u64;
            log.read_exact_at(&mut content, at)?;
            let sum = page_sum(page, &content);
            let number = block_of(page);
            if last != Some(number) {
                if let Some(last) = last {
                    self.file.write_block(last, &block)?;
                }
                block = self.file.block(number)?.unwrap_or_else(Block::empty);
                last = Some(number);
            }
            block.set(page, sum);
        }
        if let Some(last) = last {
            self.file.write_block(last, &block)?;
            self.file.write_head(copied.page_bytes, copied.pages)?;
        }
        if let Some(end) = self.end(frames)? {
            self.file.write_note(Note::Copied(end))?;
        }
        self.file.0.sync_data()
    }

    /// Nobody else has the file open, and its log was copied and removed. That is made durable
    /// first: a log that came back after a power cut would not be taken for its own.
    pub(super) fn closed(&self) -> io::Result<()> {
        if wal_path(&self.path).exists() {
            return Ok(());
        }
        fsync_folder(&self.path).map_err(io::Error::other)?;
        self.file.write_note(Note::Closed)?;
        self.file.0.sync_data()
    }

    /// They would be wrong from now on. The next start makes them anew.
    fn give_up(&self) {
        let removed = match self.is_still_there() {
            true => std::fs::remove_file(path_of(&self.path)),
            false => Ok(()),
        };
        let synced = fsync_folder(&self.path);
        let name = self.path.display();
        if removed.is_err() || synced.is_err() {
            tracing::error!(%name, "its sums are wrong from now on, and could not be removed");
        }
    }

    /// Whether the file that is open is the one beside the database.
    fn is_still_there(&self) -> bool {
        let same = |held: std::fs::Metadata| {
            std::fs::metadata(path_of(&self.path))
                .is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino()))
        };
        self.file.0.metadata().is_ok_and(same)
    }

    /// Where the log ends after so many frames; nothing if it was begun anew meanwhile.
    fn end(&self, frames: u32) -> io::Result<Option<End>> {
        let log = self.open_log()?;
        let (mut header, mut frame) = ([0; HEADER_BYTES], [0; FRAME_HEADER_BYTES]);
        log.read_exact_at(&mut header, 0)?;
        let Some(format) = Format::read(&header) else { return Ok(None) };
        log.read_exact_at(&mut frame, frame_offset(frames.saturating_sub(1), format.page_bytes))?;
        let is_commit = word(&frame, 4) != 0 && eight(&frame, 8) == format.salts;
        let (round, salts, sum) = (format.round, format.salts, sum_at(&frame, 16));
        Ok((is_commit && frames > 0).then_some(End { round, salts, frames, sum }))
    }

    /// It is there from the first commit until the last connection is closed.
    fn open_log(&self) -> io::Result<&File> {
        match self.log.get() {
            Some(log) => Ok(log),
            None => {
                let log = File::open(wal_path(&self.path))?;
                Ok(self.log.get_or_init(|| log))
            }
        }
    }

    fn read_log(&self, asked: u32) -> io::Result<Option<Contents>> {
        match File::open(wal_path(&self.path)) {
            Ok(log) => {
                let mut log = BufReader::with_capacity(limits::LOG_READ_BYTES, log);
                contents(&mut log, asked)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Fault {
    fn of_file(place: String, what: &'static str) -> Self {
        Self { is_in_log: false, place, what }
    }

    fn of_log(frame: u32, what: &'static str) -> Self {
        Self { is_in_log: true, place: format!("frame {frame}"), what }
    }
}

/// What the note says of a log that is there, or is not.
fn fault_of_log(note: Note, log: Option<&Contents>) -> Option<Fault> {
    let log = log.filter(|log| log.frames > 0);
    match (note, log) {
        (Note::Closed, Some(_)) => Some(Fault::of_log(1, "it was closed without a log")),
        (Note::Closed | Note::Copied(_), None) => None,
        (Note::Open(end) | Note::Copied(end), _) if end.frames == 0 => None,
        (Note::Open(end), None) => Some(Fault::of_log(end.frames, "what was committed is missing")),
        (Note::Open(end) | Note::Copied(end), Some(log)) => {
            let (round, salts) = (log.format.round, log.format.salts);
            // A note may be lost in a power cut, a log that was synced is not.
            if round > end.round {
                return None;
            }
            if round < end.round || salts != end.salts {
                return Some(Fault::of_log(1, "it is older than the file"));
            }
            let is_whole = log.frames >= end.frames && log.asked == Some(end.sum);
            // What is in the file already may be written over by now.
            let is_needed = matches!(note, Note::Open(_));
            let what = "what was committed is missing";
            (is_needed && !is_whole).then(|| Fault::of_log(end.frames, what))
        }
    }
}

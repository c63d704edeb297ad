//! Whether a log (`-wal`) is whole, looked at before SQLite reads it (traps.md 64).
//!
//! SQLite ends a log at its first frame whose checksum is wrong, and silently drops everything
//! behind it. After a power cut that is right: the last transaction was not synced, so that any
//! part of it may be missing, and nobody was told of it. It is wrong when a byte has changed since.
//! The two can be told apart, because every commit is synced before the next transaction writes
//! its first frame (`synchronous=FULL`), and because a frame's checksum continues that of the frame
//! before it: a frame that continues one that commits was written after a sync of everything up to
//! that commit. If a frame before it is bad, it was good once, and acknowledged.
//!
//! A power cut may leave half of a frame's head, and the other half is then of what was there
//! before: of a transaction that was rolled back when it was too large for memory. It seems to end
//! a transaction, and what is behind it continues it. So a frame is believed to end one if its own
//! checksum says so, or if what continues it comes to an end, too: what was rolled back never does.
//!
//! What follows from that, and is tested for every byte: whichever byte changes in a log that holds
//! all that was written, either the log is refused, or the byte is of its last transaction, which
//! then looks as if the power had been cut during its commit. No power cut makes a log that is
//! refused. Frames of earlier rounds of the log have other salts, and continue nothing of this one.
//! A transaction that was cut off leaves none with the same salts: whoever opens a log that
//! somebody has left copies it first, and begins a new round.
//!
//! The header is synced before there is a frame, and lies in one sector. A bad one with frames
//! behind it is damage.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use super::frames::{Format, Frame, Frames, HEADER_BYTES, Order, PAGE_BYTES, Sum, fill, sum_at};
use super::open::wal_path;
use crate::{OpenError, limits};

/// Where a log is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    Header,
    /// Frames are counted from one.
    Frame(u64),
}

/// Refuses a database whose log is damaged, and touches nothing. Nobody may have it open; a process
/// that has opened it in this moment writes on, so that a fault counts if it is found again.
pub(super) fn refuse_damaged(path: &Path) -> Result<(), OpenError> {
    let log = wal_path(path);
    let look = || match File::open(&log) {
        Ok(file) => damage(&mut BufReader::with_capacity(limits::LOG_READ_BYTES, file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let unread = |source| OpenError::Io { path: log.clone(), source };
    let (first, again) = match look().map_err(unread)? {
        None => return Ok(()),
        Some(first) => (first, look().map_err(unread)?),
    };
    if again != Some(first) {
        return Ok(());
    }
    let place = match first {
        Damage::Header => "its header".to_owned(),
        Damage::Frame(number) => format!("frame {number}"),
    };
    let what = "what was committed behind it would be lost".to_owned();
    Err(OpenError::Damaged { path: log, place, what })
}

/// What is wrong with a log, if anything is.
pub(super) fn damage(log: &mut (impl Read + Seek)) -> io::Result<Option<Damage>> {
    let mut header = [0; HEADER_BYTES];
    if !fill(log, &mut header)? {
        // Nothing was ever in it.
        return Ok(None);
    }
    let Some(format) = Format::read(&header) else {
        return Ok(has_frames(log, &header)?.then_some(Damage::Header));
    };
    let mut frames = Frames::new(format.page_bytes);
    let (mut sum, mut number) = (format.sum, 0);
    let mut before = loop {
        let Some(frame) = frames.next(log)? else { return Ok(None) };
        number += 1;
        let right = frame.sum_after(sum, format.order);
        if frame.page() == 0 || frame.salts() != format.salts || frame.sum() != right {
            let was_erased = frame.may_have_committed(sum, format.order);
            let ends = frame.commit() != 0 || was_erased;
            break Before { ends, is_whole: was_erased, is_behind: false, sum: frame.sum(), right };
        }
        sum = right;
    };
    while let Some(frame) = frames.next(log)? {
        let is_whole = before.is_of(&frame, format.order);
        let is_next = is_whole && frame.salts() == format.salts;
        if is_next && before.ends && before.is_whole_if_before(&frame, format.order) {
            return Ok(Some(Damage::Frame(number)));
        }
        let is_behind = is_next && (before.ends || before.is_behind);
        if is_behind && frame.commit() != 0 {
            return Ok(Some(Damage::Frame(number)));
        }
        let (ends, sum) = (frame.commit() != 0, frame.sum());
        before = Before { ends, is_whole, is_behind, sum, right: sum };
    }
    Ok(None)
}

/// What is known of the frame before another.
struct Before {
    /// It says that it ends a transaction.
    ends: bool,
    /// Its checksum says that it does: half of its head may be of another frame.
    is_whole: bool,
    /// It continues a frame that says that it ends a transaction.
    is_behind: bool,
    /// Its checksum, as it says and as it should be: either may be damaged.
    sum: Sum,
    right: Sum,
}

impl Before {
    /// Whether this frame was written right behind it.
    fn is_of(&self, frame: &Frame<'_>, order: Order) -> bool {
        [self.sum, self.right].iter().any(|sum| frame.sum_after(*sum, order) == frame.sum())
    }

    /// Whether it is what it says, given that this frame was written right behind it.
    fn is_whole_if_before(&self, frame: &Frame<'_>, order: Order) -> bool {
        self.is_whole || frame.sum_after(self.right, order) == frame.sum() && self.right != self.sum
    }
}

/// Whether there are frames behind a header that is none. What it said of their size and of their
/// checksums may be gone with it.
fn has_frames(log: &mut (impl Read + Seek), header: &[u8; HEADER_BYTES]) -> io::Result<bool> {
    for order in [Order::Little, Order::Big] {
        let first = [sum_at(header, 24), Sum::default().over(&header[..24], order)];
        for page_bytes in PAGE_BYTES {
            log.seek(SeekFrom::Start(HEADER_BYTES as u64))?;
            let mut frames = Frames::new(page_bytes);
            let [sum, right] = first;
            let mut before = Before { ends: true, is_whole: true, is_behind: false, sum, right };
            for _ in 0..limits::LOG_HEADER_LOOKS {
                let Some(frame) = frames.next(log)? else { break };
                if frame.page() != 0 && before.is_of(&frame, order) {
                    return Ok(true);
                }
                (before.sum, before.right) = (frame.sum(), frame.sum());
            }
        }
    }
    Ok(false)
}

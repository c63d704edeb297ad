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
//! What follows from that, and is tested for every byte: whichever byte changes in a log that holds
//! all that was written, either the log is refused, or the byte is of its last transaction, which
//! then looks as if the power had been cut during its commit. No power cut makes a log that is
//! refused. Frames of earlier rounds of the log have other salts, and continue nothing of this one;
//! nor do those of transactions that were rolled back, or cut off before.
//!
//! The header is synced before there is a frame, and lies in one sector. A bad one with frames
//! behind it is damage.
//!
//! The format: 32 bytes of header, then for every page 24 bytes and the page; numbers are
//! big-endian.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use super::open::wal_path;
use crate::{OpenError, limits};

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
const MAGIC: u32 = 0x377f_0682;
const VERSION: u32 = 3_007_000;
const PAGE_BYTES: [usize; 8] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];

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
    Err(OpenError::LogDamaged { path: log, place })
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
            let ends = frame.commit() != 0 || frame.may_have_committed(sum, format.order);
            break Before { ends, sums: [frame.sum(), right] };
        }
        sum = right;
    };
    while let Some(frame) = frames.next(log)? {
        if frame.salts() == format.salts && before.ends && before.is_of(&frame, format.order) {
            return Ok(Some(Damage::Frame(number)));
        }
        before = Before { ends: frame.commit() != 0, sums: [frame.sum(); 2] };
    }
    Ok(None)
}

/// What is known of the frame before another.
struct Before {
    /// It ends a transaction.
    ends: bool,
    /// Its checksum, as it says and as it should be: either may be damaged.
    sums: [Sum; 2],
}

impl Before {
    /// Whether this frame was written right behind it.
    fn is_of(&self, frame: &Frame<'_>, order: Order) -> bool {
        self.sums.iter().any(|sum| frame.sum_after(*sum, order) == frame.sum())
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
            let mut before = Before { ends: true, sums: first };
            for _ in 0..limits::LOG_HEADER_LOOKS {
                let Some(frame) = frames.next(log)? else { break };
                if frame.page() != 0 && before.is_of(&frame, order) {
                    return Ok(true);
                }
                before.sums = [frame.sum(); 2];
            }
        }
    }
    Ok(false)
}

/// What a good header says.
struct Format {
    order: Order,
    page_bytes: usize,
    salts: [u8; 8],
    sum: Sum,
}

impl Format {
    fn read(header: &[u8; HEADER_BYTES]) -> Option<Self> {
        let magic = word(header, 0);
        let order = if magic & 1 == 0 { Order::Little } else { Order::Big };
        let sum = Sum::default().over(&header[..24], order);
        let page_bytes = usize::try_from(word(header, 8)).ok()?;
        let is_good = magic & !1 == MAGIC
            && word(header, 4) == VERSION
            && PAGE_BYTES.contains(&page_bytes)
            && sum_at(header, 24) == sum;
        is_good.then(|| Self { order, page_bytes, salts: eight(header, 16), sum })
    }
}

/// One frame after another, in the room of one.
struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    fn new(page_bytes: usize) -> Self {
        Self { bytes: vec![0; FRAME_HEADER_BYTES + page_bytes] }
    }

    /// Nothing at the end of the log, or when the rest is too short for a frame.
    fn next(&mut self, log: &mut impl Read) -> io::Result<Option<Frame<'_>>> {
        Ok(fill(log, &mut self.bytes)?.then_some(Frame(&self.bytes)))
    }
}

struct Frame<'a>(&'a [u8]);

impl Frame<'_> {
    fn page(&self) -> u32 {
        word(self.0, 0)
    }

    /// Pages of the database after the transaction that ends here; zero when none does.
    fn commit(&self) -> u32 {
        word(self.0, 4)
    }

    fn salts(&self) -> [u8; 8] {
        eight(self.0, 8)
    }

    fn sum(&self) -> Sum {
        sum_at(self.0, 16)
    }

    /// What its checksum is behind one with that checksum.
    fn sum_after(&self, before: Sum, order: Order) -> Sum {
        let (header, page) = self.0.split_at(FRAME_HEADER_BYTES);
        before.over(&header[..8], order).over(page, order)
    }

    /// Whether its checksum is right if it ended a transaction, and one byte of that was erased.
    fn may_have_committed(&self, before: Sum, order: Order) -> bool {
        let page = &self.0[FRAME_HEADER_BYTES..];
        let bytes = (0..4).flat_map(|place| (1..=u8::MAX).map(move |byte| (place, byte)));
        bytes.into_iter().any(|(place, byte)| {
            let mut start = eight(self.0, 0);
            start[4 + place] = byte;
            before.over(&start, order).over(page, order) == self.sum()
        })
    }
}

/// How the bytes of a word are taken when they are summed up.
#[derive(Debug, Clone, Copy)]
enum Order {
    Little,
    Big,
}

/// The checksum of everything so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum(u32, u32);

impl Sum {
    fn over(self, bytes: &[u8], order: Order) -> Self {
        let (Self(mut one, mut two), mut words) = (self, bytes.as_chunks::<4>().0.iter());
        let number = |bytes: &[u8; 4]| match order {
            Order::Little => u32::from_le_bytes(*bytes),
            Order::Big => u32::from_be_bytes(*bytes),
        };
        while let (Some(first), Some(second)) = (words.next(), words.next()) {
            one = one.wrapping_add(number(first)).wrapping_add(two);
            two = two.wrapping_add(number(second)).wrapping_add(one);
        }
        Self(one, two)
    }
}

fn sum_at(bytes: &[u8], at: usize) -> Sum {
    Sum(word(bytes, at), word(bytes, at + 4))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(word)
}

fn eight(bytes: &[u8], at: usize) -> [u8; 8] {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    eight
}

/// Whether there was enough to fill it.
fn fill(log: &mut impl Read, into: &mut [u8]) -> io::Result<bool> {
    match log.read_exact(into) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

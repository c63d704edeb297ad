//! The format of a log (`-wal`): 32 bytes of header, then for every page 24 bytes and the page;
//! numbers are big-endian.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;

pub(super) const HEADER_BYTES: usize = 32;
pub(super) const FRAME_HEADER_BYTES: usize = 24;
pub(super) const PAGE_BYTES: [usize; 8] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];
const MAGIC: u32 = 0x377f_0682;
const VERSION: u32 = 3_007_000;

/// What a good header says.
pub(super) struct Format {
    pub(super) order: Order,
    pub(super) page_bytes: usize,
    /// Which round of the log it is: a log that is written over from its start is the next one.
    pub(super) round: u32,
    pub(super) salts: [u8; 8],
    pub(super) sum: Sum,
}

impl Format {
    pub(super) fn read(header: &[u8; HEADER_BYTES]) -> Option<Self> {
        let magic = word(header, 0);
        let order = if magic & 1 == 0 { Order::Little } else { Order::Big };
        let sum = Sum::default().over(&header[..24], order);
        let page_bytes = usize::try_from(word(header, 8)).ok()?;
        let is_good = magic & !1 == MAGIC
            && word(header, 4) == VERSION
            && PAGE_BYTES.contains(&page_bytes)
            && sum_at(header, 24) == sum;
        let (round, salts) = (word(header, 12), eight(header, 16));
        is_good.then_some(Self { order, page_bytes, round, salts, sum })
    }
}

/// One frame after another, in the room of one.
pub(super) struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    pub(super) fn new(page_bytes: usize) -> Self {
        Self { bytes: vec![0; FRAME_HEADER_BYTES + page_bytes] }
    }

    /// Nothing at the end of the log, or when the rest is too short for a frame.
    pub(super) fn next(&mut self, log: &mut impl Read) -> io::Result<Option<Frame<'_>>> {
        Ok(fill(log, &mut self.bytes)?.then_some(Frame(&self.bytes)))
    }
}

pub(super) struct Frame<'a>(&'a [u8]);

impl Frame<'_> {
    pub(super) fn page(&self) -> u32 {
        word(self.0, 0)
    }

    /// Pages of the database after the transaction that ends here; zero when none does.
    pub(super) fn commit(&self) -> u32 {
        word(self.0, 4)
    }

    pub(super) fn salts(&self) -> [u8; 8] {
        eight(self.0, 8)
    }

    pub(super) fn sum(&self) -> Sum {
        sum_at(self.0, 16)
    }

    /// What its checksum is behind one with that checksum.
    pub(super) fn sum_after(&self, before: Sum, order: Order) -> Sum {
        let (header, page) = self.0.split_at(FRAME_HEADER_BYTES);
        before.over(&header[..8], order).over(page, order)
    }

    /// Whether its checksum is right if it ended a transaction, and one byte of that was erased.
    pub(super) fn may_have_committed(&self, before: Sum, order: Order) -> bool {
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
pub(super) enum Order {
    Little,
    Big,
}

/// The checksum of everything so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sum(pub(super) u32, pub(super) u32);

impl Sum {
    pub(super) fn over(self, bytes: &[u8], order: Order) -> Self {
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

pub(super) fn sum_at(bytes: &[u8], at: usize) -> Sum {
    Sum(word(bytes, at), word(bytes, at + 4))
}

pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(word)
}

pub(super) fn eight(bytes: &[u8], at: usize) -> [u8; 8] {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    eight
}

/// Whether there was enough to fill it.
pub(super) fn fill(log: &mut impl Read, into: &mut [u8]) -> io::Result<bool> {
    match log.read_exact(into) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// What is in a log, up to its last commit.
pub(super) struct Contents {
    pub(super) format: Format,
    /// How many frames there are up to there.
    pub(super) frames: u32,
    /// Pages of the database that are in it.
    pub(super) pages: BTreeSet<u32>,
    /// The checksum of the frame that was asked for, if it is there.
    pub(super) asked: Option<Sum>,
}

/// Frames of a log that are known to be committed.
pub(super) struct Committed {
    pub(super) page_bytes: usize,
    /// Pages of the database after them.
    pub(super) pages: u32,
    /// The last frame of each page, counted from zero.
    pub(super) last_of: BTreeMap<u32, u32>,
}

/// Where frames begin.
pub(super) fn frame_offset(number: u32, page_bytes: usize) -> u64 {
    HEADER_BYTES as u64 + u64::from(number) * (FRAME_HEADER_BYTES + page_bytes) as u64
}

/// Reads the heads of so many frames, and none of their pages: most are in a log more than once.
/// Nothing when the log has no good header.
pub(super) fn committed(log: &File, frames: u32) -> io::Result<Option<Committed>> {
    let mut header = [0; HEADER_BYTES];
    log.read_exact_at(&mut header, 0)?;
    let Some(format) = Format::read(&header) else { return Ok(None) };
    let page_bytes = format.page_bytes;
    let mut found = Committed { page_bytes, pages: 0, last_of: BTreeMap::new() };
    let mut head = [0; FRAME_HEADER_BYTES];
    for number in 0..frames {
        log.read_exact_at(&mut head, frame_offset(number, page_bytes))?;
        let (page, pages_after) = (word(&head, 0), word(&head, 4));
        found.last_of.insert(page, number);
        found.pages = if pages_after == 0 { found.pages } else { pages_after };
    }
    Ok(Some(found))
}

/// As much of a log as SQLite would take, and the checksum of the frame that is asked for. Nothing
/// when the log has no good header.
pub(super) fn contents(log: &mut impl Read, asked: u32) -> io::Result<Option<Contents>> {
    let mut header = [0; HEADER_BYTES];
    if !fill(log, &mut header)? {
        return Ok(None);
    }
    let Some(format) = Format::read(&header) else { return Ok(None) };
    let (mut frames, mut sum) = (Frames::new(format.page_bytes), format.sum);
    let (mut number, mut open) = (0, Vec::new());
    let mut found = Contents { format, frames: 0, pages: BTreeSet::new(), asked: None };
    while let Some(frame) = frames.next(log)? {
        sum = frame.sum_after(sum, found.format.order);
        let is_good = frame.page() != 0 && frame.salts() == found.format.salts;
        if !is_good || frame.sum() != sum {
            break;
        }
        number += 1;
        found.asked = if number == asked { Some(sum) } else { found.asked };
        open.push(frame.page());
        if frame.commit() != 0 {
            found.frames = number;
            found.pages.extend(open.drain(..));
        }
    }
    Ok(Some(found))
}

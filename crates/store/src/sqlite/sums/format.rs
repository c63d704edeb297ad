//! How the sums and the note are written: records and blocks, each with a checksum of its own.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use crate::sqlite::frames::{Order, PAGE_BYTES, Sum, eight, sum_at, word};

const MAGIC: [u8; 16] = *b"semel page sums\x01";
const BLOCK_BYTES: usize = 4096;
pub(super) const SUMS_PER_BLOCK: u32 = 511;
const _: () = assert!((SUMS_PER_BLOCK as usize + 1) * 8 == BLOCK_BYTES);
const NOTE_AT: u64 = 512;
/// A record that is written at once: what it says, and its checksum.
const SAID_BYTES: usize = 32;
const RECORD_BYTES: usize = SAID_BYTES + 8;

/// The file.
pub(super) struct SumsFile(pub(super) File);

/// What is known of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Note {
    /// There is none: the file was closed in order.
    Closed,
    /// It goes at least so far.
    Open(End),
    /// All of it up to there is in the file, so that it may be written over, or removed.
    Copied(End),
}

/// Where a log ended. Without frames nothing is known of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct End {
    pub(super) round: u32,
    pub(super) salts: [u8; 8],
    pub(super) frames: u32,
    pub(super) sum: Sum,
}

impl SumsFile {
    /// The size of a page and how many there are; nothing when it cannot be read.
    pub(super) fn head(&self) -> io::Result<Option<(usize, u32)>> {
        let Some(said) = self.record(0)? else { return Ok(None) };
        let (page_bytes, pages) = (word(&said, 16) as usize, word(&said, 20));
        let is_ours = said[..16] == MAGIC && (pages == 0 || PAGE_BYTES.contains(&page_bytes));
        Ok(is_ours.then_some((page_bytes, pages)))
    }

    pub(super) fn write_head(&self, page_bytes: usize, pages: u32) -> io::Result<()> {
        let mut said = [0; SAID_BYTES];
        said[..16].copy_from_slice(&MAGIC);
        let page_bytes = u32::try_from(page_bytes).unwrap_or(0);
        said[16..20].copy_from_slice(&page_bytes.to_be_bytes());
        said[20..24].copy_from_slice(&pages.to_be_bytes());
        self.write_record(0, &said)
    }

    pub(super) fn note(&self) -> io::Result<Option<Note>> {
        Ok(self.record(NOTE_AT)?.and_then(|said| Note::read(&said)))
    }

    pub(super) fn write_note(&self, note: Note) -> io::Result<()> {
        self.write_record(NOTE_AT, &note.written())
    }

    fn record(&self, at: u64) -> io::Result<Option<[u8; SAID_BYTES]>> {
        let mut record = [0; RECORD_BYTES];
        if read_up_to(&self.0, &mut record, at)? < RECORD_BYTES {
            return Ok(None);
        }
        let mut said = [0; SAID_BYTES];
        said.copy_from_slice(&record[..SAID_BYTES]);
        let is_good = sum_at(&record, SAID_BYTES) == checksum(at, &said);
        Ok(is_good.then_some(said))
    }

    /// At once, and within one sector.
    fn write_record(&self, at: u64, said: &[u8; SAID_BYTES]) -> io::Result<()> {
        let mut record = [0; RECORD_BYTES];
        record[..SAID_BYTES].copy_from_slice(said);
        record[SAID_BYTES..].copy_from_slice(&bytes_of(checksum(at, said)));
        self.0.write_all_at(&record, at)
    }

    /// Nothing when it cannot be read. What was never written holds no sum.
    pub(super) fn block(&self, number: u32) -> io::Result<Option<Block>> {
        let mut block = Block::empty();
        let there = read_up_to(&self.0, &mut *block.0, Block::at(number))?;
        let is_good =
            there == 0 || (there == BLOCK_BYTES && block.checksum() == block.said(number));
        Ok(is_good.then_some(block))
    }

    pub(super) fn write_block(&self, number: u32, block: &Block) -> io::Result<()> {
        let mut bytes = block.0.clone();
        bytes[BLOCK_BYTES - 8..].copy_from_slice(&bytes_of(block.said(number)));
        self.0.write_all_at(&*bytes, Block::at(number))
    }
}

impl Note {
    fn written(self) -> [u8; SAID_BYTES] {
        let (kind, end) = match self {
            Self::Closed => (1_u32, End::default()),
            Self::Open(end) => (2, end),
            Self::Copied(end) => (3, end),
        };
        let mut said = [0; SAID_BYTES];
        said[..4].copy_from_slice(&kind.to_be_bytes());
        said[4..8].copy_from_slice(&end.round.to_be_bytes());
        said[8..16].copy_from_slice(&end.salts);
        said[16..20].copy_from_slice(&end.frames.to_be_bytes());
        said[24..].copy_from_slice(&bytes_of(end.sum));
        said
    }

    fn read(said: &[u8; SAID_BYTES]) -> Option<Self> {
        let (round, frames) = (word(said, 4), word(said, 16));
        let end = End { round, salts: eight(said, 8), frames, sum: sum_at(said, 24) };
        match word(said, 0) {
            1 => Some(Self::Closed),
            2 => Some(Self::Open(end)),
            3 => Some(Self::Copied(end)),
            _ => None,
        }
    }
}

/// The sums of some pages.
pub(super) struct Block(Box<[u8; BLOCK_BYTES]>);

impl Block {
    pub(super) fn empty() -> Self {
        Self(Box::new([0; BLOCK_BYTES]))
    }

    fn at(number: u32) -> u64 {
        (u64::from(number) + 1) * BLOCK_BYTES as u64
    }

    /// Zero when none is known.
    pub(super) fn sum(&self, page: u32) -> u64 {
        u64::from_be_bytes(eight(&*self.0, place_of(page)))
    }

    pub(super) fn set(&mut self, page: u32, sum: u64) {
        let place = place_of(page);
        self.0[place..place + 8].copy_from_slice(&sum.to_be_bytes());
    }

    fn checksum(&self) -> Sum {
        sum_at(&*self.0, BLOCK_BYTES - 8)
    }

    /// What its checksum should be.
    fn said(&self, number: u32) -> Sum {
        checksum(Block::at(number), &self.0[..BLOCK_BYTES - 8])
    }
}

/// Pages are counted from one.
pub(super) fn block_of(page: u32) -> u32 {
    page.saturating_sub(1) / SUMS_PER_BLOCK
}

pub(super) fn first_of(block: u32) -> u32 {
    block * SUMS_PER_BLOCK + 1
}

fn place_of(page: u32) -> usize {
    (page.saturating_sub(1) % SUMS_PER_BLOCK) as usize * 8
}

pub(super) fn offset_of(page: u32, page_bytes: usize) -> u64 {
    u64::from(page - 1) * page_bytes as u64
}

/// Never zero.
pub(super) fn page_sum(page: u32, content: &[u8]) -> u64 {
    let Sum(one, two) = Sum(page, page).over(content, Order::Little);
    (u64::from(one) << 32 | u64::from(two)).max(1)
}

/// Of what stands there: what was moved is not taken for something else.
fn checksum(at: u64, said: &[u8]) -> Sum {
    let at = u32::try_from(at / NOTE_AT).unwrap_or(u32::MAX);
    Sum(at.wrapping_add(1), u32::MAX).over(said, Order::Little)
}

fn bytes_of(Sum(one, two): Sum) -> [u8; 8] {
    (u64::from(one) << 32 | u64::from(two)).to_be_bytes()
}

/// As the file itself says; nothing when it is none.
pub(super) fn page_bytes_of(database: &File) -> io::Result<Option<usize>> {
    let mut head = [0; 100];
    if read_up_to(database, &mut head, 0)? < head.len() {
        return Ok(None);
    }
    let said = usize::from(u16::from_be_bytes([head[16], head[17]]));
    let page_bytes = if said == 1 { 1 << 16 } else { said };
    Ok(PAGE_BYTES.contains(&page_bytes).then_some(page_bytes))
}

/// How much of it was there.
pub(super) fn read_up_to(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    let mut there = 0;
    while there < into.len() {
        match file.read_at(&mut into[there..], at + there as u64) {
            Ok(0) => break,
            Ok(more) => there += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(there)
}

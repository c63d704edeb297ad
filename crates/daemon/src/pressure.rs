//! How full the outbox and its disk are (mesh.md §6, "Size"). What is accepted is only counted; who
//! measures is woken now and then, and accepting never waits for it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use semel_core::status;
use tokio::sync::Notify;

use crate::limits::{MEASURE_BYTES_MAX, MEASURE_PARTS, ROW_BYTES};

status! {
    /// How full the outbox is.
    pub enum Pressure {
        /// There is room.
        Low = "low",
        /// Over 80 %.
        High = "high",
        /// Over 95 %: no sends are accepted.
        Full = "full",
        /// It has all that it may have, or the disk is nearly full: no new streams either.
        Degraded = "degraded",
    }
}

/// How much room there is for an outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that it may have.
    pub bytes_max: u64,
    /// Bytes of its disk that are left alone, so that what arrives can still be stored.
    pub reserved_bytes: u64,
}

impl Pressure {
    /// What so many bytes in use and so many free ones on the disk mean.
    pub fn of(bytes: u64, disk_free: u64, room: Room) -> Self {
        match bytes.saturating_mul(100) / room.bytes_max.max(1) {
            _ if disk_free < room.reserved_bytes => Self::Degraded,
            0..80 => Self::Low,
            80..95 => Self::High,
            95..100 => Self::Full,
            _ => Self::Degraded,
        }
    }

    /// Whether a new send is accepted.
    pub const fn accepts(self) -> bool {
        match self {
            Self::Low | Self::High => true,
            Self::Full | Self::Degraded => false,
        }
    }
}

/// What was measured last, and what was accepted since.
pub(crate) struct Gauge {
    level: AtomicU8,
    bytes_max: AtomicU64,
    reserved_bytes: AtomicU64,
    accepted_since: AtomicU64,
    outbox_pct: AtomicU64,
    disk_pct: AtomicU64,
    disk_free: AtomicU64,
    /// It is time to measure again.
    pub(crate) wake: Notify,
}

impl Gauge {
    pub(crate) fn new(room: Room) -> Self {
        Self {
            level: AtomicU8::new(0),
            bytes_max: AtomicU64::new(room.bytes_max),
            reserved_bytes: AtomicU64::new(room.reserved_bytes),
            accepted_since: AtomicU64::new(0),
            outbox_pct: AtomicU64::new(0),
            disk_pct: AtomicU64::new(0),
            disk_free: AtomicU64::new(u64::MAX),
            wake: Notify::new(),
        }
    }

    pub(crate) fn room(&self) -> Room {
        Room {
            bytes_max: self.bytes_max.load(Ordering::Relaxed),
            reserved_bytes: self.reserved_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn set_room(&self, room: Room) {
        self.bytes_max.store(room.bytes_max, Ordering::Relaxed);
        self.reserved_bytes.store(room.reserved_bytes, Ordering::Relaxed);
        self.wake.notify_one();
    }

    pub(crate) fn level(&self) -> Pressure {
        let level = usize::from(self.level.load(Ordering::Relaxed));
        Pressure::ALL.get(level).copied().unwrap_or(Pressure::Low)
    }

    /// Of the outbox and of its disk, when they were measured last.
    pub(crate) fn percent(&self) -> (u64, u64) {
        (self.outbox_pct.load(Ordering::Relaxed), self.disk_pct.load(Ordering::Relaxed))
    }

    /// So many bytes are in use, and of the disk so many are free of so many.
    pub(crate) fn measured(&self, bytes: u64, disk_free: u64, disk: u64) -> Pressure {
        let room = self.room();
        let percent = |part: u64, of: u64| part.saturating_mul(100) / of.max(1);
        self.outbox_pct.store(percent(bytes, room.bytes_max), Ordering::Relaxed);
        self.disk_pct.store(percent(disk.saturating_sub(disk_free), disk), Ordering::Relaxed);
        self.disk_free.store(disk_free, Ordering::Relaxed);
        let pressure = Pressure::of(bytes, disk_free, room);
        self.set_level(pressure);
        pressure
    }

    /// Bytes of its disk that were free when they were measured last.
    pub(crate) fn disk_free(&self) -> u64 {
        self.disk_free.load(Ordering::Relaxed)
    }

    fn set_level(&self, pressure: Pressure) {
        let level = Pressure::ALL.iter().position(|level| *level == pressure).unwrap_or(0);
        self.level.store(u8::try_from(level).unwrap_or(0), Ordering::Relaxed);
    }

    /// A row with such a body was stored.
    pub(crate) fn accepted(&self, body_bytes: usize) {
        let bytes = (body_bytes as u64).saturating_add(ROW_BYTES);
        let since = self.accepted_since.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let Room { bytes_max, reserved_bytes } = self.room();
        // Where nothing is reserved, the disk itself says when it is full.
        let of_reserved = if reserved_bytes == 0 { u64::MAX } else { reserved_bytes / 8 };
        if since >= (bytes_max / MEASURE_PARTS).min(of_reserved).min(MEASURE_BYTES_MAX) {
            self.accepted_since.store(0, Ordering::Relaxed);
            self.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_levels_begin_where_the_document_says() {
        let room = Room { bytes_max: 1000, reserved_bytes: 50 };
        let of = |bytes, disk_free| Pressure::of(bytes, disk_free, room);
        assert_eq!([of(799, 50), of(800, 50)], [Pressure::Low, Pressure::High]);
        assert_eq!([of(949, 50), of(950, 50)], [Pressure::High, Pressure::Full]);
        assert_eq!([of(999, 50), of(1000, 50)], [Pressure::Full, Pressure::Degraded]);
        assert_eq!(of(0, 49), Pressure::Degraded, "what is reserved is left alone");
    }
}

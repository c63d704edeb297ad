//! Bodies that are being read: so many of each door at once, and so many bytes of them. Who sends
//! one slowly holds one of these places and none of the calls', and those of the other door hold
//! nothing of this one's.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::limits::{READING_BYTES_MAX, READING_MAX};

/// The places of one door.
pub(crate) struct Readers {
    bodies: Semaphore,
    bytes: Semaphore,
}

impl Readers {
    pub(crate) fn new() -> Self {
        Self { bodies: Semaphore::new(READING_MAX), bytes: Semaphore::new(READING_BYTES_MAX) }
    }

    /// A place for one body; none when all are taken.
    pub(crate) fn begin(&self) -> Option<Reading<'_>> {
        let body = self.bodies.try_acquire().ok()?;
        Some(Reading { readers: self, _body: body, bytes: None })
    }
}

/// A body that is being read. Its bytes are counted as they arrive, and not as they are announced:
/// who announces much and sends nothing has nothing.
pub(crate) struct Reading<'a> {
    readers: &'a Readers,
    _body: SemaphorePermit<'a>,
    bytes: Option<SemaphorePermit<'a>>,
}

impl Reading<'_> {
    /// Whether there is room for so many more bytes.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Ok(more) = self.readers.bytes.try_acquire_many(bytes) else { return false };
        match &mut self.bytes {
            Some(held) => held.merge(more),
            None => self.bytes = Some(more),
        }
        true
    }

    /// What was read is thrown away.
    pub(crate) fn forget(&mut self) {
        self.bytes = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_and_their_bytes_are_bounded_and_given_back() {
        let readers = Readers::new();
        let mut large = readers.begin().expect("nobody reads");
        assert!(large.grow(READING_BYTES_MAX - 1) && large.grow(1) && !large.grow(1));
        let others: Vec<_> = (1..READING_MAX).map_while(|_| readers.begin()).collect();
        assert_eq!(others.len(), READING_MAX - 1);
        assert!(readers.begin().is_none());
        large.forget();
        drop(others);
        let mut small = readers.begin().expect("they are gone");
        assert!(small.grow(READING_BYTES_MAX));
    }
}

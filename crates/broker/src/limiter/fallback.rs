//! Who decides while the limiter's server is away (`limiter_fallback = local | closed`).

use std::num::NonZeroU32;
use std::sync::Arc;

use semel_core::clock::Clock;
use semel_core::status;

use super::memory::Memory;
use super::{LimitRequest, Verdict};
use crate::limits::{LIMITER_CLOSED_RETRY_AFTER, LIMITER_KEYS_MAX};

status! {
    /// What the broker does while the limiter's server is away.
    pub enum FallbackMode {
        /// This process limits by itself, at its share of the limit.
        Local = "local",
        /// Nothing is let through.
        Closed = "closed",
    }
}

/// What the broker does while the limiter's server is away.
#[derive(Debug, Clone, Copy)]
pub struct Fallback {
    /// Local or closed.
    pub mode: FallbackMode,
    /// How many brokers share a limit.
    pub brokers: NonZeroU32,
}

pub(super) struct StandIn {
    fallback: Fallback,
    /// Knows nothing of what the server counted before, nor the server of what is counted here: an
    /// id that is retried over the edge of an outage costs one unit on either side.
    memory: Memory,
}

impl StandIn {
    pub(super) fn new(fallback: Fallback, clock: Arc<dyn Clock>) -> Self {
        Self { fallback, memory: Memory::new(clock, LIMITER_KEYS_MAX) }
    }

    pub(super) fn take(&self, request: &LimitRequest<'_>) -> Verdict {
        match self.fallback.mode {
            FallbackMode::Local => self.take_asked(request),
            FallbackMode::Closed => Verdict::Denied { retry_after: LIMITER_CLOSED_RETRY_AFTER },
        }
    }

    /// Of what is asked this process lets its share through in either mode.
    pub(super) fn take_asked(&self, request: &LimitRequest<'_>) -> Verdict {
        let limit = share(request.limit, self.fallback.brokers);
        self.memory.take(&LimitRequest { limit, ..*request })
    }
}

/// At least one, or a small limit would close the mesh; but none of none.
fn share(limit: u32, brokers: NonZeroU32) -> u32 {
    (limit / brokers).max(1).min(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_more_than_the_whole() {
        for (limit, brokers, expected) in [
            (6000, 1, 6000),
            (6000, 4, 1500),
            (7, 2, 3),
            (3, 4, 1),
            (1, 9, 1),
            (0, 1, 0),
            (0, 4, 0),
        ] {
            assert_eq!(share(limit, NonZeroU32::new(brokers).unwrap()), expected);
        }
    }
}

//! Every limit of the broker, in one place.

use std::time::Duration;

/// Sends that share one accept transaction at the most.
pub const BATCH_MAX: usize = 512;

/// A day, as retention counts.
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Dedupe rows live this much longer than is advertised, so that a row that is still allowed to be
/// sent is always strictly inside the window (mesh.md §6).
pub const DEDUPE_GRACE: Duration = DAY;

/// How often a claim goes round when the row it lost to vanishes.
pub const CLAIM_ROUNDS_MAX: u32 = 4;

/// Deliveries read at a time.
pub const DELIVERIES_MAX: i64 = 256;

/// Ids that one `resolve` asks for.
pub const RESOLVE_MAX: usize = 500;

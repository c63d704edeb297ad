//! Every limit of the core, in one place.

use std::time::Duration;

/// Bytes of a message body, before any broker has told a smaller limit.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// Bytes of a JSON document that describes an envelope: a body in base64 and room for its meta.
pub const ENVELOPE_JSON_BYTES_MAX: usize = 2 << 20;

/// Bytes of a meta object in canonical form (mesh.md §3).
pub const META_BYTES_MAX: usize = 16 << 10;

/// Levels of nesting inside meta; the meta object itself is the first.
pub const META_DEPTH_MAX: usize = 64;

/// Bytes of a destination's name and of the id that a reply names.
pub const REF_BYTES_MAX: usize = 255;

/// Characters of a client message id (mesh.md §4).
pub const CLIENT_MESSAGE_ID_CHARS_MAX: usize = 255;

/// The largest integer that every JSON reader holds exactly: 2^53 − 1.
pub const INTEGER_MAX: i64 = (1 << 53) - 1;

/// First and largest ceiling of the time between two attempts.
pub const BACKOFF_BASE_MS: u64 = 250;
/// See [`BACKOFF_BASE_MS`].
pub const BACKOFF_CAP_MS: u64 = 60_000;

/// Shortest dedupe retention that a daemon accepts from a broker.
pub const DEDUPE_RETENTION_DAYS_MIN: u32 = 3;

/// How far the calendar may part from the monotonic clock between two looks before it has moved:
/// more than any correction that is made in passing, less than anything is kept for.
pub const CLOCK_MOVE_MAX: Duration = Duration::from_secs(60);

/// How long after a move, and after the start, nothing is swept.
pub const CLOCK_SETTLES_AFTER: Duration = Duration::from_secs(10 * 60);

/// A move of so much is a leap: longer than a night's sleep, and than what is kept for good
/// measure.
pub const CLOCK_LEAP_MIN: Duration = Duration::from_secs(24 * 60 * 60);

/// How long a leap that no other clock confirms has to last.
pub const CLOCK_SETTLES_ALONE: Duration = Duration::from_secs(24 * 60 * 60);

/// How far ahead of the present a row may seem to be before it is taken for one of a clock that was
/// wrong: clocks differ.
pub const ENQUEUED_AHEAD_MAX: Duration = Duration::from_secs(60 * 60);

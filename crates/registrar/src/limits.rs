//! Every limit of the registrar, in one place.

use std::time::Duration;

/// Bytes of a domain's name.
pub const DOMAIN_BYTES_MAX: usize = 64;

/// Bytes of an operation, an owner binding, a run and an attempt.
pub const NAME_BYTES_MAX: usize = 255;

/// Bytes of a canonical target.
pub const TARGET_BYTES_MAX: usize = 1024;

/// How long a request may stay admissible.
pub const TTL_SECONDS_MAX: u64 = 30 * 24 * 60 * 60;

/// How far ahead of ours the clock of who made a request may be.
pub const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(5 * 60);

/// Bytes of a request's body.
pub const BODY_BYTES_MAX: usize = 64 << 10;

/// Levels of nesting in a body.
pub const BODY_DEPTH_MAX: usize = 8;

/// How long a body may take to arrive.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a request waits for its answer; what was begun goes on.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Requests under way at once.
pub const REQUESTS_MAX: usize = 512;

/// Grants on one page of a list.
pub const PAGE_MAX: u32 = 500;

/// Grants on a page when the query does not say.
pub const PAGE_DEFAULT: u32 = 100;

/// How often an attempt looks again whether an earlier one of another process has ended, and the
/// pause before each look: about a second in all. Waiting admits nothing.
pub const EARLIER_LOOKS_MAX: u32 = 40;
/// See [`EARLIER_LOOKS_MAX`].
pub const EARLIER_PAUSE: Duration = Duration::from_millis(25);

/// Attempts that one call of `resolve` closes.
pub const RESOLVE_ATTEMPTS_MAX: i64 = 10_000;

/// Runs of a registration that met a unique key between its look and its insert.
pub const CLAIM_ROUNDS_MAX: u32 = 8;

/// Batches of whole attempts on PostgreSQL under way at once: one is worked on while the other
/// waits for the disk. More of them would be smaller.
pub const REGISTERS_AT_ONCE: usize = 2;
/// Of attempts that somebody is in the way of: looks.
pub const LOOKS_AT_ONCE: usize = 1;
/// Transactions that write down that attempts begin.
pub const STARTS_AT_ONCE: usize = 1;
/// Transactions that consume.
pub const CONSUMES_AT_ONCE: usize = 1;
/// Transactions that write down how attempts ended that have written nothing else.
pub const ENDS_AT_ONCE: usize = 1;

/// How long the ledgers keep their lines when nobody says otherwise.
pub const RETENTION_DAYS_DEFAULT: u32 = 365;
/// The shortest: whatever is under way has its line. The table `sweep` says so, too.
pub const RETENTION_DAYS_MIN: u32 = 1;
/// The longest.
pub const RETENTION_DAYS_MAX: u32 = 36_500;

/// Lines that one step of a sweep looks at.
pub const SWEEP_LINES_MAX: i64 = 1000;
/// Steps of one sweep for each ledger; what is left is for the next one.
pub const SWEEP_STEPS_MAX: u32 = 100_000;
/// The same when somebody waits for it.
pub const SWEEP_STEPS_ASKED_MAX: u32 = 100;

/// The first night, and the time between nights.
pub const SWEEP_DELAY: Duration = Duration::from_secs(10 * 60);
/// See [`SWEEP_DELAY`].
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Bytes of the note that a verifier or an operator leaves.
pub const NOTE_BYTES_MAX: usize = 1024;

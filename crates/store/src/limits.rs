//! Every limit of the stores, in one place.

use std::time::Duration;

/// Writes that may wait for the SQLite writer; one more waits outside.
pub const WRITER_QUEUE_MAX: usize = 4096;

/// Writes that share one commit at the most.
pub const GROUP_MAX: usize = 512;

/// Rows after which a group is committed, whoever else waits: a write may change thousands.
pub const GROUP_ROWS: u64 = 2000;

/// How long a write that rides along waits for company before it is committed alone.
pub const RIDE_WAIT: Duration = Duration::from_millis(50);

/// How long much work that nobody waits for waits for a commit of somebody who does.
pub const MUCH_WAITS: Duration = Duration::from_millis(1);

/// Pages of the log after which it is copied into the file, to be written over from its start.
pub const LOG_PAGES: u32 = 1000;

/// Pages after which that is done after every commit: nobody had time for it before.
pub const LOG_PAGES_MAX: u32 = 8 * LOG_PAGES;

/// Commits between two looks at how long the log is.
pub const LOG_LOOK_INTERVAL: u64 = 16;

/// Commits after which a log gets its full length at once.
pub const LOG_LENGTHENED_AFTER: u64 = 128;

/// A disk has room for a long log if it has this many times as much.
pub const LOG_ROOM: u64 = 64;

/// Bytes of a log that are read at once before it is opened.
pub const LOG_READ_BYTES: usize = 64 << 10;

/// Bytes of a file that are compared with their sums while it is opened; larger ones are compared
/// once it is in use.
pub const SUMS_COMPARED_AT_ONCE: u64 = 64 << 20;

/// How often a file that others may have open is compared before a fault is none.
pub const SUMS_LOOKS: usize = 4;

/// Frames that are looked for behind a header that is damaged.
pub const LOG_HEADER_LOOKS: usize = 64;

/// Rows that one write may change.
pub const WRITE_ROWS_MAX: u64 = 100_000;

/// Bytes of one value or row in SQLite.
pub const VALUE_BYTES_MAX: i32 = 64 << 20;

/// How often the writer lets others run before it sleeps: callers that were just answered tend to
/// come back within microseconds, and waking a sleeping thread costs more than they need.
pub const YIELDS_BEFORE_SLEEP: u32 = 100;

/// How often a caller who is the only one looks for its answer before it sleeps.
pub const YIELDS_WHEN_ALONE: u32 = 800;

/// After so many looks in vain the intervals between looks grow no more: two to this power.
pub const LOOKS_IN_VAIN_MAX: u32 = 6;

/// Reader connections of one SQLite file.
pub const READERS: usize = 2;

/// Reads that may wait for a reader.
pub const READER_QUEUE_MAX: usize = 1024;

/// Pages that a SQLite writer may keep in memory. A transaction that changes more of them than
/// there is room for reads each one again, and writes it to the log more than once: a message to a
/// thousand subscribers is on as many pages. What is never read takes none of it.
pub const CACHE_KIB: i64 = 16 << 10;

/// Prepared statements kept per SQLite connection.
pub const STATEMENT_CACHE: usize = 128;

/// How long SQLite waits for a lock that another process holds.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the last copy of a log into its file waits for readers of other processes.
pub const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Bytes that are read of a file of authorities, of certificates or of a key.
pub const PEM_BYTES_MAX: u64 = 16 << 20;

/// Connections of one PostgreSQL pool.
pub const POOL_MAX: usize = 16;

/// How long a caller waits for a pooled connection, and a connection for its server.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// One PostgreSQL statement, one wait for a lock, one pause inside a transaction: the server ends
/// what takes longer.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The wait for any answer of the server; after it, an unanswered COMMIT is of unknown outcome.
/// Longer than [`STATEMENT_TIMEOUT`], so that a server that lives gets to say so itself.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs of a transaction that a serialization failure or a deadlock undoes.
pub const TRANSACTION_RUNS_MAX: u32 = 8;

/// How often a transaction whose BEGIN the server refuses is begun.
pub const BEGIN_ROUNDS_MAX: u32 = 2;

/// Writes that wait for a transaction that they can share; one more waits outside.
pub const LANE_QUEUE_MAX: usize = 4096;

/// Writes that share one, unless what they do says otherwise.
pub const LANE_BATCH_MAX: usize = 64;

/// The pause before a lost listener connects again.
pub const LISTEN_RETRY: Duration = Duration::from_secs(1);

/// Notifications that may wait for their reader; more wait in the connection.
pub const LISTEN_QUEUE_MAX: usize = 1024;

/// Rows that are read at once when a whole table is.
pub(crate) const ROWS_PER_PAGE: u32 = 256;

/// Bad rows that are told in words; the rest is counted.
pub(crate) const COMPLAINTS_MAX: usize = 20;

/// Bytes of a backup that are copied at a time.
pub(crate) const COPY_BYTES: usize = 1 << 16;

//! Every limit of the local API, in one place. A part has its own for what it alone does.

use std::time::Duration;

/// Bytes of a request's body on the local API.
pub const BODY_BYTES_MAX: usize = 1 << 20;

/// Bytes of an answer of the local API; a list goes on under its cursor.
pub const RESPONSE_BYTES_MAX: usize = 10 << 20;

/// Bytes of a body that is too large, which are read and thrown away so that its sender hears why.
pub const DISCARD_BYTES_MAX: usize = 8 << 20;

/// How long a request's body may take to arrive.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Bodies of one door that are being read, and their bytes; one body always fits.
pub const READING_MAX: usize = 512;
/// See [`READING_MAX`].
pub const READING_BYTES_MAX: usize = 64 << 20;

/// How long a part may take to say how it is; whoever asks waits for the others, too.
pub const PART_HEALTH_MAX: Duration = Duration::from_secs(2);

/// Calls under way on the local API.
pub const CALLS_MAX: usize = 256;

/// Streams that may be open, of events and of files.
pub const STREAMS_MAX: usize = 32;

/// Calls that a TCP token may make at once, and per second in the long run.
pub const CALLS_BURST: u32 = 1000;
/// See [`CALLS_BURST`].
pub const CALLS_PER_SECOND: u32 = 100;

/// Connections to the socket of the local API: calls, streams, and some that idle.
pub const CONNECTIONS_MAX: usize = 1024;

/// Connections over TCP, with a token or without.
pub const TCP_CONNECTIONS_MAX: usize = 256;

/// Those of them, a quarter at the most, that have shown no valid token.
pub const STRANGERS_MAX: usize = 64;

/// How soon a connection over TCP must have asked for something.
pub const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a connection without a valid token may last.
pub const STRANGER_LIFE: Duration = Duration::from_secs(15);

/// What may be sent on it.
pub const STRANGER_BYTES_MAX: usize = 256 << 10;

/// One that came later than this is not closed to make room.
pub const STRANGER_GRACE: Duration = Duration::from_millis(500);

/// How long a request's head may take, and an idle connection stays.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of a request's head.
pub const HEAD_BYTES_MAX: usize = 64 << 10;

/// How long a reader may take nothing of what is written to it.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a stop waits for calls under way.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);

/// How soon accepting is tried again after it failed.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Rows of a page when nobody says, and at the most.
pub const PAGE_DEFAULT: i64 = 100;
/// See [`PAGE_DEFAULT`].
pub const PAGE_MAX: i64 = 500;

/// Rows that are read at a time while a page is put together: few while they are large.
pub const PAGE_ROWS_SMALL: i64 = 16;
/// See [`PAGE_ROWS_SMALL`].
pub const PAGE_ROWS_LARGE: i64 = 128;
/// Rows with fewer bytes than this on average are read many at a time.
pub const PAGE_ROW_BYTES: usize = 4 << 10;

/// Events that a stream reads at a time while they are large, and while they are small.
pub const STREAM_ROWS_SMALL: i64 = 8;
/// See [`STREAM_ROWS_SMALL`].
pub const STREAM_ROWS_LARGE: i64 = 128;

/// Bytes of a file, or of events, that a stream writes at once, unless one event alone has more.
pub const STREAM_PIECE_BYTES: usize = 64 << 10;

/// Pieces that wait for a slow reader.
pub const STREAM_BUFFER: usize = 2;

/// A stream without news says so this often.
pub const STREAM_KEEP_ALIVE: Duration = Duration::from_secs(15);

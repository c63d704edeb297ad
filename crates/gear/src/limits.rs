//! Every limit of the line protocol in one place.

/// Bytes of a line's document (jobs.md §11).
pub const DOCUMENT_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of a line: its number, its code, its document and the line's end.
pub const LINE_BYTES_MAX: usize = 20 + 1 + 64 + 1 + DOCUMENT_BYTES_MAX + 1;

/// Bytes of what is handed over on the private descriptor: it has to fit into a pipe that nobody
/// reads yet.
pub const HANDOVER_BYTES_MAX: usize = 48 * 1024;

/// The private descriptor.
pub const HANDOVER_PATH: &str = "/proc/self/fd/3";

/// Bytes of a line in a job's log; the host keeps no more either.
pub const REPORT_BYTES_MAX: usize = 16 << 10;

//! Every limit of the daemon, in one place. What `config.toml` may say is in
//! [`crate::config::RANGES`].

use std::time::Duration;

/// Bytes of a mesh's name: it is a folder's name on every host that joins.
pub const MESH_SLUG_BYTES_MAX: usize = 64;

/// Bytes of any of the small files in the daemon's folder.
pub const SMALL_FILE_BYTES_MAX: u64 = 256 << 10;

/// Bytes of a socket's path, without its closing zero: what the system's address holds.
pub const SOCKET_PATH_BYTES_MAX: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// Meshes that are listed of one host.
pub const MESHES_LISTED_MAX: usize = 1024;

/// Addresses of one broker that are tried.
pub const DIAL_ADDRESSES_MAX: usize = 8;

/// Bytes of a member's name, as the broker has it.
pub const MEMBER_NAME_BYTES_MAX: usize = 128;

/// For how long the token before the last is still accepted (daemon.md).
pub const TOKEN_GRACE: Duration = Duration::from_secs(60);

/// Bytes at which the log starts a new file.
pub const LOG_BYTES_MAX: u64 = 100_000_000;

/// Age at which the log starts a new file.
pub const LOG_AGE_MAX: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Earlier log files that are kept.
pub const LOG_EARLIER_MAX: u32 = 4;

/// Origins that may be allowed.
pub const ORIGINS_MAX: usize = 32;

/// Sends that may be unanswered on one connection (mesh.md §6).
pub const WINDOW: usize = 256;

/// New rows that are handed to the sender in memory; it reads the file for more.
pub const FRESH_MAX: usize = 4096;

/// And their bytes.
pub const FRESH_BYTES_MAX: usize = 4 << 20;

/// Changes of rows that may wait to be written down.
pub const MARKS_MAX: usize = 4 * WINDOW;

/// Changes of rows that share one transaction.
pub const MARKS_BATCH_MAX: usize = 512;

/// Messages that are made searchable in one transaction.
pub const INDEX_MAX: i64 = 1024;

/// How long new messages wait to be made searchable together. A search does not wait for it.
pub const INDEX_LINGER: Duration = Duration::from_millis(500);

/// So many marks are written at once, and are worth a commit of their own after a moment.
pub const MARKS_HURRY: usize = WINDOW / 2;

/// Batches of marks that are written before a claim whose answer is not there yet.
pub const CLAIM_HELD_MAX: u32 = 4;

/// How long a mark waits for company: a claim usually meets its answer, and both are one write.
pub const MARKS_LINGER: Duration = Duration::from_millis(10);

/// How soon rows whose marks could not be written are brought back, when nothing else is to be
/// written.
pub const LOST_MARKS_RETRY: Duration = Duration::from_secs(1);

/// How long the broker may take to answer a send, or the daemon closes (mesh.md §10).
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection that lived for so long is one that works: only then does the wait for the next one
/// begin anew.
pub const STEADY_AFTER: Duration = Duration::from_secs(5);

/// The longest wait for the next attempt to connect while the network answers.
pub const RECONNECT_CAP: Duration = Duration::from_secs(10);

/// A row that was alone on the wire so often when the broker closed, because of something that it
/// could not read, is given up.
pub const BLAMED_MAX: u32 = 2;

/// Hellos of ours that are remembered, answered or not.
pub const NONCES_MAX: usize = 256;

/// How long connecting, the handshake and the negotiation may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// A ping is sent this often.
pub const PING_INTERVAL: Duration = Duration::from_secs(20);

/// A connection on which nothing was heard for so long is dead.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long one frame may take to be written.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Frames of the broker that wait to be handled. What the broker may have under way is less: its
/// window of deliveries, our window of sends, and who is online.
pub const INBOUND_MAX: usize = 4096;

/// Bytes of these, and of what waits to be written to the inbox; one frame always fits.
pub const INBOUND_BYTES_MAX: usize = 32 << 20;

/// Frames that wait to be written.
pub const OUTBOUND_MAX: usize = WINDOW;

/// Frames that are heard before the next look at what is due.
pub const FRAMES_TOGETHER: usize = WINDOW;

/// Frames with deliveries that share one commit of the inbox.
pub const RECEIVE_BATCH_MAX: usize = 64;

/// Requests to the broker that wait for their answers.
pub const REQUESTS_MAX: usize = 64;

/// How long a request to the broker waits.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How often it is looked whether an ephemeral member has sent everything, before it leaves.
pub const HAND_OVER_LOOKS_MAX: u32 = 1500;

/// So many looks in a row may find that nothing more was sent.
pub const HAND_OVER_IDLE_MAX: u32 = 250;

/// The time between two of these looks.
pub const HAND_OVER_PAUSE: Duration = Duration::from_millis(20);

/// How long an ephemeral member tries to leave.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time between two attempts to leave.
pub const LEAVE_PAUSE: Duration = Duration::from_millis(250);

/// The shortest life that an ephemeral member can be given.
pub const TTL_MIN: Duration = Duration::from_secs(1);

/// The longest: what lives longer is a persistent member.
pub const TTL_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Ids that one `resolve` asks for; the broker takes as many.
pub const RESOLVE_MAX: i64 = 500;

/// Messages that one page of history asks for.
pub const HISTORY_PAGE: u64 = 64;

/// Rows of the outbox that wait on their own and are looked at to find the next one due.
pub const NEXT_DUE_LOOK: i64 = 1024;

/// A row that the broker could not take so often, while it took others, waits on its own from then
/// on, so that it holds nobody else up.
pub const ATTEMPTS_TOGETHER: u32 = 5;

/// Rows of one connection that the broker could not take, and of which it is known since when.
pub const FAILING_MAX: usize = 4096;

/// How often rows are looked at for their age.
pub const EXPIRE_INTERVAL: Duration = Duration::from_secs(60);

/// Rows of each priority, in the order of accept, that one look at ages goes through: rows whose
/// time was wrong may stand before older ones.
pub const AGES_LOOK: i64 = 1024;

/// Done rows that are offered again at a time, to a broker that was restored.
pub const OFFER_PAGE: i64 = 64;

/// Open rows of another daemon that are given up in one transaction.
pub const ADOPT_MAX: i64 = 1000;

/// How often sizes are measured and old things swept.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(60);

/// How often it is looked whether a full disk has room again.
pub const FULL_INTERVAL: Duration = Duration::from_millis(500);

/// The outbox is measured whenever so small a part of it was accepted since the last time …
pub const MEASURE_PARTS: u64 = 200;
/// … or so many bytes: less than what is reserved on the disk.
pub const MEASURE_BYTES_MAX: u64 = 8 << 20;
/// What is received is measured at once when a part of what an inbox may have has come that nobody
/// has measured: on a busy host whoever does can be late.
pub const UNMEASURED_PARTS: u64 = 4;
/// Bytes of a row besides its body, about.
pub const ROW_BYTES: u64 = 512;

/// Rows that one sweep changes.
pub const SWEEP_MAX: i64 = 500;

/// Payloads of done rows are kept for so long (mesh.md §6).
pub const PAYLOAD_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Events are kept for so long.
pub const EVENTS_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Keys of messages are kept for so long: longer than any broker's history by default.
pub const KEYS_KEPT: Duration = Duration::from_secs(400 * 24 * 60 * 60);

/// Readers whose place in the inbox is remembered.
pub const READERS_MAX: i64 = 1000;

/// Members of one name that an ambiguous name is answered with.
pub const CANDIDATES_MAX: i64 = 10;

/// Bytes of one answer of the broker's HTTP API.
pub const REMOTE_ANSWER_BYTES_MAX: usize = 4 << 20;

/// Pages of one list of the broker.
pub const REMOTE_PAGES_MAX: usize = 1000;

/// How often the mesh's members are asked for at the least.
pub const DIRECTORY_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// How often they are asked for at the most.
pub const DIRECTORY_PAUSE: Duration = Duration::from_secs(1);

/// How long a send to an unknown name waits for the broker to say who is in the mesh.
pub const DIRECTORY_WAIT: Duration = Duration::from_secs(5);

/// How long a task that has ended by itself stays away before it is started again.
pub const TASK_PAUSE: Duration = Duration::from_secs(1);

/// Members whom one message may mention.
pub const MENTIONS_MAX: usize = 100;

/// Bytes of what is searched for.
pub const SEARCH_BYTES_MAX: usize = 1024;

/// Rows that a chain of requeues is followed for.
pub const CHAIN_MAX: usize = 32;

/// Messages that are looked at for one page of those that mention somebody.
pub const MENTIONS_LOOKED_MAX: usize = 5000;

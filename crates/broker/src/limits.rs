//! Every limit of the broker, in one place.

use std::time::Duration;

use semel_wire::limits::{HANDSHAKE_BYTES_MAX, LEASE_MS_MAX};

/// Sends that share one accept transaction at the most.
pub const BATCH_MAX: usize = 512;

/// Rows that an accept transaction of SQLite writes, unless one send alone writes more: others wait
/// for it. Messages to the same recipients share the pages of these.
pub const SQLITE_BATCH_ROWS: usize = 3100;

/// The same for PostgreSQL, where a transaction costs less and a row more.
pub const POSTGRES_BATCH_ROWS: usize = 2100;

/// Transactions of small sends, of [`TURN_ROWS`] or less, that large ones let go before them.
pub const SMALL_FIRST_MAX: u32 = 2;

/// Rows of each of them: large ones wait for no more than a turn.
pub const SMALL_FIRST_ROWS: usize = 512;

/// Rows that the sends of one session write before it is another one's turn.
pub const TURN_ROWS: i64 = 512;

/// Rows that a send writes besides its deliveries: its id, the message and its place in history.
pub const SEND_ROWS: usize = 3;

/// How long the number of a topic's subscribers is believed where it is asked for before.
pub const AUDIENCE_BELIEVED: Duration = Duration::from_secs(1);

/// A day, as retention counts.
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Dedupe rows live this much longer than is advertised, so that a row that is still allowed to be
/// sent is always strictly inside the window (mesh.md §6).
pub const DEDUPE_GRACE: Duration = DAY;

/// How often a claim goes round when the row it lost to vanishes.
pub const CLAIM_ROUNDS_MAX: u32 = 4;

/// Deliveries read at a time.
pub const DELIVERIES_MAX: i64 = 256;

/// Messages that are read at a time for all who ask; one who asks alone gets all of its own.
pub const READ_MESSAGES_MAX: usize = 512;

/// Connections whose deliveries are read together: their numbers are held in memory.
pub const READS_TOGETHER_MAX: usize = 256;

/// Reads of deliveries of a mesh under way at once.
pub const READS_AT_ONCE: usize = 2;

/// Connections whose acknowledgements end deliveries together, and how many they end.
pub const ENDS_TOGETHER_MAX: usize = 512;
/// See [`ENDS_TOGETHER_MAX`]. Whoever accepts waits for as many.
pub const ENDS_ROWS: usize = 512;

/// How many of those are under way at once.
pub const ENDS_AT_ONCE: usize = 2;

/// Deliveries of members that are read or ended at once on PostgreSQL: half of its connections.
pub const DELIVERERS_MAX: usize = 8;

/// For how long work is leased when the taker does not say (broker.md).
pub const QUEUE_LEASE: Duration = Duration::from_secs(60);

/// Twice the longest lease, for brokers whose clocks differ: one that ends later was given by a
/// clock that was ahead, and nobody waits for that.
pub const QUEUE_LEASE_BELIEVED: Duration = Duration::from_millis(2 * LEASE_MS_MAX);

/// How often a piece of work is leased before it is set aside: who takes it every time and never
/// ends it must not keep others busy for ever.
pub const QUEUE_TAKES_MAX: i64 = 16;

/// Leases that are over and are put in order for one take. More of them at once are taken in the
/// order in which they ended, so that a take never costs more than this.
pub const QUEUE_OVER_MAX: i64 = 1024;

/// Messages read for one answer from history, before it is known how many of them fit.
pub const HISTORY_READ_MAX: u64 = 64;

/// Rows of history that one request looks through: a member that may see little of a busy mesh
/// is told where to go on instead.
pub const HISTORY_SCAN_MAX: i64 = 4096;

/// Ids that one `resolve` asks for.
pub const RESOLVE_MAX: usize = 500;

/// The longest window of the rate limiter; a longer one is cut to it. It keeps an expiry inside
/// what Redis takes, and a mistyped window from holding entries for ever.
pub const LIMITER_WINDOW_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The shortest window of the rate limiter: the grain of an expiry in Redis.
pub const LIMITER_WINDOW_MIN: Duration = Duration::from_millis(1);

/// Senders whose windows the in-process limiter holds at once.
pub const LIMITER_KEYS_MAX: usize = 65_536;

/// Takes between two sweeps of idle senders at the least, so that a sweep costs each take little.
pub const LIMITER_SWEEP_TAKES_MIN: usize = 1024;

/// How often a full in-process limiter looks for idle senders, and so when to ask it again.
pub const LIMITER_FULL_SWEEP: Duration = Duration::from_secs(1);

/// The wait for a connection to the limiter's server, greeting included.
pub const LIMITER_CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// The wait for one answer of the limiter's server. A send waits behind it, so it is short.
pub const LIMITER_ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// How often the limiter's server is tried while it is away.
pub const LIMITER_PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Requests that may wait inside one connection to the limiter's server.
pub const LIMITER_PIPELINE_MAX: usize = 1024;

/// What a sender is told to wait when the fallback is `closed`: until the next probe.
pub const LIMITER_CLOSED_RETRY_AFTER: Duration = LIMITER_PROBE_INTERVAL;

/// Questions of a connection that are counted together: a limiter on another machine is not asked
/// about each.
pub const QUESTIONS_TOGETHER: u32 = 100;

/// So often a member may ask so many in a window, over all of its connections. Who catches up with
/// half a million messages asks less than 8000 questions.
pub const QUESTIONS_MAX: u32 = 100;
/// See [`QUESTIONS_MAX`].
pub const QUESTIONS_WINDOW: Duration = Duration::from_secs(10);

/// How often it is looked whether a question that waits may be asked.
pub const QUESTION_AGAIN: Duration = Duration::from_millis(250);

/// Requests over HTTP that a member may make in a window. Who keeps up with ten thousand members
/// that come asks for 20 pages a second.
pub const REQUESTS_OF_MEMBER_MAX: u32 = 6000;
/// See [`REQUESTS_OF_MEMBER_MAX`].
pub const REQUESTS_OF_MEMBER_WINDOW: Duration = Duration::from_secs(60);

/// The shortest wait that a sender over its limit is told.
pub const RETRY_AFTER_MIN: Duration = Duration::from_millis(100);

/// How long after its wait a daemon is expected to send what was denied first, before anything else
/// of it is taken.
pub const TOLD_TO_WAIT_MAX: Duration = Duration::from_secs(10);

/// Batches of a mesh that are being looked up and checked: whoever comes meanwhile need not wait.
pub const LOOK_UPS_AT_ONCE: usize = 2;

/// Batches that are looked up before their transaction after one in which an id was known.
pub const LOOK_FIRST_BATCHES: usize = 32;

/// Sends that may wait for a mesh's lane; one more waits in its connection.
pub const LANE_QUEUE_MAX: usize = 4096;

/// Sends of a mesh that may wait for their turn, and their bytes: those of many sessions, so that
/// one that comes need not wait for all of another one's.
pub const LINE_MAX: usize = 4 * LANE_QUEUE_MAX;
/// See [`LINE_MAX`].
pub const LINE_BYTES_MAX: usize = 64 << 20;

/// Bytes of one connection's unanswered sends; one send always fits.
pub const SENDS_IN_FLIGHT_BYTES: u32 = 8 << 20;

/// The same of all connections together, beside what is each one's own.
pub const SENDS_IN_FLIGHT_ALL: u32 = 64 << 20;

/// Bytes of them that each connection may have whatever others have: a window of short ones.
pub const SENDS_IN_FLIGHT_FREE: usize = 64 << 10;

/// Sends of one connection that may be unanswered; its next frame is read after that.
pub const SENDS_IN_FLIGHT_MAX: u32 = 512;

/// Frames that may wait to be written to one connection.
pub const OUTBOUND_MAX: usize = 1024;

/// Bytes of pushes and of what was asked for that may wait to be written to one connection; one
/// frame always fits.
pub const OUTBOUND_BYTES_MAX: usize = 1 << 20;

/// The same of all connections, and of answers over HTTP.
pub const OUTBOUND_BYTES_ALL: usize = 64 << 20;

/// An answer over HTTP with fewer bytes is not counted.
pub const ANSWER_BYTES_SMALL: usize = 16 << 10;

/// Bytes that are kept for the answer to a `resolve`.
pub const RESOLVE_ANSWER_BYTES: usize = 128 << 10;

/// Deliveries that may be unacknowledged on one connection.
pub const PUSH_WINDOW: usize = 256;

/// What is committed after a push waits so long, for each connection that was woken with it:
/// whoever is told of a message alone is told at once, and a thousand are told of what has come
/// meanwhile.
pub const PUSH_PAUSE: Duration = Duration::from_micros(50);

/// Below it there is none: a timer is no finer.
pub const PUSH_PAUSE_MIN: Duration = Duration::from_millis(2);

/// A pause in which more than one message has come is followed by one of twice its length, up to so
/// many times the first.
pub const PUSH_PAUSE_GROWTH: u32 = 8;

/// The longest of these pauses.
pub const PUSH_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Bytes of new messages that wait in memory for one connection; it reads the store for more.
pub const FRESH_BYTES_MAX: usize = 1 << 20;

/// The pause after the store could not be told to forget what has arrived.
pub const END_AGAIN: Duration = Duration::from_secs(1);

/// How long a daemon may take for its `hello`.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// How long one frame may take to be written: a reader that is slower is given up.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// A ping is sent this often, and twice more before silence is death.
pub const PING_INTERVAL: Duration = Duration::from_secs(20);

/// A connection on which nothing was heard for so long is dead.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What was pushed and not acknowledged for so long goes out again.
pub const REDELIVER_AFTER: Duration = Duration::from_secs(30);

/// How long a broker that stops waits for its connections.
pub const DRAIN_MAX: Duration = Duration::from_secs(30);

/// How often the oldest delivery of every mesh is looked for.
pub const LAG_INTERVAL: Duration = Duration::from_secs(60);

/// Recipients of a mesh that are looked at for its oldest delivery.
pub const LAG_RECIPIENTS_MAX: i64 = 10_000;

/// How long a connection that was drained waits for the daemon to close its side.
pub const LINGER_MAX: Duration = Duration::from_secs(2);

/// How often a broker that stops asks everybody to leave.
pub const DRAIN_ASK_AGAIN: Duration = Duration::from_millis(200);

/// Connections at once, of daemons and of anybody else.
pub const CONNECTIONS_MAX: usize = 10_000;

/// Those of them, a quarter at the most, that have not shown who they are.
pub const STRANGERS_MAX: usize = 256;

/// Strangers of one address.
pub const STRANGERS_OF_ADDRESS_MAX: usize = 64;

/// How soon a connection must have asked for something.
pub const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a stranger's connection may last, whatever it does.
pub const STRANGER_LIFE: Duration = Duration::from_secs(15);

/// What a stranger may send, and what a WebSocket may before its `hello` is admitted.
pub const STRANGER_BYTES_MAX: usize = 256 << 10;
/// See [`STRANGER_BYTES_MAX`]: a `hello` that is a little too large still hears why.
pub const HELLO_BYTES_MAX: usize = HANDSHAKE_BYTES_MAX + (1 << 10);

/// A stranger that came later than this is not closed to make room.
pub const STRANGER_GRACE: Duration = Duration::from_millis(500);

/// How long a request's head may take to arrive, and how long a connection may be idle.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How large a request's head may be.
pub const HEAD_BYTES_MAX: usize = 64 << 10;

/// How long a TLS handshake may take.
pub const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after connections could not be accepted for want of descriptors or memory.
pub const ACCEPT_RETRY: Duration = Duration::from_secs(1);

/// What is read of a file of certificates or keys.
pub const PEM_BYTES_MAX: u64 = 1 << 20;

/// Meshes that metrics tell apart; the rest is `other`.
pub const METRIC_MESHES_MAX: usize = 1000;

/// Dedupe rows that one sweep deletes.
pub const DEDUPE_SWEEP_MAX: i64 = 1000;

/// Dedupe rows whose life is made longer in one transaction.
pub const DEDUPE_EXTEND_MAX: i64 = 1000;

/// Invites and nonces that one sweep deletes.
pub const REQUEST_SWEEP_MAX: i64 = 1000;

/// Nonces that are over and go along with each new one, so that the table keeps to its window.
pub const NONCES_OVER_MAX: i64 = 4;

/// Topics of one mesh.
pub const TOPICS_MAX: i64 = 10_000;

/// Those of them that one member has made: no member can take the room of all.
pub const TOPICS_OF_MEMBER_MAX: i64 = 1000;

/// Work queues of one mesh.
pub const QUEUES_MAX: i64 = 10_000;

/// Those of them that one member has made.
pub const QUEUES_OF_MEMBER_MAX: i64 = 1000;

/// Pieces of work that are thrown away in one transaction.
pub const QUEUE_DISCARD_ROWS: i64 = 1000;

/// Instances that one member has retired: every folder that was ever moved or restored is one.
pub const RETIRED_OF_MEMBER_MAX: i64 = 256;

/// Invites of one mesh that have not ended.
pub const INVITES_MAX: i64 = 1000;

/// Session epochs that a restored store skips: more than were given out since its backup.
pub const EPOCHS_SKIPPED: i64 = 1_000_000;

/// How long a nonce is remembered after the time that was signed with it: twice as far as clocks
/// may differ, so that brokers whose clocks differ agree.
pub const NONCE_LIFE: Duration = Duration::from_secs(10 * 60);

/// Bytes of a request's body.
pub const REQUEST_BODY_BYTES_MAX: usize = 64 << 10;

/// How long a request's body may take to arrive.
pub const REQUEST_BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a request waits for its answer; what was begun goes on.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Requests under way at once.
pub const REQUESTS_MAX: usize = 256;

/// Bytes of message bodies in one answer from history; one message always fits.
pub const HISTORY_ANSWER_BYTES_MAX: usize = 1 << 20;

/// Messages that one sweep deletes. Each takes its deliveries along, so it is fewer.
pub const RETENTION_SWEEP_MAX: i64 = 256;

/// Rows or messages of the first sweep of a kind; the next is twice as large as one that went well.
pub const SWEEP_FIRST: i64 = 8;

/// Rows that one sweep of several messages deletes where nobody else can write meanwhile.
pub const SWEEP_ROWS: u64 = 1000;

/// The pause after each sweep: whoever accepts sends, perhaps in another process, has its turn.
pub const SWEEP_PAUSE: Duration = Duration::from_millis(20);

/// Sweeps of one kind in one night; what is left waits for the next.
pub const SWEEP_ROUNDS_MAX: u32 = 100_000;

/// Rows that the consistency check reads at a time.
pub const CHECK_PAGE_ROWS: u32 = 1000;

/// Ids without their message that a check lists.
pub const ORPHANS_LISTED_MAX: usize = 1000;

/// How far the clocks of two brokers may be apart before the check calls what retention did a gap.
pub const CLOCK_SKEW_MAX: Duration = DAY;

/// Housekeeping begins this long after the start, when reconnecting daemons have been served.
pub const HOUSEKEEPING_DELAY: Duration = Duration::from_secs(10 * 60);

/// How often housekeeping runs.
pub const HOUSEKEEPING_INTERVAL: Duration = DAY;

/// How long an answer to `GET /readyz` is given again: each look is a commit.
pub const READY_KEPT: Duration = Duration::from_secs(3);

/// The pause after a hint to the other brokers: what is touched meanwhile shares the next one.
pub const HINT_INTERVAL: Duration = Duration::from_millis(15);

/// The pause after a hint that could not be sent.
pub const HINT_RETRY: Duration = Duration::from_secs(1);

/// How often everybody is woken while no hints can be heard.
pub const HINT_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Meshes of each kind that one hint names; of more it says "all". PostgreSQL takes less than 8000
/// bytes.
pub const HINT_MESHES_MAX: usize = 100;

/// How often a broker says that its connections live, and asks whether they may.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// A daemon of which no broker has said so for so long is not connected.
pub const GHOST_AFTER: Duration = Duration::from_secs(45);

/// Connections whose heartbeats share one transaction.
pub const HEARTBEATS_MAX: usize = 1000;

/// The pause after a look at sessions: what is touched meanwhile shares the next one.
pub const SESSIONS_INTERVAL: Duration = Duration::from_millis(100);

/// Ghosts that one tick forgets.
pub const GHOSTS_SWEEP_MAX: i64 = 1000;

/// Meshes whose sessions are looked at side by side.
pub const SESSION_MESHES_AT_ONCE: usize = 8;

/// Connections that one look at a mesh reads; what is beyond is looked at by heartbeat only.
pub const ROSTER_ROWS_MAX: i64 = 16_384;

/// Connections after which the pause between two looks at sessions is twice as long, and so on.
pub const SESSIONS_PER_INTERVAL: usize = 1000;

/// Members that are told by name; of more there is only a number.
pub const PRESENCE_NAMES_MAX: usize = 200;

/// Members at which they are told by name again: not whenever one comes or goes.
pub const PRESENCE_NAMES_AGAIN: usize = 150;

/// Changes that a roster remembers; whoever is further behind is told everything anew.
pub const PRESENCE_LOG_MAX: usize = 1024;

/// How often a daemon is told how many are connected.
pub const PRESENCE_COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// When a daemon that was too slow for presence is told the rest.
pub const PRESENCE_RETRY: Duration = Duration::from_secs(1);

/// For how long the audit trail is kept.
pub const AUDIT_RETENTION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Lines of the audit trail that one sweep deletes.
pub const AUDIT_SWEEP_MAX: i64 = 1000;

/// Lines of the audit trail that are listed.
pub const AUDIT_LIST_MAX: i64 = 1000;

/// The waits of a broker that tests make shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// See [`HEARTBEAT_INTERVAL`].
    pub heartbeat: Duration,
    /// See [`GHOST_AFTER`].
    pub ghost_after: Duration,
    /// See [`REDELIVER_AFTER`].
    pub redeliver_after: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            heartbeat: HEARTBEAT_INTERVAL,
            ghost_after: GHOST_AFTER,
            redeliver_after: REDELIVER_AFTER,
        }
    }
}

/// How long a send waits whose age cannot be told, because the clock was just set.
pub const DOUBT_PAUSE: Duration = Duration::from_secs(5);

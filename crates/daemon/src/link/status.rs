//! What a link is told at the start, and what it tells of itself.

use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::id::{InstanceId, MemberId};
use semel_core::plausible::SweepClock;
use semel_core::status;
use semel_crypto::keys::KeyPair;
use semel_wire::features::Negotiated;
use semel_wire::limits::{INLINE_BYTES_DEFAULT, frame_bytes_max};

use crate::dial::Dialler;
use crate::limits::{ANSWER_TIMEOUT, EXPIRE_INTERVAL, STEADY_AFTER, WINDOW};

/// Where the broker is, and who we are to it.
pub struct LinkOptions {
    /// The way to it.
    pub broker: Dialler,
    /// The mesh's name.
    pub mesh: String,
    /// The name of our key.
    pub key_id: String,
    /// Our key.
    pub keys: Arc<KeyPair>,
    /// This daemon.
    pub instance_id: InstanceId,
    /// For the broker's logs.
    pub version: String,
    /// Features that must be there besides those that always must.
    pub require: Vec<String>,
    /// Features that are used where the broker has them.
    pub optional: Vec<String>,
    /// Sends that may be unanswered.
    pub window: usize,
    /// Rows older than this are not sent, whatever the broker would allow.
    pub max_age_hours_override: Option<u32>,
    /// How long the broker may take to answer a send.
    pub answer_timeout: Duration,
    /// How often rows are looked at for their age.
    pub expire_interval: Duration,
    /// A connection that lived for so long works: the wait for the next one begins anew.
    pub steady_after: Duration,
    /// Which time things are old by.
    pub sweep_clock: SweepClock,
    /// Random numbers, for jitter and nonces.
    pub random: Arc<dyn Fn() -> u128 + Send + Sync>,
}

impl LinkOptions {
    /// The usual window.
    pub const WINDOW: usize = WINDOW;
    /// The usual wait for an answer.
    pub const ANSWER_TIMEOUT: Duration = ANSWER_TIMEOUT;
    /// How often rows are usually looked at for their age.
    pub const EXPIRE_INTERVAL: Duration = EXPIRE_INTERVAL;
    /// When a connection is usually taken for one that works.
    pub const STEADY_AFTER: Duration = STEADY_AFTER;
}

status! {
    /// How it stands with the broker.
    pub enum LinkState {
        /// It is being connected to.
        Connecting = "connecting",
        /// Traffic flows.
        Connected = "connected",
        /// It is away; the next attempt is set.
        Waiting = "waiting",
        /// It will not be tried again: the daemon must end.
        Ended = "ended",
    }
}

/// Why a daemon must end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fatal {
    /// Another daemon speaks for this member now (`4003`).
    Replaced,
    /// The member is connected elsewhere and its mesh prefers the oldest (`4004`).
    AlreadyConnected,
    /// The member was revoked, or this instance retired (`4005`).
    Revoked,
    /// The broker does not offer what is needed (`4010`).
    Feature(String),
    /// The configuration and the broker do not go together.
    Unfit(String),
    /// A part that the daemon cannot do without has ended by itself.
    Broken(String),
}

status! {
    /// What ends a connection that is made again.
    pub enum Loss {
        /// The network, or the process at the other end.
        Gone = "gone",
        /// The broker said so.
        Closed = "closed",
        /// Nothing was heard, or no answer came.
        Silent = "silent",
        /// What came made no sense, or was too much.
        Protocol = "protocol",
        /// The broker could not read what we said (`4008`).
        Unread = "unread",
        /// Our own files could not be written.
        Storage = "storage",
    }
}

/// What is known of the connection, for health and metrics.
#[derive(Debug, Clone)]
pub struct LinkStatus {
    /// Connected or not.
    pub state: LinkState,
    /// Since when.
    pub since: UnixMs,
    /// Why it is not, in words.
    pub last_error: Option<String>,
    /// Who we are, once the broker has said.
    pub member_id: Option<MemberId>,
    /// What the broker offered last.
    pub negotiated: Option<Negotiated>,
    /// The broker's store, as last seen.
    pub store_epoch: Option<String>,
    /// What time the broker said that it was, and when by the monotonic clock.
    pub server_time: Option<(UnixMs, Duration)>,
    /// Connections that were made after the first, by what ended the one before.
    pub reconnects: [u64; Loss::ALL.len()],
    /// What ended the last connection, until there is another one.
    pub lost_by: Option<Loss>,
    /// Sends that are unanswered.
    pub inflight: usize,
    /// How long the last answered send took.
    pub lag: Option<Duration>,
    /// Why it ended for good.
    pub fatal: Option<Fatal>,
}

impl LinkStatus {
    pub(crate) fn new(state: LinkState, since: UnixMs) -> Self {
        Self {
            state,
            since,
            last_error: None,
            member_id: None,
            negotiated: None,
            store_epoch: None,
            server_time: None,
            reconnects: [0; Loss::ALL.len()],
            lost_by: None,
            inflight: 0,
            lag: None,
            fatal: None,
        }
    }

    /// Bytes of the largest frame that the broker reads.
    pub(super) fn frame_bytes_max(&self) -> usize {
        let inline_bytes = self.inline_bytes().and_then(|bytes| usize::try_from(bytes).ok());
        frame_bytes_max(inline_bytes.unwrap_or(INLINE_BYTES_DEFAULT))
    }

    /// Bytes of a body that the broker takes, once it is known.
    pub fn inline_bytes(&self) -> Option<u64> {
        Some(self.negotiated.as_ref()?.max_payload.as_ref()?.inline_bytes)
    }
}

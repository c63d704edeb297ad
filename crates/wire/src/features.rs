//! Features (mesh.md §8): what a broker offers, and the daemon's decision whether that is enough.
//! Both are pure; the frames that carry them are in [`crate::frame`].

mod accept;
mod offer;

use semel_core::max_age::DedupeWindow;
use semel_core::status;

use crate::close::CloseKind;
use crate::frame::CloseReason;

pub use accept::accept;
pub use offer::Offer;

/// The one version that every bit has so far.
pub const FEATURE_VERSION: u64 = 1;

/// Least value of `max_payload`'s two parameters.
pub const PAYLOAD_BYTES_MIN: u64 = 1024;

/// Least value of `key_epoch`'s `max_concurrent_epochs`.
pub const CONCURRENT_EPOCHS_MIN: u32 = 1;

status! {
    /// The feature bits that we know.
    pub enum Feature {
        /// An id takes effect once, and for how long that is remembered.
        ClientMessageIdDedupe = "client_message_id_dedupe",
        /// What happens when a member connects twice.
        ConcurrentConnectionPolicy = "concurrent_connection_policy",
        /// Members hear of a new key.
        MemberKeypairRotatedEvent = "member_keypair_rotated_event",
        /// Topic keys have epochs.
        KeyEpoch = "key_epoch",
        /// How large a body may be.
        MaxPayload = "max_payload",
    }
}

impl Feature {
    /// What a daemon cannot do without.
    pub const REQUIRED: &'static [&'static str] =
        &[Self::ClientMessageIdDedupe.as_str(), Self::ConcurrentConnectionPolicy.as_str()];

    /// What a daemon uses where it is there.
    pub const OPTIONAL: &'static [&'static str] = &[
        Self::MemberKeypairRotatedEvent.as_str(),
        Self::KeyEpoch.as_str(),
        Self::MaxPayload.as_str(),
    ];
}

status! {
    /// What a mesh does with two connections of one member.
    pub enum ConnectionPolicy {
        /// The newer one replaces the older (`4003`). The default.
        PreferNewest = "prefer_newest",
        /// The newer one is refused (`4004`).
        PreferOldest = "prefer_oldest",
        /// Both stay; every delivery goes to both.
        AllowConcurrent = "allow_concurrent",
    }
}

/// How large a body may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxPayload {
    /// In a frame.
    pub inline_bytes: u64,
    /// As a blob.
    pub blob_bytes: u64,
}

/// How long ids are remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dedupe {
    /// Days, or for ever.
    pub window: DedupeWindow,
    /// For how many days the broker can still say that history was pruned.
    pub tombstone_history_pruned_window_days: Option<u32>,
}

/// What both sides agreed on. A bit that was not offered, or not usable and not required, is
/// absent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Negotiated {
    /// `client_message_id_dedupe`.
    pub dedupe: Option<Dedupe>,
    /// `concurrent_connection_policy`.
    pub connection_policy: Option<ConnectionPolicy>,
    /// `member_keypair_rotated_event`: the broker tells of rotated keys.
    pub member_keypair_rotated_event: bool,
    /// `key_epoch`: how many epochs a topic may have at a time.
    pub max_concurrent_epochs: Option<u32>,
    /// `max_payload`.
    pub max_payload: Option<MaxPayload>,
    /// What was not usable and is done without, for the log.
    pub ignored: Vec<Ignored>,
}

/// An optional parameter or bit that was not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    /// Of which bit.
    pub feature: Feature,
    /// What was wrong, and what holds instead.
    pub detail: String,
}

/// Why a daemon must not go on with this broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeatureRefusal {
    /// One of the three kinds of `4010`.
    pub kind: CloseKind,
    /// Which bit.
    pub feature: String,
    /// For a person.
    pub detail: String,
}

impl FeatureRefusal {
    /// As the daemon says it before it closes.
    pub fn close_reason(&self) -> CloseReason {
        CloseReason {
            kind: self.kind,
            feature: Some(self.feature.clone()),
            detail: self.detail.clone(),
            nonce: None,
        }
    }
}

#[cfg(test)]
mod tests;

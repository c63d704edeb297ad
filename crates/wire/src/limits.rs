//! Every limit of the wire, in one place.

use semel_core::limits::META_BYTES_MAX;

/// Bytes of a frame before `hello_ack`: who has not shown its key gets little memory.
pub const HANDSHAKE_BYTES_MAX: usize = 16 << 10;

/// Bytes of a body before the broker has offered `max_payload`.
pub const INLINE_BYTES_DEFAULT: usize = 64 << 10;

/// Bytes that a list frame (`resolve`, `push` …) may always have, however small the bodies are:
/// 500 ids of the greatest length with what stands beside each.
pub const LIST_FRAME_BYTES_MAX: usize = 512 << 10;

/// Bytes of a message in a frame beside body and meta: ids and names, each character escaped.
pub const FRAME_OVERHEAD_BYTES: usize = 8 << 10;

/// What a frame with one message needs; more is made when it is needed.
pub const FRAME_BYTES_USUAL: usize = 1 << 10;

/// Containers inside each other in a frame; the frame itself is the first.
pub const FRAME_DEPTH_MAX: usize = 8;

/// Items of `resolve`.
pub const RESOLVE_ITEMS_MAX: usize = 500;

/// Deliveries in one frame.
pub const DELIVERIES_MAX: usize = 500;

/// What `history_request` may ask for.
pub const HISTORY_LIMIT_MAX: u64 = 500;

/// What `queue_take` may ask for.
pub const QUEUE_TAKE_MAX: u64 = 100;

/// Numbers in one `queue_ack`.
pub const QUEUE_ACK_SEQS_MAX: usize = 500;

/// Members in one `presence_request` or its answer.
pub const PRESENCE_MEMBERS_MAX: usize = 500;

/// The longest lease that `queue_take` may ask for: a day.
pub const LEASE_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// The longest wait that an answer may demand: a day.
pub const RETRY_AFTER_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// Instances that one `hello` retires.
pub const RETIRE_MAX: usize = 64;

/// Feature bits in one list, and parameters of one bit.
pub const FEATURES_MAX: usize = 64;

/// Bytes of a name: a mesh, a key id, a feature, a code, a version.
pub const NAME_BYTES_MAX: usize = 64;

/// Bytes of a member's name.
pub const MEMBER_NAME_BYTES_MAX: usize = 128;

/// Bytes of the name that somebody joins with.
pub const JOIN_NAME_BYTES_MAX: usize = 64;

/// Bytes of a profile as it is stored.
pub const PROFILE_BYTES_MAX: usize = 4096;

/// How many may join by one invite.
pub const INVITE_USES_MAX: u64 = 10_000;

/// The longest life of an invite: 30 days.
pub const INVITE_TTL_SECONDS_MAX: u64 = 30 * 24 * 60 * 60;

/// Bytes of a broker's address.
pub const BROKER_URL_BYTES_MAX: usize = 2048;

/// Bytes of an invite's link.
pub const JOIN_LINK_BYTES_MAX: usize = 4096;

/// Bytes of an HTTP body that is read, of a question or an answer.
pub const ANSWER_BYTES_MAX: usize = 32 << 20;

/// Bytes of a sentence for a person; longer ones are cut when they are written.
pub const DETAIL_BYTES_MAX: usize = 1024;

/// Bytes that WebSocket leaves for the reason in a close frame.
pub const CLOSE_TEXT_BYTES_MAX: usize = 123;

/// Bytes of the largest frame on a connection with this `max_payload.inline_bytes`.
pub const fn frame_bytes_max(inline_bytes: usize) -> usize {
    let one = message_bytes_max(inline_bytes, META_BYTES_MAX);
    if one > LIST_FRAME_BYTES_MAX { one } else { LIST_FRAME_BYTES_MAX }
}

/// Bytes that one message needs in a frame at most: the body in base64, and meta inside a string,
/// where each character may need a backslash.
pub const fn message_bytes_max(body_bytes: usize, meta_bytes: usize) -> usize {
    body_bytes
        .div_ceil(3)
        .saturating_mul(4)
        .saturating_add(meta_bytes.saturating_mul(2))
        .saturating_add(FRAME_OVERHEAD_BYTES)
}

//! The two directions of a conversation, and every frame by its type.

mod delivery;
mod handshake;
mod negotiation;
mod presence;
mod queue;
mod resolve;
mod salvage;
mod send;
mod session;

use semel_core::code::Code;
use semel_core::json::{self, JsonLimits};
use semel_core::refusal::Refusal;

use crate::codec::{Fields, Object, Record, shown, write_plain};
use crate::limits::{FRAME_BYTES_USUAL, FRAME_DEPTH_MAX};

pub use delivery::{Ack, Delivery, History, HistoryRequest, Push, Written, fitting};
pub use handshake::{Challenge, Hello, HelloAck};
pub use negotiation::{FeatureNegotiationRequest, FeatureNegotiationResponse, FeatureParams};
pub use presence::{Presence, PresenceCount, PresenceRequest, PresenceResult};
pub use queue::{QueueAck, QueueAcked, QueueTake, QueueTaken};
pub use resolve::{Resolve, ResolveItem, ResolveResult, ResolvedItem, Verdict};
pub use salvage::{Addressed, Salvaged, Unread};
pub use send::{SendFrame, SendResult};
pub use session::{CloseReason, MemberRevoked, Ping, Pong, RequestFailed};

/// What a daemon says to a broker.
#[derive(Debug, Clone, PartialEq)]
pub enum FromDaemon {
    /// Who it is, signed.
    Hello(Hello),
    /// What it needs.
    FeatureNegotiationRequest(FeatureNegotiationRequest),
    /// One attempt to send a message.
    Send(SendFrame),
    /// What became of sends whose answers were lost?
    Resolve(Resolve),
    /// Pushes up to here are on disk.
    Ack(Ack),
    /// What was accepted after this number?
    HistoryRequest(HistoryRequest),
    /// Work, please.
    QueueTake(QueueTake),
    /// Work that is done.
    QueueAck(QueueAck),
    /// Which of these are connected?
    PresenceRequest(PresenceRequest),
    /// Are you there?
    Ping(Ping),
    /// I am.
    Pong(Pong),
    /// Why it closes.
    CloseReason(CloseReason),
}

impl FromDaemon {
    /// Every type of this direction.
    pub const TYPES: &'static [&'static str] = &[
        "hello",
        "feature_negotiation_request",
        "send",
        "resolve",
        "ack",
        "history_request",
        "queue_take",
        "queue_ack",
        "presence_request",
        "ping",
        "pong",
        "close_reason",
    ];

    /// Reads one text frame of at most `bytes_max` bytes.
    pub fn decode(text: &[u8], bytes_max: usize) -> Result<Self, Refusal> {
        let (kind, fields) = open(text, bytes_max)?;
        match kind.as_str() {
            "hello" => read(fields).map(Self::Hello),
            "feature_negotiation_request" => read(fields).map(Self::FeatureNegotiationRequest),
            "send" => read(fields).map(Self::Send),
            "resolve" => read(fields).map(Self::Resolve),
            "ack" => read(fields).map(Self::Ack),
            "history_request" => read(fields).map(Self::HistoryRequest),
            "queue_take" => read(fields).map(Self::QueueTake),
            "queue_ack" => read(fields).map(Self::QueueAck),
            "presence_request" => read(fields).map(Self::PresenceRequest),
            "ping" => read(fields).map(Self::Ping),
            "pong" => read(fields).map(Self::Pong),
            "close_reason" => read(fields).map(Self::CloseReason),
            _ => Err(unknown(&kind)),
        }
    }

    /// The frame as text; fields come in the order of `docs/protocol.md`.
    pub fn encode(&self) -> String {
        let kind = self.type_name();
        match self {
            Self::Hello(frame) => text(kind, frame),
            Self::FeatureNegotiationRequest(frame) => text(kind, frame),
            Self::Send(frame) => text(kind, frame),
            Self::Resolve(frame) => text(kind, frame),
            Self::Ack(frame) => text(kind, frame),
            Self::HistoryRequest(frame) => text(kind, frame),
            Self::QueueTake(frame) => text(kind, frame),
            Self::QueueAck(frame) => text(kind, frame),
            Self::PresenceRequest(frame) => text(kind, frame),
            Self::Ping(frame) => text(kind, frame),
            Self::Pong(frame) => text(kind, frame),
            Self::CloseReason(frame) => text(kind, frame),
        }
    }

    /// The word in `type`.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::FeatureNegotiationRequest(_) => "feature_negotiation_request",
            Self::Send(_) => "send",
            Self::Resolve(_) => "resolve",
            Self::Ack(_) => "ack",
            Self::HistoryRequest(_) => "history_request",
            Self::QueueTake(_) => "queue_take",
            Self::QueueAck(_) => "queue_ack",
            Self::PresenceRequest(_) => "presence_request",
            Self::Ping(_) => "ping",
            Self::Pong(_) => "pong",
            Self::CloseReason(_) => "close_reason",
        }
    }
}

/// What a broker says to a daemon.
#[derive(Debug, Clone, PartialEq)]
pub enum FromBroker {
    /// Sign this.
    Challenge(Challenge),
    /// Welcome.
    HelloAck(HelloAck),
    /// What it offers.
    FeatureNegotiationResponse(FeatureNegotiationResponse),
    /// Why it closes.
    CloseReason(CloseReason),
    /// What became of a send.
    SendResult(SendResult),
    /// What became of earlier sends.
    ResolveResult(ResolveResult),
    /// Messages for this daemon.
    Push(Push),
    /// Messages of the past.
    History(History),
    /// Work, leased.
    QueueTaken(QueueTaken),
    /// Which work is off the queue.
    QueueAcked(QueueAcked),
    /// A member came or went.
    Presence(Presence),
    /// How many members are connected.
    PresenceCount(PresenceCount),
    /// Which of those that were asked for are.
    PresenceResult(PresenceResult),
    /// This member may no longer take part.
    MemberRevoked(MemberRevoked),
    /// A request that was refused or could not be answered.
    RequestFailed(RequestFailed),
    /// Are you there?
    Ping(Ping),
    /// I am.
    Pong(Pong),
}

impl FromBroker {
    /// Every type of this direction.
    pub const TYPES: &'static [&'static str] = &[
        "challenge",
        "hello_ack",
        "feature_negotiation_response",
        "close_reason",
        "send_result",
        "resolve_result",
        "push",
        "history",
        "queue_taken",
        "queue_acked",
        "presence",
        "presence_count",
        "presence_result",
        "member_revoked",
        "request_failed",
        "ping",
        "pong",
    ];

    /// Reads one text frame of at most `bytes_max` bytes.
    pub fn decode(text: &[u8], bytes_max: usize) -> Result<Self, Refusal> {
        let (kind, fields) = open(text, bytes_max)?;
        match kind.as_str() {
            "challenge" => read(fields).map(Self::Challenge),
            "hello_ack" => read(fields).map(Self::HelloAck),
            "feature_negotiation_response" => read(fields).map(Self::FeatureNegotiationResponse),
            "close_reason" => read(fields).map(Self::CloseReason),
            "send_result" => read(fields).map(Self::SendResult),
            "resolve_result" => read(fields).map(Self::ResolveResult),
            "push" => read(fields).map(Self::Push),
            "history" => read(fields).map(Self::History),
            "queue_taken" => read(fields).map(Self::QueueTaken),
            "queue_acked" => read(fields).map(Self::QueueAcked),
            "presence" => read(fields).map(Self::Presence),
            "presence_count" => read(fields).map(Self::PresenceCount),
            "presence_result" => read(fields).map(Self::PresenceResult),
            "member_revoked" => read(fields).map(Self::MemberRevoked),
            "request_failed" => read(fields).map(Self::RequestFailed),
            "ping" => read(fields).map(Self::Ping),
            "pong" => read(fields).map(Self::Pong),
            _ => Err(unknown(&kind)),
        }
    }

    /// The frame as text; fields come in the order of `docs/protocol.md`.
    pub fn encode(&self) -> String {
        let kind = self.type_name();
        match self {
            Self::Challenge(frame) => text(kind, frame),
            Self::HelloAck(frame) => text(kind, frame),
            Self::FeatureNegotiationResponse(frame) => text(kind, frame),
            Self::CloseReason(frame) => text(kind, frame),
            Self::SendResult(frame) => text(kind, frame),
            Self::ResolveResult(frame) => text(kind, frame),
            Self::Push(frame) => text(kind, frame),
            Self::History(frame) => text(kind, frame),
            Self::QueueTaken(frame) => text(kind, frame),
            Self::QueueAcked(frame) => text(kind, frame),
            Self::Presence(frame) => text(kind, frame),
            Self::PresenceCount(frame) => text(kind, frame),
            Self::PresenceResult(frame) => text(kind, frame),
            Self::MemberRevoked(frame) => text(kind, frame),
            Self::RequestFailed(frame) => text(kind, frame),
            Self::Ping(frame) => text(kind, frame),
            Self::Pong(frame) => text(kind, frame),
        }
    }

    /// The word in `type`.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Challenge(_) => "challenge",
            Self::HelloAck(_) => "hello_ack",
            Self::FeatureNegotiationResponse(_) => "feature_negotiation_response",
            Self::CloseReason(_) => "close_reason",
            Self::SendResult(_) => "send_result",
            Self::ResolveResult(_) => "resolve_result",
            Self::Push(_) => "push",
            Self::History(_) => "history",
            Self::QueueTaken(_) => "queue_taken",
            Self::QueueAcked(_) => "queue_acked",
            Self::Presence(_) => "presence",
            Self::PresenceCount(_) => "presence_count",
            Self::PresenceResult(_) => "presence_result",
            Self::MemberRevoked(_) => "member_revoked",
            Self::RequestFailed(_) => "request_failed",
            Self::Ping(_) => "ping",
            Self::Pong(_) => "pong",
        }
    }
}

/// The type of a frame, and its other fields.
fn open(text: &[u8], bytes_max: usize) -> Result<(String, Fields<'_>), Refusal> {
    let node = json::read(text, JsonLimits { bytes_max, depth_max: FRAME_DEPTH_MAX })?;
    let mut fields = Fields::of(node)?;
    Ok((fields.take("type")?, fields))
}

fn read<R: Record>(mut fields: Fields<'_>) -> Result<R, Refusal> {
    let frame = R::read(&mut fields)?;
    fields.finish()?;
    Ok(frame)
}

fn text<R: Record>(kind: &str, frame: &R) -> String {
    let mut out = String::with_capacity(FRAME_BYTES_USUAL);
    let mut object = Object::open(&mut out);
    write_plain(kind, object.key("type"));
    frame.write(&mut object);
    object.close();
    out
}

fn unknown(kind: &str) -> Refusal {
    let detail = format!("there is no frame {:?} in this direction", shown(kind));
    Refusal::at(Code::UnknownFrame, "/type", detail)
}

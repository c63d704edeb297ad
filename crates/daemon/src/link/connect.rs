//! From an address to a connection that may carry traffic: connect, `hello`, negotiation. Nothing
//! is sent before `hello_ack` (mesh.md §10), and no send before the features are agreed (§8).

use std::sync::Arc;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use semel_core::clock::Clock;
use semel_core::hex::Hex;
use semel_core::id::InstanceId;
use semel_crypto::hello::{HelloClaim, sign};
use semel_wire::features::{self, Feature, Negotiated};
use semel_wire::frame::{
    CloseReason, FeatureNegotiationRequest, FromBroker, FromDaemon, Hello, HelloAck, Salvaged,
};
use semel_wire::limits::HANDSHAKE_BYTES_MAX;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Message};

use super::meter::{Meter, Metered};
use super::patience::Reach;
use super::{Ended, Fatal, LinkOptions, Loss};
use crate::dial::{DialError, Stream};
use crate::limits::{CONNECT_TIMEOUT, INBOUND_BYTES_MAX, INBOUND_MAX};

/// The subprotocol of docs/protocol.md.
const SUBPROTOCOL: &str = "semel.v1";

/// Frames larger than this are never read.
pub(super) const FRAME_BYTES_MAX: usize = 16 << 20;

/// What a daemon cannot do without (mesh.md §8).
const REQUIRED: [Feature; 2] =
    [Feature::ClientMessageIdDedupe, Feature::ConcurrentConnectionPolicy];

type Socket = WebSocketStream<Box<dyn Stream>>;

/// A connection that may carry traffic.
pub(super) struct Connection {
    pub(super) sink: SplitSink<Socket, Message>,
    pub(super) stream: SplitStream<Socket>,
    /// Counts what goes out.
    pub(super) meter: Arc<Meter>,
    pub(super) ack: HelloAck,
    pub(super) negotiated: Negotiated,
    /// What the broker said before it answered our request for features.
    pub(super) early: Vec<Salvaged>,
}

/// Connects within a limit.
pub(super) async fn connect(
    options: &LinkOptions,
    clock: &dyn Clock,
    retire: &[InstanceId],
    nonce: Hex<16>,
) -> Result<Connection, Ended> {
    match tokio::time::timeout(CONNECT_TIMEOUT, connect_now(options, clock, retire, nonce)).await {
        Ok(connected) => connected,
        Err(_) => Err(silent("it did not answer in time")),
    }
}

async fn connect_now(
    options: &LinkOptions,
    clock: &dyn Clock,
    retire: &[InstanceId],
    nonce: Hex<16>,
) -> Result<Connection, Ended> {
    let meter = Arc::<Meter>::default();
    let mut socket = open(options, Arc::clone(&meter)).await?;
    let first = next(&mut socket).await?;
    let FromBroker::Challenge(challenge) = first else { return Err(unexpected(&first)) };
    let mut hello = Hello {
        mesh: options.mesh.clone(),
        pubkey: options.keys.public().to_hex(),
        key_id: options.key_id.clone(),
        instance_id: options.instance_id,
        host_fingerprint: None,
        version: options.version.clone(),
        time: clock.wall(),
        nonce,
        retire: retire.to_vec(),
        signature: Hex([0; 64]),
    };
    let claim = HelloClaim {
        broker_id: challenge.broker_id,
        broker_nonce: challenge.nonce,
        mesh: &options.mesh,
        key_id: &options.key_id,
        instance_id: options.instance_id,
        host_fingerprint: None,
        hello_nonce: nonce,
        time: hello.time,
        retire,
    };
    hello.signature = sign(&options.keys, &claim);
    say(&mut socket, &FromDaemon::Hello(hello)).await?;
    let answer = next(&mut socket).await?;
    let FromBroker::HelloAck(ack) = answer else { return Err(unexpected(&answer)) };
    let mut early = Vec::new();
    let negotiated = negotiate(options, &mut socket, &mut early).await?;
    let (sink, stream) = socket.split();
    Ok(Connection { sink, stream, meter, ack, negotiated, early })
}

async fn open(options: &LinkOptions, meter: Arc<Meter>) -> Result<Socket, Ended> {
    let unfit = |what: String| Ended::Fatal(Fatal::Unfit(what));
    let stream = options.broker.dial(|stream| Metered { stream, meter }).await;
    let stream = stream.map_err(not_there)?;
    let url = options.broker.place().websocket();
    let mut request =
        url.as_str().into_client_request().map_err(|error| unfit(format!("{url}: {error}")))?;
    let protocol = SUBPROTOCOL.parse().map_err(|_| unfit(SUBPROTOCOL.to_owned()))?;
    request.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
    let config = WebSocketConfig::default()
        .max_message_size(Some(FRAME_BYTES_MAX))
        .max_frame_size(Some(FRAME_BYTES_MAX))
        .max_write_buffer_size(2 * FRAME_BYTES_MAX);
    let socket = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await;
    Ok(socket.map_err(|error| away(error.to_string()))?.0)
}

async fn negotiate(
    options: &LinkOptions,
    socket: &mut Socket,
    early: &mut Vec<Salvaged>,
) -> Result<Negotiated, Ended> {
    let always = REQUIRED.iter().map(|feature| feature.as_str());
    let required: Vec<&str> = always.chain(options.require.iter().map(String::as_str)).collect();
    let optional = options.optional.iter().filter(|bit| !required.contains(&bit.as_str()));
    let optional = optional.cloned().collect();
    let require = required.iter().map(|bit| (*bit).to_owned()).collect();
    let request = FeatureNegotiationRequest { require, optional };
    say(socket, &FromDaemon::FeatureNegotiationRequest(request)).await?;
    let mut bytes = 0;
    let response = loop {
        let (said, length) = hear(socket).await?;
        bytes += length;
        // What waits for us does not wait for this; its window bounds it.
        match said.frame {
            Some(FromBroker::FeatureNegotiationResponse(response)) => break response,
            Some(
                FromBroker::Push(_)
                | FromBroker::Presence(_)
                | FromBroker::PresenceCount(_)
                | FromBroker::Ping(_),
            )
            | None
                if early.len() < INBOUND_MAX && bytes <= INBOUND_BYTES_MAX =>
            {
                early.push(said);
            }
            Some(frame) => return Err(unexpected(&frame)),
            None => return Err(away("too many frames came too early")),
        }
    };
    match features::accept(&required, &response) {
        Ok(negotiated) => {
            for ignored in &negotiated.ignored {
                let feature = ignored.feature.as_str();
                tracing::warn!(
                    feature,
                    detail = ignored.detail,
                    "a feature is not valid and is not used"
                );
            }
            Ok(negotiated)
        }
        Err(refusal) => {
            tracing::warn!(?required, ?response, ?refusal, "the broker is not compatible");
            let mut reason = CloseReason::new(refusal.kind, refusal.detail.clone());
            reason.feature = Some(refusal.feature.clone());
            let _ = say(socket, &FromDaemon::CloseReason(reason.clone())).await;
            let code = reason.kind.code().as_u16().into();
            let frame = CloseFrame { code, reason: reason.close_text().into() };
            let _ = socket.close(Some(frame)).await;
            let detail = format!("{}: {}", refusal.feature, refusal.detail);
            Err(Ended::Fatal(Fatal::Feature(detail)))
        }
    }
}

async fn say(socket: &mut Socket, frame: &FromDaemon) -> Result<(), Ended> {
    let sent = socket.send(Message::Text(frame.encode().into())).await;
    sent.map_err(|error| away(error.to_string()))
}

/// The next frame of the handshake, which must make sense.
async fn next(socket: &mut Socket) -> Result<FromBroker, Ended> {
    let (Salvaged { frame, unread }, _) = hear(socket).await?;
    match (frame, unread.into_iter().next()) {
        (Some(frame), None) => Ok(frame),
        (_, Some(unread)) => Err(away(unread.why.to_string())),
        (None, None) => Err(away("a frame is empty")),
    }
}

/// The next frame, and how long it was.
async fn hear(socket: &mut Socket) -> Result<(Salvaged, usize), Ended> {
    loop {
        let text: Bytes = match socket.next().await {
            Some(Ok(Message::Text(text))) => text.into(),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
            Some(Ok(Message::Binary(_))) => return Err(away("a frame is not text")),
            Some(Ok(Message::Close(_))) | None => {
                return Err(away("the broker closed the connection"));
            }
            Some(Err(error)) => return Err(away(error.to_string())),
        };
        let said = FromBroker::salvage(&text, HANDSHAKE_BYTES_MAX.max(FRAME_BYTES_MAX));
        return match said.frame {
            Some(FromBroker::CloseReason(reason)) => {
                Err(Ended::of_close(reason.kind, &reason.detail, true))
            }
            Some(_) | None => Ok((said, text.len())),
        };
    }
}

fn unexpected(frame: &FromBroker) -> Ended {
    away(format!("{} came too early", frame.type_name()))
}

fn not_there(error: DialError) -> Ended {
    match error {
        DialError::PlainText { refusal, always: true } => {
            Ended::Fatal(Fatal::Unfit(refusal.to_string()))
        }
        // The name may mean this machine later.
        DialError::PlainText { refusal, always: false } => silent(refusal.to_string()),
        DialError::Unfit(what) => Ended::Fatal(Fatal::Unfit(what)),
        DialError::Silent(why) => silent(why),
        DialError::Away(why) => away(why),
    }
}

fn away(why: impl Into<String>) -> Ended {
    Ended::Again { why: why.into(), loss: Loss::Gone, reach: Reach::Answered }
}

/// Nothing came back at all.
fn silent(why: impl Into<String>) -> Ended {
    Ended::Again { why: why.into(), loss: Loss::Gone, reach: Reach::Silent }
}

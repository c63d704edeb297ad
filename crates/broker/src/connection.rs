//! One connection of a daemon: the handshake, then frames in both directions.
//!
//! Five parts share it. The *reader* decodes frames and hands sends to the pipeline in the order
//! in which they came; the *pusher* sends what waits for the member; the *writer* alone writes to
//! the socket, from a bounded queue; the *watch* pings and notices silence; and *presence* tells
//! who else is there, where there is room. When any of them ends, the connection does.

mod answer;
mod budget;
mod handshake;
pub(crate) mod inbound;
mod outbound;
mod presence;
mod pusher;
mod reader;
mod request;

use std::sync::Arc;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use semel_core::clock::Clock;
use semel_core::id::BrokerId;
use semel_core::mint::IdMint;
use semel_serve::Guest;
use semel_wire::close::CloseKind;
use semel_wire::frame::{CloseReason, FromBroker, MemberRevoked, Ping};
use tokio::sync::mpsc;

use self::outbound::{Outbound, Queued};
use crate::accept::Session;
use crate::hints::Hints;
use crate::http::AdminToken;
use crate::hub::{Ending, Hub, Registration};
use crate::life::StoreLife;
use crate::limits::{LINGER_MAX, OUTBOUND_MAX, PING_INTERVAL, SILENCE_MAX, Timings, WRITE_TIMEOUT};
use crate::pipeline::Pipeline;
use crate::roster::Rosters;
use crate::sessions;
use crate::store::{Mesh, Store};

/// Fresh random bytes for every challenge.
pub type Nonces = Arc<dyn Fn() -> [u8; 32] + Send + Sync>;

/// What every connection of a broker shares.
pub struct Broker {
    /// This process.
    pub broker_id: BrokerId,
    /// Where everything is kept.
    pub store: Store,
    /// How sends become batches.
    pub pipeline: Pipeline,
    /// Who is connected.
    pub hub: Arc<Hub>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// New ids.
    pub mint: Arc<IdMint>,
    /// Challenges, and tokens of invites.
    pub nonces: Nonces,
    /// How other brokers of the store are told, if it can have any.
    pub hints: Option<Hints>,
    /// Who is connected, in the meshes that have connections here.
    pub rosters: Rosters,
    /// The life of the store in which this broker began.
    pub life: StoreLife,
    /// How long things take.
    pub timings: Timings,
    /// Who shows it is the operator; nobody is without one.
    pub admin_token: Option<AdminToken>,
}

/// A connection that has shown who it is.
struct Connection {
    broker: Arc<Broker>,
    mesh: Arc<Mesh>,
    session: Session,
    registration: Registration,
    outbound: Outbound,
}

/// What waits to be written to the socket.
#[derive(Debug, PartialEq)]
enum Outgoing {
    /// A frame.
    Frame(FromBroker),
    /// A frame that is written already. Each delivery of a `push` was, once for all who get it.
    Text(String),
}

impl From<FromBroker> for Outgoing {
    fn from(frame: FromBroker) -> Self {
        Self::Frame(frame)
    }
}

impl Outgoing {
    fn into_text(self) -> String {
        match self {
            Self::Frame(frame) => frame.encode(),
            Self::Text(text) => text,
        }
    }
}

/// How a connection ends.
enum End {
    /// With a reason of ours.
    Close(CloseReason),
    /// The member may no longer take part, and is told so first.
    Revoked(CloseReason),
    /// A send was found to come from a session that is over; the store says why it is.
    Stale,
    /// Nobody can know what became of a send: no reason, no answer.
    Abandon,
    /// The reason is written; the close is left.
    Told(CloseFrame),
    /// The other side went away.
    Gone,
}

impl End {
    fn protocol_error(detail: impl Into<String>) -> Self {
        Self::Close(CloseReason::new(CloseKind::ProtocolError, detail))
    }
}

impl From<Ending> for End {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Close(reason) | Ending::Drain(reason) => Self::Close(reason),
            Ending::Revoked(reason) => Self::Revoked(reason),
            Ending::Abandon => Self::Abandon,
        }
    }
}

/// Serves a connection to its end.
pub async fn serve(broker: Arc<Broker>, guest: Guest, socket: WebSocket) {
    let (mut sink, mut stream) = socket.split();
    let greeted = handshake::run(&broker, &guest, &mut sink, &mut stream).await;
    let (connected, outbound) = match greeted {
        Ok(greeted) => greeted,
        Err(end) => return close(&mut sink, end).await,
    };
    let end = run(&connected, &mut sink, &mut stream, outbound).await;
    let end = match end {
        End::Stale => stale(&connected).await,
        End::Close(_) | End::Revoked(_) | End::Abandon | End::Told(_) | End::Gone => end,
    };
    let member_id = connected.session.member_id;
    tracing::info!(%member_id, mesh = connected.mesh.slug, "a daemon has disconnected");
    depart(connected).await;
    let lingers = matches!(end, End::Told(_));
    close(&mut sink, end).await;
    if lingers {
        // What comes now is dropped. With it unread, the system would take back what was written.
        let gone = async { while let Some(Ok(_)) = stream.next().await {} };
        let _ = tokio::time::timeout(LINGER_MAX, gone).await;
    }
}

/// Who was replaced is told by whom, and who was revoked is told that.
async fn stale(connection: &Connection) -> End {
    let Connection { broker, mesh, session, .. } = connection;
    match sessions::standing(broker, mesh.mesh_id, session).await {
        Ok(Some(ending)) => ending.into(),
        Ok(None) | Err(_) => End::Abandon,
    }
}

/// The entry goes first: a heartbeat that comes between must not write the presence again.
async fn depart(connection: Connection) {
    let Connection { broker, mesh, session, registration, outbound: _ } = connection;
    drop(registration);
    let (policy, pulse) = (mesh.connection_policy, broker.pulse());
    match broker.store.depart(mesh.mesh_id, &session, policy, pulse).await {
        Ok(()) => broker.sessions_changed(mesh.mesh_id),
        // Without heartbeats it ends by itself.
        Err(error) => tracing::warn!(error = error.chain(), "a presence could not be ended"),
    }
}

async fn run(
    connection: &Connection,
    sink: &mut SplitSink<WebSocket, Message>,
    stream: &mut SplitStream<WebSocket>,
    outbound: mpsc::Receiver<Queued>,
) -> End {
    let (acked, acks) = mpsc::channel(OUTBOUND_MAX);
    let (heard, negotiated) = (tokio::sync::Notify::new(), tokio::sync::Notify::new());
    let signals = reader::Signals { heard: &heard, negotiated: &negotiated };
    tokio::select! {
        end = reader::run(connection, stream, &acked, signals) => end,
        end = presence::run(connection, &negotiated) => end,
        end = pusher::run(connection, acks) => end,
        end = write(sink, outbound) => end,
        end = watch(connection, &heard) => end,
        end = ended(connection) => end,
    }
}

/// What others want of it. That it drains is the reader's business.
async fn ended(connection: &Connection) -> End {
    match connection.registration.peer().ending().await {
        Ending::Drain(_) => std::future::pending().await,
        ending @ (Ending::Close(_) | Ending::Revoked(_) | Ending::Abandon) => ending.into(),
    }
}

/// The one writer. A frame that cannot be written in time means a reader that is too slow. A
/// reason is the last frame: what was queued before it is written before the connection closes.
async fn write(
    sink: &mut SplitSink<WebSocket, Message>,
    mut outbound: mpsc::Receiver<Queued>,
) -> End {
    // What was handed to the socket and may still be in its buffer.
    let mut buffered = Vec::new();
    while let Some(Queued { outgoing, held }) = outbound.recv().await {
        let told = match &outgoing {
            Outgoing::Frame(FromBroker::CloseReason(reason)) => Some(close_frame(reason)),
            Outgoing::Frame(_) | Outgoing::Text(_) => None,
        };
        let message = Message::Text(outgoing.into_text().into());
        // What waits goes out together.
        buffered.extend(held);
        let is_written = if outbound.is_empty() || told.is_some() {
            let is_written = in_time(sink.send(message)).await;
            buffered.clear();
            is_written
        } else {
            in_time(sink.feed(message)).await
        };
        if !is_written {
            return End::Gone;
        }
        if let Some(frame) = told {
            return End::Told(frame);
        }
    }
    End::Gone
}

async fn send(sink: &mut SplitSink<WebSocket, Message>, frame: &FromBroker) -> bool {
    in_time(sink.send(Message::Text(frame.encode().into()))).await
}

async fn in_time<E>(writing: impl Future<Output = Result<(), E>>) -> bool {
    matches!(tokio::time::timeout(WRITE_TIMEOUT, writing).await, Ok(Ok(())))
}

/// Pings, and gives up on a daemon that says nothing at all for too long.
async fn watch(connection: &Connection, heard: &tokio::sync::Notify) -> End {
    let mut id = 0;
    let mut silent = std::time::Duration::ZERO;
    loop {
        match tokio::time::timeout(PING_INTERVAL, heard.notified()).await {
            Ok(()) => silent = std::time::Duration::ZERO,
            Err(_) => {
                silent += PING_INTERVAL;
                if silent >= SILENCE_MAX {
                    return End::Gone;
                }
                id += 1;
                connection.outbound.send(FromBroker::Ping(Ping { id })).await;
            }
        }
    }
}

async fn close(sink: &mut SplitSink<WebSocket, Message>, end: End) {
    if matches!(end, End::Revoked(_))
        && !send(sink, &FromBroker::MemberRevoked(MemberRevoked {})).await
    {
        return;
    }
    let frame = match end {
        End::Gone => return,
        End::Abandon | End::Stale => CloseFrame { code: 1011, reason: "".into() },
        End::Told(frame) => frame,
        End::Close(reason) | End::Revoked(reason) => {
            // A close frame holds 123 bytes, so the whole reason goes out as a frame before it.
            let frame = close_frame(&reason);
            if !send(sink, &FromBroker::CloseReason(reason)).await {
                return;
            }
            frame
        }
    };
    let _ = tokio::time::timeout(WRITE_TIMEOUT, sink.send(Message::Close(Some(frame)))).await;
}

fn close_frame(reason: &CloseReason) -> CloseFrame {
    CloseFrame { code: reason.kind.code().as_u16(), reason: reason.close_text().into() }
}

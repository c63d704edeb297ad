//! The broker's door: a WebSocket for daemons, and what an operator's tools look at.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use semel_serve::{ConnectionLimits, Connections, Guest, Place, StrangerLimits};
use semel_vital::Vital;
use semel_wire::close::CloseKind;
use semel_wire::frame::CloseReason;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::connection::{self as daemon, Broker};
use crate::hub::{Ending, Hub};
use crate::limits::{
    ACCEPT_RETRY, CONNECTIONS_MAX, DRAIN_ASK_AGAIN, DRAIN_MAX, FIRST_HEAD_TIMEOUT, HEAD_BYTES_MAX,
    HEAD_TIMEOUT, HELLO_BYTES_MAX, STRANGER_BYTES_MAX, STRANGER_GRACE, STRANGER_LIFE,
    STRANGERS_MAX, STRANGERS_OF_ADDRESS_MAX, TLS_HANDSHAKE_TIMEOUT, WRITE_TIMEOUT,
};
use crate::readiness::Readiness;
use crate::{http, metrics, sessions};

/// The subprotocol of docs/protocol.md.
pub const SUBPROTOCOL: &str = "semel.v1";

/// Frames larger than this are never read, whatever a mesh allows.
const FRAME_BYTES_MAX: usize = 16 << 20;

/// What a connection may have unwritten in memory.
const WRITE_BUFFER_BYTES_MAX: usize = 32 << 20;

/// What is read from a connection at a time. It is filled with zeros for every read, and most
/// frames of a daemon are an acknowledgement.
const READ_BUFFER_BYTES: usize = 8 << 10;

/// How the door is kept.
pub struct Options {
    /// Who this broker is; without it everything is plain text.
    pub tls: Option<Arc<ServerConfig>>,
    /// How long a TLS handshake may take.
    pub tls_handshake_timeout: Duration,
    /// How many may come, and how slowly.
    pub connections: ConnectionLimits,
    /// Paths of others that are served by the same door.
    pub routes: Router,
    /// A second way in, in plain text: for the daemon of the same process.
    pub own: Option<TcpListener>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tls: None,
            tls_handshake_timeout: TLS_HANDSHAKE_TIMEOUT,
            connections: room(CONNECTIONS_MAX),
            routes: Router::new(),
            own: None,
        }
    }
}

/// The limits of a door with so many connections, of strangers and of those who are known.
pub fn room(connections: usize) -> ConnectionLimits {
    let strangers_max = (connections / 4).clamp(1, STRANGERS_MAX);
    ConnectionLimits {
        connections_max: connections.saturating_sub(strangers_max).max(1),
        strangers: StrangerLimits {
            strangers_max,
            of_address_max: STRANGERS_OF_ADDRESS_MAX,
            first_head_timeout: FIRST_HEAD_TIMEOUT,
            life: STRANGER_LIFE,
            bytes_max: STRANGER_BYTES_MAX,
            grace: STRANGER_GRACE,
        },
        head_timeout: HEAD_TIMEOUT,
        head_bytes_max: HEAD_BYTES_MAX,
        write_timeout: Some(WRITE_TIMEOUT),
    }
}

#[derive(Clone)]
struct Door {
    broker: Arc<Broker>,
    draining: Arc<AtomicBool>,
    readiness: Arc<Readiness>,
}

/// Serves in plain text until `shutdown` comes, with the limits of this crate. An error when the
/// store was found in another life than the one in which the broker began, or when a part has ended
/// that it cannot do without.
pub async fn serve(
    broker: Arc<Broker>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_with(Options::default(), broker, listener, shutdown).await
}

/// Serves until `shutdown` comes, then lets every connection go and waits for them, within limits.
pub async fn serve_with(
    options: Options,
    broker: Arc<Broker>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let door = Door {
        broker: Arc::clone(&broker),
        draining: Arc::new(AtomicBool::new(false)),
        readiness: Arc::default(),
    };
    let draining = Arc::clone(&door.draining);
    let routes = Router::new()
        .route("/v1/mesh", get(mesh))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .with_state(door)
        .merge(options.routes)
        .merge(http::router(Arc::clone(&broker)));
    sessions::begin(&broker).await;
    // Its sender goes with this future, and the task with it.
    let (_serving, ended) = tokio::sync::oneshot::channel();
    let vital = Vital::default();
    drop(vital.spawn("sessions", sessions::run(Arc::clone(&broker), ended)));
    let connections = Connections::new(options.connections);
    let tls = options.tls.map(|config| (TlsAcceptor::from(config), options.tls_handshake_timeout));
    let (mut shutdown, own) = (pin!(shutdown), options.own);
    loop {
        let (place, stream, whose) = tokio::select! {
            () = &mut shutdown => break,
            () = broker.life.is_over() => {
                broker.hub.end_all(&Ending::Abandon);
                return Err(io::Error::other("the store was restored while this broker ran"));
            }
            ended = vital.ended() => {
                broker.hub.end_all(&Ending::Abandon);
                return Err(io::Error::other(ended));
            }
            Some(accepted) = accept(&connections, &listener, own.as_ref()) => accepted,
            else => break,
        };
        // In a task of its own from the first byte on: nobody waits for another's handshake.
        let tls = tls.clone().filter(|_| whose == Whose::Anybody);
        drop(tokio::spawn(serve_one(place, stream, tls, routes.clone())));
    }
    draining.store(true, Ordering::SeqCst);
    drop((listener, own));
    drain(&broker.hub, &connections).await;
    Ok(())
}

/// Which way somebody has come in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Anybody,
    Own,
}

/// The next connection, once there is room for a stranger.
async fn accept(
    connections: &Connections,
    listener: &TcpListener,
    own: Option<&TcpListener>,
) -> Option<(Place, TcpStream, Whose)> {
    let accept_own = || async {
        match own {
            Some(own) => own.accept().await,
            None => std::future::pending().await,
        }
    };
    loop {
        let room = connections.room().await?;
        let (accepted, whose) = tokio::select! {
            accepted = listener.accept() => (accepted, Whose::Anybody),
            accepted = accept_own() => (accepted, Whose::Own),
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(place) = room.stranger(peer.ip()) else { continue };
                // Frames are small and somebody waits for each: none is held back to fill a packet.
                let _ = stream.set_nodelay(true);
                return Some((place, stream, whose));
            }
            Err(error) if went_away(&error) => {}
            Err(error) => {
                // No descriptors are left, or no memory: it passes when others leave.
                tracing::error!(%error, "connections cannot be accepted; trying again");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Whether the fault is of the one connection that was to be accepted.
fn went_away(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

async fn serve_one(
    mut place: Place,
    stream: TcpStream,
    tls: Option<(TlsAcceptor, Duration)>,
    routes: Router,
) {
    let routes = TowerToHyperService::new(routes);
    let Some((acceptor, handshake_timeout)) = tls else {
        return place.serve(stream, routes).await;
    };
    let shaken = tokio::select! {
        shaken = timeout(handshake_timeout, acceptor.accept(stream)) => shaken,
        () = place.stopping() => return,
    };
    match shaken {
        Ok(Ok(stream)) => place.serve(stream, routes).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake has failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

async fn drain(hub: &Hub, connections: &Connections) {
    connections.stop();
    let reason = CloseReason::new(CloseKind::Draining, "the broker is stopping");
    let all_gone = async {
        // Again and again: a daemon whose hello was under way has come in since.
        loop {
            hub.end_all(&Ending::Drain(reason.clone()));
            if timeout(DRAIN_ASK_AGAIN, connections.drained()).await.is_ok() {
                return;
            }
        }
    };
    if timeout(DRAIN_MAX, all_gone).await.is_err() {
        tracing::warn!(left = hub.connections(), "not every connection has ended in time");
    }
}

async fn mesh(
    State(door): State<Door>,
    Extension(guest): Extension<Guest>,
    upgrade: WebSocketUpgrade,
) -> Response {
    if door.draining.load(Ordering::SeqCst) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    guest.allow(HELLO_BYTES_MAX);
    upgrade
        .protocols([SUBPROTOCOL])
        .max_message_size(FRAME_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_write_buffer_size(WRITE_BUFFER_BYTES_MAX)
        .read_buffer_size(READ_BUFFER_BYTES)
        .on_upgrade(move |socket| daemon::serve(door.broker, guest, socket))
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(door): State<Door>) -> (StatusCode, &'static str) {
    if door.draining.load(Ordering::SeqCst) {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    // In a task of its own: who goes away must not cut the look that others share (traps.md 49).
    let looking = tokio::spawn(async move { door.readiness.look(&door.broker).await });
    match looking.await.unwrap_or(Err("the store could not be checked\n")) {
        Ok(()) => (StatusCode::OK, "ready\n"),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

async fn scrape(State(door): State<Door>) -> Response {
    let pipeline = &door.broker.pipeline;
    let live = metrics::Live {
        connections: door.broker.hub.connections(),
        limiter: pipeline.limiter_counts(),
        unwritten: door.broker.hub.unwritten(),
    };
    match pipeline.metrics().encode(&live) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

//! The broker's door: a WebSocket for daemons, and what an operator's tools look at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use semel_wire::close::CloseKind;
use semel_wire::frame::CloseReason;
use tokio::net::TcpListener;

use crate::connection::{self, Broker};
use crate::limits::DRAIN_MAX;

/// The subprotocol of docs/protocol.md.
pub const SUBPROTOCOL: &str = "semel.v1";

/// Frames larger than this are never read, whatever a mesh allows.
const FRAME_BYTES_MAX: usize = 16 << 20;

/// What a connection may have unwritten in memory.
const WRITE_BUFFER_BYTES_MAX: usize = 32 << 20;

#[derive(Clone)]
struct Door {
    broker: Arc<Broker>,
    draining: Arc<AtomicBool>,
}

/// Serves until `shutdown` comes, then lets every connection go and waits for them, within limits.
pub async fn serve(
    broker: Arc<Broker>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let door = Door { broker: Arc::clone(&broker), draining: Arc::new(AtomicBool::new(false)) };
    let draining = Arc::clone(&door.draining);
    let routes = Router::new()
        .route("/v1/mesh", get(mesh))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(door);
    let (drained, wait) = tokio::sync::oneshot::channel::<()>();
    let stop = async move {
        shutdown.await;
        draining.store(true, Ordering::SeqCst);
        let reason = CloseReason::new(CloseKind::Draining, "the broker is stopping");
        broker.hub.close_all(&reason);
        let _ = drained.send(());
    };
    let serving = axum::serve(listener, routes).with_graceful_shutdown(stop);
    let limit = async {
        // Without a shutdown there is no limit.
        if wait.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(DRAIN_MAX).await;
    };
    tokio::select! {
        served = serving.into_future() => served,
        () = limit => Ok(()),
    }
}

async fn mesh(State(door): State<Door>, upgrade: WebSocketUpgrade) -> Response {
    if door.draining.load(Ordering::SeqCst) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    upgrade
        .protocols([SUBPROTOCOL])
        .max_message_size(FRAME_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_write_buffer_size(WRITE_BUFFER_BYTES_MAX)
        .on_upgrade(move |socket| connection::serve(door.broker, socket))
}

async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(door): State<Door>) -> (StatusCode, &'static str) {
    if door.draining.load(Ordering::SeqCst) {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n");
    }
    match door.broker.store.store_epoch().await {
        Ok(_) => (StatusCode::OK, "ready\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the store is not reachable\n"),
    }
}

//! What the daemon says of itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use semel_api::access::Door;
use semel_api::problem::Problem;
use semel_api::route::{Call, JSON, Reply};
use semel_core::code::Code;
use semel_core::rfc3339;
use semel_wire::features::{Feature, Negotiated};
use serde_json::{Map, Value, json};

use super::Daemon;
use super::metrics::{CONTENT, Live};
use crate::limits::TOKEN_GRACE;
use crate::link::LinkState;
use crate::store::{INBOX_MIGRATIONS, OUTBOX_MIGRATIONS};

/// The version of this API.
const IPC_API: u32 = 1;

/// What this API can do, for clients that are newer or older.
const IPC_FEATURES: &[&str] = &[
    "send",
    "topics",
    "queues",
    "inbox",
    "inbox_search",
    "inbox_readers",
    "inbox_aside",
    "outbox",
    "events",
];

/// The schema of the databases: the newest of both.
fn schema_version() -> u32 {
    let sets = [OUTBOX_MIGRATIONS, INBOX_MIGRATIONS];
    let versions = sets.iter().flat_map(|set| set.migrations).map(|migration| migration.version);
    versions.max().unwrap_or(0)
}

/// `GET /v1/health`.
pub(super) async fn health(call: Call<Daemon>) -> Result<Reply, Problem> {
    let daemon = &call.state;
    let (waiting, dead) = daemon.engine.outbox.counts().await?;
    let link = daemon.link.borrow().clone();
    let lag_ms = link.lag.map(|lag| u64::try_from(lag.as_millis()).unwrap_or(u64::MAX));
    let uptime = daemon.clock.monotonic().saturating_sub(daemon.began);
    Ok(Reply::value(&json!({
        "connected": link.state == LinkState::Connected,
        "state": link.state.as_str(),
        "since": rfc3339::format(link.since),
        "last_error": link.last_error,
        "lag_ms": lag_ms,
        "queue_depth": waiting,
        "dead": dead,
        "inflight": link.inflight,
        "outbox_pressure": daemon.engine.outbox.pressure().as_str(),
        "inbox_full": daemon.engine.inbox.is_full(),
        "set_aside": daemon.engine.inbox.aside_count().await?,
        "mesh": daemon.member.mesh,
        "member_id": link.member_id.map(|id| id.to_string()),
        "member_pubkey": daemon.member.pubkey,
        "uptime_s": uptime.as_secs(),
        "parts": call.api().parts_health().await,
        "schema_version": schema_version(),
        "versions": {"daemon": daemon.member.version, "ipc_api": IPC_API},
    })))
}

/// `GET /v1/version`.
pub(super) async fn version(call: Call<Daemon>) -> Result<Reply, Problem> {
    let daemon = &call.state;
    let negotiated = daemon.link.borrow().negotiated.as_ref().map(features);
    Ok(Reply::value(&json!({
        "daemon_version": daemon.member.version,
        "mesh": daemon.member.mesh,
        "ipc_api": IPC_API,
        "ipc_features": IPC_FEATURES,
        "schema_version": schema_version(),
        "broker_features_negotiated": negotiated.unwrap_or_else(|| json!({})),
    })))
}

/// What the broker offered, by the names of the features.
fn features(negotiated: &Negotiated) -> Value {
    let mut features = Map::new();
    let mut put = |feature: Feature, params: Value| {
        features.insert(feature.as_str().to_owned(), params);
    };
    if let Some(dedupe) = &negotiated.dedupe {
        put(Feature::ClientMessageIdDedupe, json!({"window": format!("{:?}", dedupe.window)}));
    }
    if let Some(policy) = negotiated.connection_policy {
        put(Feature::ConcurrentConnectionPolicy, json!({"default_policy": policy.as_str()}));
    }
    if negotiated.member_keypair_rotated_event {
        put(Feature::MemberKeypairRotatedEvent, json!({}));
    }
    if let Some(epochs) = negotiated.max_concurrent_epochs {
        put(Feature::KeyEpoch, json!({"max_concurrent_epochs": epochs}));
    }
    if let Some(max) = &negotiated.max_payload {
        let params = json!({"inline_bytes": max.inline_bytes, "blob_bytes": max.blob_bytes});
        put(Feature::MaxPayload, params);
    }
    Value::Object(features)
}

/// `GET /v1/compat`.
pub(super) async fn compat(call: Call<Daemon>) -> Result<Reply, Problem> {
    let version = &call.state.member.version;
    Ok(Reply::value(&json!({
        "daemon_version": version,
        "ipc_api": {"min": IPC_API, "max": IPC_API},
        "broker": {"protocol": "semel.v1", "required_features": Feature::REQUIRED,
                   "optional_features": Feature::OPTIONAL},
        "cli": {"min": version},
        "sdk": {"ipc_api": IPC_API},
        "schema_version": schema_version(),
    })))
}

/// `POST /v1/heartbeat`.
pub(super) async fn heartbeat(call: Call<Daemon>) -> Result<Reply, Problem> {
    let connected = call.state.link.borrow().state == LinkState::Connected;
    let at = rfc3339::format(call.state.clock.wall());
    Ok(Reply::value(&json!({"status": "ok", "at": at, "connected": connected})))
}

/// `POST /v1/token/rotate`. Who has only a token must not be able to lock its owner out.
pub(super) async fn rotate_token(call: Call<Daemon>) -> Result<Reply, Problem> {
    match call.door {
        Door::Socket => {}
        Door::Tcp => {
            let detail = "the token can be replaced over the socket only";
            return Err(Problem::new(Code::SocketOnly, detail));
        }
    }
    let tokens = Arc::clone(call.api().tokens());
    let rotated = tokio::task::spawn_blocking(move || tokens.rotate()).await;
    if !rotated.unwrap_or(false) {
        let detail = "the new token could not be written: the old one stays valid";
        return Err(Problem::new(Code::StoreUnavailable, detail));
    }
    call.state.token_rotations.fetch_add(1, Ordering::Relaxed);
    tracing::info!(security = true, "the token of the local API was replaced");
    Ok(Reply::value(&json!({"grace_s": TOKEN_GRACE.as_secs()})))
}

/// `GET /v1/metrics`.
pub(super) async fn metrics(call: Call<Daemon>) -> Result<Reply, Problem> {
    let daemon = &call.state;
    let (waiting, dead) = daemon.engine.outbox.counts().await?;
    let oldest = daemon.engine.outbox.oldest_pending().await?;
    let link = daemon.link.borrow().clone();
    let now = daemon.clock.wall();
    let live = Live {
        connected: link.state == LinkState::Connected,
        reconnects: link.reconnects,
        received: daemon.engine.inbox.received(),
        repeated: daemon.engine.inbox.repeated(),
        nonsense: daemon.engine.inbox.nonsense(),
        inbox_full: daemon.engine.inbox.is_full(),
        outbox_pct: daemon.engine.outbox.percent().0,
        inbox_pct: daemon.engine.inbox.percent(),
        disk_pct: daemon.engine.outbox.percent().1,
        token_rotations: daemon.token_rotations.load(Ordering::Relaxed),
        lag: link.lag,
        waiting,
        inflight: link.inflight as u64,
        dead,
        oldest_ms: oldest.map_or(0, |oldest| now.0.saturating_sub(oldest.0).max(0)),
        accepted: daemon.engine.outbox.accepted(),
        outbox_bytes: daemon.engine.outbox.bytes(),
        inbox_bytes: daemon.engine.inbox.bytes(),
    };
    Ok(Reply::text(CONTENT, daemon.metrics.encode(call.api(), &live)))
}

/// `GET /v1/openapi.json`.
pub(super) async fn openapi_json(call: Call<Daemon>) -> Result<Reply, Problem> {
    Ok(Reply::text(JSON, call.api().openapi().to_owned()))
}

//! What the daemon says of itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use semel_core::code::Code;
use semel_core::rfc3339;
use semel_wire::features::{Feature, Negotiated};
use serde_json::{Map, Value, json};

use super::access::Door;
use super::metrics::{CONTENT, Live};
use super::openapi;
use super::problem::Problem;
use super::route::{Call, JSON, Reply};
use crate::limits::TOKEN_GRACE;
use crate::link::LinkState;
use crate::store::{INBOX_MIGRATIONS, OUTBOX_MIGRATIONS};

/// The version of this API.
const IPC_API: u32 = 1;

/// What this API can do, for clients that are newer or older.
const IPC_FEATURES: &[&str] =
    &["send", "topics", "queues", "inbox", "inbox_search", "inbox_readers", "outbox", "events"];

/// The schema of the databases: the newest of both.
fn schema_version() -> u32 {
    let sets = [OUTBOX_MIGRATIONS, INBOX_MIGRATIONS];
    let versions = sets.iter().flat_map(|set| set.migrations).map(|migration| migration.version);
    versions.max().unwrap_or(0)
}

/// `GET /v1/health`.
pub(super) async fn health(call: Call) -> Result<Reply, Problem> {
    let api = &call.api;
    let (waiting, dead) = api.engine.outbox.counts().await?;
    let link = api.link.borrow().clone();
    let lag_ms = link.lag.map(|lag| u64::try_from(lag.as_millis()).unwrap_or(u64::MAX));
    let uptime = api.clock.monotonic().saturating_sub(api.began);
    Ok(Reply::value(&json!({
        "connected": link.state == LinkState::Connected,
        "state": link.state.as_str(),
        "since": rfc3339::format(link.since),
        "last_error": link.last_error,
        "lag_ms": lag_ms,
        "queue_depth": waiting,
        "dead": dead,
        "inflight": link.inflight,
        "outbox_pressure": api.engine.outbox.pressure().as_str(),
        "mesh": api.options.mesh,
        "member_id": link.member_id.map(|id| id.to_string()),
        "member_pubkey": api.options.pubkey,
        "uptime_s": uptime.as_secs(),
        "schema_version": schema_version(),
        "versions": {"daemon": api.options.version, "ipc_api": IPC_API},
    })))
}

/// `GET /v1/version`.
pub(super) async fn version(call: Call) -> Result<Reply, Problem> {
    let api = &call.api;
    let negotiated = api.link.borrow().negotiated.as_ref().map(features);
    Ok(Reply::value(&json!({
        "daemon_version": api.options.version,
        "mesh": api.options.mesh,
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
pub(super) async fn compat(call: Call) -> Result<Reply, Problem> {
    let version = &call.api.options.version;
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
pub(super) async fn heartbeat(call: Call) -> Result<Reply, Problem> {
    let connected = call.api.link.borrow().state == LinkState::Connected;
    let at = rfc3339::format(call.api.clock.wall());
    Ok(Reply::value(&json!({"status": "ok", "at": at, "connected": connected})))
}

/// `POST /v1/token/rotate`. Who has only a token must not be able to lock its owner out.
pub(super) async fn rotate_token(call: Call) -> Result<Reply, Problem> {
    match call.door {
        Door::Socket => {}
        Door::Tcp => {
            let detail = "the token is replaced over the socket only";
            return Err(Problem::new(Code::SocketOnly, detail));
        }
    }
    let tokens = Arc::clone(&call.api.tokens);
    let rotated = tokio::task::spawn_blocking(move || tokens.rotate()).await;
    if !rotated.unwrap_or(false) {
        let detail = "the new token could not be written: the old one stays";
        return Err(Problem::new(Code::StoreUnavailable, detail));
    }
    call.api.token_rotations.fetch_add(1, Ordering::Relaxed);
    tracing::info!(security = true, "the token of the local API was replaced");
    Ok(Reply::value(&json!({"grace_s": TOKEN_GRACE.as_secs()})))
}

/// `GET /v1/metrics`.
pub(super) async fn metrics(call: Call) -> Result<Reply, Problem> {
    let api = &call.api;
    let (waiting, dead) = api.engine.outbox.counts().await?;
    let oldest = api.engine.outbox.oldest_pending().await?;
    let link = api.link.borrow().clone();
    let now = api.clock.wall();
    let live = Live {
        connected: link.state == LinkState::Connected,
        reconnects: link.reconnects,
        received: api.engine.inbox.received(),
        repeated: api.engine.inbox.repeated(),
        outbox_pct: api.engine.outbox.percent().0,
        disk_pct: api.engine.outbox.percent().1,
        token_rotations: api.token_rotations.load(Ordering::Relaxed),
        lag: link.lag,
        waiting,
        inflight: link.inflight as u64,
        dead,
        oldest_ms: oldest.map_or(0, |oldest| now.0.saturating_sub(oldest.0).max(0)),
        accepted: api.engine.outbox.accepted(),
        outbox_bytes: api.engine.outbox.bytes(),
        inbox_bytes: api.engine.inbox.bytes(),
    };
    Ok(Reply::text(CONTENT, api.metrics.encode(&live)))
}

/// `GET /v1/openapi.json`.
pub(super) async fn openapi_json(_: Call) -> Result<Reply, Problem> {
    Ok(Reply::text(JSON, openapi::document().to_owned()))
}

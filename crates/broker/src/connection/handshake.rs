//! `challenge` → `hello` → `hello_ack` (broker.md). Nothing is read from a daemon before it has
//! shown its key, and nothing is said to it before its raised epoch is on disk.

use std::sync::Arc;

use axum::extract::ws::{Message, WebSocket};
use futures_util::StreamExt;
use futures_util::stream::{SplitSink, SplitStream};
use semel_core::hex::Hex;
use semel_crypto::clock::clock_skew_ok;
use semel_crypto::hello::{HelloClaim, verify};
use semel_crypto::keys::PublicKey;
use semel_serve::Guest;
use semel_wire::close::CloseKind;
use semel_wire::frame::{Challenge, CloseReason, FromBroker, FromDaemon, Hello, HelloAck};
use semel_wire::limits::HANDSHAKE_BYTES_MAX;
use tokio::sync::mpsc;

use super::outbound::{Outbound, Queued};
use super::{Broker, Connection, End, depart, send};
use crate::limits::HELLO_TIMEOUT;
use crate::store::{Greeted, Live, Mesh, NewSession};

type Connected = (Connection, mpsc::Receiver<Queued>);

pub(super) async fn run(
    broker: &Arc<Broker>,
    guest: &Guest,
    sink: &mut SplitSink<WebSocket, Message>,
    stream: &mut SplitStream<WebSocket>,
) -> Result<Connected, End> {
    let challenge = Challenge {
        nonce: Hex((broker.nonces)()),
        broker_id: broker.broker_id,
        time: broker.clock.wall(),
    };
    if !send(sink, &FromBroker::Challenge(challenge.clone())).await {
        return Err(End::Gone);
    }
    let hello = tokio::time::timeout(HELLO_TIMEOUT, read_hello(stream)).await;
    let hello = hello.map_err(|_| End::protocol_error("no hello came in time"))??;
    prove(broker, &challenge, &hello)?;
    if hello.retire.contains(&hello.instance_id) {
        return Err(End::protocol_error("an instance cannot retire itself"));
    }
    admit(broker, guest, sink, &hello).await
}

async fn read_hello(stream: &mut SplitStream<WebSocket>) -> Result<Hello, End> {
    let text = match stream.next().await {
        Some(Ok(Message::Text(text))) => text,
        Some(Ok(_)) => return Err(End::protocol_error("hello must be a text frame")),
        Some(Err(_)) | None => return Err(End::Gone),
    };
    match FromDaemon::decode(text.as_bytes(), HANDSHAKE_BYTES_MAX) {
        Ok(FromDaemon::Hello(hello)) => Ok(hello),
        Ok(other) => {
            let detail = format!("hello must come first, not {}", other.type_name());
            Err(End::protocol_error(detail))
        }
        Err(refusal) => Err(End::protocol_error(refusal.to_string())),
    }
}

/// A key that is claimed is proven, for this broker and this challenge.
fn prove(broker: &Broker, challenge: &Challenge, hello: &Hello) -> Result<(), End> {
    let claim = HelloClaim {
        broker_id: broker.broker_id,
        broker_nonce: challenge.nonce,
        mesh: &hello.mesh,
        key_id: &hello.key_id,
        instance_id: hello.instance_id,
        host_fingerprint: hello.host_fingerprint,
        hello_nonce: hello.nonce,
        time: hello.time,
        retire: &hello.retire,
    };
    let key = PublicKey::from_bytes(hello.pubkey).map_err(|_| unauthorised())?;
    verify(&key, &claim, &hello.signature).map_err(|_| unauthorised())?;
    if !clock_skew_ok(broker.clock.wall(), hello.time) {
        let detail = "the clocks of daemon and broker differ by more than five minutes";
        return Err(End::Close(CloseReason::new(CloseKind::Unauthorised, detail)));
    }
    Ok(())
}

/// Who is refused learns no more than that.
fn unauthorised() -> End {
    let detail = "the signature is wrong, or the member is not known in this mesh";
    End::Close(CloseReason::new(CloseKind::Unauthorised, detail))
}

async fn admit(
    broker: &Arc<Broker>,
    guest: &Guest,
    sink: &mut SplitSink<WebSocket, Message>,
    hello: &Hello,
) -> Result<Connected, End> {
    // Without the store nobody can be admitted, and nothing definite be said.
    let failed = |error: semel_store::StoreError| {
        tracing::warn!(error = error.chain(), "a hello could not be recorded");
        End::Abandon
    };
    let mesh = broker.store.mesh_find(&hello.mesh).await.map_err(failed)?;
    let mut mesh = mesh.ok_or_else(unauthorised)?;
    let new = new_session(broker, &mesh, hello);
    let session = match broker.store.hello(&new).await.map_err(failed)? {
        Greeted::Welcome { session, name: _, policy } => {
            mesh.connection_policy = policy;
            session
        }
        refused @ (Greeted::Unknown
        | Greeted::Inactive
        | Greeted::Retired
        | Greeted::TooManyRetired
        | Greeted::AlreadyConnected
        | Greeted::Restored) => return Err(refusal(broker, &refused)),
    };
    // Swap first, close the old ones after.
    let live = Live { session, host_fingerprint: hello.host_fingerprint };
    let (registration, older) = broker.hub.register(mesh.mesh_id, live, mesh.connection_policy);
    for peer in older {
        let detail = "a newer connection of this member has replaced it";
        let mut reason = CloseReason::new(CloseKind::Replaced, detail);
        reason.nonce = Some(hello.nonce);
        peer.close(reason);
    }
    broker.sessions_changed(mesh.mesh_id);
    let (outbound, queue) = Outbound::new(&broker.hub.unwritten);
    let (broker, mesh) = (Arc::clone(broker), Arc::new(mesh));
    let connection = Connection { broker, mesh, session, registration, outbound };
    // Those whose place it takes have been asked to leave: only with others can it be full.
    if !guest.known().await {
        tracing::warn!("there is no room for one more daemon: see ulimit -n");
        depart(connection).await;
        return Err(End::Gone);
    }
    let ack = HelloAck {
        member_id: session.member_id,
        session_epoch: session.epoch,
        store_epoch: connection.broker.life.epoch().to_owned(),
        server_time: connection.broker.clock.wall(),
        next_seq: connection.mesh.next_seq,
    };
    if !send(sink, &FromBroker::HelloAck(ack)).await {
        depart(connection).await;
        return Err(End::Gone);
    }
    let slug = &connection.mesh.slug;
    tracing::info!(member_id = %session.member_id, mesh = slug, "a daemon has connected");
    Ok((connection, queue))
}

fn new_session(broker: &Broker, mesh: &Mesh, hello: &Hello) -> NewSession {
    NewSession {
        mesh_id: mesh.mesh_id,
        pubkey: hello.pubkey.to_string(),
        key_id: hello.key_id.clone(),
        instance_id: hello.instance_id,
        broker_id: broker.broker_id,
        hello_nonce: hello.nonce,
        host_fingerprint: hello.host_fingerprint,
        retire: hello.retire.clone(),
        store_epoch: broker.life.epoch().to_owned(),
        now: broker.clock.wall(),
        pulse: broker.pulse(),
        event_ids: [(); 3].map(|()| broker.mint.uuid()),
    }
}

/// How a daemon is told that it is not welcome.
fn refusal(broker: &Broker, greeted: &Greeted) -> End {
    let close = |kind, detail: &str| End::Close(CloseReason::new(kind, detail));
    match greeted {
        Greeted::Inactive => close(CloseKind::Revoked, "the member was revoked or has left"),
        Greeted::Retired => close(CloseKind::Revoked, "the instance was retired"),
        Greeted::TooManyRetired => {
            let detail = "the member has retired the maximal number of instances";
            close(CloseKind::Revoked, detail)
        }
        Greeted::AlreadyConnected => {
            let detail = "another instance is connected, and the mesh prefers the oldest";
            close(CloseKind::AlreadyConnected, detail)
        }
        Greeted::Restored => {
            broker.life.end();
            End::Abandon
        }
        Greeted::Unknown | Greeted::Welcome { .. } => unauthorised(),
    }
}

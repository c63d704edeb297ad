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
use semel_wire::close::CloseKind;
use semel_wire::frame::{Challenge, CloseReason, FromBroker, FromDaemon, Hello, HelloAck};
use semel_wire::limits::HANDSHAKE_BYTES_MAX;
use tokio::sync::mpsc;

use super::{Broker, Connection, End, send};
use crate::limits::{HELLO_TIMEOUT, OUTBOUND_MAX};
use crate::store::{Greeted, NewSession};

type Connected = (Connection, mpsc::Receiver<FromBroker>);

pub(super) async fn run(
    broker: &Arc<Broker>,
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
    admit(broker, sink, &hello).await
}

async fn read_hello(stream: &mut SplitStream<WebSocket>) -> Result<Hello, End> {
    let text = match stream.next().await {
        Some(Ok(Message::Text(text))) => text,
        Some(Ok(_)) => return Err(End::protocol_error("hello is a text frame")),
        Some(Err(_)) | None => return Err(End::Gone),
    };
    match FromDaemon::decode(text.as_bytes(), HANDSHAKE_BYTES_MAX) {
        Ok(FromDaemon::Hello(hello)) => Ok(hello),
        Ok(other) => {
            let detail = format!("hello comes first, not {}", other.type_name());
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
    sink: &mut SplitSink<WebSocket, Message>,
    hello: &Hello,
) -> Result<Connected, End> {
    // Without the store nobody can be admitted, and nothing definite be said.
    let failed = |error: semel_store::StoreError| {
        tracing::warn!(error = error.chain(), "a hello could not be recorded");
        End::Abandon
    };
    let mesh = broker.store.mesh_find(&hello.mesh).await.map_err(failed)?;
    let mesh = Arc::new(mesh.ok_or_else(unauthorised)?);
    let new = NewSession {
        mesh_id: mesh.mesh_id,
        pubkey: hello.pubkey.to_string(),
        instance_id: hello.instance_id,
        broker_id: broker.broker_id,
    };
    let session = match broker.store.hello(&new).await.map_err(failed)? {
        Greeted::Welcome { session, .. } => session,
        Greeted::Unknown => return Err(unauthorised()),
        Greeted::Inactive => {
            let detail = "the member was revoked or has left";
            return Err(End::Close(CloseReason::new(CloseKind::Revoked, detail)));
        }
    };
    let store_epoch = broker.store.store_epoch().await.map_err(failed)?;
    // Swap first, close the old ones after.
    let (registration, older) = broker.hub.register(mesh.mesh_id, session.member_id);
    for peer in older {
        let detail = "a newer connection of this member has taken its place";
        let mut reason = CloseReason::new(CloseKind::Replaced, detail);
        reason.nonce = Some(hello.nonce);
        peer.close(reason);
    }
    let ack = HelloAck {
        member_id: session.member_id,
        session_epoch: session.epoch,
        store_epoch,
        server_time: broker.clock.wall(),
    };
    if !send(sink, &FromBroker::HelloAck(ack)).await {
        return Err(End::Gone);
    }
    tracing::info!(member_id = %session.member_id, mesh = mesh.slug, "a daemon has connected");
    let (outbound, queue) = mpsc::channel(OUTBOUND_MAX);
    let broker = Arc::clone(broker);
    Ok((Connection { broker, mesh, session, registration, outbound }, queue))
}

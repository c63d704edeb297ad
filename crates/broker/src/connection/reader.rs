//! Frames from a daemon, in the order in which they come.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::ws::{Message, WebSocket};
use futures_util::StreamExt;
use futures_util::stream::SplitStream;
use semel_core::id::ClientMessageId;
use semel_core::max_age::DedupeWindow;
use semel_core::rfc3339::TIME_MAX;
use semel_wire::features::{Dedupe, MaxPayload, Offer};
use semel_wire::frame::{
    CloseReason, FeatureNegotiationRequest, FromBroker, FromDaemon, Pong, Resolve, ResolveResult,
    ResolvedItem, SendFrame, Verdict,
};
use semel_wire::limits::frame_bytes_max;
use tokio::sync::{Notify, mpsc, oneshot};

use super::budget::Budget;
use super::inbound::{Inbound, Taken};
use super::outbound::Outbound;
use super::{Connection, End, answer, presence, request};
use crate::accept::{Age, DedupeMode};
use crate::hub::Ending;
use crate::limits::RESOLVE_ANSWER_BYTES;
use crate::pipeline::Answer;
use crate::store::Resolved;

/// What the reader needs besides the connection.
struct Reader<'a> {
    connection: &'a Connection,
    budget: Budget,
    /// Room for sends that are not answered yet.
    inbound: Inbound,
    /// Sends that are to be answered, no more than there are places.
    awaited: mpsc::UnboundedSender<Awaited>,
    acked: &'a mpsc::Sender<i64>,
    signals: Signals<'a>,
    /// Whether the features were asked for: a daemon that knows nothing of them may not send.
    negotiated: AtomicBool,
}

/// A send that was handed in.
struct Awaited {
    id: ClientMessageId,
    answer: oneshot::Receiver<Answer>,
    taken: Taken,
}

/// What the reader tells the other parts.
#[derive(Clone, Copy)]
pub(super) struct Signals<'a> {
    /// Something has come.
    pub(super) heard: &'a Notify,
    /// The features are agreed on.
    pub(super) negotiated: &'a Notify,
}

pub(super) async fn run(
    connection: &Connection,
    stream: &mut SplitStream<WebSocket>,
    acked: &mpsc::Sender<i64>,
    signals: Signals<'_>,
) -> End {
    let bytes_max = frame_bytes_max(connection.mesh.inline_bytes as usize);
    let inbound = Inbound::new(&connection.broker.hub.unanswered);
    let (doomed, mut doom) = mpsc::channel(1);
    let (awaited, answering) = mpsc::unbounded_channel();
    drop(tokio::spawn(answer_all(answering, connection.outbound.clone(), doomed)));
    let negotiated = AtomicBool::new(false);
    let budget = Budget::of(connection);
    let reader = Reader { connection, budget, inbound, awaited, acked, signals, negotiated };
    let mut draining = std::pin::pin!(draining(connection));
    loop {
        let message = tokio::select! {
            biased;
            end = doom.recv() => return end.unwrap_or(End::Gone),
            reason = &mut draining => return reader.drain(reason, &mut doom).await,
            message = stream.next() => message,
        };
        signals.heard.notify_one();
        let text = match message {
            Some(Ok(Message::Text(text))) => text,
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
            Some(Ok(Message::Binary(_))) => return End::protocol_error("frames must be text"),
            Some(Ok(Message::Close(_)) | Err(_)) | None => return End::Gone,
        };
        let handled = match FromDaemon::decode(text.as_bytes(), bytes_max) {
            Ok(frame) => reader.handle(frame).await,
            Err(refusal) => Err(End::protocol_error(refusal.to_string())),
        };
        if let Err(end) = handled {
            return end;
        }
    }
}

/// Comes back when the broker stops.
async fn draining(connection: &Connection) -> CloseReason {
    match connection.registration.peer().ending().await {
        Ending::Drain(reason) => reason,
        Ending::Close(_) | Ending::Revoked(_) | Ending::Abandon => std::future::pending().await,
    }
}

impl Reader<'_> {
    /// Reads nothing more. Every send that was read is answered; then the writer is told the
    /// reason, which ends the connection behind all answers.
    async fn drain(&self, reason: CloseReason, doom: &mut mpsc::Receiver<End>) -> End {
        let all_answered = async {
            self.inbound.all_answered().await;
            let reason = FromBroker::CloseReason(reason);
            self.connection.outbound.send(reason).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            end = doom.recv() => end.unwrap_or(End::Gone),
            () = all_answered => End::Gone,
        }
    }

    async fn handle(&self, frame: FromDaemon) -> Result<(), End> {
        let connection = self.connection;
        self.budget.admit(connection, &frame).await;
        let answer = match frame {
            FromDaemon::Send(_) if !self.negotiated.load(Ordering::Relaxed) => {
                return Err(End::protocol_error("features must be agreed on before a send"));
            }
            FromDaemon::Send(frame) => {
                self.submit(frame).await;
                return Ok(());
            }
            FromDaemon::Ack(ack) => {
                return self.acked.send(ack.seq).await.map_err(|_| End::Gone);
            }
            FromDaemon::FeatureNegotiationRequest(request) => {
                let answer = features(connection, &request);
                sent(connection.outbound.send(answer).await)?;
                self.negotiated.store(true, Ordering::Relaxed);
                self.signals.negotiated.notify_one();
                return Ok(());
            }
            FromDaemon::Resolve(resolve) => {
                let held = connection.outbound.reserve(RESOLVE_ANSWER_BYTES).await;
                let held = held.ok_or(End::Gone)?;
                let answer = resolved(connection, &resolve).await?;
                return sent(connection.outbound.answer(&answer, held).await);
            }
            FromDaemon::Ping(ping) => FromBroker::Pong(Pong { id: ping.id }),
            FromDaemon::Pong(_) => return Ok(()),
            FromDaemon::CloseReason(reason) => {
                tracing::warn!(kind = %reason.kind, detail = reason.detail, "a daemon closes");
                return Ok(());
            }
            FromDaemon::HistoryRequest(asked) => {
                return sent(request::history(connection, &asked).await?);
            }
            FromDaemon::QueueTake(asked) => {
                return sent(request::queue_take(connection, &asked).await?);
            }
            FromDaemon::QueueAck(asked) => request::queue_ack(connection, &asked).await?,
            FromDaemon::PresenceRequest(asked) => presence::asked(connection, &asked),
            FromDaemon::Hello(_) => return Err(End::protocol_error("hello may come only once")),
        };
        sent(connection.outbound.send(answer).await)
    }

    /// Hands a send in before the next frame is read; its answer is waited for beside.
    async fn submit(&self, frame: SendFrame) {
        let connection = self.connection;
        let bytes = frame.body.len() + frame.meta.len();
        let Some(taken) = self.inbound.room(bytes).await else { return };
        let id = frame.client_message_id.clone();
        let (item, enqueued_at) = match answer::item(connection, frame) {
            Ok(item) => item,
            Err(refused) => {
                let refused = FromBroker::SendResult(*refused);
                connection.outbound.send(refused).await;
                return;
            }
        };
        let pipeline = &connection.broker.pipeline;
        let answer = pipeline.submit(&connection.mesh, item, enqueued_at).await;
        // When nobody answers any more, the connection ends by that.
        let _ = self.awaited.send(Awaited { id, answer, taken });
    }
}

/// Answers one after the other, also when nobody reads any more: a lane decides sends in the order
/// in which they come, and those that share a transaction wake one task once. A send that cannot be
/// answered ends the connection.
async fn answer_all(
    mut answering: mpsc::UnboundedReceiver<Awaited>,
    outbound: Outbound,
    doomed: mpsc::Sender<End>,
) {
    while let Some(Awaited { id, answer, taken }) = answering.recv().await {
        let answer = answer.await.unwrap_or(Answer::Close);
        let Taken { place: _place, bytes } = taken;
        // It is decided, and held no more. A daemon that does not read its answers keeps its places
        // among its own sends, and nobody else's.
        drop(bytes);
        match answer::result(id, answer) {
            Ok(result) => drop(outbound.send(FromBroker::SendResult(result)).await),
            Err(end) => drop(doomed.send(end).await),
        }
    }
}

fn sent(is_open: bool) -> Result<(), End> {
    if is_open { Ok(()) } else { Err(End::Gone) }
}

fn features(connection: &Connection, request: &FeatureNegotiationRequest) -> FromBroker {
    let mesh = &connection.mesh;
    let window = match mesh.dedupe {
        DedupeMode::Permanent => DedupeWindow::Permanent,
        DedupeMode::RetentionScoped { days } => DedupeWindow::RetentionScoped { days },
    };
    let offer = Offer {
        dedupe: Dedupe { window, tombstone_history_pruned_window_days: None },
        connection_policy: mesh.connection_policy,
        max_concurrent_epochs: 1,
        max_payload: MaxPayload {
            inline_bytes: u64::from(mesh.inline_bytes),
            blob_bytes: mesh.blob_bytes,
        },
    };
    FromBroker::FeatureNegotiationResponse(offer.respond(request))
}

/// A read like B0; exact, because no older attempt of this daemon can commit any more.
async fn resolved(connection: &Connection, resolve: &Resolve) -> Result<FromBroker, End> {
    let ids: Vec<_> = resolve.items.iter().map(|item| item.client_message_id.clone()).collect();
    let broker = &connection.broker;
    let found = broker.store.resolve(connection.mesh.mesh_id, &connection.session, &ids).await;
    let held = match found {
        Ok(Resolved::Current(found)) if broker.life.goes_on(&found.store_epoch) => found.held,
        Ok(Resolved::Current(_)) => return Err(End::Abandon),
        Ok(Resolved::Stale) => return Err(End::Stale),
        Err(error) => {
            tracing::warn!(error = error.chain(), "ids could not be resolved");
            return Err(End::Abandon);
        }
    };
    let now = broker.pipeline.present().between();
    let items = resolve.items.iter().zip(held).filter_map(|(item, held)| {
        let age = connection.mesh.age(item.enqueued_at, now);
        // Another request under the id says nothing about this one but that it was not this one.
        let held = held.filter(|held| held.fingerprint == item.request_fingerprint);
        let verdict = match (&held, age) {
            (Some(_), _) => Verdict::Committed,
            (None, Age::TooOld) => Verdict::TooOld,
            // Nothing of such a time is ever taken in.
            (None, _) if item.enqueued_at > TIME_MAX => Verdict::TooOld,
            // Nothing is said of it, and so it is asked about again.
            (None, Age::InDoubt) => return None,
            (None, Age::Young) => Verdict::Absent,
        };
        Some(ResolvedItem {
            client_message_id: item.client_message_id.clone(),
            verdict,
            broker_message_id: held.as_ref().map(|held| held.broker_message_id),
            history_id: held.as_ref().and_then(|held| held.history_id),
        })
    });
    let (request_id, items) = (resolve.request_id, items.collect());
    Ok(FromBroker::ResolveResult(ResolveResult { request_id, items }))
}

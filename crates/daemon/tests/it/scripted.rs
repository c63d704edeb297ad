//! A broker that says what the test says, over a real WebSocket.

use std::collections::BTreeMap;

use futures_util::{SinkExt, StreamExt};
use semel_core::clock::{Clock, SystemClock};
use semel_core::hex::Hex;
use semel_core::id::{BrokerMessageId, ClientMessageId, UuidId};
use semel_wire::features::{ConnectionPolicy, Dedupe, MaxPayload, Offer};
use semel_wire::frame::{
    Challenge, FromBroker, FromDaemon, Hello, HelloAck, History, ResolveResult, ResolvedItem,
    SendFrame, SendResult, Verdict,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use uuid::Uuid;

use crate::support::PATIENCE;

/// The subprotocol that is asked for is spoken.
#[expect(clippy::result_large_err, reason = "the library's signature")]
fn agree(request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
    let protocol = request.headers().get("Sec-WebSocket-Protocol").unwrap().clone();
    response.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
    Ok(response)
}

/// Where a scripted broker listens.
pub(crate) struct Scripted {
    listener: TcpListener,
}

/// A daemon's connection to it.
pub(crate) struct Line {
    socket: WebSocketStream<TcpStream>,
    /// What the daemon said of itself.
    pub(crate) hello: Hello,
}

impl Scripted {
    pub(crate) async fn new() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}/v1/mesh", self.listener.local_addr().unwrap())
    }

    /// The next connection, up to its hello, which is not answered yet.
    pub(crate) async fn hello(&self) -> Line {
        loop {
            let accepted = tokio::time::timeout(PATIENCE, self.listener.accept());
            let (stream, _) = accepted.await.expect("a daemon connects").unwrap();
            // One that was given up while it waited to be accepted is nobody.
            if let Some(line) = Self::greet(stream).await {
                return line;
            }
        }
    }

    async fn greet(stream: TcpStream) -> Option<Line> {
        let mut socket = tokio_tungstenite::accept_hdr_async(stream, agree).await.ok()?;
        let challenge = FromBroker::Challenge(Challenge {
            nonce: Hex([7; 32]),
            broker_id: UuidId::new(Uuid::from_u128(1)),
            time: semel_core::clock::UnixMs(0),
        });
        socket.send(Message::Text(challenge.encode().into())).await.ok()?;
        let Some(Ok(Message::Text(text))) = socket.next().await else { return None };
        match FromDaemon::decode(text.as_bytes(), 1 << 20).unwrap() {
            FromDaemon::Hello(hello) => Some(Line { socket, hello }),
            other => panic!("{other:?}"),
        }
    }

    /// The next connection, ready for traffic: greeted, features agreed, history empty, nothing to
    /// resolve unless `unknown` says so.
    pub(crate) async fn connection(&self, store_epoch: &str) -> Line {
        let mut line = self.hello().await;
        line.welcome(store_epoch).await;
        line
    }
}

impl Line {
    /// Greets, and agrees on features.
    pub(crate) async fn welcome(&mut self, store_epoch: &str) {
        self.welcome_with(store_epoch, 65_536).await;
    }

    /// As [`Line::welcome`], for bodies of this size.
    pub(crate) async fn welcome_with(&mut self, store_epoch: &str, inline_bytes: u64) {
        self.acknowledge(store_epoch).await;
        match self.next().await.unwrap() {
            FromDaemon::FeatureNegotiationRequest(request) => {
                let offer = Offer {
                    dedupe: Dedupe {
                        window: semel_core::max_age::DedupeWindow::RetentionScoped { days: 30 },
                        tombstone_history_pruned_window_days: None,
                    },
                    connection_policy: ConnectionPolicy::PreferNewest,
                    max_concurrent_epochs: 1,
                    max_payload: MaxPayload { inline_bytes, blob_bytes: 65_536 },
                };
                let response = offer.respond(&request);
                self.say(&FromBroker::FeatureNegotiationResponse(response)).await;
            }
            other => panic!("{other:?}"),
        }
    }

    /// Greets, and no more.
    pub(crate) async fn acknowledge(&mut self, store_epoch: &str) {
        self.say(&FromBroker::HelloAck(HelloAck {
            member_id: UuidId::new(Uuid::from_u128(99)),
            session_epoch: 1,
            store_epoch: store_epoch.to_owned(),
            server_time: SystemClock::new().wall(),
            next_seq: 1_000_000,
        }))
        .await;
    }

    pub(crate) async fn say(&mut self, frame: &FromBroker) {
        self.socket.send(Message::Text(frame.encode().into())).await.unwrap();
    }

    /// Says something that no broker would.
    pub(crate) async fn say_text(&mut self, text: &str) {
        self.socket.send(Message::Text(text.to_owned().into())).await.unwrap();
    }

    /// Says it to a daemon that may not listen any more.
    pub(crate) async fn try_say(&mut self, frame: &FromBroker) {
        drop(self.socket.send(Message::Text(frame.encode().into())).await);
    }

    /// The next frame; nothing once the daemon is gone.
    pub(crate) async fn next(&mut self) -> Option<FromDaemon> {
        let waiting = async {
            loop {
                match self.socket.next().await {
                    Some(Ok(Message::Text(text))) => {
                        return Some(FromDaemon::decode(text.as_bytes(), 1 << 22).unwrap());
                    }
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                    Some(Ok(_)) => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the daemon says something")
    }

    /// The next send; history is empty, and what is asked about is absent unless `held` has it.
    pub(crate) async fn sent(&mut self) -> SendFrame {
        self.sent_or_resolved(&BTreeMap::new()).await
    }

    /// As [`Line::sent`], with ids that the broker holds.
    pub(crate) async fn sent_or_resolved(
        &mut self,
        held: &BTreeMap<&str, BrokerMessageId>,
    ) -> SendFrame {
        loop {
            match self.next().await.expect("a send") {
                FromDaemon::Send(frame) => return frame,
                other => self.oblige(other, held).await,
            }
        }
    }

    /// Answers what is not a send.
    pub(crate) async fn oblige(
        &mut self,
        frame: FromDaemon,
        held: &BTreeMap<&str, BrokerMessageId>,
    ) {
        match frame {
            FromDaemon::HistoryRequest(asked) => {
                let (request_id, deliveries) = (asked.request_id, Vec::new());
                let history = History { request_id, deliveries, next_after_seq: None };
                self.say(&FromBroker::History(history)).await;
            }
            FromDaemon::Resolve(asked) => {
                let items = asked.items.iter().map(|item| {
                    let held = held.get(item.client_message_id.as_str()).copied();
                    ResolvedItem {
                        client_message_id: item.client_message_id.clone(),
                        verdict: if held.is_some() { Verdict::Committed } else { Verdict::Absent },
                        broker_message_id: held,
                        history_id: held.map(|_| 1),
                    }
                });
                let items = items.collect();
                let result = ResolveResult { request_id: asked.request_id, items };
                self.say(&FromBroker::ResolveResult(result)).await;
            }
            FromDaemon::Ping(_) | FromDaemon::Ack(_) => {}
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn answer(&mut self, id: &ClientMessageId, status: u16, code: Option<&str>) {
        let mut result = SendResult::new(id.clone(), status);
        result.code = code.map(str::to_owned);
        if status < 300 {
            result.broker_message_id = Some(message_id());
            result.history_id = Some(1);
            result.duplicate = Some(status == 200);
        }
        if status == 429 {
            result.retry_after_ms = Some(1);
        }
        self.say(&FromBroker::SendResult(result)).await;
    }
}

pub(crate) fn message_id() -> BrokerMessageId {
    UuidId::new(Uuid::from_u128(0x5e))
}

//! The two ends of a connection: frames as they come, and frames as they leave.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use semel_core::clock::Clock;
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_wire::frame::{FromBroker, FromDaemon, Push, Salvaged, Unread};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use super::super::connect::FRAME_BYTES_MAX;
use super::super::meter::Meter;
use crate::limits::WRITE_TIMEOUT;

type Sink = SplitSink<tokio_tungstenite::WebSocketStream<Box<dyn crate::dial::Stream>>, Message>;
type Source = SplitStream<tokio_tungstenite::WebSocketStream<Box<dyn crate::dial::Stream>>>;

/// Hands frames over in the order in which they came, until either end is gone. What makes no sense
/// goes along: it is kept, and ends nothing.
pub(super) async fn read(
    mut stream: Source,
    incoming: mpsc::Sender<Salvaged>,
    early: Vec<Salvaged>,
) {
    for frame in early {
        if incoming.send(verified(frame)).await.is_err() {
            return;
        }
    }
    while let Some(Ok(message)) = stream.next().await {
        let Message::Text(text) = message else { continue };
        let frame = FromBroker::salvage(text.as_bytes(), FRAME_BYTES_MAX);
        if incoming.send(verified(frame)).await.is_err() {
            return;
        }
    }
}

/// What is not what its sender's request was by the fingerprint that it carries makes no sense.
fn verified(mut said: Salvaged) -> Salvaged {
    let deliveries = match &mut said.frame {
        Some(FromBroker::Push(push)) => &mut push.deliveries,
        Some(FromBroker::History(history)) => &mut history.deliveries,
        Some(FromBroker::QueueTaken(taken)) => &mut taken.deliveries,
        Some(_) | None => return said,
    };
    let damaged = deliveries.extract_if(.., |delivery| !delivery.is_whole());
    said.unread.extend(damaged.map(|delivery| {
        let seq = Some(delivery.seq);
        let detail = "it does not have the fingerprint of what its sender has sent";
        let why = Refusal::at(Code::InvalidField, "/request_fingerprint", detail);
        let deliveries = vec![delivery];
        Unread { seq, text: FromBroker::Push(Push { deliveries }).encode(), why }
    }));
    said
}

/// The one writer; says goodbye when nothing more is to come.
pub(super) struct Writer {
    pub(super) sink: Sink,
    pub(super) meter: Arc<Meter>,
    pub(super) clock: Arc<dyn Clock>,
    /// How many sends have left, and when.
    pub(super) left: mpsc::UnboundedSender<(u64, Duration)>,
}

impl Writer {
    pub(super) async fn run(mut self, mut outgoing: mpsc::Receiver<FromDaemon>) {
        let (mut sends, mut told) = (0, 0);
        while let Some(frame) = outgoing.recv().await {
            sends += u64::from(matches!(frame, FromDaemon::Send(_)));
            let message = Message::Text(frame.encode().into());
            let is_last = outgoing.is_empty();
            let written = match is_last {
                true => self.meter.patiently(WRITE_TIMEOUT, self.sink.send(message)).await,
                false => self.meter.patiently(WRITE_TIMEOUT, self.sink.feed(message)).await,
            };
            if written.is_err() {
                return;
            }
            if is_last {
                self.meter.caught_up();
            }
            if is_last && sends > told {
                told = sends;
                let _ = self.left.send((sends, self.clock.monotonic()));
            }
        }
        let bye = CloseFrame { code: 1000.into(), reason: "".into() };
        let bye = self.sink.send(Message::Close(Some(bye)));
        let _ = tokio::time::timeout(WRITE_TIMEOUT, bye).await;
    }
}

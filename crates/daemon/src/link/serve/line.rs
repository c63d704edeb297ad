//! The two ends of a connection: frames as they come, and frames as they leave.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use semel_core::clock::Clock;
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_wire::frame::{FromBroker, FromDaemon, Push, Salvaged, Unread};
use tokio::sync::{Semaphore, mpsc};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use super::super::arrivals::Room;
use super::super::connect::FRAME_BYTES_MAX;
use super::super::meter::Meter;
use crate::limits::{INBOUND_BYTES_MAX, WRITE_TIMEOUT};

type Sink = SplitSink<tokio_tungstenite::WebSocketStream<Box<dyn crate::dial::Stream>>, Message>;
type Source = SplitStream<tokio_tungstenite::WebSocketStream<Box<dyn crate::dial::Stream>>>;

/// A frame, and the room that it takes until what it says is handled; what came before there was
/// any has none.
pub(super) struct Heard {
    pub(super) said: Salvaged,
    pub(super) room: Room,
}

/// What frames may take together that were heard and are not handled.
pub(super) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(INBOUND_BYTES_MAX))
}

/// Hands frames over in the order in which they came, until either end is gone; nothing more is
/// read while there is no room. What makes no sense goes along: it is kept, and ends nothing.
pub(super) async fn read(
    mut stream: Source,
    incoming: mpsc::Sender<Heard>,
    early: Vec<Salvaged>,
    room: Arc<Semaphore>,
) {
    for said in early {
        if incoming.send(Heard { said: verified(said), room: None }).await.is_err() {
            return;
        }
    }
    while let Some(Ok(message)) = stream.next().await {
        let Message::Text(text) = message else { continue };
        let bytes = u32::try_from(text.len().min(INBOUND_BYTES_MAX)).unwrap_or(u32::MAX);
        let Ok(room) = Arc::clone(&room).acquire_many_owned(bytes).await else { return };
        let said = FromBroker::salvage(text.as_bytes(), FRAME_BYTES_MAX);
        let heard = Heard { said: verified(said), room: Some(room) };
        if incoming.send(heard).await.is_err() {
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
        let detail = "its fingerprint differs from that of the sent message";
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    /// Our end of a connection, and the broker's.
    async fn line() -> (Source, WebSocketStream<tokio::io::DuplexStream>) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let ours: Box<dyn crate::dial::Stream> = Box::new(ours);
        let ours = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
        let theirs = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
        (ours.split().1, theirs)
    }

    #[tokio::test]
    async fn of_what_waits_to_be_handled_32_mib_are_held_and_no_more() {
        let (ours, mut theirs) = line().await;
        let room = room();
        let (incoming, mut frames) = mpsc::channel(100);
        let reading = tokio::spawn(read(ours, incoming, Vec::new(), Arc::clone(&room)));
        let sending = tokio::spawn(async move {
            for _ in 0..40 {
                theirs.send(Message::Text("x".repeat(1 << 20).into())).await.expect("a reader");
            }
        });
        let mut heard = Vec::new();
        for _ in 0..32 {
            heard.push(frames.recv().await.expect("there is room"));
        }
        assert_eq!(room.available_permits(), 0);
        assert!(frames.recv().now_or_never().is_none(), "it would be too much");
        drop(heard);
        for _ in 32..40 {
            frames.recv().await.expect("there is room");
        }
        sending.await.expect("everything is sent");
        reading.await.expect("it ends");
    }

    #[tokio::test]
    async fn what_waits_to_be_handled_has_a_bound_in_bytes() {
        let (ours, mut theirs) = line().await;
        let room = Arc::new(Semaphore::new(1000));
        let (incoming, mut frames) = mpsc::channel(100);
        let early = vec![FromBroker::salvage(b"{}", 100)];
        let reading = tokio::spawn(read(ours, incoming, early, Arc::clone(&room)));
        for _ in 0..3 {
            theirs.send(Message::Text("x".repeat(600).into())).await.expect("a reader");
        }
        let early = frames.recv().await.expect("it waits");
        assert!(early.room.is_none());
        let first = frames.recv().await.expect("there is room");
        while room.available_permits() != 0 {
            // The next one has taken what there is, and waits for the rest.
            tokio::task::yield_now().await;
        }
        assert!(frames.recv().now_or_never().is_none(), "both would be too much");
        drop(first);
        assert!(frames.recv().await.expect("there is room").room.is_some());
        drop(frames);
        reading.await.expect("it ends");
    }
}

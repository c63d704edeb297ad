//! What arrives is written to the inbox before the broker is told, many at a time.

use std::sync::Arc;

use semel_core::envelope::DestinationKind;
use semel_wire::frame::{Delivery, Unread};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::inbox::Inbox;
use crate::limits::RECEIVE_BATCH_MAX;
use crate::store::aside::{AsideSource, NewAside};
use crate::store::extent::Extent;
use crate::store::inbox::{Arrived, Way};

/// Room among the bytes that wait in memory.
pub(super) type Room = Option<OwnedSemaphorePermit>;

/// Messages on their way into the inbox.
pub(super) enum Arrival {
    /// Pushed: acknowledged up to the last of them, also if that could not be read.
    Pushed { deliveries: Vec<Delivery>, unread: Vec<Unread> },
    /// A page of history, with what the broker says comes after it.
    History {
        deliveries: Vec<Delivery>,
        unread: Vec<Unread>,
        way: Way,
        next_after_seq: Option<i64>,
    },
    /// What made no sense, and was no message that is acknowledged.
    Aside(Vec<Unread>),
}

/// What is on disk now, and how far history is in the inbox by that.
pub(super) enum Stored {
    /// Pushes up to here.
    Pushed { acked: i64, extent: Option<Extent> },
    /// A page of history.
    History { next_after_seq: Option<i64>, extent: Extent },
}

/// How far history is in the inbox, while one connection lives. What is pushed comes in order, but
/// from where the broker has it: before history was caught up with, something before it may be
/// missing.
struct Known {
    store_epoch: String,
    caught_up: bool,
    /// The last that was pushed and read.
    pushed_to: i64,
}

impl Known {
    fn extent(&self, seq: i64) -> Extent {
        Extent { store_epoch: self.store_epoch.clone(), seq }
    }

    /// A page is stored: how far it reaches.
    fn page(&self, last_seq: Option<i64>, next_after_seq: Option<i64>) -> Extent {
        self.extent(next_after_seq.unwrap_or_else(|| last_seq.unwrap_or(0).max(self.pushed_to)))
    }
}

/// Stores what comes, until nobody sends any more or something cannot be stored: an acknowledgement
/// of what comes after it would lose it, so the connection ends and everything comes again.
pub(super) async fn run(
    inbox: Arc<Inbox>,
    store_epoch: String,
    mut arrivals: mpsc::Receiver<(Arrival, Room)>,
    stored: mpsc::Sender<Stored>,
) {
    let mut known = Known { store_epoch, caught_up: false, pushed_to: 0 };
    let mut batch = Vec::new();
    while arrivals.recv_many(&mut batch, RECEIVE_BATCH_MAX).await > 0 {
        // Whoever is ready to add to it runs first: larger batches under load, no wait without.
        tokio::task::yield_now().await;
        while batch.len() < RECEIVE_BATCH_MAX
            && let Ok(more) = arrivals.try_recv()
        {
            batch.push(more);
        }
        let mut pushed: Vec<Arrived> = Vec::new();
        let mut told = Vec::new();
        let mut unread_to = None;
        // Until all of it is stored.
        let mut rooms: Vec<Room> = Vec::new();
        for (arrival, room) in batch.drain(..) {
            rooms.push(room);
            match arrival {
                Arrival::Pushed { deliveries, unread } => {
                    pushed.extend(deliveries.into_iter().map(arrived));
                    unread_to = unread_to.max(unread.iter().filter_map(|one| one.seq).max());
                    if !set_aside(&inbox, unread).await {
                        return;
                    }
                }
                Arrival::History { deliveries, unread, way, next_after_seq } => {
                    let last_seq = deliveries.last().map(|delivery| delivery.seq);
                    let page: Vec<Arrived> = deliveries.into_iter().map(arrived).collect();
                    let extent = known.page(last_seq, next_after_seq);
                    let to = Some(extent.clone());
                    if !set_aside(&inbox, unread).await || !store(&inbox, page, way, to).await {
                        return;
                    }
                    known.caught_up |= next_after_seq.is_none();
                    told.push(Stored::History { next_after_seq, extent });
                }
                Arrival::Aside(unread) => {
                    if !set_aside(&inbox, unread).await {
                        return;
                    }
                }
            }
        }
        let read = pushed.iter().map(|message| message.seq).max();
        if let Some(acked) = read.max(unread_to) {
            let extent = read.filter(|_| known.caught_up).map(|seq| known.extent(seq));
            if !store(&inbox, pushed, Way::Live, extent.clone()).await {
                return;
            }
            known.pushed_to = known.pushed_to.max(read.unwrap_or(0));
            told.push(Stored::Pushed { acked, extent });
        }
        drop(rooms);
        for told in told {
            if stored.send(told).await.is_err() {
                return;
            }
        }
    }
}

/// Keeps what could not be read, before it is acknowledged (traps.md 8).
async fn set_aside(inbox: &Inbox, unread: Vec<Unread>) -> bool {
    for Unread { seq, text, why } in unread {
        let (source, reason, frame) = (AsideSource::Link, why.to_string(), text.into_bytes());
        if let Err(error) = inbox.set_aside(NewAside { source, reason, seq, frame }).await {
            tracing::error!(
                error = error.chain(),
                "a message could not be set aside; it comes again"
            );
            return false;
        }
    }
    true
}

async fn store(inbox: &Inbox, messages: Vec<Arrived>, way: Way, extent: Option<Extent>) -> bool {
    match inbox.receive_to(messages, way, extent).await {
        Ok(_) => true,
        Err(error) => {
            tracing::error!(error = error.chain(), "messages could not be stored; they come again");
            false
        }
    }
}

fn arrived(delivery: Delivery) -> Arrived {
    let topic = match delivery.destination_kind {
        DestinationKind::Topic => Some(delivery.destination_ref),
        DestinationKind::Dm | DestinationKind::Queue => None,
    };
    Arrived {
        sender_member_id: delivery.sender_member_id,
        client_message_id: delivery.client_message_id,
        broker_message_id: delivery.broker_message_id,
        seq: delivery.seq,
        destination_kind: delivery.destination_kind,
        topic,
        sender_pubkey: delivery.sender_pubkey.to_string(),
        sender_name: delivery.sender_name,
        priority: delivery.priority,
        reply_to_id: delivery.reply_to_id,
        meta: delivery.meta,
        body: delivery.body,
        accepted_at: delivery.accepted_at,
    }
}

//! What is due goes on the wire, by priority and in the order of accept.

use std::collections::HashSet;
use std::time::Duration;

use semel_core::id::OutboxId;
use semel_core::limits::BACKOFF_CAP_MS;
use semel_wire::frame::{FromDaemon, SendFrame};

use super::super::Link;
use super::super::flight::{Errand, Flying};
use super::Serving;
use crate::limits::{NEXT_DUE_LOOK, OFFER_PAGE};
use crate::marks::Change;
use crate::store::claim::{self, Due};

/// Where something may be due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Look {
    Nowhere,
    /// Among the new rows that are handed over in memory.
    Fresh,
    /// In the file: rows have become due in another way than by being accepted.
    File,
}

impl Serving {
    pub(super) fn look(&mut self, look: Look) {
        self.look = self.look.max(look);
    }

    /// Sends what is due, as far as the window has room.
    pub(super) async fn fill(&mut self, link: &mut Link) {
        let now = link.clock.monotonic();
        let paused = self.paused_until.is_some_and(|until| until > now);
        self.put_off &= self.flight.len() > 0;
        if self.put_off {
            return;
        }
        if self.room(link) == 0 || self.look == Look::Nowhere || paused || link.returning > 0 {
            return;
        }
        self.paused_until = None;
        if self.look == Look::Fresh {
            self.fill_from_memory(link, now).await;
        }
        // A look into the file costs the same for one row as for many, so that a window which is
        // nearly full waits for more answers.
        if self.look == Look::File && self.room(link) >= (link.options.window / 4).max(1) {
            self.fill_from_file(link, now).await;
            if self.look == Look::Fresh {
                self.fill_from_memory(link, now).await;
            }
        }
        if self.look == Look::Nowhere {
            self.offer(link, now).await;
        }
        let inflight = self.flight.len();
        link.status.send_if_modified(|status| {
            status.inflight = inflight;
            false
        });
    }

    fn room(&self, link: &Link) -> usize {
        link.options.window.saturating_sub(self.flight.len())
    }

    /// What was accepted since the file was read to its end.
    async fn fill_from_memory(&mut self, link: &mut Link, now: Duration) {
        let Some(fresh) = link.outbox.fresh.rows.take(self.room(link)) else {
            self.look = Look::File;
            return;
        };
        self.look = if fresh.more { Look::Fresh } else { Look::Nowhere };
        for row in fresh.rows.into_iter().filter_map(|(_, row)| row.into_due()) {
            self.send(link, row, now).await;
        }
    }

    /// If there is less than there is room for, that was everything: what is accepted from now on
    /// is handed over.
    async fn fill_from_file(&mut self, link: &mut Link, now: Duration) {
        let (room, wall) = (self.room(link), link.clock.wall());
        let taken: HashSet<OutboxId> =
            link.unsettled.keys().copied().chain(self.flight.ids()).collect();
        let fresh = std::sync::Arc::clone(&link.outbox.fresh);
        fresh.rows.follow();
        let read = link.outbox.sqlite.read(move |connection| {
            let due = claim::due(connection, &taken, wall, room)?;
            let next = match due.len() < room {
                true => claim::next_due(connection, NEXT_DUE_LOOK)?,
                false => None,
            };
            Ok((due, next))
        });
        let (due, next) = match read.await {
            Ok(found) => found,
            Err(error) => {
                link.complain(&error, "what is due could not be read");
                return self.pause(now + Duration::from_secs(1));
            }
        };
        if due.len() < room {
            self.look = Look::Fresh;
            fresh.rows.forget(due.iter().map(|row| (row.priority.rank(), row.id)));
        } else {
            fresh.rows.leave();
        }
        let wait = next.map(|at| at.0.saturating_sub(wall.0)).filter(|wait| *wait > 0);
        self.next_due = wait
            .and_then(|ms| u64::try_from(ms).ok())
            .map(|ms| now + Duration::from_millis(ms.min(BACKOFF_CAP_MS)));
        for row in due {
            self.send(link, row, now).await;
        }
    }

    async fn send(&mut self, link: &mut Link, row: Due, now: Duration) {
        if !link.outbox.claim(row.id) {
            // An operator is replacing it. Whoever is done with that says so.
            return;
        }
        link.mark(row.id, Change::Claimed).await;
        self.depart(row, Errand::Send, now);
    }

    fn depart(&mut self, row: Due, errand: Errand, now: Duration) {
        let attempt = row.attempts.saturating_add(1);
        let flying = Flying { id: row.id, errand, sent_at: now, attempt };
        self.flight.depart(row.client_message_id.clone(), flying);
        self.outgoing.push_back(FromDaemon::Send(send_frame(row)));
    }

    /// Offers done rows again, behind everything that is due.
    async fn offer(&mut self, link: &mut Link, now: Duration) {
        let (Some(after), 0) = (self.offers.after.clone(), self.offers.outstanding) else {
            return;
        };
        let limit = OFFER_PAGE.min(i64::try_from(self.room(link)).unwrap_or(0));
        if limit == 0 {
            return;
        }
        let before = self.link_row.epoch_floor.clone();
        let read = link
            .outbox
            .sqlite
            .read(move |connection| claim::offered(connection, &after, &before, limit));
        match read.await {
            Ok(page) => {
                // Whatever is on the wire under the same id is the same row.
                self.offers.page_last = page.last().map(|row| row.id);
                self.offers.outstanding = page.len();
                self.offers.again = false;
                if page.is_empty() {
                    self.offers.after = None;
                    let floor = OutboxId::parse(&self.link_row.epoch_floor);
                    if let Some(floor) = floor {
                        link.mark(floor, Change::OfferedTo).await;
                    }
                }
                for row in page {
                    self.depart(row, Errand::Offer, now);
                }
            }
            Err(error) => link.complain(&error, "done rows could not be read"),
        }
    }
}

fn send_frame(row: Due) -> SendFrame {
    SendFrame {
        client_message_id: row.client_message_id,
        destination_kind: row.destination.kind(),
        destination_ref: row.destination.into_reference(),
        reply_to_id: row.reply_to_id,
        priority: row.priority,
        meta: row.meta,
        body: row.body,
        request_fingerprint: row.request_fingerprint,
        body_commitment: None,
        enqueued_at: row.enqueued_at,
    }
}

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
        // A row is alone on the wire only while no question of ours is.
        let questions = self.resolving.is_some() || self.history_asked;
        if self.put_off || (link.suspects.are_left() && questions) {
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
        let window = link.suspects.window(link.options.window);
        if self.look == Look::File && self.room(link) >= (window / 4).max(1) {
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
        link.suspects.window(link.options.window).saturating_sub(self.flight.len())
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
            let found = claim::due(connection, &taken, wall, room)?;
            let next = match found.due.len() < room {
                true => claim::next_due(connection, NEXT_DUE_LOOK)?,
                false => None,
            };
            Ok((found, next))
        });
        let (claim::Found { due, unreadable, nameless }, next) = match read.await {
            Ok(found) => found,
            Err(error) => {
                link.complain(&error, "due rows could not be read");
                return self.pause(now + Duration::from_secs(1));
            }
        };
        if nameless > 0 {
            tracing::error!(nameless, "the outbox is damaged: rows have no key that can be read");
        }
        // Those that cannot be read stood in the place of others.
        if due.len() < room && unreadable.is_empty() {
            self.look = Look::Fresh;
            fresh.rows.forget(due.iter().map(|row| (row.priority.rank(), row.id)));
        } else {
            fresh.rows.leave();
        }
        let wait = next.map(|at| at.0.saturating_sub(wall.0)).filter(|wait| *wait > 0);
        self.next_due = wait
            .and_then(|ms| u64::try_from(ms).ok())
            .map(|ms| now + Duration::from_millis(ms.min(BACKOFF_CAP_MS)));
        for claim::Unreadable { id, what } in unreadable {
            self.give_up(link, id, what).await;
        }
        for row in due {
            self.send(link, row, now).await;
        }
    }

    pub(super) async fn send(&mut self, link: &mut Link, row: Due, now: Duration) {
        // One that was handed over late may have been read from the file meanwhile.
        if self.flight.contains(row.id) || link.unsettled.contains_key(&row.id) {
            return;
        }
        if !link.outbox.claim(row.id) {
            // An operator is replacing it. Whoever is done with that says so.
            return;
        }
        let (id, attempts, frame) = (row.id, row.attempts, send_frame(row));
        if let Err(refusal) = frame.check(self.frame_bytes_max) {
            let why = format!("{} {refusal}", refusal.code.http());
            return self.give_up(link, id, why).await;
        }
        link.mark(id, Change::Claimed).await;
        self.depart(id, attempts, frame, Errand::Send, now);
    }

    /// A row that can not be sent is dead, and holds nobody up.
    pub(super) async fn give_up(&mut self, link: &mut Link, id: OutboxId, why: String) {
        tracing::warn!(%id, why, "a row cannot be sent and is given up");
        self.given_up.push(id);
        link.mark(id, Change::Expired { why }).await;
    }

    fn depart(
        &mut self,
        id: OutboxId,
        attempts: u32,
        frame: SendFrame,
        errand: Errand,
        now: Duration,
    ) {
        let attempt = attempts.saturating_add(1);
        let flying = Flying::new(id, errand, now, attempt);
        self.flight.depart(frame.client_message_id.clone(), flying);
        self.outgoing.push_back(FromDaemon::Send(frame));
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
            Ok(claim::Found { due, unreadable, .. }) => {
                // Whatever is on the wire under the same id is the same row.
                let last = due.iter().map(|row| row.id);
                self.offers.page_last = last.chain(unreadable.iter().map(|row| row.id)).max();
                self.offers.again = false;
                if self.offers.page_last.is_none() {
                    self.offers.after = None;
                    let floor = OutboxId::parse(&self.link_row.epoch_floor);
                    if let Some(floor) = floor {
                        link.mark(floor, Change::OfferedTo).await;
                    }
                }
                for claim::Unreadable { id, what } in unreadable {
                    link.mark(id, Change::Disowned { why: what }).await;
                }
                for row in due {
                    self.offer_row(link, row, now).await;
                }
                self.page_offered(link).await;
            }
            Err(error) => link.complain(&error, "done rows could not be read"),
        }
    }
}

impl Serving {
    /// One that the broker could not read any more is not offered, or it would close.
    async fn offer_row(&mut self, link: &mut Link, row: Due, now: Duration) {
        let (id, attempts, frame) = (row.id, row.attempts, send_frame(row));
        if let Err(refusal) = frame.check(self.frame_bytes_max) {
            let why = format!("{} {refusal}", refusal.code.http());
            return link.mark(id, Change::Disowned { why }).await;
        }
        self.offers.outstanding += 1;
        self.depart(id, attempts, frame, Errand::Offer, now);
    }

    /// Notes how far done rows were offered, once a page of them was answered.
    pub(super) async fn page_offered(&mut self, link: &mut Link) {
        if let (0, false, Some(last)) =
            (self.offers.outstanding, self.offers.again, self.offers.page_last)
        {
            self.offers.after = Some(last.to_string());
            self.look(Look::Fresh);
            link.mark(last, Change::OfferedTo).await;
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

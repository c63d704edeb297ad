//! What the broker says, frame by frame.

use std::time::Duration;

use semel_core::backoff::backoff_delay;
use semel_wire::close::CloseKind;
use semel_wire::frame::{
    Addressed, Delivery, FromBroker, FromDaemon, History, Pong, ResolveResult, Salvaged,
    SendResult, Unread, Verdict,
};
use tokio::sync::mpsc;

use super::super::arrivals::{Arrival, Room};
use super::super::flight::{Errand, Flying};
use super::super::judge::{Judged, judge};
use super::super::{Ended, Link, Loss};
use super::fill::Look;
use super::{Heard, Serving, Way, gone};
use crate::limits::{ATTEMPTS_TOGETHER, FRAMES_TOGETHER};
use crate::marks::Change;
use crate::store::extent::Extent;
use crate::store::outbox;

impl Serving {
    /// Hears a frame and those that have come with it, so that what they make room for is looked
    /// for once.
    pub(super) async fn heard_all(
        &mut self,
        link: &mut Link,
        first: Heard,
        frames: &mut mpsc::Receiver<Heard>,
    ) -> Result<(), Ended> {
        self.heard(link, first).await?;
        for _ in 1..FRAMES_TOGETHER {
            let Ok(frame) = frames.try_recv() else { break };
            self.heard(link, frame).await?;
        }
        Ok(())
    }

    async fn heard(&mut self, link: &mut Link, heard: Heard) -> Result<(), Ended> {
        self.heard_at = link.clock.monotonic();
        let Heard { said: Salvaged { frame, unread }, room } = heard;
        for unread in &unread {
            tracing::error!(why = %unread.why, seq = unread.seq, "a frame could not be understood");
        }
        let frame = match frame {
            Some(FromBroker::Push(push)) => {
                return self.pushed(link, push.deliveries, unread, room);
            }
            Some(FromBroker::History(history)) => {
                return self.history(link, history, unread, room);
            }
            frame => {
                if let (None, Some(nonsense)) = (&frame, unread.first()) {
                    self.unanswered(nonsense);
                }
                if !unread.is_empty() {
                    self.arrive(Arrival::Aside(unread), room)?;
                }
                frame
            }
        };
        let Some(frame) = frame else { return Ok(()) };
        match frame {
            FromBroker::SendResult(result) => return self.answered(link, &result).await,
            FromBroker::Push(_) | FromBroker::History(_) => {}
            FromBroker::ResolveResult(result) => self.resolved(link, result).await,
            FromBroker::Ping(ping) => {
                self.outgoing.push_back(FromDaemon::Pong(Pong { id: ping.id }));
            }
            FromBroker::Pong(_) => {}
            FromBroker::Presence(presence) => link.roster.told(&presence),
            FromBroker::PresenceCount(count) => link.roster.counted(count),
            FromBroker::PresenceResult(result) => {
                let id = result.request_id;
                self.reply(id, FromBroker::PresenceResult(result));
            }
            FromBroker::QueueTaken(taken) => {
                let id = taken.request_id;
                self.reply(id, FromBroker::QueueTaken(taken));
            }
            FromBroker::QueueAcked(acked) => {
                let id = acked.request_id;
                self.reply(id, FromBroker::QueueAcked(acked));
            }
            FromBroker::RequestFailed(failed) => {
                let id = failed.request_id;
                self.reply(id, FromBroker::RequestFailed(failed));
            }
            FromBroker::MemberRevoked(_) => tracing::error!("this member was revoked"),
            FromBroker::CloseReason(reason) => {
                let ours = reason.nonce.is_none_or(|nonce| link.is_ours(nonce));
                if !ours && reason.kind == CloseKind::Replaced {
                    tracing::error!(
                        detail = reason.detail,
                        "another daemon speaks for this member: a copy of this folder, or another \
                         host with its key"
                    );
                }
                return Err(Ended::of_close(reason.kind, &reason.detail, ours));
            }
            other @ (FromBroker::Challenge(_)
            | FromBroker::HelloAck(_)
            | FromBroker::FeatureNegotiationResponse(_)) => {
                return Err(gone(Loss::Protocol, &format!("{} came too late", other.type_name())));
            }
        }
        Ok(())
    }

    fn reply(&mut self, request_id: u64, frame: FromBroker) {
        if let Some(reply) = self.asked.remove(&request_id) {
            let _ = reply.send(frame);
        }
    }

    /// A question whose answer made no sense is over: nothing else will answer it. What does not
    /// even say what it is may have answered any. None is asked again here on its own, because the
    /// answer would be the same.
    fn unanswered(&mut self, nonsense: &Unread) {
        let Addressed { kind, request_id } = nonsense.addressed();
        let may_be = |name: &str| kind.as_deref().is_none_or(|kind| kind == name);
        if may_be("history") && self.history_asked {
            (self.history_asked, self.history_unread) = (false, true);
        }
        if may_be("resolve_result") {
            self.resolving = None;
            self.resolve_next.clear();
        }
        if ["queue_taken", "queue_acked", "request_failed"].into_iter().any(may_be) {
            match request_id {
                Some(id) => drop(self.asked.remove(&id)),
                None => self.asked.clear(),
            }
        }
    }

    fn arrive(&self, arrival: Arrival, room: Room) -> Result<(), Ended> {
        let sent = self.arrivals.try_send((arrival, room));
        sent.map_err(|_| gone(Loss::Protocol, "too many messages arrived at once"))
    }

    /// What is pushed while there is no room is left alone: the broker keeps it and sends it again.
    fn pushed(
        &mut self,
        link: &Link,
        deliveries: Vec<Delivery>,
        unread: Vec<Unread>,
        room: Room,
    ) -> Result<(), Ended> {
        let seqs = deliveries.iter().map(|delivery| delivery.seq);
        let seqs = seqs.chain(unread.iter().filter_map(|unread| unread.seq));
        if let (Some(first), Some(last)) = (seqs.clone().min(), seqs.max()) {
            let goes_on = self.untaken.is_some_and(|untaken| untaken < first);
            if link.inbox.is_full() || goes_on {
                self.untaken = Some(last);
                return Ok(());
            }
            self.untaken = None;
        }
        self.arrive(Arrival::Pushed { deliveries, unread }, room)
    }

    fn history(
        &mut self,
        link: &Link,
        history: History,
        unread: Vec<Unread>,
        room: Room,
    ) -> Result<(), Ended> {
        (self.history_asked, self.history_unread) = (false, false);
        if link.inbox.is_full() {
            // It is asked for again once there is room.
            return Ok(());
        }
        // What was in the inbox before it was lost is no news.
        let known_to = Extent::after(link.rebuild_to.as_ref(), &self.store_epoch);
        let rebuilt = history.deliveries.last().is_some_and(|last| last.seq <= known_to);
        let page = Arrival::History {
            deliveries: history.deliveries,
            unread,
            way: if rebuilt { Way::Rebuilt } else { Way::Live },
            next_after_seq: history.next_after_seq,
        };
        self.arrive(page, room)
    }

    async fn resolved(&mut self, link: &mut Link, result: ResolveResult) {
        let Some(resolving) = self.resolving.take_if(|it| it.request_id == result.request_id)
        else {
            return;
        };
        for item in &result.items {
            let mut asked = resolving.page.iter();
            let Some(row) = asked.find(|row| row.client_message_id == item.client_message_id)
            else {
                continue;
            };
            let change = match (item.verdict, item.broker_message_id) {
                (Verdict::Committed, Some(broker_message_id)) => {
                    let history_id = item.history_id;
                    Some(Change::Committed(outbox::Delivery { broker_message_id, history_id }))
                }
                (Verdict::Committed, None) => None,
                // Absence says nothing about an earlier life of the broker's store.
                (Verdict::Absent, _) if self.link_row.may_have_been_sent_before(row.id) => None,
                (Verdict::Absent, _) => Some(Change::Absent),
                (Verdict::TooOld, _) => Some(Change::TooOld),
            };
            if let Some(change) = change {
                link.mark(row.id, change).await;
            }
        }
        let last = resolving.page.last().map(|row| row.id);
        let mut before = resolving.before;
        if !resolving.replies.is_empty() {
            before.extend(resolving.page.iter().map(|row| row.id));
        }
        self.resolve(link, last, resolving.replies, before).await;
    }

    async fn answered(&mut self, link: &mut Link, result: &SendResult) -> Result<(), Ended> {
        let now = link.clock.monotonic();
        let Some(flying) = self.flight.land(&result.client_message_id, now) else {
            tracing::warn!(status = result.status, "an answer without a question");
            return Ok(());
        };
        self.look(Look::Fresh);
        link.suspects.answered();
        let sent_before = self.link_row.may_have_been_sent_before(flying.id);
        let judged = judge(result, sent_before);
        match flying.errand {
            Errand::Send => self.answered_send(link, &flying, judged, now).await,
            Errand::Offer => self.answered_offer(link, &flying, judged, now).await,
        }
    }

    async fn answered_send(
        &mut self,
        link: &mut Link,
        flying: &Flying,
        judged: Judged,
        now: Duration,
    ) -> Result<(), Ended> {
        let change = match judged {
            Judged::Done(delivery) => {
                self.failures = 0;
                self.failing.taken(flying.id);
                if let Some(later) = self.later.take() {
                    link.status.send_if_modified(|status| {
                        // Unless something else was said since.
                        let is_shown = status.last_error.as_ref() == Some(&later);
                        status.last_error.take_if(|_| is_shown).is_some()
                    });
                }
                let lag = now.saturating_sub(flying.sent_at);
                link.status.send_if_modified(|status| {
                    status.lag = Some(lag);
                    false
                });
                Change::Accepted(delivery)
            }
            Judged::Wait(wait) => {
                self.pause(now + wait);
                Change::Limited { why: "429 rate_limited".to_owned() }
            }
            Judged::Again(why) => {
                let random = link.random();
                // A window that fails together has failed once.
                if self.paused_until.is_none_or(|until| until <= now) {
                    self.failures = self.failures.saturating_add(1);
                    self.pause(now + backoff_delay(self.failures, random));
                }
                // They wait together, and for the pause alone, so that they stay in order: a time
                // of their own would outlive this connection, and what is accepted later would
                // pass them on the next. One that never gets through while others do waits on its
                // own, so that it holds nobody up.
                let stuck = self.failing.is_stuck(flying.id);
                let alone = stuck && flying.attempt > ATTEMPTS_TOGETHER;
                let wait = alone.then(|| backoff_delay(flying.attempt, random));
                let next_attempt_at = wait.map(|wait| link.clock.wall().saturating_add(wait));
                let later = format!("the broker accepts no sends now: {why}");
                link.status.send_if_modified(|status| {
                    let is_new = status.last_error.as_ref() != Some(&later);
                    status.last_error = Some(later.clone());
                    is_new
                });
                self.later = Some(later);
                Change::Transient { why, next_attempt_at }
            }
            Judged::Dead(why, outcome) => {
                self.failures = 0;
                tracing::warn!(id = %flying.id, why, %outcome, "a send was given up");
                Change::Permanent { why, outcome }
            }
            Judged::Nonsense(what) => {
                link.mark(flying.id, Change::Restart).await;
                return Err(gone(Loss::Protocol, &what));
            }
        };
        self.put_off |= change.returns();
        link.mark(flying.id, change).await;
        Ok(())
    }

    async fn answered_offer(
        &mut self,
        link: &mut Link,
        flying: &Flying,
        judged: Judged,
        now: Duration,
    ) -> Result<(), Ended> {
        self.offers.outstanding = self.offers.outstanding.saturating_sub(1);
        match judged {
            Judged::Done(delivery) => link.mark(flying.id, Change::Offered(delivery)).await,
            Judged::Wait(wait) => {
                self.offers.again = true;
                self.pause(now + wait);
            }
            Judged::Again(_) => {
                self.offers.again = true;
                self.failures = self.failures.saturating_add(1);
                self.pause(now + backoff_delay(self.failures, link.random()));
            }
            Judged::Dead(why, _) => {
                tracing::warn!(id = %flying.id, why, "a restored broker did not accept a done row");
                link.mark(flying.id, Change::Disowned { why }).await;
            }
            Judged::Nonsense(what) => return Err(gone(Loss::Protocol, &what)),
        }
        self.page_offered(link).await;
        Ok(())
    }
}

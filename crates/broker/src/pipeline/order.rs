//! What a daemon had under way behind a send that was put off still arrives, perhaps when there is
//! room again or the store is back: it is put off as well, or it would overtake (mesh.md §2). The
//! daemon sends what was put off again in its order, so that the first one's return says that
//! everything behind it is still to come. Daemons keep an order for each priority, and so do we.

use std::collections::HashMap;
use std::time::Duration;

use semel_core::envelope::Priority;
use semel_core::id::ClientMessageId;

use super::Answer;
use super::door::Checked;
use crate::accept::{AcceptItem, Session, Verdict};
use crate::limits::{RETRY_AFTER_MIN, TOLD_TO_WAIT_MAX};

/// A place in the order of arrival in a lane. A send that comes again has a new one.
pub(super) type Place = u64;

/// Sends that a daemon sends in an order.
type Stream = (Session, Priority);

fn stream(item: &AcceptItem) -> Stream {
    (item.session, item.envelope.priority())
}

/// The first send of a stream that waits: first by arrival, not by when it was answered.
struct First {
    id: ClientMessageId,
    place: Place,
    /// When its daemon may send it again.
    until: Duration,
}

impl First {
    /// A daemon may have given the first one up: then nobody waits for it for ever.
    fn counts(&self, now: Duration) -> bool {
        now < self.until + TOLD_TO_WAIT_MAX
    }
}

/// Who was told to wait by the limiter, and from which send on.
#[derive(Default)]
pub(super) struct ToldToWait(HashMap<Stream, First>);

impl ToldToWait {
    pub(super) fn in_order(
        &mut self,
        item: &AcceptItem,
        place: Place,
        checked: Checked,
        now: Duration,
    ) -> Checked {
        if self.0.is_empty() && checked.is_ok() {
            return checked;
        }
        self.0.retain(|_, first| first.counts(now));
        let (stream, id) = (stream(item), &item.client_message_id);
        let first = self.0.get_mut(&stream);
        match (checked, first) {
            (Err(Verdict::RateLimited { retry_after }), first) => {
                let retry_after = retry_after.max(RETRY_AFTER_MIN);
                let until = now + retry_after;
                match first {
                    Some(first) if first.id == *id => first.until = until,
                    Some(_) => {}
                    None => drop(self.0.insert(stream, First { id: id.clone(), place, until })),
                }
                Err(Verdict::RateLimited { retry_after })
            }
            (Ok(cost), Some(first)) if first.id == *id => {
                self.0.remove(&stream);
                Ok(cost)
            }
            (Ok(_), Some(first)) => {
                let retry_after = first.until.saturating_sub(now).max(RETRY_AFTER_MIN);
                Err(Verdict::RateLimited { retry_after })
            }
            (checked, _) => checked,
        }
    }

    /// Whether one that came before this one waits for its return.
    fn has_earlier(&self, item: &AcceptItem, place: Place, now: Duration) -> bool {
        let first = self.0.get(&stream(item));
        first.is_some_and(|first| first.counts(now) && first.place < place)
    }
}

/// What was undone because the store was away, and which sessions had a send that nobody can judge:
/// those are being closed, and what is left of them comes again in order.
#[derive(Default)]
pub(super) struct PutOff {
    undone: HashMap<Stream, Vec<Undone>>,
    /// Until when more of them may come.
    closing: HashMap<Session, Duration>,
}

/// The first of a stream that was undone. It stays until something is said of it for good, with the
/// place that it had at first. Once it has come again, what comes behind its return goes on, and
/// has a first of its own.
struct Undone {
    first: First,
    back: Option<Place>,
}

impl Undone {
    fn holds(&self, place: Place) -> bool {
        self.first.place < place && self.back.is_none_or(|back| place < back)
    }
}

impl PutOff {
    /// What a send is answered because of what was put off before it; nothing lets it through.
    pub(super) fn behind(
        &mut self,
        item: &AcceptItem,
        place: Place,
        now: Duration,
    ) -> Option<Answer> {
        if self.undone.is_empty() && self.closing.is_empty() {
            return None;
        }
        self.closing.retain(|_, until| now < *until);
        self.undone.retain(|_, firsts| {
            firsts.retain(|undone| undone.first.counts(now));
            !firsts.is_empty()
        });
        if self.closing.contains_key(&item.session) {
            return Some(Answer::Close);
        }
        let firsts = self.undone.get_mut(&stream(item))?;
        let holds = |undone: &Undone| undone.holds(place) || semel_store::planted!("order");
        for undone in firsts {
            if undone.first.id == item.client_message_id {
                undone.back = Some(place);
                return None;
            }
            if holds(undone) {
                return Some(Answer::Later);
            }
        }
        None
    }

    /// In whatever order they are answered: a batch is answered after those behind it when it was
    /// still in its transaction while these could not even be looked up.
    pub(super) fn answered(
        &mut self,
        item: &AcceptItem,
        place: Place,
        answer: &Answer,
        now: Duration,
        told_to_wait: &ToldToWait,
    ) {
        match answer {
            Answer::Later => self.waits(item, place, now, told_to_wait),
            Answer::Decided(Verdict::RateLimited { retry_after }) => {
                self.waits_again(item, now + *retry_after);
            }
            Answer::Close => drop(self.closing.insert(item.session, now + TOLD_TO_WAIT_MAX)),
            // What is stuck waits on its own, so that it never blocks anybody.
            Answer::Decided(_) | Answer::Stuck => {
                if let Some(firsts) = self.undone.get_mut(&stream(item)) {
                    firsts.retain(|undone| undone.first.id != item.client_message_id);
                }
            }
        }
    }

    fn waits(&mut self, item: &AcceptItem, place: Place, now: Duration, told: &ToldToWait) {
        if self.waits_again(item, now) {
            return;
        }
        // Behind a send that the limiter has denied it is not the first that waits, and nothing
        // gets past that one.
        if told.has_earlier(item, place, now) {
            return;
        }
        let id = item.client_message_id.clone();
        let undone = Undone { first: First { id, place, until: now }, back: None };
        let firsts = self.undone.entry(stream(item)).or_default();
        match firsts.first() {
            Some(first) if place < first.first.place && !semel_store::planted!("order") => {
                *firsts = vec![undone];
            }
            Some(_) if firsts.iter().any(|undone| undone.holds(place)) => {}
            Some(_) | None => firsts.push(undone),
        }
    }

    /// Whether it was a first already: then it is the only one, as it was before it came again.
    fn waits_again(&mut self, item: &AcceptItem, until: Duration) -> bool {
        let Some(firsts) = self.undone.get_mut(&stream(item)) else { return false };
        let is_it = |undone: &Undone| undone.first.id == item.client_message_id;
        let Some(at) = firsts.iter().position(is_it) else { return false };
        firsts.truncate(at + 1);
        if let Some(undone) = firsts.last_mut() {
            (undone.back, undone.first.until) = (None, until);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use semel_core::envelope::{Destination, DestinationKind, Envelope};
    use semel_core::fingerprint::Fingerprint;
    use semel_core::id::UuidId;
    use uuid::Uuid;

    use super::*;
    use crate::limiter;

    fn item(epoch: i64, id: &str, priority: Priority) -> AcceptItem {
        let (member_id, instance_id) = (UuidId::new(Uuid::nil()), UuidId::new(Uuid::nil()));
        let destination = Destination::new(DestinationKind::Topic, "builds").unwrap();
        AcceptItem {
            session: Session { member_id, instance_id, epoch },
            client_message_id: ClientMessageId::parse(id).unwrap(),
            fingerprint: Fingerprint([0; 32]),
            envelope: Envelope::new(destination, "hi".into()).unwrap().with_priority(priority),
            body_commitment: None,
            mentions: Vec::new(),
            broker_message_id: UuidId::new(Uuid::nil()),
        }
    }

    fn next(epoch: i64, id: &str) -> AcceptItem {
        item(epoch, id, Priority::Next)
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn nothing_overtakes_what_was_denied() {
        let counted = || Ok(limiter::Verdict::Counted);
        let denied = |retry_after| Err(Verdict::RateLimited { retry_after });
        let mut told = ToldToWait::default();
        let mut asks = |item: AcceptItem, checked, now| told.in_order(&item, 0, checked, ms(now));
        assert_eq!(asks(next(1, "a"), counted(), 0), counted());
        assert_eq!(asks(next(1, "b"), denied(ms(400)), 0), denied(ms(400)));
        assert_eq!(asks(next(1, "c"), counted(), 100), denied(ms(300)), "it was under way");
        assert_eq!(asks(next(2, "d"), counted(), 100), counted(), "another session");
        assert_eq!(asks(item(1, "n", Priority::Now), counted(), 100), counted(), "and priority");
        assert_eq!(asks(next(1, "e"), counted(), 900), denied(RETRY_AFTER_MIN), "however late");
        assert_eq!(asks(next(1, "b"), counted(), 900), counted(), "the first comes again");
        assert_eq!(asks(next(1, "c"), counted(), 900), counted());
        // Denied once more, and then given up by its daemon: others go on after a while.
        assert_eq!(asks(next(1, "f"), denied(ms(1)), 1000), denied(RETRY_AFTER_MIN));
        assert_eq!(asks(next(1, "g"), counted(), 2000), denied(RETRY_AFTER_MIN));
        let later = 1100 + u64::try_from(TOLD_TO_WAIT_MAX.as_millis()).unwrap();
        assert_eq!(asks(next(1, "g"), counted(), later), counted());
    }

    #[test]
    fn nothing_overtakes_what_was_undone() {
        let mut put_off = PutOff::default();
        assert_eq!(put_off.behind(&next(1, "a"), 1, ms(0)), None);
        put_off.answered(&next(1, "a"), 1, &Answer::Stuck, ms(0), &ToldToWait::default());
        assert_eq!(put_off.behind(&next(1, "b"), 2, ms(0)), None, "it blocks nobody");
        put_off.answered(&next(1, "b"), 2, &Answer::Later, ms(0), &ToldToWait::default());
        put_off.answered(&next(1, "c"), 3, &Answer::Later, ms(0), &ToldToWait::default());
        assert_eq!(put_off.behind(&next(1, "d"), 4, ms(1)), Some(Answer::Later), "under way");
        assert_eq!(put_off.behind(&next(1, "c"), 5, ms(1)), Some(Answer::Later), "not the first");
        assert_eq!(put_off.behind(&next(2, "x"), 6, ms(1)), None, "another session");
        assert_eq!(put_off.behind(&item(1, "n", Priority::Low), 7, ms(1)), None, "and priority");
        assert_eq!(put_off.behind(&next(1, "b"), 8, ms(2)), None, "the first comes again");
        assert_eq!(put_off.behind(&next(1, "c"), 9, ms(2)), None);
        put_off.answered(&next(1, "b"), 8, &Answer::Stuck, ms(2), &ToldToWait::default());
        put_off.answered(&next(1, "e"), 10, &Answer::Later, ms(3), &ToldToWait::default());
        assert_eq!(put_off.behind(&next(1, "f"), 11, ms(3)), Some(Answer::Later));
        assert_eq!(put_off.behind(&next(1, "f"), 12, ms(3) + TOLD_TO_WAIT_MAX), None, "given up");
    }

    #[test]
    fn the_first_is_who_came_first_not_who_was_answered_first() {
        let mut put_off = PutOff::default();
        put_off.answered(&next(1, "c"), 3, &Answer::Later, ms(0), &ToldToWait::default());
        assert_eq!(put_off.behind(&next(1, "b"), 2, ms(0)), None, "it came before");
        put_off.answered(&next(1, "a"), 1, &Answer::Later, ms(1), &ToldToWait::default());
        put_off.answered(&next(1, "b"), 2, &Answer::Later, ms(1), &ToldToWait::default());
        assert_eq!(put_off.behind(&next(1, "c"), 4, ms(2)), Some(Answer::Later));
        assert_eq!(put_off.behind(&next(1, "a"), 5, ms(2)), None);
        assert_eq!(put_off.behind(&next(1, "b"), 6, ms(2)), None);
    }

    #[test]
    fn nothing_of_a_session_that_is_being_closed_is_taken() {
        let mut put_off = PutOff::default();
        put_off.answered(&next(1, "a"), 1, &Answer::Close, ms(0), &ToldToWait::default());
        for late in [next(1, "a"), next(1, "b"), item(1, "n", Priority::Now)] {
            assert_eq!(put_off.behind(&late, 2, ms(5)), Some(Answer::Close));
        }
        assert_eq!(put_off.behind(&next(2, "a"), 3, ms(5)), None, "it comes again");
    }
}

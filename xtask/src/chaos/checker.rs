//! What mesh.md §2 promises, checked against what happened: every send that was accepted is in the
//! inbox of each of its receivers once, as it was sent and in order, and nothing else is there;
//! work of a queue is taken, and never again once it was acknowledged.

use std::collections::{HashMap, HashSet};

/// Violations of each kind that are told in words.
const EXAMPLES_MAX: usize = 20;

/// A send that was answered `202` or `200`.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    pub(crate) sender: String,
    pub(crate) to: String,
    /// Where it must arrive: members by their keys. Nowhere is a queue.
    pub(crate) receivers: Vec<String>,
    pub(crate) priority: &'static str,
    pub(crate) key: String,
    pub(crate) body: String,
    /// Before the first attempt, by a counter that all tasks share.
    pub(crate) began: u64,
    /// After the answer, by the same counter.
    pub(crate) ended: u64,
}

/// A send that was answered `409` or `400`.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    pub(crate) sender: String,
    pub(crate) key: String,
    pub(crate) body: String,
}

/// A message in an inbox; a list of them is in the order of arrival.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    pub(crate) at: String,
    pub(crate) sender: String,
    pub(crate) priority: String,
    pub(crate) key: String,
    pub(crate) body: String,
}

/// Work that was taken from a queue.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) sender: String,
    pub(crate) key: String,
    pub(crate) body: String,
    /// Before it was asked for, by the counter that all tasks share.
    pub(crate) began: u64,
    /// After its acknowledgement was confirmed, if it was.
    pub(crate) acked: Option<u64>,
}

/// What was promised and is not so.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Accepted, and in no inbox.
    pub(crate) lost: u64,
    /// In an inbox once too often.
    pub(crate) duplicated: u64,
    /// Accepted after another was already there, of one sender, destination and priority, and
    /// there before it.
    pub(crate) out_of_order: u64,
    /// Refused, and in an inbox.
    pub(crate) refused_delivered: u64,
    /// In an inbox otherwise than it was accepted, or never sent at all.
    pub(crate) altered: u64,
    /// Overtaken while it waited on its own after the broker could not take it (`5xx`), which is on
    /// record: mesh.md §2 allows that, so it is told and not held against anybody.
    pub(crate) overtaken_when_delayed: u64,
    pub(crate) examples: Vec<String>,
}

impl Verdict {
    pub(crate) fn is_clean(&self) -> bool {
        let allowed = self.overtaken_when_delayed;
        *self == Self { overtaken_when_delayed: allowed, ..Self::default() }
    }

    fn say(&mut self, what: &str, message: &str) {
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(format!("{what}: {message}"));
        }
    }
}

/// A send as everybody knows it: by the sender's key and its own.
pub(crate) type SendId = (String, String);

/// Replays the journal against the inboxes. What was `delayed` on its own may be overtaken.
pub(crate) fn check(
    accepted: &[Accepted],
    refused: &[Refused],
    arrived: &[Arrived],
    delayed: &HashSet<SendId>,
) -> Verdict {
    let mut verdict = Verdict::default();
    let by_id: HashMap<(&str, &str), &Accepted> =
        accepted.iter().map(|send| ((send.sender.as_str(), send.key.as_str()), send)).collect();
    let refusals: HashMap<(&str, &str, &str), &Refused> = refused
        .iter()
        .map(|send| ((send.sender.as_str(), send.key.as_str(), send.body.as_str()), send))
        .collect();
    let mut times_seen: HashMap<(&str, &str, &str), u64> = HashMap::new();
    let mut newest: HashMap<(&str, &str, &str, &str), u64> = HashMap::new();
    for message in arrived {
        let id = (message.sender.as_str(), message.key.as_str());
        let what = format!("{} of {} at {}", message.key, message.sender, message.at);
        if refusals.contains_key(&(id.0, id.1, message.body.as_str())) {
            verdict.refused_delivered += 1;
            verdict.say("refused, but delivered", &what);
            continue;
        }
        let Some(send) = by_id.get(&id) else {
            verdict.altered += 1;
            verdict.say("delivered, but never accepted", &what);
            continue;
        };
        let seen = times_seen.entry((id.0, id.1, message.at.as_str())).or_insert(0);
        *seen += 1;
        if *seen > 1 {
            verdict.duplicated += 1;
            verdict.say("delivered again", &what);
            continue;
        }
        let same = send.receivers.contains(&message.at) && send.priority == message.priority;
        if !same || send.body != message.body {
            verdict.altered += 1;
            verdict.say("delivered otherwise than accepted", &what);
        }
        // Only what was over before the other began has an order that everybody saw.
        let sender = message.sender.as_str();
        let stream = (sender, message.at.as_str(), send.to.as_str(), send.priority);
        let newest = newest.entry(stream).or_insert(0);
        if send.ended < *newest && delayed.contains(&(send.sender.clone(), send.key.clone())) {
            verdict.overtaken_when_delayed += 1;
        } else if send.ended < *newest {
            verdict.out_of_order += 1;
            verdict.say("overtaken", &what);
        }
        *newest = send.began.max(*newest);
    }
    for send in accepted {
        for at in &send.receivers {
            if !times_seen.contains_key(&(send.sender.as_str(), send.key.as_str(), at.as_str())) {
                verdict.lost += 1;
                verdict.say("lost", &format!("{} of {} to {}", send.key, send.sender, send.to));
            }
        }
    }
    verdict
}

/// Replays what was taken from queues: it may come again until it is acknowledged, and not after.
pub(crate) fn check_queues(verdict: &mut Verdict, accepted: &[Accepted], taken: &[Taken]) {
    let queued = accepted.iter().filter(|send| send.receivers.is_empty());
    let by_key: HashMap<(&str, &str), &Accepted> =
        queued.map(|send| ((send.sender.as_str(), send.key.as_str()), send)).collect();
    let mut acked: HashMap<(&str, &str), u64> = HashMap::new();
    for work in taken {
        let id = (work.sender.as_str(), work.key.as_str());
        if let Some(at) = work.acked {
            let first = acked.entry(id).or_insert(at);
            *first = at.min(*first);
        }
        if by_key.get(&id).is_none_or(|send| send.body != work.body) {
            verdict.altered += 1;
            verdict.say("taken otherwise than accepted", &work.key);
        }
    }
    let seen: HashSet<(&str, &str)> =
        taken.iter().map(|work| (work.sender.as_str(), work.key.as_str())).collect();
    for work in taken {
        let id = (work.sender.as_str(), work.key.as_str());
        if acked.get(&id).is_some_and(|acked| *acked < work.began) {
            verdict.duplicated += 1;
            verdict.say("taken after it was acknowledged", &work.key);
        }
    }
    for (id, send) in by_key {
        if !seen.contains(&id) {
            verdict.lost += 1;
            verdict.say("never taken", &send.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(number: u64) -> Accepted {
        Accepted {
            sender: "a".to_owned(),
            to: "b".to_owned(),
            receivers: vec!["b".to_owned()],
            priority: "next",
            key: format!("key-{number}"),
            body: format!("body {number}"),
            began: 2 * number + 1,
            ended: 2 * number + 2,
        }
    }

    fn refused(number: u64) -> Refused {
        let (key, body) = (format!("key-{number}"), "something else".to_owned());
        Refused { sender: "a".to_owned(), key, body }
    }

    fn arrived(number: u64) -> Arrived {
        let Accepted { sender, to, priority, key, body, .. } = accepted(number);
        Arrived { at: to, sender, priority: priority.to_owned(), key, body }
    }

    /// A run of four sends, one refusal, and these arrivals.
    fn verdict(arrivals: &[Arrived]) -> Verdict {
        let sends: Vec<Accepted> = (0..4).map(accepted).collect();
        check(&sends, &[refused(1)], arrivals, &HashSet::new())
    }

    fn inbox(numbers: [u64; 4]) -> Vec<Arrived> {
        numbers.into_iter().map(arrived).collect()
    }

    #[test]
    fn a_run_in_which_all_is_well() {
        assert!(verdict(&inbox([0, 1, 2, 3])).is_clean());
    }

    #[test]
    fn a_message_acknowledged_before_it_was_on_disk_is_lost() {
        let found = verdict(&inbox([0, 1, 2, 3])[..3]);
        assert_eq!((found.lost, found.duplicated, found.out_of_order), (1, 0, 0));
        assert_eq!(found.examples, ["lost: key-3 of a to b"]);
        let found = verdict(&[arrived(0), arrived(1), arrived(3)]);
        assert_eq!((found.lost, found.duplicated, found.out_of_order), (1, 0, 0));
    }

    #[test]
    fn a_message_that_the_inbox_took_twice_is_duplicated() {
        let twice = [inbox([0, 1, 2, 3]), vec![arrived(2)]].concat();
        let found = verdict(&twice);
        assert_eq!((found.lost, found.duplicated, found.out_of_order), (0, 1, 0));
    }

    #[test]
    fn a_message_that_was_overtaken_is_out_of_order() {
        let found = verdict(&inbox([0, 2, 1, 3]));
        assert_eq!((found.lost, found.duplicated, found.out_of_order), (0, 0, 1));
    }

    #[test]
    fn a_message_that_the_broker_could_not_take_may_be_overtaken_and_no_other_may() {
        let sends: Vec<Accepted> = (0..4).map(accepted).collect();
        let delayed = HashSet::from([("a".to_owned(), "key-1".to_owned())]);
        let found = check(&sends, &[], &inbox([0, 2, 1, 3]), &delayed);
        assert_eq!((found.overtaken_when_delayed, found.is_clean()), (1, true));
        let found = check(&sends, &[], &inbox([0, 3, 2, 1]), &delayed);
        assert_eq!((found.overtaken_when_delayed, found.out_of_order), (1, 1));
        assert!(!found.is_clean());
    }

    #[test]
    fn sends_that_were_under_way_together_have_no_order() {
        let sends: Vec<Accepted> =
            (0..4).map(|number| Accepted { ended: 100, ..accepted(number) }).collect();
        assert!(check(&sends, &[], &inbox([3, 1, 2, 0]), &HashSet::new()).is_clean());
    }

    #[test]
    fn other_lanes_and_other_receivers_have_orders_of_their_own() {
        let sends = [accepted(0), Accepted { priority: "now", ..accepted(1) }, accepted(2)];
        let urgent = Arrived { priority: "now".to_owned(), ..arrived(1) };
        assert!(check(&sends, &[], &[urgent, arrived(0), arrived(2)], &HashSet::new()).is_clean());
        let c = || "c".to_owned();
        let sends = [accepted(0), Accepted { to: c(), receivers: vec![c()], ..accepted(1) }];
        let elsewhere = Arrived { at: "c".to_owned(), ..arrived(1) };
        assert!(check(&sends, &[], &[elsewhere, arrived(0)], &HashSet::new()).is_clean());
    }

    #[test]
    fn every_subscriber_gets_it_once_and_in_order() {
        let everybody = || vec!["b".to_owned(), "c".to_owned()];
        let post = |number| Accepted {
            to: "#topic".to_owned(),
            receivers: everybody(),
            ..accepted(number)
        };
        let sends = [post(0), post(1)];
        let at = |place: &str, number| Arrived { at: place.to_owned(), ..arrived(number) };
        let judged = |arrivals: &[Arrived]| check(&sends, &[], arrivals, &HashSet::new());
        assert!(judged(&[at("b", 0), at("b", 1), at("c", 0), at("c", 1)]).is_clean());
        assert_eq!(judged(&[at("b", 0), at("b", 1), at("c", 0)]).lost, 1);
        let found = judged(&[at("b", 0), at("b", 1), at("c", 1), at("c", 0), at("b", 1)]);
        assert_eq!((found.out_of_order, found.duplicated, found.lost), (1, 1, 0));
    }

    #[test]
    fn work_comes_until_it_is_acknowledged_and_not_after() {
        let work = |number| Accepted { receivers: Vec::new(), ..accepted(number) };
        let sends = [work(0), work(1)];
        let taken = |number, began, acked| {
            let Accepted { sender, key, body, .. } = accepted(number);
            Taken { sender, key, body, began, acked }
        };
        let judged = |taken: &[Taken]| {
            let mut verdict = Verdict::default();
            check_queues(&mut verdict, &sends, taken);
            verdict
        };
        assert!(
            judged(&[taken(0, 1, None), taken(0, 5, Some(7)), taken(1, 2, Some(3))]).is_clean()
        );
        assert_eq!(judged(&[taken(0, 1, Some(2))]).lost, 1);
        let found = judged(&[taken(0, 1, Some(2)), taken(0, 3, None), taken(1, 1, None)]);
        assert_eq!((found.duplicated, found.lost), (1, 0));
        let other = Taken { body: "damaged".to_owned(), ..taken(1, 1, None) };
        assert_eq!(judged(&[taken(0, 1, Some(2)), other]).altered, 1);
    }

    #[test]
    fn a_refused_message_that_arrives() {
        let Refused { key, body, .. } = refused(1);
        let wrong = Arrived { key, body, ..arrived(1) };
        let found = verdict(&[arrived(0), arrived(1), wrong, arrived(2), arrived(3)]);
        assert_eq!((found.refused_delivered, found.lost, found.duplicated), (1, 0, 0));
    }

    #[test]
    fn a_message_that_is_not_what_was_sent() {
        let other = |message| vec![arrived(0), message, arrived(2), arrived(3)];
        for wrong in [
            Arrived { body: "damaged".to_owned(), ..arrived(1) },
            Arrived { priority: "low".to_owned(), ..arrived(1) },
        ] {
            let found = verdict(&other(wrong));
            assert_eq!((found.altered, found.lost), (1, 0), "{found:?}");
        }
        let astray = verdict(&other(Arrived { at: "c".to_owned(), ..arrived(1) }));
        assert_eq!((astray.altered, astray.lost), (1, 1));
        let invented = verdict(&other(Arrived { key: "key-9".to_owned(), ..arrived(1) }));
        assert_eq!((invented.altered, invented.lost), (1, 1));
    }
}

//! A daemon that keeps its order, and a lane whose store comes and goes: whatever fails, and in
//! whatever order batches are answered, what is accepted is accepted in the daemon's order.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use semel_core::envelope::{Destination, DestinationKind, Envelope};
use semel_core::fingerprint::Fingerprint;
use semel_core::id::{ClientMessageId, UuidId};
use semel_testkit::clock::SimClock;
use uuid::Uuid;

use super::*;
use crate::accept::{DedupeMode, Session};
use semel_wire::features::ConnectionPolicy;

const ROWS: usize = 12;

/// What happens next; numbers are taken modulo what there is.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The daemon sends so many of its rows that wait, from the first on.
    Send(usize),
    /// So many of those that have arrived are looked up and checked.
    LookUp(usize, Look),
    /// A transaction takes what is in the line.
    Begin,
    /// The oldest transaction ends.
    End(End),
    /// The daemon hears so many answers.
    Hear(usize),
    /// Time passes.
    Wait(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Nothing is said against them.
    Passed,
    /// Their ids could not be looked up.
    Away,
    /// The limiter denies them, from this one on.
    DeniedFrom(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Kept,
    Undone,
    /// Undone, and then each of them alone; the store refuses one for what it is.
    OneRefused(usize),
    /// Alone as well, and in the middle of it the store goes away.
    AwayAfter(usize),
    /// Kept, and nobody knows.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    Waits,
    UnderWay,
    Done,
}

struct World {
    clock: SimClock,
    gate: Gate,
    mesh: Arc<Mesh>,
    /// Transactions of which the second is begun before the first is answered.
    at_once: usize,
    epoch: i64,
    rows: [Row; ROWS],
    put_off: bool,
    /// How many have arrived.
    arrived: Place,
    wire: VecDeque<Waiting>,
    answers: VecDeque<(usize, oneshot::Receiver<Answer>)>,
    running: VecDeque<Taken>,
    /// One before them was lost: then they are, too.
    lost: bool,
    /// In the order of commits.
    accepted: Vec<usize>,
    /// May be overtaken.
    refused: Vec<usize>,
}

impl World {
    fn new(at_once: usize) -> Self {
        let clock = SimClock::at_ms(0);
        let mesh = Mesh {
            mesh_id: UuidId::new(Uuid::nil()),
            slug: String::new(),
            connection_policy: ConnectionPolicy::PreferNewest,
            dedupe: DedupeMode::Permanent,
            dedupe_known_since: UnixMs(0),
            rate_limit: 1,
            rate_window_ms: 1,
            inline_bytes: 1,
            blob_bytes: 1,
            message_retention_days: 1,
            next_seq: 1,
        };
        Self {
            gate: Gate::new(mesh.mesh_id, 1000, Arc::new(Present::new(Arc::new(clock.clone())))),
            clock,
            mesh: Arc::new(mesh),
            at_once,
            epoch: 1,
            rows: [Row::Waits; ROWS],
            put_off: false,
            arrived: 0,
            wire: VecDeque::new(),
            answers: VecDeque::new(),
            running: VecDeque::new(),
            lost: false,
            accepted: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send(count) => self.send(count),
            Step::LookUp(count, look) => self.look_up(count, look),
            Step::Begin => self.begin(),
            Step::End(end) => self.end(end),
            Step::Hear(count) => self.hear(count),
            Step::Wait(ms) => self.clock.advance(Duration::from_millis(ms)),
        }
    }

    /// After an answer that puts off it waits for all others.
    fn send(&mut self, count: usize) {
        self.put_off &= self.rows.contains(&Row::UnderWay);
        if self.put_off {
            return;
        }
        let waiting = (0..ROWS).filter(|row| self.rows[*row] == Row::Waits);
        for row in waiting.take(count).collect::<Vec<_>>() {
            self.rows[row] = Row::UnderWay;
            let (reply, answer) = oneshot::channel();
            let (mesh, enqueued_at, place) = (Arc::clone(&self.mesh), UnixMs(0), self.arrived);
            let (item, arrival) = (item(self.epoch, row), Arrival { mesh, enqueued_at, place });
            self.arrived += 1;
            self.wire.push_back(Waiting { item, arrival, reply });
            self.answers.push_back((row, answer));
        }
    }

    fn look_up(&mut self, count: usize, look: Look) {
        let count = count.min(self.wire.len());
        let checked = |n: usize| match look {
            Look::Away => None,
            Look::DeniedFrom(first) if first <= n => {
                Some(Err(Verdict::RateLimited { retry_after: Duration::from_millis(100) }))
            }
            Look::Passed | Look::DeniedFrom(_) => Some(Ok(limiter::Verdict::Free)),
        };
        let batch = self.wire.drain(..count).enumerate();
        let batch = batch.map(|(n, waiting)| (waiting, checked(n))).collect();
        for (waiting, verdict) in self.gate.admit(batch) {
            let _ = waiting.reply.send(Answer::Decided(verdict));
        }
    }

    fn begin(&mut self) {
        if self.running.len() < self.at_once && !self.lost && self.gate.ask().is_some() {
            self.running.push_back(self.gate.take(&mut |_, _| None));
        }
    }

    fn end(&mut self, end: End) {
        let Some(taken) = self.running.pop_front() else { return };
        let answers = self.ended(&taken, if self.lost { End::Undone } else { end });
        self.lost = !self.running.is_empty() && (self.lost || end != End::Kept);
        self.gate.answered(&taken.batch, &taken.places, &answers);
        for (reply, answer) in taken.replies.into_iter().zip(answers) {
            let _ = reply.send(answer);
        }
        for (waiting, answer) in taken.put_off {
            let _ = waiting.reply.send(answer);
        }
    }

    fn ended(&mut self, taken: &Taken, end: End) -> Vec<Answer> {
        let mut answers = Vec::new();
        for (n, (item, place)) in taken.batch.items.iter().zip(&taken.places).enumerate() {
            let behind = self.gate.put_off().behind(item, *place, self.clock.monotonic());
            let answer = match (end, answers.last()) {
                (End::OneRefused(_) | End::AwayAfter(_), Some(Answer::Later)) => Answer::Later,
                (End::OneRefused(_) | End::AwayAfter(_), _) if behind.is_some() => Answer::Later,
                (End::OneRefused(one), _) if one == n => {
                    self.refused.push(row_of(item));
                    Answer::Stuck
                }
                (End::AwayAfter(one), _) if one <= n => Answer::Later,
                (End::Undone, _) => Answer::Later,
                (End::Unknown, _) => {
                    self.accept(item);
                    Answer::Close
                }
                (End::Kept | End::OneRefused(_) | End::AwayAfter(_), _) => self.accept(item),
            };
            answers.push(answer);
        }
        answers
    }

    fn accept(&mut self, item: &AcceptItem) -> Answer {
        if item.session.epoch != self.epoch {
            return Answer::Close;
        }
        let row = row_of(item);
        if !self.accepted.contains(&row) {
            self.accepted.push(row);
        }
        let broker_message_id = UuidId::new(Uuid::nil());
        Answer::Decided(Verdict::Accepted { broker_message_id, history_id: 1 })
    }

    /// Answers come in the order of the sends.
    fn hear(&mut self, count: usize) {
        for _ in 0..count {
            let Some((row, answer)) = self.answers.front_mut() else { return };
            let (row, Ok(answer)) = (*row, answer.try_recv()) else { return };
            self.answers.pop_front();
            match answer {
                Answer::Later | Answer::Stuck | Answer::Decided(Verdict::RateLimited { .. }) => {
                    self.rows[row] = Row::Waits;
                    self.put_off = true;
                }
                Answer::Decided(_) => self.rows[row] = Row::Done,
                Answer::Close => {
                    self.epoch += 1;
                    self.answers.clear();
                    let open = self.rows.iter_mut().filter(|row| **row == Row::UnderWay);
                    open.for_each(|row| *row = Row::Waits);
                    return;
                }
            }
        }
    }

    /// The store is back for good.
    fn drain(&mut self) {
        for _ in 0..1000 {
            if self.rows == [Row::Done; ROWS] {
                return;
            }
            for step in [
                Step::Send(ROWS),
                Step::LookUp(ROWS * ROWS, Look::Passed),
                Step::Begin,
                Step::End(End::Kept),
                Step::Hear(ROWS * ROWS),
                Step::Wait(100),
            ] {
                self.step(step);
            }
        }
    }
}

fn item(epoch: i64, row: usize) -> AcceptItem {
    let (member_id, instance_id) = (UuidId::new(Uuid::nil()), UuidId::new(Uuid::nil()));
    let destination = Destination::new(DestinationKind::Topic, "builds").unwrap();
    AcceptItem {
        session: Session { member_id, instance_id, epoch },
        client_message_id: ClientMessageId::parse(&row.to_string()).unwrap(),
        fingerprint: Fingerprint([0; 32]),
        envelope: Envelope::new(destination, "hi".into()).unwrap(),
        body_commitment: None,
        mentions: Vec::new(),
        broker_message_id: UuidId::new(Uuid::nil()),
    }
}

fn row_of(item: &AcceptItem) -> usize {
    item.client_message_id.as_str().parse().unwrap()
}

fn step() -> impl Strategy<Value = Step> {
    let end = prop_oneof![
        3 => Just(End::Kept),
        4 => Just(End::Undone),
        1 => (0..4_usize).prop_map(End::OneRefused),
        2 => (0..4_usize).prop_map(End::AwayAfter),
        1 => Just(End::Unknown),
    ];
    let look = prop_oneof![
        5 => Just(Look::Passed),
        2 => Just(Look::Away),
        2 => (0..4_usize).prop_map(Look::DeniedFrom),
    ];
    prop_oneof![
        3 => (1..=ROWS).prop_map(Step::Send),
        4 => (1..=ROWS, look).prop_map(|(n, look)| Step::LookUp(n, look)),
        4 => Just(Step::Begin),
        4 => end.prop_map(Step::End),
        3 => (1..=ROWS).prop_map(Step::Hear),
        1 => (0_u64..500).prop_map(Step::Wait),
    ]
}

fn keeps_the_order(at_once: usize, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(at_once);
    steps.iter().for_each(|step| world.step(*step));
    world.drain();
    prop_assert_eq!(world.rows, [Row::Done; ROWS], "everything gets through");
    let kept = world.accepted.iter().filter(|row| !world.refused.contains(row));
    prop_assert!(kept.is_sorted(), "accepted {:?}", world.accepted);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// As on PostgreSQL: one transaction at a time.
    #[test]
    fn one_transaction_at_a_time_keeps_the_order(steps in prop::collection::vec(step(), 0..60)) {
        keeps_the_order(1, &steps)?;
    }

    /// As on SQLite: the next one is begun before the last one is answered, and lost with it.
    #[test]
    fn two_transactions_in_a_row_keep_the_order(steps in prop::collection::vec(step(), 0..60)) {
        keeps_the_order(2, &steps)?;
    }
}

/// The way in which it was lost: a batch is in its transaction while those behind it cannot be
/// looked up; then it is undone.
#[test]
fn who_could_not_be_looked_up_does_not_overtake_a_transaction_that_is_undone() {
    let mut world = World::new(1);
    let steps = [
        Step::Send(6),
        Step::LookUp(3, Look::Passed),
        Step::LookUp(3, Look::Away),
        Step::Begin,
        Step::End(End::Undone),
        Step::Hear(6),
        Step::Send(6),
        Step::LookUp(6, Look::Passed),
        Step::Begin,
        Step::End(End::Kept),
    ];
    steps.into_iter().for_each(|step| world.step(step));
    assert_eq!(world.accepted, [0, 1, 2, 3, 4, 5]);
}

/// Another one: some are told to wait by the limiter, and those behind them cannot be looked up.
/// The first of all that waits is the one that the limiter denied.
#[test]
fn who_could_not_be_looked_up_does_not_overtake_who_was_told_to_wait() {
    let mut world = World::new(1);
    let steps = [
        Step::Send(6),
        Step::LookUp(3, Look::DeniedFrom(0)),
        Step::LookUp(3, Look::Away),
        Step::Begin,
        Step::End(End::Kept),
        Step::Hear(6),
        Step::Wait(200),
        Step::Send(6),
        Step::LookUp(6, Look::Passed),
        Step::Begin,
        Step::End(End::Kept),
    ];
    steps.into_iter().for_each(|step| world.step(step));
    assert_eq!(world.accepted, [0, 1, 2, 3, 4, 5]);
}

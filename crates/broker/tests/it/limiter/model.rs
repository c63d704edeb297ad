//! The in-process limiter against a list of (time, id) that is searched from end to end, for
//! random takes and a clock that moves; and both limiters against the list while time stands still.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use proptest::prelude::*;
use semel_broker::limiter::{LimitRequest, Limiter, Verdict};
use semel_testkit::clock::SimClock;

use super::{Bench, own};

const WINDOW_MS: u64 = 100;

#[derive(Debug, Clone)]
enum Step {
    Take { sender: u8, id: u8, limit: u32 },
    Advance { ms: u64 },
    SetCalendar { ms: i64 },
}

fn take() -> impl Strategy<Value = Step> {
    // Mostly one limit, as in life; sometimes another.
    let limit = prop_oneof![8 => Just(4), 1 => 0_u32..8];
    (0_u8..3, 0_u8..10, limit).prop_map(|(sender, id, limit)| Step::Take { sender, id, limit })
}

fn step() -> impl Strategy<Value = Step> {
    // Also to the very edge of a window, and past it.
    let ms = prop_oneof![4 => 0_u64..40, 1 => WINDOW_MS - 1..WINDOW_MS + 2];
    prop_oneof![
        6 => take(),
        2 => ms.prop_map(|ms| Step::Advance { ms }),
        1 => (-10_000_000_i64..10_000_000).prop_map(|ms| Step::SetCalendar { ms }),
    ]
}

#[derive(Default)]
struct Model {
    now: Duration,
    counted: BTreeMap<u8, Vec<(Duration, u8)>>,
}

impl Model {
    fn take(&mut self, sender: u8, id: u8, limit: u32, window: Duration) -> Verdict {
        let now = self.now;
        let all = self.counted.entry(sender).or_default();
        let inside = |at: Duration, then: Duration| then - at < window;
        if all.iter().any(|(at, counted)| *counted == id && inside(*at, now)) {
            return Verdict::Free;
        }
        let room = |then| {
            all.iter().filter(|(at, _)| inside(*at, then)).count() < usize::try_from(limit).unwrap()
        };
        if room(now) {
            all.push((now, id));
            return Verdict::Counted;
        }
        let leaving = all.iter().map(|(at, _)| *at + window).filter(|at| *at > now);
        let first = leaving.filter(|then| room(*then)).min();
        Verdict::Denied { retry_after: first.map_or(window, |then| then - now) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_is_the_model(steps in prop::collection::vec(step(), 1..200)) {
        let window = Duration::from_millis(WINDOW_MS);
        let clock = SimClock::at_ms(1_000_000);
        let limiter = Limiter::memory(Arc::new(clock.clone()));
        let mut model = Model::default();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Take { sender, id, limit } => {
                    let expected = model.take(sender, id, limit, window);
                    let (sender, id) = (sender.to_string(), id.to_string());
                    let request =
                        LimitRequest { window, ..super::request("m", &sender, &id, limit) };
                    let found = limiter.take(&request).now_or_never().expect("it never waits");
                    prop_assert_eq!(found.verdict, expected, "step {}", number);
                }
                Step::Advance { ms } => {
                    clock.advance(Duration::from_millis(ms));
                    model.now += Duration::from_millis(ms);
                }
                Step::SetCalendar { ms } => clock.step_wall_ms(ms),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(24)
    })]

    /// Without time: the server has its own, and the window is longer than the test.
    #[test]
    fn redis_is_the_model(takes in prop::collection::vec(take(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let verdicts = runtime.block_on(verdicts_of_redis(&takes));
        let mut model = Model::default();
        for (number, (step, found)) in takes.iter().zip(verdicts).enumerate() {
            let Step::Take { sender, id, limit } = step else { unreachable!("only takes") };
            let expected = model.take(*sender, *id, *limit, super::LONG);
            let kinds = [found, expected].map(|verdict| std::mem::discriminant(&verdict));
            prop_assert_eq!(kinds[0], kinds[1], "step {}: {:?}, {:?}", number, found, expected);
        }
    }
}

async fn verdicts_of_redis(takes: &[Step]) -> Vec<Verdict> {
    let bench = Bench::redis();
    let mut verdicts = Vec::new();
    for (number, step) in takes.iter().enumerate() {
        let Step::Take { sender, id, limit } = step else { unreachable!("only takes") };
        let (sender, id) = (sender.to_string(), id.to_string());
        let request = bench.request(&sender, &id, *limit);
        verdicts.push(own(&bench.limiters[number % 2], &request).await);
    }
    verdicts
}

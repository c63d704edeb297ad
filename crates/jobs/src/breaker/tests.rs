//! Opening, probing, closing.

use semel_testkit::tables;

use super::*;
use crate::limits::BREAKER_OPEN;

const START: UnixMs = UnixMs(1_000_000);
const PROBE: Duration = Duration::from_secs(70);

fn after(time: Duration) -> UnixMs {
    START.saturating_add(time)
}

fn open() -> Breaker {
    let mut breaker = Breaker::default();
    assert!(breaker.note(&[Run::Failed; 5], None, START));
    breaker
}

#[test]
fn what_a_run_says_equals_the_document() {
    let document = include_str!("../../../../docs/design/jobs.md");
    let row = |failure: Option<FailureClass>| {
        let run = Run::of(failure);
        let said = match run {
            Run::Succeeded => "succeeded",
            Run::Failed => "failed",
            Run::Broke => "broke",
            Run::Refused => "refused",
        };
        let ended = failure.map_or("a result", FailureClass::as_str);
        [ended, said, if run.counts() { "yes" } else { "no" }]
    };
    let classes = FailureClass::ALL.iter().copied().map(Some);
    let rows: Vec<_> = std::iter::once(None).chain(classes).map(row).collect();
    tables::equals_document(document, "breaker_runs", rows);
}

#[test]
fn it_opens_when_more_than_half_of_at_least_five_have_failed() {
    let mut breaker = Breaker::default();
    assert!(!breaker.note(&[Run::Failed; 4], None, START), "four are too few");
    assert!(breaker.note(&[Run::Succeeded], None, START), "four of five");
    let mut breaker = Breaker::default();
    let half = [Run::Succeeded, Run::Failed].repeat(20);
    assert!(!breaker.note(&half, None, START), "half is not more than half");
    assert!(breaker.note(&[Run::Failed; 2], None, START), "only the last ten count");
    assert_eq!(open().admit(START, PROBE), Admission::Held(after(BREAKER_OPEN)));
}

#[test]
fn one_probe_goes_through_and_another_when_it_was_lost() {
    let mut breaker = open();
    let now = after(BREAKER_OPEN);
    assert_eq!(breaker.admit(now, PROBE), Admission::Probe(1));
    let lost = now.saturating_add(PROBE);
    for _ in 0..16 {
        assert_eq!(breaker.admit(now, PROBE), Admission::Held(lost));
    }
    assert_eq!(breaker.admit(lost, PROBE), Admission::Probe(2), "nobody came back from it");
    assert!(!breaker.note(&[Run::Succeeded], Some(1), lost), "it was given up");
    assert!(breaker.note(&[Run::Succeeded], Some(2), lost));
    assert_eq!(breaker, Breaker { probe: 2, ..Breaker::default() });
}

#[test]
fn it_stays_open_longer_with_every_probe_that_fails() {
    let (mut breaker, mut now) = (open(), START);
    let mut waits = Vec::new();
    for number in 1..8 {
        now = breaker.until;
        assert_eq!(breaker.admit(now, PROBE), Admission::Probe(number));
        assert!(breaker.note(&[Run::Failed], Some(number), now));
        waits.push(breaker.open_for.as_secs());
    }
    assert_eq!(waits, [60, 120, 240, 480, 900, 900, 900]);
    assert_eq!(breaker.until, now.saturating_add(BREAKER_OPEN_MAX));
}

#[test]
fn only_the_probe_decides() {
    let mut breaker = open();
    assert!(!breaker.note(&[Run::Succeeded; 3], None, START), "they were under way when it opened");
    let now = after(BREAKER_OPEN);
    assert_eq!(breaker.admit(now, PROBE), Admission::Probe(1));
    let half_open = breaker.clone();
    for run in [Run::Succeeded, Run::Failed, Run::Broke, Run::Refused] {
        assert!(!breaker.note(&[run], None, now));
        assert_eq!(breaker, half_open, "{run:?} of another");
    }
    // The engine of the probe tells of the successes that it had kept to itself.
    assert!(breaker.note(&[Run::Succeeded, Run::Succeeded, Run::Failed], Some(1), now));
    assert_eq!(breaker.state, BreakerState::Open);
}

#[test]
fn a_probe_that_broke_or_was_refused_closes_nothing() {
    let now = after(BREAKER_OPEN);
    for (run, until) in [(Run::Broke, now.saturating_add(BREAKER_OPEN * 2)), (Run::Refused, now)] {
        let mut breaker = open();
        breaker.admit(now, PROBE);
        breaker.note(&[run], Some(1), now);
        assert_eq!((breaker.state, breaker.until), (BreakerState::Open, until), "{run:?}");
    }
}

#[test]
fn what_says_nothing_of_an_action_is_not_counted() {
    let mut breaker = Breaker::default();
    let runs = [Run::Failed, Run::Refused, Run::Broke, Run::Failed, Run::Refused];
    breaker.note(&runs, None, START);
    assert_eq!((breaker.state, breaker.window.as_str()), (BreakerState::Closed, "ff"));
    assert_eq!(Run::of(None), Run::Succeeded);
    for class in FailureClass::ALL {
        let run = Run::of(Some(*class));
        assert_eq!(run == Run::Failed, *class == FailureClass::Transient, "{class}");
        assert_ne!(run, Run::Succeeded, "{class}");
    }
}

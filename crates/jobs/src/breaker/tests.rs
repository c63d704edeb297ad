//! Opening, probing, closing.

use super::*;
use crate::limits::BREAKER_OPEN;

const START: UnixMs = UnixMs(1_000_000);
const PROBE: Duration = Duration::from_secs(70);

fn after(time: Duration) -> UnixMs {
    START.saturating_add(time)
}

fn open() -> Breaker {
    let mut breaker = Breaker::default();
    assert!(breaker.note(&[Run::Failed; 5], START));
    breaker
}

#[test]
fn it_opens_when_more_than_half_of_at_least_five_have_failed() {
    let mut breaker = Breaker::default();
    assert!(!breaker.note(&[Run::Failed; 4], START), "four are too few");
    assert!(breaker.note(&[Run::Succeeded], START), "four of five");
    let mut breaker = Breaker::default();
    let half = [Run::Succeeded, Run::Failed].repeat(20);
    assert!(!breaker.note(&half, START), "half is not more than half");
    assert!(breaker.note(&[Run::Failed; 2], START), "only the last ten count");
    assert_eq!(open().admit(START, PROBE), Admission::Held(after(BREAKER_OPEN)));
}

#[test]
fn one_probe_goes_through_and_another_when_it_was_lost() {
    let mut breaker = open();
    let now = after(BREAKER_OPEN);
    assert_eq!(breaker.admit(now, PROBE), Admission::Probe);
    let lost = now.saturating_add(PROBE);
    for _ in 0..16 {
        assert_eq!(breaker.admit(now, PROBE), Admission::Held(lost));
    }
    assert_eq!(breaker.admit(lost, PROBE), Admission::Probe, "nobody came back from it");
    assert!(breaker.note(&[Run::Succeeded], lost));
    assert_eq!(breaker, Breaker::default());
}

#[test]
fn it_stays_open_longer_with_every_probe_that_fails() {
    let (mut breaker, mut now) = (open(), START);
    let mut waits = Vec::new();
    for _ in 0..7 {
        now = breaker.until;
        assert_eq!(breaker.admit(now, PROBE), Admission::Probe);
        breaker.note(&[Run::Failed], now);
        waits.push(breaker.open_for.as_secs());
    }
    assert_eq!(waits, [60, 120, 240, 480, 900, 900, 900]);
    assert_eq!(breaker.until, now.saturating_add(BREAKER_OPEN_MAX));
}

#[test]
fn what_was_before_the_probe_says_nothing_of_it() {
    let mut breaker = open();
    assert!(!breaker.note(&[Run::Succeeded; 3], START), "they were under way when it opened");
    breaker.admit(after(BREAKER_OPEN), PROBE);
    // An engine tells of a failure, and of the successes that it had kept to itself.
    let runs = [Run::Succeeded, Run::Succeeded, Run::Failed];
    breaker.note(&runs, after(BREAKER_OPEN));
    assert_eq!(breaker.state, BreakerState::Open);
}

#[test]
fn only_what_may_pass_counts_against_an_action() {
    for class in FailureClass::ALL {
        let counts = Run::of(Some(*class)) == Run::Failed;
        assert_eq!(counts, *class == FailureClass::Transient, "{class}");
    }
    assert_eq!(Run::of(None), Run::Succeeded);
}

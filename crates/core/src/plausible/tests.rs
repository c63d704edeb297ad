//! Machines whose clocks step, sleep and are corrected, and what they may sweep by.

use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(60 * 60);
const YEAR_MS: i64 = 365 * 24 * 60 * 60 * 1000;
const OFF_MS: std::ops::Range<i64> = -2 * YEAR_MS..2 * YEAR_MS;
const NOW_MS: i64 = 1_800_000_000_000;

/// A machine: its calendar is off by `off_ms`, its monotonic clock sleeps with it.
struct Machine {
    sweeps: SweepClock,
    monotonic: Duration,
    off_ms: i64,
    /// A clock elsewhere, off by so much.
    outside_off_ms: Option<i64>,
}

impl Machine {
    fn new() -> Self {
        let sweeps = SweepClock::new();
        Self { sweeps, monotonic: Duration::ZERO, off_ms: 0, outside_off_ms: None }
    }

    fn truth(&self) -> UnixMs {
        UnixMs(NOW_MS).saturating_add(self.monotonic)
    }

    fn look(&mut self) -> Sweep {
        let truth = self.truth();
        if let Some(off) = self.outside_off_ms {
            self.sweeps.heard(UnixMs(truth.0 + off), self.monotonic);
        }
        self.sweeps.look(UnixMs(truth.0 + self.off_ms), self.monotonic)
    }

    /// Looks after so long.
    fn after(&mut self, wait: Duration) -> Sweep {
        self.monotonic += wait;
        self.look()
    }

    fn settled() -> Self {
        let mut machine = Self::new();
        machine.look();
        assert_eq!(machine.after(CLOCK_SETTLES_AFTER), Sweep::By(machine.truth()));
        machine
    }
}

#[test]
fn a_sweep_waits_until_the_clock_was_looked_at_for_a_while() {
    let mut machine = Machine::new();
    assert_eq!(machine.look(), Sweep::After(CLOCK_SETTLES_AFTER));
    let second = Duration::from_secs(1);
    assert_eq!(machine.after(CLOCK_SETTLES_AFTER - second), Sweep::After(second));
    assert_eq!(machine.after(second), Sweep::By(machine.truth()));
    assert_eq!(machine.after(24 * HOUR), Sweep::By(machine.truth()), "nothing has moved");
}

#[test]
fn a_year_ahead_for_four_seconds_deletes_nothing() {
    for at_the_start in [true, false] {
        let mut machine = if at_the_start { Machine::new() } else { Machine::settled() };
        machine.off_ms = YEAR_MS;
        assert!(matches!(machine.look(), Sweep::After(_)));
        machine.off_ms = 0;
        let wait = machine.after(Duration::from_secs(4));
        let Sweep::After(left) = wait else { panic!("the way back is a leap, too: {wait:?}") };
        assert_eq!(machine.after(left), Sweep::By(machine.truth()));
    }
}

#[test]
fn a_clock_that_was_corrected_sweeps_again() {
    let mut machine = Machine::settled();
    machine.off_ms = -20 * 60 * 1000;
    assert_eq!(machine.look(), Sweep::After(CLOCK_SETTLES_AFTER));
    assert_eq!(
        machine.after(CLOCK_SETTLES_AFTER),
        Sweep::By(UnixMs(machine.truth().0 - 1_200_000))
    );
}

#[test]
fn a_leap_that_nobody_confirms_must_last() {
    let mut machine = Machine::settled();
    machine.off_ms = YEAR_MS;
    assert_eq!(machine.look(), Sweep::After(CLOCK_SETTLES_ALONE));
    assert!(matches!(machine.after(CLOCK_SETTLES_AFTER), Sweep::After(_)));
    let believed = machine.after(CLOCK_SETTLES_ALONE);
    assert_eq!(believed, Sweep::By(UnixMs(machine.truth().0 + YEAR_MS)));
    assert_eq!(machine.after(HOUR), Sweep::By(UnixMs(machine.truth().0 + YEAR_MS)));
}

#[test]
fn a_laptop_that_sleeps_every_night_sweeps_every_day() {
    let mut machine = Machine::settled();
    machine.off_ms += 60 * 60 * 60 * 1000;
    machine.look();
    let mut swept = 0;
    for _ in 0..7 {
        for _ in 0..8 {
            swept += u32::from(matches!(machine.after(HOUR), Sweep::By(_)));
        }
        machine.off_ms += 16 * 60 * 60 * 1000;
        machine.look();
    }
    assert!(swept > 24, "after a weekend asleep it waits for a day awake, not for ever: {swept}");
}

#[test]
fn a_sweep_goes_by_the_earlier_clock() {
    let mut machine = Machine::settled();
    machine.outside_off_ms = Some(0);
    machine.off_ms = YEAR_MS;
    machine.look();
    assert_eq!(machine.after(CLOCK_SETTLES_AFTER), Sweep::By(machine.truth()));
    machine.outside_off_ms = Some(2 * YEAR_MS);
    let ours = UnixMs(machine.truth().0 + YEAR_MS);
    assert_eq!(machine.look(), Sweep::By(ours), "the other one is further ahead");
    machine.outside_off_ms = Some(-YEAR_MS);
    assert_eq!(machine.look(), Sweep::By(UnixMs(machine.truth().0 - YEAR_MS)));
}

#[test]
fn what_was_heard_goes_on_with_the_monotonic_clock() {
    let mut machine = Machine::settled();
    machine.outside_off_ms = Some(-1000);
    machine.look();
    machine.outside_off_ms = None;
    let outside = UnixMs(machine.truth().0 - 1000);
    assert_eq!(machine.after(HOUR), Sweep::By(outside.saturating_add(HOUR)));
}

#[test]
fn readings_at_the_ends_of_time_are_no_panic() {
    let mut sweeps = SweepClock::new();
    for wall in [i64::MIN, i64::MAX, 0, i64::MAX, i64::MIN] {
        sweeps.look(UnixMs(wall), Duration::from_secs(u64::from(u32::MAX)));
        sweeps.heard(UnixMs(i64::MAX), Duration::ZERO);
    }
}

proptest! {
    /// Whatever a clock does: who sweeps has seen it run evenly for the settling time before, and
    /// nothing is deleted by a time later than any clock that is known.
    #[test]
    fn nothing_is_swept_soon_after_a_move(
        steps in proptest::collection::vec((0_u64..1200, OFF_MS, 0_u8..4), 1..40),
        outside in proptest::option::of(-YEAR_MS..YEAR_MS),
    ) {
        let mut machine = Machine::new();
        machine.outside_off_ms = outside;
        let mut moved_at = Duration::ZERO;
        machine.look();
        for (wait_s, off_ms, moves) in steps {
            machine.monotonic += Duration::from_secs(wait_s);
            if moves == 0 {
                let by = Duration::from_millis(off_ms.abs_diff(machine.off_ms));
                moved_at = if by > CLOCK_MOVE_MAX { machine.monotonic } else { moved_at };
                machine.off_ms = off_ms;
            }
            if let Sweep::By(now) = machine.look() {
                prop_assert!(machine.monotonic - moved_at >= CLOCK_SETTLES_AFTER);
                prop_assert!(now.0 <= machine.truth().0 + machine.off_ms);
                prop_assert!(outside.is_none_or(|off| now.0 <= machine.truth().0 + off));
            }
        }
    }
}

#[test]
fn until_a_move_has_settled_the_present_lies_between_the_old_time_and_the_new() {
    let mut machine = Machine::settled();
    for off_ms in [YEAR_MS, -YEAR_MS, YEAR_MS / 2] {
        machine.off_ms = off_ms;
        let (truth, wall) = (machine.truth(), UnixMs(machine.truth().0 + off_ms));
        let between = machine.sweeps.between(wall, machine.monotonic);
        assert_eq!(between, Between::certain(truth).and(wall), "{off_ms}");
        machine.off_ms = 0;
        let between = machine.sweeps.between(truth, machine.monotonic);
        assert_eq!(between, Between::certain(truth), "it is back where it was");
        machine.monotonic += Duration::from_secs(4);
    }
    machine.off_ms = YEAR_MS;
    machine.look();
    machine.monotonic += CLOCK_SETTLES_AFTER;
    let wall = UnixMs(machine.truth().0 + YEAR_MS);
    let between = machine.sweeps.between(wall, machine.monotonic);
    assert_eq!(between, Between::certain(wall), "nothing is deleted by it");
    assert!(matches!(machine.look(), Sweep::After(_)));
    machine.sweeps.heard(machine.truth(), machine.monotonic);
    let between = machine.sweeps.between(wall, machine.monotonic);
    assert_eq!(between, Between { earliest: machine.truth(), latest: wall }, "another clock");
}

#[test]
fn a_start_long_after_the_newest_that_a_store_has_is_a_leap() {
    struct Start;
    impl Clock for Start {
        fn wall(&self) -> UnixMs {
            UnixMs(NOW_MS)
        }
        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }
    }
    let day = CLOCK_LEAP_MIN;
    let began = |newest| {
        let mut sweeps = SweepClock::new();
        sweeps.began(newest, &Start);
        let now = UnixMs(NOW_MS).saturating_add(CLOCK_SETTLES_AFTER);
        (sweeps.look(now, CLOCK_SETTLES_AFTER), sweeps)
    };
    let now = UnixMs(NOW_MS).saturating_add(CLOCK_SETTLES_AFTER);
    assert_eq!(began(None).0, Sweep::By(now), "a new store");
    assert_eq!(began(Some(UnixMs(NOW_MS - 1).saturating_sub(HOUR * 23))).0, Sweep::By(now));
    assert_eq!(began(Some(UnixMs(NOW_MS + YEAR_MS))).0, Sweep::By(now), "nothing goes early");
    let (look, mut sweeps) = began(Some(UnixMs(NOW_MS).saturating_sub(day)));
    assert_eq!(look, Sweep::After(day - CLOCK_SETTLES_AFTER));
    let mut alone = sweeps.clone();
    let later = UnixMs(NOW_MS).saturating_add(day);
    assert_eq!(alone.look(later, day), Sweep::By(later), "it has lasted");
    sweeps.heard(now, CLOCK_SETTLES_AFTER);
    assert_eq!(sweeps.look(now, CLOCK_SETTLES_AFTER), Sweep::By(now), "another clock says so");
}

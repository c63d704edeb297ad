//! How old an outbox row may become: it must die before the broker forgets its id (mesh.md §6).

use crate::code::Code;
use crate::limits::DEDUPE_RETENTION_DAYS_MIN;
use crate::refusal::Refusal;

/// How long the broker says that it remembers an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupeWindow {
    /// For this many days after the first accept.
    RetentionScoped {
        /// As advertised; the broker keeps rows 24 hours longer.
        days: u32,
    },
    /// For ever.
    Permanent,
}

const SCOPED_HOURS_MIN: u32 = 72;
const SCOPED_MARGIN_HOURS_MIN: u32 = 24;
const PERMANENT_HOURS_DEFAULT: u32 = 168;
const PERMANENT_HOURS_CAP: u32 = 720;

/// The age in hours at which a pending row dies, or why the daemon must not start.
pub fn outbox_max_age_hours(
    window: DedupeWindow,
    override_hours: Option<u32>,
) -> Result<u32, Refusal> {
    if override_hours == Some(0) {
        return Err(Refusal::new(
            Code::OutboxMaxAgeInvalid,
            "outbox.max_age_hours_override is 0: every message would be given up at once",
        ));
    }
    match window {
        DedupeWindow::Permanent => {
            Ok(override_hours.unwrap_or(PERMANENT_HOURS_DEFAULT).min(PERMANENT_HOURS_CAP))
        }
        DedupeWindow::RetentionScoped { days } => scoped_hours(days, override_hours),
    }
}

/// What an override is cut to, where it says more than a permanent mesh allows.
pub fn outbox_max_age_cut(window: DedupeWindow, override_hours: Option<u32>) -> Option<u32> {
    let is_over = override_hours.is_some_and(|hours| hours > PERMANENT_HOURS_CAP);
    (window == DedupeWindow::Permanent && is_over).then_some(PERMANENT_HOURS_CAP)
}

fn scoped_hours(days: u32, override_hours: Option<u32>) -> Result<u32, Refusal> {
    if days < DEDUPE_RETENTION_DAYS_MIN {
        return Err(Refusal::new(
            Code::FeatureParamBelowFloor,
            format!(
                "the broker remembers ids for {days} days, at least \
                 {DEDUPE_RETENTION_DAYS_MIN} are needed"
            ),
        ));
    }
    let window_hours = days.saturating_mul(24);
    match override_hours {
        Some(hours) if hours > window_hours - 1 => Err(Refusal::new(
            Code::OutboxMaxAgeAboveDedupeWindow,
            format!(
                "outbox.max_age_hours_override is {hours}, the broker's dedupe window allows {}",
                window_hours - 1
            ),
        )),
        Some(hours) => Ok(hours),
        None => {
            // ceil(days · 24 / 10), in whole numbers.
            let tenth = window_hours.div_ceil(10);
            let margin = tenth.max(SCOPED_MARGIN_HOURS_MIN);
            Ok((window_hours - margin).max(SCOPED_HOURS_MIN))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scoped(days: u32, over: Option<u32>) -> Result<u32, Code> {
        outbox_max_age_hours(DedupeWindow::RetentionScoped { days }, over).map_err(|r| r.code)
    }

    #[test]
    fn derived_from_the_window() {
        for (days, hours) in
            [(3, 72), (4, 72), (5, 96), (7, 144), (10, 216), (11, 237), (30, 648), (365, 7884)]
        {
            assert_eq!(scoped(days, None), Ok(hours), "{days} days");
        }
        assert_eq!(outbox_max_age_hours(DedupeWindow::Permanent, None), Ok(168));
    }

    #[test]
    fn an_override_stays_inside_the_window() {
        assert_eq!(scoped(30, Some(1)), Ok(1));
        assert_eq!(scoped(30, Some(719)), Ok(719));
        assert_eq!(scoped(30, Some(720)), Err(Code::OutboxMaxAgeAboveDedupeWindow));
        assert_eq!(scoped(3, Some(72)), Err(Code::OutboxMaxAgeAboveDedupeWindow));
        assert_eq!(outbox_max_age_hours(DedupeWindow::Permanent, Some(5000)), Ok(720));
        let permanent = |hours| outbox_max_age_cut(DedupeWindow::Permanent, hours);
        assert_eq!([None, Some(720), Some(721)].map(permanent), [None, None, Some(720)]);
        assert_eq!(outbox_max_age_cut(DedupeWindow::RetentionScoped { days: 90 }, Some(721)), None);
    }

    #[test]
    fn a_window_that_is_too_short_or_an_age_of_nothing_is_refused() {
        assert_eq!(scoped(2, None), Err(Code::FeatureParamBelowFloor));
        assert_eq!(scoped(0, Some(1)), Err(Code::FeatureParamBelowFloor));
        assert_eq!(scoped(30, Some(0)), Err(Code::OutboxMaxAgeInvalid));
    }

    #[test]
    fn an_absurd_window_does_not_overflow() {
        assert!(scoped(u32::MAX, None).is_ok());
    }
}

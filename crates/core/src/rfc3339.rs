//! Moments as APIs write them: RFC 3339 in UTC with milliseconds. One moment has one spelling.

use crate::clock::UnixMs;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// The years that four digits can write.
const FIRST_MS: i64 = -62_167_219_200_000;
const LAST_MS: i64 = 253_402_300_799_999;

/// `2027-01-15T08:00:00.000Z`; a moment outside the years 0 to 9999 is written as the nearest.
pub fn format(at: UnixMs) -> String {
    let ms = at.0.clamp(FIRST_MS, LAST_MS);
    let (days, of_day) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    let (year, month, day) = date(days);
    let (seconds, ms) = (of_day / 1000, of_day % 1000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{ms:03}Z")
}

/// Reads what [`format()`] writes, and no other spelling.
pub fn parse(text: &str) -> Option<UnixMs> {
    let digits = |from: usize, to: usize| -> Option<i64> {
        let part = text.get(from..to)?;
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let (year, month, day) = (digits(0, 4)?, digits(5, 7)?, digits(8, 10)?);
    let (hours, minutes, seconds) = (digits(11, 13)?, digits(14, 16)?, digits(17, 19)?);
    let of_day = ((hours * 60 + minutes) * 60 + seconds) * 1000 + digits(20, 23)?;
    let at = UnixMs(days(year, month, day) * DAY_MS + of_day);
    (format(at) == text).then_some(at)
}

/// The date of a day, counted from 1970-01-01. Years begin in March here, so that the day that
/// only some years have is the last one, and 400 years always have as many days.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// The day of a date, counted from 1970-01-01: the way back of [`date`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_moments() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_800_000_000_123, "2027-01-15T08:00:00.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (LAST_MS, "9999-12-31T23:59:59.999Z"),
            (FIRST_MS, "0000-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(format(UnixMs(ms)), text);
            assert_eq!(parse(text), Some(UnixMs(ms)));
        }
        assert_eq!(format(UnixMs(i64::MAX)), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn other_spellings_are_refused() {
        for text in [
            "",
            "2027-01-15T08:00:00Z",
            "2027-01-15T08:00:00.000+00:00",
            "2027-01-15 08:00:00.000Z",
            "2027-02-29T08:00:00.000Z",
            "2027-13-01T08:00:00.000Z",
            "2027-01-15T24:00:00.000Z",
            "2027-01-15T08:00:00.000Zé",
            "+027-01-15T08:00:00.000Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn reads_what_it_writes(ms in FIRST_MS..=LAST_MS) {
            prop_assert_eq!(parse(&format(UnixMs(ms))), Some(UnixMs(ms)));
        }
    }
}

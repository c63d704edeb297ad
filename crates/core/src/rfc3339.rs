//! Times as APIs write them: RFC 3339 in UTC with milliseconds. Databases hold numbers.

use crate::clock::UnixMs;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Years 0 to 9999, which is what the format can say.
const YEARS_DAYS: std::ops::RangeInclusive<i64> = -719_528..=2_932_896;

/// The last moment that the format can say.
pub const TIME_MAX: UnixMs = UnixMs((*YEARS_DAYS.end() + 1) * DAY_MS - 1);

/// `2026-01-31T12:00:00.000Z`. A time that the format cannot say becomes the nearest that it can.
pub fn format(at: UnixMs) -> String {
    let first = *YEARS_DAYS.start() * DAY_MS;
    let ms = at.0.clamp(first, TIME_MAX.0);
    let (days, of_day) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    let (year, month, day) = civil(days);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, ms) = (of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Reads a time with any offset; what is finer than a millisecond is cut off.
pub fn parse(text: &str) -> Option<UnixMs> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = bytes.get(from..to)?;
        digits.iter().all(u8::is_ascii_digit).then(|| text.get(from..to)?.parse().ok())?
    };
    let is = |at: usize, any: &[u8]| bytes.get(at).is_some_and(|byte| any.contains(byte));
    let marks = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let days = days(year, month, day);
    if !marks || civil(days) != (year, month, day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut at = 19;
    let mut ms = 0;
    if is(at, b".") {
        let digits = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        let scale = [0, 100, 10, 1][digits.min(3)];
        ms = number(at + 1, at + 1 + digits.min(3))? * scale;
        at += 1 + digits;
    }
    let offset_minutes = match bytes.get(at..)? {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), rest @ ..] if rest.len() == 5 && rest[2] == b':' => {
            let (hours, minutes) = (number(at + 1, at + 3)?, number(at + 4, at + 6)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let offset = hours * 60 + minutes;
            if *sign == b'-' { -offset } else { offset }
        }
        _ => return None,
    };
    let seconds = ((days * 24 + hour) * 60 + minute - offset_minutes) * 60 + second;
    Some(UnixMs(seconds * 1000 + ms))
}

/// Reads a time with any offset, in any spelling, that [`format()`] can write without a loss: one
/// that is finer than a millisecond, or out of its years, is refused. Zeros behind milliseconds, as
/// many languages write them, lose nothing.
pub fn parse_exact(text: &str) -> Option<UnixMs> {
    let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
    let digits = fraction.bytes().take_while(u8::is_ascii_digit);
    let is_fine = digits.skip(3).any(|digit| digit != b'0');
    let kept = |at: &UnixMs| !is_fine && parse(&format(*at)) == Some(*at);
    parse(text).filter(kept)
}

/// The date of a day counted from 1970-01-01, in the Gregorian calendar: eras of 400 years that
/// begin in March, so that the leap day is the last of its year.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// The other way round; a date that does not exist comes out as another one.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let shifted = (month + 9) % 12;
    let of_year = (153 * shifted + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_and_reads_the_same_moment() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_827_696_789, "2000-02-29T12:34:56.789Z"),
            (1_800_000_000_000, "2027-01-15T08:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(format(UnixMs(ms)), text);
            assert_eq!(parse(text), Some(UnixMs(ms)), "{text}");
        }
        for day in (-800_000..2_900_000).step_by(97).filter(|day| YEARS_DAYS.contains(day)) {
            let at = UnixMs(day * DAY_MS + 1);
            assert_eq!(parse(&format(at)), Some(at), "{day}");
        }
        assert_eq!(format(UnixMs(i64::MAX)), "9999-12-31T23:59:59.999Z");
        assert_eq!(format(UnixMs(i64::MIN)), "0000-01-01T00:00:00.000Z");
    }

    #[test]
    fn every_spelling_is_read_where_nothing_is_lost() {
        for text in [
            "1970-01-01T00:00:00.000Z",
            "1970-01-01T00:00:00Z",
            "1970-01-01T00:00:00.0Z",
            "1970-01-01T00:00:00.0000Z",
            "1970-01-01T00:00:00.000000+00:00",
            "1970-01-01T01:00:00.000+01:00",
            "1970-01-01t00:00:00.00z",
            "1969-12-31T18:30:00-05:30",
        ] {
            assert_eq!(parse_exact(text), Some(UnixMs(0)), "{text}");
        }
        for text in [
            "1970-01-01T00:00:00.0001Z",
            "1970-01-01T00:00:00.000001+00:00",
            "1970-01-01T00:00:00.1230004Z",
            "0000-01-01T00:00:00+00:01",
            "9999-12-31T23:59:59-00:01",
            "1970-01-01",
            "yesterday",
        ] {
            assert_eq!(parse_exact(text), None, "{text}");
        }
        assert_eq!(parse_exact("1970-01-01T00:00:00.123000Z"), Some(UnixMs(123)));
    }

    #[test]
    fn reads_offsets_and_fractions_and_nothing_else() {
        let of = |text: &str| parse(text).map(|at| at.0);
        assert_eq!(of("1970-01-01T01:00:00+01:00"), Some(0));
        assert_eq!(of("1969-12-31 23:30:00.5-00:30"), Some(500));
        assert_eq!(of("1970-01-01t00:00:00.1239999z"), Some(123));
        for bad in [
            "",
            "1970",
            "1970-01-01",
            "1970-01-01T00:00:00",
            "1970-02-30T00:00:00Z",
            "1970-13-01T00:00:00Z",
            "1970-01-01T24:00:00Z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00+1:00",
            "1970-01-01T00:00:00Zx",
            "+970-01-01T00:00:00Z",
            "1970-01-01T00:00:00+24:00",
            "1970-01-01T00:00:00é",
            "197é-01-01T00:00:00Z",
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}

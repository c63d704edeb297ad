//! Times as people write them: `500ms`, `30s`, `5m`, `24h`, `7d`.

use std::time::Duration;

/// Reads a number with its unit.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time such as 500ms, 30s, 5m, 24h or 7d");
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(at);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => return Ok(Duration::from_millis(number)),
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

/// The same of what is counted in minutes.
pub(crate) fn parse_minutes(text: &str) -> Result<Duration, String> {
    let time = parse(text)?;
    match time.as_millis() {
        ms if ms > 0 && ms % 60_000 == 0 => Ok(time),
        _ => Err(format!("{text:?} is not a whole number of minutes, such as 1m, 90m or 24h")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_its_unit() {
        let read = |text| parse(text).ok().map(|time| time.as_millis());
        let times = [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("24h", 86_400_000)];
        for (text, ms) in times {
            assert_eq!(read(text), Some(ms), "{text}");
        }
        for text in ["", "5", "s", "-1s", "1.5h", "1w", "99999999999999999999s"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_counted_in_minutes_has_no_parts_of_one() {
        for (text, seconds) in [("1m", 60), ("60s", 60), ("120000ms", 120), ("1d", 86_400)] {
            assert_eq!(parse_minutes(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["0m", "30s", "90s", "60001ms", "5"] {
            assert!(parse_minutes(text).is_err(), "{text}");
        }
    }
}

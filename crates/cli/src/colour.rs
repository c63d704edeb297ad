//! Colour, only where a person looks: on a terminal, and not where `NO_COLOR` is set.

use std::borrow::Cow;
use std::io::{stderr, stdout};

use anstream::{AutoStream, ColorChoice};
use semel_core::shown::{shown_json, shown_lines};

const BOLD: &str = "\u{1b}[1m";
const BOLD_RED: &str = "\u{1b}[1;31m";
const PLAIN: &str = "\u{1b}[0m";

/// A table for stdout: its first line is a heading, if anything follows.
pub(crate) fn table(text: String) -> String {
    headed(text, AutoStream::choice(&stdout()))
}

/// What is said on stderr: the word that it begins with is an alarm.
pub(crate) fn error(text: &str) -> String {
    alarmed(text, AutoStream::choice(&stderr()))
}

/// What is printed as a terminal may show it, whoever has written it: nothing in it moves the
/// cursor, and nothing is coloured but headings. A document in JSON says the same afterwards.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    if text.starts_with('{') {
        return shown_json(text);
    }
    let without = |text: &str| text.split(PLAIN).map(shown_lines).collect::<Vec<_>>().join(PLAIN);
    Cow::Owned(text.split(BOLD).map(without).collect::<Vec<_>>().join(BOLD))
}

fn headed(text: String, choice: ColorChoice) -> String {
    match text.split_once('\n') {
        Some((heading, rest)) if choice != ColorChoice::Never && !rest.is_empty() => {
            format!("{BOLD}{heading}{PLAIN}\n{rest}")
        }
        Some(_) | None => text,
    }
}

fn alarmed(text: &str, choice: ColorChoice) -> String {
    match text.strip_prefix("error:") {
        Some(rest) if choice != ColorChoice::Never => format!("{BOLD_RED}error:{PLAIN}{rest}"),
        Some(_) | None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_shown_headings_and_text() {
        let table = headed("NAME\na\u{1b}[2J\u{9b}1\n".to_owned(), ColorChoice::Always);
        let same = "\u{1b}[1mNAME\u{1b}[0m\na\\u{1b}[2J\\u{9b}1\n";
        assert_eq!(shown(&format!("of\r\n\n{table}")), format!("of\\u{{d}}\n\n{same}"));
        assert_eq!(shown("{\"a\":\"\u{9b}\"}\n"), "{\"a\":\"\\u009b\"}\n");
    }

    #[test]
    fn only_headings_and_errors_stand_out_and_only_where_colour_is_wanted() {
        let table = || "NAME\nme\n".to_owned();
        assert_eq!(headed(table(), ColorChoice::Never), table());
        assert_eq!(headed(table(), ColorChoice::Always), "\u{1b}[1mNAME\u{1b}[0m\nme\n");
        assert_eq!(headed("none\n".to_owned(), ColorChoice::Always), "none\n");
        assert_eq!(alarmed("error: no", ColorChoice::Never), "error: no");
        assert_eq!(alarmed("error: no", ColorChoice::Always), "\u{1b}[1;31merror:\u{1b}[0m no");
        assert_eq!(alarmed("{\"code\":1}", ColorChoice::Always), "{\"code\":1}");
    }
}

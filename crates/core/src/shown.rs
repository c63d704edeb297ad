//! Text that somebody else wrote, as a terminal may print it: what moves the cursor, turns the
//! direction of reading or cannot be seen is spelled out.

use std::borrow::Cow;
use std::fmt::Write as _;

/// For one line: every character that is not plain is shown as `\u{…}`.
pub fn shown(text: &str) -> Cow<'_, str> {
    spelled(text, is_strange)
}

/// For several lines: line feeds and tabs stay.
pub fn shown_lines(text: &str) -> Cow<'_, str> {
    spelled(text, |c| is_strange(c) && c != '\n' && c != '\t')
}

/// A document in JSON, which says the same afterwards.
pub fn shown_json(text: &str) -> Cow<'_, str> {
    let is_spelled = |c| is_strange(c) && c != '\n' && c != '\t';
    if !text.contains(is_spelled) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if !is_spelled(c) {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    Cow::Owned(out)
}

/// Whether a name looks like what it is: blanks at its ends look like nothing.
pub fn is_plain_name(text: &str) -> bool {
    !text.contains(is_strange) && text.trim() == text
}

fn spelled(text: &str, strange: impl Fn(char) -> bool + Copy) -> Cow<'_, str> {
    if !text.contains(strange) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if strange(c) {
            // Writing to a string does not fail.
            let _ = write!(out, "{}", c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Control characters, marks and overrides of direction, separators of lines, and what is not seen.
fn is_strange(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}'
            | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_plain_is_not_copied() {
        for text in ["", "bob", "Zoë Ångström", "日本語", "a b~", "👩", "a\u{a0}b"] {
            assert!(matches!(shown(text), Cow::Borrowed(_)), "{text:?}");
            assert!(is_plain_name(text), "{text:?}");
        }
    }

    #[test]
    fn what_moves_turns_or_hides_is_spelled_out() {
        for c in [
            '\0',
            '\u{1b}',
            '\n',
            '\t',
            '\r',
            '\u{7f}',
            '\u{80}',
            '\u{9b}',
            '\u{9f}',
            '\u{61c}',
            '\u{200b}',
            '\u{200f}',
            '\u{2028}',
            '\u{202e}',
            '\u{2060}',
            '\u{2069}',
            '\u{feff}',
            '\u{e0000}',
            '\u{e007f}',
        ] {
            let text = format!("a{c}b");
            assert_eq!(shown(&text), format!("a\\u{{{:x}}}b", u32::from(c)));
            assert!(!is_plain_name(&text), "{c:?}");
        }
        for c in ['\u{61b}', '\u{61d}', '\u{200a}', '\u{2010}', '\u{2027}', '\u{202f}', '\u{206a}']
        {
            assert!(is_plain_name(&format!("a{c}b")), "{c:?}");
        }
    }

    #[test]
    fn blanks_at_the_ends_of_a_name_look_like_nothing() {
        for name in [" ", "me ", " me", "me\u{a0}", "\u{2003}me"] {
            assert!(!is_plain_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_document_says_the_same_afterwards() {
        assert!(matches!(shown_json("{\"a\": \"b\"}\n"), Cow::Borrowed(_)));
        let text = "{\"a\": \"b\u{9b}c\u{202e}d\u{e0041}\u{7f}\\u001b\"}\n";
        let same = "{\"a\": \"b\\u009bc\\u202ed\\udb40\\udc41\\u007f\\u001b\"}\n";
        assert_eq!(shown_json(text), same);
    }

    #[test]
    fn several_lines_stay_several_lines() {
        assert_eq!(shown_lines("a\n\tb\r\u{1b}[2J"), "a\n\tb\\u{d}\\u{1b}[2J");
        assert_eq!(shown("a\n\tb"), "a\\u{a}\\u{9}b");
    }
}

//! A file as one text: line ends and the marks of comments are left out, so that a citation may go
//! over the end of a line.

use super::super::source::SourceFile;
use super::library::outside_of_fences;

const MARKS: [&str; 7] = ["//!", "///", "//", "--", "#", ">", "*"];
const JOINTS: [&str; 6] = [", and ", ", ", " and ", " or ", "–", "; "];

pub(super) struct Prose {
    pub(super) text: String,
    /// Where each line begins.
    starts: Vec<usize>,
}

impl Prose {
    pub(super) fn of(file: &SourceFile) -> Self {
        let mut prose = Self { text: String::new(), starts: Vec::new() };
        for (_, line) in file.lines() {
            let line = line.trim();
            let line = MARKS.iter().find_map(|mark| line.strip_prefix(mark)).unwrap_or(line);
            prose.starts.push(prose.text.len());
            prose.text.push_str(line.trim());
            prose.text.push(' ');
        }
        prose
    }

    /// The number of the line in which this byte is.
    pub(super) fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at)
    }
}

/// What continues a word.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

/// The path that ends here, without its extension.
pub(super) fn path_before(text: &str, end: usize) -> &str {
    let is_path = |c: char| c.is_ascii() && (is_word(c) || c == '/' || c == '.');
    let path = text[..end].trim_end_matches(is_path);
    let path = &text[path.len()..end];
    // A pattern such as `docs/errors/<code>.md` has no name here.
    if path.ends_with('/') { "" } else { path }
}

/// `§7, §8 and §10` from here on: where the signs are, and their numbers.
pub(super) fn sections(text: &str, from: usize) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let mut at = from;
    while let Some(rest) = text[at..].strip_prefix('§') {
        let number = section_number(rest);
        let end = at + '§'.len_utf8() + number.len();
        all.push((at, number));
        at = end + joint(&text[end..]);
    }
    all
}

/// `7` of `§7`, `6.2` of `§6.2.`
pub(super) fn section_number(text: &str) -> String {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text[..end].trim_end_matches('.').to_owned()
}

fn joint(text: &str) -> usize {
    JOINTS.iter().find(|joint| text.starts_with(**joint)).map_or(0, |joint| joint.len())
}

/// Numbers behind a word: `traps 46, 51`.
pub(super) fn numbers_after(text: &str, word: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    for (begin, _) in text.match_indices(word) {
        if text[..begin].ends_with(|c: char| is_word(c)) {
            continue;
        }
        let mut at = begin + word.len();
        loop {
            let digits = text[at..].bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 {
                break;
            }
            all.push((begin, text[at..at + digits].to_owned()));
            at += digits;
            match joint(&text[at..]) {
                0 => break,
                joint => at += joint,
            }
        }
    }
    all
}

/// What stands in quotation marks at the beginning.
pub(super) fn quoted(text: &str) -> Option<&str> {
    text.strip_prefix('"')?.split_once('"').map(|(title, _)| title)
}

/// Targets of links, with their lines.
pub(super) fn links(file: &SourceFile) -> Vec<(usize, &str)> {
    let mut all = Vec::new();
    for (number, line) in outside_of_fences(file) {
        for (at, mark) in line.match_indices("](") {
            let rest = &line[at + mark.len()..];
            if let Some((target, _)) = rest.split_once(')') {
                all.push((number, target));
            }
        }
    }
    all
}

//! Reads the numbers out of what test runners print.

use std::fmt;
use std::ops::{Add, AddAssign};

/// How many tests passed and failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Tally {
    pub(crate) const ONE_FAILURE: Self = Self { passed: 0, failed: 1 };

    /// A runner that found no test has tested nothing, which must not look like success.
    pub(crate) fn or_failure_if_empty(self) -> Self {
        if self == Self::default() { Self::ONE_FAILURE } else { self }
    }

    /// A runner can fail without a failed test: a build error, a crash, a broken script.
    pub(crate) fn with_exit(self, success: bool) -> Self {
        if success || self.failed > 0 { self } else { self + Self::ONE_FAILURE }
    }
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// nextest prints one summary at its end; an earlier line like it is some test's output.
pub(crate) fn nextest(lines: &[String]) -> Tally {
    lines.iter().rev().find_map(|line| nextest_summary(line)).unwrap_or_default()
}

/// `cargo test` prints one summary for each test binary.
pub(crate) fn cargo_test(lines: &[String]) -> Tally {
    lines.iter().filter_map(|line| cargo_test_result(line)).fold(Tally::default(), Add::add)
}

/// A script of ours ends as we do; what it may print on stderr comes after that in `lines`.
pub(crate) fn script(lines: &[String]) -> Tally {
    lines.iter().rev().find_map(|line| script_summary(line)).unwrap_or_default()
}

/// `Summary [   3.1s] 104 tests run: 102 passed (1 slow), 1 failed, 1 timed out, 0 skipped`
fn nextest_summary(line: &str) -> Option<Tally> {
    let line = without_colours(line);
    let rest = line.trim_start().strip_prefix("Summary [")?;
    let (_, results) =
        rest.split_once(" tests run: ").or_else(|| rest.split_once(" test run: "))?;
    let mut tally = Tally::default();
    for text in without_parentheses(results).split(',') {
        let (number, what) = part(text)?;
        match what {
            "passed" => tally.passed += number,
            "skipped" => {}
            // "failed", "timed out", "exec failed", and whatever a newer version may add.
            _ => tally.failed += number,
        }
    }
    Some(tally)
}

/// `test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s`
fn cargo_test_result(line: &str) -> Option<Tally> {
    let line = without_colours(line);
    let rest = line.trim_start().strip_prefix("test result: ")?;
    let (_, results) = rest.split_once(". ")?;
    let mut results = results.splitn(3, ';');
    pair(results.next()?, results.next()?)
}

/// `12 passed, 0 failed`
fn script_summary(line: &str) -> Option<Tally> {
    let (passed, failed) = line.split_once(',')?;
    pair(passed, failed)
}

fn pair(passed: &str, failed: &str) -> Option<Tally> {
    let (passed, failed) = (part(passed)?, part(failed)?);
    (passed.1 == "passed" && failed.1 == "failed")
        .then_some(Tally { passed: passed.0, failed: failed.0 })
}

/// A number and what it counts.
fn part(text: &str) -> Option<(u64, &str)> {
    let (number, what) = text.trim().split_once(' ')?;
    Some((number.parse().ok()?, what.trim()))
}

/// The parentheses say what is special about tests which the number before them already counts.
fn without_parentheses(text: &str) -> String {
    let mut depth = 0_u32;
    let mut kept = String::new();
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => kept.push(c),
            _ => {}
        }
    }
    kept
}

/// `CARGO_TERM_COLOR=always` colours the numbers even in a pipe: `ESC [ … m`.
fn without_colours(text: &str) -> String {
    let mut pieces = text.split("\u{1b}[");
    let mut kept = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        kept.push_str(piece.split_once('m').map_or(piece, |(_, after)| after));
    }
    kept
}

#[cfg(test)]
mod tests;

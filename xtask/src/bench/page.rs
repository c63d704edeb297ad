//! The bars: all of them for the terminal and for `docs/performance.md`, some for the README,
//! each between two marks.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::Value;

use super::PICTURE;
use super::results::{Bar, Figure, Results, Side, Want};

const BEGIN: &str = "<!-- bench -->";
const END: &str = "<!-- /bench -->";

/// What a reader of the README wants to know first: ours, and what it is measured by.
const FIRST: [(&str, &str); 5] = [
    (
        "POST /v1/send, broker away, 64 connections",
        "Redis, AOF always, dedupe script, 64 connections",
    ),
    ("POST /v1/send, broker away, 64 connections", "NATS JetStream, sync always, 64 in flight"),
    (
        "accepts on PostgreSQL, 64 in flight",
        "bare PostgreSQL, dedupe + message per commit, 64 at once",
    ),
    ("jobs on SQLite, 1 step, 64 in flight", "Restate, 1 step, 64 in flight"),
    ("jobs on PostgreSQL, 3 steps, 64 in flight", "DBOS on PostgreSQL, 3 steps, 64 in flight"),
];

/// The page with all bars between its marks.
pub(super) fn into_page(page: &str, results: &Results) -> Result<String> {
    between_marks(page, &section(results))
}

/// The README with some of them.
pub(super) fn into_readme(readme: &str, results: &Results) -> Result<String> {
    between_marks(readme, &first(results))
}

fn between_marks(text: &str, section: &str) -> Result<String> {
    let (before, rest) = text.split_once(BEGIN).context("there is no <!-- bench -->")?;
    let (_, after) = rest.split_once(END).context("there is no <!-- /bench -->")?;
    Ok(format!("{before}{BEGIN}\n{section}{END}{after}"))
}

fn first(results: &Results) -> String {
    let mut text = format!("![ours, the limit and the peers, per second]({PICTURE})\n\n");
    for (ours, reference) in FIRST {
        let is_meant = |bar: &&Bar| bar.ours.name == ours && bar.reference.name == reference;
        let Some(bar) = results.bars.iter().find(is_meant) else { continue };
        let [a, b] = [&bar.ours, &bar.reference].map(figure);
        // Writing into a string cannot fail.
        let _ = writeln!(text, "- {ours}: **{a}**. {reference}: {b}.");
    }
    text
}

fn section(results: &Results) -> String {
    let mut text = machine(results) + "\n\n";
    text.push_str("| what | | against | | ratio | bar | |\n|---|---:|---|---:|---:|---|---|\n");
    for bar in &results.bars {
        let [ours, reference] = [&bar.ours, &bar.reference].map(figure);
        let (ratio, want) = (ratio(bar), want(bar));
        let row = [&bar.ours.name, &ours, &bar.reference.name, &reference, &ratio, &want];
        let cells = row.map(|cell| cell.replace('|', "\\|")).join(" | ");
        let _ = writeln!(text, "| {cells} | {} |", bar.verdict());
    }
    if !results.missing.is_empty() {
        text.push('\n');
    }
    for line in missing(results) {
        let _ = writeln!(text, "- {line}");
    }
    text
}

/// For the terminal.
pub(super) fn text(results: &Results) -> String {
    let mut text = machine(results) + "\n\n";
    for bar in &results.bars {
        let [ours, reference] = [&bar.ours, &bar.reference].map(figure);
        let verdict = bar.verdict().trim_matches('*');
        let _ = writeln!(
            text,
            "{:<62} {ours:>12}  {:<56} {reference:>12} {:>7} {:>7} {verdict}",
            bar.ours.name,
            bar.reference.name,
            ratio(bar),
            want(bar)
        );
    }
    for line in missing(results) {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn missing(results: &Results) -> impl Iterator<Item = String> {
    results.missing.iter().map(|(peer, why)| format!("peer {peer} not available: {why}"))
}

fn machine(results: &Results) -> String {
    let fact = |name: &str| match &results.machine[name] {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => number.as_f64().map(thousands),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let mut facts = Vec::new();
    facts.extend(fact("cores").map(|cores| format!("{cores} cores")));
    facts.extend(fact("cpu"));
    facts.extend(fact("kernel").map(|kernel| format!("Linux {kernel}")));
    facts.extend(fact("fdatasync_us").map(|us| format!("one fdatasync {us} µs")));
    facts.extend(fact("fdatasync_per_second").map(|rate| format!("{rate} of them a second")));
    facts.extend(fact("sqlite").map(|version| format!("SQLite {version}")));
    facts.extend(fact("postgres").map(|version| format!("PostgreSQL {version}")));
    facts.extend(results.peers.iter().map(|(peer, version)| format!("{peer} {version}")));
    format!("Measured with `cargo xtask bench` on {}.", facts.join(", "))
}

/// A plain number that a bar names has nothing to add.
fn figure(side: &Side) -> String {
    side.figure.as_ref().map(shown).unwrap_or_default()
}

pub(super) fn shown(figure: &Figure) -> String {
    match figure.unit.as_str() {
        "/s" => format!("{}/s", thousands(figure.value)),
        unit => format!("{} {unit}", thousands(figure.value)),
    }
}

fn ratio(bar: &Bar) -> String {
    bar.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
}

fn want(bar: &Bar) -> String {
    match bar.want {
        Want::AtLeast(target) => format!("≥ {target}"),
        Want::AtMost(target) => format!("≤ {target}"),
    }
}

/// 12345.6 is 12,346; what is small keeps its digits.
fn thousands(value: f64) -> String {
    if value.abs() < 100.0 {
        return format!("{value}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::some;
    use super::*;

    #[test]
    fn numbers_are_readable() {
        for (value, text) in [(1_234_567.4, "1,234,567"), (100.0, "100"), (17.5, "17.5")] {
            assert_eq!(thousands(value), text);
        }
    }

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let written = into_page(&page, &some()).unwrap();
        assert!(written.starts_with("before\n") && written.ends_with("\nafter\n"));
        assert!(!written.contains("old"));
        assert!(
            written.contains("| 30,000/s | limit & more | 60,000/s | 0.50 | ≥ 0.6 | **missed**")
        );
        assert!(written.contains("- peer peer not available: no network"));
        assert_eq!(into_page(&written, &some()).unwrap(), written);
        assert!(into_page("no marks", &some()).is_err());
        let readme = into_readme(&page, &some()).unwrap();
        assert!(readme.contains(PICTURE) && !readme.contains("limit & more"));
    }
}

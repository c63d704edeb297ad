//! How the ledger is kept: the lines of one move share a row, as a list of
//! `[event, step, detail]`. The first line of every job is the job itself, and has no row.

use semel_core::clock::UnixMs;
use semel_store::StoreError;
use serde_json::value::RawValue;

use super::{JobNo, LedgerEvent, LedgerLine, Line, Source, corrupt};

/// Lines that share a row at the most.
pub(super) const ROW_LINES_MAX: usize = 64;

/// A row of the ledger, as both databases keep it.
pub(super) struct Row<'a> {
    /// The number of its last line.
    pub(super) entry: i64,
    /// When.
    pub(super) at: i64,
    /// The lines as a document.
    pub(super) lines: &'a str,
}

/// Rows for these lines, each with the number of its last one; the last of all is `last`.
pub(super) fn rows(lines: &[Line], last: i64) -> impl Iterator<Item = (i64, String)> {
    let mut entry = last - count(lines.len());
    lines.chunks(ROW_LINES_MAX).map(move |lines| {
        entry += count(lines.len());
        (entry, pack(lines))
    })
}

fn pack(lines: &[Line]) -> String {
    let room = lines.iter().map(|line| line.detail.len() + 64).sum();
    let mut text = String::with_capacity(room);
    for line in lines {
        text.push_str(if text.is_empty() { "[[\"" } else { ",[\"" });
        text.push_str(line.event.as_str());
        text.push_str("\",");
        match &line.step_id {
            Some(step) => text.push_str(&serde_json::Value::from(step.as_str()).to_string()),
            None => text.push_str("null"),
        }
        text.push(',');
        text.push_str(&line.detail);
        text.push(']');
    }
    text.push(']');
    text
}

/// The rows that are read for so many lines after this one: those whose last line is above the
/// first of these numbers and below the second.
pub(super) fn span(after: i64, limit: u32) -> (i64, i64) {
    let end = after.saturating_add(i64::from(limit)).saturating_add(count(ROW_LINES_MAX));
    // The first line has no row.
    (after.max(1), end)
}

/// Lines that are read one row after the other.
pub(super) struct Lines {
    no: JobNo,
    after: i64,
    limit: usize,
    found: Vec<LedgerLine>,
}

impl Lines {
    /// So many lines after this one, of a job that came so.
    pub(super) fn of(job: (JobNo, UnixMs, Source), after: i64, limit: u32) -> Self {
        let (no, at, source) = job;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut lines = Self { no, after, limit, found: Vec::new() };
        lines.put(LedgerLine { entry: 1, at, line: submitted(source) });
        lines
    }

    /// The lines of the next row.
    pub(super) fn add(&mut self, row: &Row<'_>) -> Result<(), StoreError> {
        let wrong = |what: &str| corrupt("ledger", format!("{}/{}", self.no.0, row.entry), what);
        type Kept = (String, Option<String>, Box<RawValue>);
        let kept: Vec<Kept> =
            serde_json::from_str(row.lines).map_err(|_| wrong("no lines of a ledger"))?;
        let first = row.entry - count(kept.len()) + 1;
        let mut lines = Vec::with_capacity(kept.len());
        for (entry, (event, step_id, detail)) in (first..).zip(kept) {
            let event = LedgerEvent::parse(&event).ok_or_else(|| wrong("no such event"))?;
            let line = Line { event, step_id, detail: detail.get().to_owned() };
            lines.push(LedgerLine { entry, at: UnixMs(row.at), line });
        }
        lines.into_iter().for_each(|line| self.put(line));
        Ok(())
    }

    pub(super) fn into_found(self) -> Vec<LedgerLine> {
        self.found
    }

    fn put(&mut self, line: LedgerLine) {
        if line.entry > self.after && self.found.len() < self.limit {
            self.found.push(line);
        }
    }
}

/// What is told of a job that came.
fn submitted(source: Source) -> Line {
    let detail = format!("{{\"status\":\"pending\",\"source\":\"{source}\"}}");
    Line { event: LedgerEvent::Submitted, step_id: None, detail }
}

fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;

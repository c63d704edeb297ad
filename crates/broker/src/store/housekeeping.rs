//! What both stores share of housekeeping (mesh.md §7): the report of the consistency check, from
//! when on each effect must be there, and the walk along history that finds gaps.

use semel_core::clock::UnixMs;
use uuid::Uuid;

use crate::accept::DedupeMode;
use crate::limits::{CLOCK_SKEW_MAX, DAY};
use crate::store::Mesh;

/// What a consistency check has counted.
///
/// Not looked for is what acknowledgements hide: a message without deliveries may have been
/// delivered, and one without mentions may mention nobody.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Rows looked at.
    pub rows: u64,
    /// Ids that promise a message that is not there.
    pub dedupe_without_message: u64,
    /// Messages whose id is free although it may not be: a retry would be sent twice.
    pub message_without_dedupe: u64,
    /// Messages that history does not know.
    pub message_without_history: u64,
    /// History without its message.
    pub history_without_message: u64,
    /// Numbers that history skips.
    pub history_gaps: u64,
    /// Deliveries of nothing.
    pub delivery_without_history: u64,
    /// Mentions in nothing.
    pub mention_without_history: u64,
    /// Deliveries that could not be said to their recipient.
    pub delivery_set_aside: u64,
}

impl Report {
    /// What was looked for, by name, with what was found of it.
    pub fn findings(&self) -> [(&'static str, u64); 8] {
        [
            ("dedupe_without_message", self.dedupe_without_message),
            ("message_without_dedupe", self.message_without_dedupe),
            ("message_without_history", self.message_without_history),
            ("history_without_message", self.history_without_message),
            ("history_gaps", self.history_gaps),
            ("delivery_without_history", self.delivery_without_history),
            ("mention_without_history", self.mention_without_history),
            ("delivery_set_aside", self.delivery_set_aside),
        ]
    }

    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings().iter().all(|(_, count)| *count == 0)
    }
}

/// From when on a missing row is damage, and not what a sweep has done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Horizon {
    /// A message accepted after this must have its dedupe row. (Rows live a day longer than the
    /// window, so a sweep at the same moment is no false alarm.)
    pub(super) dedupe_from: UnixMs,
    /// A gap after a message accepted since this is not retention's.
    pub(super) history_from: UnixMs,
}

impl Horizon {
    pub(super) fn new(mesh: &Mesh, now: UnixMs) -> Self {
        let dedupe_from = match mesh.dedupe {
            DedupeMode::Permanent => UnixMs(i64::MIN),
            DedupeMode::RetentionScoped { days } => now.saturating_sub(DAY * days),
        };
        let kept_from = now.saturating_sub(DAY * mesh.message_retention_days);
        Self { dedupe_from, history_from: kept_from.saturating_add(CLOCK_SKEW_MAX) }
    }
}

/// A row of a page of history; the last page has one without `seq` when there is no more.
pub(super) struct HistoryRow {
    /// The mesh's counter, of the same moment as the row.
    pub(super) next_seq: i64,
    pub(super) seq: Option<i64>,
    /// When its message was accepted; `None` when that is not there.
    pub(super) accepted_at: Option<i64>,
}

/// A walk along history, from the smallest number that is there: what is missing before it was
/// removed by retention.
pub(super) struct HistoryWalk {
    horizon: Horizon,
    last: Option<(i64, Option<i64>)>,
}

impl HistoryWalk {
    pub(super) fn new(horizon: Horizon) -> Self {
        Self { horizon, last: None }
    }

    /// Where the next page begins.
    pub(super) fn after(&self) -> i64 {
        self.last.map_or(i64::MIN, |(seq, _)| seq)
    }

    /// Takes a page. `false` when it was the last one.
    pub(super) fn take(&mut self, page: &[HistoryRow], limit: usize, report: &mut Report) -> bool {
        for row in page {
            if let Some(seq) = row.seq {
                report.rows += 1;
                report.history_without_message += u64::from(row.accepted_at.is_none());
                report.history_gaps += self.missing_before(seq);
                self.last = Some((seq, row.accepted_at));
            }
        }
        let is_full = page.len() >= limit && page.iter().all(|row| row.seq.is_some());
        if let (false, Some(row)) = (is_full, page.last()) {
            report.history_gaps += self.missing_before(row.next_seq);
        }
        is_full
    }

    /// Retention goes by the brokers' clocks, history by the order of commits. Where these differ
    /// a message outlives the next one for as long as the clocks are apart, and that is no gap.
    fn missing_before(&self, seq: i64) -> u64 {
        match self.last {
            None => 0,
            Some((_, Some(at))) if at < self.horizon.history_from.0 => 0,
            Some((last, _)) => u64::try_from(seq - last - 1).unwrap_or(0),
        }
    }
}

/// The first id that could have been made at this time: a UUIDv7 begins with its milliseconds.
pub(super) fn made_before(time: UnixMs) -> Uuid {
    let ms = u128::try_from(time.0).unwrap_or(0);
    Uuid::from_u128(ms << 80)
}

/// When this id was made, to the millisecond.
pub(super) fn made_at(id: Uuid) -> UnixMs {
    UnixMs(i64::try_from(id.as_u128() >> 80).unwrap_or(i64::MAX))
}

/// Numbers as runs without a gap, first and last. Retention removes what is next to each other, so
/// that deliveries, which are kept by recipient, are found with one search per run and recipient
/// and need no index by number that every accept would pay for.
pub(super) fn runs(mut seqs: Vec<i64>) -> Vec<(i64, i64)> {
    seqs.sort_unstable();
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for seq in seqs {
        match runs.last_mut() {
            Some((_, last)) if seq <= *last + 1 => *last = seq,
            Some(_) | None => runs.push((seq, seq)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const HORIZON: Horizon = Horizon { dedupe_from: UnixMs(0), history_from: UnixMs(100) };

    /// The gaps in this history of (number, accepted at), in pages of two.
    fn gaps(rows: &[(i64, i64)], next_seq: i64) -> u64 {
        let mut walk = HistoryWalk::new(HORIZON);
        let mut report = Report::default();
        loop {
            let after = walk.after();
            let rest = rows.iter().filter(|(seq, _)| *seq > after).take(2);
            let row = |seq, accepted_at| HistoryRow { next_seq, seq, accepted_at };
            let mut page: Vec<_> = rest.map(|(seq, at)| row(Some(*seq), Some(*at))).collect();
            if page.is_empty() {
                page.push(row(None, None));
            }
            if !walk.take(&page, 2, &mut report) {
                return report.history_gaps;
            }
        }
    }

    #[test]
    fn gaps_are_counted_where_retention_has_not_been() {
        assert_eq!(gaps(&[], 1), 0);
        assert_eq!(gaps(&[], 9), 0, "retention has removed everything");
        assert_eq!(gaps(&[(7, 200), (8, 200)], 9), 0, "a prefix is gone");
        assert_eq!(gaps(&[(5, 200), (8, 200)], 9), 2);
        assert_eq!(gaps(&[(1, 200), (2, 200), (4, 200)], 5), 1, "between two pages");
        assert_eq!(gaps(&[(1, 200), (2, 200)], 5), 2, "the end of a full page");
        assert_eq!(gaps(&[(1, 200)], 5), 3, "the end of the last page");
        assert_eq!(gaps(&[(1, 99), (3, 100)], 4), 0, "two brokers' clocks");
        assert_eq!(gaps(&[(1, 100), (3, 100)], 4), 1);
    }

    #[test]
    fn an_id_is_made_before_what_comes_later() {
        let seconds = 1_700_000_000;
        let made = Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, 5_000_000));
        let at = UnixMs(1_700_000_000_005);
        assert!(made_before(at) < made && made < made_before(UnixMs(at.0 + 1)));
        assert_eq!(made_before(UnixMs(-1)), Uuid::nil());
        assert_eq!(made_at(made), at);
    }

    #[test]
    fn runs_have_no_gap() {
        assert_eq!(runs(vec![]), []);
        assert_eq!(runs(vec![3, 1, 2, 7, 6, 9]), [(1, 3), (6, 7), (9, 9)]);
    }
}

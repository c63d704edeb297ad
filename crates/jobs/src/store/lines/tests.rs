//! What was packed is read again, line for line, from anywhere.

use super::*;

const NOW: UnixMs = UnixMs(7);

fn line(number: usize) -> Line {
    let (event, step_id) = match number % 3 {
        0 => (LedgerEvent::Moved, None),
        1 => (LedgerEvent::StepStarted, Some("a \"quoted\"\n step".to_owned())),
        _ => (LedgerEvent::Log, Some("b".to_owned())),
    };
    let detail = format!("{{\"z\":{number},\"a\":\"\\u00e9 \\\"[]\",\"n\":1.50}}");
    Line { event, step_id, detail }
}

fn read(rows: &[(i64, String)], after: i64, limit: u32) -> Vec<LedgerLine> {
    let mut lines = Lines::of((JobNo(1), NOW, Source::Api), after, limit);
    let (above, below) = span(after, limit);
    for (entry, text) in rows.iter().filter(|(entry, _)| *entry > above && *entry < below) {
        lines.add(&Row { entry: *entry, at: 9, lines: text }).expect("a row");
    }
    lines.into_found()
}

#[test]
fn every_line_is_read_again_from_anywhere() {
    let moves: Vec<Vec<Line>> =
        [1, ROW_LINES_MAX, 3, 2 * ROW_LINES_MAX + 1].map(|n| (0..n).map(line).collect()).into();
    let (mut all, mut kept) = (vec![submitted(Source::Api)], Vec::new());
    for lines in moves {
        all.extend(lines.iter().cloned());
        kept.extend(rows(&lines, count(all.len())));
    }
    assert_eq!(kept.len(), 6, "a row per move, unless it is too long");
    for after in 0..all.len() {
        for limit in [1, 2, 63, 64, 65, 999] {
            let found = read(&kept, count(after), limit);
            let numbers: Vec<i64> = found.iter().map(|line| line.entry).collect();
            let end = all.len().min(after + usize::try_from(limit).expect("small"));
            assert_eq!(numbers, (after + 1..=end).map(count).collect::<Vec<_>>());
            let lines: Vec<Line> = found.into_iter().map(|line| line.line).collect();
            assert_eq!(lines, all[after..end], "after {after}, at most {limit}");
        }
    }
}

#[test]
fn what_is_no_row_is_corrupt() {
    for text in ["", "{}", "[[\"moved\",null]]", "[[\"nothing\",null,{}]]", "[[\"moved\",1,{}]]"] {
        let mut lines = Lines::of((JobNo(1), NOW, Source::Api), 0, 9);
        let read = lines.add(&Row { entry: 2, at: 9, lines: text });
        assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{text}");
    }
}

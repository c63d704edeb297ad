//! The summary lines that the runners really print.

use super::*;

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn tally(passed: u64, failed: u64) -> Tally {
    Tally { passed, failed }
}

#[test]
fn nextest_summaries() {
    for (results, expected) in [
        ("1 test run: 1 passed, 0 skipped", tally(1, 0)),
        ("104 tests run: 103 passed (1 slow), 1 failed, 0 skipped", tally(103, 1)),
        ("9 tests run: 7 passed, 1 failed, 1 timed out, 2 skipped", tally(7, 2)),
        ("9 tests run: 9 passed (1 slow, 2 flaky, 1 leaky), 0 skipped", tally(9, 0)),
        ("3/9 tests run: 2 passed, 1 exec failed, 0 skipped", tally(2, 1)),
        ("3 tests run: 1 passed, 2 failed (1 due to being leaky), 0 skipped", tally(1, 2)),
        ("0 tests run: 0 passed, 0 skipped", tally(0, 0)),
    ] {
        let line = format!("     Summary [   3.105s] {results}");
        assert_eq!(nextest_summary(&line), Some(expected), "{line}");
    }
}

#[test]
fn colours_do_not_hide_a_summary() {
    let line = "\u{1b}[32;1m     Summary\u{1b}[0m [   0.1s] \u{1b}[1m5\u{1b}[0m tests run: \
                \u{1b}[1m5\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, \u{1b}[1m0\u{1b}[0m skipped";
    assert_eq!(nextest_summary(line), Some(tally(5, 0)));
}

#[test]
fn other_lines_are_no_nextest_summary() {
    for line in ["", "PASS [   0.004s] xtask", "Summary of tests run: 1 passed", "Summary ["] {
        assert_eq!(nextest_summary(line), None, "{line}");
    }
}

#[test]
fn only_the_last_nextest_summary_counts() {
    let output = lines(
        "Summary [ 1s] 9 tests run: 9 passed, 0 skipped\n\
         Summary [ 2s] 2 tests run: 1 passed, 1 failed, 0 skipped\n\
         error: test run failed",
    );
    assert_eq!(nextest(&output), tally(1, 1));
    assert_eq!(nextest(&[]), tally(0, 0));
}

#[test]
fn cargo_test_summaries_add_up() {
    let output = lines(
        "running 12 tests\n\
         test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; finished in 0.00s\n\
         test result: \u{1b}[31mFAILED\u{1b}(B\u{1b}[m. 3 passed; 2 failed; 1 ignored; 0 measured\n\
         test result: unreadable",
    );
    assert_eq!(cargo_test(&output), tally(15, 2));
}

#[test]
fn a_script_ends_with_its_summary() {
    assert_eq!(script(&lines("case 1 ok\n31 passed, 2 failed\n")), tally(31, 2));
    assert_eq!(script(&lines("nothing to say")), tally(0, 0));
    assert_eq!(script_summary("31 failed, 2 passed"), None);
    assert_eq!(script_summary("31 passed, 2 failed, 1 skipped"), None);
}

#[test]
fn nothing_run_is_a_failure() {
    assert_eq!(tally(0, 0).or_failure_if_empty(), Tally::ONE_FAILURE);
    assert_eq!(tally(4, 0).or_failure_if_empty(), tally(4, 0));
}

#[test]
fn a_bad_exit_counts_once() {
    assert_eq!(tally(4, 0).with_exit(true), tally(4, 0));
    assert_eq!(tally(4, 0).with_exit(false), tally(4, 1));
    assert_eq!(tally(4, 2).with_exit(false), tally(4, 2));
}

#[test]
fn the_last_line() {
    assert_eq!((tally(3, 0) + tally(1, 2)).to_string(), "4 passed, 2 failed");
}

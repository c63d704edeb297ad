//! The table, over every combination.

use semel_testkit::tables;

use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/design/jobs.md");

const LOGGED: [(Logged, &str); 5] = [
    (Logged::Nothing, "nothing"),
    (Logged::Completed, "completed"),
    (Logged::Crashed, "crashed"),
    (Logged::Failed, "failed"),
    (Logged::Uncertain, "uncertain"),
];
const CONTENT: [(Content, &str); 2] = [(Content::Same, "same"), (Content::Other, "other")];
const ATTEMPTS: [(Attempts, &str); 2] = [(Attempts::Left, "left"), (Attempts::Spent, "spent")];

fn name(done: Dispatch) -> &'static str {
    match done {
        Dispatch::Start => "start",
        Dispatch::Recorded => "recorded",
        Dispatch::Refuse => "refuse",
        Dispatch::Close => "close",
        Dispatch::Resolve => "resolve",
        Dispatch::Ask => "ask",
        Dispatch::GiveUp => "give_up",
    }
}

#[test]
fn the_decision_equals_the_document() {
    let mut rows = Vec::new();
    for (logged, said) in LOGGED {
        for (content, is) in CONTENT {
            for (attempts, are) in ATTEMPTS {
                for recovery in Recovery::ALL {
                    let done = name(dispatch(logged, content, attempts, *recovery));
                    rows.push([said, is, are, recovery.as_str(), done].map(str::to_owned));
                }
            }
        }
    }
    tables::covers_document(DOCUMENT, "dispatch", &rows);
}

#[test]
fn every_combination_is_decided_as_the_design_says() {
    use Logged::{Completed, Crashed, Failed, Nothing, Uncertain};
    for logged in [Nothing, Completed, Crashed, Failed, Uncertain] {
        for content in [Content::Same, Content::Other] {
            for attempts in [Attempts::Left, Attempts::Spent] {
                for recovery in Recovery::ALL {
                    let done = dispatch(logged, content, attempts, *recovery);
                    let told = format!("{logged:?} {content:?} {attempts:?} {recovery}");
                    // What was done is never run, whatever it says of its recovery.
                    if logged == Completed {
                        assert!(matches!(done, Dispatch::Recorded | Dispatch::Refuse), "{told}");
                    }
                    // A name is for one work.
                    let refused = logged != Nothing && content == Content::Other;
                    assert_eq!(done == Dispatch::Refuse, refused, "{told}");
                    // What may have happened is run only by those who said that it may be.
                    if done == Dispatch::Start && logged == Uncertain {
                        assert_eq!(*recovery, Recovery::Idempotent, "{told}");
                    }
                    // A dead worker's attempt is closed before anything else.
                    let crashed = logged == Crashed && content == Content::Same;
                    assert_eq!(done == Dispatch::Close, crashed, "{told}");
                    if done == Dispatch::Start && attempts == Attempts::Spent {
                        assert_eq!(logged, Nothing, "{told}");
                    }
                }
            }
        }
    }
}

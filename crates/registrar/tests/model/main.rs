//! An exhaustive model of registrations (registrar.md, "States"): three attempts at two effects by
//! two nonces, each step of each of them in every order, with crashes before and after the commit,
//! lost connections whose transaction still ends, resolve, verification, staleness, the gate and
//! revocation. Decisions are those of the product ([`semel_registrar::decide`]).
//!
//! With every rule on, no reachable state breaks a promise; with any one of them off, a shortest
//! counter-example is found.

#![expect(clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking")]

mod explore;
mod next;
mod replay;
mod state;

use semel_testkit::explore::{Explored, explore};

use next::{Rule, Scope, Step};
use state::Broken;

fn found(scope: &Scope) -> Explored<Step, Broken> {
    let explored = explore(scope);
    if let Some((broken, steps)) = &explored.violation {
        println!("{broken:?} after {} steps", steps.len());
        steps.iter().for_each(|step| println!("  {step:?}"));
    }
    explored
}

#[test]
fn the_design_keeps_its_promises() {
    let explored = found(&Scope::design());
    println!("{} states, depth {}, complete", explored.states, explored.depth);
    assert!(explored.violation.is_none(), "{:?}", explored.violation);
    assert!(explored.states > 1_000_000, "only {} states", explored.states);
}

/// Each rule, and the promise that is broken without it.
const CASES: &[(Rule, Broken)] = &[
    (Rule::DecidedInside, Broken::TwoEffects),
    (Rule::NonceHasItsRow, Broken::NonceTwice),
    (Rule::GrantIsBound, Broken::Unbound),
    (Rule::OneTransaction, Broken::Torn),
    (Rule::ConsumedBeforeTime, Broken::Lie),
    (Rule::ConsumedBeforeGate, Broken::Lie),
    (Rule::NeverForgotten, Broken::Forgotten),
    (Rule::VerdictFreesNothing, Broken::Forgotten),
    (Rule::OpenIsUncertain, Broken::Lie),
    (Rule::StartedFirst, Broken::Lie),
    (Rule::OwnEntryOpen, Broken::Lie),
    (Rule::ResolveWaits, Broken::Lie),
    (Rule::LostStaysOpen, Broken::Lie),
    (Rule::OnlyEarlierBlock, Broken::NobodyWins),
];

#[test]
fn every_rule_is_needed() {
    assert_eq!(CASES.len(), Rule::ALL.len());
    for ((rule, broken), listed) in CASES.iter().zip(Rule::ALL) {
        assert_eq!(*rule, listed, "the cases are in the order of the rules");
        println!("without {rule:?}:");
        let explored = found(&Scope::without(*rule));
        let (violated, _) = explored.violation.expect("a rule that can be left out");
        assert_eq!(violated, *broken, "without {rule:?}");
    }
}

/// The table in `docs/model.md` says what the model finds.
#[test]
fn the_page_lists_every_case() {
    let page = include_str!("../../../../docs/model.md");
    let first = "| rule of registrations |";
    let rows = page.lines().skip_while(|line| !line.starts_with(first)).skip(2);
    let rows: Vec<_> = rows.take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), CASES.len());
    for (row, (rule, broken)) in rows.iter().zip(CASES) {
        let (start, end) = (format!("| `{rule:?}` |"), format!("| `{broken:?}` |"));
        assert!(row.starts_with(&start) && row.ends_with(&end), "{row}: {start} … {end}");
    }
}

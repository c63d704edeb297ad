//! An exhaustive model of claims (jobs.md §1–§4): one job of three steps, one for each recovery,
//! and three workers that claim it, renew, run gears, write, crash before and after each write,
//! lose the answers of each, stop when their time is over or are stopped, while people answer and
//! cancel. What is done with a step is decided by the product's table ([`semel_jobs::dispatch`]),
//! where a job goes by that of its life.
//!
//! It is explored twice: with three workers that lose answers of claims, of submissions and of how
//! a step ended, and with two that lose those of every write, as people do.
//!
//! With every rule on, no reachable state breaks a promise and every one leads to an end; with any
//! one of them off, a shortest counter-example is found.

#![expect(clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking")]

mod explore;
mod next;
mod replay;
mod scope;
mod state;
mod step;

use semel_testkit::explore::{Explored, explore};

use scope::{Rule, Scope};
use state::Broken;
use step::Step;

fn found(scope: &Scope) -> Explored<Step, Broken> {
    let explored = explore(scope);
    if let Some((broken, steps)) = &explored.violation {
        println!("{broken:?} after {} steps", steps.len());
        steps.iter().for_each(|step| println!("  {step:?}"));
    }
    explored
}

fn keeps_its_promises(scope: &Scope, states_min: usize) {
    let explored = found(scope);
    println!("{} states, depth {}, complete", explored.states, explored.depth);
    assert!(explored.violation.is_none(), "{:?}", explored.violation);
    assert!(explored.states > states_min, "only {} states", explored.states);
}

#[test]
fn the_design_keeps_its_promises_to_many_workers() {
    keeps_its_promises(&Scope::wide(), 500_000);
}

#[test]
fn the_design_keeps_its_promises_whatever_is_lost() {
    keeps_its_promises(&Scope::deep(), 100_000);
}

/// Each rule, and the promise that is broken without it.
const CASES: &[(Rule, Broken)] = &[
    (Rule::WritesNameTheFence, Broken::FencedWrote),
    (Rule::ClaimRaisesTheFence, Broken::FencedWrote),
    (Rule::PersonRaisesTheFence, Broken::FencedWrote),
    (Rule::LeaseIsKept, Broken::Untroubled),
    (Rule::DeadAreFollowed, Broken::Stuck),
    (Rule::StartedFirst, Broken::TwoEffects),
    (Rule::BegunIsUncertain, Broken::TwoEffects),
    (Rule::BegunIsNotDone, Broken::Hollow),
    (Rule::DoneIsDone, Broken::RanAgain),
    (Rule::GearIsAsked, Broken::TwoEffects),
    (Rule::DeathsAreCounted, Broken::ClaimedForEver),
    (Rule::RenewalNamesTheFence, Broken::Lie),
    (Rule::ApprovedIsDue, Broken::Stuck),
    (Rule::UnheardIsLookedUp, Broken::RanAgain),
    (Rule::HolderStopsInTime, Broken::TwoLive),
    (Rule::FencesAreDrawn, Broken::TwoLive),
    (Rule::LookNamesTheFence, Broken::TwoLive),
    (Rule::LookIsTriedOn, Broken::Stuck),
    (Rule::WordNamesItsQuestion, Broken::Hollow),
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
    let first = "| rule of jobs |";
    let rows = page.lines().skip_while(|line| !line.starts_with(first)).skip(2);
    let rows: Vec<_> = rows.take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), CASES.len());
    for (row, (rule, broken)) in rows.iter().zip(CASES) {
        let (start, end) = (format!("| `{rule:?}` |"), format!("| `{broken:?}` |"));
        assert!(row.starts_with(&start) && row.ends_with(&end), "{row}: {start} … {end}");
    }
}

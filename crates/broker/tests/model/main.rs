//! An exhaustive model of the send path: mesh.md §5–§7 and §10, explained in `docs/model.md`.
//!
//! With every rule on, no reachable state breaks a promise; with any one of them off, a shortest
//! counter-example is found.

mod accept;
mod broker;
mod cases;
mod daemon;
mod explore;
mod key;
mod next;
mod record;
mod replay;
mod rules;
mod state;
mod step;
mod trace;
mod world;

use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};

use cases::CASES;
use explore::{EVERYTHING, Invariant, PROMISE, explore};
use rules::{Rule, Rules, Scope, Trouble};
use state::{CONNS_MAX, Dedupe, State, TXS_MAX};
use trace::{Resolution, StoreStep, Trace, traces};

/// Connections over a run, unless `SEMEL_MODEL_CONNS` says otherwise.
const CONNS_DEFAULT: usize = 4;
/// Every counter-example needs no more connections than this.
const CONNS_OF_A_CASE: usize = 2;
/// Traces for the stores' tests.
const TRACES: usize = 300;

#[test]
fn the_design_keeps_its_promises() {
    let conns = match std::env::var("SEMEL_MODEL_CONNS") {
        Ok(conns) => conns.parse().expect("SEMEL_MODEL_CONNS is a number"),
        Err(_) => CONNS_DEFAULT,
    };
    assert!((1..=CONNS_MAX).contains(&conns), "SEMEL_MODEL_CONNS is 1 to {CONNS_MAX}");
    let scope = Scope::new(Rules::DESIGN, conns, TXS_MAX, &Trouble::ALL);
    let explored = explore(&scope, EVERYTHING);
    println!(
        "{conns} connections: {} states, {} steps, depth {}, complete",
        explored.states, explored.steps, explored.depth
    );
    if let Some((invariant, steps)) = explored.violation {
        steps.iter().for_each(|step| println!("  {step}"));
        panic!("{invariant:?} is broken after {} steps", steps.len());
    }
    assert!(conns != CONNS_DEFAULT || explored.states == 1_232_470, "the model has changed");
}

/// `SEMEL_MODEL_RULE=StaleCloses` with `--nocapture` shows one of them.
#[test]
fn every_rule_is_needed() {
    let wanted = std::env::var("SEMEL_MODEL_RULE").ok();
    let mut shown = 0;
    for (case, rule) in CASES.iter().zip(Rule::ALL) {
        assert_eq!(case.rule, rule, "the cases are in the order of the rules");
        let name = format!("{rule:?}");
        if wanted.as_ref().is_some_and(|wanted| *wanted != name) {
            continue;
        }
        let scope = Scope::new(Rules::without(rule), CONNS_OF_A_CASE, TXS_MAX, case.troubles);
        let checked = if case.breaks == Invariant::AnswersAreTrue { EVERYTHING } else { PROMISE };
        let explored = explore(&scope, checked);
        let (invariant, steps) = explored.violation.expect("a rule that can be left out");
        println!("without {name}: {invariant:?} is broken after {} steps", steps.len());
        steps.iter().for_each(|step| println!("  {step}"));
        let found = (invariant, steps.len(), steps.last().copied());
        assert_eq!(found, (case.breaks, case.steps, Some(case.last)), "without {name}");
        shown += 1;
    }
    assert!(shown > 0, "SEMEL_MODEL_RULE names no rule");
}

/// The table in `docs/model.md` says what the model finds.
#[test]
fn the_page_lists_every_case() {
    let page = include_str!("../../../../docs/model.md");
    let rows: Vec<_> =
        page.lines().skip_while(|line| !line.starts_with("| rule | breaks |")).collect();
    let rows: Vec<_> = rows.iter().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), CASES.len());
    for (row, case) in rows.iter().zip(&CASES) {
        let start = format!("| `{:?}` | {} | {} |", case.rule, case.breaks.name(), case.steps);
        assert!(row.starts_with(&start), "{row} instead of {start}");
    }
}

/// The one rule that the promise to callers does not need: without it a sender that is limited may
/// wait for a `200` that is there, but is never told anything false.
#[test]
fn the_limiter_after_dedupe_guards_answers_only() {
    let rules = Rules::without(Rule::DedupeBeforeLimiter);
    let explored = explore(&Scope::new(rules, 3, TXS_MAX, &Trouble::ALL), PROMISE);
    assert!(explored.violation.is_none(), "{:?}", explored.violation);
}

/// The search trusts that different states have different keys.
#[test]
fn keys_lose_nothing() {
    let scope = Scope::new(Rules::DESIGN, 2, TXS_MAX, &Trouble::ALL);
    let mut states = HashSet::from([State::START]);
    let mut open = vec![State::START];
    let mut found = Vec::new();
    while let Some(state) = open.pop() {
        next::steps(&state, &scope, &mut found);
        open.extend(found.iter().map(|(_, to)| *to).filter(|to| states.insert(*to)));
    }
    let keys: HashSet<_> = states.iter().map(State::key).collect();
    assert_eq!(keys.len(), states.len());
}

#[test]
fn traces_are_many_and_well_formed() {
    let traces = traces(TRACES);
    assert_eq!(traces.len(), TRACES);
    assert_eq!(traces.iter().filter(|trace| trace.is_serial()).count(), TRACES / 2);
    for trace in &traces {
        assert_well_formed(trace);
    }
    let seen: HashSet<_> = traces.iter().flat_map(|trace| &trace.steps).map(kind).collect();
    assert_eq!(seen.len(), KINDS, "{seen:?}");
    let steps: usize = traces.iter().map(|trace| trace.steps.len()).sum();
    let again = |trace: &&Trace| trace.steps.iter().filter(|step| begins(step)).count() > 1;
    let again = traces.iter().filter(again).count();
    println!("{TRACES} traces, {steps} steps, {again} with more than one transaction");
}

fn begins(step: &StoreStep) -> bool {
    matches!(step, StoreStep::Begin { .. })
}

/// Kinds of store steps, results told apart.
const KINDS: usize = 21;

fn kind(step: &StoreStep) -> (Discriminant<StoreStep>, Option<Dedupe>, Option<Resolution>) {
    let mut kind = (discriminant(step), None, None);
    if let StoreStep::Lookup { found, .. } | StoreStep::Claim { found, .. } = *step {
        kind.1 = Some(found);
    } else if let StoreStep::Resolve { says, .. } = *step {
        kind.2 = Some(says);
    }
    kind
}

/// An accept begins once, goes on only while it is open, and ends once; connections greet before
/// they send; the rows at the end are those that were committed.
fn assert_well_formed(trace: &Trace) {
    let (mut open, mut greeted) = (HashSet::new(), HashSet::new());
    for step in &trace.steps {
        let fine = match *step {
            StoreStep::Hello { conn, epoch, .. } => epoch > 0 && greeted.insert(conn),
            StoreStep::HelloRefused { conn, instance } => instance == 0 && !greeted.contains(&conn),
            StoreStep::Begin { accept, conn, current } => {
                greeted.contains(&conn) && (!current || open.insert(accept))
            }
            StoreStep::Claim { accept, .. }
            | StoreStep::CheckPasses { accept }
            | StoreStep::CheckRefuses { accept } => open.contains(&accept),
            StoreStep::Commit { accept } | StoreStep::Rollback { accept } => open.remove(&accept),
            StoreStep::Lookup { conn, .. } | StoreStep::Resolve { conn, .. } => {
                greeted.contains(&conn)
            }
            StoreStep::SessionDeleted { instance } => instance <= 1,
            StoreStep::TimePasses
            | StoreStep::Sweep
            | StoreStep::RivalCommits
            | StoreStep::RivalSwept => true,
        };
        assert!(fine, "{step:?} in {trace:#?}");
    }
    assert!(open.is_empty(), "{trace:#?}");
    let committed = trace.messages == 1;
    assert!(committed || trace.dedupe != Dedupe::Ours, "{trace:#?}");
}

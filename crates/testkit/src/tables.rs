//! The three checks of a state table (style.md §3): it equals its document, it is well formed,
//! and the database moves as it says.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::hash::Hash;

/// A partial state table: what is absent is illegal.
pub struct Life<'a, State, Event> {
    /// Legal rows: from, event, to.
    pub rows: &'a [(State, Event, State)],
    /// Every state.
    pub states: &'a [State],
    /// Every event.
    pub events: &'a [Event],
    /// Where a life begins.
    pub initial: State,
    /// Where it ends.
    pub terminal: &'a [State],
}

/// The Markdown table after `<!-- table: NAME -->` has exactly these rows, in this order.
pub fn equals_document<const N: usize, Cell: AsRef<str>>(
    document: &str,
    name: &str,
    rows: impl IntoIterator<Item = [Cell; N]>,
) {
    let code: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| row.iter().map(|cell| cell.as_ref().to_owned()).collect())
        .collect();
    assert_eq!(document_rows(document, name), code, "document (left) and code (right) of {name}");
}

/// The same of the first columns; those behind them are for people.
pub fn first_columns_equal_document<const N: usize, Cell: AsRef<str>>(
    document: &str,
    name: &str,
    rows: impl IntoIterator<Item = [Cell; N]>,
) {
    let cells = |row: [Cell; N]| row.map(|cell| cell.as_ref().to_owned()).to_vec();
    let code: Vec<Vec<String>> = rows.into_iter().map(cells).collect();
    let mut document = document_rows(document, name);
    document.iter_mut().for_each(|row| row.truncate(N));
    assert_eq!(document, code, "document (left) and code (right) of {name}");
}

/// Every one of these rows matches exactly one line of the Markdown table after
/// `<!-- table: NAME -->`, where a dash in the document stands for any value; and every line of the
/// document matches some row.
pub fn covers_document<const N: usize>(document: &str, name: &str, rows: &[[String; N]]) {
    let lines = document_rows(document, name);
    let mut used = vec![false; lines.len()];
    for row in rows {
        let matches = |line: &Vec<String>| {
            line.len() == N
                && line.iter().zip(row).all(|(cell, value)| cell == "–" || cell == value)
        };
        let found: Vec<usize> = (0..lines.len()).filter(|n| matches(&lines[*n])).collect();
        assert_eq!(found.len(), 1, "{row:?} matches lines {found:?} of {name}");
        used[found[0]] = true;
    }
    let unused: Vec<_> = lines.iter().zip(&used).filter(|(_, used)| !**used).collect();
    assert!(unused.is_empty(), "no row of the code matches {unused:?}");
}

fn document_rows(document: &str, name: &str) -> Vec<Vec<String>> {
    let marker = format!("<!-- table: {name} -->");
    let (_, rest) = document.split_once(&marker).unwrap_or_else(|| panic!("no {marker}"));
    let lines = rest.lines().skip_while(|line| line.trim().is_empty());
    let table = lines.take_while(|line| line.starts_with('|'));
    let cells = |line: &str| {
        let inner = line.trim().trim_matches('|');
        inner.split('|').map(|cell| cell.trim().replace('`', "")).collect()
    };
    // The heading and the line below it are not rows.
    table.skip(2).map(cells).collect()
}

/// One row per (from, event); nothing leaves a terminal state; every state can be reached and
/// every event happens somewhere.
pub fn well_formed<State, Event>(life: &Life<'_, State, Event>)
where
    State: Copy + Eq + Hash + Debug,
    Event: Copy + Eq + Hash + Debug,
{
    let mut pairs = HashSet::new();
    for (from, event, _) in life.rows {
        assert!(pairs.insert((*from, *event)), "two rows for {from:?} + {event:?}");
        assert!(!life.terminal.contains(from), "{from:?} is terminal and yet left by {event:?}");
    }
    let mut reached = HashSet::from([life.initial]);
    for _ in life.states {
        let next: Vec<State> =
            life.rows.iter().filter(|(f, ..)| reached.contains(f)).map(|(.., to)| *to).collect();
        reached.extend(next);
    }
    for state in life.states {
        assert!(reached.contains(state), "{state:?} cannot be reached");
        let left = life.rows.iter().any(|(from, ..)| from == state);
        assert!(left || life.terminal.contains(state), "{state:?} is a dead end");
    }
    for event in life.events {
        assert!(life.rows.iter().any(|(_, e, _)| e == event), "{event:?} never happens");
    }
}

/// What the database did with an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved<State> {
    /// The row is in this state now.
    To(State),
    /// The row was left untouched.
    Refused,
}

/// For every state and event: `drive` seeds a row in that state, runs the real statement and tells
/// what became of the row. It must be what the table says. Returns how many pairs were walked.
pub fn database_moves_as_told<State, Event>(
    life: &Life<'_, State, Event>,
    mut drive: impl FnMut(State, Event) -> Moved<State>,
) -> usize
where
    State: Copy + Eq + Hash + Debug,
    Event: Copy + Eq + Hash + Debug,
{
    let mut wrong = BTreeSet::new();
    for from in life.states {
        for event in life.events {
            let row = life.rows.iter().find(|(f, e, _)| (f, e) == (from, event));
            let told = row.map_or(Moved::Refused, |(.., to)| Moved::To(*to));
            let did = drive(*from, *event);
            if did != told {
                wrong.insert(format!("{from:?} + {event:?}: table {told:?}, database {did:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    life.states.len() * life.events.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "\
text
<!-- table: lamp -->

| from | event | to |
|---|---|---|
| `off` | press | on |
| on | press | off |

| other | table | here |
";

    fn fails(f: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(f).is_err()
    }

    fn lamp(rows: &'static [(u8, char, u8)]) -> Life<'static, u8, char> {
        Life { rows, states: &[0, 1, 2], events: &['p', 'b'], initial: 0, terminal: &[2] }
    }

    const GOOD: &[(u8, char, u8)] = &[(0, 'p', 1), (1, 'p', 0), (1, 'b', 2)];

    #[test]
    fn a_document_is_compared_cell_by_cell() {
        equals_document(DOCUMENT, "lamp", [["off", "press", "on"], ["on", "press", "off"]]);
        assert!(fails(|| equals_document(DOCUMENT, "lamp", [["off", "press", "on"]])));
        let swapped = [["on", "press", "off"], ["off", "press", "on"]];
        assert!(fails(|| equals_document(DOCUMENT, "lamp", swapped)));
        assert!(fails(|| equals_document(DOCUMENT, "absent", [["a"]])));
    }

    #[test]
    fn malformed_lives_are_found() {
        well_formed(&lamp(GOOD));
        let twice = &[(0, 'p', 1), (0, 'p', 0), (1, 'b', 2)];
        let undead = &[(0, 'p', 1), (1, 'b', 2), (2, 'p', 0)];
        let unreached = &[(0, 'p', 0), (1, 'b', 2)];
        let dead_end = &[(0, 'p', 1), (0, 'b', 2)];
        let silent = &[(0, 'p', 1), (1, 'p', 2)];
        for rows in [twice.as_slice(), undead, unreached, dead_end, silent] {
            assert!(fails(|| well_formed(&lamp(rows))), "{rows:?}");
        }
    }

    #[test]
    fn a_database_that_disagrees_is_found() {
        let honest = |from: u8, event: char| {
            let row = GOOD.iter().find(|(f, e, _)| (*f, *e) == (from, event));
            row.map_or(Moved::Refused, |row| Moved::To(row.2))
        };
        assert_eq!(database_moves_as_told(&lamp(GOOD), honest), 6);
        assert!(fails(|| {
            database_moves_as_told(&lamp(GOOD), |_, _| Moved::To(0));
        }));
    }
}

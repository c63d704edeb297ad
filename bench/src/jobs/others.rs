//! The same work by other engines.

use std::path::Path;

use tokio::runtime::Runtime;

use crate::peers;
use crate::peers::engines;
use crate::report::Rounds;

/// Name, steps, in flight.
pub(super) const EFFECTUM: [(&str, usize, usize); 2] = [
    ("effectum on SQLite, 1 step, 1 in flight", 1, 1),
    ("effectum on SQLite, 1 step, 64 in flight", 1, 64),
];
pub(super) const APALIS: [(&str, usize, usize); 2] = [
    ("apalis on SQLite, 1 step, 1 in flight", 1, 1),
    ("apalis on SQLite, 1 step, 64 in flight", 1, 64),
];
pub(super) const DBOS: [(&str, usize, usize); 4] = [
    ("DBOS on PostgreSQL, 1 step, 1 in flight", 1, 1),
    ("DBOS on PostgreSQL, 1 step, 64 in flight", 1, 64),
    ("DBOS on PostgreSQL, 3 steps, 1 in flight", 3, 1),
    ("DBOS on PostgreSQL, 3 steps, 64 in flight", 3, 64),
];
pub(super) const SQLXMQ: [(&str, usize, usize); 4] = [
    ("sqlxmq on PostgreSQL, 1 step, 1 in flight", 1, 1),
    ("sqlxmq on PostgreSQL, 1 step, 64 in flight", 1, 64),
    ("sqlxmq on PostgreSQL, 3 steps, 1 in flight", 3, 1),
    ("sqlxmq on PostgreSQL, 3 steps, 64 in flight", 3, 64),
];
pub(super) const GRAPHILE: [(&str, usize, usize); 1] =
    [("graphile-worker on PostgreSQL, 3 steps, 64 in flight", 3, 64)];
pub(super) const RESTATE: [(&str, usize, usize); 4] = [
    ("Restate, 1 step, 1 in flight", 1, 1),
    ("Restate, 1 step, 64 in flight", 1, 64),
    ("Restate, 3 steps, 1 in flight", 3, 1),
    ("Restate, 3 steps, 64 in flight", 3, 64),
];
pub(super) const TEMPORAL: [(&str, usize, usize); 4] = [
    ("Temporal on SQLite, 1 step, 1 in flight", 1, 1),
    ("Temporal on SQLite, 1 step, 64 in flight", 1, 64),
    ("Temporal on SQLite, 3 steps, 1 in flight", 3, 1),
    ("Temporal on SQLite, 3 steps, 64 in flight", 3, 64),
];

/// One that is not there stops nobody.
pub(super) fn run(runtime: &Runtime, folder: &Path, server: &str, rounds: &mut Rounds) {
    for (engine, measured) in [("effectum", EFFECTUM), ("apalis", APALIS)] {
        for (name, steps, callers) in measured {
            let folder = folder.join(format!("{engine}-{steps}-{callers}"));
            let shown = peers::program(engine)
                .and_then(|_| engines::jobs(engine, steps, callers, &folder, None));
            rounds.peer(engine, name, shown);
        }
    }
    let on_postgres: [(_, &[_]); 3] =
        [("DBOS", &DBOS), ("sqlxmq", &SQLXMQ), ("graphile-worker", &GRAPHILE)];
    for (engine, measured) in on_postgres {
        for &(name, steps, callers) in measured {
            let folder = folder.join(format!("{engine}-{steps}-{callers}"));
            let shown = peers::program(engine)
                .and_then(|_| runtime.block_on(crate::broker::fresh(server)))
                .and_then(|url| engines::jobs(engine, steps, callers, &folder, Some(&url)));
            rounds.peer(engine, name, shown);
        }
    }
    for (engine, measured) in [("Restate", RESTATE), ("Temporal", TEMPORAL)] {
        for (name, steps, callers) in measured {
            let folder = folder.join(format!("{engine}-{steps}-{callers}"));
            let shown = peers::program(engine).and_then(|program| {
                let program = program.to_string_lossy();
                engines::jobs(engine, steps, callers, &folder, Some(&program))
            });
            rounds.peer(engine, name, shown);
        }
    }
}

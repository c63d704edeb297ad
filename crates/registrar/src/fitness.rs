//! The proof that a store is fit, read from its own catalogue at every start (registrar.md, RP-10).
//!
//! Single use rests on the database and not on this program, so that what it rests on is looked at:
//! the unique axes and their columns, the columns that a key binds, the triggers that refuse
//! changes, no unique key that an attempt is part of, and nobody else who may write.

use std::collections::{BTreeMap, BTreeSet};

use semel_core::code::Code;

/// What a database says of the registrar's tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalogue {
    /// Columns by table; whether each refuses NULL.
    pub columns: BTreeMap<String, BTreeMap<String, Nullable>>,
    /// Unique keys that hold for every row, by table.
    pub uniques: BTreeMap<String, BTreeSet<BTreeSet<String>>>,
    /// Triggers that are on and say what the migration says: table and what each refuses.
    pub refusals: BTreeSet<(String, Change)>,
    /// What else the tables say of their rows: table and definition.
    pub definitions: BTreeSet<(String, String)>,
    /// What they must say.
    pub needed: BTreeSet<(String, String)>,
    /// Others who may write, in words.
    pub strangers: Vec<String>,
}

/// Whether a column may be empty. A unique key does not hold empty values apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nullable {
    /// It may.
    Yes,
    /// It may not.
    No,
}

/// What a trigger refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Changing a row.
    Update,
    /// Removing a row.
    Delete,
    /// Putting another row in its place.
    Replace,
}

/// Why a store is not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {what}")]
pub struct Unfit {
    /// `replay_surface_not_fit` or `replay_domain_fail_closed`.
    pub code: Code,
    /// What is missing, or there and must not be.
    pub what: String,
}

/// The axes on which something is used once, and the keys that keep a ledger's lines apart.
const AXES: &[(&str, &[&str])] = &[
    ("effect_key", &["logical_request_key"]),
    ("effect_key", &["replay_key"]),
    ("effect_key", &["compensates"]),
    ("nonce_use", &["authorization_nonce"]),
    ("registration", &["logical_request_key"]),
    ("authority", &["domain", "pubkey"]),
    ("grant_issued", &["authorization_nonce"]),
    ("grant_revoked", &["authorization_nonce"]),
    ("gate", &["entry"]),
    ("attempt", &["entry"]),
    ("attempt", &["closes"]),
    ("failure_audit", &["entry"]),
    ("verification", &["logical_request_key"]),
    ("sweep", &["entry"]),
];

/// The columns that must be there and filled.
const BOUND: &[(&str, &[&str])] = &[
    (
        "effect_key",
        &[
            "logical_request_key",
            "replay_key",
            "protocol_version",
            "domain",
            "operation",
            "canonical_target",
            "artifact_hash",
            "owner_binding",
            "run_id",
            "authorization_nonce",
            "consumed_at",
        ],
    ),
    ("nonce_use", &["authorization_nonce", "logical_request_key", "issuer", "used_at"]),
    ("registration", &["logical_request_key", "attempt_id", "result", "registered_at"]),
    ("authority", &["domain", "pubkey", "trusted_at"]),
    (
        "grant_issued",
        &[
            "authorization_nonce",
            "domain",
            "logical_request_key",
            "not_before",
            "not_after",
            "issuer",
            "issued_at",
        ],
    ),
    ("grant_revoked", &["authorization_nonce", "revoked_at"]),
    ("gate", &["entry", "domain", "action", "at"]),
    ("attempt", &["entry", "event", "logical_request_key", "attempt_id", "at"]),
    (
        "failure_audit",
        &[
            "entry",
            "domain",
            "logical_request_key",
            "authorization_nonce",
            "attempt_id",
            "outcome",
            "at",
        ],
    ),
    ("verification", &["logical_request_key", "verdict", "note", "at"]),
    ("sweep", &["entry", "before", "at"]),
];

/// The tables whose rows never change. Those of the ledgers ([`SWEPT`]) may be deleted in the end,
/// by a trigger that says which.
pub const APPEND_ONLY: &[&str] = &[
    "effect_key",
    "nonce_use",
    "registration",
    "authority",
    "grant_issued",
    "grant_revoked",
    "gate",
    "attempt",
    "failure_audit",
    "verification",
    "sweep",
];

/// The ledgers, whose old lines may be forgotten: nothing in them keeps a key or a nonce used.
pub const SWEPT: &[&str] = &["attempt", "failure_audit", "grant_issued"];

/// Every table of the registrar.
pub const TABLES: &[&str] = &[
    "effect_key",
    "nonce_use",
    "registration",
    "authority",
    "grant_issued",
    "grant_revoked",
    "gate",
    "attempt",
    "failure_audit",
    "verification",
    "sweep",
];

/// Proves it, or names the first thing that is not as it must be.
pub fn prove(catalogue: &Catalogue) -> Result<(), Unfit> {
    no_attempt_keys(catalogue)?;
    for (table, columns) in AXES {
        axis(catalogue, table, columns)?;
    }
    for (table, columns) in BOUND {
        for column in *columns {
            let found = catalogue.columns.get(*table).and_then(|columns| columns.get(*column));
            match found {
                Some(Nullable::No) => {}
                Some(Nullable::Yes) => {
                    return Err(closed(format!("{table}.{column} may be empty")));
                }
                None => return Err(closed(format!("{table}.{column} is missing"))),
            }
        }
    }
    for table in APPEND_ONLY {
        for change in [Change::Update, Change::Delete, Change::Replace] {
            if !catalogue.refusals.contains(&((*table).to_owned(), change)) {
                let what = format!("no trigger refuses {change:?} on {table}");
                return Err(closed(what));
            }
        }
    }
    if let Some((table, definition)) = catalogue.needed.difference(&catalogue.definitions).next() {
        return Err(closed(format!("{table} does not say {definition}")));
    }
    match catalogue.strangers.first() {
        None => Ok(()),
        Some(stranger) => Err(closed(format!("not only the registrar may write: {stranger}"))),
    }
}

/// A key that an attempt is part of lets a new attempt pass for a new request.
fn no_attempt_keys(catalogue: &Catalogue) -> Result<(), Unfit> {
    for (table, keys) in &catalogue.uniques {
        let attempt = keys.iter().flatten().find(|column| column.starts_with("attempt"));
        if let Some(column) = attempt {
            return Err(not_fit(format!("a unique key of {table} contains {column}")));
        }
    }
    Ok(())
}

fn axis(catalogue: &Catalogue, table: &str, columns: &[&str]) -> Result<(), Unfit> {
    let key: BTreeSet<String> = columns.iter().map(|column| (*column).to_owned()).collect();
    let unique = catalogue.uniques.get(table).is_some_and(|keys| keys.contains(&key));
    let missing = || not_fit(format!("{table} ({}) is not unique", columns.join(", ")));
    if unique { Ok(()) } else { Err(missing()) }
}

fn not_fit(what: String) -> Unfit {
    Unfit { code: Code::ReplaySurfaceNotFit, what }
}

fn closed(what: String) -> Unfit {
    Unfit { code: Code::ReplayDomainFailClosed, what }
}

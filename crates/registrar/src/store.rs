//! Where the registrar keeps what was used: one set of operations, two databases. One method is one
//! transaction. `sqlite/` and `postgres/` have the same files in the same order.
//!
//! The tables live beside those of whoever uses the registrar, so that consuming can share a
//! transaction with what it allows: [`sqlite::consume_in_tx`], [`postgres::consume_in_tx`].

pub mod postgres;
pub mod sqlite;

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_core::status;
use semel_store::{StoreError, either};

use crate::decide::{Arrival, Binding, Earlier, Facts, Gate, Key, NonceState, Outcome, Verified};
use crate::envelope::Valid;
use crate::fitness::Catalogue;
use crate::grant::{Grant, Nonce};
use crate::key::LogicalRequestKey;

pub use postgres::PostgresStore;
pub use sqlite::SqliteStore;

/// The domain of job approvals, whose gate nobody has to open.
pub const JOBS_DOMAIN: &str = "jobs";

/// Either database.
#[derive(Clone)]
pub enum Store {
    /// One host.
    Sqlite(SqliteStore),
    /// Many registrars.
    Postgres(PostgresStore),
}

/// A try to register a request, with everything that the store needs of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// What is asked for.
    pub valid: Valid,
    /// Who allows it; its signature was checked.
    pub grant: Grant,
    /// The effect that this one compensates.
    pub compensates: Option<LogicalRequestKey>,
    /// Which try.
    pub attempt_id: String,
    /// What is stored, and told to every exact retry.
    pub result: Vec<u8>,
    /// The time.
    pub now: UnixMs,
}

/// Where an attempt stands in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub i64);

impl Entry {
    /// Of who consumes in a transaction of its own making: nothing is earlier, nothing closes it.
    pub const NONE: Self = Self(0);

    /// Of who only looks: every open attempt is earlier.
    pub const LAST: Self = Self(i64::MAX);

    /// Whether an attempt stands there.
    fn is_a_line(self) -> bool {
        self != Self::NONE && self != Self::LAST
    }
}

/// What the store has found and done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// What became of the attempt.
    pub outcome: Outcome,
    /// What held the key.
    pub key: Key,
    /// The stored result, where there is one.
    pub result: Option<Vec<u8>>,
    /// Whether the domain trusts who has issued the grant.
    pub trusted: bool,
}

/// How far an attempt came that nobody of this process was in the way of.
#[derive(Debug)]
pub enum Tried {
    /// Nothing was written: the look has decided, or an earlier attempt is open.
    Looked(Done),
    /// It was written down under this entry; what its transaction came to.
    Acted(Entry, Result<Done, StoreError>),
}

/// What a step of a sweep has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Lines that are forgotten.
    pub rows: u64,
    /// Where the next step begins; nothing when this was the last one.
    pub next: Option<Entry>,
}

impl Pass {
    const OVER: Self = Self { rows: 0, next: None };
}

/// The last of these lines (entry and time, in their order), if one of them is old enough. The
/// clocks of several registrars need not agree: the first that is too young is not the end.
fn old_among(lines: Vec<(i64, i64)>, before: UnixMs) -> Option<Entry> {
    let old = lines.iter().any(|(_, at)| *at < before.0);
    lines.last().filter(|_| old).map(|(entry, _)| Entry(*entry))
}

status! {
    /// What a verifier found.
    pub enum Verdict {
        /// The effect is as it should be.
        Passed = "passed",
        /// It is not.
        Failed = "failed",
    }
}

/// An effect that has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// What every exact retry is told.
    pub result: Vec<u8>,
    /// What was found afterwards, with the verifier's note.
    pub verdict: Option<(Verdict, String)>,
}

/// What happened to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// What is there.
    pub effect: Option<Effect>,
    /// Attempts whose end was not known and is now.
    pub closed: u64,
}

/// What became of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verifying {
    /// It is written, or the same one was.
    Written,
    /// There is another one.
    Other,
    /// There is no such effect.
    NoEffect,
}

status! {
    /// What may still be done with a grant.
    pub enum GrantState {
        /// It may be used.
        Issued = "issued",
        /// It was.
        Consumed = "consumed",
        /// Nobody may use it any more.
        Revoked = "revoked",
    }
}

/// A grant in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// Its name.
    pub nonce: Nonce,
    /// What it allows.
    pub logical_request_key: LogicalRequestKey,
    /// Its window.
    pub window: (UnixMs, UnixMs),
    /// When it was issued.
    pub issued_at: UnixMs,
    /// What became of it.
    pub state: GrantState,
}

status! {
    /// Which ledger an operator reads.
    pub enum Audit {
        /// Attempts: begun, answered, closed.
        Attempts = "attempts",
        /// What was refused.
        Failures = "failures",
    }
}

/// A line of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditLine {
    /// Its number.
    pub entry: i64,
    /// `started`, `answered`, `closed`; `refused` of a failure.
    pub event: String,
    /// Under which key.
    pub logical_request_key: Vec<u8>,
    /// Which try.
    pub attempt_id: String,
    /// What became of it.
    pub outcome: Option<String>,
    /// When.
    pub at: UnixMs,
    /// The line whose attempt this one closes.
    pub closes: Option<i64>,
    /// Of a failure: whose gate and authorities counted.
    pub domain: Option<String>,
    /// Of a failure: by which grant.
    pub nonce: Option<Vec<u8>>,
}

/// What a revocation comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revoking {
    /// It is revoked, now or before.
    Revoked,
    /// It was used: too late.
    Consumed,
    /// There is no such grant.
    Unknown,
}

/// The facts as they stand in the tables.
struct Found {
    replay_key: Option<Vec<u8>>,
    used_for: Option<Vec<u8>>,
    revoked: bool,
    trusted: bool,
    gate: Option<String>,
    verdict: Option<String>,
    result: Option<Vec<u8>>,
    earlier_open: bool,
    /// Whether the attempt's own line is there and open; nothing when it is not there at all.
    mine_open: Option<bool>,
    compensated: Option<String>,
    /// Whether what this one compensates was compensated before, by whichever request.
    undone: bool,
}

impl Found {
    /// Decides. `arrival` is what an earlier look has found; without one this is the first.
    fn decide(
        self,
        attempt: &Attempt,
        entry: Entry,
        arrival: Option<Arrival>,
    ) -> Result<Done, StoreError> {
        let facts = self.facts(attempt, entry, arrival)?;
        let failed = Some(Verdict::Failed.as_str());
        let compensable = attempt.compensates.is_none() || self.compensated.as_deref() == failed;
        let decided = crate::decide::decide(facts);
        let outcome = if decided != Outcome::Registered {
            decided
        } else if !compensable {
            Outcome::NotCompensable
        } else if self.undone {
            // Another key, and the same effect that would be undone twice.
            Outcome::NoBypass
        } else {
            decided
        };
        let result = self.result.filter(|_| outcome.shows_result());
        Ok(Done { outcome, key: facts.key, result, trusted: self.trusted })
    }

    fn facts(
        &self,
        attempt: &Attempt,
        entry: Entry,
        arrival: Option<Arrival>,
    ) -> Result<Facts, StoreError> {
        let (valid, grant) = (&attempt.valid, &attempt.grant);
        let own_key = valid.logical_request_key.0.0;
        let key = match self.replay_key.as_deref() {
            None => Key::Free,
            Some(held) if held == valid.replay_key.0.0 => Key::Same,
            Some(_) => Key::Other,
        };
        if (key == Key::Free) == self.result.is_some() {
            let what = "the consumed key and the registration are not both there".to_owned();
            return Err(corrupt("effect_key", valid.logical_request_key.to_string(), what));
        }
        let nonce = match self.used_for.as_deref() {
            Some(used_for) if used_for == own_key => NonceState::SameRow,
            Some(_) => NonceState::OtherRow,
            None if self.revoked => NonceState::Revoked,
            None => NonceState::Fresh,
        };
        let failed = self.verdict.as_deref() == Some(Verdict::Failed.as_str());
        // A line of its own that was closed, or closed and forgotten since, lets nothing pass.
        let mine_over = entry.is_a_line() && self.mine_open != Some(true);
        let open = self.earlier_open || mine_over;
        let now = match key {
            Key::Free => Arrival::Free,
            Key::Same | Key::Other => Arrival::Taken,
        };
        Ok(Facts {
            key,
            nonce,
            binding: if self.trusted { grant.binding(valid) } else { Binding::Unbound },
            verified: if failed { Verified::Failed } else { Verified::NotFailed },
            arrival: arrival.unwrap_or(now),
            earlier: if open { Earlier::Open } else { Earlier::None },
            gate: gate_of(&valid.envelope.domain, self.gate.as_deref())?,
            time: grant.time(valid, attempt.now),
        })
    }
}

/// The state of a gate by its last line; nobody has touched it when there is none.
fn gate_of(domain: &str, action: Option<&str>) -> Result<Gate, StoreError> {
    match action {
        None if domain == JOBS_DOMAIN => Ok(Gate::Open),
        None => Ok(Gate::Held),
        Some(action) => Gate::parse(action)
            .ok_or_else(|| corrupt("gate", domain.to_owned(), format!("{action} is no state"))),
    }
}

/// An effect from its columns.
fn effect(
    result: Option<Vec<u8>>,
    verdict: Option<String>,
    note: Option<String>,
) -> Result<Option<Effect>, StoreError> {
    let Some(result) = result else { return Ok(None) };
    let verdict = match verdict {
        None => None,
        Some(word) => {
            let what = || corrupt("verification", word.clone(), "is no verdict".to_owned());
            Some((Verdict::parse(&word).ok_or_else(what)?, note.unwrap_or_default()))
        }
    };
    Ok(Some(Effect { result, verdict }))
}

/// What became of a grant, from its columns.
fn grant_state(consumed: bool, revoked: bool) -> GrantState {
    match (consumed, revoked) {
        (true, _) => GrantState::Consumed,
        (false, true) => GrantState::Revoked,
        (false, false) => GrantState::Issued,
    }
}

/// Bytes of a column that has a fixed length.
fn fixed<const N: usize>(table: &'static str, bytes: Vec<u8>) -> Result<Hex<N>, StoreError> {
    let length = bytes.len();
    let what = || corrupt(table, String::new(), format!("{length} bytes instead of {N}"));
    bytes.try_into().map(Hex).map_err(|_| what())
}

fn corrupt(table: &'static str, id: String, what: String) -> StoreError {
    StoreError::Corrupt { table, id, what }
}

/// Calls the same method of whichever store it is.
impl Store {
    /// What the tables are, for the proof of fitness.
    pub async fn catalogue(&self) -> Result<Catalogue, StoreError> {
        either!(self.catalogue())
    }

    /// Looks, and decides as if nobody else were there. Writes nothing.
    pub async fn look(&self, attempt: &Attempt) -> Result<Done, StoreError> {
        either!(self.look(attempt))
    }

    /// Looks, and if nothing speaks against it writes down that the attempt begins, and consumes.
    /// Only for who has the turn of its key.
    pub async fn try_once(&self, attempt: &Attempt) -> Result<Tried, StoreError> {
        either!(self.try_once(attempt))
    }

    /// Writes down that an attempt begins.
    pub async fn attempt_start(&self, attempt: &Attempt) -> Result<Entry, StoreError> {
        either!(self.attempt_start(attempt))
    }

    /// The transaction: both keys, the registration and the ledger's closing line, or nothing.
    pub async fn consume(&self, attempt: &Attempt, entry: Entry) -> Result<Done, StoreError> {
        either!(self.consume(attempt, entry))
    }

    /// Writes down how an attempt ended that has written nothing; beside it, what was refused.
    pub async fn attempt_end(
        &self,
        attempt: &Attempt,
        entry: Option<Entry>,
        outcome: Outcome,
    ) -> Result<(), StoreError> {
        either!(self.attempt_end(attempt, entry, outcome))
    }

    /// What happened to a request: waits for transactions on its key, and closes open attempts.
    pub async fn resolve(
        &self,
        key: LogicalRequestKey,
        now: UnixMs,
    ) -> Result<Resolved, StoreError> {
        either!(self.resolve(key, now))
    }

    /// An effect.
    pub async fn effect_find(&self, key: LogicalRequestKey) -> Result<Option<Effect>, StoreError> {
        either!(self.effect_find(key))
    }

    /// Flags an effect. Its key and nonce stay consumed whatever the verdict.
    pub async fn verify(
        &self,
        key: LogicalRequestKey,
        verdict: Verdict,
        note: &str,
        now: UnixMs,
    ) -> Result<Verifying, StoreError> {
        either!(self.verify(key, verdict, note, now))
    }

    /// Writes down a grant of the local authority, which the domain trusts from now on.
    pub async fn grant_issue(&self, grant: &Grant, now: UnixMs) -> Result<(), StoreError> {
        either!(self.grant_issue(grant, now))
    }

    /// Grants of a domain, in the order of their nonces.
    pub async fn grant_list(
        &self,
        domain: &str,
        after: Option<Nonce>,
        limit: u32,
    ) -> Result<Vec<Granted>, StoreError> {
        either!(self.grant_list(domain, after, limit))
    }

    /// Takes a grant back that was not used.
    pub async fn grant_revoke(&self, nonce: Nonce, now: UnixMs) -> Result<Revoking, StoreError> {
        either!(self.grant_revoke(nonce, now))
    }

    /// Whether the domain trusts this key.
    pub async fn trusts(&self, domain: &str, issuer: Hex<32>) -> Result<bool, StoreError> {
        either!(self.trusts(domain, issuer))
    }

    /// The state of a gate.
    pub async fn gate(&self, domain: &str) -> Result<Gate, StoreError> {
        either!(self.gate(domain))
    }

    /// Holds every domain that could be open: what anybody has opened, and that of jobs, which
    /// nobody has to open. Says how many.
    pub async fn gate_hold_all(&self, now: UnixMs) -> Result<u64, StoreError> {
        either!(self.gate_hold_all(now))
    }

    /// Opens or holds.
    pub async fn gate_set(&self, domain: &str, gate: Gate, now: UnixMs) -> Result<(), StoreError> {
        either!(self.gate_set(domain, gate, now))
    }

    /// Lines of a ledger before this one, the newest first.
    pub async fn audit(
        &self,
        audit: Audit,
        before: i64,
        limit: u32,
    ) -> Result<Vec<AuditLine>, StoreError> {
        either!(self.audit(audit, before, limit))
    }

    /// What time the store says it is, where it has a clock of its own.
    pub async fn now(&self) -> Result<Option<UnixMs>, StoreError> {
        match self {
            Self::Sqlite(_) => Ok(None),
            Self::Postgres(store) => store.now().await.map(Some),
        }
    }

    /// When something was last written that a sweep may take, where it has no clock of its own.
    pub async fn newest(&self) -> Result<Option<UnixMs>, StoreError> {
        match self {
            Self::Sqlite(store) => store.newest().await,
            Self::Postgres(_) => Ok(None),
        }
    }

    /// Writes down that lines of the ledgers that are older may be forgotten.
    pub async fn sweep_begin(&self, before: UnixMs, now: UnixMs) -> Result<(), StoreError> {
        either!(self.sweep_begin(before, now))
    }

    /// Forgets attempts that are over, so many lines after this one at a time.
    pub async fn attempt_sweep(
        &self,
        before: UnixMs,
        after: Entry,
        limit: i64,
    ) -> Result<Pass, StoreError> {
        either!(self.attempt_sweep(before, after, limit))
    }

    /// Forgets what was refused.
    pub async fn failure_sweep(
        &self,
        before: UnixMs,
        after: Entry,
        limit: i64,
    ) -> Result<Pass, StoreError> {
        either!(self.failure_sweep(before, after, limit))
    }

    /// Forgets grants whose time was over, used or not.
    pub async fn grant_sweep(&self, before: UnixMs, limit: i64) -> Result<u64, StoreError> {
        either!(self.grant_sweep(before, limit))
    }
}

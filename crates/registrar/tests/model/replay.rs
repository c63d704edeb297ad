//! The model's traces, replayed against the real stores: every look and every transaction has the
//! outcome that the model gives it, and the effects at the end are the model's.
//!
//! Only traces in which a transaction is one step: what happens inside one is the store's business,
//! and has its own tests (`it/crash.rs`, `it/lost.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_crypto::keys::KeyPair;
use semel_registrar::decide::{Gate, Outcome};
use semel_registrar::envelope::{Envelope, validate};
use semel_registrar::grant::{Grant, Nonce};
use semel_registrar::key::LogicalRequestKey;
use semel_registrar::store::{
    Attempt, Entry, PostgresStore, Revoking, SqliteStore, Store, Verdict, Verifying, postgres,
    sqlite,
};
use semel_store::postgres::{Postgres, PostgresOptions};
use semel_store::sqlite::{Sqlite, SqliteOptions};
use semel_testkit::dice::Dice;
use semel_testkit::servers;

use crate::next::{Scope, Step, steps};
use crate::state::{ATTEMPTS, KEYS, State, key_of};

const TRACES_SQLITE: u64 = 400;
const TRACES_POSTGRES: u64 = 300;
const STEPS: usize = 18;
const NOW: UnixMs = UnixMs(1_800_000_000_000);
const LATER: UnixMs = UnixMs(NOW.0 + 2 * 60 * 60 * 1000);

#[tokio::test(flavor = "multi_thread")]
async fn traces_on_sqlite() {
    on_sqlite(Sweeping::Never).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_on_sqlite_with_sweeps() {
    on_sqlite(Sweeping::Always).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_on_postgres() {
    on_postgres(Sweeping::Never).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_on_postgres_with_sweeps() {
    on_postgres(Sweeping::Always).await;
}

async fn on_sqlite(sweeping: Sweeping) {
    let folder = tempfile::tempdir().expect("a folder");
    let on_uncertain = Arc::new(|_: &semel_store::StoreError| {});
    let path = folder.path().join("r.db");
    let options = SqliteOptions::new(path, 7, vec![sqlite::MIGRATIONS], NOW.0, on_uncertain);
    let sqlite = Arc::new(Sqlite::open(&options).expect("a file"));
    let store = Store::Sqlite(SqliteStore::new(sqlite));
    replay_all(&store, TRACES_SQLITE, sweeping).await;
}

async fn on_postgres(sweeping: Sweeping) {
    let options = PostgresOptions::new(servers::fresh_postgres().await);
    let opened = Postgres::open(options, &[postgres::MIGRATIONS], NOW.0).await;
    let store = Store::Postgres(PostgresStore::new(opened.expect("a database")));
    replay_all(&store, TRACES_POSTGRES, sweeping).await;
}

/// Whether everything that may be forgotten is, after each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sweeping {
    Never,
    Always,
}

async fn replay_all(store: &Store, traces: u64, sweeping: Sweeping) {
    let mut seen = BTreeSet::new();
    for number in 0..traces {
        let (steps, end) = walk(number);
        println!("trace {number}: {steps:?}");
        let mut replay = Replay::begin(store, number).await;
        for step in &steps {
            replay.step(*step, &mut seen).await;
            if sweeping == Sweeping::Always {
                sweep(store).await;
            }
        }
        for key in 0..KEYS {
            let there = store.effect_find(replay.key(key)).await.expect("a look").is_some();
            assert_eq!(there, end.key_row[key] != 0, "effect {key} of {steps:?}");
        }
    }
    // What only a damaged store or a compensation gives is not in the model.
    let missing: Vec<_> = Outcome::ALL.iter().filter(|outcome| !seen.contains(outcome)).collect();
    assert_eq!(missing, [&Outcome::NotCompensable, &Outcome::Undone], "{seen:?}");
}

/// Long after everything in the traces: whoever is still under way has been so for a day.
async fn sweep(store: &Store) {
    let before = UnixMs(LATER.0 + 1);
    let now = UnixMs(before.0 + 24 * 60 * 60 * 1000);
    store.sweep_begin(before, now).await.expect("a sweep");
    let mut after = Entry::NONE;
    while let Some(next) =
        store.attempt_sweep(before, after, 1000).await.expect("a step of a sweep").next
    {
        after = next;
    }
    store.failure_sweep(before, Entry::NONE, 1000).await.expect("a step of a sweep");
    store.grant_sweep(before, 1000).await.expect("a step of a sweep");
}

/// A way through the model, the same for the same number.
fn walk(number: u64) -> (Vec<Step>, State) {
    let (scope, mut state) = (Scope::serial(), State::default());
    let (mut trace, mut found) = (Vec::new(), Vec::new());
    let mut dice = Dice::new(number);
    while trace.len() < STEPS {
        steps(&state, &scope, &mut found);
        // What the world does is rarer than what attempts do.
        let world = |step: &Step| {
            matches!(step, Step::Hold | Step::TimePasses | Step::Revoke | Step::Crash { .. })
        };
        if !dice.one_in(8) && found.iter().any(|(step, _)| !world(step)) {
            found.retain(|(step, _)| !world(step));
        }
        let Some((step, to)) = dice.try_pick(&found).copied() else { break };
        trace.push(step);
        state = to;
    }
    (trace, state)
}

/// One trace in a domain of its own.
struct Replay<'a> {
    store: &'a Store,
    number: u64,
    now: UnixMs,
    attempts: Vec<Option<(Attempt, Entry)>>,
}

impl<'a> Replay<'a> {
    async fn begin(store: &'a Store, number: u64) -> Replay<'a> {
        let attempts = (0..ATTEMPTS).map(|_| None).collect();
        let replay = Replay { store, number, now: NOW, attempts };
        store.gate_set(&replay.domain(), Gate::Open, NOW).await.expect("a gate");
        // The second nonce is issued; that the domain trusts the other authority is all that is
        // wanted of a third one.
        let issued = [replay.grant(0, 1, 0), replay.grant(1, 2, 1)];
        for grant in issued {
            store.grant_issue(&grant, NOW).await.expect("a grant");
        }
        replay
    }

    fn domain(&self) -> String {
        format!("trace-{}", self.number)
    }

    fn envelope(&self, request: usize, issued_at: UnixMs) -> Envelope {
        Envelope {
            protocol_version: 1,
            domain: self.domain(),
            operation: "deploy".to_owned(),
            canonical_target: format!("effect-{}", key_of(request)),
            artifact_hash: Hex([7; 32]),
            owner_binding: "team".to_owned(),
            run_id: if request == 1 { "r2" } else { "r1" }.to_owned(),
            issued_at,
            ttl_s: 3600,
        }
    }

    fn key(&self, key: usize) -> LogicalRequestKey {
        LogicalRequestKey::of(&self.envelope(key * 2, NOW))
    }

    /// The first authority is trusted with the first effect, the second one with the second.
    fn grant(&self, authority: u8, nonce: u8, key: usize) -> Grant {
        let mut bytes = [nonce; 16];
        bytes[8..].copy_from_slice(&self.number.to_be_bytes());
        let authority = KeyPair::from_secret(&[authority + 1; 32]);
        let window = (UnixMs(0), UnixMs(i64::MAX));
        Grant::issue(&authority, &self.domain(), Nonce(Hex(bytes)), self.key(key), window)
    }

    fn attempt(&self, who: usize, request: usize, nonce: usize, renewed: bool) -> Attempt {
        let issued_at = if renewed { LATER } else { NOW };
        let envelope = self.envelope(request, issued_at);
        let valid = validate(envelope, self.now).expect("a request");
        // The first nonce was drawn by both authorities, the second is for the first effect alone.
        let grant = match (nonce, key_of(request)) {
            (0, 0) => self.grant(0, 0, 0),
            (0, _) => self.grant(1, 0, 1),
            (_, _) => self.grant(0, 1, 0),
        };
        let result = format!("{{\"by\":{who}}}").into_bytes();
        let (attempt_id, now) = (who.to_string(), self.now);
        Attempt { valid, grant, compensates: None, attempt_id, result, now }
    }

    fn of(&self, who: usize) -> (&Attempt, Entry) {
        let (attempt, entry) = self.attempts[who].as_ref().expect("it has come");
        (attempt, *entry)
    }

    async fn step(&mut self, step: Step, seen: &mut BTreeSet<Outcome>) {
        let store = self.store;
        match step {
            Step::Arrive { who, request, nonce, renewed, says } => {
                let attempt = self.attempt(who, request, nonce, renewed);
                let looked = store.look(&attempt).await.expect("a look");
                assert_eq!(looked.outcome, says, "{step:?}");
                seen.insert(says);
                self.attempts[who] = Some((attempt, Entry::NONE));
            }
            Step::Start { who } => {
                let (attempt, _) = self.of(who);
                let entry = store.attempt_start(attempt).await.expect("an entry");
                self.attempts[who] = Some((attempt.clone(), entry));
            }
            Step::Act { who, says } => self.act(who, says, seen).await,
            Step::GiveUp { who } => self.end(who, Outcome::Uncertain).await,
            Step::Crash { .. } => {}
            Step::Resolve { key, absent } => {
                let resolved = store.resolve(self.key(key), self.now).await.expect("an answer");
                assert_eq!(resolved.effect.is_none(), absent, "{step:?}");
                assert!(resolved.closed > 0, "{step:?}");
            }
            Step::Fail => {
                let failed = store.verify(self.key(0), Verdict::Failed, "", self.now).await;
                assert_eq!(failed.expect("a verdict"), Verifying::Written);
            }
            Step::TimePasses => self.now = LATER,
            Step::Hold => self.gate(Gate::Held).await,
            Step::Open => self.gate(Gate::Open).await,
            Step::Revoke => {
                let nonce = self.grant(0, 1, 0).nonce;
                let revoked = store.grant_revoke(nonce, self.now).await.expect("an answer");
                assert_eq!(revoked, Revoking::Revoked);
            }
            Step::Commit { .. }
            | Step::CommitUnheard { .. }
            | Step::Lose { .. }
            | Step::GhostCommits { .. }
            | Step::GhostEnds { .. } => unreachable!("a serial trace has no {step:?}"),
        }
    }

    async fn gate(&self, gate: Gate) {
        self.store.gate_set(&self.domain(), gate, self.now).await.expect("a gate");
    }

    async fn act(&self, who: usize, says: Outcome, seen: &mut BTreeSet<Outcome>) {
        let (attempt, entry) = self.of(who);
        let done = self.store.consume(attempt, entry).await.expect("a transaction");
        assert_eq!(done.outcome, says, "attempt {who}");
        seen.insert(says);
        if says != Outcome::Registered && says != Outcome::Uncertain {
            self.end(who, says).await;
        }
    }

    async fn end(&self, who: usize, says: Outcome) {
        let (attempt, entry) = self.of(who);
        self.store.attempt_end(attempt, Some(entry), says).await.expect("an end");
    }
}

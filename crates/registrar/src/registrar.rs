//! How an attempt goes (docs/design/registrar.md, "An attempt"): look, write down, act, close.

pub mod sweeper;

use std::collections::{HashMap, hash_map};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use semel_core::clock::{Clock, UnixMs};
use semel_core::hex::Hex;
use semel_core::plausible::SweepClock;
use semel_core::refusal::Refusal;
use semel_core::rfc3339;
use semel_crypto::keys::KeyPair;
use semel_store::{Fate, StoreError};
use serde_json::json;
use tokio::time::sleep;

use crate::decide::{Gate, Outcome};
use crate::envelope::{COMPENSATE, Envelope, Valid, compensated, validate};
use crate::fitness::{Unfit, prove};
use crate::grant::{Grant, Nonce};
use crate::key::LogicalRequestKey;
use crate::limits::{EARLIER_LOOKS_MAX, EARLIER_PAUSE};
use crate::store::{
    Attempt, Audit, AuditLine, Done, Effect, Entry, Granted, Resolved, Revoking, Store, Tried,
    Verdict, Verifying,
};

/// Where nonces come from; each call gives fresh bits that nobody can guess.
pub type Nonces = Arc<dyn Fn() -> [u8; 16] + Send + Sync>;

/// Why a registrar does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be proved fit.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The store cannot be read.
    #[error("the registrar's store cannot be read")]
    Store(#[from] StoreError),
}

/// The only writer of registrations.
pub struct Registrar {
    store: Store,
    clock: Arc<dyn Clock>,
    nonces: Nonces,
    authority: Option<KeyPair>,
    live: Live,
    entrusted: OnceLock<Entrusted>,
    /// Which time a sweep may go by.
    sweeps: Mutex<SweepClock>,
}

/// A domain, and the other registrar of this program that decides over it; none when it is not of
/// this program.
struct Entrusted {
    domain: String,
    to: Option<Arc<Registrar>>,
}

/// What somebody asks to be registered.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The request.
    pub envelope: Envelope,
    /// Who allows it.
    pub grant: Grant,
    /// Which try.
    pub attempt_id: String,
}

/// What an attempt comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// In the words of the table.
    pub outcome: Outcome,
    /// Under which key.
    pub logical_request_key: LogicalRequestKey,
    /// The stored result, where the answer has one.
    pub result: Option<Vec<u8>>,
}

impl Registrar {
    /// Proves the store fit, or refuses to start.
    pub async fn start(
        store: Store,
        clock: Arc<dyn Clock>,
        nonces: Nonces,
        authority: Option<KeyPair>,
    ) -> Result<Self, StartError> {
        prove(&store.catalogue().await?)?;
        let (live, entrusted, mut sweeps) = (Live::default(), OnceLock::new(), SweepClock::new());
        let newest = store.newest().await?;
        sweeps.began(newest, &*clock);
        let sweeps = Mutex::new(sweeps);
        Ok(Self { store, clock, nonces, authority, live, entrusted, sweeps })
    }

    /// Leaves a domain to another registrar of this program, whose store has what its grants allow:
    /// a gate that is held here would hold nothing there. Said once, before anybody asks.
    pub fn entrust(&self, domain: &str, to: Arc<Self>) {
        self.leave(domain, Some(to));
    }

    /// Leaves a domain to a registrar of another program, with a file of its own. Tables in a
    /// server may be shared with it: then nothing is left.
    pub fn disown(&self, domain: &str) {
        match self.store {
            Store::Sqlite(_) => self.leave(domain, None),
            Store::Postgres(_) => {}
        }
    }

    fn leave(&self, domain: &str, to: Option<Arc<Self>>) {
        let entrusted = Entrusted { domain: domain.to_owned(), to };
        if self.entrusted.set(entrusted).is_err() {
            tracing::error!(domain, "a registrar leaves one domain to another, once");
        }
    }

    /// Lines of a ledger before this one, the newest first.
    pub async fn audit(
        &self,
        audit: Audit,
        before: i64,
        limit: u32,
    ) -> Result<Vec<AuditLine>, StoreError> {
        self.store.audit(audit, before, limit).await
    }

    /// Who decides over a domain.
    pub(crate) fn over(&self, domain: &str) -> &Self {
        let entrusted = self.entrusted.get().filter(|entrusted| entrusted.domain == domain);
        entrusted.and_then(|entrusted| entrusted.to.as_deref()).unwrap_or(self)
    }

    /// Whether nobody in this program decides over a domain: what is said of it here says nothing.
    pub(crate) fn is_disowned(&self, domain: &str) -> bool {
        let entrusted = self.entrusted.get();
        entrusted.is_some_and(|entrusted| entrusted.domain == domain && entrusted.to.is_none())
    }

    /// All of this program, for what does not name its domain.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Self> {
        let others = self.entrusted.get().and_then(|entrusted| entrusted.to.as_deref());
        std::iter::once(self).chain(others)
    }

    /// Registers an effect once. An error of the store means that nothing is known to be there:
    /// undone when it says so, and otherwise the answer is [`Outcome::Uncertain`].
    pub async fn register(&self, asked: Asked) -> Result<Result<Answer, Refusal>, StoreError> {
        let compensates = match asked.envelope.operation.as_str() {
            COMPENSATE => match compensated(&asked.envelope) {
                Ok(key) => Some(key),
                Err(refusal) => return Ok(Err(refusal)),
            },
            _ => None,
        };
        let now = self.clock.wall();
        let valid = match validate(asked.envelope, now) {
            Ok(valid) => valid,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let logical_request_key = valid.logical_request_key;
        // Nothing is read or written for a grant that nobody has signed.
        if !asked.grant.is_signed() {
            let outcome = Outcome::NonceUnbound;
            return Ok(Ok(Answer { outcome, logical_request_key, result: None }));
        }
        let (grant, attempt_id) = (asked.grant, asked.attempt_id);
        let result = registration(&valid, &grant, &attempt_id, now);
        let attempt = Attempt { valid, grant, compensates, attempt_id, result, now };
        self.attempt(&attempt).await.map(Ok)
    }

    async fn attempt(&self, attempt: &Attempt) -> Result<Answer, StoreError> {
        let key = attempt.valid.logical_request_key;
        // One attempt of this process at a time: who waits for its turn will see what the others
        // did. It has looked before, to tell who was faster from who was there already.
        let (mut turn, tried) = match self.live.turn_at_once(key) {
            Some(turn) => (turn, self.store.try_once(attempt).await?),
            None => {
                let looked = self.store.look(attempt).await?;
                if decides(&looked) {
                    return self.decided(attempt, looked).await;
                }
                (self.live.turn(key).await, Tried::Looked(looked))
            }
        };
        let (entry, done) = match tried {
            Tried::Looked(looked) if decides(&looked) => {
                drop(turn);
                return self.decided(attempt, looked).await;
            }
            Tried::Looked(_) => {
                let entry = self.store.attempt_start(attempt).await?;
                (entry, self.consume(attempt, entry, &mut turn).await)
            }
            Tried::Acted(entry, Ok(Done { outcome: Outcome::Uncertain, .. })) => {
                (entry, self.consume(attempt, entry, &mut turn).await)
            }
            Tried::Acted(entry, done) => (entry, done),
        };
        self.ended(attempt, entry, done).await
    }

    /// The look was enough.
    async fn decided(&self, attempt: &Attempt, looked: Done) -> Result<Answer, StoreError> {
        alarm(attempt, looked.outcome);
        // A grant of a stranger leaves no trace either: strangers must not fill a ledger.
        if looked.trusted {
            self.store.attempt_end(attempt, None, looked.outcome).await?;
        }
        Ok(answer(attempt, looked.outcome, looked.result))
    }

    /// What the transaction came to is closed and told.
    async fn ended(
        &self,
        attempt: &Attempt,
        entry: Entry,
        done: Result<Done, StoreError>,
    ) -> Result<Answer, StoreError> {
        let done = match done {
            Err(error) if error.fate() == Fate::Uncertain => {
                let key = attempt.valid.logical_request_key;
                tracing::error!(%key, error = error.chain(), "a commit's outcome is unknown");
                return Ok(answer(attempt, Outcome::Uncertain, None));
            }
            Err(error) => {
                self.close_undone(attempt, entry).await;
                return Err(error);
            }
            Ok(done) => done,
        };
        if done.outcome != Outcome::Registered {
            alarm(attempt, done.outcome);
            self.store.attempt_end(attempt, Some(entry), done.outcome).await?;
        }
        Ok(answer(attempt, done.outcome, done.result))
    }

    /// The transaction; again while an earlier attempt of another process is under way, within a
    /// limit.
    async fn consume(
        &self,
        attempt: &Attempt,
        entry: Entry,
        turn: &mut Turn<'_>,
    ) -> Result<Done, StoreError> {
        let looks = match (&self.store, turn.patience()) {
            // No other process writes here: an earlier attempt that is open is a lost one.
            (Store::Sqlite(_), _) | (Store::Postgres(_), Patience::Spent) => 0,
            (Store::Postgres(_), Patience::Left) => EARLIER_LOOKS_MAX,
        };
        for _ in 0..looks {
            let done = self.store.consume(attempt, entry).await?;
            if done.outcome != Outcome::Uncertain {
                return Ok(done);
            }
            sleep(EARLIER_PAUSE).await;
        }
        turn.spend();
        self.store.consume(attempt, entry).await
    }

    /// What was undone is over; should this fail, too, `resolve` will close it.
    async fn close_undone(&self, attempt: &Attempt, entry: Entry) {
        let closed = self.store.attempt_end(attempt, Some(entry), Outcome::Undone).await;
        if let Err(error) = closed {
            let key = attempt.valid.logical_request_key;
            tracing::warn!(%key, error = error.chain(), "an attempt stays open");
        }
    }

    /// What happened to a request; closes the attempts that were lost.
    pub async fn resolve(&self, key: LogicalRequestKey) -> Result<Resolved, StoreError> {
        let _turn = self.live.turn(key).await;
        self.store.resolve(key, self.clock.wall()).await
    }

    /// An effect, and nothing else is touched.
    pub async fn show(&self, key: LogicalRequestKey) -> Result<Option<Effect>, StoreError> {
        self.store.effect_find(key).await
    }

    /// Flags an effect.
    pub async fn verify(
        &self,
        key: LogicalRequestKey,
        verdict: Verdict,
        note: &str,
    ) -> Result<Verifying, StoreError> {
        self.store.verify(key, verdict, note, self.clock.wall()).await
    }

    /// The local authority allows a request. Nothing, when there is no local authority.
    pub async fn grant_issue(
        &self,
        envelope: &Envelope,
        window: (Option<UnixMs>, Option<UnixMs>),
    ) -> Result<Option<Grant>, StoreError> {
        let Some(authority) = &self.authority else { return Ok(None) };
        let now = self.clock.wall();
        let key = LogicalRequestKey::of(envelope);
        let window = (window.0.unwrap_or(now), window.1.unwrap_or(envelope.fresh_until()));
        let nonce = Nonce(Hex((self.nonces)()));
        let grant = Grant::issue(authority, &envelope.domain, nonce, key, window);
        self.store.grant_issue(&grant, now).await.map(|()| Some(grant))
    }

    /// Grants of a domain.
    pub async fn grant_list(
        &self,
        domain: &str,
        after: Option<Nonce>,
        limit: u32,
    ) -> Result<Vec<Granted>, StoreError> {
        self.store.grant_list(domain, after, limit).await
    }

    /// Takes a grant back.
    pub async fn grant_revoke(&self, nonce: Nonce) -> Result<Revoking, StoreError> {
        self.store.grant_revoke(nonce, self.clock.wall()).await
    }

    /// Whether a grant is signed by somebody whom its domain trusts, and for this key.
    pub async fn opens(&self, grant: &Grant, key: LogicalRequestKey) -> Result<bool, StoreError> {
        let fits = grant.logical_request_key == key && grant.is_signed();
        Ok(fits && self.store.trusts(&grant.domain, grant.issuer).await?)
    }

    /// The state of a gate.
    pub async fn gate(&self, domain: &str) -> Result<Gate, StoreError> {
        self.store.gate(domain).await
    }

    /// Opens or holds.
    pub async fn gate_set(&self, domain: &str, gate: Gate) -> Result<(), StoreError> {
        self.store.gate_set(domain, gate, self.clock.wall()).await?;
        tracing::info!(domain, gate = gate.as_str(), "the gate was set");
        Ok(())
    }
}

/// Whether a look is enough. While an attempt is open, only a transaction of our own can tell.
fn decides(looked: &Done) -> bool {
    !matches!(looked.outcome, Outcome::Registered | Outcome::Uncertain)
}

fn answer(attempt: &Attempt, outcome: Outcome, result: Option<Vec<u8>>) -> Answer {
    Answer { outcome, logical_request_key: attempt.valid.logical_request_key, result }
}

/// What is stored, and told to every exact retry byte for byte.
fn registration(valid: &Valid, grant: &Grant, attempt_id: &str, now: UnixMs) -> Vec<u8> {
    let document = json!({
        "logical_request_key": valid.logical_request_key.to_string(),
        "replay_key": valid.replay_key.to_string(),
        "nonce": grant.nonce.to_string(),
        "issuer": grant.issuer.to_string(),
        "attempt_id": attempt_id,
        "registered_at": rfc3339::format(now),
        "envelope": valid.envelope.to_json(),
    });
    document.to_string().into_bytes()
}

fn alarm(attempt: &Attempt, outcome: Outcome) {
    if outcome == Outcome::NonceAlarm {
        let (key, nonce) = (attempt.valid.logical_request_key, attempt.grant.nonce);
        tracing::error!(%key, %nonce, "a used grant came with another request, which was \
                                       registered");
    }
}

/// The attempts of this process, one at a time for each key.
#[derive(Default)]
struct Live(Mutex<Turns>);

type Turns = HashMap<LogicalRequestKey, Arc<tokio::sync::Mutex<Patience>>>;

/// Whether an earlier attempt of another process may still be waited for. Those who wait for their
/// turn behind somebody who has waited in vain do not begin again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Patience {
    #[default]
    Left,
    Spent,
}

/// A turn; whoever is next goes on when it is dropped.
struct Turn<'a> {
    live: &'a Live,
    key: LogicalRequestKey,
    guard: Option<tokio::sync::OwnedMutexGuard<Patience>>,
}

impl Live {
    async fn turn(&self, key: LogicalRequestKey) -> Turn<'_> {
        let lock = Arc::clone(self.turns().entry(key).or_default());
        Turn { live: self, key, guard: Some(lock.lock_owned().await) }
    }

    /// The turn, if nobody has it or waits for it.
    fn turn_at_once(&self, key: LogicalRequestKey) -> Option<Turn<'_>> {
        let mut turns = self.turns();
        let hash_map::Entry::Vacant(place) = turns.entry(key) else { return None };
        let lock = Arc::clone(place.insert(Arc::default()));
        let guard = lock.try_lock_owned().ok()?;
        Some(Turn { live: self, key, guard: Some(guard) })
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    fn patience(&self) -> Patience {
        self.guard.as_ref().map_or(Patience::Left, |guard| **guard)
    }

    fn spend(&mut self) {
        if let Some(guard) = &mut self.guard {
            **guard = Patience::Spent;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.live.turns();
        drop(self.guard.take());
        // Nobody else has it, and nobody can get it while the map is held.
        if turns.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            turns.remove(&self.key);
        }
    }
}

//! What the model knows, and what must be true of it.

use semel_registrar::decide::Outcome;

/// Attempts of a run.
pub(crate) const ATTEMPTS: usize = 3;
/// Requests: the first two are for the same effect, of different runs.
pub(crate) const REQUESTS: usize = 3;
/// Effects.
pub(crate) const KEYS: usize = 2;
/// Nonces. Two authorities have drawn the first one, for one effect each; the second one is for the
/// first effect alone.
pub(crate) const NONCES: usize = 2;

/// The effect that a request is for.
pub(crate) fn key_of(request: usize) -> usize {
    [0, 0, 1][request]
}

/// Whether a grant with this nonce was issued for this effect.
pub(crate) fn is_bound(nonce: usize, key: usize) -> bool {
    nonce == 0 || key == 0
}

/// Where an attempt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Phase {
    /// It has not come yet.
    #[default]
    Idle,
    /// It has looked, and nothing spoke against it.
    Looked,
    /// It is in the ledger.
    Started,
    /// Without [`crate::next::Rule::OneTransaction`]: its nonce is consumed, its key is not yet.
    Half,
    /// An earlier attempt is open, and it will wait no longer; its own entry is not closed yet.
    GivingUp,
    /// Its rows are written and not committed.
    Inserted,
    /// The same, and nobody listens any more.
    Ghost,
    /// It is over.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Attempt {
    pub(crate) phase: Phase,
    pub(crate) request: u8,
    pub(crate) nonce: u8,
    /// Its place in the ledger, from 1; 0 is none.
    pub(crate) entry: u8,
    /// Whether that was not closed.
    pub(crate) open: bool,
    /// Whether its request was fresh when it came.
    pub(crate) fresh: bool,
    /// Somebody was told that nothing is registered, although this attempt had begun before.
    pub(crate) denied: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct State {
    pub(crate) attempts: [Attempt; ATTEMPTS],
    /// Which request holds each effect's key, from 1; 0 is none.
    pub(crate) key_row: [u8; KEYS],
    /// Which effect each nonce was used for, from 1; 0 is none.
    pub(crate) nonce_row: [u8; NONCES],
    /// Effects that were committed.
    pub(crate) effects: [u8; KEYS],
    /// Times that each nonce was consumed.
    pub(crate) uses: [u8; NONCES],
    pub(crate) failed: bool,
    pub(crate) stale: bool,
    pub(crate) held: bool,
    pub(crate) revoked: bool,
    /// Something other than the attempts themselves has happened.
    pub(crate) trouble: bool,
    /// An effect was registered by a grant that is for another one.
    pub(crate) unbound: bool,
    /// Something definite was said that is not so.
    pub(crate) lied: bool,
}

/// A promise that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// An effect was committed twice.
    TwoEffects,
    /// A nonce was consumed twice.
    NonceTwice,
    /// An effect was registered by a grant for another one.
    Unbound,
    /// A consumed nonce without its effect, or the other way round.
    Torn,
    /// A consumed key is admissible again.
    Forgotten,
    /// Something definite was said that is not so.
    Lie,
    /// Nothing went wrong, everybody has ended, and nobody has registered anything.
    NobodyWins,
}

impl State {
    /// The first promise that is broken here.
    pub(crate) fn broken(&self) -> Option<Broken> {
        let keys = 0..KEYS;
        let torn = |key: usize| {
            let uses = self.nonce_row.iter().filter(|row| usize::from(**row) == key + 1).count();
            uses != usize::from(self.key_row[key] != 0)
        };
        let inside = |phase| matches!(phase, Phase::Half | Phase::Inserted | Phase::Ghost);
        let at_rest = !self.attempts.iter().any(|attempt| inside(attempt.phase));
        let over = self.attempts.iter().all(|attempt| attempt.phase == Phase::Ended);
        let wanted = self.attempts.iter().any(|attempt| attempt.entry != 0);
        let none = self.effects == [0; KEYS];
        let checks = [
            (self.effects.iter().any(|count| *count > 1), Broken::TwoEffects),
            (self.uses.iter().any(|count| *count > 1), Broken::NonceTwice),
            (self.unbound, Broken::Unbound),
            (
                keys.clone().any(|key| self.effects[key] > 0 && self.key_row[key] == 0),
                Broken::Forgotten,
            ),
            (at_rest && keys.clone().any(torn), Broken::Torn),
            (self.lied, Broken::Lie),
            (over && wanted && none && !self.trouble, Broken::NobodyWins),
        ];
        checks.iter().find(|(broken, _)| *broken).map(|(_, which)| *which)
    }

    /// Somebody hears this outcome; `entry` is the place of who hears it, or past everybody's.
    pub(crate) fn tell(&mut self, who: usize, outcome: Outcome, entry: u8) {
        let Attempt { request, nonce, .. } = self.attempts[who];
        let key = key_of(usize::from(request));
        let nothing_there = match outcome {
            Outcome::NonceRevoked | Outcome::Hold | Outcome::Stale | Outcome::Undone => true,
            Outcome::Registered
            | Outcome::Replayed
            | Outcome::Collision
            | Outcome::Duplicate
            | Outcome::NoBypass
            | Outcome::NonceConsumed
            | Outcome::NonceAlarm
            | Outcome::NonceUnbound
            | Outcome::VerificationFailed
            | Outcome::Uncertain
            | Outcome::NotCompensable => false,
        };
        if !nothing_there {
            return;
        }
        let by_itself = usize::from(self.nonce_row[usize::from(nonce)]) == key + 1;
        self.lied |= self.key_row[key] == request + 1 && by_itself;
        self.deny(key, entry);
    }

    /// Nothing is registered under the key, it was said: what began before must not commit.
    pub(crate) fn deny(&mut self, key: usize, before: u8) {
        for attempt in &mut self.attempts {
            let begun = match attempt.phase {
                Phase::Started | Phase::Half => attempt.entry != 0 && attempt.entry < before,
                Phase::Inserted | Phase::Ghost => true,
                Phase::Idle | Phase::Looked | Phase::GivingUp | Phase::Ended => false,
            };
            attempt.denied |= begun && key_of(usize::from(attempt.request)) == key;
        }
    }
}

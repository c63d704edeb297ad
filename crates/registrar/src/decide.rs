//! What becomes of an attempt, decided on facts just read inside its transaction (registrar.md,
//! "States"). `docs/design/registrar.md` shows the same table; a test compares them.

use semel_core::code::Code;
use semel_core::status;

status! {
    /// What holds the logical key.
    pub enum Key {
        /// Nothing: the effect has not happened.
        Free = "free",
        /// This very request.
        Same = "same",
        /// Another request for the same effect.
        Other = "other",
    }
}

status! {
    /// What became of the nonce.
    pub enum NonceState {
        /// It was not used.
        Fresh = "fresh",
        /// It was used for this logical key.
        SameRow = "same_row",
        /// It was used for another logical key.
        OtherRow = "other_row",
        /// It was revoked before it was used.
        Revoked = "revoked",
    }
}

status! {
    /// Whether the grant is for this request.
    pub enum Binding {
        /// It is.
        Bound = "bound",
        /// It is for another one, or for another domain, or nobody trusted has signed it.
        Unbound = "unbound",
    }
}

status! {
    /// What is known of the committed effect.
    pub enum Verified {
        /// Nothing, or that it is as it should be.
        NotFailed = "not_failed",
        /// It is not as it should be.
        Failed = "failed",
    }
}

status! {
    /// What held the logical key when the attempt arrived.
    pub enum Arrival {
        /// Nothing: whoever holds it now has won a race.
        Free = "free",
        /// Something.
        Taken = "taken",
    }
}

status! {
    /// Whether an attempt that was begun before this one may still commit.
    pub enum Earlier {
        /// None.
        None = "none",
        /// At least one, or this attempt itself was closed by `resolve` meanwhile.
        Open = "open",
    }
}

status! {
    /// The domain's gate.
    pub enum Gate {
        /// Registrations pass.
        Open = "open",
        /// None does.
        Held = "hold",
    }
}

status! {
    /// Whether a new request may be admitted now.
    pub enum Time {
        /// It may.
        Fresh = "fresh",
        /// The request is too old, or of the future.
        Stale = "stale",
        /// The grant's window is over or has not begun.
        OutsideWindow = "outside_window",
    }
}

/// Everything that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The effect axis.
    pub key: Key,
    /// The authorisation axis.
    pub nonce: NonceState,
    /// Of the grant.
    pub binding: Binding,
    /// Of the effect that is there.
    pub verified: Verified,
    /// Before the attempt.
    pub arrival: Arrival,
    /// Beside the attempt.
    pub earlier: Earlier,
    /// Of the domain.
    pub gate: Gate,
    /// Of request and grant.
    pub time: Time,
}

status! {
    /// What becomes of an attempt; the words are those of the answers and of the ledger.
    pub enum Outcome {
        /// Both keys are consumed and the registration is written.
        Registered = "REGISTERED",
        /// An exact retry: the stored result.
        Replayed = "REPLAYED",
        /// Somebody else was faster: the stored result.
        Collision = "ATTEMPT_COLLISION",
        /// The effect is there under another nonce: the stored result, nothing consumed.
        Duplicate = "REPLAY_DUPLICATE",
        /// The effect is there by another request.
        NoBypass = "REPLAY_ATTEMPT_NO_BYPASS",
        /// The nonce was used for another request.
        NonceConsumed = "REPLAY_NONCE_CONSUMED",
        /// The same, in a way that only a copied grant or a damaged store explains.
        NonceAlarm = "REPLAY_NONCE_CONSUMED_ALARM",
        /// The nonce was revoked.
        NonceRevoked = "NONCE_REVOKED",
        /// The grant is not for this request, or not for this time.
        NonceUnbound = "NONCE_UNBOUND",
        /// The effect was rejected after its commit: compensation only.
        VerificationFailed = "VERIFICATION_FAILED",
        /// An attempt's end is not known yet.
        Uncertain = "UNCERTAIN_COMMIT",
        /// The domain is held.
        Hold = "REGISTRATION_HOLD",
        /// A new request outside its time.
        Stale = "REQUEST_STALE",
        /// What is to be compensated has not failed.
        NotCompensable = "COMPENSATION_NOT_ALLOWED",
        /// The store could not do it, and has undone it. Never decided: a word of the ledger.
        Undone = "UNDONE",
    }
}

/// The matrix: line for line the table of `docs/design/registrar.md`, whose middle and end are the
/// two functions below.
#[rustfmt::skip]
pub fn decide(facts: Facts) -> Outcome {
    use Binding::{Bound, Unbound};
    use Key::{Free, Other, Same};
    use NonceState::{Fresh, OtherRow, Revoked, SameRow};
    let Facts { key, nonce, binding, .. } = facts;
    match (key, nonce, binding) {
        // Used for another request: whatever else is true, this nonce buys nothing.
        (Free,  OtherRow, _      ) => Outcome::NonceConsumed,
        (Same,  OtherRow, _      ) => Outcome::NonceAlarm,
        (Other, OtherRow, _      ) => Outcome::NonceAlarm,
        (_,     Fresh,    Unbound) => Outcome::NonceUnbound,
        (_,     SameRow,  Unbound) => Outcome::NonceUnbound,
        (_,     Revoked,  Unbound) => Outcome::NonceUnbound,
        // The effect is there: consumed state is looked at before anything that time changes.
        (Same,  SameRow,  Bound  ) => repeated(facts.verified, facts.arrival),
        (Same,  Fresh,    Bound  ) => doubled(facts.verified),
        (Same,  Revoked,  Bound  ) => doubled(facts.verified),
        (Other, SameRow,  Bound  ) => Outcome::NoBypass,
        (Other, Fresh,    Bound  ) => Outcome::NoBypass,
        (Other, Revoked,  Bound  ) => Outcome::NoBypass,
        // Both rows are written together, so that one without the other is damage.
        (Free,  SameRow,  Bound  ) => Outcome::NonceAlarm,
        // Nothing is there.
        (Free,  Fresh,    Bound  ) => admitted(facts.earlier, facts.gate, facts.time),
        (Free,  Revoked,  Bound  ) => revoked(facts.earlier),
    }
}

/// The same request by the same nonce.
#[rustfmt::skip]
fn repeated(verified: Verified, arrival: Arrival) -> Outcome {
    match (verified, arrival) {
        (Verified::Failed,    _             ) => Outcome::VerificationFailed,
        (Verified::NotFailed, Arrival::Taken) => Outcome::Replayed,
        (Verified::NotFailed, Arrival::Free ) => Outcome::Collision,
    }
}

/// The same request by another nonce, which buys nothing.
fn doubled(verified: Verified) -> Outcome {
    match verified {
        Verified::Failed => Outcome::VerificationFailed,
        Verified::NotFailed => Outcome::Duplicate,
    }
}

/// A new request: nothing definite may be said while something may still come.
#[rustfmt::skip]
fn admitted(earlier: Earlier, gate: Gate, time: Time) -> Outcome {
    match (earlier, gate, time) {
        (Earlier::Open, _,          _                  ) => Outcome::Uncertain,
        (Earlier::None, Gate::Held, _                  ) => Outcome::Hold,
        (Earlier::None, Gate::Open, Time::Stale        ) => Outcome::Stale,
        (Earlier::None, Gate::Open, Time::OutsideWindow) => Outcome::NonceUnbound,
        (Earlier::None, Gate::Open, Time::Fresh        ) => Outcome::Registered,
    }
}

/// A new request by a nonce that was revoked.
fn revoked(earlier: Earlier) -> Outcome {
    match earlier {
        Earlier::Open => Outcome::Uncertain,
        Earlier::None => Outcome::NonceRevoked,
    }
}

impl Outcome {
    /// The code of a refusal; nothing for what is a success.
    pub const fn code(self) -> Option<Code> {
        match self {
            Self::Registered | Self::Replayed => None,
            Self::Collision => Some(Code::AttemptCollision),
            Self::Duplicate => Some(Code::ReplayDuplicate),
            Self::NoBypass => Some(Code::ReplayAttemptNoBypass),
            Self::NonceConsumed | Self::NonceAlarm => Some(Code::ReplayNonceConsumed),
            Self::NonceRevoked => Some(Code::NonceRevoked),
            Self::NonceUnbound => Some(Code::NonceUnbound),
            Self::VerificationFailed => Some(Code::VerificationFailed),
            Self::Uncertain => Some(Code::UncertainCommit),
            Self::Hold => Some(Code::RegistrationHold),
            Self::Stale => Some(Code::RequestStale),
            Self::NotCompensable => Some(Code::CompensationNotAllowed),
            Self::Undone => Some(Code::StoreUnavailable),
        }
    }

    /// The word of the answer: an alarm is for the operator, not for who may hold a stolen grant.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Registered | Self::Replayed => Self::Registered.as_str(),
            Self::NonceAlarm => Self::NonceConsumed.as_str(),
            Self::Collision
            | Self::Duplicate
            | Self::NoBypass
            | Self::NonceConsumed
            | Self::NonceRevoked
            | Self::NonceUnbound
            | Self::VerificationFailed
            | Self::Uncertain
            | Self::Hold
            | Self::Stale
            | Self::NotCompensable
            | Self::Undone => self.as_str(),
        }
    }

    /// Whether the stored result belongs to the answer: only where the grant is for this effect.
    pub const fn shows_result(self) -> bool {
        match self {
            Self::Registered
            | Self::Replayed
            | Self::Collision
            | Self::Duplicate
            | Self::VerificationFailed => true,
            Self::NoBypass
            | Self::NonceConsumed
            | Self::NonceAlarm
            | Self::NonceRevoked
            | Self::NonceUnbound
            | Self::Uncertain
            | Self::Hold
            | Self::Stale
            | Self::NotCompensable
            | Self::Undone => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_testkit::tables;

    const DOCUMENT: &str = include_str!("../../../docs/design/registrar.md");

    /// Every combination of facts.
    fn every() -> Vec<Facts> {
        let mut all = Vec::new();
        for key in Key::ALL {
            for nonce in NonceState::ALL {
                for binding in Binding::ALL {
                    for verified in Verified::ALL {
                        for arrival in Arrival::ALL {
                            all.extend(of_now(*key, *nonce, *binding, *verified, *arrival));
                        }
                    }
                }
            }
        }
        all
    }

    fn of_now(
        key: Key,
        nonce: NonceState,
        binding: Binding,
        verified: Verified,
        arrival: Arrival,
    ) -> Vec<Facts> {
        let mut all = Vec::new();
        for &earlier in Earlier::ALL {
            for &gate in Gate::ALL {
                for &time in Time::ALL {
                    all.push(Facts { key, nonce, binding, verified, arrival, earlier, gate, time });
                }
            }
        }
        all
    }

    #[test]
    fn the_decision_equals_the_document() {
        let row = |facts: Facts| {
            [
                facts.key.as_str(),
                facts.nonce.as_str(),
                facts.binding.as_str(),
                facts.verified.as_str(),
                facts.arrival.as_str(),
                facts.earlier.as_str(),
                facts.gate.as_str(),
                facts.time.as_str(),
                decide(facts).as_str(),
            ]
            .map(str::to_owned)
        };
        let rows: Vec<_> = every().into_iter().map(row).collect();
        assert_eq!(rows.len(), 3 * 4 * 2 * 2 * 2 * 2 * 2 * 3);
        tables::covers_document(DOCUMENT, "registrar_decide", &rows);
    }

    #[test]
    fn time_never_frees_what_is_consumed() {
        for facts in every().into_iter().filter(|facts| facts.key != Key::Free) {
            for &time in Time::ALL {
                assert_eq!(decide(Facts { time, ..facts }), decide(facts));
            }
            assert_ne!(decide(facts), Outcome::Registered);
        }
    }

    #[test]
    fn nothing_is_registered_but_by_a_fresh_nonce_on_a_free_key() {
        let registered = every().into_iter().filter(|f| decide(*f) == Outcome::Registered);
        for facts in registered {
            assert_eq!((facts.key, facts.nonce), (Key::Free, NonceState::Fresh));
            assert_eq!((facts.binding, facts.gate), (Binding::Bound, Gate::Open));
        }
    }
}

//! What the broker decides about a send, inside the transaction, on facts just read there
//! (mesh.md §7). `docs/design/broker.md` shows the same table; a test compares them.

use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::envelope::Envelope;
use semel_core::fingerprint::Fingerprint;
use semel_core::id::{BrokerMessageId, ClientMessageId, InstanceId, MemberId, MeshId};
use semel_core::outbox::Compared;
use semel_core::plausible::Between;
use semel_core::status;

use crate::limits::{DAY, DEDUPE_GRACE, DOUBT_PAUSE};

/// A connection's claim to speak for a daemon: valid while the store says this epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Session {
    /// The member.
    pub member_id: MemberId,
    /// Which of its daemons.
    pub instance_id: InstanceId,
    /// Raised by every `hello` of that daemon.
    pub epoch: i64,
}

/// A send.
#[derive(Debug, Clone)]
pub struct AcceptItem {
    /// The connection it **arrived** on, whatever has happened to that since.
    pub session: Session,
    /// The id under which it happens once.
    pub client_message_id: ClientMessageId,
    /// Recomputed here from what arrived.
    pub fingerprint: Fingerprint,
    /// What is sent.
    pub envelope: Envelope,
    /// Of a sealed body.
    pub body_commitment: Option<[u8; 32]>,
    /// Public keys named by the message.
    pub mentions: Vec<String>,
    /// Its name if it is accepted.
    pub broker_message_id: BrokerMessageId,
}

/// Sends of one mesh that share a transaction.
#[derive(Debug, Clone)]
pub struct AcceptBatch {
    /// The mesh.
    pub mesh_id: MeshId,
    /// The time of accept.
    pub now: UnixMs,
    /// When the dedupe rows may be swept; `None` is never.
    pub expires_at: Option<UnixMs>,
    /// In the order in which they arrived.
    pub items: Vec<AcceptItem>,
}

/// The row that already holds an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// What the message is called.
    pub broker_message_id: BrokerMessageId,
    /// Its history number; `None` once retention has taken it.
    pub history_id: Option<i64>,
    /// What was accepted under the id.
    pub fingerprint: Fingerprint,
    /// When.
    pub first_seen_at: UnixMs,
    /// Whether the message itself is still there.
    pub history_available: bool,
}

impl Held {
    /// A row that promises a message which does not exist: an id without any of the other effects.
    /// Nobody may be told that it is known. Its retry takes it over.
    pub const fn is_orphan(&self) -> bool {
        self.history_available && self.history_id.is_none() && !semel_store::planted!("begin")
    }
}

status! {
    /// Whether the connection that a send arrived on still speaks for its daemon.
    pub enum Epoch {
        /// It does.
        Current = "current",
        /// A newer `hello` has replaced it.
        Stale = "stale",
    }
}

status! {
    /// Who holds the id after the claim.
    pub enum Claim {
        /// This send.
        Won = "won",
        /// An earlier send of the same request.
        HeldMatch = "held_match",
        /// An earlier send of another request.
        HeldDiffers = "held_differs",
    }
}

impl Claim {
    /// What the row that holds the id means for a send with this fingerprint.
    pub fn held(held: &Held, fingerprint: &Fingerprint) -> Self {
        match Compared::of(&held.fingerprint, fingerprint) {
            Compared::Match => Self::HeldMatch,
            Compared::Differs => Self::HeldDiffers,
        }
    }
}

status! {
    /// Whether the sender may send.
    pub enum Standing {
        /// It is a member.
        Active = "active",
        /// It was revoked or has left.
        Inactive = "inactive",
    }
}

status! {
    /// What is known of the destination.
    pub enum Target {
        /// It is there and the sender may send to it.
        Ready = "ready",
        /// No such topic.
        NoTopic = "no_topic",
        /// The topic is there, the sender is no subscriber.
        NotSubscribed = "not_subscribed",
        /// No active member has that key.
        NoRecipient = "no_recipient",
        /// No such queue.
        NoQueue = "no_queue",
    }
}

/// What becomes of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Write all five effects.
    Accept,
    /// Answer with the ids of the first time.
    Duplicate,
    /// `409`: the id belongs to another request.
    Reused,
    /// Take the claim back and refuse.
    Refuse(Code),
    /// Close the connection; no answer can be given (mesh.md §10).
    Close,
}

/// The table of phases B2 and B3.
#[rustfmt::skip]
pub fn decide(epoch: Epoch, claim: Claim, sender: Standing, target: Target) -> Decision {
    use Claim::{HeldDiffers, HeldMatch, Won};
    use Decision::{Accept, Close, Duplicate, Refuse, Reused};
    use Epoch::{Current, Stale};
    use Standing::{Active, Inactive};
    use Target::{NoQueue, NoRecipient, NoTopic, NotSubscribed, Ready};
    match (epoch, claim, sender, target) {
        (Stale,   _,           _,        _            ) => Close,
        (Current, HeldMatch,   _,        _            ) => Duplicate,
        (Current, HeldDiffers, _,        _            ) => Reused,
        (Current, Won,         Inactive, _            ) => Refuse(Code::MemberInactive),
        (Current, Won,         Active,   NoTopic      ) => Refuse(Code::TopicNotFound),
        (Current, Won,         Active,   NotSubscribed) => Refuse(Code::NotSubscribed),
        (Current, Won,         Active,   NoRecipient  ) => Refuse(Code::RecipientNotFound),
        (Current, Won,         Active,   NoQueue      ) => Refuse(Code::QueueNotFound),
        (Current, Won,         Active,   Ready        ) => Accept,
    }
}

/// What became of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// `201`.
    Accepted {
        /// Its name.
        broker_message_id: BrokerMessageId,
        /// Its history number.
        history_id: i64,
    },
    /// `200`.
    Duplicate(Held),
    /// `409`.
    Reused(Held),
    /// A `4xx` with this code.
    Refused(Code),
    /// `429`.
    RateLimited {
        /// When to come back.
        retry_after: Duration,
    },
    /// The connection is to be closed, unanswered.
    Stale,
}

/// B1 for the sends of a batch that have not been through it. It is asked inside the transaction,
/// of ids that nobody holds, in their order; and perhaps again, when the transaction is run again.
pub trait Door: Send {
    /// Whether this is still the store that the broker knows.
    fn goes_on(&self, store_epoch: &str) -> bool;

    /// Whether an item's id may have been accepted and forgotten.
    fn age(&self, index: usize) -> Age;

    /// Whether an item may go on; what it is answered if not.
    fn check(&mut self, index: usize, item: &AcceptItem) -> Result<(), Verdict>;
}

/// Whether an id may have been accepted and forgotten before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// It cannot: if it was accepted, it is known.
    Young,
    /// It may: neither accepting nor refusing it would be right.
    TooOld,
    /// The clocks do not agree on it.
    InDoubt,
}

impl Age {
    /// What is said against a send of this age whose id is not known. One in doubt waits, as for
    /// the limiter: what comes behind it waits, too, and nothing is given up.
    pub const fn objection(self) -> Option<Verdict> {
        match self {
            Self::Young => None,
            Self::TooOld => Some(Verdict::Refused(Code::KeyTooOldToJudge)),
            Self::InDoubt => Some(Verdict::RateLimited { retry_after: DOUBT_PAUSE }),
        }
    }
}

/// How long a mesh remembers ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupeMode {
    /// For this many days, as advertised.
    RetentionScoped {
        /// At least three.
        days: u32,
    },
    /// For ever.
    Permanent,
}

impl DedupeMode {
    /// Whether a send that was queued at `enqueued_at` is too old to be judged: its id may have
    /// been accepted and forgotten.
    pub fn too_old(self, enqueued_at: UnixMs, now: UnixMs) -> bool {
        match self {
            Self::Permanent => false,
            Self::RetentionScoped { days } => enqueued_at.saturating_add(DAY * days) < now,
        }
    }

    /// The age of a send that was queued at `enqueued_at`.
    pub fn age(self, enqueued_at: UnixMs, now: Between) -> Age {
        if self.too_old(enqueued_at, now.earliest) {
            Age::TooOld
        } else if self.too_old(enqueued_at, now.latest) {
            Age::InDoubt
        } else {
            Age::Young
        }
    }

    /// When a row that is written now may be swept.
    pub fn expires_at(self, now: UnixMs) -> Option<UnixMs> {
        match self {
            Self::Permanent => None,
            Self::RetentionScoped { days } => Some(now.saturating_add(DAY * days + DEDUPE_GRACE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_testkit::tables;

    const DOCUMENT: &str = include_str!("../../../docs/design/broker.md");

    #[test]
    fn the_decision_equals_the_document() {
        let name = |decision: Decision| match decision {
            Decision::Accept => "accept".to_owned(),
            Decision::Duplicate => "duplicate".to_owned(),
            Decision::Reused => "reused".to_owned(),
            Decision::Refuse(code) => format!("{} {code}", code.http()),
            Decision::Close => "close".to_owned(),
        };
        let mut rows: Vec<[String; 5]> = Vec::new();
        for epoch in Epoch::ALL {
            for claim in Claim::ALL {
                for sender in Standing::ALL {
                    for target in Target::ALL {
                        let decision = name(decide(*epoch, *claim, *sender, *target));
                        let cells = [epoch.as_str(), claim.as_str(), sender.as_str()];
                        let [epoch, claim, sender] = cells.map(str::to_owned);
                        rows.push([epoch, claim, sender, target.as_str().to_owned(), decision]);
                    }
                }
            }
        }
        tables::covers_document(DOCUMENT, "broker_accept", &rows);
    }

    #[test]
    fn rows_outlive_the_window_by_a_day() {
        let mode = DedupeMode::RetentionScoped { days: 3 };
        let day = 24 * 60 * 60 * 1000;
        assert!(!mode.too_old(UnixMs(0), UnixMs(3 * day)));
        assert!(mode.too_old(UnixMs(0), UnixMs(3 * day + 1)));
        assert_eq!(mode.expires_at(UnixMs(0)), Some(UnixMs(4 * day)));
        assert!(!DedupeMode::Permanent.too_old(UnixMs(0), UnixMs(i64::MAX)));
        assert_eq!(DedupeMode::Permanent.expires_at(UnixMs(0)), None);
    }
}

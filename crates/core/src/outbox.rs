//! The outbox row: its life (mesh.md §6) and what a repeated send means for it (mesh.md §5).
//! Both are the design's tables, row for row; `docs/design/outbox.md` is compared with them.

use crate::status;

status! {
    /// Where an outbox row is in its life.
    pub enum OutboxStatus {
        /// Waiting for `next_attempt_at`.
        Pending = "pending",
        /// On the wire; the answer is not known yet.
        Inflight = "inflight",
        /// The broker has it.
        Done = "done",
        /// Given up; `outcome` says what is known.
        Dead = "dead",
        /// Retired by an operator; its id is never reused.
        Aborted = "aborted",
    }
}

status! {
    /// What happens to an outbox row.
    pub enum OutboxEvent {
        /// The sender takes it for the live connection.
        Claim = "claim",
        /// It grew older than the max age.
        Expire = "expire",
        /// An operator retires it in favour of a new row.
        Requeue = "requeue",
        /// The broker answered `201` or `200`.
        Accepted = "accepted",
        /// `5xx`, `408`, `429`, a timeout.
        Transient = "transient",
        /// `409` or another permanent `4xx`.
        Permanent = "permanent",
        /// The daemon restarted or lost the connection.
        Restart = "restart",
        /// A `resolve` found that the broker had accepted it.
        Committed = "committed",
        /// A broker that was restored from a backup did not take it again.
        Disowned = "disowned",
    }
}

status! {
    /// What is known of a dead row's effect (mesh.md §10).
    pub enum Outcome {
        /// The broker refused it: it was not and will not be delivered.
        Refused = "refused",
        /// It never left this host.
        NeverSent = "never_sent",
        /// An attempt went out unanswered: it may have been delivered.
        Unknown = "unknown",
    }
}

status! {
    /// Who retired a row.
    pub enum AbortedBy {
        /// A person, by `outbox requeue`: no row is retired in another way.
        Operator = "operator",
    }
}

use OutboxEvent as E;
use OutboxStatus as S;

/// The row's life. What is not here is illegal. `Dead` + `Committed` has a guard besides: only
/// while its outcome is unknown.
#[rustfmt::skip]
pub const OUTBOX: &[(S, E, S)] = &[
    (S::Pending,  E::Claim,     S::Inflight),
    (S::Pending,  E::Expire,    S::Dead    ),
    (S::Pending,  E::Requeue,   S::Aborted ),
    (S::Inflight, E::Accepted,  S::Done    ),
    (S::Inflight, E::Transient, S::Pending ),
    (S::Inflight, E::Permanent, S::Dead    ),
    (S::Inflight, E::Restart,   S::Pending ),
    (S::Done,     E::Disowned,  S::Dead    ),
    (S::Dead,     E::Requeue,   S::Aborted ),
    (S::Dead,     E::Committed, S::Done    ),
];

/// Where `event` takes a row that is in `from`, if anywhere.
pub fn outbox_next(from: OutboxStatus, event: OutboxEvent) -> Option<OutboxStatus> {
    OUTBOX.iter().find(|(f, e, _)| (*f, *e) == (from, event)).map(|(_, _, to)| *to)
}

/// How a send's fingerprint compares with the row's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compared {
    /// The same request.
    Match,
    /// Another request under the same id.
    Differs,
}

impl Compared {
    /// Both results.
    pub const ALL: &'static [Self] = &[Self::Match, Self::Differs];

    /// Compares two things that identify a request.
    pub fn of<T: PartialEq>(ours: &T, theirs: &T) -> Self {
        if ours == theirs { Self::Match } else { Self::Differs }
    }
}

status! {
    /// The `conflict` of a `409 idempotency_key_reused`.
    pub enum Conflict {
        /// Waiting, and another request.
        PendingMismatch = "outbox_pending_fingerprint_mismatch",
        /// On the wire, and another request.
        InflightMismatch = "outbox_inflight_fingerprint_mismatch",
        /// Delivered, and another request.
        DoneMismatch = "outbox_done_fingerprint_mismatch",
        /// This very request was given up.
        DeadMatch = "outbox_dead_fingerprint_match",
        /// Given up, and another request.
        DeadMismatch = "outbox_dead_fingerprint_mismatch",
        /// This very request was retired.
        AbortedMatch = "outbox_aborted_fingerprint_match",
        /// Retired, and another request.
        AbortedMismatch = "outbox_aborted_fingerprint_mismatch",
    }
}

/// What the daemon answers to a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accept {
    /// New: insert a pending row, then answer as for [`Accept::Queued`].
    Insert,
    /// It waits to be sent.
    Queued,
    /// It is on the wire.
    Inflight,
    /// The broker has it already; it is not called again.
    Duplicate,
    /// The id belongs to another request, or to one that has ended without success.
    Reused(Conflict),
}

/// What a send means for the row already under its id (mesh.md §5).
#[rustfmt::skip]
pub fn outbox_accept(row: Option<OutboxStatus>, compared: Compared) -> Accept {
    use Compared::{Differs, Match};
    match (row, compared) {
        (None,              _      ) => Accept::Insert,
        (Some(S::Pending),  Match  ) => Accept::Queued,
        (Some(S::Pending),  Differs) => Accept::Reused(Conflict::PendingMismatch),
        (Some(S::Inflight), Match  ) => Accept::Inflight,
        (Some(S::Inflight), Differs) => Accept::Reused(Conflict::InflightMismatch),
        (Some(S::Done),     Match  ) => Accept::Duplicate,
        (Some(S::Done),     Differs) => Accept::Reused(Conflict::DoneMismatch),
        (Some(S::Dead),     Match  ) => Accept::Reused(Conflict::DeadMatch),
        (Some(S::Dead),     Differs) => Accept::Reused(Conflict::DeadMismatch),
        (Some(S::Aborted),  Match  ) => Accept::Reused(Conflict::AbortedMatch),
        (Some(S::Aborted),  Differs) => Accept::Reused(Conflict::AbortedMismatch),
    }
}

impl Accept {
    /// The HTTP status of the answer.
    pub const fn http(self) -> u16 {
        match self {
            Self::Insert | Self::Queued | Self::Inflight => 202,
            Self::Duplicate => 200,
            Self::Reused(_) => 409,
        }
    }

    /// The word in the answer: its `status`, or its `conflict`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Insert | Self::Queued => "queued",
            Self::Inflight => "inflight",
            Self::Duplicate => "done",
            Self::Reused(conflict) => conflict.as_str(),
        }
    }
}

#[cfg(test)]
mod tests;

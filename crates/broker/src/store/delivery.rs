//! Deliveries: what waits for recipients, and what has arrived. Both are asked for many at a time,
//! because a message to a topic is one to each of its subscribers.

use std::collections::BTreeSet;

use semel_core::id::MeshId;
use semel_store::StoreError;
use uuid::Uuid;

use super::{Delivery, RawDelivery, Store, Unreadable};
use crate::limits::READ_MESSAGES_MAX;

/// Messages that were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Messages {
    /// Those that are what was accepted, in the order of `seq`.
    pub whole: Vec<Delivery>,
    /// The numbers of those that are not any more: nobody may be told them.
    pub damaged: Vec<i64>,
}

impl Messages {
    /// Recomputes the fingerprint of each: not to be done by whoever writes.
    pub(super) fn of(rows: impl IntoIterator<Item = Result<RawDelivery, Unreadable>>) -> Self {
        let mut messages = Self::default();
        for row in rows {
            let seq = row.as_ref().map_or_else(|unreadable| unreadable.seq, |row| row.seq);
            let checked = row
                .map_err(|unreadable| unreadable.why)
                .and_then(|row| row.checked().map_err(|error| error.to_string()));
            match checked {
                Ok(delivery) => messages.whole.push(delivery),
                Err(why) => {
                    tracing::error!(seq, why, "a message differs from what was accepted");
                    messages.damaged.push(seq);
                }
            }
        }
        messages
    }

    /// How many were read.
    pub fn count(&self) -> usize {
        self.whole.len() + self.damaged.len()
    }
}

/// A recipient of whom it is asked what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Who.
    pub recipient: Uuid,
    /// What it has been sent already.
    pub after_seq: i64,
    /// As much as it takes.
    pub limit: i64,
}

/// What waits for several recipients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Each message once, whoever gets it.
    pub messages: Messages,
    /// For each who was asked about, in order: the numbers of what waits, in order.
    pub seqs: Vec<Vec<i64>>,
    /// Those for whom more waits than could be read for all of them.
    pub cut: Vec<bool>,
}

impl Waiting {
    /// Cuts what was found to what each takes and to so many messages in all, which is never less
    /// than the first one takes. Says which messages are to be read.
    pub(super) fn pick(asked: &[Asked], found: Vec<Vec<i64>>) -> (Self, BTreeSet<i64>) {
        let (mut waiting, mut messages) = (Self::default(), BTreeSet::new());
        for (number, (asked, found)) in asked.iter().zip(found).enumerate() {
            let limit = usize::try_from(asked.limit).unwrap_or(0);
            let (mut seqs, mut is_cut) = (Vec::with_capacity(found.len().min(limit)), false);
            for seq in found.into_iter().take(limit) {
                let has_room = number == 0 || messages.len() < READ_MESSAGES_MAX;
                is_cut = !has_room && !messages.contains(&seq);
                if is_cut {
                    break;
                }
                messages.insert(seq);
                seqs.push(seq);
            }
            waiting.seqs.push(seqs);
            waiting.cut.push(is_cut);
        }
        (waiting, messages)
    }
}

/// A recipient who has everything up to a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Who.
    pub recipient: Uuid,
    /// What had arrived, and was ended, before. PostgreSQL would go through all that is left of it
    /// until it is vacuumed.
    pub after: i64,
    /// The last that arrived.
    pub seq: i64,
}

/// What became of an acknowledgement of one of a member's daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acked {
    /// Up to here nothing is left: all that are connected have it.
    pub up_to: i64,
    /// How many deliveries ended.
    pub ended: u64,
}

/// Calls the same method of whichever store it is.
impl Store {
    /// What waits for recipients, in order and of one moment: a message that many get is read once.
    pub async fn deliveries_of(
        &self,
        mesh_id: MeshId,
        asked: &[Asked],
    ) -> Result<Waiting, StoreError> {
        match self {
            Self::Sqlite(store) => store.deliveries_of(mesh_id, asked).await,
            Self::Postgres(store) => {
                let _turn = store.delivering().await;
                store.deliveries_of(mesh_id, asked).await
            }
        }
    }

    /// Recipients have everything up to a number. Says how many deliveries that ended. It has no
    /// haste: on SQLite it goes along with the next commit. Its loss is harmless, because what is
    /// delivered again is known to its receiver.
    pub async fn deliveries_done_along(
        &self,
        mesh_id: MeshId,
        arrived: &[Arrived],
    ) -> Result<u64, StoreError> {
        match self {
            Self::Sqlite(store) => store.deliveries_done_along(mesh_id, arrived).await,
            Self::Postgres(store) => {
                let _turn = store.delivering().await;
                store.deliveries_done_along(mesh_id, arrived).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(limit: i64) -> Asked {
        Asked { recipient: Uuid::nil(), after_seq: 0, limit }
    }

    #[test]
    fn a_message_that_many_get_is_read_once() {
        let all: Vec<i64> = (1..=300).collect();
        let (waiting, messages) = Waiting::pick(&[asked(256); 100], vec![all; 100]);
        assert_eq!(messages, (1..=256).collect());
        assert!(waiting.seqs.iter().all(|seqs| seqs.len() == 256));
        assert!(!waiting.cut.contains(&true));
    }

    #[test]
    fn what_is_too_much_to_be_read_at_once_is_cut_and_said_so() {
        let own = |n: i64| (n * 1000..n * 1000 + 256).collect::<Vec<i64>>();
        let (waiting, messages) = Waiting::pick(&[asked(256); 4], (0..4).map(own).collect());
        assert_eq!(messages.len(), READ_MESSAGES_MAX);
        assert_eq!(waiting.cut, [false, false, true, true]);
        assert!(waiting.seqs[2..].iter().all(Vec::is_empty));
        // Who shares what is read anyway is not.
        let found = vec![own(0), own(1), own(2), own(1)];
        let (waiting, _) = Waiting::pick(&[asked(256); 4], found);
        assert_eq!(waiting.cut, [false, false, true, false]);
        // Nobody waits for ever.
        let (waiting, messages) = Waiting::pick(&[asked(9999)], vec![(0..9999).collect()]);
        assert_eq!((waiting.cut, messages.len()), (vec![false], 9999));
    }
}

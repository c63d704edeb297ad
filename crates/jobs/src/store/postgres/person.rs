//! A person's word: read, decided and written in one transaction, together with the use of its
//! grant.

use semel_registrar::decide::Outcome;
use semel_registrar::store::Attempt as GrantUse;
use semel_registrar::store::postgres::consume_in_tx;
use semel_store::StoreError;

use super::PostgresStore;
use super::advance::{let_go, write_and_commit};
use super::job::hold;
use super::lock::{self, Lock, Locks};
use super::row::Id;
use super::settle::Settled;
use crate::limits::SETTLE_ROUNDS_MAX;
use crate::store::{Advance, Answering, Wrote, corrupt};

impl PostgresStore {
    pub(in crate::store) async fn person(
        &self,
        id: Id,
        grant: Option<Box<GrantUse>>,
        decide: Answering,
    ) -> Result<Wrote, StoreError> {
        // A task of its own: a caller that goes away must not cut a transaction (traps.md 49).
        let store = self.clone();
        let running =
            tokio::spawn(async move { store.person_now(id, grant.as_deref(), &decide).await });
        let gone = |_| StoreError::Uncertain { cause: "the answer has ended".into() };
        running.await.map_err(gone)?
    }

    async fn person_now(
        &self,
        id: Id,
        grant: Option<&GrantUse>,
        decide: &Answering,
    ) -> Result<Wrote, StoreError> {
        let Some(conversation) = self.conversation_of(id).await? else {
            return Ok(Wrote::NotFound);
        };
        let numbers = conversation.iter().map(|name| Lock::Conversation(name).number());
        let locks = Locks::of(numbers.collect());
        for _ in 0..SETTLE_ROUNDS_MAX {
            let run = || self.person_once(id, &locks, grant, decide);
            match self.postgres().retry(run).await? {
                Done::Said(wrote) => return Ok(wrote),
                Done::Written(advance) => {
                    self.shared.bell.ring();
                    return Ok(Wrote::Written(advance));
                }
                Done::Unknown(advance) => {
                    if self.settle(&[&advance]).await? != [Settled::Missing] {
                        self.shared.bell.ring();
                        return Ok(Wrote::Written(advance));
                    }
                }
            }
        }
        Err(StoreError::Contended { runs: SETTLE_ROUNDS_MAX })
    }

    async fn person_once(
        &self,
        id: Id,
        locks: &Locks,
        grant: Option<&GrantUse>,
        decide: &Answering,
    ) -> Result<Done, StoreError> {
        let by = locks.parameters();
        let (tx, _) = self.postgres().begin_with(&[(lock::lock(), &by)]).await?;
        let Some(kept) = hold(&tx, id).await? else { return Ok(Done::Said(Wrote::NotFound)) };
        let advance = match decide(&kept) {
            Ok(advance) => Box::new(advance),
            Err(refusal) => {
                let_go(tx).await;
                return Ok(Done::Said(Wrote::Refused(refusal)));
            }
        };
        if let Some(grant) = grant {
            let used = consume_in_tx(&tx, grant).await?;
            if used.outcome != Outcome::Registered {
                let_go(tx).await;
                return Ok(Done::Said(Wrote::GrantRefused(used.outcome)));
            }
        }
        let state = &kept.job.state;
        if (advance.no, advance.from, advance.fence) != (kept.job.no, state.status, state.fence) {
            return Err(corrupt("job", id, "it changed within a transaction"));
        }
        match write_and_commit(tx, &[&advance]).await {
            Ok(()) => Ok(Done::Written(advance)),
            Err(StoreError::Uncertain { .. }) => Ok(Done::Unknown(advance)),
            Err(error) => Err(error),
        }
    }
}

/// What became of a word.
enum Done {
    Said(Wrote),
    Written(Box<Advance>),
    /// The COMMIT got no answer.
    Unknown(Box<Advance>),
}

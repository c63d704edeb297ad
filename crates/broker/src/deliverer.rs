//! What many connections of a mesh ask of the store about their deliveries, asked together: a
//! commit to a topic wakes all of its subscribers at once. What comes while the store is asked is
//! asked next; a message that many get is read, checked and written as text once.

use std::collections::HashMap;
use std::sync::Arc;

use semel_core::fingerprint::BodyHash;
use semel_core::hex::Hex;
use semel_core::id::MeshId;
use semel_store::StoreError;
use semel_store::postgres::{Lane, Work};
use semel_wire::frame::{self, Written};

use crate::limits::{
    ENDS_AT_ONCE, ENDS_ROWS, ENDS_TOGETHER_MAX, READS_AT_ONCE, READS_TOGETHER_MAX,
};
use crate::store::{Arrived, Asked, Delivery, Store, Waiting};

/// Of one mesh.
pub(crate) struct Deliverer {
    mesh_id: MeshId,
    reads: Lane<Reading, Read>,
    ends: Lane<Ending, u64>,
}

/// What waits for a recipient.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Read {
    /// What can be said, in order.
    pub(crate) written: Vec<Arc<Written>>,
    /// What cannot: its sender has no key.
    pub(crate) unsaid: Vec<i64>,
    /// What is not what was accepted.
    pub(crate) damaged: Vec<i64>,
    /// There may be more than was asked for, or than could be read.
    pub(crate) more: bool,
}

struct Reading {
    mesh_id: MeshId,
    asked: Asked,
}

struct Ending {
    mesh_id: MeshId,
    arrived: Arrived,
    /// About how many that are.
    rows: usize,
}

impl Deliverer {
    /// Nobody has asked yet.
    pub(crate) fn new(mesh_id: MeshId) -> Self {
        Self { mesh_id, reads: Lane::new(READS_AT_ONCE), ends: Lane::new(ENDS_AT_ONCE) }
    }

    /// What waits for a recipient.
    pub(crate) async fn read(&self, store: &Store, asked: Asked) -> Result<Read, StoreError> {
        self.reads.write(store, Reading { mesh_id: self.mesh_id, asked }).await
    }

    /// A recipient has everything up to a number, about so many. Says how many deliveries that and
    /// what was asked with it has ended.
    pub(crate) async fn end(
        &self,
        store: &Store,
        arrived: Arrived,
        rows: usize,
    ) -> Result<u64, StoreError> {
        self.ends.write(store, Ending { mesh_id: self.mesh_id, arrived, rows }).await
    }
}

impl Work<Reading, Read> for Store {
    const ITEMS_MAX: usize = READS_TOGETHER_MAX;

    fn fits(_: &[Reading], _: &Reading) -> bool {
        true
    }

    async fn run(&self, batch: Vec<Reading>) -> Vec<Result<Read, StoreError>> {
        let Some(mesh_id) = batch.first().map(|reading| reading.mesh_id) else { return Vec::new() };
        let asked: Vec<Asked> = batch.iter().map(|reading| reading.asked).collect();
        match self.deliveries_of(mesh_id, &asked).await {
            Ok(waiting) => told(&asked, waiting).into_iter().map(Ok).collect(),
            Err(error) => {
                let cause = Arc::from(error.chain());
                let shared = || StoreError::Unavailable { cause: Arc::clone(&cause) };
                batch.iter().map(|_| Err(shared())).collect()
            }
        }
    }
}

impl Work<Ending, u64> for Store {
    const ITEMS_MAX: usize = ENDS_TOGETHER_MAX;

    fn fits(batch: &[Ending], ending: &Ending) -> bool {
        let rows: usize = batch.iter().map(|ending| ending.rows).sum();
        batch.is_empty() || rows + ending.rows <= ENDS_ROWS
    }

    async fn run(&self, batch: Vec<Ending>) -> Vec<Result<u64, StoreError>> {
        let Some(mesh_id) = batch.first().map(|ending| ending.mesh_id) else { return Vec::new() };
        let arrived: Vec<Arrived> = batch.iter().map(|ending| ending.arrived).collect();
        match self.deliveries_done_along(mesh_id, &arrived).await {
            // Nobody wants to know whose they were.
            Ok(ended) => {
                let mut shares = vec![0; batch.len()];
                shares[0] = ended;
                shares.into_iter().map(Ok).collect()
            }
            Err(error) => {
                let cause = Arc::from(error.chain());
                let shared = || StoreError::Uncertain { cause: Arc::clone(&cause) };
                batch.iter().map(|_| Err(shared())).collect()
            }
        }
    }
}

/// What each who asked is told.
fn told(asked: &[Asked], waiting: Waiting) -> Vec<Read> {
    let Waiting { messages, seqs, cut } = waiting;
    let (mut written, mut unsaid) = (HashMap::new(), Vec::new());
    for delivery in messages.whole {
        let seq = delivery.seq;
        match on_the_wire(delivery) {
            Some(delivery) => drop(written.insert(seq, Arc::new(Written::from(&delivery)))),
            None => unsaid.push(seq),
        }
    }
    let one = |((asked, seqs), is_cut): ((&Asked, Vec<i64>), bool)| {
        let mut read = Read::default();
        for seq in seqs {
            match written.get(&seq) {
                Some(written) => read.written.push(Arc::clone(written)),
                None if unsaid.contains(&seq) => read.unsaid.push(seq),
                None if messages.damaged.contains(&seq) => read.damaged.push(seq),
                None => {}
            }
        }
        let count = read.written.len() + read.unsaid.len() + read.damaged.len();
        read.more = is_cut || i64::try_from(count).is_ok_and(|count| count >= asked.limit);
        read
    };
    asked.iter().zip(seqs).zip(cut).map(one).collect()
}

/// A delivery as a frame; nothing for one that cannot be said, which stays in the store.
pub(crate) fn on_the_wire(delivery: Delivery) -> Option<frame::Delivery> {
    let sender_pubkey = Hex::parse(&delivery.sender_pubkey).ok()?;
    Some(frame::Delivery {
        seq: delivery.seq,
        broker_message_id: delivery.broker_message_id,
        client_message_id: delivery.client_message_id,
        sender_member_id: delivery.sender_member_id,
        sender_pubkey,
        sender_name: delivery.sender_name,
        destination_kind: delivery.destination.kind(),
        destination_ref: delivery.destination.reference().to_owned(),
        reply_to_id: delivery.reply_to_id,
        priority: delivery.priority,
        meta: delivery.meta,
        body: delivery.body,
        request_fingerprint: delivery.request_fingerprint,
        body_commitment: delivery.body_commitment.map(BodyHash),
        accepted_at: delivery.accepted_at,
    })
}

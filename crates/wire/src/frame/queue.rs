//! Work queues: each message goes to one consumer, with a lease.

use semel_core::clock::UnixMs;
use semel_core::limits::REF_BYTES_MAX;
use semel_core::refusal::Refusal;

use super::delivery::Delivery;
use crate::codec::{Fields, Object, Record};
use crate::limits::{DELIVERIES_MAX, LEASE_MS_MAX, QUEUE_ACK_SEQS_MAX, QUEUE_TAKE_MAX};

/// Asks for work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueTake {
    /// Comes back in the answer.
    pub request_id: u64,
    /// Of this queue.
    pub queue: String,
    /// 1 to 100.
    pub max: u64,
    /// For how long; the broker's default when absent.
    pub lease_ms: Option<u64>,
}

impl Record for QueueTake {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            request_id: fields.take("request_id")?,
            queue: fields.name("queue", REF_BYTES_MAX)?,
            max: fields.number("max", 1, QUEUE_TAKE_MAX)?,
            lease_ms: fields.optional_number("lease_ms", 1, LEASE_MS_MAX)?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("request_id", &self.request_id);
        object.put_text("queue", &self.queue);
        object.put("max", &self.max);
        object.put_optional("lease_ms", self.lease_ms.as_ref());
    }
}

/// Work that is done and leaves the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueAck {
    /// Comes back in the answer.
    pub request_id: u64,
    /// Of this queue.
    pub queue: String,
    /// Which messages; at most 500.
    pub seqs: Vec<i64>,
}

impl Record for QueueAck {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            request_id: fields.take("request_id")?,
            queue: fields.name("queue", REF_BYTES_MAX)?,
            seqs: fields.list("seqs", QUEUE_ACK_SEQS_MAX)?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("request_id", &self.request_id);
        object.put_text("queue", &self.queue);
        object.put_list("seqs", &self.seqs);
    }
}

/// Work, leased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueTaken {
    /// Of the question.
    pub request_id: u64,
    /// None when there is no work.
    pub deliveries: Vec<Delivery>,
    /// Then somebody else may get what was not acknowledged.
    pub lease_until: UnixMs,
}

impl Record for QueueTaken {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            request_id: fields.take("request_id")?,
            deliveries: fields.list("deliveries", DELIVERIES_MAX)?,
            lease_until: fields.take("lease_until")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("request_id", &self.request_id);
        object.put_list("deliveries", &self.deliveries);
        object.put("lease_until", &self.lease_until);
    }
}

/// Which of the acknowledged messages are off the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueAcked {
    /// Of the question.
    pub request_id: u64,
    /// What is missing here was no longer leased to this daemon.
    pub acked: Vec<i64>,
}

impl Record for QueueAcked {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            request_id: fields.take("request_id")?,
            acked: fields.list("acked", QUEUE_ACK_SEQS_MAX)?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("request_id", &self.request_id);
        object.put_list("acked", &self.acked);
    }
}

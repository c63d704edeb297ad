//! What a member may ask: history, ids, work and who is there. Sends are counted by the pipeline.
//!
//! A question that is too much waits, and with it all that its daemon sends after it: nothing is
//! lost, nothing is overtaken, and nobody else waits.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use semel_wire::frame::FromDaemon;

use super::Connection;
use crate::limiter::{LimitRequest, questions_of};
use crate::limits::{QUESTION_AGAIN, QUESTIONS_MAX, QUESTIONS_TOGETHER, QUESTIONS_WINDOW};

/// What one connection may ask before the limiter is asked again.
pub(super) struct Budget {
    mesh: String,
    sender: String,
    epoch: i64,
    left: AtomicU32,
    taken: AtomicU64,
}

impl Budget {
    pub(super) fn of(connection: &Connection) -> Self {
        let session = &connection.session;
        Self {
            mesh: connection.mesh.mesh_id.to_string(),
            sender: questions_of(&session.member_id.to_string()),
            epoch: session.epoch,
            left: AtomicU32::new(0),
            taken: AtomicU64::new(0),
        }
    }

    /// Comes back once this may be heard. Frames are heard one after the other.
    pub(super) async fn admit(&self, connection: &Connection, frame: &FromDaemon) {
        if !is_question(frame) {
            return;
        }
        if let Some(left) = self.left.load(Ordering::Relaxed).checked_sub(1) {
            self.left.store(left, Ordering::Relaxed);
            return;
        }
        // No two connections of a store have the same epoch.
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", self.epoch);
        let request = LimitRequest {
            mesh: &self.mesh,
            sender: &self.sender,
            client_message_id: &id,
            limit: QUESTIONS_MAX,
            window: QUESTIONS_WINDOW,
        };
        while let Some(wait) = connection.broker.pipeline.limiter().ask(&request).await {
            tokio::time::sleep(wait.min(QUESTION_AGAIN)).await;
        }
        self.left.store(QUESTIONS_TOGETHER - 1, Ordering::Relaxed);
    }
}

fn is_question(frame: &FromDaemon) -> bool {
    match frame {
        FromDaemon::Resolve(_)
        | FromDaemon::HistoryRequest(_)
        | FromDaemon::QueueTake(_)
        | FromDaemon::QueueAck(_)
        | FromDaemon::PresenceRequest(_) => true,
        FromDaemon::Send(_)
        | FromDaemon::Ack(_)
        | FromDaemon::FeatureNegotiationRequest(_)
        | FromDaemon::Ping(_)
        | FromDaemon::Pong(_)
        | FromDaemon::CloseReason(_)
        | FromDaemon::Hello(_) => false,
    }
}

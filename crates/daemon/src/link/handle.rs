//! How others reach the link, and what they may ask of it.

use std::sync::Arc;

use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, OutboxId};
use semel_wire::frame::FromBroker;
use tokio::sync::{mpsc, oneshot, watch};

use super::{LinkState, LinkStatus, Roster};
use crate::inbox::Inbox;

/// What others ask of the link.
pub(crate) enum Command {
    /// Give this row up, and say when that is on disk; `false` when it is on the wire.
    GiveUp { id: OutboxId, why: String, reply: oneshot::Sender<bool> },
    /// Ask about everything that is unknown, and say when the answers are on disk.
    Resolve { reply: oneshot::Sender<bool> },
    /// A question to the broker.
    Ask { ask: Ask, taken: oneshot::Sender<oneshot::Receiver<FromBroker>> },
}

/// A question that the broker answers by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Work of a queue.
    QueueTake {
        /// Which.
        queue: String,
        /// Messages at the most.
        max: u64,
        /// For how long.
        lease_ms: Option<u64>,
    },
    /// Work that is done.
    QueueAck {
        /// Of which queue.
        queue: String,
        /// Which messages.
        seqs: Vec<i64>,
    },
    /// Which of these are online, where a mesh is too large to be told of everybody.
    Presence {
        /// 500 at the most.
        members: Vec<MemberId>,
    },
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// The broker's word.
    Answered(FromBroker),
    /// It was asked, or may have been, and nobody knows what it did.
    Unanswered,
    /// There was no connection: it was not asked.
    Away,
}

/// How others reach the link.
#[derive(Clone)]
pub struct LinkHandle {
    status: watch::Receiver<LinkStatus>,
    commands: mpsc::Sender<Command>,
    roster: Arc<Roster>,
}

impl LinkHandle {
    pub(super) fn new(
        status: watch::Receiver<LinkStatus>,
        commands: mpsc::Sender<Command>,
        roster: Arc<Roster>,
    ) -> Self {
        Self { status, commands, roster }
    }

    /// Of a daemon that only reads: there is no connection, and whoever asks hears so.
    pub(crate) fn none(inbox: Arc<Inbox>, since: UnixMs) -> Self {
        let last_error = Some("the daemon only reads (--read-only)".to_owned());
        let status = LinkStatus { last_error, ..LinkStatus::new(LinkState::Ended, since) };
        Self {
            status: watch::channel(status).1,
            commands: mpsc::channel(1).0,
            roster: Arc::new(Roster::new(inbox)),
        }
    }

    /// How it stands with the broker now.
    pub fn status(&self) -> LinkStatus {
        self.status.borrow().clone()
    }

    /// Changes whenever the state does.
    pub fn watch(&self) -> watch::Receiver<LinkStatus> {
        self.status.clone()
    }

    /// Who is online.
    pub fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// Asks the broker.
    pub async fn ask(&self, ask: Ask) -> Asked {
        let (taken, answer) = oneshot::channel();
        if self.commands.send(Command::Ask { ask, taken }).await.is_err() {
            return Asked::Away;
        }
        // A link without a connection drops the question.
        let Ok(answer) = answer.await else { return Asked::Away };
        answer.await.map_or(Asked::Unanswered, Asked::Answered)
    }

    /// Gives a row up that is not on the wire; `false` when it is.
    pub(crate) async fn give_up(&self, id: OutboxId, why: &str) -> bool {
        let (reply, answer) = oneshot::channel();
        let command = Command::GiveUp { id, why: why.to_owned(), reply };
        self.commands.send(command).await.is_ok() && answer.await.unwrap_or(false)
    }

    /// Finds out what became of rows whose outcome is unknown; `false` when the broker is away.
    pub(crate) async fn resolve(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Resolve { reply }).await.is_ok()
            && answer.await.unwrap_or(false)
    }
}

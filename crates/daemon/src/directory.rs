//! Who is in the mesh is asked when the broker is there, when somebody new comes online, when a
//! name is not known, and now and then; names are resolved by what it said last.

use std::sync::Arc;

use semel_wire::http::MemberItem;
use tokio::sync::{Notify, watch};

use crate::broker_api::{ApiError, BrokerApi, peer};
use crate::limits::{DIRECTORY_INTERVAL, DIRECTORY_PAUSE, DIRECTORY_WAIT};
use crate::link::{LinkState, LinkStatus, Roster, stopped};
use crate::outbox::Outbox;

/// How often it was asked, and how often there was an answer or none to be had.
#[derive(Debug, Clone, Copy, Default)]
struct Rounds {
    begun: u64,
    ended: u64,
}

/// Asks, for all who want to know at once.
pub(crate) struct Directory {
    outbox: Arc<Outbox>,
    api: Arc<BrokerApi>,
    status: watch::Receiver<LinkStatus>,
    roster: Arc<Roster>,
    wanted: Notify,
    rounds: watch::Sender<Rounds>,
}

impl Directory {
    pub(crate) fn new(
        outbox: Arc<Outbox>,
        api: Arc<BrokerApi>,
        status: watch::Receiver<LinkStatus>,
        roster: Arc<Roster>,
    ) -> Self {
        let (wanted, rounds) = (Notify::new(), watch::Sender::default());
        Self { outbox, api, status, roster, wanted, rounds }
    }

    /// Comes back when the broker has been asked after this call, or is away, or takes too long:
    /// a connection that is being made is waited for. However many ask, the broker is asked once,
    /// and no more often than once a second.
    pub(crate) async fn ask(&self) {
        let _ = tokio::time::timeout(DIRECTORY_WAIT, self.asked()).await;
    }

    async fn asked(&self) {
        let mut status = self.status.clone();
        let settled = status.wait_for(|status| status.state != LinkState::Connecting).await;
        if !settled.is_ok_and(|status| status.state == LinkState::Connected) {
            return;
        }
        let mut rounds = self.rounds.subscribe();
        // One that is under way may have begun before whatever the caller knows of.
        let wanted = rounds.borrow_and_update().begun + 1;
        self.wanted.notify_one();
        let _ = rounds.wait_for(|rounds| rounds.ended >= wanted).await;
    }

    pub(crate) async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let mut status = self.status.clone();
        loop {
            let connected = status.wait_for(|status| status.state == LinkState::Connected);
            tokio::select! {
                connected = connected => if connected.is_err() { return },
                () = stopped(&mut stop) => return,
            }
            self.rounds.send_modify(|rounds| rounds.begun += 1);
            tokio::select! {
                members = self.api.members() => note(&self.outbox, members).await,
                () = stopped(&mut stop) => return,
            }
            self.rounds.send_modify(|rounds| rounds.ended = rounds.begun);
            // A crowd that comes at once is asked about once.
            let pause = tokio::time::sleep(DIRECTORY_PAUSE);
            tokio::select! {
                () = pause => {}
                () = stopped(&mut stop) => return,
            }
            tokio::select! {
                () = self.roster.joined.notified() => {}
                () = self.wanted.notified() => {}
                () = tokio::time::sleep(DIRECTORY_INTERVAL) => {}
                () = reconnected(&mut status) => {}
                () = stopped(&mut stop) => return,
            }
        }
    }
}

/// Comes back once the connection is another one.
async fn reconnected(status: &mut watch::Receiver<LinkStatus>) {
    if status.wait_for(|status| status.state != LinkState::Connected).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn note(outbox: &Outbox, members: Result<Vec<MemberItem>, ApiError>) {
    let members = match members {
        Ok(members) => members,
        Err(error) => return tracing::warn!(%error, "the list of members could not be refreshed"),
    };
    let peers = members.into_iter().filter_map(peer);
    if let Err(error) = outbox.peers_replace(peers.collect()).await {
        tracing::error!(error = error.chain(), "the list of members could not be stored");
    }
}

//! Who is in the mesh is asked when the broker is there, when somebody new comes online, and now
//! and then; names are resolved by what it said last.

use std::sync::Arc;

use semel_wire::http::MemberItem;
use tokio::sync::watch;

use crate::broker_api::{ApiError, BrokerApi, peer};
use crate::limits::{DIRECTORY_INTERVAL, DIRECTORY_PAUSE};
use crate::link::{LinkState, LinkStatus, Roster, stopped};
use crate::outbox::Outbox;

pub(crate) async fn run(
    outbox: Arc<Outbox>,
    api: Arc<BrokerApi>,
    mut status: watch::Receiver<LinkStatus>,
    roster: Arc<Roster>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let connected = status.wait_for(|status| status.state == LinkState::Connected);
        tokio::select! {
            connected = connected => if connected.is_err() { return },
            () = stopped(&mut stop) => return,
        }
        tokio::select! {
            members = api.members() => note(&outbox, members).await,
            () = stopped(&mut stop) => return,
        }
        // A crowd that comes at once is asked about once.
        let pause = tokio::time::sleep(DIRECTORY_PAUSE);
        tokio::select! {
            () = pause => {}
            () = stopped(&mut stop) => return,
        }
        tokio::select! {
            () = roster.joined.notified() => {}
            () = tokio::time::sleep(DIRECTORY_INTERVAL) => {}
            () = reconnected(&mut status) => {}
            () = stopped(&mut stop) => return,
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
        Err(error) => return tracing::warn!(%error, "the mesh's members are not known anew"),
    };
    let peers = members.into_iter().filter_map(peer);
    if let Err(error) = outbox.peers_replace(peers.collect()).await {
        tracing::error!(error = error.chain(), "the mesh's members were not written down");
    }
}

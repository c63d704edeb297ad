//! Which of this broker's connections still speak for their daemons, and who is connected at all
//! (mesh.md §8, broker.md "Push"). One task per broker: every few seconds, and when a hint says so,
//! it asks the store, with one question per mesh.
//!
//! Fencing (mesh.md §10) does not rest on this: a connection that was replaced can commit nothing,
//! closed or not. This is how its daemon learns of it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use semel_core::clock::Reading;
use semel_core::id::MeshId;
use semel_store::StoreError;
use semel_wire::close::CloseKind;
use semel_wire::frame::CloseReason;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::accept::Session;
use crate::connection::Broker;
use crate::hub::Ending;
use crate::limits::{
    GHOSTS_SWEEP_MAX, HEARTBEATS_MAX, ROSTER_ROWS_MAX, SESSION_MESHES_AT_ONCE, SESSIONS_INTERVAL,
    SESSIONS_PER_INTERVAL,
};
use crate::meshes::Meshes;
use crate::store::{Live, Pulse, Standing};

/// Why a mesh is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// It is time for a heartbeat.
    Tick,
    /// Something has happened there.
    Touched,
}

impl Broker {
    /// Sessions of this mesh have come or ended: all brokers look. Never waits.
    pub fn sessions_changed(&self, mesh_id: MeshId) {
        self.hub.touch_sessions(Meshes::one(mesh_id));
        if let Some(hints) = &self.hints {
            hints.sessions_changed(mesh_id);
        }
    }

    /// The time as heartbeats count it.
    pub(crate) fn pulse(&self) -> Pulse {
        Pulse { at: Reading::of(&*self.clock), ghost_after: self.timings.ghost_after }
    }
}

/// Nobody is connected yet: heartbeats of an earlier process end, whatever its clock said.
pub async fn begin(broker: &Broker) {
    warn(hear(broker).await);
    loop {
        match broker.store.presence_begin(broker.pulse(), GHOSTS_SWEEP_MAX).await {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => return warn(Err(error)),
        }
    }
}

/// Looks after the broker's connections until `stop` comes or its sender is gone. It ends between
/// two transactions.
pub async fn run(broker: Arc<Broker>, mut stop: oneshot::Receiver<()>) {
    let mut ticks = interval(broker.timings.heartbeat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let (why, meshes) = tokio::select! {
            _ = &mut stop => return,
            _ = ticks.tick() => (Why::Tick, Meshes::All),
            touched = broker.hub.touched_sessions() => (Why::Touched, touched),
        };
        let meshes = broker.hub.meshes().into_iter().filter(|mesh_id| meshes.contains(*mesh_id));
        let looks = meshes.map(|mesh_id| look(&broker, mesh_id, why));
        // One mesh whose rows are locked holds up no other.
        stream::iter(looks).for_each_concurrent(SESSION_MESHES_AT_ONCE, |looked| looked).await;
        match why {
            Why::Tick => warn(tick(&broker).await),
            // What is touched meanwhile shares the next look.
            Why::Touched => sleep(pause(broker.hub.connections())).await,
        }
    }
}

/// A look costs what there is to see: the more, the longer the pause after it.
fn pause(connections: usize) -> Duration {
    let more = u32::try_from(connections / SESSIONS_PER_INTERVAL).unwrap_or(u32::MAX);
    SESSIONS_INTERVAL.saturating_mul(more.saturating_add(1))
}

fn warn(looked: Result<(), StoreError>) {
    if let Err(error) = looked {
        tracing::warn!(error = error.chain(), "sessions could not be checked");
    }
}

/// What time it is in a store that has a clock of its own.
async fn hear(broker: &Broker) -> Result<(), StoreError> {
    if let Some(theirs) = broker.store.now().await? {
        broker.pipeline.present().heard(theirs);
    }
    Ok(())
}

async fn tick(broker: &Broker) -> Result<(), StoreError> {
    hear(broker).await?;
    broker.store.ghosts_sweep(broker.pulse(), GHOSTS_SWEEP_MAX).await?;
    broker.life.goes_on(&broker.store.store_epoch().await?);
    Ok(())
}

async fn look(broker: &Broker, mesh_id: MeshId, why: Why) {
    warn(look_at(broker, mesh_id, why).await);
}

async fn look_at(broker: &Broker, mesh_id: MeshId, why: Why) -> Result<(), StoreError> {
    let live = broker.hub.live(mesh_id);
    if live.is_empty() {
        broker.rosters.forget(mesh_id);
        return Ok(());
    }
    if why == Why::Tick {
        beat(broker, mesh_id, &live).await?;
    }
    let present = broker.store.roster(mesh_id, broker.pulse(), ROSTER_ROWS_MAX).await?;
    broker.rosters.publish(mesh_id, &present);
    if why == Why::Touched {
        // Who is in the roster is current; the others are asked for, as far as it reaches.
        let known: HashSet<i64> = present.iter().map(|present| present.session.epoch).collect();
        let is_cut = i64::try_from(present.len()).is_ok_and(|rows| rows >= ROSTER_ROWS_MAX);
        let last = present.last().filter(|_| is_cut).map(|last| last.session.member_id);
        let missing = live.into_iter().filter(|live| {
            let is_beyond = last.is_some_and(|last| live.session.member_id >= last);
            !is_beyond && !known.contains(&live.session.epoch)
        });
        let missing: Vec<Live> = missing.collect();
        if !missing.is_empty() {
            beat(broker, mesh_id, &missing).await?;
        }
    }
    Ok(())
}

/// A heartbeat for these connections. Those that do not speak for their daemons end.
async fn beat(broker: &Broker, mesh_id: MeshId, live: &[Live]) -> Result<(), StoreError> {
    for live in live.chunks(HEARTBEATS_MAX) {
        beat_once(broker, mesh_id, live).await?;
    }
    Ok(())
}

async fn beat_once(broker: &Broker, mesh_id: MeshId, live: &[Live]) -> Result<(), StoreError> {
    let pulse = broker.pulse();
    let beat = broker.store.heartbeat(mesh_id, broker.broker_id, live, pulse).await?;
    if !broker.life.goes_on(&beat.store_epoch) {
        return Ok(());
    }
    for (live, standing) in live.iter().zip(beat.standings) {
        let session = &live.session;
        match (ending(standing), broker.hub.peer(mesh_id, session)) {
            (Some(ending), Some(peer)) => peer.end(ending),
            (None, None) if standing == Standing::Revived => {
                // It has ended since, and has taken its presence along before we wrote it again.
                let policy = semel_wire::features::ConnectionPolicy::PreferNewest;
                broker.store.depart(mesh_id, session, policy, broker.pulse()).await?;
            }
            (Some(_) | None, _) => {}
        }
    }
    Ok(())
}

/// How a connection must end whose session was found to be over; nothing if it is not.
pub(crate) async fn standing(
    broker: &Broker,
    mesh_id: MeshId,
    session: &Session,
) -> Result<Option<Ending>, StoreError> {
    let live = [Live { session: *session, host_fingerprint: None }];
    let pulse = broker.pulse();
    let beat = broker.store.heartbeat(mesh_id, broker.broker_id, &live, pulse).await?;
    if !broker.life.goes_on(&beat.store_epoch) {
        return Ok(Some(Ending::Abandon));
    }
    Ok(beat.standings.first().copied().and_then(ending))
}

/// How a connection of that standing ends.
fn ending(standing: Standing) -> Option<Ending> {
    match standing {
        Standing::Current | Standing::Revived => None,
        Standing::Replaced { nonce } => {
            let detail = "a newer connection of this member has replaced it";
            let mut reason = CloseReason::new(CloseKind::Replaced, detail);
            reason.nonce = nonce;
            Some(Ending::Close(reason))
        }
        Standing::Retired => {
            let detail = "the instance was retired";
            Some(Ending::Close(CloseReason::new(CloseKind::Revoked, detail)))
        }
        Standing::Revoked => {
            let detail = "the member was revoked or has left";
            Some(Ending::Revoked(CloseReason::new(CloseKind::Revoked, detail)))
        }
    }
}

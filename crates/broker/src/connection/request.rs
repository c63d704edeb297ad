//! What a daemon asks for besides sending: work of a queue, and messages of the past.

use std::time::Duration;

use semel_core::clock::Reading;
use semel_core::code::Code;
use semel_store::StoreError;
use semel_wire::frame::{
    self, FromBroker, History, HistoryRequest, QueueAck, QueueAcked, QueueTake, QueueTaken,
    RequestFailed, fitting,
};
use semel_wire::limits::frame_bytes_max;

use super::{Connection, End};
use crate::deliverer::on_the_wire;
use crate::limits::{HISTORY_READ_MAX, QUEUE_LEASE};
use crate::store::{Take, Taken};

/// Leases as much as was asked for and fits into the answer, for which there must be room first.
/// Says whether the connection goes on.
pub(super) async fn queue_take(connection: &Connection, request: &QueueTake) -> Result<bool, End> {
    let bytes_max = frame_bytes_max(connection.mesh.inline_bytes as usize);
    match connection.outbound.reserve_or_refuse(bytes_max).await.ok_or(End::Gone)? {
        Some(held) => {
            let taken = take(connection, request, bytes_max).await?;
            Ok(connection.outbound.answer(&taken, held).await)
        }
        None => {
            let refused = FromBroker::RequestFailed(RequestFailed {
                request_id: request.request_id,
                code: Code::Overloaded.as_str().to_owned(),
                detail: "too many answers wait for daemons that do not read".to_owned(),
            });
            Ok(connection.outbound.send(refused).await)
        }
    }
}

async fn take(
    connection: &Connection,
    request: &QueueTake,
    bytes_max: usize,
) -> Result<FromBroker, End> {
    let (broker, mesh) = (&connection.broker, &connection.mesh);
    let at = Reading::of(&*broker.clock);
    let lease = request.lease_ms.map_or(QUEUE_LEASE, Duration::from_millis);
    // For people: what counts is the store's clock.
    let lease_until = at.wall.saturating_add(lease);
    let take = Take {
        taker: connection.session.member_id,
        at,
        lease,
        max: i64::try_from(request.max).unwrap_or(i64::MAX),
        bytes_max,
    };
    let request_id = request.request_id;
    let taken = broker.store.queue_take(mesh.mesh_id, &request.queue, take).await;
    Ok(match taken.map_err(|error| abandoned(&error, "work could not be taken"))? {
        Taken::Leased { taken, set_aside, damaged } => {
            if set_aside > 0 {
                let (mesh_id, queue) = (mesh.mesh_id, &request.queue);
                tracing::error!(%mesh_id, queue, set_aside, "work was leased too often");
                broker.pipeline.metrics().set_aside.inc_by(set_aside);
            }
            if damaged > 0 {
                let (mesh_id, queue) = (mesh.mesh_id, &request.queue);
                tracing::error!(%mesh_id, queue, damaged, "work differs from what was accepted");
                broker.pipeline.metrics().set_aside.inc_by(damaged);
            }
            let deliveries = taken.into_iter().filter_map(on_the_wire).collect();
            FromBroker::QueueTaken(QueueTaken { request_id, deliveries, lease_until })
        }
        Taken::NoQueue => FromBroker::RequestFailed(RequestFailed {
            request_id,
            code: Code::QueueNotFound.as_str().to_owned(),
            detail: format!("there is no queue {:?}", request.queue),
        }),
    })
}

/// Without a check of the queue: in one that is not there nothing is leased.
pub(super) async fn queue_ack(
    connection: &Connection,
    request: &QueueAck,
) -> Result<FromBroker, End> {
    let (mesh_id, taker) = (connection.mesh.mesh_id, connection.session.member_id);
    let store = &connection.broker.store;
    let acked = store.queue_ack(mesh_id, &request.queue, taker, &request.seqs).await;
    let acked = acked.map_err(|error| abandoned(&error, "work could not be ended"))?;
    Ok(FromBroker::QueueAcked(QueueAcked { request_id: request.request_id, acked }))
}

/// As much as was asked for and fits into the answer, for which there must be room first. It is
/// waited for: a daemon that was refused would not ask again. Says whether the connection goes on.
pub(super) async fn history(
    connection: &Connection,
    request: &HistoryRequest,
) -> Result<bool, End> {
    let bytes_max = frame_bytes_max(connection.mesh.inline_bytes as usize);
    let held = connection.outbound.reserve(bytes_max).await.ok_or(End::Gone)?;
    let page = page(connection, request).await?;
    Ok(connection.outbound.answer(&page, held).await)
}

async fn page(connection: &Connection, request: &HistoryRequest) -> Result<FromBroker, End> {
    let (mesh, member_id) = (&connection.mesh, connection.session.member_id);
    let limit = i64::try_from(request.limit.min(HISTORY_READ_MAX)).unwrap_or(1);
    let store = &connection.broker.store;
    let bytes_max = frame_bytes_max(mesh.inline_bytes as usize);
    let page = store.history(mesh.mesh_id, member_id, request.after_seq, limit, bytes_max).await;
    let page = page.map_err(|error| abandoned(&error, "history could not be read"))?;
    connection.broker.pipeline.metrics().damaged.inc_by(page.damaged.len() as u64);
    let mut deliveries: Vec<frame::Delivery> =
        page.deliveries.into_iter().filter_map(on_the_wire).collect();
    let fit = fitting(&deliveries, bytes_max);
    let next_after_seq = if fit < deliveries.len() {
        deliveries.truncate(fit);
        deliveries.last().map(|delivery| delivery.seq)
    } else {
        page.next_after_seq
    };
    let request_id = request.request_id;
    Ok(FromBroker::History(History { request_id, deliveries, next_after_seq }))
}

/// The daemon asks again on its next connection.
fn abandoned(error: &StoreError, what: &str) -> End {
    tracing::warn!(error = error.chain(), "{what}");
    End::Abandon
}

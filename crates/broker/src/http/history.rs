//! Messages of the past, as far as the member may see them.

use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::limits::INTEGER_MAX;
use semel_wire::http::{HistoryItem, List, Problem};

use super::answer::{Answer, failed};
use super::query::Page;
use super::{Call, auth};
use crate::limits::{HISTORY_ANSWER_BYTES_MAX, HISTORY_READ_MAX};
use crate::store::Delivery;

/// A page may be shorter than was asked for, also empty, with more to come: `next` alone says
/// whether this was the end.
pub(super) async fn list(call: &Call) -> Result<Answer, Problem> {
    let asking = auth::member(call).await?;
    let page = Page::of(&call.query)?;
    let after = page.after.as_deref().map_or(Ok(0), str::parse::<i64>);
    let after = after.ok().filter(|after| (0..=INTEGER_MAX).contains(after));
    let after =
        after.ok_or_else(|| Problem::new(Code::InvalidField, "after is not a history number"))?;
    let limit = page.limit.min(i64::try_from(HISTORY_READ_MAX).unwrap_or(1));
    let store = &call.broker.store;
    // As a frame counts them bodies are larger; what is read too much is cut off below.
    let (mesh_id, bytes_max) = (asking.mesh.mesh_id, 2 * HISTORY_ANSWER_BYTES_MAX);
    let found = store.history(mesh_id, asking.member_id, after, limit, bytes_max).await;
    let found = found.map_err(failed)?;
    call.broker.pipeline.metrics().damaged.inc_by(found.damaged.len() as u64);
    let (mut deliveries, mut next) = (found.deliveries, found.next_after_seq);
    let fit = fitting(&deliveries);
    if fit < deliveries.len() {
        deliveries.truncate(fit);
        next = deliveries.last().map(|delivery| delivery.seq);
    }
    let next = next.map(|seq| page.next(call, &seq.to_string()));
    Ok(Answer::ok(&List { items: deliveries.into_iter().map(item).collect(), next }))
}

/// How many of them fit into one answer; one always does.
fn fitting(deliveries: &[Delivery]) -> usize {
    let mut bytes = 0;
    let fits = |delivery: &&Delivery| {
        bytes += delivery.body.len() + delivery.meta.len();
        bytes <= HISTORY_ANSWER_BYTES_MAX
    };
    deliveries.iter().take_while(fits).count().max(1)
}

fn item(delivery: Delivery) -> HistoryItem {
    HistoryItem {
        seq: delivery.seq,
        broker_message_id: delivery.broker_message_id,
        client_message_id: delivery.client_message_id,
        sender_member_id: delivery.sender_member_id,
        sender_name: delivery.sender_name,
        sender_pubkey: delivery.sender_pubkey,
        destination_kind: delivery.destination.kind(),
        destination_ref: delivery.destination.reference().to_owned(),
        reply_to_id: delivery.reply_to_id,
        priority: delivery.priority,
        meta: delivery.meta,
        body: delivery.body,
        body_commitment: delivery.body_commitment.map(Hex),
        accepted_at: delivery.accepted_at,
    }
}

//! What was accepted here: lists, one row with its chain of requeues, requeue and prune.

use std::time::Duration;

use semel_api::json::Object;
use semel_api::limits::PAGE_DEFAULT;
use semel_api::page::{Next, Page};
use semel_api::problem::Problem;
use semel_api::route::{Call, Reply};
use semel_core::code::Code;
use semel_core::id::{ClientMessageId, OutboxId};
use semel_store::StoreError;
use serde_json::json;

use super::Daemon;
use super::send::{check_size, refused};
use crate::engine::{Requeue, Requeued};
use crate::limits::CHAIN_MAX;
use crate::store::upkeep::{OutboxRow, Which};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// `GET /v1/outbox`.
pub(super) async fn list(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let failed = call.query.flag("failed");
    let which = if failed { Which::Dead } else { Which::All };
    let limit = call.query.number("limit").unwrap_or(PAGE_DEFAULT);
    let mut after = match call.query.text("after") {
        None => None,
        Some(text) => Some(OutboxId::parse(&text).ok_or_else(|| {
            Problem::new(Code::InvalidField, "after must be the outbox_id of a row")
        })?),
    };
    let mut page = Page::new(limit, call.api().response_bytes_max());
    'reading: loop {
        let ask = page.ask();
        let rows = call.state.engine.outbox.list(which, after, ask).await?;
        let full = i64::try_from(rows.len()).is_ok_and(|found| found == ask);
        for row in rows {
            if !page.add(|out| write_row(&row, &[], out)) {
                break 'reading;
            }
            after = Some(row.id);
        }
        if !full {
            break;
        }
    }
    let next = || {
        let after = after.map(|id| id.to_string()).unwrap_or_default();
        Next::new("/v1/outbox", &after)
            .with("failed", failed.then_some("true"))
            .with("limit", Some(&limit.to_string()))
            .address()
    };
    Ok(page.finish(next))
}

/// `GET /v1/outbox/{id}`.
pub(super) async fn inspect(call: Call<Daemon>) -> Result<Reply, Problem> {
    let row = find(&call.state, &call.id).await?;
    let chain = chain(&call.state, &row).await?;
    let mut out = Vec::new();
    write_row(&row, &chain, &mut out);
    Ok(Reply::json(200, out))
}

async fn find(daemon: &Daemon, id: &str) -> Result<OutboxRow, Problem> {
    let row = daemon.engine.outbox.find(id).await?;
    row.ok_or_else(|| Problem::new(Code::OutboxRowNotFound, "the outbox has no row with this id"))
}

/// The rows that took this one's place, one after the other.
async fn chain(daemon: &Daemon, row: &OutboxRow) -> Result<Vec<OutboxRow>, StoreError> {
    let mut chain = Vec::new();
    let mut next = row.superseded_by;
    while let Some(id) = next
        && chain.len() < CHAIN_MAX
    {
        let Some(row) = daemon.engine.outbox.find(&id.to_string()).await? else { break };
        next = row.superseded_by;
        chain.push(row);
    }
    Ok(chain)
}

/// `POST /v1/outbox/{id}/requeue`.
pub(super) async fn requeue(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let client_message_id = call.body.text("client_message_id");
    let client_message_id =
        client_message_id.map(|text| ClientMessageId::parse(&text)).transpose()?;
    let body = call.body.bytes()?;
    if let Some(body) = &body {
        check_size(&call.state, body)?;
    }
    let row = find(&call.state, &call.id).await?;
    let even_if_delivered = call.body.flag("even_if_delivered");
    let requeue = Requeue { id: row.id, client_message_id, body, even_if_delivered };
    let refuse = |code, detail: &str| Err(Problem::new(code, detail));
    let requeued = call.state.engine.requeue(requeue).await;
    match requeued.map_err(|error| refused(&call.state, error))? {
        Requeued::Done { id } => {
            let new = find(&call.state, &id.to_string()).await?;
            let answer = json!({
                "status": "queued",
                "outbox_id": new.id.to_string(),
                "client_message_id": new.client_message_id.as_str(),
                "request_fingerprint": new.request_fingerprint.to_hex(),
                "supersedes": row.id.to_string(),
            });
            Ok(Reply::json(202, answer.to_string()))
        }
        Requeued::Delivered => {
            let row = find(&call.state, &row.id.to_string()).await?;
            let delivery = row.delivery.as_ref();
            Ok(Reply::value(&json!({
                "status": "done",
                "outbox_id": row.id.to_string(),
                "client_message_id": row.client_message_id.as_str(),
                "broker_message_id": delivery.map(|d| d.broker_message_id.to_string()),
                "history_id": delivery.and_then(|d| d.history_id),
                "request_fingerprint": row.request_fingerprint.to_hex(),
            })))
        }
        Requeued::NotFound => refuse(Code::OutboxRowNotFound, "the outbox has no row with this id"),
        Requeued::Illegal(status) => {
            let detail = format!("a row that is {status} cannot be requeued");
            let problem = Problem::new(Code::RequeueNotPossible, detail);
            Err(problem.with("outbox_status", status.as_str()))
        }
        Requeued::Unknown => refuse(
            Code::RequeueOutcomeUnknown,
            "it is unknown whether it was delivered, and the broker cannot be asked now",
        ),
        Requeued::Pruned => refuse(Code::PayloadPruned, "its body was pruned: give a new one"),
        Requeued::IdTaken => {
            refuse(Code::ClientMessageIdTaken, "another row has this client_message_id")
        }
    }
}

/// `POST /v1/outbox/prune`.
pub(super) async fn prune(call: Call<Daemon>) -> Result<Reply, Problem> {
    let days = call.body.number("older_than_days").unwrap_or(0);
    let older_than = DAY.saturating_mul(u32::try_from(days).unwrap_or(u32::MAX));
    let pruned = call.state.engine.outbox.prune(older_than).await?;
    Ok(Reply::value(&json!({"pruned": pruned})))
}

fn write_row(row: &OutboxRow, chain: &[OutboxRow], out: &mut Vec<u8>) {
    let mut object = Object::open(out);
    let delivery = row.delivery.as_ref();
    let broker_message_id = delivery.map(|delivery| delivery.broker_message_id.to_string());
    object.plain("outbox_id", &row.id.to_string());
    object.text("client_message_id", row.client_message_id.as_str());
    object.plain("request_fingerprint", &row.request_fingerprint.to_hex());
    object.plain("status", row.status.as_str());
    object.text("to", &row.to_given);
    object.plain("destination_kind", row.destination.kind().as_str());
    object.text("destination_ref", row.destination.reference());
    object.plain("priority", row.priority.as_str());
    object.time("enqueued_at", row.enqueued_at);
    object.number("attempts", row.attempts.into());
    object.time("next_attempt_at", row.next_attempt_at);
    object.maybe_text("last_error", row.last_error.as_deref());
    object.maybe_text("outcome", row.outcome.map(|outcome| outcome.as_str()));
    object.maybe_time("delivered_at", row.delivered_at);
    object.maybe_text("broker_message_id", broker_message_id.as_deref());
    object.maybe_number("history_id", delivery.and_then(|delivery| delivery.history_id));
    object.maybe_time("aborted_at", row.aborted_at);
    object.maybe_text("aborted_by", row.aborted_by.map(|by| by.as_str()));
    let successor = row.superseded_by.map(|id| id.to_string());
    object.maybe_text("superseded_by", successor.as_deref());
    let bytes = row.payload_bytes.and_then(|bytes| i64::try_from(bytes).ok());
    object.maybe_number("payload_bytes", bytes);
    if !chain.is_empty() {
        let mut rows = vec![b'['];
        for (index, row) in chain.iter().enumerate() {
            if index > 0 {
                rows.push(b',');
            }
            write_row(row, &[], &mut rows);
        }
        rows.push(b']');
        object.raw("chain", &String::from_utf8_lossy(&rows));
    }
    object.close();
}

//! Work queues: taken and acknowledged at the broker, at once or not at all.

use semel_api::json::Object;
use semel_api::problem::Problem;
use semel_api::route::{Call, Reply};
use semel_core::code::Code;
use semel_core::rfc3339;
use semel_wire::frame::{Delivery, FromBroker, RequestFailed};
use serde_json::json;

use super::Daemon;
use super::mesh::broker_refused;
use crate::link::Ask;

/// `POST /v1/queue/take`.
pub(super) async fn take(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let ask = Ask::QueueTake {
        queue: call.body.text("queue").unwrap_or_default(),
        max: number(call.body.number("max")).unwrap_or(1),
        lease_ms: number(call.body.number("lease_ms")),
    };
    match call.state.engine.link.ask(ask).await {
        Some(FromBroker::QueueTaken(taken)) => {
            let mut out = br#"{"items":["#.to_vec();
            for (index, delivery) in taken.deliveries.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_delivery(delivery, &mut out);
            }
            let until = rfc3339::format(taken.lease_until);
            out.extend_from_slice(format!(r#"],"lease_until":"{until}"}}"#).as_bytes());
            Ok(Reply::json(200, out))
        }
        answer => Err(no_answer(answer)),
    }
}

/// `POST /v1/queue/ack`.
pub(super) async fn ack(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let queue = call.body.text("queue").unwrap_or_default();
    let ask = Ask::QueueAck { queue, seqs: call.body.numbers("seqs") };
    match call.state.engine.link.ask(ask).await {
        Some(FromBroker::QueueAcked(acked)) => Ok(Reply::value(&json!({"acked": acked.acked}))),
        answer => Err(no_answer(answer)),
    }
}

fn number(given: Option<i64>) -> Option<u64> {
    given.and_then(|number| u64::try_from(number).ok())
}

fn no_answer(answer: Option<FromBroker>) -> Problem {
    match answer {
        Some(FromBroker::RequestFailed(RequestFailed { code, detail, .. })) => {
            broker_refused(&code, detail)
        }
        _ => Problem::new(Code::BrokerUnavailable, "the broker is away or did not answer"),
    }
}

/// Like an item of the inbox, but it was never in it: it belongs to whoever took it.
fn write_delivery(delivery: &Delivery, out: &mut Vec<u8>) {
    let mut object = Object::open(out);
    object.number("seq", delivery.seq);
    object.text("client_message_id", delivery.client_message_id.as_str());
    object.plain("broker_message_id", &delivery.broker_message_id.to_string());
    object.text("queue", &delivery.destination_ref);
    object.plain("sender_member_id", &delivery.sender_member_id.to_string());
    object.plain("sender_pubkey", &delivery.sender_pubkey.to_string());
    object.text("sender_name", &delivery.sender_name);
    object.plain("priority", delivery.priority.as_str());
    object.body(&delivery.body);
    object.meta(&delivery.meta);
    object.time("accepted_at", delivery.accepted_at);
    object.maybe_text("reply_to_id", delivery.reply_to_id.as_deref());
    object.close();
}

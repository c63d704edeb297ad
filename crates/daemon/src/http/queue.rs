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
use crate::link::{Ask, Asked};

/// `POST /v1/queue/take`.
pub(super) async fn take(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let ask = Ask::QueueTake {
        queue: call.body.text("queue").unwrap_or_default(),
        max: number(call.body.number("max")).unwrap_or(1),
        lease_ms: number(call.body.number("lease_ms")),
    };
    match call.state.engine.link.ask(ask).await {
        Asked::Answered(FromBroker::QueueTaken(taken)) => {
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
        asked @ (Asked::Answered(_) | Asked::Unanswered | Asked::Away) => {
            Err(no_answer(asked, Code::BrokerUnavailable))
        }
    }
}

/// `POST /v1/queue/ack`.
pub(super) async fn ack(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let queue = call.body.text("queue").unwrap_or_default();
    let ask = Ask::QueueAck { queue, seqs: call.body.numbers("seqs") };
    match call.state.engine.link.ask(ask).await {
        Asked::Answered(FromBroker::QueueAcked(acked)) => {
            Ok(Reply::value(&json!({"acked": acked.acked})))
        }
        asked @ (Asked::Answered(_) | Asked::Unanswered | Asked::Away) => {
            Err(no_answer(asked, Code::OutcomeUnknown))
        }
    }
}

fn number(given: Option<i64>) -> Option<u64> {
    given.and_then(|number| u64::try_from(number).ok())
}

/// `unanswered` is said when the broker was asked and nobody knows what it did. What was taken and
/// not heard of is given out again; what was acknowledged is not.
fn no_answer(asked: Asked, unanswered: Code) -> Problem {
    match asked {
        Asked::Answered(FromBroker::RequestFailed(RequestFailed { code, detail, .. })) => {
            broker_refused(&code, detail)
        }
        Asked::Away => Problem::new(Code::BrokerUnavailable, "the broker is away"),
        Asked::Answered(_) | Asked::Unanswered => {
            Problem::new(unanswered, "the broker was asked, and did not answer")
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_knows_is_not_called_away() {
        let code = |asked| no_answer(asked, Code::OutcomeUnknown).code;
        assert_eq!(code(Asked::Unanswered), Code::OutcomeUnknown);
        assert_eq!(code(Asked::Away), Code::BrokerUnavailable);
    }
}

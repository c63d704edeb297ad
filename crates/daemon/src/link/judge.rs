//! What an answer of the broker means for the row (mesh.md §7, "Daemon outcomes", and §10). A pure
//! table: permanent or transient is decided by the status, never by words.

use std::time::Duration;

use semel_core::code::Code;
use semel_core::outbox::Outcome;
use semel_wire::frame::SendResult;

use crate::store::outbox::Delivery;

/// What is to be done about a row after its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judged {
    /// `201` or `200`: the broker has it.
    Done(Delivery),
    /// `429`: everybody waits so long, and it is no failed attempt.
    Wait(Duration),
    /// `408`, `5xx`: it goes out again.
    Again(String),
    /// Anything else: it is dead, and this is known of its effect.
    Dead(String, Outcome),
    /// An answer that cannot be: nothing is concluded from it, the connection closes.
    Nonsense(String),
}

/// `sent_before` says that the row may have been sent under an earlier epoch of the broker's store:
/// then no refusal speaks for that.
pub(super) fn judge(result: &SendResult, sent_before: bool) -> Judged {
    let refused = if sent_before { Outcome::Unknown } else { Outcome::Refused };
    match (result.status, result.broker_message_id) {
        (200 | 201, Some(broker_message_id)) => {
            Judged::Done(Delivery { broker_message_id, history_id: result.history_id })
        }
        (200 | 201, None) => Judged::Nonsense("an accepted send has no id".to_owned()),
        (429, _) => Judged::Wait(Duration::from_millis(result.retry_after_ms.unwrap_or(1000))),
        (408 | 500..=599, _) => Judged::Again(why(result)),
        // It may have been accepted and forgotten.
        (410, _) if result.code.as_deref() == Some(Code::KeyTooOldToJudge.as_str()) => {
            Judged::Dead(why(result), Outcome::Unknown)
        }
        (400..=499, _) => Judged::Dead(why(result), refused),
        (status, _) => Judged::Nonsense(format!("the status {status} is not an answer")),
    }
}

fn why(result: &SendResult) -> String {
    let code = result.code.as_deref().unwrap_or("no code");
    let conflict = result.conflict.as_deref().map(|conflict| format!(" ({conflict})"));
    let detail = result.detail.as_deref().map(|detail| format!(": {detail}"));
    let (conflict, detail) = (conflict.unwrap_or_default(), detail.unwrap_or_default());
    format!("{} {code}{conflict}{detail}", result.status)
}

#[cfg(test)]
mod tests {
    use semel_core::id::{BrokerMessageId, ClientMessageId};

    use super::*;

    fn answer(status: u16, code: Option<&str>) -> SendResult {
        let mut result = SendResult::new(ClientMessageId::parse("deploy-1").unwrap(), status);
        result.code = code.map(str::to_owned);
        result
    }

    #[test]
    fn every_kind_of_answer() {
        let id = BrokerMessageId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap();
        for status in [200, 201] {
            let mut result = answer(status, None);
            assert!(matches!(judge(&result, false), Judged::Nonsense(_)));
            (result.broker_message_id, result.history_id) = (Some(id), Some(7));
            let delivery = Delivery { broker_message_id: id, history_id: Some(7) };
            assert_eq!(judge(&result, false), Judged::Done(delivery));
            assert_eq!(judge(&result, true), Judged::Done(delivery));
        }
        let mut limited = answer(429, Some("rate_limited"));
        limited.retry_after_ms = Some(40);
        assert_eq!(judge(&limited, false), Judged::Wait(Duration::from_millis(40)));
        for status in [408, 500, 503, 599] {
            assert!(matches!(judge(&answer(status, None), false), Judged::Again(_)), "{status}");
        }
        let too_old = answer(410, Some("key_too_old_to_judge"));
        assert!(matches!(judge(&too_old, false), Judged::Dead(_, Outcome::Unknown)));
        for (status, code) in
            [(400, "invalid_field"), (403, "not_subscribed"), (404, "topic_not_found"), (409, "x")]
        {
            let refused = judge(&answer(status, Some(code)), false);
            assert!(matches!(refused, Judged::Dead(_, Outcome::Refused)), "{refused:?}");
            let elsewhere = judge(&answer(status, Some(code)), true);
            assert!(matches!(elsewhere, Judged::Dead(_, Outcome::Unknown)), "{elsewhere:?}");
        }
        assert!(matches!(judge(&answer(302, None), false), Judged::Nonsense(_)));
    }
}

//! The ledgers as an operator reads them: attempts, and what was refused.

use std::fmt::Write;

use semel_core::rfc3339;
use semel_wire::http::Problem;
use semel_wire::path;
use serde_json::{Value, json};

use super::{AUDIT, Answer, failed};
use crate::registrar::Registrar;
use crate::store::{Audit, AuditLine};

/// A page, the newest first. Of a domain that another registrar decides over, it is that one's.
pub(crate) async fn list(
    registrar: &Registrar,
    (audit, domain): (Audit, Option<&str>),
    before: Option<i64>,
    limit: u32,
) -> Result<Answer, Problem> {
    let registrar = registrar.over(domain.unwrap_or_default());
    // One more than the page tells whether there is a next one.
    let listed = registrar.audit(audit, before.unwrap_or(i64::MAX), limit + 1).await;
    let mut lines = listed.map_err(failed)?;
    let page = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = lines.len() > page;
    lines.truncate(page);
    let next = lines.last().filter(|_| more).map(|last| {
        let domain = domain.map(|domain| format!("&domain={}", path::encode(domain)));
        let (domain, before) = (domain.unwrap_or_default(), last.entry);
        format!("{AUDIT}?ledger={audit}{domain}&before={before}&limit={limit}")
    });
    let items: Vec<Value> = lines.iter().map(item).collect();
    Ok(Answer::ok(&json!({"items": items, "next": next})))
}

fn item(line: &AuditLine) -> Value {
    json!({
        "entry": line.entry,
        "event": line.event,
        "logical_request_key": hex(&line.logical_request_key),
        "attempt_id": line.attempt_id,
        "outcome": line.outcome,
        "at": rfc3339::format(line.at),
        "closes": line.closes,
        "domain": line.domain,
        "nonce": line.nonce.as_deref().map(hex),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

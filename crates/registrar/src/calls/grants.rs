//! Grants: issued, listed and revoked.

use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::refusal::Refusal;
use semel_core::rfc3339;
use semel_wire::http::Problem;
use semel_wire::path;
use serde_json::{Value, json};

use super::{Answer, GRANTS, failed};
use crate::document::Fields;
use crate::envelope::Envelope;
use crate::grant::Nonce;
use crate::key::ReplayKey;
use crate::registrar::Registrar;
use crate::store::{Granted, Revoking};

/// Allows a request.
pub(crate) async fn issue(registrar: &Registrar, mut fields: Fields) -> Result<Answer, Problem> {
    let read = || {
        let envelope = Envelope::take(&mut fields)?;
        let not_before = fields.optional_moment("not_before")?;
        let not_after = fields.optional_moment("not_after")?;
        fields.finish().map(|()| (envelope, (not_before, not_after)))
    };
    let (envelope, window) = read().map_err(Problem::of)?;
    if let (Some(from), Some(to)) = window
        && to < from
    {
        let refusal = Refusal::at(Code::InvalidField, "/not_after", "is before not_before");
        return Err(Problem::of(refusal));
    }
    let registrar = registrar.over(&envelope.domain);
    let grant = registrar.grant_issue(&envelope, window).await.map_err(failed)?;
    let Some(grant) = grant else {
        return Err(Problem::new(Code::AuthorityMissing, "there is no local authority"));
    };
    Ok(Answer::created(&json!({
        "grant": grant.to_json(),
        "nonce": grant.nonce.to_string(),
        "logical_request_key": grant.logical_request_key.to_string(),
        "replay_key": ReplayKey::of(&envelope).to_string(),
        "domain": grant.domain,
        "not_before": rfc3339::format(grant.not_before),
        "not_after": rfc3339::format(grant.not_after),
        "issuer": grant.issuer.to_string(),
    })))
}

/// A page of a domain's grants.
pub(crate) async fn list(
    registrar: &Registrar,
    domain: &str,
    after: Option<String>,
    limit: u32,
) -> Result<Answer, Problem> {
    let after = after
        .map(|text| Hex::parse(&text).map(Nonce))
        .transpose()
        .map_err(|refusal| Problem::new(Code::InvalidField, format!("after {}", refusal.detail)))?;
    // One more than the page tells whether there is a next one.
    let listed = registrar.over(domain).grant_list(domain, after, limit + 1).await;
    let mut grants = listed.map_err(failed)?;
    let page = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = grants.len() > page;
    grants.truncate(page);
    let next = grants.last().filter(|_| more).map(|last| {
        let (domain, nonce) = (path::encode(domain), last.nonce);
        format!("{GRANTS}?domain={domain}&after={nonce}&limit={limit}")
    });
    let items: Vec<Value> = grants.iter().map(item).collect();
    Ok(Answer::ok(&json!({"items": items, "next": next})))
}

fn item(grant: &Granted) -> Value {
    json!({
        "nonce": grant.nonce.to_string(),
        "logical_request_key": grant.logical_request_key.to_string(),
        "state": grant.state.as_str(),
        "not_before": rfc3339::format(grant.window.0),
        "not_after": rfc3339::format(grant.window.1),
        "issued_at": rfc3339::format(grant.issued_at),
    })
}

/// Takes one back.
pub(crate) async fn revoke(registrar: &Registrar, nonce: Nonce) -> Result<Answer, Problem> {
    for registrar in registrar.all() {
        match registrar.grant_revoke(nonce).await.map_err(failed)? {
            Revoking::Revoked => return Ok(Answer::done()),
            Revoking::Consumed => {
                let problem = Problem::new(Code::ReplayNonceConsumed, "the grant was used already");
                return Err(problem);
            }
            Revoking::Unknown => {}
        }
    }
    Err(Problem::new(Code::GrantNotFound, "there is no such grant"))
}

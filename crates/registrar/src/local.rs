//! The registrar on the local API: the same calls as at the broker's door. Whoever may call there
//! (the socket's owner, or who has the token) is the operator.

mod schema;

use std::sync::Arc;

use semel_api::field::{Field, Kind, NUMBER_MAX};
use semel_api::part::{Part, State};
use semel_api::problem::Problem;
use semel_api::route::{Answer, Call, Reply, Route};
use semel_core::code::Code;
use serde_json::Value;

use crate::calls::{self, AUDIT, GRANTS, audits, effects, gates, grants, key, nonce, sweeps};
use crate::document::Fields;
use crate::limits::{
    BODY_BYTES_MAX, DOMAIN_BYTES_MAX, NAME_BYTES_MAX, NOTE_BYTES_MAX, PAGE_DEFAULT, PAGE_MAX,
    RETENTION_DAYS_MAX, RETENTION_DAYS_MIN,
};
use crate::registrar::Registrar;
use crate::store::Audit;

impl State for Registrar {
    fn problem_fields() -> Vec<(&'static str, Value)> {
        schema::problem_fields()
    }
}

/// The registrar's calls.
pub fn part(registrar: Arc<Registrar>) -> Part {
    Part::new(registrar, ROUTES)
}

const ENVELOPE: Field = Field::needed("envelope", Kind::Object, "the effect to register");
const DOMAIN: Field =
    Field::needed("domain", Kind::Name { bytes_max: DOMAIN_BYTES_MAX }, "the domain");
const ATTEMPT: &[Field] = &[
    ENVELOPE,
    Field::needed("grant", Kind::Object, "the grant that allows it"),
    Field::needed(
        "attempt_id",
        Kind::Name { bytes_max: NAME_BYTES_MAX },
        "the name of this attempt",
    ),
];

const REGISTERED: &[Answer] = &[
    Answer::json(201, "the effect is registered now: carry it out", schema::registered),
    Answer::json(200, "an exact retry: the effect that was registered before", schema::registered),
];
const NOT_REGISTERED: &[Code] = &[
    Code::NotFound,
    Code::RegistrationHold,
    Code::ReplayDuplicate,
    Code::ReplayAttemptNoBypass,
    Code::ReplayNonceConsumed,
    Code::NonceRevoked,
    Code::NonceUnbound,
    Code::AttemptCollision,
    Code::UncertainCommit,
    Code::RequestStale,
    Code::VerificationFailed,
    Code::CompensationNotAllowed,
    Code::EffectNotFound,
    Code::OutcomeUnknown,
];

const ROUTES: &[Route<Registrar>] = &[
    Route {
        name: "grant_issue",
        body: &[
            ENVELOPE,
            Field::new("not_before", Kind::Time, "start of validity; default: now"),
            Field::new(
                "not_after",
                Kind::Time,
                "end of validity; default: when the request becomes stale",
            ),
        ],
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: &[Answer::json(201, "the grant", schema::granted)],
        problems: &[Code::AuthorityMissing, Code::OutcomeUnknown],
        ..Route::post(GRANTS, "Allows a request, once", |call| Box::pin(grant_issue(call)))
    },
    Route {
        name: "grant_list",
        query: &[
            DOMAIN,
            Field::new(
                "after",
                Kind::Name { bytes_max: 64 },
                "only grants after the one with this nonce",
            ),
            Field::new("limit", Kind::Number { min: 1, max: PAGE_MAX as i64 }, "at most this many"),
        ],
        answers: &[Answer::json(200, "grants by nonce", schema::grants)],
        ..Route::get(GRANTS, "Lists grants of a domain", |call| Box::pin(grant_list(call)))
    },
    Route {
        name: "grant_revoke",
        answers: &[Answer::empty(204, "the grant is revoked")],
        problems: &[
            Code::NotFound,
            Code::GrantNotFound,
            Code::ReplayNonceConsumed,
            Code::OutcomeUnknown,
        ],
        ..Route::delete("/v1/grants/{id}", "Revokes the grant with this nonce", |call| {
            Box::pin(grant_revoke(call))
        })
    },
    Route {
        name: "effect_register",
        body: ATTEMPT,
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: REGISTERED,
        problems: NOT_REGISTERED,
        ..Route::post("/v1/effects", "Registers an effect, once", |call| Box::pin(register(call)))
    },
    Route {
        name: "effect_resolve",
        query: &[Field::new(
            "mode",
            Kind::Word(&["resolve", "show"]),
            "resolve waits for lost attempts and closes them; show only looks",
        )],
        answers: &[Answer::json(200, "the outcome of the request", schema::effect)],
        problems: &[Code::NotFound, Code::EffectNotFound, Code::OutcomeUnknown],
        ..Route::get("/v1/effects/{id}", "Shows the outcome of a request, by its key", |call| {
            Box::pin(resolve(call))
        })
    },
    Route {
        name: "effect_verify",
        body: &[
            Field::needed("verdict", Kind::Word(&["passed", "failed"]), "the verdict"),
            Field::new("note", Kind::Name { bytes_max: NOTE_BYTES_MAX }, "the findings, in words"),
        ],
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: &[Answer::json(200, "the verdict is recorded", schema::verified)],
        problems: &[
            Code::NotFound,
            Code::EffectNotFound,
            Code::VerdictExists,
            Code::OutcomeUnknown,
        ],
        ..Route::post("/v1/effects/{id}/verify", "Records whether an effect is correct", |call| {
            Box::pin(verify(call))
        })
    },
    Route {
        name: "effect_compensate",
        body: ATTEMPT,
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: REGISTERED,
        problems: NOT_REGISTERED,
        ..Route::post(
            "/v1/effects/{id}/compensate",
            "Registers the compensation of an effect that has failed",
            |call| Box::pin(compensate(call)),
        )
    },
    Route {
        name: "gate_show",
        query: &[DOMAIN],
        answers: &[Answer::json(200, "the gate's state", schema::gate)],
        ..Route::get(
            "/v1/registrar/gate",
            "Shows whether registrations are allowed or held",
            |call| Box::pin(gate_show(call)),
        )
    },
    Route {
        name: "gate_set",
        body: &[
            DOMAIN,
            Field::needed("action", Kind::Word(&["open", "hold"]), "open or hold the gate"),
        ],
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: &[Answer::json(200, "the gate's new state", schema::gate)],
        problems: &[Code::OutcomeUnknown],
        ..Route::post("/v1/registrar/gate", "Allows or holds registrations", |call| {
            Box::pin(gate_set(call))
        })
    },
    Route {
        name: "audit_list",
        query: &[
            Field::needed("ledger", Kind::Word(&["attempts", "failures"]), "which ledger"),
            Field::new(
                "domain",
                Kind::Name { bytes_max: DOMAIN_BYTES_MAX },
                "only this domain; the ledger of job approvals is kept beside the jobs",
            ),
            Field::new(
                "before",
                Kind::Number { min: 1, max: NUMBER_MAX },
                "only lines before this entry",
            ),
            Field::new("limit", Kind::Number { min: 1, max: PAGE_MAX as i64 }, "at most this many"),
        ],
        answers: &[Answer::json(200, "lines, newest first", schema::audit)],
        ..Route::get(AUDIT, "Shows attempts or refusals", |call| Box::pin(audit(call)))
    },
    Route {
        name: "ledger_sweep",
        body: &[Field::needed(
            "older_than_days",
            Kind::Number { min: RETENTION_DAYS_MIN as i64, max: RETENTION_DAYS_MAX as i64 },
            "delete only lines that are older than this many days",
        )],
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: &[Answer::json(200, "the deleted lines", schema::swept)],
        problems: &[Code::OutcomeUnknown],
        ..Route::post("/v1/registrar/sweep", "Deletes old lines of the ledgers", |call| {
            Box::pin(sweep(call))
        })
    },
];

fn reply(answer: calls::Answer) -> Reply {
    match answer.body {
        None => Reply::empty(answer.status),
        Some(body) if answer.status < 400 => Reply::json(answer.status, body),
        Some(body) => Reply::problem(answer.status, body),
    }
}

async fn grant_issue(call: Call<Registrar>) -> Result<Reply, Problem> {
    let fields = Fields::of_object(call.body.into_object());
    Ok(reply(grants::issue(&call.state, fields).await?))
}

async fn grant_list(mut call: Call<Registrar>) -> Result<Reply, Problem> {
    let domain = call.query.text("domain").unwrap_or_default();
    let limit = call.query.number("limit").and_then(|limit| u32::try_from(limit).ok());
    let after = call.query.text("after");
    let limit = limit.unwrap_or(PAGE_DEFAULT);
    Ok(reply(grants::list(&call.state, &domain, after, limit).await?))
}

async fn grant_revoke(call: Call<Registrar>) -> Result<Reply, Problem> {
    Ok(reply(grants::revoke(&call.state, nonce(&call.id)?).await?))
}

async fn register(call: Call<Registrar>) -> Result<Reply, Problem> {
    let fields = Fields::of_object(call.body.into_object());
    Ok(reply(effects::register(&call.state, fields, None).await?))
}

async fn compensate(call: Call<Registrar>) -> Result<Reply, Problem> {
    let key = key(&call.id)?;
    let fields = Fields::of_object(call.body.into_object());
    Ok(reply(effects::register(&call.state, fields, Some(key)).await?))
}

/// It closes attempts, although it only looks: so it is done to its end, too.
async fn resolve(call: Call<Registrar>) -> Result<Reply, Problem> {
    match tokio::spawn(resolve_whole(call)).await {
        Ok(resolved) => resolved,
        Err(_) => Err(Problem::new(Code::OutcomeUnknown, "the call was cut short")),
    }
}

async fn resolve_whole(mut call: Call<Registrar>) -> Result<Reply, Problem> {
    let key = key(&call.id)?;
    let mode = call.query.text("mode");
    Ok(reply(effects::resolve(&call.state, key, mode.as_deref()).await?))
}

async fn verify(call: Call<Registrar>) -> Result<Reply, Problem> {
    let key = key(&call.id)?;
    let fields = Fields::of_object(call.body.into_object());
    Ok(reply(effects::verify(&call.state, key, fields).await?))
}

async fn gate_show(mut call: Call<Registrar>) -> Result<Reply, Problem> {
    let domain = call.query.text("domain").unwrap_or_default();
    Ok(reply(gates::show(&call.state, &domain).await?))
}

async fn gate_set(call: Call<Registrar>) -> Result<Reply, Problem> {
    let fields = Fields::of_object(call.body.into_object());
    Ok(reply(gates::set(&call.state, fields).await?))
}

async fn audit(mut call: Call<Registrar>) -> Result<Reply, Problem> {
    let ledger = call.query.text("ledger").as_deref().and_then(Audit::parse);
    let ledger = ledger.unwrap_or(Audit::Attempts);
    let (domain, before) = (call.query.text("domain"), call.query.number("before"));
    let limit = call.query.number("limit").and_then(|limit| u32::try_from(limit).ok());
    let limit = limit.unwrap_or(PAGE_DEFAULT);
    let listed = audits::list(&call.state, (ledger, domain.as_deref()), before, limit);
    Ok(reply(listed.await?))
}

async fn sweep(call: Call<Registrar>) -> Result<Reply, Problem> {
    let fields = Fields::of_object(call.body.into_object());
    Ok(reply(sweeps::sweep(&call.state, fields).await?))
}

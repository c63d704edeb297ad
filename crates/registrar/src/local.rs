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

const ENVELOPE: Field = Field::needed("envelope", Kind::Object, "what is to happen");
const DOMAIN: Field =
    Field::needed("domain", Kind::Name { bytes_max: DOMAIN_BYTES_MAX }, "whose grants or gate");
const ATTEMPT: &[Field] = &[
    ENVELOPE,
    Field::needed("grant", Kind::Object, "who allows it"),
    Field::needed("attempt_id", Kind::Name { bytes_max: NAME_BYTES_MAX }, "which try this is"),
];

const REGISTERED: &[Answer] = &[
    Answer::json(201, "it is registered now: do it", schema::registered),
    Answer::json(200, "an exact retry: what was registered then", schema::registered),
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
        body: &[
            ENVELOPE,
            Field::new("not_before", Kind::Time, "not valid before; now if it is not given"),
            Field::new("not_after", Kind::Time, "not valid after; until the request is stale"),
        ],
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: &[Answer::json(201, "a grant", schema::granted)],
        problems: &[Code::AuthorityMissing, Code::OutcomeUnknown],
        ..Route::post(GRANTS, "Allows a request, once", |call| Box::pin(grant_issue(call)))
    },
    Route {
        query: &[
            DOMAIN,
            Field::new("after", Kind::Name { bytes_max: 64 }, "after the grant with this nonce"),
            Field::new("limit", Kind::Number { min: 1, max: PAGE_MAX as i64 }, "at the most"),
        ],
        answers: &[Answer::json(200, "grants by nonce", schema::grants)],
        ..Route::get(GRANTS, "Lists grants of a domain", |call| Box::pin(grant_list(call)))
    },
    Route {
        answers: &[Answer::empty(204, "it allows nothing any more")],
        problems: &[
            Code::NotFound,
            Code::GrantNotFound,
            Code::ReplayNonceConsumed,
            Code::OutcomeUnknown,
        ],
        ..Route::delete("/v1/grants/{id}", "Takes the grant with this nonce back", |call| {
            Box::pin(grant_revoke(call))
        })
    },
    Route {
        body: ATTEMPT,
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: REGISTERED,
        problems: NOT_REGISTERED,
        ..Route::post("/v1/effects", "Registers an effect, once", |call| Box::pin(register(call)))
    },
    Route {
        query: &[Field::new(
            "mode",
            Kind::Word(&["resolve", "show"]),
            "show waits for nothing and closes nothing",
        )],
        answers: &[Answer::json(200, "what happened to it", schema::effect)],
        problems: &[Code::NotFound, Code::EffectNotFound, Code::OutcomeUnknown],
        ..Route::get("/v1/effects/{id}", "Says what happened to a request, by its key", |call| {
            Box::pin(resolve(call))
        })
    },
    Route {
        body: &[
            Field::needed("verdict", Kind::Word(&["passed", "failed"]), "how it is"),
            Field::new("note", Kind::Name { bytes_max: NOTE_BYTES_MAX }, "what was found"),
        ],
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: &[Answer::json(200, "it is written down", schema::verified)],
        problems: &[
            Code::NotFound,
            Code::EffectNotFound,
            Code::VerdictExists,
            Code::OutcomeUnknown,
        ],
        ..Route::post(
            "/v1/effects/{id}/verify",
            "Says whether an effect is as it should be",
            |call| Box::pin(verify(call)),
        )
    },
    Route {
        body: ATTEMPT,
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: REGISTERED,
        problems: NOT_REGISTERED,
        ..Route::post(
            "/v1/effects/{id}/compensate",
            "Compensates an effect that has failed",
            |call| Box::pin(compensate(call)),
        )
    },
    Route {
        query: &[DOMAIN],
        answers: &[Answer::json(200, "which it is", schema::gate)],
        ..Route::get("/v1/registrar/gate", "Says whether registrations pass", |call| {
            Box::pin(gate_show(call))
        })
    },
    Route {
        body: &[DOMAIN, Field::needed("action", Kind::Word(&["open", "hold"]), "what to do")],
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: &[Answer::json(200, "which it is now", schema::gate)],
        problems: &[Code::OutcomeUnknown],
        ..Route::post("/v1/registrar/gate", "Lets registrations pass, or holds them", |call| {
            Box::pin(gate_set(call))
        })
    },
    Route {
        query: &[
            Field::needed("ledger", Kind::Word(&["attempts", "failures"]), "which ledger"),
            Field::new("domain", Kind::Name { bytes_max: DOMAIN_BYTES_MAX }, "whose registrar"),
            Field::new("before", Kind::Number { min: 1, max: NUMBER_MAX }, "before this entry"),
            Field::new("limit", Kind::Number { min: 1, max: PAGE_MAX as i64 }, "at the most"),
        ],
        answers: &[Answer::json(200, "lines, the newest first", schema::audit)],
        ..Route::get(AUDIT, "Shows attempts, or what was refused", |call| Box::pin(audit(call)))
    },
    Route {
        body: &[Field::needed(
            "older_than_days",
            Kind::Number { min: RETENTION_DAYS_MIN as i64, max: RETENTION_DAYS_MAX as i64 },
            "lines that are younger stay",
        )],
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: &[Answer::json(200, "what is forgotten", schema::swept)],
        problems: &[Code::OutcomeUnknown],
        ..Route::post("/v1/registrar/sweep", "Forgets old lines of the ledgers", |call| {
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

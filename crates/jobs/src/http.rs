//! The calls of the job engine (jobs.md §10), a part of the local API: they share its doors, its
//! token and its limits.

mod events;
mod look;
mod person;
mod schema;
mod submit;

use std::sync::Arc;

use prometheus_client::registry::Registry;
use semel_api::events::{AFTER, LAST_EVENT_ID};
use semel_api::field::{Field, Kind, NUMBER_MAX};
use semel_api::part::{Health, Part, State};
use semel_api::problem::Problem;
use semel_api::route::{Answer, Route};
use semel_core::code::Code;
use semel_core::id::JobId;
use serde_json::{Value, json};

use crate::engine::{Engine, Refused};
use crate::gear::load::Loader;
use crate::limits::{DOCUMENT_BYTES_MAX, NAME_BYTES_MAX, REQUEST_BYTES_MAX};

/// What the calls share.
pub struct Jobs {
    engine: Arc<Engine>,
    loader: Arc<Loader>,
}

impl State for Jobs {
    fn metrics(&self, registry: &mut Registry) {
        self.engine.register_metrics(registry);
    }

    fn health(&self) -> Option<Health<'_>> {
        Some(("jobs", Box::pin(health(&self.engine))))
    }

    fn problem_fields() -> Vec<(&'static str, Value)> {
        vec![
            ("job_id?", semel_api::schema::text()),
            ("jobs?", semel_api::schema::array(schema::taken())),
        ]
    }
}

/// The part of an API that is about this engine, whose gears come from there.
pub fn part(engine: Arc<Engine>, loader: Arc<Loader>) -> Part {
    Part::new(Arc::new(Jobs { engine, loader }), ROUTES)
}

/// How an engine is: whether its store takes a commit, and what there is to do.
pub async fn health(engine: &Engine) -> Result<Value, Problem> {
    engine.probe().await?;
    let (pending, under_way) = engine.store().depth().await?;
    let busy = engine.workers().0;
    Ok(json!({"pending": pending, "under_way": under_way, "busy": busy}))
}

const NAME: Kind = Kind::Name { bytes_max: NAME_BYTES_MAX };
const HASH: Kind = Kind::Name { bytes_max: 64 };
const PRIORITY: Kind = Kind::Word(&["critical", "high", "normal", "low"]);
const STATUS: Kind = Kind::Word(&[
    "pending",
    "planning",
    "validating",
    "awaiting_approval",
    "executing",
    "completed",
    "failed",
    "cancelled",
]);
const CLASS: Kind =
    Kind::Word(&["transient", "gear_bug", "plan_rejected", "user_error", "resource_limit"]);
const REASON: Field = Field::new("reason", Kind::Text { bytes_max: 1024 }, "the reason, in words");
const LIMIT: Field =
    Field::new("limit", Kind::Number { min: 1, max: 500 }, "at most this many items; default: 50");
/// A plan of the largest size, and what surrounds it.
const BODY_BYTES_MAX: usize = DOCUMENT_BYTES_MAX + 64 * 1024;

const SUBMIT_PROBLEMS: &[Code] = &[
    Code::InvalidPlan,
    Code::GearNotFound,
    Code::GearDisabled,
    Code::ResourceConflict,
    Code::PlannerMissing,
    Code::IdempotencyKeyReused,
    Code::PayloadTooLarge,
    Code::InsufficientStorage,
];

const ROUTES: &[Route<Jobs>] = &[
    Route {
        name: "job_submit",
        headers: &[Field::new("idempotency-key", Kind::Id, "the job is made once under this key")],
        body: &[
            Field::new("request", Kind::Text { bytes_max: REQUEST_BYTES_MAX }, "the task in words"),
            Field::new("plan", Kind::Any, "the task as a plan"),
            Field::new("conversation_id", NAME, "jobs of one conversation run one after the other"),
            Field::new("priority", PRIORITY, "the job's priority; default: normal"),
            Field::new(
                "timeout_ms",
                Kind::Number { min: 1, max: NUMBER_MAX },
                "the job's time limit; default: 300,000",
            ),
        ],
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: &[
            Answer::json(201, "the job was taken in", schema::taken),
            Answer::json(200, "the job already existed", schema::taken),
        ],
        problems: SUBMIT_PROBLEMS,
        ..Route::post("/v1/jobs", "Submits a job", |call| Box::pin(submit::submit(call)))
    },
    Route {
        name: "job_list",
        query: &[
            Field::new("status", STATUS, "only jobs with this status"),
            Field::new("class", CLASS, "only failed jobs of this class"),
            Field::new("conversation", NAME, "only jobs of this conversation"),
            Field::new(
                "after",
                Kind::Number { min: 0, max: NUMBER_MAX },
                "the end of the previous page",
            ),
            LIMIT,
        ],
        answers: &[Answer::json(200, "jobs, newest first", schema::summaries)],
        ..Route::get("/v1/jobs", "Lists jobs", |call| Box::pin(look::list(call)))
    },
    Route {
        name: "job_patterns",
        query: &[Field::new(
            "minutes",
            Kind::Number { min: 1, max: 60 * 24 * 30 },
            "how far to look back; default: 60",
        )],
        answers: &[Answer::json(200, "failures, the most frequent first", schema::patterns)],
        ..Route::get("/v1/jobs/patterns", "Counts failures that repeat", |call| {
            Box::pin(look::patterns(call))
        })
    },
    Route {
        name: "job_retry_class",
        body: &[Field::needed("class", CLASS, "repeat the failed jobs of this class")],
        answers: &[Answer::json(200, "the new jobs", schema::retried)],
        problems: &[Code::InsufficientStorage],
        ..Route::post("/v1/jobs/retry", "Repeats all failed jobs of a class", |call| {
            Box::pin(person::retry_class(call))
        })
    },
    Route {
        name: "job_show",
        answers: &[Answer::json(200, "the job", schema::whole)],
        problems: &[Code::JobNotFound],
        ..Route::get("/v1/jobs/{id}", "Shows a job", |call| Box::pin(look::show(call)))
    },
    Route {
        name: "job_events",
        headers: &[LAST_EVENT_ID],
        query: &[AFTER],
        answers: &[Answer::events("events of the job; the stream ends with the job")],
        problems: &[Code::JobNotFound, Code::TooManyStreams],
        ..Route::get("/v1/jobs/{id}/events", "Streams the events of a job", |call| {
            Box::pin(events::stream(call))
        })
    },
    Route {
        name: "job_artifact",
        query: &[Field::needed("sha256", HASH, "the file's hash, 64 lower-case hex digits")],
        answers: &[Answer::file("the file")],
        problems: &[Code::JobNotFound, Code::ArtifactNotFound, Code::TooManyStreams],
        ..Route::get("/v1/jobs/{id}/artifact", "Downloads a file that a step produced", |call| {
            Box::pin(look::artifact(call))
        })
    },
    Route {
        name: "job_approve",
        body: &[
            Field::needed("plan_hash", NAME, "the hash of the approved plan"),
            Field::new(
                "answer",
                Kind::Word(&["approve", "happened", "run"]),
                "approve the plan, or say of a step in question: it happened, or run it",
            ),
            Field::new(
                "question",
                Kind::Number { min: 0, max: NUMBER_MAX },
                "the number of the question that is answered",
            ),
            Field::new("result", Kind::Any, "the step's result, if it happened"),
        ],
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: &[Answer::json(200, "the job goes on", schema::moved)],
        problems: &[
            Code::JobNotFound,
            Code::JobNotWaiting,
            Code::PlanChanged,
            Code::ApprovalRefused,
            Code::AuthorityMissing,
            Code::PayloadTooLarge,
            Code::InsufficientStorage,
        ],
        ..Route::post("/v1/jobs/{id}/approve", "Approves exactly this plan, once", |call| {
            Box::pin(person::approve(call))
        })
    },
    Route {
        name: "job_reject",
        body: &[REASON],
        answers: &[Answer::json(200, "the job was cancelled", schema::moved)],
        problems: &[Code::JobNotFound, Code::JobNotWaiting, Code::InsufficientStorage],
        ..Route::post("/v1/jobs/{id}/reject", "Rejects a plan or a step; cancels the job", |call| {
            Box::pin(person::reject(call))
        })
    },
    Route {
        name: "job_cancel",
        body: &[REASON],
        answers: &[Answer::json(200, "the job was cancelled", schema::moved)],
        problems: &[Code::JobNotFound, Code::JobEnded, Code::InsufficientStorage],
        ..Route::post("/v1/jobs/{id}/cancel", "Cancels a job and stops its running steps", |call| {
            Box::pin(person::cancel(call))
        })
    },
    Route {
        name: "job_retry",
        answers: &[Answer::json(201, "a new job repeats it", schema::taken)],
        problems: &[
            Code::JobNotFound,
            Code::JobNotFailed,
            Code::JobRepeating,
            Code::InsufficientStorage,
        ],
        ..Route::post("/v1/jobs/{id}/retry", "Repeats a failed job", |call| {
            Box::pin(person::retry(call))
        })
    },
    Route {
        name: "breaker_list",
        answers: &[Answer::json(200, "breakers by name", schema::breakers)],
        ..Route::get("/v1/breakers", "Lists breakers", |call| Box::pin(look::breakers(call)))
    },
    Route {
        name: "breaker_close",
        body: &[Field::needed("action", NAME, "the action, as gear.action")],
        answers: &[Answer::json(200, "the breaker is closed", schema::closed)],
        problems: &[Code::BreakerNotFound, Code::InsufficientStorage],
        ..Route::post("/v1/breakers/close", "Closes a breaker by hand", |call| {
            Box::pin(person::breaker_close(call))
        })
    },
    Route {
        name: "gear_list",
        answers: &[Answer::json(200, "gears by name", schema::gears)],
        ..Route::get("/v1/gears", "Lists gears and their actions", |call| {
            Box::pin(look::gears(call))
        })
    },
    Route {
        name: "gear_refresh",
        answers: &[Answer::json(200, "gears by name, after the reload", schema::gears)],
        ..Route::post("/v1/gears/refresh", "Reloads the gears that are installed now", |call| {
            Box::pin(look::gears_refresh(call))
        })
    },
];

fn id_of(text: &str) -> Result<JobId, Problem> {
    let missing = || Problem::new(Code::JobNotFound, format!("there is no job {text:?}"));
    JobId::parse(text).ok_or_else(missing)
}

fn problem(refused: Refused) -> Problem {
    match refused {
        Refused::Refusal(refusal) => refusal.into(),
        Refused::Store(error) => error.into(),
        Refused::Unknown(id, error) => {
            let mut problem = Problem::from(error).with("job_id", id.to_string());
            problem.detail.push_str(&format!("; if it was, it is the job {id}"));
            problem
        }
    }
}

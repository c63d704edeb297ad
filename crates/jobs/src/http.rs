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
        vec![("job_id?", semel_api::schema::text())]
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
const REASON: Field = Field::new("reason", Kind::Text { bytes_max: 1024 }, "why, for the record");
const LIMIT: Field =
    Field::new("limit", Kind::Number { min: 1, max: 500 }, "items at the most; 50 without it");
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
        headers: &[Field::new("idempotency-key", Kind::Id, "the job is made once under this key")],
        body: &[
            Field::new("request", Kind::Text { bytes_max: REQUEST_BYTES_MAX }, "in words"),
            Field::new("plan", Kind::Any, "or as a plan"),
            Field::new("conversation_id", NAME, "jobs of one conversation run in order"),
            Field::new("priority", PRIORITY, "how urgent it is; normal without it"),
            Field::new(
                "timeout_ms",
                Kind::Number { min: 1, max: NUMBER_MAX },
                "how long it may take; 300,000 without it",
            ),
        ],
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: &[
            Answer::json(201, "it waits for a worker", schema::taken),
            Answer::json(200, "it was there already", schema::taken),
        ],
        problems: SUBMIT_PROBLEMS,
        ..Route::post("/v1/jobs", "Takes a job in", |call| Box::pin(submit::submit(call)))
    },
    Route {
        query: &[
            Field::new("status", STATUS, "that stand there"),
            Field::new("class", CLASS, "that failed so"),
            Field::new("conversation", NAME, "of this conversation"),
            Field::new(
                "after",
                Kind::Number { min: 0, max: NUMBER_MAX },
                "where the last page ended",
            ),
            LIMIT,
        ],
        answers: &[Answer::json(200, "jobs, the newest first", schema::summaries)],
        ..Route::get("/v1/jobs", "Lists jobs", |call| Box::pin(look::list(call)))
    },
    Route {
        query: &[Field::new(
            "minutes",
            Kind::Number { min: 1, max: 60 * 24 * 30 },
            "how far to look back; 60 without it",
        )],
        answers: &[Answer::json(200, "what failed, the most often first", schema::patterns)],
        ..Route::get("/v1/jobs/patterns", "Counts what fails again and again", |call| {
            Box::pin(look::patterns(call))
        })
    },
    Route {
        body: &[Field::needed("class", CLASS, "failed jobs of this class")],
        answers: &[Answer::json(200, "the jobs that repeat them", schema::retried)],
        problems: &[Code::InsufficientStorage],
        ..Route::post("/v1/jobs/retry", "Repeats all failed jobs of a class", |call| {
            Box::pin(person::retry_class(call))
        })
    },
    Route {
        answers: &[Answer::json(200, "the job", schema::whole)],
        problems: &[Code::JobNotFound],
        ..Route::get("/v1/jobs/{id}", "Shows a job", |call| Box::pin(look::show(call)))
    },
    Route {
        headers: &[LAST_EVENT_ID],
        query: &[AFTER],
        answers: &[Answer::events("what happens to the job; ends with it")],
        problems: &[Code::JobNotFound, Code::TooManyStreams],
        ..Route::get("/v1/jobs/{id}/events", "Streams what happens to a job", |call| {
            Box::pin(events::stream(call))
        })
    },
    Route {
        query: &[Field::needed("sha256", HASH, "its hash, in 64 lower-case hexadecimal digits")],
        answers: &[Answer::file("the file")],
        problems: &[Code::JobNotFound, Code::ArtifactNotFound, Code::TooManyStreams],
        ..Route::get("/v1/jobs/{id}/artifact", "Gives a file that a step gave", |call| {
            Box::pin(look::artifact(call))
        })
    },
    Route {
        body: &[
            Field::needed("plan_hash", NAME, "the hash of the plan that is approved"),
            Field::new(
                "answer",
                Kind::Word(&["approve", "happened", "run"]),
                "to \"this step may have happened\": it happened, or run it",
            ),
            Field::new(
                "question",
                Kind::Number { min: 0, max: NUMBER_MAX },
                "the number of the question that \"happened\" or \"run\" answers",
            ),
            Field::new("result", Kind::Any, "what it gave, if it happened"),
        ],
        body_bytes_max: Some(BODY_BYTES_MAX),
        answers: &[Answer::json(200, "it goes on", schema::moved)],
        problems: &[
            Code::JobNotFound,
            Code::JobNotWaiting,
            Code::PlanChanged,
            Code::ApprovalRefused,
            Code::AuthorityMissing,
            Code::PayloadTooLarge,
            Code::InsufficientStorage,
        ],
        ..Route::post("/v1/jobs/{id}/approve", "Approves this very plan, once", |call| {
            Box::pin(person::approve(call))
        })
    },
    Route {
        body: &[REASON],
        answers: &[Answer::json(200, "it was cancelled", schema::moved)],
        problems: &[Code::JobNotFound, Code::JobNotWaiting, Code::InsufficientStorage],
        ..Route::post("/v1/jobs/{id}/reject", "Rejects what a job waits for", |call| {
            Box::pin(person::reject(call))
        })
    },
    Route {
        body: &[REASON],
        answers: &[Answer::json(200, "it was cancelled", schema::moved)],
        problems: &[Code::JobNotFound, Code::JobEnded, Code::InsufficientStorage],
        ..Route::post("/v1/jobs/{id}/cancel", "Cancels a job and stops what runs for it", |call| {
            Box::pin(person::cancel(call))
        })
    },
    Route {
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
        answers: &[Answer::json(200, "breakers by name", schema::breakers)],
        ..Route::get("/v1/breakers", "Lists breakers", |call| Box::pin(look::breakers(call)))
    },
    Route {
        body: &[Field::needed("action", NAME, "gear.action")],
        answers: &[Answer::json(200, "it is closed", schema::closed)],
        problems: &[Code::BreakerNotFound, Code::InsufficientStorage],
        ..Route::post("/v1/breakers/close", "Closes a breaker by hand", |call| {
            Box::pin(person::breaker_close(call))
        })
    },
    Route {
        answers: &[Answer::json(200, "gears by name", schema::gears)],
        ..Route::get("/v1/gears", "Lists gears and their actions", |call| {
            Box::pin(look::gears(call))
        })
    },
    Route {
        answers: &[Answer::json(200, "gears by name, as they are now", schema::gears)],
        ..Route::post("/v1/gears/refresh", "Reads what was installed, enabled, disabled", |call| {
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

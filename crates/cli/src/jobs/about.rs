//! What an engine that runs alone says of itself; under `semel up` its daemon does.

use std::sync::Arc;

use semel_api::part::{Part, State};
use semel_api::problem::Problem;
use semel_api::route::{Answer, Call, JSON, Reply, Route};
use semel_api::schema;
use semel_jobs::engine::Engine;
use serde_json::{Value, json};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

struct Alone {
    engine: Arc<Engine>,
}

impl State for Alone {}

pub(super) fn part(engine: Arc<Engine>) -> Part {
    Part::new(Arc::new(Alone { engine }), ROUTES)
}

const ROUTES: &[Route<Alone>] = &[
    Route {
        name: "version",
        answers: &[Answer::json(200, "the version", versioned)],
        ..Route::get("/v1/version", "Shows the engine's version", |call| Box::pin(version(call)))
    },
    Route {
        name: "health",
        answers: &[Answer::json(200, "the engine's state", healthy)],
        ..Route::get("/v1/health", "Shows the engine's state", |call| Box::pin(health(call)))
    },
    Route {
        name: "metrics",
        answers: &[Answer {
            status: 200,
            content: OPENMETRICS,
            about: "OpenMetrics",
            schema: schema::text,
        }],
        ..Route::get("/v1/metrics", "Shows metrics", |call| Box::pin(metrics(call)))
    },
    Route {
        name: "openapi",
        answers: &[Answer::json(200, "OpenAPI 3.1", schema::openapi)],
        ..Route::get("/v1/openapi.json", "This document", |call| Box::pin(openapi(call)))
    },
];

fn versioned() -> Value {
    schema::record("EngineVersion", &[("engine_version", schema::text())])
}

async fn version(_call: Call<Alone>) -> Result<Reply, Problem> {
    Ok(Reply::value(&json!({"engine_version": env!("CARGO_PKG_VERSION")})))
}

fn healthy() -> Value {
    let number = schema::number;
    schema::record(
        "EngineHealth",
        &[("pending", number()), ("under_way", number()), ("busy", number())],
    )
}

async fn health(call: Call<Alone>) -> Result<Reply, Problem> {
    Ok(Reply::value(&semel_jobs::http::health(&call.state.engine).await?))
}

async fn metrics(call: Call<Alone>) -> Result<Reply, Problem> {
    Ok(Reply::text(OPENMETRICS, call.api().parts_metrics()))
}

async fn openapi(call: Call<Alone>) -> Result<Reply, Problem> {
    Ok(Reply::text(JSON, call.api().openapi().to_owned()))
}

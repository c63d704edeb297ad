//! Shapes of the answers, for the OpenAPI document.

use semel_api::schema::{
    array, flag, list_of, maybe_object, maybe_text, maybe_time, named, number, record, text, time,
    word,
};
use serde_json::{Value, json};

use crate::breaker::BreakerState;
use crate::gear::FailureClass;
use crate::life::JobStatus;

fn status() -> Value {
    let words: Vec<&str> = JobStatus::ALL.iter().map(|status| status.as_str()).collect();
    named("JobStatus", word(&words))
}

fn class() -> Value {
    let words: Vec<&str> = FailureClass::ALL.iter().map(|class| class.as_str()).collect();
    named("FailureClass", word(&words))
}

fn anything() -> Value {
    json!({})
}

pub(super) fn taken() -> Value {
    record("JobTaken", &[("id", text()), ("status", status()), ("deduplicated", flag())])
}

pub(super) fn moved() -> Value {
    record("JobMoved", &[("id", text()), ("status", status())])
}

pub(super) fn retried() -> Value {
    record(
        "JobsRetried",
        &[("jobs", array(taken())), ("more", flag()), ("stopped_by", maybe_text())],
    )
}

fn summary() -> Vec<(&'static str, Value)> {
    vec![
        ("id", text()),
        ("status", status()),
        ("priority", text()),
        ("conversation_id", maybe_text()),
        ("source", text()),
        ("retry_of", maybe_text()),
        ("parent_id", maybe_text()),
        ("current_step_index", number()),
        ("revision_count", number()),
        ("replan_count", number()),
        ("failure_class", maybe_text()),
        ("held_by", maybe_text()),
        ("created_at", time()),
        ("started_at", maybe_time()),
        ("completed_at", maybe_time()),
        ("deadline_at", maybe_time()),
        ("approval_expires_at", maybe_time()),
    ]
}

pub(super) fn summaries() -> Value {
    list_of(record("JobSummary", &summary()))
}

pub(super) fn whole() -> Value {
    let step = record(
        "JobStep",
        &[
            ("id", text()),
            ("gear", text()),
            ("action", text()),
            ("execution_id", text()),
            ("status", text()),
            ("attempts", number()),
            ("certain", flag()),
            ("result", anything()),
            ("error", maybe_object()),
            ("started_at", maybe_time()),
            ("completed_at", maybe_time()),
        ],
    );
    let mut fields = summary();
    fields.extend([
        ("request", maybe_text()),
        ("plan", maybe_object()),
        ("plan_hash", maybe_text()),
        ("steps", array(step)),
        ("question", maybe_object()),
        ("error", maybe_object()),
        ("result", anything()),
    ]);
    record("Job", &fields)
}

pub(super) fn patterns() -> Value {
    list_of(record(
        "JobPattern",
        &[
            ("class", class()),
            ("action", maybe_text()),
            ("count", number()),
            ("last_at", time()),
            ("text", text()),
        ],
    ))
}

pub(super) fn breakers() -> Value {
    let states: Vec<&str> = BreakerState::ALL.iter().map(|state| state.as_str()).collect();
    list_of(record(
        "Breaker",
        &[
            ("action", text()),
            ("state", named("BreakerState", word(&states))),
            ("window", text()),
            ("until", time()),
            ("open_for_ms", number()),
        ],
    ))
}

pub(super) fn closed() -> Value {
    record("BreakerClosed", &[("action", text()), ("state", text())])
}

pub(super) fn gears() -> Value {
    let action = record(
        "GearAction",
        &[
            ("name", text()),
            ("about", text()),
            ("risk", text()),
            ("recovery", text()),
            ("params", anything()),
            ("breaker_open", flag()),
        ],
    );
    list_of(record(
        "Gear",
        &[("id", text()), ("version", text()), ("enabled", flag()), ("actions", array(action))],
    ))
}

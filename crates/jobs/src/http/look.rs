//! Looking at jobs, failures, breakers and gears.

use std::sync::Arc;
use std::time::Duration;

use semel_api::page::Next;
use semel_api::problem::Problem;
use semel_api::route::{Call, Reply};
use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::refusal::Refusal;
use semel_core::rfc3339;
use serde_json::{Value, json};

use super::{Jobs, id_of};
use crate::gear::FailureClass;
use crate::life::JobStatus;
use crate::store::{JobNo, Kept, List};
use crate::view;

/// `GET /v1/jobs`.
pub(super) async fn list(mut call: Call<Jobs>) -> Result<Reply, Problem> {
    let limit = call.query.number("limit").unwrap_or(50);
    let (status, class) = (call.query.text("status"), call.query.text("class"));
    let conversation = call.query.text("conversation");
    let list = List {
        status: status.as_deref().and_then(JobStatus::parse),
        class: class.as_deref().and_then(FailureClass::parse),
        conversation: conversation.clone(),
        before: call.query.number("after").map(JobNo),
        limit: u32::try_from(limit).unwrap_or(50),
    };
    let listed = call.state.engine.store().list(list).await?;
    let items: Vec<Value> =
        listed.jobs.iter().map(|job| Value::Object(view::summary(job))).collect();
    let next = listed.next.map(|before| {
        Next::new("/v1/jobs", &before.0.to_string())
            .with("limit", Some(&limit.to_string()))
            .with("status", status.as_deref())
            .with("class", class.as_deref())
            .with("conversation", conversation.as_deref())
            .address()
    });
    Ok(Reply::value(&json!({"items": items, "next": next})))
}

/// `GET /v1/jobs/{id}`.
pub(super) async fn show(call: Call<Jobs>) -> Result<Reply, Problem> {
    Ok(Reply::value(&view::whole(&kept(&call).await?)))
}

/// `GET /v1/jobs/{id}/artifact`.
pub(super) async fn artifact(mut call: Call<Jobs>) -> Result<Reply, Problem> {
    // Nothing else that a caller says becomes a part of a path.
    let hash = call.query.text("sha256").unwrap_or_default();
    let hash = Hex::<32>::parse(&hash).map_err(|refusal| {
        Problem::from(Refusal::at(Code::InvalidField, "/sha256", refusal.detail))
    })?;
    let job = kept(&call).await?.job;
    let found = call.state.engine.artifact(job.root_id, hash).await.map_err(|error| {
        tracing::error!(%error, id = %job.id, %hash, "a file that was kept cannot be read");
        Problem::new(Code::InternalError, "the engine's log says what went wrong")
    })?;
    let (file, bytes) = found.ok_or_else(|| {
        let text = format!("this engine has no file {hash} for the job {}", job.id);
        Problem::new(Code::ArtifactNotFound, text)
    })?;
    semel_api::file::reply(&call, file, bytes)
}

async fn kept(call: &Call<Jobs>) -> Result<Kept, Problem> {
    let id = id_of(&call.id)?;
    let missing = || Problem::new(Code::JobNotFound, format!("there is no job {id}"));
    call.state.engine.store().job(id).await?.ok_or_else(missing)
}

/// `GET /v1/jobs/patterns`.
pub(super) async fn patterns(call: Call<Jobs>) -> Result<Reply, Problem> {
    let minutes = call.query.number("minutes").unwrap_or(60).cast_unsigned();
    let engine = &call.state.engine;
    let since = engine.now().saturating_sub(Duration::from_secs(minutes * 60));
    let found = engine.store().patterns(since).await?;
    let items: Vec<Value> = found
        .iter()
        .map(|pattern| {
            let place = pattern.action.as_deref().map(|action| format!(" of {action}"));
            let place = place.unwrap_or_default();
            let (count, class) = (pattern.count, pattern.class);
            json!({
                "class": class.as_str(), "action": pattern.action, "count": count,
                "last_at": rfc3339::format(pattern.last_at),
                "text": format!("{count} {class} failures{place} in the last {minutes} min"),
            })
        })
        .collect();
    Ok(Reply::value(&json!({"items": items, "next": null})))
}

/// `GET /v1/breakers`.
pub(super) async fn breakers(call: Call<Jobs>) -> Result<Reply, Problem> {
    let rows = call.state.engine.store().breakers().await?;
    let items: Vec<Value> = rows
        .iter()
        .map(|row| {
            let breaker = &row.breaker;
            let open_for = u64::try_from(breaker.open_for.as_millis()).unwrap_or(u64::MAX);
            json!({
                "action": row.action, "state": breaker.state.as_str(), "window": breaker.window,
                "until": rfc3339::format(breaker.until), "open_for_ms": open_for,
            })
        })
        .collect();
    Ok(Reply::value(&json!({"items": items, "next": null})))
}

/// `POST /v1/gears/refresh`: answered when plans are judged by it.
pub(super) async fn gears_refresh(call: Call<Jobs>) -> Result<Reply, Problem> {
    let jobs = Arc::clone(&call.state);
    // It reads files, and looks at everything in a gear that is new.
    let refreshed =
        tokio::task::spawn_blocking(move || jobs.loader.refresh(jobs.engine.gears())).await;
    match refreshed {
        Ok(Ok(())) => gears(call).await,
        Ok(Err(error)) => {
            tracing::error!(%error, "the gears could not be read");
            let detail = format!("the gears could not be read: {error}");
            Err(Problem::new(Code::InternalError, detail))
        }
        // What panicked is tried again; the hook has said where.
        Err(_) => Err(Problem::new(Code::InternalError, "the gears could not be read")),
    }
}

/// `GET /v1/gears`.
pub(super) async fn gears(call: Call<Jobs>) -> Result<Reply, Problem> {
    let rows = call.state.engine.store().breakers().await?;
    let open = |gear: &str, action: &str| {
        let name = crate::course::action_name(gear, action);
        rows.iter().any(|row| {
            row.action == name && row.breaker.state != crate::breaker::BreakerState::Closed
        })
    };
    let list = call.state.engine.gears().list();
    let items = list.iter().map(|(manifest, enabled)| {
        let actions: Vec<Value> = manifest
            .actions
            .iter()
            .map(|(name, action)| {
                json!({
                    "name": name, "about": action.about, "risk": action.risk.as_str(),
                    "recovery": action.recovery.as_str(), "params": action.params,
                    "breaker_open": open(&manifest.id, name),
                })
            })
            .collect();
        // A gear of which nothing goes through is as good as disabled (jobs.md §7).
        let all_open = !manifest.actions.is_empty()
            && manifest.actions.keys().all(|action| open(&manifest.id, action));
        json!({
            "id": manifest.id, "version": manifest.version, "enabled": enabled & !all_open,
            "actions": actions,
        })
    });
    let items: Vec<Value> = items.collect();
    Ok(Reply::value(&json!({"items": items, "next": null})))
}

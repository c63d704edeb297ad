//! Sweeps: asked for.

use semel_core::refusal::Refusal;
use semel_wire::http::Problem;
use serde_json::json;

use super::{Answer, failed};
use crate::document::Fields;
use crate::limits::{RETENTION_DAYS_MAX, RETENTION_DAYS_MIN};
use crate::registrar::Registrar;
use crate::registrar::sweeper::{RetentionDays, Swept};

/// Forgets lines of the ledgers that are older.
pub(crate) async fn sweep(registrar: &Registrar, fields: Fields) -> Result<Answer, Problem> {
    let retention = read(fields).map_err(Problem::of)?;
    let mut all = Swept::default();
    for registrar in registrar.all() {
        let swept = registrar.sweep(retention).await.map_err(failed)?;
        all.attempts += swept.attempts;
        all.failures += swept.failures;
        all.grants += swept.grants;
        all.more |= swept.more;
    }
    let Swept { attempts, failures, grants, more } = all;
    tracing::info!(attempts, failures, grants, more, "the registrar was swept");
    let body = json!({"attempts": attempts, "failures": failures, "grants": grants, "more": more});
    Ok(Answer::ok(&body))
}

fn read(mut fields: Fields) -> Result<RetentionDays, Refusal> {
    let (min, max) = (RETENTION_DAYS_MIN.into(), RETENTION_DAYS_MAX.into());
    let days = fields.number("older_than_days", min, max)?;
    fields.finish()?;
    // Within the limits that were just asked for.
    Ok(u32::try_from(days).ok().and_then(RetentionDays::new).unwrap_or_default())
}

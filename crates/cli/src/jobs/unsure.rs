//! Words for steps whose outcome nobody knows: "failed" is never said of what may have happened.

use semel_core::shown::shown;
use serde_json::Value;

/// How a step stands, for people. Also of a line of the ledger that says how it ended.
pub(super) fn status(step: &Value) -> &str {
    let status = step.get("status").and_then(Value::as_str).unwrap_or_default();
    let certain = step.get("certain").and_then(Value::as_bool).unwrap_or(true);
    if status == "failed" && !certain { "uncertain" } else { status }
}

/// The steps of a job that ended without success which may have happened all the same.
pub(super) fn steps(job: &Value) -> Option<String> {
    let ended = job.get("status").and_then(Value::as_str).unwrap_or_default();
    if !["failed", "cancelled"].contains(&ended) {
        return None;
    }
    let steps = job.get("steps").and_then(Value::as_array).into_iter().flatten();
    let names: Vec<&str> = steps
        .filter(|step| status(step) == "uncertain")
        .filter_map(|step| step.get("id").and_then(Value::as_str))
        .collect();
    let names = (!names.is_empty()).then(|| names.join(", "))?;
    Some(format!("uncertain: {} (may have happened)", shown(&names)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn step(id: &str, status: &str, certain: bool) -> Value {
        json!({"id": id, "status": status, "certain": certain})
    }

    #[test]
    fn only_what_nobody_knows_is_uncertain() {
        let all = [
            step("done", "completed", true),
            step("a", "failed", false),
            step("refused", "failed", true),
            step("b", "failed", false),
        ];
        let words: Vec<&str> = all.iter().map(status).collect();
        assert_eq!(words, ["completed", "uncertain", "failed", "uncertain"]);
        let job = |status: &str| json!({"status": status, "steps": all});
        for ended in ["failed", "cancelled"] {
            let line = steps(&job(ended));
            assert_eq!(line.as_deref(), Some("uncertain: a, b (may have happened)"));
        }
        for other in ["executing", "awaiting_approval", "completed"] {
            assert_eq!(steps(&job(other)), None, "{other}");
        }
        assert_eq!(steps(&json!({"status": "failed", "steps": [all[2]]})), None);
    }
}

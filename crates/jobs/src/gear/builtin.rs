//! The gears that every engine has (jobs.md §8; gear.md, "Built-in gears"): plain function
//! calls in this process, except `shell`, which runs in the sandbox.

pub mod files;
pub mod http;
pub mod mesh;
pub mod notify;
pub mod shell;
pub mod wait;

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::manifest::{Action, Manifest, Recovery, Risk};
use super::{Ended, Failure, FailureClass, Output};
use crate::limits::{ESCAPED_BYTES_MAX, STEP_TIMEOUT};

/// A built-in gear's manifest; its version is ours.
fn manifest(id: &str, actions: impl IntoIterator<Item = (&'static str, Action)>) -> Manifest {
    let actions: BTreeMap<String, Action> =
        actions.into_iter().map(|(name, action)| (name.to_owned(), action)).collect();
    Manifest { id: id.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned(), actions }
}

/// An action that takes exactly these properties.
fn action(about: &str, properties: Value, required: &[&str]) -> Action {
    Action {
        about: about.to_owned(),
        params: json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        }),
        result: None,
        risk: Risk::Low,
        recovery: Recovery::Idempotent,
        timeout: STEP_TIMEOUT,
        always_asks: false,
    }
}

fn done(value: Value) -> Ended {
    Ended::Done(Output::Value(value))
}

/// A definite failure of whoever wrote the parameters.
fn user_error(code: &str, message: impl Into<String>) -> Ended {
    Ended::Failed(Failure::new(FailureClass::UserError, code, message))
}

/// An attempt that was stopped before it had any effect.
fn stopped() -> Ended {
    Ended::Failed(Failure::new(FailureClass::Transient, "stopped", "stopped before it was done"))
}

/// No schema lets this through; a caller that skips the schema gets an answer all the same.
fn no_such_action(action: &str) -> Ended {
    user_error("no_such_action", format!("there is no action {action:?}"))
}

/// Bytes as text, or as base64 when they are none or would be too long with everything escaped.
fn text_or_base64(bytes: Vec<u8>) -> Result<String, String> {
    let escaped = |byte: &u8| match byte {
        b'"' | b'\\' => 2,
        0..=0x1f => 6,
        _ => 1,
    };
    let fits = bytes.iter().map(escaped).sum::<usize>() <= ESCAPED_BYTES_MAX;
    match String::from_utf8(bytes) {
        Ok(text) if fits => Ok(text),
        Ok(text) => Err(STANDARD.encode(text)),
        Err(error) => Err(STANDARD.encode(error.as_bytes())),
    }
}

/// A text of the parameters.
fn text<'a>(params: &'a Value, name: &str) -> Option<&'a str> {
    params.get(name).and_then(Value::as_str)
}

//! `$ref:step:<id>[/pointer]`: what an earlier step gave. A reference that cannot be followed never
//! reaches a gear as text (traps.md 33).

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use serde_json::Value;

use super::{Condition, Op, Step};
use crate::limits::DOCUMENT_BYTES_MAX;

const PREFIX: &str = "$ref:";
const STEP: &str = "$ref:step:";

/// What became of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It was done, and gave this.
    Done(Arc<Value>),
    /// It failed, and the plan goes on without it.
    Failed,
    /// It was not to be done.
    Skipped,
}

/// The steps that have ended, by their names.
pub type Outcomes = HashMap<String, Outcome>;

/// What a step is given.
#[derive(Debug, Clone, PartialEq)]
pub enum StepInput {
    /// These parameters.
    Run(Value),
    /// Its condition does not hold, or what it refers to was not done.
    Skip,
    /// It refers to something that the other step did not give.
    Dangling(String),
    /// With what its references stand for it has more than [`DOCUMENT_BYTES_MAX`].
    TooLarge,
}

/// A reference in parts.
pub(super) struct Reference<'a> {
    pub(super) step: &'a str,
    pub(super) pointer: &'a str,
}

/// A text that is a reference; `Err` when it only looks like one.
pub(super) fn of_text(text: &str) -> Option<Result<Reference<'_>, ()>> {
    if !text.starts_with(PREFIX) {
        return None;
    }
    let Some(rest) = text.strip_prefix(STEP) else { return Some(Err(())) };
    let (step, pointer) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    Some(if step.is_empty() { Err(()) } else { Ok(Reference { step, pointer }) })
}

/// Every text that is, or looks like, a reference.
pub(super) fn texts_of<'a>(document: &'a Value, found: &mut Vec<&'a str>) {
    match document {
        Value::String(text) if text.starts_with(PREFIX) => found.push(text),
        Value::Array(items) => items.iter().for_each(|item| texts_of(item, found)),
        Value::Object(fields) => fields.values().for_each(|value| texts_of(value, found)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// What a step is given, from what the steps before it gave.
pub fn input(step: &Step, outcomes: &Outcomes) -> StepInput {
    let done = |id: &String| matches!(outcomes.get(id), Some(Outcome::Done(_)));
    if !step.depends_on.iter().all(done) {
        return StepInput::Skip;
    }
    if step.condition.as_ref().is_some_and(|condition| !holds(condition, outcomes)) {
        return StepInput::Skip;
    }
    let mut params = step.params.clone();
    let mut texts = Vec::new();
    texts_of(&params, &mut texts);
    if texts.is_empty() {
        return StepInput::Run(params);
    }
    let mut room = Room(DOCUMENT_BYTES_MAX);
    let followed = room.take(&params).and_then(|()| follow(&mut params, outcomes, &mut room));
    match followed {
        Ok(()) => StepInput::Run(params),
        Err(Lost::NotDone) => StepInput::Skip,
        Err(Lost::NotThere(text)) => StepInput::Dangling(text),
        Err(Lost::TooLarge) => StepInput::TooLarge,
    }
}

enum Lost {
    NotDone,
    NotThere(String),
    TooLarge,
}

/// Bytes that are left for what references stand for. A few of them can stand for very much, and
/// that is found out before it is copied.
struct Room(usize);

impl Room {
    fn take(&mut self, document: &Value) -> Result<(), Lost> {
        serde_json::to_writer(self, document).map_err(|_| Lost::TooLarge)
    }
}

impl Write for Room {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn follow(document: &mut Value, outcomes: &Outcomes, room: &mut Room) -> Result<(), Lost> {
    match document {
        Value::String(text) => {
            let Some(reference) = of_text(text) else { return Ok(()) };
            let Ok(reference) = reference else { return Err(Lost::NotThere(text.clone())) };
            let found = look(&reference, outcomes, text)?;
            room.take(found)?;
            *document = found.clone();
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(|item| follow(item, outcomes, room)),
        Value::Object(fields) => {
            fields.values_mut().try_for_each(|value| follow(value, outcomes, room))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn look<'a>(
    reference: &Reference<'_>,
    outcomes: &'a Outcomes,
    text: &str,
) -> Result<&'a Value, Lost> {
    match outcomes.get(reference.step) {
        Some(Outcome::Done(result)) => {
            let lost = || Lost::NotThere(text.to_owned());
            result.pointer(reference.pointer).ok_or_else(lost)
        }
        Some(Outcome::Failed | Outcome::Skipped) => Err(Lost::NotDone),
        None => Err(Lost::NotThere(text.to_owned())),
    }
}

/// A comparison with something that is not there does not hold.
fn holds(condition: &Condition, outcomes: &Outcomes) -> bool {
    let found = match of_text(&condition.reference) {
        Some(Ok(reference)) => look(&reference, outcomes, &condition.reference).ok(),
        Some(Err(())) | None => None,
    };
    let Some(found) = found else { return false };
    let value = &condition.value;
    match condition.op {
        Op::Exists => !found.is_null(),
        Op::Eq => equal(found, value),
        Op::Ne => !equal(found, value),
        Op::Gt => compare(found, value).is_some_and(std::cmp::Ordering::is_gt),
        Op::Lt => compare(found, value).is_some_and(std::cmp::Ordering::is_lt),
        Op::Contains => match (found, value) {
            (Value::String(text), Value::String(part)) => text.contains(part.as_str()),
            (Value::Array(items), value) => items.iter().any(|item| equal(item, value)),
            (Value::Object(fields), Value::String(key)) => fields.contains_key(key),
            _ => false,
        },
    }
}

/// 1 and 1.0 are the same number.
fn equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.total_cmp(&b).is_eq(),
        _ => a == b,
    }
}

fn compare(a: &Value, b: &Value) -> Option<std::cmp::Ordering> {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64()?.partial_cmp(&b.as_f64()?),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

//! What is to be done (jobs.md §5): steps in order, neighbours of one group together.

mod check;
mod reference;
mod text;

use std::time::Duration;

use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::json::{JsonLimits, parse};
use semel_core::refusal::Refusal;
use semel_core::shown::is_plain_name;
use semel_core::status;
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

pub use check::check;
pub use reference::{Outcome, Outcomes, StepInput, input};
pub use text::PlanText;

use crate::gear::manifest::Risk;
use crate::limits::{
    DOCUMENT_BYTES_MAX, DOCUMENT_DEPTH_MAX, NAME_BYTES_MAX, RESOURCES_MAX, STEPS_MAX,
};

/// A plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What its author calls it.
    pub id: Option<String>,
    /// In the order in which they run.
    pub steps: Vec<Step>,
}

/// A step.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its name in the plan and, behind the job's, the name of its effect.
    pub id: String,
    /// Who does it.
    pub gear: String,
    /// What.
    pub action: String,
    /// With what.
    pub params: Value,
    /// How the planner sees it; the action's own risk is the least.
    pub risk: Option<Risk>,
    /// Steps that must have been done.
    pub depends_on: Vec<String>,
    /// Neighbours of one group run together.
    pub parallel_group: Option<String>,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// Whether it is done at all.
    pub condition: Option<Condition>,
    /// What follows goes on without it.
    pub continue_on_failure: bool,
    /// What it touches.
    pub resources: Vec<String>,
    fingerprint: Hex<32>,
}

status! {
    /// How a condition compares.
    pub enum Op {
        /// Equal.
        Eq = "eq",
        /// Not equal.
        Ne = "ne",
        /// A number or text that is more.
        Gt = "gt",
        /// Less.
        Lt = "lt",
        /// A text in a text, an item in a list, a key in an object.
        Contains = "contains",
        /// There is something.
        Exists = "exists",
    }
}

/// What must be so for a step to be done.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// `$ref:step:<id>[/pointer]`.
    pub reference: String,
    /// How it is compared.
    pub op: Op,
    /// With what.
    pub value: Value,
}

impl Plan {
    /// Reads a document strictly.
    pub fn parse(text: &[u8]) -> Result<Self, Refusal> {
        let limits = JsonLimits { bytes_max: DOCUMENT_BYTES_MAX, depth_max: DOCUMENT_DEPTH_MAX };
        Self::read(&parse(text, limits)?)
    }

    /// Reads a document that was parsed.
    pub fn read(document: &Value) -> Result<Self, Refusal> {
        let object = document.as_object().ok_or_else(|| wrong("", "a plan must be an object"))?;
        known(object, "", &["id", "steps"])?;
        let id = text(object, "", "id")?;
        let steps = object.get("steps").and_then(Value::as_array);
        let steps = steps.ok_or_else(|| missing("/steps"))?;
        if steps.is_empty() || steps.len() > STEPS_MAX {
            return Err(wrong("/steps", format!("a plan has 1 to {STEPS_MAX} steps")));
        }
        let steps = steps.iter().enumerate().map(|(n, step)| Step::read(step, n));
        Ok(Self { id, steps: steps.collect::<Result<_, _>>()? })
    }

    /// Refuses a plan that is new and whose names do not look like what they are. One that was
    /// taken is read all the same.
    pub fn refuse_strange_names(&self) -> Result<(), Refusal> {
        let strange = |at: String| {
            wrong(at, "has characters that are invisible, turn text around or move the cursor")
        };
        if self.id.as_deref().is_some_and(|id| !is_plain_name(id)) {
            return Err(strange("/id".to_owned()));
        }
        for (number, step) in self.steps.iter().enumerate() {
            let group = step.parallel_group.iter();
            let names = [&step.id, &step.gear, &step.action].into_iter().chain(group);
            if !names.chain(&step.depends_on).chain(&step.resources).all(|name| is_plain_name(name))
            {
                return Err(strange(format!("/steps/{number}")));
            }
        }
        Ok(())
    }

    /// The document, in one spelling.
    pub fn to_canonical(&self) -> String {
        let mut plan = Map::new();
        if let Some(id) = &self.id {
            plan.insert("id".to_owned(), id.clone().into());
        }
        plan.insert("steps".to_owned(), self.steps.iter().map(Step::to_json).collect());
        canonical(&Value::Object(plan))
    }

    /// What a person approves: the values of all parameters included (traps.md 31).
    pub fn hash(&self) -> Hex<32> {
        digest(self.to_canonical().as_bytes())
    }

    /// The steps that run together, by their places: neighbours of one group.
    pub fn group_at(&self, place: usize) -> std::ops::Range<usize> {
        let Some(first) = self.steps.get(place) else { return place..place };
        let same = |step: &&Step| {
            first.parallel_group.is_some() && step.parallel_group == first.parallel_group
        };
        let more = self.steps.iter().skip(place + 1).take_while(same).count();
        place..place + 1 + more
    }
}

impl Step {
    fn read(document: &Value, number: usize) -> Result<Self, Refusal> {
        let at = format!("/steps/{number}");
        let object = document.as_object().ok_or_else(|| wrong(&at, "a step must be an object"))?;
        known(object, &at, FIELDS)?;
        let needed =
            |name: &str| text(object, &at, name)?.ok_or_else(|| missing(&format!("{at}/{name}")));
        let risk = text(object, &at, "risk")?
            .map(|risk| Risk::parse(&risk).ok_or_else(|| wrong(format!("{at}/risk"), "no risk")));
        let continue_on_failure = match object.get("continue_on_failure") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => return Err(wrong(format!("{at}/continue_on_failure"), "true or false")),
        };
        let (gear, action) = (needed("gear")?, needed("action")?);
        let params = object.get("params").cloned().unwrap_or_else(|| Value::Object(Map::new()));
        Ok(Self {
            id: needed("id")?,
            fingerprint: digest(canonical(&(&gear, &action, &params)).as_bytes()),
            gear,
            action,
            params,
            risk: risk.transpose()?,
            depends_on: texts(object, &at, "depends_on", STEPS_MAX)?,
            parallel_group: text(object, &at, "parallel_group")?,
            timeout: timeout(object, &at)?,
            condition: condition(object, &at)?,
            continue_on_failure,
            resources: texts(object, &at, "resources", RESOURCES_MAX)?,
        })
    }

    /// The document; what was not given is not there.
    pub fn to_json(&self) -> Value {
        let mut step = Map::new();
        let mut put = |name: &str, value: Value| drop(step.insert(name.to_owned(), value));
        put("id", self.id.clone().into());
        put("gear", self.gear.clone().into());
        put("action", self.action.clone().into());
        put("params", self.params.clone());
        if let Some(risk) = self.risk {
            put("risk", risk.as_str().into());
        }
        if !self.depends_on.is_empty() {
            put("depends_on", self.depends_on.clone().into());
        }
        if let Some(group) = &self.parallel_group {
            put("parallel_group", group.clone().into());
        }
        if let Some(timeout) = self.timeout {
            put("timeout_ms", u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).into());
        }
        if let Some(condition) = &self.condition {
            let (reference, op) = (condition.reference.as_str(), condition.op.as_str());
            let value = &condition.value;
            put("condition", serde_json::json!({"ref": reference, "op": op, "value": value}));
        }
        if self.continue_on_failure {
            put("continue_on_failure", true.into());
        }
        if !self.resources.is_empty() {
            put("resources", self.resources.clone().into());
        }
        Value::Object(step)
    }

    /// What the step does, whatever it is called: gear, action and parameters as the plan has
    /// them. Two steps of one name and another content are not the same work (jobs.md §4).
    pub fn fingerprint(&self) -> Hex<32> {
        self.fingerprint
    }
}

const FIELDS: &[&str] = &[
    "id",
    "gear",
    "action",
    "params",
    "risk",
    "depends_on",
    "parallel_group",
    "timeout_ms",
    "condition",
    "continue_on_failure",
    "resources",
];

fn timeout(object: &Map<String, Value>, at: &str) -> Result<Option<Duration>, Refusal> {
    match object.get("timeout_ms") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let ms = value.as_u64().filter(|ms| *ms > 0);
            let refuse = || wrong(format!("{at}/timeout_ms"), "a number of milliseconds above 0");
            ms.map(|ms| Some(Duration::from_millis(ms))).ok_or_else(refuse)
        }
    }
}

fn condition(object: &Map<String, Value>, at: &str) -> Result<Option<Condition>, Refusal> {
    let at = format!("{at}/condition");
    let object = match object.get("condition") {
        None | Some(Value::Null) => return Ok(None),
        Some(value) => {
            value.as_object().ok_or_else(|| wrong(&at, "a condition must be an object"))?
        }
    };
    known(object, &at, &["ref", "op", "value"])?;
    let reference = text(object, &at, "ref")?.ok_or_else(|| missing(&format!("{at}/ref")))?;
    let op = text(object, &at, "op")?.ok_or_else(|| missing(&format!("{at}/op")))?;
    let op = Op::parse(&op).ok_or_else(|| wrong(format!("{at}/op"), "no such comparison"))?;
    let value = object.get("value").cloned().unwrap_or(Value::Null);
    Ok(Some(Condition { reference, op, value }))
}

/// A short text that is not empty.
fn text(object: &Map<String, Value>, at: &str, name: &str) -> Result<Option<String>, Refusal> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if is_name(text) => Ok(Some(text.clone())),
        Some(_) => {
            let detail =
                format!("a text of 1 to {NAME_BYTES_MAX} bytes without control characters");
            Err(wrong(format!("{at}/{name}"), detail))
        }
    }
}

fn texts(
    object: &Map<String, Value>,
    at: &str,
    name: &str,
    max: usize,
) -> Result<Vec<String>, Refusal> {
    let at = format!("{at}/{name}");
    let list = match object.get(name) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(value) => value.as_array().filter(|list| list.len() <= max),
    };
    let list = list.ok_or_else(|| wrong(&at, format!("a list of at most {max} texts")))?;
    let item = |item: &Value| {
        let text = item.as_str().filter(|text| is_name(text)).map(str::to_owned);
        text.ok_or_else(|| wrong(&at, "a list of short texts"))
    };
    list.iter().map(item).collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && !text.contains(char::is_control)
}

fn known(object: &Map<String, Value>, at: &str, names: &[&str]) -> Result<(), Refusal> {
    match object.keys().find(|key| !names.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let place = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
            Err(Refusal::at(Code::UnknownField, place, "this field is unknown"))
        }
    }
}

fn wrong(at: impl Into<String>, detail: impl Into<String>) -> Refusal {
    Refusal::at(Code::InvalidField, at, detail)
}

fn missing(at: &str) -> Refusal {
    Refusal::at(Code::MissingField, at, "this field is needed")
}

/// RFC 8785. Strictly read documents always have a canonical form.
pub(crate) fn canonical(document: &impl Serialize) -> String {
    let text = serde_json_canonicalizer::to_string(document);
    text.or_else(|_| serde_json::to_string(document)).unwrap_or_default()
}

pub(crate) fn digest(bytes: &[u8]) -> Hex<32> {
    Hex(Sha256::digest(bytes).into())
}

#[cfg(test)]
mod tests;

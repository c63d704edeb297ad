//! What a gear says of itself: its actions, what they take and give, and what it needs.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::status;
use serde_json::Value;

status! {
    /// What an action may do, as its author sees it. A plan may say more, never less.
    pub enum Risk {
        /// Nothing that anybody would miss.
        Low = "low",
        /// Something that can be put right.
        Medium = "medium",
        /// Something that cannot.
        High = "high",
        /// Something that nobody should do unasked.
        Critical = "critical",
    }
}

status! {
    /// What follows an attempt whose end nobody saw (jobs.md §1).
    pub enum Recovery {
        /// Run it again under the same execution id.
        Idempotent = "idempotent",
        /// Ask the gear what became of it.
        Resolve = "resolve",
        /// Ask a person.
        Ask = "ask",
    }
}

/// A gear.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Its name: lower-case letters, digits and hyphens.
    pub id: String,
    /// Which one.
    pub version: String,
    /// What it can do, by name.
    pub actions: BTreeMap<String, Action>,
}

/// An action.
#[derive(Debug, Clone, PartialEq)]
pub struct Action {
    /// What it does, for a person and for a planner.
    pub about: String,
    /// JSON Schema of its parameters.
    pub params: Value,
    /// JSON Schema of its result; anything when there is none.
    pub result: Option<Value>,
    /// What it may do.
    pub risk: Risk,
    /// What follows an uncertain attempt.
    pub recovery: Recovery,
    /// How long it may take when the step does not say.
    pub timeout: Duration,
    /// A person is asked whatever the policy says (`shell.run`).
    pub always_asks: bool,
}

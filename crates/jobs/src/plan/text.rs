//! A plan as it is kept: its text, which is read once however often it is asked for.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use semel_core::refusal::Refusal;

use super::Plan;

/// The text of a plan. Cheap to share; those who share it share what was read, too.
#[derive(Clone)]
pub struct PlanText(Arc<Kept>);

struct Kept {
    text: Arc<str>,
    read: OnceLock<Result<Plan, Refusal>>,
}

impl PlanText {
    /// What it says.
    pub fn plan(&self) -> Result<&Plan, &Refusal> {
        self.0.read.get_or_init(|| Plan::parse(self.0.text.as_bytes())).as_ref()
    }

    /// As it was written.
    pub fn text(&self) -> &Arc<str> {
        &self.0.text
    }
}

impl<T: Into<Arc<str>>> From<T> for PlanText {
    fn from(text: T) -> Self {
        Self(Arc::new(Kept { text: text.into(), read: OnceLock::new() }))
    }
}

impl Deref for PlanText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0.text
    }
}

impl PartialEq for PlanText {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for PlanText {}

impl fmt::Debug for PlanText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.text.fmt(f)
    }
}

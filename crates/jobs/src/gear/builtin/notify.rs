//! `notify.send {message}`: tells whoever looks after this engine, in the job's log and in the
//! engine's.

use std::sync::Arc;

use serde_json::json;

use super::super::manifest::Manifest;
use super::super::{Call, Desk, Ended, Gear, Later, Report, Resolution, Stop};

/// The gear.
pub struct Notify(Manifest);

impl Notify {
    /// The gear.
    pub fn new() -> Self {
        let message = json!({"message": {"type": "string", "minLength": 1, "maxLength": 65536}});
        let send = super::action("Notify the operator of this engine", message, &["message"]);
        Self(super::manifest("notify", [("send", send)]))
    }
}

impl Default for Notify {
    fn default() -> Self {
        Self::new()
    }
}

impl Gear for Notify {
    fn manifest(&self) -> &Manifest {
        &self.0
    }

    fn needs_workspace(&self) -> bool {
        false
    }

    fn run<'a>(&'a self, call: Call, desk: Arc<dyn Desk>, _stop: Stop) -> Later<'a, Ended> {
        Box::pin(async move {
            let Some(message) = super::text(&call.params, "message") else {
                return super::no_such_action(&call.action);
            };
            tracing::info!(execution_id = call.execution_id, message, "a job notifies");
            desk.report(Report::Log { message: message.to_owned(), side_effect: true });
            super::done(json!({"notified": true}))
        })
    }

    fn resolve<'a>(&'a self, _call: Call, _stop: Stop) -> Later<'a, Resolution> {
        Box::pin(async { Resolution::Unknown })
    }
}

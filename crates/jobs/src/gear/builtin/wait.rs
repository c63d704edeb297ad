//! `wait.sleep {ms}`: lets time pass.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::manifest::Manifest;
use super::super::{Call, Desk, Ended, Gear, Later, Resolution, Stop};
use crate::limits::SLEEP_MAX;

/// The gear.
pub struct Wait(Manifest);

impl Wait {
    /// The gear.
    pub fn new() -> Self {
        let most = u64::try_from(SLEEP_MAX.as_millis()).unwrap_or(u64::MAX);
        let ms = json!({"ms": {"type": "integer", "minimum": 0, "maximum": most}});
        let sleep = super::action("Wait for this many milliseconds", ms, &["ms"]);
        Self(super::manifest("wait", [("sleep", sleep)]))
    }
}

impl Default for Wait {
    fn default() -> Self {
        Self::new()
    }
}

impl Gear for Wait {
    fn manifest(&self) -> &Manifest {
        &self.0
    }

    fn needs_workspace(&self) -> bool {
        false
    }

    fn run<'a>(&'a self, call: Call, _desk: Arc<dyn Desk>, mut stop: Stop) -> Later<'a, Ended> {
        Box::pin(async move {
            let ms = call.params.get("ms").and_then(Value::as_u64);
            let Some(ms) = ms.filter(|_| call.action == "sleep") else {
                return super::no_such_action(&call.action);
            };
            let time = Duration::from_millis(ms).min(SLEEP_MAX);
            tokio::select! {
                () = tokio::time::sleep(time) => super::done(json!({"slept_ms": ms})),
                () = stop.stopped() => super::stopped(),
            }
        })
    }

    fn resolve<'a>(&'a self, _call: Call, _stop: Stop) -> Later<'a, Resolution> {
        Box::pin(async { Resolution::NotDone })
    }
}

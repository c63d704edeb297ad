//! Whether the gear that asked for a job may have a step of it done. It was asked before when the
//! job was made; what its references stand for was not known then, and its manifest may be another
//! one now (trap 63).

use serde_json::Value;

use super::{Facts, action_name};
use crate::gear::registry::Prepared;
use crate::plan::Step;
use crate::policy::is_reference;
use crate::store::Kept;

/// What its manifest would have to declare; nothing when the step may be done.
pub(super) fn lacks(
    kept: &Kept,
    step: &Step,
    prepared: &Prepared,
    params: &Value,
    facts: &Facts<'_>,
) -> Option<String> {
    let asker = kept.job.asker.as_deref()?;
    // An engine without that gear believes the one that took the job in.
    let grants = facts.gears.grants(asker)?;
    if !grants.has_action(&step.gear, &step.action) {
        let action = action_name(&step.gear, &step.action);
        return Some(format!("{asker} declares no {action} in permissions.sub_jobs"));
    }
    let receiver = prepared.gear.receiver(&step.action, params)?;
    let is_known = !is_reference(&Value::String(receiver.clone()));
    let is_refused = is_known && !grants.has_receiver(&receiver);
    is_refused.then(|| format!("{asker} declares no {receiver} in permissions.publish"))
}

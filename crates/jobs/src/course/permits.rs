//! Whether the gear that asked for a job may have a step of it done. It was asked before when the
//! job was made; what its references stand for was not known then, and its manifest may be another
//! one now (trap 63).

use serde_json::Value;

use super::{Facts, action_name};
use crate::gear::grants::Grants;
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
    // An engine of another home may be without that gear; then it goes by what the gear declared
    // when it asked. A newer manifest takes away, and gives nothing to a job that is there already.
    let now = facts.gears.grants(asker);
    let both = [kept.job.grants.as_ref(), now.as_ref()];
    if both.iter().all(Option::is_none) {
        return Some(format!("the permissions of {asker} are unknown"));
    }
    let has =
        |is_granted: &dyn Fn(&Grants) -> bool| both.iter().flatten().all(|one| is_granted(one));
    if !has(&|grants| grants.has_action(&step.gear, &step.action)) {
        let action = action_name(&step.gear, &step.action);
        return Some(format!("{asker} declares no {action} in permissions.sub_jobs"));
    }
    let receiver = prepared.gear.receiver(&step.action, params)?;
    let is_known = !is_reference(&Value::String(receiver.clone()));
    let is_refused = is_known && !has(&|grants| grants.has_receiver(&receiver));
    is_refused.then(|| format!("{asker} declares no {receiver} in permissions.publish"))
}

//! Pre-validation, without a model (jobs.md §5): everything that can be known to be wrong before
//! anything is done.

use std::collections::{HashMap, HashSet};

use semel_core::code::Code;
use semel_core::refusal::Refusal;

use super::reference::{of_text, texts_of};
use super::{Plan, Step};
use crate::gear::registry::{Missing, Registry};
use crate::limits::SCHEMA_WORK_MAX;

/// Step names are part of ids that travel in headers.
const ID_CHARS_MAX: usize = 64;

/// Refuses a plan that cannot be run as it is.
pub fn check(plan: &Plan, gears: &Registry) -> Result<(), Refusal> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut work = 0_usize;
    for (number, step) in plan.steps.iter().enumerate() {
        let at = |field: &str| format!("/steps/{number}/{field}");
        if !is_id(&step.id) {
            let detail = format!("1 to {ID_CHARS_MAX} letters, digits, dots, hyphens, underscores");
            return Err(invalid(at("id"), detail));
        }
        if places.insert(&step.id, number).is_some() {
            return Err(invalid(at("id"), "another step has this id"));
        }
        check_action(step, number, gears, &mut work)?;
        // The group begins where its first neighbour does: siblings are not earlier steps.
        let group = group_start(plan, number);
        let earlier = |id: &str| places.get(id).is_some_and(|place| *place < group);
        for id in &step.depends_on {
            if !earlier(id) {
                let detail = format!("{id:?} is not an earlier step");
                return Err(invalid(at("depends_on"), detail));
            }
        }
        check_references(step, number, &earlier)?;
    }
    check_resources(plan)
}

fn check_action(
    step: &Step,
    number: usize,
    gears: &Registry,
    work: &mut usize,
) -> Result<(), Refusal> {
    let at = |field: &str| format!("/steps/{number}/{field}");
    let prepared = gears.find(&step.gear, &step.action).map_err(|missing| match missing {
        Missing::Gear => {
            refuse(Code::GearNotFound, at("gear"), format!("there is no gear {:?}", step.gear))
        }
        Missing::Action => {
            let detail = format!("{:?} has no action {:?}", step.gear, step.action);
            refuse(Code::GearNotFound, at("action"), detail)
        }
        Missing::Disabled => {
            let detail = format!("the gear {:?} is disabled", step.gear);
            refuse(Code::GearDisabled, at("gear"), detail)
        }
    })?;
    // What a reference will stand for is not known yet: the dispatch checks those again.
    let mut references = Vec::new();
    texts_of(&step.params, &mut references);
    if references.is_empty() {
        // Each of many steps may take as long as one may.
        *work = work.saturating_add(prepared.work(&step.params));
        if *work > SCHEMA_WORK_MAX {
            let detail = "the parameters of all steps together cannot be checked: that would take \
                          too many steps";
            return Err(invalid(at("params"), detail));
        }
        let checked = prepared.check_params(&step.params);
        checked.map_err(|detail| invalid(at("params"), detail))?;
    }
    Ok(())
}

fn check_references(
    step: &Step,
    number: usize,
    earlier: &dyn Fn(&str) -> bool,
) -> Result<(), Refusal> {
    let mut texts = Vec::new();
    texts_of(&step.params, &mut texts);
    let in_params = texts.into_iter().map(|text| ("params", text));
    let in_condition = step.condition.iter().map(|c| ("condition", c.reference.as_str()));
    for (field, text) in in_params.chain(in_condition) {
        let at = || format!("/steps/{number}/{field}");
        match of_text(text) {
            Some(Ok(reference)) if earlier(reference.step) => {}
            Some(Ok(reference)) => {
                return Err(invalid(at(), format!("{:?} is not an earlier step", reference.step)));
            }
            Some(Err(())) | None => {
                return Err(invalid(at(), format!("{text:?} is not $ref:step:<id>[/pointer]")));
            }
        }
    }
    Ok(())
}

/// Two steps that run together and touch the same thing must be put in an order.
fn check_resources(plan: &Plan) -> Result<(), Refusal> {
    let mut place = 0;
    while place < plan.steps.len() {
        let group = plan.group_at(place);
        let mut touched = HashSet::new();
        for number in group.clone() {
            for resource in &plan.steps[number].resources {
                if !touched.insert(resource) {
                    let at = format!("/steps/{number}/resources");
                    let detail = format!("another step of its group uses {resource:?}, too");
                    return Err(refuse(Code::ResourceConflict, at, detail));
                }
            }
        }
        place = group.end;
    }
    Ok(())
}

fn group_start(plan: &Plan, number: usize) -> usize {
    let group = &plan.steps[number].parallel_group;
    if group.is_none() {
        return number;
    }
    let before = plan.steps[..number].iter().rev();
    number - before.take_while(|step| step.parallel_group == *group).count()
}

fn is_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    // Files are named after steps, and a name of dots alone leads elsewhere.
    let is_named = text.bytes().any(|byte| byte != b'.');
    is_named && text.len() <= ID_CHARS_MAX && text.bytes().all(fits)
}

fn invalid(at: String, detail: impl Into<String>) -> Refusal {
    refuse(Code::InvalidPlan, at, detail)
}

fn refuse(code: Code, at: String, detail: impl Into<String>) -> Refusal {
    Refusal::at(code, at, detail)
}

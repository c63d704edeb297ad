//! A job as its readers see it. What somebody did not ask for is not in a list (traps.md 38).

use semel_core::clock::UnixMs;
use semel_core::rfc3339;
use serde_json::{Map, Value, json};

use crate::course::question_no;
use crate::dispatch::ExecutionStatus;
use crate::life::JobStatus;
use crate::plan::{Outcome, Outcomes, Plan, Step, StepInput, digest, input};
use crate::store::{Execution, Job, Kept};

/// A job in a list: without plan and results.
pub fn summary(job: &Job) -> Map<String, Value> {
    let state = &job.state;
    let moment = |at: Option<UnixMs>| at.map_or(Value::Null, |at| rfc3339::format(at).into());
    let id = |id: Option<semel_core::id::JobId>| id.map_or(Value::Null, |id| id.to_string().into());
    let document = json!({
        "id": job.id.to_string(),
        "status": state.status.as_str(),
        "priority": job.priority.as_str(),
        "conversation_id": job.conversation,
        "source": job.source.as_str(),
        "retry_of": id(job.retry_of),
        "parent_id": id(job.parent_id),
        "current_step_index": state.step_index,
        "revision_count": state.revision_count,
        "replan_count": state.replan_count,
        "failure_class": state.failure_class.map(crate::gear::FailureClass::as_str),
        "held_by": state.held_by,
        "created_at": rfc3339::format(job.created_at),
        "started_at": moment(state.started_at),
        "completed_at": moment(state.completed_at),
        "deadline_at": moment(state.deadline_at),
        "approval_expires_at": moment(state.expires_at),
    });
    document.as_object().cloned().unwrap_or_default()
}

/// All of a job.
pub fn whole(kept: &Kept) -> Value {
    let state = &kept.job.state;
    let mut fields = summary(&kept.job);
    let read = |text: &Option<String>| {
        text.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null)
    };
    let plan = state.plan.as_deref();
    let hash = plan.map(|plan| digest(plan.as_bytes()).to_string());
    let document = plan.and_then(|plan| serde_json::from_str(plan).ok()).unwrap_or(Value::Null);
    fields.insert("request".to_owned(), kept.job.request.clone().into());
    fields.insert("plan".to_owned(), document);
    fields.insert("plan_hash".to_owned(), hash.into());
    fields.insert("steps".to_owned(), steps(kept).into());
    let mut question = read(&state.question);
    if let Value::Object(question) = &mut question {
        question.insert("number".to_owned(), question_no(kept).into());
    }
    fields.insert("question".to_owned(), question);
    fields.insert("error".to_owned(), read(&state.error));
    let result = match state.status {
        JobStatus::Completed => result(kept),
        JobStatus::Pending
        | JobStatus::Planning
        | JobStatus::Validating
        | JobStatus::AwaitingApproval
        | JobStatus::Executing
        | JobStatus::Failed
        | JobStatus::Cancelled => Value::Null,
    };
    fields.insert("result".to_owned(), result);
    Value::Object(fields)
}

/// What a job gave: the planner's answer, or what its steps gave, those of a group by their names.
pub fn result(kept: &Kept) -> Value {
    if let Some(answer) = &kept.job.state.answer {
        return serde_json::from_str(answer).unwrap_or(Value::Null);
    }
    let Some(plan) = plan_of(kept) else { return Value::Null };
    let steps = told(kept, &plan);
    let mut results = Vec::new();
    let mut place = 0;
    while place < plan.steps.len() {
        let group = plan.group_at(place);
        let mut of_group: Vec<&Told<'_>> = steps[group.clone()].iter().collect();
        of_group.sort_by_key(|told| &told.step.id);
        for told in of_group {
            let mut fields = Map::new();
            fields.insert("step".to_owned(), told.step.id.clone().into());
            fields.insert("status".to_owned(), told.status().into());
            let result = told.result();
            fields.insert("result".to_owned(), result);
            results.push(Value::Object(fields));
        }
        place = group.end;
    }
    Value::Array(results)
}

/// A step and what became of it.
struct Told<'a> {
    step: &'a Step,
    line: Option<&'a Execution>,
    skipped: bool,
    /// The job has ended.
    is_over: bool,
}

impl Told<'_> {
    fn status(&self) -> &'static str {
        match self.line.map(|line| line.status) {
            Some(status) => status.as_str(),
            None if self.skipped => "skipped",
            None if self.is_over => "not_run",
            None => "waiting",
        }
    }

    fn result(&self) -> Value {
        let text = self.line.and_then(|line| line.result.as_deref());
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null)
    }
}

fn plan_of(kept: &Kept) -> Option<Plan> {
    Plan::parse(kept.job.state.plan.as_deref()?.as_bytes()).ok()
}

fn steps(kept: &Kept) -> Vec<Value> {
    let Some(plan) = plan_of(kept) else { return Vec::new() };
    let moment = |at: Option<UnixMs>| at.map_or(Value::Null, |at| rfc3339::format(at).into());
    let show = |told: &Told<'_>| {
        let error = told.line.and_then(|line| line.error.as_deref());
        let error: Value =
            error.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
        json!({
            "id": told.step.id,
            "gear": told.step.gear,
            "action": told.step.action,
            "execution_id": format!("{}:{}", kept.job.root_id, told.step.id),
            "status": told.status(),
            "attempts": told.line.map_or(0, |line| line.attempts),
            "certain": told.line.is_none_or(|line| line.certain),
            "result": told.result(),
            "error": error,
            "started_at": moment(told.line.map(|line| line.started_at)),
            "completed_at": moment(told.line.and_then(|line| line.completed_at)),
        })
    };
    told(kept, &plan).iter().map(show).collect()
}

/// Walks the plan as the engine does, to tell what was skipped from what is still to come.
fn told<'a>(kept: &'a Kept, plan: &'a Plan) -> Vec<Told<'a>> {
    let mut outcomes = Outcomes::new();
    let mut all = Vec::new();
    let reached = usize::try_from(kept.job.state.step_index).unwrap_or(usize::MAX);
    for (place, step) in plan.steps.iter().enumerate() {
        let line = kept.executions.iter().find(|line| line.step_id == step.id);
        let skipped = line.is_none()
            && place < reached.max(plan.group_at(reached).end)
            && matches!(input(step, &outcomes), StepInput::Skip);
        let outcome = match line {
            Some(line) if line.status == ExecutionStatus::Completed => {
                let result = line.result.as_deref().map(serde_json::from_str);
                let result: Value = result.and_then(Result::ok).unwrap_or(Value::Null);
                Outcome::Done(std::sync::Arc::new(result))
            }
            Some(_) => Outcome::Failed,
            None => Outcome::Skipped,
        };
        outcomes.insert(step.id.clone(), outcome);
        let is_over = kept.job.state.status.is_terminal();
        all.push(Told { step, line, skipped, is_over });
    }
    all
}

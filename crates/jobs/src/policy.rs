//! The default validator (jobs.md §9): a table of rules over floors that nothing loosens. It sees
//! ids, gear, action, parameters and risk of each step, and never why somebody wants it.

use std::borrow::Borrow;

use semel_core::status;
use serde_json::Value;

use crate::gear::builtin::http::{host_of, path_of};
use crate::gear::grants::names_action;
use crate::gear::manifest::{Action, Risk};
use crate::gear::net;
use crate::plan::{Plan, Step};

status! {
    /// What becomes of a plan, from the mildest to the strictest.
    pub enum Verdict {
        /// Nothing is to be said against it.
        Approve = "approve",
        /// A person must see it.
        Ask = "ask",
        /// It is not done.
        Reject = "reject",
    }
}

/// A rule. What is not given fits everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// `gear.action`, `gear.*` or `*`.
    pub action: Option<String>,
    /// At least this risk.
    pub risk: Option<Risk>,
    /// The path among the parameters, or the path of the address among them, is this folder or
    /// below it.
    pub path: Option<String>,
    /// The host of an address among the parameters.
    pub host: Option<String>,
    /// The method of a request.
    pub method: Option<String>,
    /// The gear that asked for the job; `*` is any.
    pub parent: Option<String>,
    /// What follows.
    pub verdict: Option<Verdict>,
}

/// The table. The first rule that fits decides, over the floor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// In order.
    pub rules: Vec<Rule>,
}

/// Who asked for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker<'a> {
    /// A person or a program, at the door.
    Caller,
    /// A gear, for a step of another job.
    Gear(&'a str),
}

/// A step as a validator sees it.
pub struct Judged<'a> {
    /// Its gear.
    pub gear: &'a str,
    /// The action of that.
    pub name: &'a str,
    /// What it is given: as the plan has it, or as it is once references are followed.
    pub params: &'a Value,
    /// How the plan sees it.
    pub risk: Option<Risk>,
    /// What its action says of itself.
    pub action: &'a Action,
    /// Who asked for the job.
    pub asker: Asker<'a>,
}

impl<'a> Judged<'a> {
    /// A step of a plan, before anything is known of what it refers to.
    pub fn of(step: &'a Step, action: &'a Action, asker: Asker<'a>) -> Self {
        let (gear, name, params) = (&step.gear, &step.action, &step.params);
        Self { gear, name, params, risk: step.risk, action, asker }
    }

    /// The plan may say more than the action, never less.
    fn risk(&self) -> Risk {
        self.risk.map_or(self.action.risk, |risk| risk.max(self.action.risk))
    }
}

/// What no rule can loosen.
fn floor(judged: &Judged<'_>) -> Verdict {
    let asks = judged.action.always_asks || judged.risk() == Risk::Critical;
    if asks { Verdict::Ask } else { Verdict::Approve }
}

/// What happens when no rule fits.
fn usual(risk: Risk) -> Verdict {
    match risk {
        Risk::Low | Risk::Medium => Verdict::Approve,
        Risk::High | Risk::Critical => Verdict::Ask,
    }
}

impl Policy {
    /// The verdict on one step.
    pub fn judge(&self, judged: &Judged<'_>) -> Verdict {
        let mut least = floor(judged);
        for rule in &self.rules {
            match rule.fits(judged) {
                Fit::Yes => {
                    let verdict = rule.verdict.unwrap_or_else(|| usual(judged.risk()));
                    return verdict.max(least);
                }
                // What an earlier step will give decides whether the rule fits: nobody can tell
                // now, so that a person must.
                Fit::Unknown => least = least.max(Verdict::Ask),
                Fit::No => {}
            }
        }
        usual(judged.risk()).max(least)
    }

    /// The verdict on a plan: the strictest of its steps, with the steps that it is about.
    pub fn judge_plan<'a, A: Borrow<Action>>(
        &self,
        plan: &'a Plan,
        action_of: impl Fn(&Step) -> Option<A>,
        asker: Asker<'_>,
    ) -> (Verdict, Vec<&'a str>) {
        let mut strictest = (Verdict::Approve, Vec::new());
        for step in &plan.steps {
            // A step that nobody can say anything of is not approved (traps.md 32).
            let verdict = action_of(step).map_or(Verdict::Reject, |action| {
                self.judge(&Judged::of(step, action.borrow(), asker))
            });
            if verdict > strictest.0 {
                strictest = (verdict, Vec::new());
            }
            if verdict == strictest.0 && verdict > Verdict::Approve {
                strictest.1.push(step.id.as_str());
            }
        }
        strictest
    }
}

/// Whether a rule is about a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    No,
    Unknown,
    Yes,
}

impl Rule {
    fn fits(&self, judged: &Judged<'_>) -> Fit {
        let action = self
            .action
            .as_deref()
            .is_none_or(|pattern| names_action(pattern, judged.gear, judged.name));
        if !action || self.risk.is_some_and(|risk| judged.risk() < risk) {
            return Fit::No;
        }
        let path = self.is_about_path(judged.params);
        let host = self.about(self.host.as_deref(), judged.params, "url", |url, host| {
            // An address that we do not understand may be one that its gear understands.
            let found = host_of(url).map(|found| found == net::canonical(host));
            found.map_or(Fit::Unknown, Fit::of)
        });
        let same = |given: &str, wanted: &str| Fit::of(given.eq_ignore_ascii_case(wanted));
        // A request that names no method is a GET.
        let method = match (&self.method, judged.params) {
            (Some(wanted), Value::Object(given)) if !given.contains_key("method") => {
                same("GET", wanted)
            }
            (wanted, params) => self.about(wanted.as_deref(), params, "method", same),
        };
        self.asked_by(judged.asker).min(path).min(host).min(method)
    }

    /// A step may have a path, an address, or both: which of the two its gear goes by, only the
    /// gear knows. What one of them rejects is rejected; otherwise a person must see it when they
    /// disagree.
    fn is_about_path(&self, params: &Value) -> Fit {
        let wanted = self.path.as_deref();
        let path =
            self.about(wanted, params, "path", |path, folder| Fit::of(is_below(path, folder)));
        let url = self.about(wanted, params, "url", |url, folder| {
            path_of(url).map_or(Fit::Unknown, |path| Fit::of(is_below(&path, folder)))
        });
        let has = |name: &str| params.get(name).is_some();
        let rejects = self.verdict == Some(Verdict::Reject);
        if has("path") && has("url") && path != url && !rejects {
            return Fit::Unknown;
        }
        path.max(url)
    }

    fn asked_by(&self, asker: Asker<'_>) -> Fit {
        match (self.parent.as_deref(), asker) {
            (None, _) | (Some("*"), Asker::Gear(_)) => Fit::Yes,
            (Some(parent), Asker::Gear(gear)) => Fit::of(parent == gear),
            (Some(_), Asker::Caller) => Fit::No,
        }
    }

    /// Whether what a rule wants is so of a parameter. Of what an earlier step will give nobody
    /// knows it.
    fn about(
        &self,
        wanted: Option<&str>,
        params: &Value,
        name: &str,
        fits: impl Fn(&str, &str) -> Fit,
    ) -> Fit {
        let Some(wanted) = wanted else { return Fit::Yes };
        if is_reference(params) {
            return Fit::Unknown;
        }
        match params.get(name) {
            Some(given) if is_reference(given) => Fit::Unknown,
            Some(Value::String(given)) => fits(given, wanted),
            Some(_) | None => Fit::No,
        }
    }
}

impl Fit {
    fn of(fits: bool) -> Self {
        if fits { Self::Yes } else { Self::No }
    }
}

/// Whether it stands for what an earlier step will give.
pub(crate) fn is_reference(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.starts_with("$ref:"))
}

/// `data` holds `data/x` and not `database`, nor `data/../x`.
fn is_below(path: &str, folder: &str) -> bool {
    let (path, folder) = (plain(path), plain(folder));
    path.starts_with(&folder)
}

/// The parts of a path after its dots have been followed.
fn plain(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts
}

#[cfg(test)]
mod tests;

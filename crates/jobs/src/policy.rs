//! The default validator (jobs.md §9): a table of rules over floors that nothing loosens. It sees
//! ids, gear, action, parameters and risk of each step, and never why somebody wants it.

use std::borrow::Borrow;

use semel_core::status;
use serde_json::Value;

use crate::gear::manifest::{Action, Risk};
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
    /// Paths among the parameters that begin with this folder.
    pub path: Option<String>,
    /// The host of an address among the parameters.
    pub host: Option<String>,
    /// The method of a request.
    pub method: Option<String>,
    /// What follows.
    pub verdict: Option<Verdict>,
}

/// The table. The first rule that fits decides, over the floor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// In order.
    pub rules: Vec<Rule>,
}

/// A step as a validator sees it.
pub struct Judged<'a> {
    /// The step.
    pub step: &'a Step,
    /// What its action says of itself.
    pub action: &'a Action,
}

impl Judged<'_> {
    /// The plan may say more than the action, never less.
    fn risk(&self) -> Risk {
        self.step.risk.map_or(self.action.risk, |risk| risk.max(self.action.risk))
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
    ) -> (Verdict, Vec<&'a str>) {
        let mut strictest = (Verdict::Approve, Vec::new());
        for step in &plan.steps {
            // A step that nobody can say anything of is not approved (traps.md 32).
            let verdict = action_of(step).map_or(Verdict::Reject, |action| {
                self.judge(&Judged { step, action: action.borrow() })
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
        let step = judged.step;
        let action = self.action.as_deref().is_none_or(|pattern| {
            pattern == "*"
                || pattern.strip_suffix(".*").is_some_and(|gear| gear == step.gear)
                || pattern.split_once('.') == Some((step.gear.as_str(), step.action.as_str()))
        });
        if !action || self.risk.is_some_and(|risk| judged.risk() < risk) {
            return Fit::No;
        }
        let about = |wanted: Option<&str>, name: &str, fits: &dyn Fn(&str, &str) -> bool| {
            let Some(wanted) = wanted else { return Fit::Yes };
            match step.params.get(name) {
                Some(Value::String(given)) if given.starts_with("$ref:") => Fit::Unknown,
                Some(Value::String(given)) if fits(given, wanted) => Fit::Yes,
                Some(_) | None => Fit::No,
            }
        };
        let path = about(self.path.as_deref(), "path", &is_below);
        let host = about(self.host.as_deref(), "url", &|url, host| {
            host_of(url).is_some_and(|found| found.eq_ignore_ascii_case(host))
        });
        // A request that names no method is a GET.
        let method = match (&self.method, step.params.get("method")) {
            (Some(wanted), None) if wanted.eq_ignore_ascii_case("GET") => Fit::Yes,
            (wanted, _) => about(wanted.as_deref(), "method", &|given, wanted| {
                given.eq_ignore_ascii_case(wanted)
            }),
        };
        path.min(host).min(method)
    }
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

/// The host of an address, without who asks and the port.
fn host_of(url: &str) -> Option<&str> {
    let rest = url.split_once("://")?.1;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    match host.strip_prefix('[') {
        Some(v6) => v6.split_once(']').map(|(host, _)| host),
        None => Some(host.split_once(':').map_or(host, |(host, _)| host)),
    }
}

#[cfg(test)]
mod tests;

//! Jobs under chaos: engines, callers who submit steps that cannot be repeated, and a server
//! outside that counts what was really done.

mod engines;
mod homes;
mod judge;
mod load;
mod outside;
mod runs;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use semel_client::Client;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

pub(crate) use engines::{Engines, Place};
pub(crate) use judge::Deaf;
use judge::{Said, Standing, Verdict};
use load::{Caller, Journal};
pub(crate) use outside::Outside;
pub(crate) use runs::{Trouble, run};

use crate::random::Random;
use crate::servers::{pause, wait_until};

/// As many as come while a run lasts.
pub(crate) const ENDLESS: u64 = u64::MAX;
const CALLERS: usize = 8;
const SUBMITTED_WITHIN: Duration = Duration::from_secs(1200);
/// How long the last job may take once nothing fails any more: a lease, and what waits behind it.
const QUIET_LIMIT: Duration = Duration::from_secs(120);
/// The same when a job's time has to end that waits for an engine which is gone.
const GONE_LIMIT: Duration = Duration::from_secs(330);
/// So many times as long while more and more of them end.
const QUIET_LIMITS_MAX: usize = 6;
/// What a late engine would still do.
const SETTLES: Duration = Duration::from_secs(5);

/// What is submitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) jobs: u64,
    /// Between two jobs of one caller, at the most.
    pub(crate) pause_ms_max: u64,
    pub(crate) kinds: Kinds,
}

/// Which jobs there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kinds {
    /// One step that must happen once.
    Once,
    /// Also some whose step may be repeated, and takes long.
    AlsoRepeatable,
    /// Some steps, of which each needs what one of the engines has.
    OfHomes,
}

/// Who has to do with engines.
pub(crate) struct Work {
    engines: Vec<Client>,
    outside: Outside,
    journal: Arc<Journal>,
    callers: Vec<JoinHandle<()>>,
    quiet_limit: Duration,
}

impl Work {
    /// Callers submit from now on.
    pub(crate) fn start(
        engines: &Engines,
        Load { jobs, pause_ms_max, kinds }: Load,
        runtime: &Runtime,
        random: &mut Random,
    ) -> Result<Self> {
        let engines = engines.clients();
        let outside = runtime.block_on(Outside::start(random.fork()))?;
        let journal = Arc::new(Journal::new(jobs));
        let callers = (0..CALLERS).map(|number| {
            let caller = Caller {
                name: format!("job-{number}"),
                engines: engines.clone(),
                outside: outside.address(),
                journal: Arc::clone(&journal),
                pause_ms_max,
                kinds,
                random: random.fork(),
            };
            runtime.spawn(caller.run())
        });
        let callers = callers.collect();
        let quiet_limit = if kinds == Kinds::OfHomes { GONE_LIMIT } else { QUIET_LIMIT };
        Ok(Self { engines, outside, journal, callers, quiet_limit })
    }

    /// Nothing more is submitted; what was begun is said.
    pub(crate) fn stop(&mut self, runtime: &Runtime) -> Result<()> {
        self.journal.stop();
        self.submitted(runtime)
    }

    /// Until no more than so many are left to be submitted.
    fn until_left(&self, count: u64) -> Result<bool> {
        wait_until(SUBMITTED_WITHIN, || Ok(self.journal.left() <= count))
    }

    /// Until all that are to be submitted are.
    fn submitted(&mut self, runtime: &Runtime) -> Result<()> {
        for caller in self.callers.drain(..) {
            runtime.block_on(caller).context("a caller of an engine failed")?;
        }
        Ok(())
    }

    /// Waits until every job has ended or asks, or nothing more happens; answers the questions,
    /// half of them with "run"; and judges.
    pub(crate) fn judge(
        &self,
        runtime: &Runtime,
        random: &mut Random,
        deaf: &Deaf,
    ) -> Result<Judged> {
        let standings = self.quiet(runtime)?;
        let asked = standings.iter().filter(|(_, standing)| **standing == Standing::Asked);
        let asked: Vec<String> = asked.map(|(id, _)| id.clone()).collect();
        for id in &asked {
            let runs = random.below(2) == 0;
            if runtime.block_on(self.answer(id, runs)) {
                let mut submitted = self.journal.submitted();
                let said = Said::Accepted(id.clone());
                for job in submitted.iter_mut().filter(|job| job.said == said) {
                    job.runs_granted += u64::from(runs);
                    job.has_happened |= !runs;
                }
            }
        }
        let standings = if asked.is_empty() { standings } else { self.quiet(runtime)? };
        pause(SETTLES);
        let (submitted, requests) = (self.journal.submitted(), self.outside.requests());
        let verdict = judge::judge(&submitted, &requests, &standings, deaf);
        let surprises = self.journal.surprises().clone();
        let jobs = submitted.len();
        Ok(Judged { verdict, jobs, requests: requests.len(), asked: asked.len(), surprises })
    }

    fn quiet(&self, runtime: &Runtime) -> Result<HashMap<String, Standing>> {
        let accepted: Vec<(String, bool)> = {
            let submitted = self.journal.submitted();
            let ids = submitted.iter().filter_map(|job| match &job.said {
                Said::Accepted(id) => Some((id.clone(), job.may_fail)),
                Said::Undone | Said::Unknown => None,
            });
            ids.collect()
        };
        let mut standings: HashMap<String, Standing> = HashMap::new();
        for _ in 0..QUIET_LIMITS_MAX {
            let before = standings.len();
            let done = wait_until(self.quiet_limit, || {
                for (id, may_fail) in &accepted {
                    if !standings.contains_key(id) {
                        let found = runtime.block_on(standing(&self.engines, id));
                        let over = found.filter(|standing| standing.is_over(*may_fail));
                        standings.extend(over.map(|standing| (id.clone(), standing)));
                    }
                }
                Ok(standings.len() >= accepted.len())
            })?;
            if done || standings.len() == before {
                break;
            }
        }
        Ok(standings)
    }

    /// As a person: whether it may have counted.
    async fn answer(&self, id: &str, runs: bool) -> bool {
        let Some(client) = self.engines.first() else { return false };
        let Ok(job) = client.get(&format!("/v1/jobs/{id}")).await else { return false };
        let (hash, question) = (&job.body["plan_hash"], &job.body["question"]["number"]);
        let word = match runs {
            true => json!({"answer": "run", "question": question, "plan_hash": hash}),
            false => json!({
                "answer": "happened", "question": question, "result": {}, "plan_hash": hash,
            }),
        };
        let answered = client.post(&format!("/v1/jobs/{id}/approve"), &word, None).await;
        answered.is_ok_and(|answer| answer.is_success() || answer.status >= 500)
    }
}

/// Where a job stands; nothing when no engine can say.
async fn standing(engines: &[Client], id: &str) -> Option<Standing> {
    for engine in engines {
        let Ok(answer) = engine.get(&format!("/v1/jobs/{id}")).await else { continue };
        if !answer.is_success() {
            continue;
        }
        return Some(match answer.body["status"].as_str()? {
            "completed" => Standing::Completed,
            "awaiting_approval" => Standing::Asked,
            "cancelled" => Standing::Cancelled,
            "failed" => Standing::Failed,
            "pending" => Standing::Pending,
            _ => Standing::Nowhere,
        });
    }
    None
}

/// What became of the jobs.
pub(crate) struct Judged {
    verdict: Verdict,
    jobs: usize,
    requests: usize,
    /// Asked before a person has answered.
    asked: usize,
    surprises: Vec<String>,
}

impl Judged {
    pub(crate) fn is_clean(&self) -> bool {
        self.verdict.is_clean() && self.surprises.is_empty()
    }

    pub(crate) fn json(&self) -> Value {
        let verdict = &self.verdict;
        json!({
            "jobs": self.jobs, "requests": self.requests, "asked": self.asked,
            "completed": verdict.completed, "twice": verdict.twice,
            "overlapping": verdict.overlapping, "lost": verdict.lost,
            "failed": verdict.failed, "after_cancel": verdict.after_cancel,
            "undone_but_done": verdict.undone_but_done, "invented": verdict.invented,
            "surprises": self.surprises, "examples": verdict.examples,
        })
    }
}

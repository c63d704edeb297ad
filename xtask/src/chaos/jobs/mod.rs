//! Jobs under chaos: engines, callers who submit steps that cannot be repeated, and a server
//! outside that counts what was really done.

mod engines;
mod homes;
mod judge;
mod listed;
mod load;
mod outside;
mod person;
mod runs;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use semel_client::Client;
use semel_core::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

pub(crate) use engines::{Engines, Place};
pub(crate) use judge::Deaf;
use judge::{Said, Standing, Verdict};
use load::{Caller, Journal};
pub(crate) use outside::Outside;
use person::Words;
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
    /// What a person says.
    words: Arc<Words>,
    person: Mutex<Option<JoinHandle<()>>>,
    kinds: Kinds,
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
        let words = Arc::new(Words::default());
        let answering = Arc::clone(&words).answer_some(engines.clone(), random.fork());
        let person = Mutex::new(Some(runtime.spawn(answering)));
        Ok(Self { engines, outside, journal, callers, words, person, kinds })
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
        self.words.stop();
        let person = self.person.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(person) = person {
            runtime.block_on(person).context("the person who answers failed")?;
        }
        let standings = self.quiet(runtime)?;
        let asked = standings.iter().filter(|(_, standing)| **standing == Standing::Asked);
        let asked: Vec<String> = asked.map(|(id, _)| id.clone()).collect();
        for id in &asked {
            let runs = random.below(2) == 0;
            if let Some(engine) = self.engines.first() {
                runtime.block_on(self.words.answer(engine, id, runs));
            }
        }
        let standings = if asked.is_empty() { standings } else { self.quiet(runtime)? };
        pause(SETTLES);
        let (mut submitted, requests) = (self.journal.submitted(), self.outside.requests());
        for job in submitted.iter_mut() {
            let said = self.words.of(&job.name);
            (job.runs_granted, job.has_happened) = (said.runs, said.happened);
        }
        let mut verdict = judge::judge(&submitted, &requests, &standings, deaf);
        let left = runtime.block_on(self.unfinished()).context("no engine lists its jobs")?;
        let all = runtime.block_on(listed::listed(&self.engines, ""));
        let all = all.context("no engine lists its jobs")?;
        let strangers = runtime.block_on(listed::strangers(&self.engines, &all, &submitted));
        verdict.add(left, strangers);
        let (early, answered_early) = self.words.early();
        Ok(Judged {
            verdict,
            jobs: submitted.len(),
            listed: all.len(),
            requests: requests.len(),
            asked: asked.len(),
            early,
            answered_early,
            undone: self.journal.undone(),
            surprises: self.journal.surprises().clone(),
        })
    }

    /// Waits for all that were accepted, and for whatever else there is.
    fn quiet(&self, runtime: &Runtime) -> Result<HashMap<String, Standing>> {
        let accepted: Vec<(String, bool)> = {
            let submitted = self.journal.submitted();
            let ids = submitted.iter().filter_map(|job| match &job.said {
                Said::Accepted(id) => Some((id.clone(), job.may_fail)),
                Said::Undone | Said::Unknown => None,
            });
            ids.collect()
        };
        let limit = if self.kinds == Kinds::OfHomes { GONE_LIMIT } else { QUIET_LIMIT };
        let mut standings: HashMap<String, Standing> = HashMap::new();
        let mut left = None;
        for _ in 0..QUIET_LIMITS_MAX {
            let before = (standings.len(), left);
            let done = wait_until(limit, || {
                for (id, may_fail) in &accepted {
                    if !standings.contains_key(id) {
                        let found = runtime.block_on(standing(&self.engines, id));
                        let over = found.filter(|standing| standing.is_over(*may_fail));
                        standings.extend(over.map(|standing| (id.clone(), standing)));
                    }
                }
                if standings.len() < accepted.len() {
                    return Ok(false);
                }
                left = runtime.block_on(self.unfinished()).map(|left| left.len());
                Ok(left == Some(0))
            })?;
            if done || (standings.len(), left) == before {
                break;
            }
        }
        Ok(standings)
    }

    /// Jobs to which something must still happen. Where one engine is gone for ever, those may wait
    /// that only it can do.
    async fn unfinished(&self) -> Option<Vec<String>> {
        let may_wait = self.kinds == Kinds::OfHomes;
        let now = SystemClock::new().wall();
        let left = listed::unfinished(&self.engines, may_wait, now).await?;
        Some(left.into_iter().map(|job| job.id).collect())
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
    /// By the engines, also those of which nobody was told.
    listed: usize,
    requests: usize,
    /// Asked when nothing failed any more.
    asked: usize,
    /// Seen to ask before, and answered then.
    early: usize,
    answered_early: u64,
    /// Answers that nothing was written under a key.
    undone: u64,
    surprises: Vec<String>,
}

impl Judged {
    pub(crate) fn is_clean(&self) -> bool {
        self.verdict.is_clean() && self.surprises.is_empty()
    }

    /// Whether anybody was asked anything.
    pub(crate) fn somebody_was_asked(&self) -> bool {
        self.asked + self.early > 0
    }

    pub(crate) fn json(&self) -> Value {
        let verdict = &self.verdict;
        json!({
            "jobs": self.jobs, "listed": self.listed, "requests": self.requests,
            "asked": self.asked, "asked_early": self.early,
            "answered_early": self.answered_early, "said_undone": self.undone,
            "completed": verdict.completed, "twice": verdict.twice,
            "overlapping": verdict.overlapping, "lost": verdict.lost,
            "unfinished": verdict.unfinished, "failed": verdict.failed,
            "after_cancel": verdict.after_cancel, "undone_but_done": verdict.undone_but_done,
            "invented": verdict.invented, "surprises": self.surprises,
            "examples": verdict.examples,
        })
    }
}

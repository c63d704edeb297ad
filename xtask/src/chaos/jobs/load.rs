//! Callers of the engines: each submits jobs with one step, which most often cannot be repeated;
//! most of them under a key until they are accepted, some without one and once; and cancels a few.
//! What was answered is in the journal.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_client::{Answer, Client};
use serde_json::{Value, json};

use super::super::now;
use super::Kinds;
use super::homes::Needs;
use super::judge::{Said, Submitted};
use crate::random::Random;

/// One job in so many has no key.
const KEYLESS_ONE_IN: usize = 8;
/// One in so many is cancelled.
const CANCELLED_ONE_IN: usize = 12;
const BEFORE_CANCEL_MS: (u64, u64) = (0, 400);
const RETRY: Duration = Duration::from_millis(50);
const CANCEL_TRIES_MAX: u32 = 40;
/// One in so many has a step that may be repeated, where there are such.
const REPEATABLE_ONE_IN: usize = 6;
/// Ends the name of such a job.
pub(crate) const REPEATABLE: &str = "-put";
/// Said when nothing was written.
const UNDONE: &str = "store_unavailable";

/// Everything that was answered, by all callers.
pub(crate) struct Journal {
    /// Jobs that are still to be submitted.
    left: AtomicU64,
    stop: AtomicBool,
    /// The second engine was killed and does not come back.
    second_is_gone: AtomicBool,
    submitted: Mutex<Vec<Submitted>>,
    surprises: Mutex<Vec<String>>,
    /// Answers that nothing was written under a key, each compared with what came of it.
    undone: AtomicU64,
}

impl Journal {
    /// For so many jobs.
    pub(crate) fn new(jobs: u64) -> Self {
        let (submitted, surprises) = (Mutex::default(), Mutex::default());
        let (left, stop, second_is_gone) = (AtomicU64::new(jobs), false.into(), false.into());
        Self { left, stop, second_is_gone, submitted, surprises, undone: AtomicU64::new(0) }
    }

    /// Callers finish what they have begun and end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// From now on nobody waits for the second engine.
    pub(crate) fn lose_second(&self) {
        self.second_is_gone.store(true, Ordering::SeqCst);
    }

    /// Jobs that are still to be submitted.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::SeqCst)
    }

    pub(crate) fn submitted(&self) -> MutexGuard<'_, Vec<Submitted>> {
        lock(&self.submitted)
    }

    /// Answers that no caller should get.
    pub(crate) fn surprises(&self) -> MutexGuard<'_, Vec<String>> {
        lock(&self.surprises)
    }

    pub(crate) fn undone(&self) -> u64 {
        self.undone.load(Ordering::SeqCst)
    }

    fn takes_one(&self) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        !self.stop.load(Ordering::SeqCst)
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }
}

/// One caller of all engines.
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) engines: Vec<Client>,
    pub(crate) outside: SocketAddr,
    pub(crate) journal: Arc<Journal>,
    /// Between two jobs, at the most.
    pub(crate) pause_ms_max: u64,
    pub(crate) kinds: Kinds,
    pub(crate) random: Random,
}

impl Caller {
    pub(crate) async fn run(mut self) {
        let mut number = 0;
        while self.journal.takes_one() {
            let may_repeat = self.kinds == Kinds::AlsoRepeatable;
            let is_repeatable = may_repeat && self.random.below(REPEATABLE_ONE_IN) == 0;
            let needs = (self.kinds == Kinds::OfHomes).then(|| self.needs());
            let may_fail = needs == Some(Needs::SecondGear);
            let ending = if is_repeatable { REPEATABLE } else { "" };
            let name = format!("{}-{number}{ending}", self.name);
            let job = self.job(&name, needs);
            let keyless = self.random.below(KEYLESS_ONE_IN) == 0;
            let said = match keyless {
                true => self.once(&name, &job, needs).await,
                false => self.until_accepted(&name, &job, needs).await,
            };
            let is_cancelled = self.random.below(CANCELLED_ONE_IN) == 0;
            let (cancelled, may_be_cancelled) = match &said {
                Said::Accepted(id) if is_cancelled => self.cancel(&id.clone()).await,
                Said::Accepted(_) | Said::Undone | Said::Unknown => (None, false),
            };
            self.journal.submitted().push(Submitted {
                name,
                said,
                is_repeatable,
                may_fail,
                cancelled,
                may_be_cancelled,
                runs_granted: 0,
                has_happened: false,
            });
            number += 1;
            tokio::time::sleep(self.random.millis(0, self.pause_ms_max.max(1))).await;
        }
    }

    fn job(&self, name: &str, needs: Option<Needs>) -> Value {
        let url = format!("http://{}/{name}", self.outside);
        let method = if name.ends_with(REPEATABLE) { "PUT" } else { "POST" };
        let pay = json!({
            "id": "pay", "gear": "http", "action": "request",
            "params": {"method": method, "url": url, "body": "once"},
        });
        json!({"plan": {"steps": needs.map_or_else(|| json!([pay]), |needs| needs.steps(&pay))}})
    }

    /// What a job needs, of what there still is.
    fn needs(&mut self) -> Needs {
        loop {
            let needs = *self.random.pick(&Needs::ALL);
            if needs != Needs::SecondGear || !self.lost_second() {
                return needs;
            }
        }
    }

    fn lost_second(&self) -> bool {
        self.journal.second_is_gone.load(Ordering::SeqCst)
    }

    /// One that takes such a job in; none when the only one is gone.
    fn engine(&mut self, needs: Option<Needs>) -> Option<Client> {
        let doors = needs.map_or(&[0, 1][..self.engines.len()], Needs::doors);
        let lost = self.lost_second();
        let left: Vec<usize> = doors.iter().copied().filter(|door| !lost || *door == 0).collect();
        let door = (!left.is_empty()).then(|| *self.random.pick(&left))?;
        self.engines.get(door).cloned()
    }

    /// Without a key it cannot be said again.
    async fn once(&mut self, name: &str, job: &Value, needs: Option<Needs>) -> Said {
        let Some(engine) = self.engine(needs) else { return Said::Unknown };
        match engine.post("/v1/jobs", job, None).await {
            Ok(answer) if answer.is_success() => self.accepted(name, &answer),
            Ok(answer) if answer.code() == Some(UNDONE) => Said::Undone,
            Ok(_) | Err(_) => Said::Unknown,
        }
    }

    /// The same key again is safe, however the last attempt ended, and at whichever engine.
    async fn until_accepted(&mut self, name: &str, job: &Value, needs: Option<Needs>) -> Said {
        let mut may_be_there = false;
        loop {
            let Some(engine) = self.engine(needs) else { return Said::Unknown };
            match engine.post("/v1/jobs", job, Some(name)).await {
                Ok(answer) if answer.is_success() => {
                    if contradicts(may_be_there, &answer) {
                        let what = format!("{name} was there, and all that was said is undone");
                        self.journal.surprises().push(what);
                    }
                    return self.accepted(name, &answer);
                }
                // Nothing was written, and that will be seen.
                Ok(answer) if answer.status == 429 || answer.code() == Some(UNDONE) => {
                    self.journal.undone.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(RETRY).await;
                }
                Ok(answer) if answer.status < 500 => {
                    let what = format!("{name} was answered {}: {}", answer.status, answer.body);
                    self.journal.surprises().push(what);
                    return Said::Unknown;
                }
                Ok(_) | Err(_) => {
                    may_be_there = true;
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    fn accepted(&self, name: &str, answer: &Answer) -> Said {
        match answer.body["id"].as_str() {
            Some(id) => Said::Accepted(id.to_owned()),
            None => {
                self.journal.surprises().push(format!("{name} has no id: {}", answer.body));
                Said::Unknown
            }
        }
    }

    /// When it was confirmed, if it was, and whether it may have counted: not if every answer said
    /// that nothing was written or that the job had ended.
    async fn cancel(&mut self, id: &str) -> (Option<std::time::Instant>, bool) {
        tokio::time::sleep(self.random.millis(BEFORE_CANCEL_MS.0, BEFORE_CANCEL_MS.1)).await;
        let reason = json!({"reason": "enough"});
        let mut may_count = false;
        for _ in 0..CANCEL_TRIES_MAX {
            let Some(engine) = self.engine(None) else { break };
            match engine.post(&format!("/v1/jobs/{id}/cancel"), &reason, None).await {
                Ok(answer) if answer.is_success() => return (Some(now()), true),
                // It has ended, or an earlier one of these has cancelled it.
                Ok(answer) if answer.status < 500 && answer.status != 429 => break,
                Ok(answer) if answer.status == 429 || answer.code() == Some(UNDONE) => {}
                Ok(_) | Err(_) => may_count = true,
            }
            tokio::time::sleep(RETRY).await;
        }
        (None, may_count)
    }
}

/// A job that was there already was made by an answer of which nobody knew, or something was said
/// that is not so.
fn contradicts(may_be_there: bool, answer: &Answer) -> bool {
    answer.status == 200 && !may_be_there
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_although_everything_was_said_to_be_undone() {
        let answer = |status| Answer { status, body: Value::Null };
        assert!(contradicts(false, &answer(200)));
        assert!(!contradicts(true, &answer(200)), "nobody knew of an earlier one");
        assert!(!contradicts(false, &answer(201)));
    }
}

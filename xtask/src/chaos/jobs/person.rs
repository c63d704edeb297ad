//! A person who answers some of the questions while everything still goes wrong; the others wait
//! until the end. What was said may count or not: it allows, and demands nothing.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_client::Client;
use serde_json::{Value, json};

use crate::random::Random;

/// Between two looks at what is asked.
const LOOKS_EVERY: Duration = Duration::from_millis(500);
/// Of each look.
const QUESTIONS: &str = "/v1/jobs?status=awaiting_approval&limit=500";

/// What people may have said of the jobs, by their names, and which questions were seen.
#[derive(Default)]
pub(crate) struct Words {
    stop: AtomicBool,
    said: Mutex<HashMap<String, Said>>,
    /// The jobs that were seen to wait for somebody before the end.
    asked: Mutex<HashSet<String>>,
    answered: Mutex<u64>,
}

/// What may count of one job.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Said {
    /// How often it may have been said that the step is to be run again.
    pub(crate) runs: u64,
    /// Whether it may have been said that it was done.
    pub(crate) happened: bool,
}

impl Words {
    /// Whoever answers while it lasts comes to an end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    pub(crate) fn of(&self, name: &str) -> Said {
        lock(&self.said).get(name).copied().unwrap_or_default()
    }

    /// Jobs that were seen to wait before the end, and answers that were given then.
    pub(crate) fn early(&self) -> (usize, u64) {
        (lock(&self.asked).len(), *lock(&self.answered))
    }

    /// Answers the question of a job, and remembers what may count of that.
    pub(crate) async fn answer(&self, engine: &Client, id: &str, runs: bool) -> bool {
        let Ok(job) = engine.get(&format!("/v1/jobs/{id}")).await else { return false };
        let Some(name) = name(&job.body) else { return false };
        let (hash, question) = (&job.body["plan_hash"], &job.body["question"]["number"]);
        let word = match runs {
            true => json!({"answer": "run", "question": question, "plan_hash": hash}),
            false => json!({
                "answer": "happened", "question": question, "result": {}, "plan_hash": hash,
            }),
        };
        let answered = engine.post(&format!("/v1/jobs/{id}/approve"), &word, None).await;
        // Whoever hears nothing does not know.
        let counts = answered.map_or(true, |answer| answer.is_success() || answer.status >= 500);
        if counts {
            let mut said = lock(&self.said);
            let of_it = said.entry(name).or_default();
            of_it.runs += u64::from(runs);
            of_it.happened |= !runs;
        }
        counts
    }

    /// Until it is stopped: of two questions one is answered as soon as it is seen.
    pub(crate) async fn answer_some(self: Arc<Self>, engines: Vec<Client>, mut random: Random) {
        let mut left = HashSet::new();
        while !self.stop.load(Ordering::SeqCst) {
            tokio::time::sleep(LOOKS_EVERY).await;
            let engine = random.pick(&engines).clone();
            let Ok(listed) = engine.get(QUESTIONS).await else { continue };
            for job in listed.body["items"].as_array().into_iter().flatten() {
                let Some(id) = job["id"].as_str() else { continue };
                lock(&self.asked).insert(id.to_owned());
                if left.contains(id) {
                    continue;
                }
                if random.below(2) == 0 {
                    left.insert(id.to_owned());
                    continue;
                }
                let runs = random.below(2) == 0;
                let counts = self.answer(&engine, id, runs).await;
                *lock(&self.answered) += u64::from(counts);
            }
        }
    }
}

/// What a job is called, by the path that it asks for outside.
pub(crate) fn name(job: &Value) -> Option<String> {
    let steps = job["plan"]["steps"].as_array()?;
    let url = steps.iter().find_map(|step| step["params"]["url"].as_str())?;
    url.rsplit_once('/').map(|(_, name)| name.to_owned())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_called_by_the_path_that_it_asks_for() {
        let job = json!({"plan": {"steps": [
            {"id": "stamp", "gear": "first"},
            {"id": "pay", "params": {"url": "http://127.0.0.1:1/job-1-2"}},
        ]}});
        assert_eq!(name(&job).as_deref(), Some("job-1-2"));
        assert_eq!(name(&json!({"plan": null})), None);
    }
}

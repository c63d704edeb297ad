//! Callers of the daemons: each sends without end, each send until it is answered, and now and then
//! something that must be refused. What was answered is in the journal.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_client::Client;
use serde_json::{Value, json};

use super::checker::{Accepted, Refused};
use crate::random::Random;

/// In the order of urgency (mesh.md §3).
const PRIORITIES: [&str; 3] = ["now", "next", "low"];
/// Every so many sends, one is tried that must be refused.
const REFUSALS_EVERY: u64 = 7;
const BODY_BYTES_MAX: usize = 2000;
const PAUSE_MS_MAX: u64 = 40;
const RETRY: Duration = Duration::from_millis(20);

/// Everything that was answered, by all callers.
#[derive(Default)]
pub(crate) struct Journal {
    counter: AtomicU64,
    stop: AtomicBool,
    accepted: Mutex<Vec<Accepted>>,
    refused: Mutex<Vec<Refused>>,
    surprises: Mutex<Vec<String>>,
}

impl Journal {
    /// Callers finish what they have begun and end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    pub(crate) fn accepted(&self) -> MutexGuard<'_, Vec<Accepted>> {
        lock(&self.accepted)
    }

    pub(crate) fn refused(&self) -> MutexGuard<'_, Vec<Refused>> {
        lock(&self.refused)
    }

    /// Answers that no caller should get.
    pub(crate) fn surprises(&self) -> MutexGuard<'_, Vec<String>> {
        lock(&self.surprises)
    }

    fn tick(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::SeqCst)
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::SeqCst)
    }
}

/// One caller of one daemon.
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) client: Client,
    /// The daemon's own key.
    pub(crate) sender: String,
    /// Whom it sends to.
    pub(crate) receivers: Vec<String>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) random: Random,
}

impl Caller {
    pub(crate) async fn run(mut self) {
        let mut number = 0;
        while self.journal.goes_on() {
            let key = format!("{}-{number}", self.name);
            let to = self.random.pick(&self.receivers).clone();
            let priority = *self.random.pick(&PRIORITIES);
            let body = format!("{key} {}", "x".repeat(self.random.below(BODY_BYTES_MAX)));
            let began = self.journal.tick();
            let send = json!({"to": to, "message": body, "priority": priority});
            if !self.send_until(&key, &send, &[200, 202]).await {
                return;
            }
            let (ended, sender) = (self.journal.tick(), self.sender.clone());
            let sent = Accepted { sender, to, priority, key: key.clone(), body, began, ended };
            self.journal.accepted().push(sent);
            if number % REFUSALS_EVERY == 0 && !self.try_what_must_be_refused(&key, &send).await {
                return;
            }
            number += 1;
            tokio::time::sleep(self.random.millis(0, PAUSE_MS_MAX)).await;
        }
    }

    /// The same key for something else, and something that is no send at all.
    async fn try_what_must_be_refused(&mut self, key: &str, send: &Value) -> bool {
        let malformed_key = format!("{key}-malformed");
        for (key, field, value, status) in
            [(key, "message", "something else", 409), (&malformed_key, "priority", "soon", 400)]
        {
            let mut wrong = send.clone();
            wrong[field] = json!(value);
            if !self.send_until(key, &wrong, &[status]).await {
                return false;
            }
            let body = wrong["message"].as_str().unwrap_or_default().to_owned();
            let (sender, key) = (self.sender.clone(), key.to_owned());
            self.journal.refused().push(Refused { sender, key, body });
        }
        true
    }

    /// The same key again is safe, however the last attempt ended. `false`: it was answered as it
    /// should not be.
    async fn send_until(&self, key: &str, send: &Value, wanted: &[u16]) -> bool {
        loop {
            match self.client.post("/v1/send", send, Some(key)).await {
                Ok(answer) if wanted.contains(&answer.status) => return true,
                Ok(answer) if ![429, 503, 507].contains(&answer.status) => {
                    let what = format!("{key} was answered {}: {}", answer.status, answer.body);
                    self.journal.surprises().push(what);
                    return false;
                }
                Ok(_) | Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

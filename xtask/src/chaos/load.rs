//! Callers of the daemons: each sends without end, each send until it is answered, and now and then
//! something that must be refused; workers that take from a queue. What was answered is in the
//! journal.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_client::Client;
use serde_json::{Value, json};

use super::checker::{Accepted, Refused, Taken};
use crate::random::Random;

/// In the order of urgency (mesh.md §3).
const PRIORITIES: [&str; 3] = ["now", "next", "low"];
/// Every so many sends, one is tried that must be refused.
const REFUSALS_EVERY: u64 = 7;
const BODY_BYTES_MAX: usize = 2000;
const PAUSE_MS_MAX: u64 = 40;
const RETRY: Duration = Duration::from_millis(20);

pub(crate) const TOPIC: &str = "builds";
pub(crate) const QUEUE: &str = "work";
/// Short, so that what a worker leaves lying comes again soon.
const LEASE_MS: u64 = 2000;
const TAKE_MAX: u64 = 8;
const TAKE_PAUSE: Duration = Duration::from_millis(50);
/// One piece of work in so many is left lying.
const LEFT_LYING: usize = 8;

/// Everything that was answered, by all callers.
#[derive(Default)]
pub(crate) struct Journal {
    counter: AtomicU64,
    stop: AtomicBool,
    accepted: Mutex<Vec<Accepted>>,
    refused: Mutex<Vec<Refused>>,
    taken: Mutex<Vec<Taken>>,
    worked: AtomicBool,
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

    /// What was taken from the queue.
    pub(crate) fn taken(&self) -> MutexGuard<'_, Vec<Taken>> {
        lock(&self.taken)
    }

    /// Workers end.
    pub(crate) fn stop_work(&self) {
        self.worked.store(true, Ordering::SeqCst);
    }

    /// How many messages inboxes must hold, and how many pieces of work there are.
    pub(crate) fn expected(&self) -> (usize, usize) {
        let accepted = self.accepted();
        let deliveries = accepted.iter().map(|send| send.receivers.len()).sum();
        (deliveries, accepted.iter().filter(|send| send.receivers.is_empty()).count())
    }

    /// How many pieces of work were seen.
    pub(crate) fn seen(&self) -> usize {
        let taken = self.taken();
        let keys = taken.iter().map(|work| (&work.sender, &work.key));
        keys.collect::<HashSet<_>>().len()
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
    /// Everybody, by their keys.
    pub(crate) everybody: Vec<String>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) random: Random,
}

impl Caller {
    pub(crate) async fn run(mut self) {
        let mut number = 0;
        while self.journal.goes_on() {
            let key = format!("{}-{number}", self.name);
            let (to, receivers) = self.destination();
            let priority = *self.random.pick(&PRIORITIES);
            let body = format!("{key} {}", "x".repeat(self.random.below(BODY_BYTES_MAX)));
            let began = self.journal.tick();
            let send = json!({"to": to, "message": body, "priority": priority});
            if !self.send_until(&key, &send, &[200, 202]).await {
                return;
            }
            let (ended, sender) = (self.journal.tick(), self.sender.clone());
            let key_too = key.clone();
            let sent =
                Accepted { sender, to, receivers, priority, key: key_too, body, began, ended };
            self.journal.accepted().push(sent);
            if number % REFUSALS_EVERY == 0 && !self.try_what_must_be_refused(&key, &send).await {
                return;
            }
            number += 1;
            tokio::time::sleep(self.random.millis(0, PAUSE_MS_MAX)).await;
        }
    }

    /// Somebody else, the topic that everybody subscribes to, or the queue; and who must get it.
    fn destination(&mut self) -> (String, Vec<String>) {
        match self.random.below(8) {
            0 => (format!("#{TOPIC}"), self.everybody.clone()),
            1 => (format!("queue:{QUEUE}"), Vec::new()),
            _ => {
                let others: Vec<&String> =
                    self.everybody.iter().filter(|key| **key != self.sender).collect();
                let to = (*self.random.pick(&others)).clone();
                (to.clone(), vec![to])
            }
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

/// Takes from the queue by one daemon, and acknowledges most of it.
pub(crate) struct Worker {
    pub(crate) client: Client,
    pub(crate) journal: Arc<Journal>,
    pub(crate) random: Random,
}

impl Worker {
    pub(crate) async fn run(mut self) {
        while !self.journal.worked.load(Ordering::SeqCst) {
            let _ = self.take().await;
            tokio::time::sleep(TAKE_PAUSE).await;
        }
    }

    /// `None` when the daemon or the broker is away.
    async fn take(&mut self) -> Option<()> {
        let began = self.journal.tick();
        let ask = json!({"queue": QUEUE, "max": TAKE_MAX, "lease_ms": LEASE_MS});
        let taken = self.client.post("/v1/queue/take", &ask, None).await.ok()?.body;
        for item in taken["items"].as_array()? {
            let text = |field: &str| Some(item[field].as_str()?.to_owned());
            let (sender, key) = (text("sender_pubkey")?, text("client_message_id")?);
            let mut work = Taken { sender, key, body: text("body")?, began, acked: None };
            let seq = item["seq"].as_i64()?;
            if self.random.below(LEFT_LYING) > 0 && self.ack(seq).await == Some(true) {
                work.acked = Some(self.journal.tick());
            }
            self.journal.taken().push(work);
        }
        Some(())
    }

    /// Whether it is off the queue by this.
    async fn ack(&self, seq: i64) -> Option<bool> {
        let done = json!({"queue": QUEUE, "seqs": [seq]});
        let answer = self.client.post("/v1/queue/ack", &done, None).await.ok()?;
        Some(answer.body["acked"].as_array()?.iter().any(|acked| acked.as_i64() == Some(seq)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

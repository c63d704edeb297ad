//! Messages that are jobs (jobs.md §10): from a topic, out of this host's inbox, or from a queue.
//! The message's own name is the job's key, so that a redelivery makes no second job, and the
//! message is acknowledged only after the job is on disk.

use std::sync::Arc;
use std::time::Duration;

use semel_client::{Client, Events};
use semel_jobs::engine::{Asked, Engine, Refused};
use semel_jobs::store::{Priority, Source};
use serde_json::{Value, json};

/// How long a queue's message is ours.
const LEASE_MS: u64 = 60_000;
/// Between two looks at a queue that was empty, or at a daemon that is away.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two looks at a topic whose messages the daemon tells of.
const UNTOLD: Duration = Duration::from_secs(5);
/// Bytes that are kept of a message that is no job: the daemon takes no more in one call.
const ASIDE_BYTES_MAX: usize = 256 << 10;
/// Bytes of why it is none.
const REASON_BYTES_MAX: usize = 1000;
/// Messages per look.
const PAGE: u64 = 50;

/// Until the engine stops.
pub(super) async fn run(engine: Arc<Engine>, client: Client, place: String) {
    let mut news = News(None);
    loop {
        let went = match place.strip_prefix("queue:") {
            Some(queue) => from_queue(&engine, &client, queue).await,
            None => {
                // Before the look: what arrives during it is told of.
                news.listen(&client).await;
                from_topic(&engine, &client, place.trim_start_matches('#')).await
            }
        };
        if let Err(error) = &went {
            tracing::warn!(place, error, "no jobs could be taken from the mesh");
        }
        if !matches!(went, Ok(1..)) {
            news.wait().await;
        }
    }
}

/// The daemon's word that a message has arrived; nothing while it does not give it.
struct News(Option<Events>);

impl News {
    async fn listen(&mut self, client: &Client) {
        if self.0.is_none() {
            self.0 = client.events(None, &["message"]).await.ok();
        }
    }

    async fn wait(&mut self) {
        let Some(events) = &mut self.0 else { return tokio::time::sleep(PAUSE).await };
        match tokio::time::timeout(UNTOLD, events.next()).await {
            // One look finds all messages of which the daemon has told by then.
            Ok(Ok(Some(_))) => {
                let at_once = Duration::ZERO;
                while let Ok(Ok(Some(_))) = tokio::time::timeout(at_once, events.next()).await {}
            }
            Ok(Ok(None) | Err(_)) => {
                self.0 = None;
                tokio::time::sleep(PAUSE).await;
            }
            Err(_) => {}
        }
    }
}

async fn from_queue(engine: &Engine, client: &Client, queue: &str) -> Result<usize, String> {
    let body = json!({"queue": queue, "max": PAGE, "lease_ms": LEASE_MS});
    let taken = asked(client.post("/v1/queue/take", &body, None).await)?;
    let items = items(&taken);
    let mut done = Vec::new();
    for item in &items {
        take(engine, client, item).await?;
        done.extend(item.get("seq").cloned());
    }
    if !done.is_empty() {
        let body = json!({"queue": queue, "seqs": done});
        asked(client.post("/v1/queue/ack", &body, None).await)?;
    }
    Ok(items.len())
}

async fn from_topic(engine: &Engine, client: &Client, topic: &str) -> Result<usize, String> {
    let reader = format!("jobs:{topic}");
    let query = format!("/v1/inbox?topic={topic}&reader={reader}&limit={PAGE}");
    let found = asked(client.get(&query).await)?;
    let items = items(&found);
    for item in &items {
        take(engine, client, item).await?;
    }
    if let Some(id) = items.last().and_then(|item| item.get("id")) {
        let body = json!({"reader": reader, "id": id, "topic": topic});
        asked(client.post("/v1/inbox/ack", &body, None).await)?;
    }
    Ok(items.len())
}

fn asked(answer: Result<semel_client::Answer, semel_client::ClientError>) -> Result<Value, String> {
    let answer = answer.map_err(|error| error.to_string())?;
    if answer.is_success() { Ok(answer.body) } else { Err(answer.detail().to_owned()) }
}

fn items(document: &Value) -> Vec<Value> {
    document.get("items").and_then(Value::as_array).cloned().unwrap_or_default()
}

/// A message that is no job would never become one: it is set aside, where its operator finds it,
/// before it is acknowledged.
async fn take(engine: &Engine, client: &Client, item: &Value) -> Result<(), String> {
    let text = |name: &str| item.get(name).and_then(Value::as_str);
    let (sender, id) = (text("sender_pubkey"), text("client_message_id"));
    let (Some(sender), Some(id)) = (sender, id) else {
        return set_aside(client, item, "it does not name its sender").await;
    };
    let key = format!("mesh:{sender}:{id}");
    let body: Value = serde_json::from_str(text("body").unwrap_or_default()).unwrap_or_default();
    let field = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
    let job = Asked {
        request: field("request"),
        plan: body.get("plan").cloned(),
        conversation: field("conversation_id"),
        priority: field("priority").as_deref().and_then(Priority::parse),
        timeout_ms: body.get("timeout_ms").and_then(Value::as_u64),
        key: Some(key.clone()),
        user: sender.to_owned(),
        source: Some(Source::Mesh),
    };
    match engine.submit(job).await {
        Ok(taken) => {
            tracing::info!(key, job = %taken.id, "a message became a job");
            Ok(())
        }
        Err(Refused::Refusal(refusal)) => {
            tracing::warn!(key, %refusal, "a message is not a job");
            set_aside(client, item, &refusal.to_string()).await
        }
        Err(Refused::Store(error) | Refused::Unknown(_, error)) => Err(error.chain()),
    }
}

/// Kept by the daemon, once, however often it comes.
async fn set_aside(client: &Client, item: &Value, reason: &str) -> Result<(), String> {
    let (reason, message) = (cut(reason, REASON_BYTES_MAX), item.to_string());
    let mut body = json!({"reason": reason, "message": cut(&message, ASIDE_BYTES_MAX)});
    if let Some(seq) = item.get("seq").filter(|seq| seq.is_u64()) {
        body["seq"] = seq.clone();
    }
    asked(client.post("/v1/inbox/aside", &body, None).await).map(drop)
}

fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

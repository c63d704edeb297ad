//! What happens to a job, as it happens: a tail of its ledger, which ends with it.

use std::sync::Arc;
use std::time::Duration;

use semel_api::events::{Opening, Tail, write_event};
use semel_api::problem::Problem;
use semel_api::route::{Call, Reply};
use semel_core::code::Code;
use semel_core::id::JobId;
use semel_core::rfc3339;
use serde_json::Value;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Jobs, id_of};
use crate::engine::{Engine, News};
use crate::life::JobStatus;
use crate::store::{LedgerEvent, LedgerLine};

/// How often it is looked for news of other engines.
const LOOK: Duration = Duration::from_millis(500);

/// `GET /v1/jobs/{id}/events`.
pub(super) async fn stream(mut call: Call<Jobs>) -> Result<Reply, Problem> {
    let id = id_of(&call.id)?;
    let opening = Opening::new(&mut call)?;
    let engine = Arc::clone(&call.state.engine);
    let news = engine.news();
    // A job's story is told from its beginning, unless the reader has seen some of it.
    let after = opening.seen().unwrap_or(0);
    let there = engine.store().ledger(id, 0, 1).await?;
    if there.is_none() {
        return Err(Problem::new(Code::JobNotFound, format!("there is no job {id}")));
    }
    let (changed, changes) = watch::channel(0);
    drop(tokio::spawn(forward(id, news, changed)));
    Ok(opening.stream(after, changes, Story { engine, id, ended: false }))
}

/// Until nobody listens any more.
async fn forward(id: JobId, mut news: Receiver<News>, changed: watch::Sender<u64>) {
    loop {
        tokio::select! {
            () = changed.closed() => return,
            heard = news.recv() => match heard {
                Ok(news) if news.id != id => continue,
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            () = sleep(LOOK) => {}
        }
        changed.send_modify(|count| *count += 1);
    }
}

struct Story {
    engine: Arc<Engine>,
    id: JobId,
    /// The job had ended when it was read last.
    ended: bool,
}

impl Tail for Story {
    type Event = LedgerLine;

    async fn read(&mut self, after: i64, max: i64) -> Result<Vec<LedgerLine>, Problem> {
        let limit = u32::try_from(max).unwrap_or(1);
        let ledger = self.engine.store().ledger(self.id, after, limit).await?;
        let missing = || Problem::new(Code::JobNotFound, "the job was removed");
        let ledger = ledger.ok_or_else(missing)?;
        self.ended = ledger.status.is_terminal();
        Ok(ledger.lines)
    }

    fn number(event: &LedgerLine) -> i64 {
        event.entry
    }

    fn write(&self, event: &LedgerLine, out: &mut Vec<u8>) {
        let LedgerLine { entry, at, line } = event;
        write_event(*entry, line.event.as_str(), out, |out| {
            let mut data: Value = serde_json::from_str(&line.detail).unwrap_or_default();
            if let Value::Object(fields) = &mut data {
                fields.insert("at".to_owned(), rfc3339::format(*at).into());
                if let Some(step) = &line.step_id {
                    fields.insert("step".to_owned(), step.clone().into());
                }
            }
            out.extend_from_slice(data.to_string().as_bytes());
        });
    }

    fn is_last(event: &LedgerLine) -> bool {
        let detail: Value = serde_json::from_str(&event.line.detail).unwrap_or_default();
        let status = detail.get("status").and_then(Value::as_str).and_then(JobStatus::parse);
        event.line.event == LedgerEvent::Moved && status.is_some_and(JobStatus::is_terminal)
    }

    fn is_over(&self) -> bool {
        self.ended
    }
}

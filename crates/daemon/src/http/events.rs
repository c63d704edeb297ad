//! Events as they happen: a tail of the table `event`.

use std::sync::Arc;

use semel_api::events::{Opening, Tail, write_event};
use semel_api::problem::Problem;
use semel_api::route::{Call, Reply};
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_core::rfc3339;

use super::Daemon;
use super::inbox::write_message;
use crate::outbox::Pressure;
use crate::store::event::{Event, EventKind};

/// `GET /v1/events`.
pub(super) async fn stream(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let kinds = kinds(call.query.text("kinds"))?;
    if call.state.engine.outbox.pressure() == Pressure::Degraded {
        let why = call.state.engine.outbox.why_full();
        let detail = format!("{why}: no new streams until there is room");
        return Err(Problem::new(Code::InsufficientStorage, detail));
    }
    let opening = Opening::new(&mut call)?;
    let daemon = Arc::clone(&call.state);
    // First this, then the reading: what is stored in between is not missed.
    let changes = daemon.engine.inbox.changes();
    let newest = daemon.engine.inbox.newest_event().await?;
    let after = opening.after(newest);
    Ok(opening.stream(after, changes, Happenings { daemon, kinds }))
}

fn kinds(given: Option<String>) -> Result<Vec<EventKind>, Refusal> {
    let Some(given) = given else { return Ok(EventKind::ALL.to_vec()) };
    let words = given.split(',').map(str::trim);
    let kinds: Option<Vec<EventKind>> = words.map(EventKind::parse).collect();
    kinds.ok_or_else(|| {
        let all: Vec<_> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
        let detail = format!("must be some of {}, separated by commas", all.join(", "));
        Refusal::at(Code::InvalidField, "/kinds", detail)
    })
}

/// Those of these kinds.
struct Happenings {
    daemon: Arc<Daemon>,
    kinds: Vec<EventKind>,
}

impl Tail for Happenings {
    type Event = Event;

    async fn read(&mut self, after: i64, max: i64) -> Result<Vec<Event>, Problem> {
        Ok(self.daemon.engine.inbox.events(after, max).await?)
    }

    fn number(event: &Event) -> i64 {
        event.id
    }

    fn write(&self, event: &Event, out: &mut Vec<u8>) {
        if !self.kinds.contains(&event.kind) {
            return;
        }
        write_event(event.id, event.kind.as_str(), out, |out| match &event.message {
            Some(message) => write_message(message, out),
            None => {
                let at = rfc3339::format(event.at);
                let rest = event.data.strip_prefix('{').unwrap_or("}");
                let comma = if rest.starts_with('}') { "" } else { "," };
                out.extend_from_slice(format!(r#"{{"at":"{at}"{comma}{rest}"#).as_bytes());
            }
        });
    }
}

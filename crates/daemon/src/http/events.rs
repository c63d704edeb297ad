//! Events as they happen: a tail of the table `event`, so that a stream resumes by the number of
//! the last event it has seen, also after a restart, without gaps and without repetitions.

use std::sync::Arc;

use hyper::body::Bytes;
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_core::rfc3339;
use semel_store::StoreError;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::sleep;

use super::Api;
use super::inbox::write_message;
use super::problem::Problem;
use super::route::{Call, Reply};
use crate::limits::{STREAM_BUFFER, STREAM_PIECE_BYTES, STREAM_ROWS_LARGE, STREAM_ROWS_SMALL};
use crate::link::stopped;
use crate::store::event::{Event, EventKind};

/// Says nothing, and that the other side is still there.
const KEEP_ALIVE: Bytes = Bytes::from_static(b": nothing new\n\n");

/// `GET /v1/events`.
pub(super) async fn stream(mut call: Call) -> Result<Reply, Problem> {
    let kinds = kinds(call.query.text("kinds"))?;
    // A stream that resumes by itself repeats its first address: what it has seen since counts.
    let seen = match call.headers.text("last-event-id").filter(|text| !text.is_empty()) {
        Some(text) => Some(number(&text)?),
        None => call.query.number("after"),
    };
    let api = Arc::clone(&call.api);
    let Ok(place) = Arc::clone(&api.streams).try_acquire_owned() else {
        let problem = Problem::new(Code::TooManyStreams, "too many event streams are open");
        return Err(problem.retry_after(1));
    };
    // First this, then the reading: what is stored in between is not missed.
    let changes = api.engine.inbox.changes();
    let newest = api.engine.inbox.newest_event().await?;
    let after = match seen {
        None => newest,
        // Numbers begin anew when the inbox was lost: all there is has happened since.
        Some(seen) if seen > newest => 0,
        Some(seen) => seen,
    };
    let (pieces, body) = mpsc::channel(STREAM_BUFFER);
    let stopping = api.stopping.subscribe();
    let inside = api.inside.subscribe();
    let tail = Tail { api, kinds, after, pieces, stopping, _place: place, _inside: inside };
    drop(tokio::spawn(tail.run(changes)));
    Ok(Reply::stream(body))
}

fn number(text: &str) -> Result<i64, Refusal> {
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.ok_or_else(|| Refusal::new(Code::InvalidField, "Last-Event-ID must be a whole number"))
}

fn kinds(given: Option<String>) -> Result<Vec<EventKind>, Refusal> {
    let Some(given) = given else { return Ok(EventKind::ALL.to_vec()) };
    let words = given.split(',').map(str::trim);
    let kinds: Option<Vec<EventKind>> = words.map(EventKind::parse).collect();
    kinds.ok_or_else(|| {
        let all: Vec<_> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
        let detail = format!("must be some of {}, with commas between them", all.join(", "));
        Refusal::at(Code::InvalidField, "/kinds", detail)
    })
}

struct Tail {
    api: Arc<Api>,
    kinds: Vec<EventKind>,
    after: i64,
    pieces: mpsc::Sender<Bytes>,
    stopping: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
    /// The last to go.
    _inside: watch::Receiver<()>,
}

impl Tail {
    async fn run(mut self, mut changes: watch::Receiver<u64>) {
        // Tells the other side at once that it is connected, and how soon to come back.
        let mut piece = Bytes::from_static(b"retry: 1000\n\n");
        loop {
            if !self.write(piece).await {
                return;
            }
            changes.borrow_and_update();
            match self.catch_up().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::error!(error = error.chain(), "an event stream ends");
                    return;
                }
            }
            piece = tokio::select! {
                changed = changes.changed() => match changed {
                    Ok(()) => Bytes::new(),
                    Err(_) => return,
                },
                () = sleep(self.api.options.keep_alive) => KEEP_ALIVE,
                () = self.pieces.closed() => return,
                () = stopped(&mut self.stopping) => return,
            };
        }
    }

    /// Writes everything that has happened by now; `false` when nobody listens any more.
    async fn catch_up(&mut self) -> Result<bool, StoreError> {
        let mut rows = STREAM_ROWS_SMALL;
        loop {
            let events = self.api.engine.inbox.events(self.after, rows).await?;
            if events.is_empty() {
                return Ok(true);
            }
            let mut written = 0;
            let mut piece = Vec::new();
            for event in events {
                self.after = event.id;
                if self.kinds.contains(&event.kind) {
                    write_event(&event, &mut piece);
                }
                if piece.len() >= STREAM_PIECE_BYTES {
                    written += piece.len();
                    if !self.write(std::mem::take(&mut piece).into()).await {
                        return Ok(false);
                    }
                }
            }
            written += piece.len();
            rows = if written < STREAM_PIECE_BYTES { STREAM_ROWS_LARGE } else { STREAM_ROWS_SMALL };
            if !self.write(piece.into()).await {
                return Ok(false);
            }
        }
    }

    /// Waits while the reader is slow. One that stands still loses its connection, and with it us.
    async fn write(&mut self, piece: Bytes) -> bool {
        if piece.is_empty() {
            return true;
        }
        tokio::select! {
            sent = self.pieces.send(piece) => sent.is_ok(),
            () = stopped(&mut self.stopping) => false,
        }
    }
}

/// `id`, `event` and `data`, which is one line: JSON escapes line ends.
fn write_event(event: &Event, out: &mut Vec<u8>) {
    let head = format!("id: {}\nevent: {}\ndata: ", event.id, event.kind);
    out.extend_from_slice(head.as_bytes());
    match &event.message {
        Some(message) => write_message(message, out),
        None => {
            let at = rfc3339::format(event.at);
            let rest = event.data.strip_prefix('{').unwrap_or("}");
            let comma = if rest.starts_with('}') { "" } else { "," };
            out.extend_from_slice(format!(r#"{{"at":"{at}"{comma}{rest}"#).as_bytes());
        }
    }
    out.extend_from_slice(b"\n\n");
}

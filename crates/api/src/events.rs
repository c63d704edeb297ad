//! Events as they happen (server-sent events): a tail of a table whose rows are numbered, so that a
//! stream resumes by the number of the last event it has seen, also after a restart, without gaps
//! and without repetitions. Its part says where the rows are; the rest is the same for all.

use std::sync::Arc;

use hyper::body::Bytes;
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::sleep;

use crate::Api;
use crate::field::{Field, Kind, NUMBER_MAX};
use crate::limits::{STREAM_BUFFER, STREAM_PIECE_BYTES, STREAM_ROWS_LARGE, STREAM_ROWS_SMALL};
use crate::problem::Problem;
use crate::route::{Call, Reply};

/// What a call that streams reads of the head.
pub const LAST_EVENT_ID: Field =
    Field::new("last-event-id", Kind::Text { bytes_max: 1024 }, "resume after this event");

/// What it reads of the query.
pub const AFTER: Field =
    Field::new("after", Kind::Number { min: 0, max: NUMBER_MAX }, "resume after this event");

/// Says nothing, and that the other side is still there.
const KEEP_ALIVE: Bytes = Bytes::from_static(b": nothing new\n\n");

/// Where the events of a stream come from.
pub trait Tail: Send + 'static {
    /// One of them.
    type Event: Send + Sync;

    /// Those after this number, in order, so many at the most. A problem ends the stream.
    fn read(
        &mut self,
        after: i64,
        max: i64,
    ) -> impl Future<Output = Result<Vec<Self::Event>, Problem>> + Send;

    /// Its number.
    fn number(event: &Self::Event) -> i64;

    /// Writes it with [`write_event`], or nothing when this stream does not tell it.
    fn write(&self, event: &Self::Event, out: &mut Vec<u8>);

    /// Whether nothing comes after this one: then the stream ends.
    fn is_last(_event: &Self::Event) -> bool {
        false
    }

    /// Whether a read that has found nothing will find nothing later either: then a stream that
    /// was resumed at its end is over at once.
    fn is_over(&self) -> bool {
        false
    }
}

/// A place among the streams, before it is known where it begins.
pub struct Opening {
    api: Arc<Api>,
    seen: Option<i64>,
    place: OwnedSemaphorePermit,
}

impl Opening {
    /// Takes a place, and reads [`LAST_EVENT_ID`] and [`AFTER`]. Subscribe to changes and read the
    /// newest number after this, in this order: what is stored in between is not missed.
    pub fn new<S: 'static>(call: &mut Call<S>) -> Result<Self, Problem> {
        // A stream that resumes by itself repeats its first address: what it has seen since counts.
        let seen = match call.headers.text(LAST_EVENT_ID.name).filter(|text| !text.is_empty()) {
            Some(text) => Some(number(&text)?),
            None => call.query.number(AFTER.name),
        };
        let api = Arc::clone(call.api());
        let place = api.stream_place()?;
        Ok(Self { api, seen, place })
    }

    /// The number that the caller has seen last.
    pub fn seen(&self) -> Option<i64> {
        self.seen
    }

    /// After which event it begins, if this is the newest: from now on, or where it was cut.
    pub fn after(&self, newest: i64) -> i64 {
        match self.seen {
            None => newest,
            // Numbers begin anew when the table was lost: all there is has happened since.
            Some(seen) if seen > newest => 0,
            Some(seen) => seen,
        }
    }

    /// Begins. `changes` is told whenever there may be more.
    pub fn stream<T: Tail>(self, after: i64, changes: watch::Receiver<u64>, tail: T) -> Reply {
        let Self { api, place, .. } = self;
        let (pieces, body) = mpsc::channel(STREAM_BUFFER);
        // Tells the other side at once that it is connected, how soon to come back, and where it
        // began: one that is cut before its first event resumes there, and misses nothing. It is
        // there before the answer is, so that a stop in between does not cut it off.
        let beginning = Bytes::from(format!("id: {after}\nretry: 1000\n\n"));
        let _ = pieces.try_send(beginning);
        let stopping = api.stopping.subscribe();
        let inside = api.inside.subscribe();
        let stream = Stream { tail, after, pieces, stopping, api, _place: place, _inside: inside };
        drop(tokio::spawn(stream.run(changes)));
        Reply::stream(body)
    }
}

/// Writes an event: its data is one line, for JSON escapes line ends.
pub fn write_event(number: i64, kind: &str, out: &mut Vec<u8>, data: impl FnOnce(&mut Vec<u8>)) {
    let head = format!("id: {number}\nevent: {kind}\ndata: ");
    out.extend_from_slice(head.as_bytes());
    data(out);
    out.extend_from_slice(b"\n\n");
}

fn number(text: &str) -> Result<i64, Refusal> {
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.ok_or_else(|| Refusal::new(Code::InvalidField, "Last-Event-ID must be a whole number"))
}

struct Stream<T> {
    tail: T,
    after: i64,
    pieces: mpsc::Sender<Bytes>,
    stopping: watch::Receiver<bool>,
    api: Arc<Api>,
    _place: OwnedSemaphorePermit,
    /// The last to go.
    _inside: watch::Receiver<()>,
}

impl<T: Tail> Stream<T> {
    async fn run(mut self, mut changes: watch::Receiver<u64>) {
        let mut piece = Bytes::new();
        loop {
            if !self.write(piece).await {
                return;
            }
            changes.borrow_and_update();
            match self.catch_up().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(problem) => {
                    tracing::error!(code = %problem.code, "an event stream ends");
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

    /// Writes everything that has happened by now; `false` when nobody listens any more, or when
    /// nothing can come after it.
    async fn catch_up(&mut self) -> Result<bool, Problem> {
        let mut rows = STREAM_ROWS_SMALL;
        loop {
            let events = self.tail.read(self.after, rows).await?;
            let Some(newest) = events.last() else { return Ok(!self.tail.is_over()) };
            let ends = T::is_last(newest);
            let mut written = 0;
            let mut piece = Vec::new();
            for event in events {
                self.after = T::number(&event);
                self.tail.write(&event, &mut piece);
                if piece.len() >= STREAM_PIECE_BYTES {
                    written += piece.len();
                    if !self.write(std::mem::take(&mut piece).into()).await {
                        return Ok(false);
                    }
                }
            }
            written += piece.len();
            rows = if written < STREAM_PIECE_BYTES { STREAM_ROWS_LARGE } else { STREAM_ROWS_SMALL };
            if !self.write(piece.into()).await || ends {
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

async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

//! The body of an answer: a short one in memory, a long one straight into a file. Many requests at
//! once would take more memory than the engine has otherwise.

use std::error::Error;
use std::io::{self, Read};
use std::path::PathBuf;
use std::pin::pin;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use tokio::sync::mpsc;

use super::super::super::{Call, Failure, FailureClass};
use super::super::files;
use crate::limits::{HTTP_BODY_BYTES_MAX, INLINE_BYTES_MAX};

/// Pieces that wait to be written.
const PIECES_MAX: usize = 4;

/// What was answered.
pub(super) enum Body {
    /// It fits into a document.
    Here(Vec<u8>),
    /// A file of the workspace.
    File(String),
}

/// Where a long one goes: no other step writes there.
pub(super) struct Place {
    workspace: PathBuf,
    name: String,
}

impl Place {
    pub(super) fn of(call: &Call) -> Self {
        let step = call.execution_id.split_once(':').map_or("", |(_, step)| step);
        Self { workspace: call.workspace.clone(), name: format!("http/{step}.body") }
    }
}

pub(super) enum Failed {
    /// The connection ended before the body did.
    Cut(Box<dyn Error + Send + Sync>),
    /// It came, and cannot be kept.
    Failure(Failure),
}

/// Reads a body to its end. Without a place a long one is read, and nothing is kept of it.
pub(super) async fn read(body: Incoming, place: Option<&Place>) -> Result<Body, Failed> {
    let mut body = pin!(Limited::new(body, HTTP_BODY_BYTES_MAX));
    let mut here = Vec::new();
    let mut file: Option<File> = None;
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) if error.is::<LengthLimitError>() => {
                let text = format!("the body has more than {HTTP_BODY_BYTES_MAX} bytes");
                return Err(limit("body_too_large", text));
            }
            Err(error) => return Err(Failed::Cut(error)),
        };
        // What is no data is of no use to anybody.
        let Ok(piece) = frame.into_data() else { continue };
        if let Some(file) = &mut file {
            file.write(piece).await?;
            continue;
        }
        here.extend_from_slice(&piece);
        if here.len() > INLINE_BYTES_MAX {
            let begun = Bytes::from(std::mem::take(&mut here));
            if let Some(place) = place {
                let mut begin = File::begin(place);
                begin.write(begun).await?;
                file = Some(begin);
            }
        }
    }
    match (file, place) {
        (Some(file), Some(place)) => {
            file.end().await?;
            Ok(Body::File(place.name.clone()))
        }
        _ => Ok(Body::Here(here)),
    }
}

fn limit(code: &str, text: String) -> Failed {
    Failed::Failure(Failure::new(FailureClass::ResourceLimit, code, text))
}

/// A file that is being written, by a thread of its own.
struct File {
    /// An empty piece is the end. Without it the file is not kept.
    pieces: mpsc::Sender<Bytes>,
    writing: tokio::task::JoinHandle<io::Result<()>>,
}

impl File {
    fn begin(place: &Place) -> Self {
        let (pieces, come) = mpsc::channel(PIECES_MAX);
        let (workspace, name) = (place.workspace.clone(), place.name.clone());
        let mut pieces_of = Pieces { come, piece: Bytes::new(), ended: false };
        let keep = move || files::keep(&workspace, &name, &mut pieces_of);
        Self { pieces, writing: tokio::task::spawn_blocking(keep) }
    }

    async fn write(&mut self, piece: Bytes) -> Result<(), Failed> {
        if piece.is_empty() || self.pieces.send(piece).await.is_ok() {
            return Ok(());
        }
        // Whoever writes has given up.
        match written((&mut self.writing).await) {
            Err(failed) => Err(failed),
            Ok(()) => Err(not_kept(&io::ErrorKind::BrokenPipe.into())),
        }
    }

    async fn end(self) -> Result<(), Failed> {
        // Whoever does not hear it says why.
        let _ = self.pieces.send(Bytes::new()).await;
        written(self.writing.await)
    }
}

fn written(joined: Result<io::Result<()>, tokio::task::JoinError>) -> Result<(), Failed> {
    joined.map_err(io::Error::other).and_then(|written| written).map_err(|error| not_kept(&error))
}

fn not_kept(error: &io::Error) -> Failed {
    limit("body_not_kept", format!("the body cannot be kept: {error}"))
}

/// What comes, for whoever reads by bytes.
struct Pieces {
    come: mpsc::Receiver<Bytes>,
    piece: Bytes,
    ended: bool,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() && !self.ended {
            // Nobody has said that this is all: the request was given up.
            self.piece = self.come.blocking_recv().ok_or(io::ErrorKind::UnexpectedEof)?;
            self.ended = self.piece.is_empty();
        }
        let read = self.piece.len().min(into.len());
        let read_now = self.piece.split_to(read);
        if let Some(to) = into.get_mut(..read) {
            to.copy_from_slice(&read_now);
        }
        Ok(read)
    }
}

//! A file as an answer: read piece by piece as its reader takes them, never as a whole.

use std::fs::File;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::limits::STREAM_PIECE_BYTES;
use crate::problem::Problem;
use crate::route::{Call, Reply};

/// Answers a call with so many bytes of a file. It has a place among the streams until its end: a
/// slow reader must not take one from calls.
pub fn reply<S: 'static>(call: &Call<S>, file: File, bytes: u64) -> Result<Reply, Problem> {
    let place = call.api().stream_place()?;
    let inside = call.api().inside.subscribe();
    let file = tokio::fs::File::from_std(file);
    let content = Content { file, left: bytes, piece: Vec::new(), _place: place, _inside: inside };
    Ok(Reply::file(content))
}

/// What is left of a file that is sent.
pub(crate) struct Content {
    file: tokio::fs::File,
    pub(crate) left: u64,
    piece: Vec<u8>,
    _place: OwnedSemaphorePermit,
    /// The last to go.
    _inside: watch::Receiver<()>,
}

impl Content {
    /// The next piece. An end before all was sent is seen at the other side: the length was told.
    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(STREAM_PIECE_BYTES);
        if most == 0 {
            return Poll::Ready(None);
        }
        self.piece.resize(most, 0);
        let mut buffer = ReadBuf::new(&mut self.piece);
        let read = ready!(Pin::new(&mut self.file).poll_read(context, &mut buffer));
        let bytes = buffer.filled().len();
        if let Err(error) = read {
            tracing::error!(%error, left = self.left, "a file cannot be read to its end");
            return Poll::Ready(None);
        }
        if bytes == 0 {
            tracing::error!(left = self.left, "a file has become shorter while it was read");
            return Poll::Ready(None);
        }
        self.left = self.left.saturating_sub(u64::try_from(bytes).unwrap_or(u64::MAX));
        let mut piece = std::mem::take(&mut self.piece);
        piece.truncate(bytes);
        Poll::Ready(Some(piece.into()))
    }
}

//! Bodies of requests, read within limits, and of answers: whole ones, streams and files.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use semel_core::code::Code;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::file::Content;
use crate::limits::{BODY_TIMEOUT, DISCARD_BYTES_MAX};
use crate::problem::Problem;
use crate::readers::Reading;

/// The body of an answer.
pub(crate) enum Body {
    /// All of it, until it is taken.
    Whole(Option<Bytes>),
    /// Pieces as they come; it ends when their sender does.
    Stream(mpsc::Receiver<Bytes>),
    /// A file, read as it is taken.
    File(Content),
}

impl Body {
    /// A body that is there already.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take()),
            Self::Stream(pieces) => pieces.poll_recv(context),
            Self::File(content) => content.poll_piece(context),
        };
        bytes.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Stream(_) => false,
            Self::File(content) => content.left == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Stream(_) => SizeHint::default(),
            Self::File(content) => SizeHint::with_exact(content.left),
        }
    }
}

/// Reads a request's body, within a size, a time, and what its door has room for.
pub(crate) async fn read(
    incoming: Incoming,
    bytes_max: usize,
    reading: Reading<'_>,
) -> Result<Bytes, Problem> {
    match timeout(BODY_TIMEOUT, read_all(incoming, bytes_max, reading)).await {
        Ok(read) => read,
        Err(_) => Err(Problem::new(Code::RequestTimeout, "the body did not arrive in time")),
    }
}

async fn read_all(
    mut incoming: Incoming,
    bytes_max: usize,
    mut reading: Reading<'_>,
) -> Result<Bytes, Problem> {
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    let mut seen = 0;
    while let Some(frame) = poll_fn(|context| Pin::new(&mut incoming).poll_frame(context)).await {
        let Ok(frame) = frame else {
            return Err(Problem::new(Code::InvalidJson, "the body ended too early"));
        };
        let Ok(data) = frame.into_data() else { continue };
        seen += data.len();
        if seen > bytes_max {
            // A sender that is cut off while it writes would not hear why.
            if seen > bytes_max + DISCARD_BYTES_MAX {
                break;
            }
            (first, rest) = (Bytes::new(), Vec::new());
            reading.forget();
        } else if !reading.grow(data.len()) {
            let problem = Problem::new(Code::DaemonBusy, "too many bodies are being read");
            return Err(problem.retry_after(1));
        } else if first.is_empty() {
            // Nearly always the whole of it: it is not copied.
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
    }
    match seen {
        _ if seen > bytes_max => Err(Problem::new(
            Code::PayloadTooLarge,
            format!("the body has more than the {bytes_max} bytes that are allowed"),
        )),
        _ if rest.is_empty() => Ok(first),
        _ => Ok(rest.into()),
    }
}

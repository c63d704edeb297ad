//! HTTP over any accepted stream, with what a door needs: a bound on how many there are, limits
//! on how long a request's head may take and how long a reader may stand still, and an end that
//! waits for those inside. It knows nothing of what is served: the broker's door and the daemon's
//! are the same.
//!
//! A place is taken before a stream is accepted, and the stream itself holds it. A WebSocket takes
//! its stream out of HTTP and along, so it is counted and waited for until it is gone, not until
//! its upgrade; and nothing is counted by hand.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Sleep;

/// What a stream may do.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Streams at once; one more waits to be accepted.
    pub connections_max: usize,
    /// How long a request's head may take to arrive, and so how long an idle stream stays.
    pub head_timeout: Duration,
    /// How large a request's head may be.
    pub head_bytes_max: usize,
    /// How long the other side may take nothing of what is written to it; `None` where whoever
    /// writes sees to that itself.
    pub write_timeout: Option<Duration>,
}

/// All streams of one door.
pub struct Connections {
    limits: ConnectionLimits,
    places: Arc<Semaphore>,
    stopping: watch::Sender<bool>,
}

/// Room for one stream.
pub struct Place {
    limits: ConnectionLimits,
    inside: Inside,
}

/// Lives as long as the stream that it came in with.
struct Inside {
    _place: OwnedSemaphorePermit,
    stopping: watch::Receiver<bool>,
}

impl Connections {
    /// None yet.
    pub fn new(limits: ConnectionLimits) -> Self {
        let places = Arc::new(Semaphore::new(limits.connections_max));
        Self { limits, places, stopping: watch::channel(false).0 }
    }

    /// Waits for room; `None` when nobody is let in any more.
    pub async fn place(&self) -> Option<Place> {
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        let inside = Inside { _place: place, stopping: self.stopping.subscribe() };
        Some(Place { limits: self.limits, inside })
    }

    /// Lets nobody in any more, and asks HTTP streams to end after the request they are in. What
    /// took its stream along (a WebSocket) is asked by whoever serves it.
    pub fn stop(&self) {
        self.places.close();
        self.stopping.send_replace(true);
    }

    /// Comes back when the last stream is gone.
    pub async fn drained(&self) {
        self.stopping.closed().await;
    }
}

impl Place {
    /// Comes back when everybody is asked to leave.
    pub async fn stopping(&mut self) {
        stopped(&mut self.inside.stopping).await;
    }

    /// Serves a stream to its end, or until it is no longer HTTP.
    pub async fn serve<S, R>(self, stream: S, routes: R)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        R: HttpService<Incoming>,
        R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        R::ResBody: 'static,
        <R::ResBody as Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Self { limits, inside } = self;
        let mut stopping = inside.stopping.clone();
        let patience = limits.write_timeout;
        let stream = Counted { stream, patience, stalled: None, _inside: inside };
        let stream = TokioIo::new(stream);
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_timeout)
            .max_header_size(limits.head_bytes_max);
        let connection = builder.serve_connection(stream, routes);
        let mut connection = pin!(connection.with_upgrades());
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stopped(&mut stopping) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            // The other side's doing: it went away, was too slow, or does not speak HTTP.
            tracing::debug!(%error, "a connection has ended");
        }
    }
}

async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // Without the door there is nothing to wait for either.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// A stream that holds its place, and ends when its reader stands still.
struct Counted<S> {
    stream: S,
    patience: Option<Duration>,
    /// Runs while a write makes no progress.
    stalled: Option<Pin<Box<Sleep>>>,
    _inside: Inside,
}

impl<S> Counted<S> {
    /// What a write came to, or that it has waited for too long.
    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let Some(patience) = self.patience else { return written };
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        match stalled.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judge(context, shut)
    }
}

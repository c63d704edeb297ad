//! HTTP over any accepted stream, with what a door needs: a bound on how many there are, limits
//! on how long a request's head may take and how long a reader may stand still, and an end that
//! waits for those inside. It knows nothing of what is served: the broker's door and the daemon's
//! are the same.
//!
//! Who is a stranger there, and for how long, is in [`guests`](StrangerLimits).
//!
//! A place is taken before a stream is accepted, and the stream itself holds it. A WebSocket takes
//! its stream out of HTTP and along, so it is counted and waited for until it is gone, not until
//! its upgrade; and nothing is counted by hand.

mod guests;

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Sleep;

use self::guests::Guests;
pub use self::guests::{Guest, StrangerLimits};

/// What a stream may do.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Streams at once of those who are known.
    pub connections_max: usize,
    /// What those may do who are not.
    pub strangers: StrangerLimits,
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
    guests: Arc<Guests>,
    stopping: watch::Sender<bool>,
}

/// Room for one stream.
pub struct Room {
    limits: ConnectionLimits,
    guests: Arc<Guests>,
    place: OwnedSemaphorePermit,
    stopping: watch::Receiver<bool>,
}

/// The place of one stream.
pub struct Place {
    limits: ConnectionLimits,
    inside: Inside,
}

/// Lives as long as the stream that it came in with.
struct Inside {
    guest: Guest,
    stopping: watch::Receiver<bool>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.guest.left();
    }
}

impl Connections {
    /// None yet.
    pub fn new(limits: ConnectionLimits) -> Self {
        let guests = Guests::new(limits.strangers, limits.connections_max);
        Self { limits, guests, stopping: watch::channel(false).0 }
    }

    /// Waits for room for a stranger, who gets that of the oldest one if need be; `None` when
    /// nobody is let in any more.
    pub async fn room(&self) -> Option<Room> {
        self.guests.room().await.map(|place| self.with(place))
    }

    /// Waits for room for somebody who is known beforehand.
    pub async fn known_room(&self) -> Option<Room> {
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            place = self.guests.known_room() => place.map(|place| self.with(place)),
            () = stopped(&mut stopping) => None,
        }
    }

    fn with(&self, place: OwnedSemaphorePermit) -> Room {
        let (limits, guests) = (self.limits, Arc::clone(&self.guests));
        Room { limits, guests, place, stopping: self.stopping.subscribe() }
    }

    /// Lets nobody in any more, and asks HTTP streams to end after the request they are in. What
    /// took its stream along (a WebSocket) is asked by whoever serves it.
    pub fn stop(&self) {
        self.guests.close();
        self.stopping.send_replace(true);
    }

    /// Comes back when the last stream is gone.
    pub async fn drained(&self) {
        self.stopping.closed().await;
    }
}

impl Room {
    /// For a stranger from this address; `None` where too many of them have just come.
    pub fn stranger(self, address: IpAddr) -> Option<Place> {
        let Self { limits, guests, place, stopping } = self;
        let guest = guests.stranger(place, address)?;
        Some(Place { limits, inside: Inside { guest, stopping } })
    }

    /// For somebody who is known beforehand.
    pub fn known(self) -> Place {
        let Self { limits, guests, place, stopping } = self;
        Place { limits, inside: Inside { guest: guests.acquaintance(place), stopping } }
    }
}

impl Place {
    /// Comes back when everybody is asked to leave, or this one must: it makes room for others, or
    /// was a stranger for too long.
    pub async fn stopping(&mut self) {
        let Inside { guest, stopping } = &mut self.inside;
        let leaves = async {
            if guest.judged_by_its_end().await {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = stopped(stopping) => {}
            () = leaves => {}
        }
    }

    /// Serves a stream to its end, or until it is no longer HTTP.
    pub async fn serve<S, R, B>(self, stream: S, routes: R)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        R: Service<Request<Incoming>, Response = Response<B>>,
        R::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Self { limits, inside } = self;
        let (guest, mut stopping) = (inside.guest.clone(), inside.stopping.clone());
        let patience = limits.write_timeout;
        let standing = Standing::of(&guest);
        let stream = Counted { stream, patience, stalled: None, standing, inside };
        let stream = TokioIo::new(stream);
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_timeout)
            .max_header_size(limits.head_bytes_max);
        let routes = Introduced { routes, guest: guest.clone() };
        let connection = builder.serve_connection(stream, routes);
        let mut connection = pin!(connection.with_upgrades());
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stopped(&mut stopping) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            // Its next request would be cut off.
            () = guest.lingers() => {
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

/// Routes that are told who asks.
struct Introduced<R> {
    routes: R,
    guest: Guest,
}

impl<R: Service<Request<Incoming>>> Service<Request<Incoming>> for Introduced<R> {
    type Response = R::Response;
    type Error = R::Error;
    type Future = R::Future;

    fn call(&self, mut request: Request<Incoming>) -> R::Future {
        self.guest.asks();
        request.extensions_mut().insert(self.guest.clone());
        self.routes.call(request)
    }
}

/// What is known of the other end.
enum Standing {
    Known,
    /// Comes back with whether it has become known.
    Stranger(Pin<Box<dyn Future<Output = bool> + Send>>),
    /// It must leave.
    Closed,
}

impl Standing {
    fn of(guest: &Guest) -> Self {
        if guest.is_known() {
            return Self::Known;
        }
        Self::Stranger(Box::pin(guest.clone().judged()))
    }

    /// Whether the stream may go on.
    fn look(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Self::Stranger(judged) = self
            && let Poll::Ready(is_known) = judged.as_mut().poll(context)
        {
            *self = if is_known { Self::Known } else { Self::Closed };
        }
        match self {
            Self::Known | Self::Stranger(_) => Ok(()),
            Self::Closed => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// A stream that holds its place, and ends when its reader stands still or its stranger must leave.
struct Counted<S> {
    stream: S,
    patience: Option<Duration>,
    /// Runs while a write makes no progress.
    stalled: Option<Pin<Box<Sleep>>>,
    standing: Standing,
    inside: Inside,
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
        self.standing.look(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if matches!(self.standing, Standing::Stranger(_))
            && !self.inside.guest.may_send(buffer.filled().len() - before)
        {
            self.standing = Standing::Closed;
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.standing.look(context)?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.standing.look(context)?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.standing.look(context)?;
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.judge(context, shut)
    }
}

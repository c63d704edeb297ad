//! How far what we say has left: on a slow line a frame may take minutes, and that is no reason to
//! give the line up as long as bytes go out.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Counts what was written to a connection.
#[derive(Debug, Default)]
pub(super) struct Meter {
    bytes: AtomicU64,
    /// Something is being written and has not left as a whole.
    is_behind: AtomicBool,
}

impl Meter {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Waits for `writing`, as long as some bytes go out within every `limit`.
    pub(super) async fn patiently<E>(
        &self,
        limit: Duration,
        writing: impl Future<Output = Result<(), E>>,
    ) -> Result<(), Stuck> {
        self.is_behind.store(true, Ordering::Relaxed);
        let mut writing = std::pin::pin!(writing);
        loop {
            let before = self.bytes();
            match tokio::time::timeout(limit, &mut writing).await {
                Ok(written) => return written.map_err(|_| Stuck),
                Err(_) if self.bytes() > before => {}
                Err(_) => return Err(Stuck),
            }
        }
    }

    /// Everything has left.
    pub(super) fn caught_up(&self) {
        self.is_behind.store(false, Ordering::Relaxed);
    }
}

/// Nothing more goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stuck;

/// Whether bytes went out lately, for whoever looks now and then.
#[derive(Debug)]
pub(super) struct Progress {
    meter: Arc<Meter>,
    bytes: u64,
    at: Duration,
}

impl Progress {
    pub(super) fn new(meter: Arc<Meter>, now: Duration) -> Self {
        Self { meter, bytes: 0, at: now }
    }

    /// When bytes of something long went out last, as far as was looked; nothing when all is out.
    pub(super) fn look(&mut self, now: Duration) -> Option<Duration> {
        let bytes = self.meter.bytes();
        if bytes != self.bytes {
            (self.bytes, self.at) = (bytes, now);
        }
        self.meter.is_behind().then_some(self.at)
    }
}

/// A stream whose bytes are counted as they go out.
pub(super) struct Metered<S> {
    pub(super) stream: S,
    pub(super) meter: Arc<Meter>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = &written {
            self.meter.bytes.fetch_add(*count as u64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[tokio::test]
    async fn a_slow_line_is_waited_for_and_a_dead_one_is_not() {
        let (meter, limit) = (Meter::default(), Duration::from_millis(1));
        let mut parts = 0;
        // Whenever somebody looks, a little has gone out.
        let slow = std::future::poll_fn(|_| {
            meter.bytes.fetch_add(1, Ordering::Relaxed);
            parts += 1;
            if parts < 20 { Poll::Pending } else { Poll::Ready(Ok::<(), Infallible>(())) }
        });
        assert_eq!(meter.patiently(limit, slow).await, Ok(()), "as long as it takes");
        assert!(meter.is_behind(), "until somebody says that all is out");
        meter.caught_up();
        let dead = std::future::pending::<Result<(), Infallible>>();
        assert_eq!(meter.patiently(limit, dead).await, Err(Stuck));
    }

    #[tokio::test]
    async fn bytes_are_counted_as_they_go_out() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (near, mut far) = tokio::io::duplex(16);
        let meter = Arc::<Meter>::default();
        let mut near = Metered { stream: near, meter: Arc::clone(&meter) };
        let mut progress = Progress::new(Arc::clone(&meter), Duration::ZERO);
        near.write_all(&[7; 10]).await.unwrap();
        far.read_exact(&mut [0; 10]).await.unwrap();
        assert_eq!(meter.bytes(), 10);
        let at = Duration::from_secs;
        assert_eq!(progress.look(at(1)), None, "nothing is left to go out");
        meter.is_behind.store(true, Ordering::Relaxed);
        assert_eq!(progress.look(at(2)), Some(at(1)), "it does not move");
        near.write_all(&[7; 1]).await.unwrap();
        assert_eq!(progress.look(at(3)), Some(at(3)));
    }
}

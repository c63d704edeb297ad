//! The limiter of many brokers: the `script` on a Redis that they share, and the
//! stand-in of `fallback` while it is away.

use std::sync::Arc;

use redis::{RedisError, RedisResult};
use semel_core::clock::Clock;

use super::fallback::{Fallback, StandIn};
use super::link::{Lease, Link};
use super::script::TakeScript;
use super::{DecidedBy, Decision, LimitRequest, LimiterAddressError, Verdict};

pub(super) struct Server {
    link: Link,
    script: TakeScript,
    stand_in: StandIn,
}

impl Server {
    pub(super) fn new(
        address: &str,
        clock: Arc<dyn Clock>,
        fallback: Fallback,
    ) -> Result<Self, LimiterAddressError> {
        Ok(Self {
            link: Link::new(address, Arc::clone(&clock))?,
            script: TakeScript::new(),
            stand_in: StandIn::new(fallback, clock),
        })
    }

    pub(super) async fn why_away(&self) -> Option<String> {
        self.link.why_away().await
    }

    pub(super) fn outages(&self) -> u64 {
        self.link.outages()
    }

    pub(super) async fn take(&self, request: &LimitRequest<'_>) -> Decision {
        match self.ask(request).await {
            Some(verdict) => Decision { verdict, by: DecidedBy::Limiter },
            None => Decision { verdict: self.stand_in.take(request), by: DecidedBy::Fallback },
        }
    }

    /// What is asked instead of sent.
    pub(super) async fn ask_here_or_there(&self, request: &LimitRequest<'_>) -> Verdict {
        match self.ask(request).await {
            Some(verdict) => verdict,
            None => self.stand_in.take_asked(request),
        }
    }

    /// A connection that broke may be one that the server closed while it was idle, so the request
    /// goes out once more on a new one. That is safe even if the first one arrived: its id is
    /// counted, and the second costs nothing. After a timeout there is no second request; the
    /// sender has waited enough.
    async fn ask(&self, request: &LimitRequest<'_>) -> Option<Verdict> {
        let mut lease = self.link.lease().await?;
        let mut answer = self.script.run(&mut lease.connection, request).await;
        if answer.as_ref().is_err_and(is_break) {
            self.link.broken(&lease).await;
            lease = self.link.lease().await?;
            answer = self.script.run(&mut lease.connection, request).await;
        }
        self.settle(&lease, answer).await
    }

    async fn settle(&self, lease: &Lease, answer: RedisResult<Verdict>) -> Option<Verdict> {
        match answer {
            Ok(verdict) => {
                self.link.answered(lease).await;
                Some(verdict)
            }
            Err(error) => {
                self.link.failed(lease, &error).await;
                None
            }
        }
    }
}

fn is_break(error: &RedisError) -> bool {
    error.is_io_error() && !error.is_timeout()
}

//! What engines of one database tell each other: that there may be something to claim, and that a
//! job is to be stopped wherever it runs.
//!
//! A signal says "look", never what is there. One that is lost costs time: everybody looks after
//! every connect, and the poll goes on. NOTIFY is no part of any transaction (traps.md 43).

use std::sync::{Arc, OnceLock};

use semel_store::postgres::{Heard, Listener, Notifier};
use semel_store::{OpenError, StoreError, statements};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;
use uuid::Uuid;

use super::PostgresStore;
use super::row::Id;
use crate::limits::{SIGNAL_INTERVAL, SIGNAL_RETRY};

/// Where they hear it.
const CHANNEL: &str = "semel_jobs";

const WAKE: &str = "wake";
const STOP: &str = "stop:";

statements! {
    TELL = "
        SELECT pg_notify($1, $2)";
}

/// What is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// There may be something to claim.
    Wake,
    /// This job is to be stopped.
    Stop(Id),
    /// Nobody was heard until now: anything may have been said. Not told, but noticed.
    Connected,
}

impl Signal {
    fn payload(self) -> String {
        match self {
            Self::Wake | Self::Connected => WAKE.to_owned(),
            Self::Stop(id) => format!("{STOP}{id}"),
        }
    }

    /// What cannot be read means "look", so that a later version may say more.
    fn parse(payload: &str) -> Self {
        let id = payload.strip_prefix(STOP).and_then(|id| Uuid::try_parse(id).ok());
        id.map_or(Self::Wake, |id| Self::Stop(Id::new(id)))
    }
}

/// Rung after commits; whoever listens tells the others, some rings at once.
#[derive(Clone, Default)]
pub(super) struct Bell {
    rung: Arc<Notify>,
    notifier: Arc<OnceLock<Notifier>>,
}

impl Bell {
    /// Never waits.
    pub(super) fn ring(&self) {
        if self.notifier.get().is_some() {
            self.rung.notify_one();
        }
    }
}

/// The signals of all engines, this one included.
pub struct Signals {
    listener: Listener,
    /// Ends with it, and not before.
    teller: JoinSet<()>,
}

impl Signals {
    /// The next one. Nothing is lost when the wait is given up.
    pub async fn next(&mut self) -> Result<Signal, StoreError> {
        loop {
            let heard = tokio::select! {
                heard = self.listener.next() => heard?,
                Some(_) = self.teller.join_next() => return Err(StoreError::Stopped),
            };
            match heard {
                Heard::Connected => return Ok(Signal::Connected),
                Heard::Notified(payload) => return Ok(Signal::parse(&payload)),
                Heard::Lost => {}
            }
        }
    }
}

impl PostgresStore {
    /// Listens, once per store. From now on the store wakes the others after what may be of use to
    /// them: a submission, a person's word, a conversation that goes on, a breaker that closes.
    pub fn listen(&self) -> Result<Signals, OpenError> {
        let (notifier, listener) = self.postgres().listen(CHANNEL)?;
        let bell = &self.shared.bell;
        let mut teller = JoinSet::new();
        if bell.notifier.set(notifier.clone()).is_ok() {
            teller.spawn(tell(Arc::clone(&bell.rung), notifier));
        }
        Ok(Signals { listener, teller })
    }

    /// Tells every engine, now.
    pub async fn notify(&self, signal: Signal) -> Result<(), StoreError> {
        let payload = signal.payload();
        match self.shared.bell.notifier.get() {
            Some(notifier) => notifier.notify(&payload).await,
            None => self.postgres().read(TELL, &[&CHANNEL, &payload]).await.map(drop),
        }
    }
}

/// One signal at a time, with a pause behind it. The first ring after a pause goes out at once.
async fn tell(rung: Arc<Notify>, notifier: Notifier) {
    loop {
        rung.notified().await;
        match notifier.notify(WAKE).await {
            Ok(()) => sleep(SIGNAL_INTERVAL).await,
            Err(error) => {
                tracing::warn!(error = error.chain(), "a signal could not be sent");
                rung.notify_one();
                sleep(SIGNAL_RETRY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_read_as_it_was_written() {
        for signal in [Signal::Wake, Signal::Stop(Id::new(Uuid::from_u128(7)))] {
            assert_eq!(Signal::parse(&signal.payload()), signal);
        }
        assert_eq!(Signal::parse("stop:nobody"), Signal::Wake);
    }
}

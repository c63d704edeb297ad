//! LISTEN and NOTIFY on one connection of their own, beside the pool (broker.md, "Push").
//!
//! A pooled connection cannot listen: it would lose what comes while nobody uses it. NOTIFY is
//! never part of a transaction of ours: at its commit the server queues all notifiers behind one
//! lock, and that costs an accept 4–5× (traps.md 43).
//!
//! Notifications are lost while the connection is away, so whoever listens hears
//! [`Heard::Connected`] after every connect and then has to look for itself.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use super::Postgres;
use super::reach::Reach;
use crate::error::chain;
use crate::{OpenError, StoreError, limits};

const NOTIFY: &str = "SELECT pg_notify($1, $2)";

/// What comes over the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// It listens from now on; anything before may have been missed.
    Connected,
    /// Somebody has notified the channel, perhaps this process.
    Notified(String),
    /// The connection is gone; it is tried again.
    Lost,
}

/// Hears a channel for as long as it lives.
pub struct Listener {
    heard: mpsc::Receiver<Heard>,
    /// Ends with the listener.
    _task: JoinSet<()>,
}

impl Listener {
    /// The next thing heard. Nothing is lost when the wait is given up.
    pub async fn next(&mut self) -> Result<Heard, StoreError> {
        self.heard.recv().await.ok_or(StoreError::Stopped)
    }
}

/// Notifies the channel, over the listener's connection.
#[derive(Clone)]
pub struct Notifier {
    channel: Arc<str>,
    current: watch::Receiver<Option<Arc<Client>>>,
    answer_timeout: Duration,
}

impl Notifier {
    /// Waits for the connection and notifies once. After an error it may have happened or not.
    pub async fn notify(&self, payload: &str) -> Result<(), StoreError> {
        let mut current = self.current.clone();
        let current = current.wait_for(Option::is_some).await;
        let client = current.map_err(|_| StoreError::Stopped)?.clone();
        let client = client.ok_or(StoreError::Stopped)?;
        // Unprepared: a connection that was just made has prepared nothing.
        let by: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&&*self.channel, Type::TEXT), (&payload, Type::TEXT)];
        let answer = client.query_typed(NOTIFY, &by);
        match tokio::time::timeout(self.answer_timeout, answer).await {
            Ok(answer) => answer.map(|_| ()).map_err(StoreError::from),
            Err(_) => Err(StoreError::Unavailable { cause: "NOTIFY got no answer in time".into() }),
        }
    }
}

impl Postgres {
    /// Listens to a channel of this database on a connection of its own, from a task that lives
    /// as long as the listener. The connection is made again after every loss.
    pub fn listen(&self, channel: &str) -> Result<(Notifier, Listener), OpenError> {
        let mut reach = Reach::clone(&self.reach);
        let config = &mut reach.config;
        // Nothing durable is written here, and a notification that waits for the disk would hold
        // the lock that all notifiers share.
        let options = config.get_options().unwrap_or_default();
        let options = format!("{options} -c synchronous_commit=off");
        config.options(options).application_name("semel listener");
        let (heard, hears) = mpsc::channel(limits::LISTEN_QUEUE_MAX);
        let (current, now) = watch::channel(None);
        let link = Link {
            reach,
            listen: format!("LISTEN \"{}\"", channel.replace('"', "\"\"")),
            answer_timeout: self.options.answer_timeout,
            heard,
            current,
        };
        let mut task = JoinSet::new();
        task.spawn(link.run());
        let answer_timeout = self.options.answer_timeout;
        let notifier = Notifier { channel: channel.into(), current: now, answer_timeout };
        Ok((notifier, Listener { heard: hears, _task: task }))
    }
}

/// The connection, over and over.
struct Link {
    reach: Reach,
    listen: String,
    answer_timeout: Duration,
    heard: mpsc::Sender<Heard>,
    current: watch::Sender<Option<Arc<Client>>>,
}

impl Link {
    async fn run(self) {
        loop {
            let cause = match self.connected().await {
                Ok(()) => "the connection was closed".to_owned(),
                Err(error) => error.chain(),
            };
            self.current.send_replace(None);
            tracing::warn!(cause, "not listening to the database");
            if self.heard.send(Heard::Lost).await.is_err() {
                return;
            }
            tokio::time::sleep(limits::LISTEN_RETRY).await;
        }
    }

    /// One connection, from its start to its loss.
    async fn connected(&self) -> Result<(), StoreError> {
        // A server that accepts and says nothing would be waited for without an end.
        let connect = self.reach.config.connect(self.reach.encryption.clone());
        let connect = tokio::time::timeout(self.answer_timeout, connect);
        let silent = |_| StoreError::Unavailable { cause: "the server does not answer".into() };
        let (client, mut connection) = connect.await.map_err(silent)??;
        let client = Arc::new(client);
        let listen = client.batch_execute(&self.listen);
        let mut listen = pin!(tokio::time::timeout(self.answer_timeout, listen));
        let mut listening = false;
        loop {
            let message = tokio::select! {
                answer = &mut listen, if !listening => {
                    let late = |_| StoreError::Unavailable {
                        cause: "LISTEN got no answer in time".into(),
                    };
                    answer.map_err(late)??;
                    listening = true;
                    self.current.send_replace(Some(Arc::clone(&client)));
                    self.tell(Heard::Connected).await?;
                    continue;
                }
                message = poll_fn(|cx| connection.poll_message(cx)) => message,
            };
            match message.transpose()? {
                Some(AsyncMessage::Notification(said)) => {
                    self.tell(Heard::Notified(said.payload().to_owned())).await?;
                }
                Some(AsyncMessage::Notice(notice)) => {
                    tracing::debug!(notice = chain(&notice), "a remark of the database");
                }
                // What a later driver may add.
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    async fn tell(&self, heard: Heard) -> Result<(), StoreError> {
        self.heard.send(heard).await.map_err(|_| StoreError::Stopped)
    }
}

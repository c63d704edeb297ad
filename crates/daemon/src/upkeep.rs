//! Sizes, and what is past its time. What is deleted for its age is deleted by a clock that can be
//! believed ([`semel_core::plausible`]): one that is a year ahead for a moment deletes nothing.

use std::sync::Arc;

use semel_core::clock::Clock;
use semel_core::plausible::{Sweep, SweepClock};
use semel_store::StoreError;
use serde_json::json;
use tokio::sync::watch;

use crate::inbox::{Inbox, Keeping};
use crate::limits::{FULL_INTERVAL, PAYLOAD_KEPT, UPKEEP_INTERVAL};
use crate::link::{LinkStatus, stopped};
use crate::outbox::{Outbox, Pressure};
use crate::store::event::EventKind;

/// What is looked after, and by what.
#[derive(Clone)]
pub(crate) struct Upkeep {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) sweep_clock: SweepClock,
    /// Who tells what time it is at the broker.
    pub(crate) status: watch::Receiver<LinkStatus>,
    pub(crate) keeping: watch::Receiver<Keeping>,
    /// Whether the inbox was full when it was swept last.
    pub(crate) was_full: bool,
}

impl Upkeep {
    /// Measures and sweeps until the daemon stops.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut before = Pressure::Low;
        let mut sweeps = tokio::time::interval(UPKEEP_INTERVAL);
        let mut sweep = false;
        loop {
            before = self.look(before).await;
            if std::mem::take(&mut sweep)
                && let Err(error) = self.sweep_once().await
            {
                tracing::error!(error = error.chain(), "old rows could not be swept");
            }
            let is_full = !before.accepts();
            tokio::select! {
                _ = sweeps.tick() => sweep = true,
                Ok(()) = self.keeping.changed() => sweep = true,
                () = self.inbox.wake.notified() => sweep = true,
                () = self.outbox.gauge.wake.notified() => {}
                // Somebody may make room on the disk, and nobody tells us.
                () = tokio::time::sleep(FULL_INTERVAL), if is_full => {}
                () = stopped(&mut stop) => return,
            }
        }
    }

    /// Deletes what is past its time, if the time can be believed, and what does not fit.
    async fn sweep_once(&mut self) -> Result<(), StoreError> {
        let keeping = *self.keeping.borrow_and_update();
        if let Some((time, heard_at)) = self.status.borrow().server_time {
            self.sweep_clock.heard(time, heard_at);
        }
        let now = match self.sweep_clock.look_at(&*self.clock) {
            Sweep::By(now) => Some(now),
            Sweep::After(_) => None,
        };
        if let Some(now) = now {
            self.outbox.prune_by(now, PAYLOAD_KEPT).await?;
        }
        let is_full = self.inbox.sweep(now, keeping).await?;
        match (std::mem::replace(&mut self.was_full, is_full), is_full) {
            (false, true) => {
                let why = "unread messages fill the inbox: new messages wait at the broker";
                tracing::warn!("{why}");
                let data = json!({"bytes_max": keeping.bytes_max});
                self.inbox.announce(EventKind::InboxFull, &data);
            }
            (true, false) => tracing::info!("there is room in the inbox again"),
            (true, true) | (false, false) => {}
        }
        Ok(())
    }

    /// Measures, and says so when the level has changed for the worse.
    async fn look(&self, before: Pressure) -> Pressure {
        let pressure = match self.outbox.measure().await {
            Ok(pressure) => pressure,
            Err(error) => {
                let error = error.chain();
                tracing::error!(error, "the size of the outbox could not be measured");
                return before;
            }
        };
        if pressure != before && pressure != Pressure::Low {
            tracing::warn!(%pressure, "the outbox is nearly full");
            let data = json!({"pressure": pressure.as_str(), "bytes": self.outbox.bytes()});
            self.inbox.announce(EventKind::OutboxPressureHigh, &data);
        }
        if pressure != before && pressure == Pressure::Low {
            tracing::info!("there is room in the outbox again");
        }
        pressure
    }
}

#[cfg(test)]
mod tests;

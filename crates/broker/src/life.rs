//! The life of the store in which a broker began. A restore from backup begins another one: what
//! the broker has in memory then speaks of things that are not there, and so it must end.

use std::sync::Arc;

use tokio::sync::watch;

/// Shared by all who read the store's epoch; cheap to clone.
#[derive(Clone)]
pub struct StoreLife {
    epoch: Arc<str>,
    restored: Arc<watch::Sender<bool>>,
}

impl StoreLife {
    /// The life of this epoch.
    pub fn new(epoch: impl Into<Arc<str>>) -> Self {
        Self { epoch: epoch.into(), restored: Arc::new(watch::channel(false).0) }
    }

    /// The store's epoch when the broker began.
    pub fn epoch(&self) -> &str {
        &self.epoch
    }

    /// Whether the store is still in this life. If not, the broker ends.
    pub fn goes_on(&self, epoch: &str) -> bool {
        let goes_on = *epoch == *self.epoch;
        if !goes_on {
            self.end();
        }
        goes_on
    }

    /// Whether the store was found in another life.
    pub fn has_ended(&self) -> bool {
        *self.restored.borrow()
    }

    /// The store was found in another life: the broker ends.
    pub fn end(&self) {
        self.restored.send_replace(true);
    }

    /// Comes back once the store was found in another life.
    pub async fn is_over(&self) {
        // The sender is held here, so the wait ends only by the value.
        let _ = self.restored.subscribe().wait_for(|restored| *restored).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn another_epoch_ends_it_for_everybody() {
        let life = StoreLife::new("one");
        assert!(life.goes_on("one"));
        let other = life.clone();
        assert!(!other.goes_on("two"));
        life.is_over().await;
    }
}

//! Registrations: the ledger's first line, both consumptions, the registration.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, bail};
use semel_core::clock::{Clock, SystemClock};
use semel_crypto::keys::KeyPair;
use semel_registrar::decide::{Gate, Outcome};
use semel_registrar::registrar::Registrar;

use super::{Disk, Labels, Subject, at_each_size};
use crate::plan;
use crate::registrar::{DOMAIN, asked, on_postgres, on_sqlite};

const CALLERS: usize = 64;
/// Registrations that are measured at each size.
const MEASURED: usize = 5000;

const SQLITE: Labels = Labels {
    operations: &[at_each_size!("registration on SQLite")],
    bytes: at_each_size!("a registration on disk, SQLite"),
};
const POSTGRES: Labels = Labels {
    operations: &[at_each_size!("registration on PostgreSQL")],
    bytes: at_each_size!("a registration on disk, PostgreSQL"),
};

pub(super) struct Effects {
    registrar: Arc<Registrar>,
    stored: usize,
}

/// With nothing stored yet.
pub(super) async fn begin(place: &Disk) -> Result<(&'static Labels, Disk, Effects)> {
    let (labels, disk, store) = match place {
        Disk::File(folder) => {
            let path = folder.join("registrar.db");
            (&SQLITE, Disk::File(path.clone()), on_sqlite(&path)?)
        }
        Disk::Server(server) => {
            let address = crate::broker::fresh(server).await?;
            (&POSTGRES, Disk::Server(address.clone()), on_postgres(&address).await?)
        }
    };
    let (authority, nonces) = (Some(KeyPair::from_secret(&[1; 32])), Arc::new(|| [0xff; 16]));
    let clock = Arc::new(SystemClock::new());
    let registrar = Registrar::start(store, clock, nonces, authority).await?;
    registrar.gate_set(DOMAIN, Gate::Open).await?;
    // The domain trusts the authority once it has issued something.
    let signer = KeyPair::from_secret(&[1; 32]);
    let first = asked(usize::MAX, &signer, SystemClock::new().wall());
    registrar.grant_issue(&first.envelope, (None, None)).await?;
    Ok((labels, disk, Effects { registrar: Arc::new(registrar), stored: 0 }))
}

impl Subject for Effects {
    async fn grow(&mut self, to: usize) -> Result<()> {
        self.register(to.saturating_sub(self.stored)).await
    }

    async fn operate(&mut self, _: usize) -> Result<usize> {
        let count = plan::amount(MEASURED);
        self.register(count).await?;
        Ok(count)
    }
}

impl Effects {
    async fn register(&mut self, count: usize) -> Result<()> {
        let (next, end) = (Arc::new(AtomicUsize::new(self.stored)), self.stored + count);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..CALLERS {
            let (registrar, next) = (Arc::clone(&self.registrar), Arc::clone(&next));
            tasks.spawn(async move {
                let signer = KeyPair::from_secret(&[1; 32]);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= end {
                        return Ok(());
                    }
                    let asked = asked(number, &signer, SystemClock::new().wall());
                    let answer = registrar.register(asked).await??;
                    if answer.outcome != Outcome::Registered {
                        bail!("{answer:?}");
                    }
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        self.stored = end;
        Ok(())
    }
}

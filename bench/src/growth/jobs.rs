//! Jobs of one step: taken in, claimed, run, ended.

use anyhow::Result;

use super::{Disk, Labels, Subject, at_each_size};
use crate::jobs::{Worked, in_process, on_postgres, on_sqlite};
use crate::plan;

const CALLERS: usize = 64;
/// Jobs that are measured at each size.
const MEASURED: usize = 5000;

const SQLITE: Labels = Labels {
    operations: &[at_each_size!("job on SQLite")],
    bytes: at_each_size!("an ended job on disk, SQLite"),
};
const POSTGRES: Labels = Labels {
    operations: &[at_each_size!("job on PostgreSQL")],
    bytes: at_each_size!("an ended job on disk, PostgreSQL"),
};

pub(super) struct Jobs {
    worked: Worked,
    stored: usize,
}

/// With nothing stored yet.
pub(super) async fn begin(place: &Disk) -> Result<(&'static Labels, Disk, Jobs)> {
    let (labels, disk, stores, folder) = match place {
        Disk::File(folder) => {
            let folder = folder.join("growing-jobs");
            let stores = on_sqlite(&folder)?;
            (&SQLITE, Disk::File(folder.join("jobs.db")), stores, folder)
        }
        Disk::Server(server) => {
            let address = crate::broker::fresh(server).await?;
            let stores = on_postgres(&address).await?;
            let folder = plan::target().join("growing-jobs");
            (&POSTGRES, Disk::Server(address), stores, folder)
        }
    };
    let worked = Worked::start(stores, &folder, in_process()?, CALLERS).await?;
    Ok((labels, disk, Jobs { worked, stored: 0 }))
}

impl Subject for Jobs {
    async fn grow(&mut self, to: usize) -> Result<()> {
        self.work(to.saturating_sub(self.stored)).await
    }

    async fn operate(&mut self, _: usize) -> Result<usize> {
        let count = plan::amount(MEASURED);
        self.work(count).await?;
        Ok(count)
    }
}

impl Jobs {
    async fn work(&mut self, count: usize) -> Result<()> {
        self.worked.until(CALLERS, 1, count).await?;
        self.stored += count;
        Ok(())
    }
}

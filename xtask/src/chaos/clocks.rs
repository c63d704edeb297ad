//! The time of day that a process sees: Debian's `libfaketime` puts itself between the process and
//! its clock and reads from a file by how much that is wrong. Waits are not touched: the monotonic
//! clock never steps.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// Where the library keeps what it shares with children; it is left behind by a killed process.
const SHARED_MEMORY: &str = "/dev/shm";

/// The clock of one process, right until it is stepped.
#[derive(Debug, Clone)]
pub(crate) struct ProcessClock {
    library: PathBuf,
    file: PathBuf,
}

impl ProcessClock {
    /// `name` is the process's, and the file's in `folder`.
    pub(crate) fn new(library: &Path, folder: &Path, name: &str) -> Result<Self> {
        let file = folder.join(format!("{name}.clock"));
        let clock = Self { library: library.to_owned(), file };
        clock.set(0)?;
        Ok(clock)
    }

    /// From now on, and also for those that are started later, it is wrong by so much.
    pub(crate) fn set(&self, off_by_seconds: i64) -> Result<()> {
        let written = self.file.with_extension("clock-next");
        // Renamed, because somebody reads it at every look at the clock.
        fs::write(&written, format!("{off_by_seconds:+}\n"))
            .and_then(|()| fs::rename(&written, &self.file))
            .with_context(|| format!("cannot set the clock {}", self.file.display()))
    }

    /// The process that is started by this will look at this clock.
    pub(crate) fn give_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
    }

    /// A killed process cannot do it, and the next one of that number would not start.
    pub(crate) fn clean_after(&self, pid: u32) {
        for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
            // It is gone already if the process ended in order.
            let _ = fs::remove_file(Path::new(SHARED_MEMORY).join(name));
        }
    }
}

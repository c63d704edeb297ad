//! `daemon.log`: JSON lines, a new file at 100 MB or after 14 days, a few earlier ones kept. A log
//! that cannot be written must not stop the daemon: what is lost is counted, and said as soon as
//! something can be written again.
//!
//! An `Arc<LogFile>` is what `tracing_subscriber` takes as a writer; it writes each line with one
//! call.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use semel_core::clock::{Clock, UnixMs};

use crate::home::{Home, HomeFile};
use crate::limits::{LOG_AGE_MAX, LOG_BYTES_MAX, LOG_EARLIER_MAX};

#[cfg(test)]
mod tests;

/// When a new file begins, and how many earlier ones stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// Bytes of a file. One longer line has a file of its own.
    pub bytes_max: u64,
    /// Age of a file.
    pub age_max: Duration,
    /// Earlier files.
    pub earlier_max: u32,
}

impl Default for Rotation {
    fn default() -> Self {
        Self { bytes_max: LOG_BYTES_MAX, age_max: LOG_AGE_MAX, earlier_max: LOG_EARLIER_MAX }
    }
}

/// The log; share it in an `Arc`.
pub struct LogFile {
    path: PathBuf,
    rotation: Rotation,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<Open>,
    lines_lost: u64,
}

struct Open {
    file: File,
    bytes: u64,
    began_at: UnixMs,
    /// The last line was cut off: the next one must not be glued to it.
    torn: bool,
}

impl LogFile {
    /// The log of a daemon's folder. Nothing is opened before the first line.
    pub fn new(home: &Home, rotation: Rotation, clock: Arc<dyn Clock>) -> Self {
        Self { path: home.path(HomeFile::Log), rotation, clock, state: Mutex::default() }
    }

    /// Lines that could not be written and have not been reported in the log yet.
    pub fn lines_lost(&self) -> u64 {
        self.with(|state| state.lines_lost)
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        // The worst that a panic can leave is a torn line.
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn write_line(&self, line: &[u8]) {
        self.with(|state| {
            if self.try_line(state, line).is_err() {
                state.lines_lost = state.lines_lost.saturating_add(1);
                // Opened again for the next line: somebody may have made room by deleting it.
                state.open = None;
            }
        });
    }

    fn try_line(&self, state: &mut State, line: &[u8]) -> io::Result<()> {
        let lost = state.lines_lost;
        let open = self.ready(&mut state.open, line.len())?;
        if lost > 0 {
            let message = "log lines were lost";
            let note =
                format!("{{\"level\":\"WARN\",\"message\":\"{message}\",\"lost\":{lost}}}\n");
            open.append(note.as_bytes())?;
            state.lines_lost = 0;
        }
        open.append(line)
    }

    /// The file that the next line belongs in.
    fn ready<'a>(&self, place: &'a mut Option<Open>, more: usize) -> io::Result<&'a mut Open> {
        let now = self.clock.wall();
        if place.is_none() {
            *place = Some(Open::at(&self.path, now)?);
        }
        let is_over = place.as_ref().is_some_and(|open| {
            let age_over = now >= open.began_at.saturating_add(self.rotation.age_max);
            let size_over = open.bytes.saturating_add(count(more)) > self.rotation.bytes_max;
            open.bytes > 0 && (age_over || size_over)
        });
        if is_over {
            self.shift()?;
            *place = None;
        }
        match place {
            Some(open) => Ok(open),
            None => Ok(place.insert(Open::at(&self.path, now)?)),
        }
    }

    /// `daemon.log` becomes `daemon.log.1`, that becomes `.2`, and the last one goes.
    fn shift(&self) -> io::Result<()> {
        let numbered = |number: u32| match number {
            0 => self.path.clone(),
            number => PathBuf::from(format!("{}.{number}", self.path.display())),
        };
        if self.rotation.earlier_max == 0 {
            return fs::remove_file(&self.path);
        }
        for number in (0..self.rotation.earlier_max).rev() {
            match fs::rename(numbered(number), numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

impl Open {
    fn at(path: &Path, now: UnixMs) -> io::Result<Self> {
        let mode = HomeFile::Log.mode();
        let file = OpenOptions::new().read(true).append(true).create(true).mode(mode).open(path)?;
        let metadata = file.metadata()?;
        let bytes = metadata.len();
        let mut last = *b"\n";
        if let Some(place) = bytes.checked_sub(1) {
            file.read_exact_at(&mut last, place)?;
        }
        // Where the file system does not know when a file began, it begins with this process.
        let began = metadata.created().ok();
        let began = began.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        let began_at = began.map_or(now, |since| UnixMs(0).saturating_add(since));
        Ok(Self { file, bytes, began_at, torn: last != *b"\n" })
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.torn {
            self.append_bytes(b"\n")?;
        }
        self.append_bytes(line)
    }

    fn append_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while let Some(last) = rest.last().copied() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    rest = rest.get(written..).unwrap_or_default();
                    self.bytes = self.bytes.saturating_add(count(written));
                    self.torn = !rest.is_empty() || last != b'\n';
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

impl Write for &LogFile {
    /// Always takes all of it: to whom should a log say that it cannot log.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

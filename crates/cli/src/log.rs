//! The log of a process that serves: JSON lines on stderr, or in a file. Logging stops nothing: not
//! when the reader of stderr has gone away, when it stands still, or when the disk is full; nor the
//! end of the process. What is lost is counted, and said as soon as something can be written again.

use std::io::{self, Stderr, Write, stderr};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use semel_daemon::logfile::LogFile;
use tracing::Level;

use crate::exit::{Exit, Failure};

/// The variable that says how much is logged.
const LEVEL: &str = "SEMEL_LOG";

/// How long a line waits for its reader, once; the next ones do not, until it reads again.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long the end of the process waits for its last words.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// What a pipe that has any room takes at once (POSIX's `PIPE_BUF`, on Linux).
const PIECE_BYTES: usize = 4096;

/// Lines go to stderr, and panics too.
pub(crate) fn to_stderr() -> Result<(), Failure> {
    let lines = tracing_subscriber::fmt().json().with_max_level(level()?);
    if semel_store::planted!("stderr") {
        lines.with_writer(stderr).init();
        return Ok(());
    }
    let to = Arc::new(Lines::to(stderr(), PATIENCE));
    // What fails inside the library would be printed, and printing panics where it cannot.
    lines.log_internal_errors(false).with_writer(to).init();
    std::panic::set_hook(Box::new(panicked));
    Ok(())
}

/// The same with this file, which has no errors to show.
pub(crate) fn to_file(file: LogFile) -> Result<(), Failure> {
    let lines = tracing_subscriber::fmt().json().with_max_level(level()?);
    lines.log_internal_errors(false).with_writer(Arc::new(file)).init();
    std::panic::set_hook(Box::new(panicked));
    Ok(())
}

/// How much is said. A word that means nothing is refused: whoever sets it looks for lines that
/// would not be there.
fn level() -> Result<Level, Failure> {
    let said = std::env::var_os(LEVEL).unwrap_or_default();
    match said.to_str() {
        Some("error") => Ok(Level::ERROR),
        Some("warn") => Ok(Level::WARN),
        Some("info" | "") => Ok(Level::INFO),
        Some("debug") => Ok(Level::DEBUG),
        Some(_) | None => {
            let text = format!("error: {LEVEL} is {said:?}; it must be error, warn, info or debug");
            Err(Failure::new(Exit::Refused, text))
        }
    }
}

/// A panic is a line like others: of a process in the background nobody sees stderr.
fn panicked(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let (thread, what) = (thread.name().unwrap_or_default(), info.payload_as_str());
    tracing::error!(place, thread, what = what.unwrap_or_default(), "a part has panicked");
}

/// Says it on stderr, where that can be done.
pub(crate) fn say(text: &str) {
    let _ = writeln!(stderr(), "{text}");
}

/// What a process says before it ends, which it does whether or not it could be said: a reader of
/// stderr, or a disk, may stand still for ever.
pub(crate) fn last_words(say: impl FnOnce() + Send + 'static) {
    let (said, hears) = mpsc::sync_channel(1);
    let say = Arc::new(Mutex::new(Some(say)));
    let words = Arc::clone(&say);
    let thread = std::thread::Builder::new().name("last-words".to_owned());
    let spawned = thread.spawn(move || {
        if let Some(say) = take(&words) {
            say();
        }
        // Nobody listens any more once it has taken too long.
        let _ = said.send(());
    });
    if spawned.is_ok() {
        let _ = hears.recv_timeout(LAST_PATIENCE);
    } else if let Some(say) = take(&say) {
        // There is no thread to be had, which may be what it is about.
        say();
    }
}

fn take<T>(words: &Mutex<Option<T>>) -> Option<T> {
    words.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Whole lines, each written if that can be done now.
struct Lines<To> {
    patience: Duration,
    state: Mutex<State<To>>,
}

struct State<To> {
    to: To,
    /// The last line was cut off: the next one must not be glued to it.
    torn: bool,
    /// The reader stood still when it was waited for.
    stalled: bool,
    lost: u64,
}

impl<To: Write + AsFd> Lines<To> {
    fn to(to: To, patience: Duration) -> Self {
        let state = State { to, torn: false, stalled: false, lost: 0 };
        Self { patience, state: Mutex::new(state) }
    }

    fn line(&self, line: &[u8]) {
        // The worst that a panic can leave is a torn line.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.line(line, self.patience).is_err() {
            state.lost = state.lost.saturating_add(1);
        }
    }
}

impl<To: Write + AsFd> State<To> {
    fn line(&mut self, line: &[u8], patience: Duration) -> io::Result<()> {
        if self.torn {
            self.bytes(b"\n", patience)?;
        }
        if self.lost > 0 {
            let lost = self.lost;
            let message = "log lines were lost";
            let note =
                format!("{{\"level\":\"WARN\",\"message\":\"{message}\",\"lost\":{lost}}}\n");
            self.bytes(note.as_bytes(), patience)?;
            self.lost = 0;
        }
        self.bytes(line, patience)
    }

    fn bytes(&mut self, bytes: &[u8], patience: Duration) -> io::Result<()> {
        let mut rest = bytes;
        while let Some(last) = rest.last().copied() {
            self.room(patience)?;
            match self.to.write(rest.get(..PIECE_BYTES).unwrap_or(rest)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    rest = rest.get(written..).unwrap_or_default();
                    self.torn = !rest.is_empty() || last != b'\n';
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A write would not wait now; an error when it would.
    fn room(&mut self, patience: Duration) -> io::Result<()> {
        let patience = if self.stalled { Duration::ZERO } else { patience };
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut wanted = [PollFd::new(&self.to, PollFlags::OUT)];
        self.stalled = poll(&mut wanted, Some(&patience))? == 0;
        if self.stalled { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }
}

impl Write for &Lines<Stderr> {
    /// Always takes all of it: to whom should a log say that it cannot log.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{PipeReader, PipeWriter, Read, pipe};

    use super::*;

    fn lines() -> (PipeReader, Lines<PipeWriter>) {
        let (reader, writer) = pipe().unwrap();
        (reader, Lines::to(writer, Duration::ZERO))
    }

    fn lost<To>(lines: &Lines<To>) -> u64 {
        lines.state.lock().unwrap().lost
    }

    #[test]
    fn a_reader_that_stands_still_loses_lines_and_is_told_how_many() {
        let (mut reader, lines) = lines();
        let long = [b"x".repeat(3 * PIECE_BYTES), b"\n".to_vec()].concat();
        while lost(&lines) == 0 {
            lines.line(&long);
        }
        lines.line(b"not this one either\n");
        // Room for all that comes now, and the torn line before it.
        let mut text = vec![0; 8 * PIECE_BYTES];
        reader.read_exact(&mut text).unwrap();
        lines.line(b"again\n");
        drop(lines);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let lost = "{\"level\":\"WARN\",\"message\":\"log lines were lost\",\"lost\":2}";
        assert!(rest.ends_with(&format!("x\n{lost}\nagain\n")), "{rest}");
    }

    #[test]
    fn a_reader_that_is_gone_and_a_full_disk_are_no_errors() {
        let (reader, lines) = lines();
        drop(reader);
        lines.line(b"one\n");
        assert_eq!(lost(&lines), 1);
        let lines = Lines::to(File::create("/dev/full").unwrap(), Duration::ZERO);
        lines.line(b"one\n");
        lines.line(b"two\n");
        assert_eq!(lost(&lines), 2);
    }
}

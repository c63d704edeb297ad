//! Says on a terminal that something is still under way, once it has taken a second: nothing in a
//! pipe, and nothing beside JSON.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long nothing is said, and how often what is said is brought up to date.
const INTERVAL: Duration = Duration::from_secs(1);

/// Until it is dropped, a line says what is under way. Drop it before anything else is printed.
#[must_use]
pub(crate) struct Shown(Option<(Sender<()>, JoinHandle<()>)>);

/// Begins to show that this is under way, where somebody looks.
pub(crate) fn show(what: impl Into<String>) -> Shown {
    let is_json = std::env::args_os().any(|argument| argument == "--json");
    if is_json || !stderr().is_terminal() {
        return Shown(None);
    }
    let (what, (end, ended)) = (what.into(), channel());
    // A thread of its own: some of what takes long blocks, and lets nothing else run meanwhile.
    let shower = std::thread::Builder::new()
        .name("progress".to_owned())
        .spawn(move || run(&what, INTERVAL, &ended, &mut stderr()));
    // Without a thread the work is done all the same.
    Shown(shower.ok().map(|shower| (end, shower)))
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some((end, shower)) = self.0.take() {
            drop(end);
            // The line is gone when it has ended.
            let _ = shower.join();
        }
    }
}

/// Writes the line until the sender of `ended` is gone, and takes it away again.
fn run(what: &str, interval: Duration, ended: &Receiver<()>, to: &mut impl Write) {
    let (mut seconds, mut width) = (0_u64, 0);
    while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        seconds += 1;
        let line = format!("{what} … {seconds} s");
        width = line.chars().count();
        // A terminal that is gone must not stop the work.
        let _ = write!(to, "\r{line}").and_then(|()| to.flush());
    }
    if width > 0 {
        let _ = write!(to, "\r{:width$}\r", "").and_then(|()| to.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends the work once so many lines were written.
    struct Terminal {
        text: String,
        lines_left: usize,
        work: Option<Sender<()>>,
    }

    impl Write for Terminal {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.text.push_str(&String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            self.lines_left = self.lines_left.saturating_sub(1);
            if self.lines_left == 0 {
                self.work = None;
            }
            Ok(())
        }
    }

    #[test]
    fn what_takes_long_is_shown_and_the_line_is_taken_away_again() {
        let (work, ended) = channel();
        let mut terminal = Terminal { text: String::new(), lines_left: 2, work: Some(work) };
        run("checking", Duration::from_millis(1), &ended, &mut terminal);
        let blank = " ".repeat("checking … 2 s".chars().count());
        let expected = format!("\rchecking … 1 s\rchecking … 2 s\r{blank}\r");
        assert_eq!(terminal.text, expected);
    }

    #[test]
    fn what_is_over_at_once_leaves_no_trace() {
        let (work, ended) = channel::<()>();
        drop(work);
        let mut terminal = Terminal { text: String::new(), lines_left: 9, work: None };
        run("checking", INTERVAL, &ended, &mut terminal);
        assert_eq!(terminal.text, "");
    }
}

//! Says on a terminal that something is still under way, once it has taken a second: nothing in a
//! pipe, and nothing beside JSON.

use std::io::{IsTerminal, Write, stderr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long nothing is said, and how often what is said is brought up to date.
const INTERVAL: Duration = Duration::from_secs(1);

/// Signs in a bar.
const BAR_WIDTH: u64 = 20;

/// Until it is dropped, a line says what is under way. Drop it before anything else is printed.
#[must_use]
pub(crate) struct Shown(Option<(Sender<()>, JoinHandle<()>)>);

/// A line that also says how much is done.
#[must_use]
pub(crate) struct Bar {
    line: Arc<Mutex<Line>>,
    _shown: Shown,
}

/// What is said.
#[derive(Default)]
struct Line {
    what: String,
    passed: u64,
    /// Zero while nobody knows.
    expected: u64,
}

impl Line {
    fn text(&self, seconds: u64) -> String {
        let Self { what, passed, expected } = self;
        if *expected == 0 {
            return format!("{what} … {seconds} s");
        }
        let of = |whole: u64| passed.saturating_mul(whole).checked_div(*expected).unwrap_or(0);
        let (percent, cells) = (of(100).min(100), of(BAR_WIDTH).min(BAR_WIDTH));
        let (done, left) = (
            "#".repeat(usize::try_from(cells).unwrap_or(0)),
            ".".repeat(usize::try_from(BAR_WIDTH - cells).unwrap_or(0)),
        );
        format!("[{done}{left}] {percent:3} %  {what} … {seconds} s")
    }
}

/// Begins to show that this is under way, where somebody looks.
pub(crate) fn show(what: impl Into<String>) -> Shown {
    begin(Arc::new(Mutex::new(Line { what: what.into(), ..Line::default() })))
}

/// The same for what can be counted.
pub(crate) fn bar(what: impl Into<String>) -> Bar {
    let line = Arc::new(Mutex::new(Line { what: what.into(), ..Line::default() }));
    Bar { line: Arc::clone(&line), _shown: begin(line) }
}

impl Bar {
    /// So much is to be done in all.
    pub(crate) fn expect(&self, count: u64) {
        lock(&self.line).expected = count;
    }

    /// This is under way now.
    pub(crate) fn name(&self, what: String) {
        lock(&self.line).what = what;
    }

    /// So much more is done.
    pub(crate) fn pass(&self, count: u64) {
        let mut line = lock(&self.line);
        line.passed = line.passed.saturating_add(count);
    }
}

fn lock(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

fn begin(line: Arc<Mutex<Line>>) -> Shown {
    let is_json = std::env::args_os().any(|argument| argument == "--json");
    if is_json || !stderr().is_terminal() {
        return Shown(None);
    }
    let (end, ended) = channel();
    // A thread of its own: some of what takes long blocks, and lets nothing else run meanwhile.
    let shower = std::thread::Builder::new()
        .name("progress".to_owned())
        .spawn(move || run(&line, INTERVAL, &ended, &mut stderr()));
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
fn run(line: &Mutex<Line>, interval: Duration, ended: &Receiver<()>, to: &mut impl Write) {
    let (mut seconds, mut width) = (0_u64, 0);
    while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        seconds += 1;
        let text = lock(line).text(seconds);
        let before = width;
        width = text.chars().count();
        // What is left of a longer line before it is written over.
        let blank = " ".repeat(before.saturating_sub(width));
        // A terminal that is gone must not stop the work.
        let _ = write!(to, "\r{text}{blank}").and_then(|()| to.flush());
        width = width.max(before);
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
        let line = Mutex::new(Line { what: "checking".to_owned(), ..Line::default() });
        run(&line, Duration::from_millis(1), &ended, &mut terminal);
        let blank = " ".repeat("checking … 2 s".chars().count());
        let expected = format!("\rchecking … 1 s\rchecking … 2 s\r{blank}\r");
        assert_eq!(terminal.text, expected);
    }

    #[test]
    fn what_is_over_at_once_leaves_no_trace() {
        let (work, ended) = channel::<()>();
        drop(work);
        let mut terminal = Terminal { text: String::new(), lines_left: 9, work: None };
        let line = Mutex::new(Line::default());
        run(&line, INTERVAL, &ended, &mut terminal);
        assert_eq!(terminal.text, "");
    }

    #[test]
    fn what_can_be_counted_is_shown_as_a_bar() {
        let mut line = Line { what: "reading".to_owned(), passed: 45, expected: 100 };
        assert_eq!(line.text(3), "[#########...........]  45 %  reading … 3 s");
        // More than there was when it was counted.
        line.passed = 230;
        assert_eq!(line.text(3), "[####################] 100 %  reading … 3 s");
    }
}

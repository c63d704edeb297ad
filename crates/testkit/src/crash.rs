//! Killing a process at every numbered point of its work with the disk.
//!
//! A point is the start or the end of any statement on an instrumented connection, BEGIN,
//! SAVEPOINT and COMMIT included, or wherever a workload calls [`point`]. For k = 0, 1, 2 … the
//! calling test is run again as a child that sends itself SIGKILL at point k; the parent then looks
//! at what is left, until a child gets through without meeting its point. An operation inherits
//! this by being run in the workload.

pub mod postgres;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;
use rusqlite::trace::{TraceEvent, TraceEventCodes};
use rustix::process::{Signal, getpid, kill_process};

const FOLDER_VARIABLE: &str = "SEMEL_CRASH_FOLDER";
const POINT_VARIABLE: &str = "SEMEL_CRASH_AT";
const ACKS: &str = "acknowledged";

/// More points than any workload should have: a loop without end is found here.
const POINTS_MAX: u64 = 20_000;

static POINTS_PASSED: AtomicU64 = AtomicU64::new(0);

/// The process that is going to be killed.
pub struct Child {
    /// Where its databases live.
    pub folder: PathBuf,
    acks: File,
}

impl Child {
    /// Tells the parent that something was answered. One write to a file: it survives the kill.
    pub fn acknowledge(&self, what: &str) {
        (&self.acks).write_all(format!("{what}\n").as_bytes()).expect("the note is written");
    }
}

/// What a killed child left.
pub struct Left {
    /// Where its databases are.
    pub folder: PathBuf,
    /// What it had answered before it died, in order.
    pub acknowledged: Vec<String>,
    /// Where it died; `None` for the last child, which got through.
    pub point: Option<u64>,
}

/// Runs `workload` in a child per crash point and `check` on what each leaves. `test` is the full
/// path of the calling test, by which the child finds its way back here. Returns how many points
/// there were.
pub fn every_point(test: &str, workload: impl FnOnce(&Child), mut check: impl FnMut(&Left)) -> u64 {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        let folder = PathBuf::from(folder);
        let acks = OpenOptions::new().create(true).append(true).open(folder.join(ACKS));
        workload(&Child { folder, acks: acks.expect("the child's folder is writable") });
        #[expect(clippy::exit, reason = "the child must not go on as if it were the parent")]
        std::process::exit(0);
    }
    for point in 0..POINTS_MAX {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let died = run_child(test, folder.path(), point);
        check(&Left {
            folder: folder.path().to_owned(),
            acknowledged: acknowledged(folder.path()),
            point: died.then_some(point),
        });
        if !died {
            return point;
        }
    }
    panic!("the workload has more than {POINTS_MAX} points");
}

/// Whether the child died at its point, as opposed to getting through.
fn run_child(test: &str, folder: &Path, point: u64) -> bool {
    let this = std::env::current_exe().expect("a test knows its own file");
    let output = Command::new(this)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER_VARIABLE, folder)
        .env(POINT_VARIABLE, point.to_string())
        .output()
        .expect("the test binary starts again");
    let killed = output.status.signal() == Some(Signal::KILL.as_raw());
    assert!(
        killed || output.status.success(),
        "the child for point {point} failed by itself: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr),
    );
    // A wrong name runs no test at all, and that must not look like getting through.
    let ran = String::from_utf8_lossy(&output.stdout).contains("running 1 test");
    assert!(killed || ran, "there is no test {test}");
    killed
}

fn acknowledged(folder: &Path) -> Vec<String> {
    // A child that died early never made the file.
    let text = std::fs::read_to_string(folder.join(ACKS)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// For `SqliteOptions::instrument`: numbers the points of this connection, and dies at the one
/// that the parent named. Does nothing in a process that has no such parent.
pub fn instrument(connection: &mut Connection) -> rusqlite::Result<()> {
    let Some(fatal) = fatal() else { return Ok(()) };
    let codes = TraceEventCodes::SQLITE_TRACE_STMT | TraceEventCodes::SQLITE_TRACE_PROFILE;
    connection.trace_v2(codes, Some(move |_: TraceEvent<'_>| pass(fatal)))
}

/// A point that is no statement, such as a step of writing a file. Does nothing in a process that
/// has no parent which named one.
pub fn point() {
    if let Some(fatal) = fatal() {
        pass(fatal);
    }
}

fn fatal() -> Option<u64> {
    std::env::var(POINT_VARIABLE).ok().and_then(|point| point.parse().ok())
}

fn pass(fatal: u64) {
    if POINTS_PASSED.fetch_add(1, Ordering::SeqCst) == fatal {
        // Nothing after this line runs: the signal is delivered before the call returns.
        let _ = kill_process(getpid(), Signal::KILL);
    }
}

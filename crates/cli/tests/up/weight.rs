//! What a process uses of its host, and how soon its owner is answered.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use semel_client::Client;
use semel_core::clock::{Clock, SystemClock};
use serde_json::json;

use super::Up;

/// The usual limit of open files.
const FILES: u64 = 1024;

/// kB of memory, at any time.
const MEMORY_KB_MAX: u64 = 150_000;

/// Calls of the owner while strangers do what they do.
const CALLS: usize = 20;

/// Only a failure waits for it.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that may have only so many files open, with everything of this command that counts.
pub(super) fn limited(wanted: &Command) -> Up {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {FILES}; exec \"$@\""), "sh"]);
    shell.arg(wanted.get_program()).args(wanted.get_args()).env_remove("SEMEL_HOME");
    Up::ready(shell.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
}

/// This process holds the other ends of everything.
pub(super) fn raise_own_limit() {
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: own.maximum, maximum: own.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
}

fn kb(up: &Up, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", up.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse().unwrap()
}

fn open_files(up: &Up) -> u64 {
    let open = std::fs::read_dir(format!("/proc/{}/fd", up.child.id())).unwrap();
    u64::try_from(open.count()).unwrap()
}

/// Fewer than it may have.
pub(super) fn has_room(up: &Up) {
    let open = open_files(up);
    assert!(open < FILES, "{open} open files");
}

/// The process was never larger than it may be.
pub(super) fn is_small(up: &Up, what: &str, worst: Duration) {
    let (now, most, open) = (kb(up, "VmRSS"), kb(up, "VmHWM"), open_files(up));
    println!(
        "{what}: the owner's worst answer {worst:?}, {now} kB, at the most {most} kB, {open} open \
         files"
    );
    assert!(most < MEMORY_KB_MAX, "{what}: {most} kB");
    has_room(up);
}

/// The owner asks, over the socket, and is answered each time; `paths` are asked in turn. Gives how
/// long the slowest answer took.
pub(super) fn owner_is_answered(up: &Up, socket: &Path, paths: &[&str], what: &str) -> Duration {
    let (client, clock) = (Client::socket(socket), SystemClock::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut worst = Duration::ZERO;
        for number in 0..CALLS {
            let began = clock.monotonic();
            let path = paths[number % paths.len()];
            let asking = async {
                let note = json!({"to": "@me", "message": format!("{what} {number}")});
                match path {
                    "/v1/send" => client.post(path, &note, None).await,
                    _ => client.get(path).await,
                }
            };
            let answer = tokio::time::timeout(PATIENCE, asking).await;
            let answer = answer.unwrap_or_else(|_| panic!("{what}: {path} was not answered"));
            assert!(answer.as_ref().unwrap().is_success(), "{what}: {path}: {answer:?}");
            worst = worst.max(clock.monotonic() - began);
            has_room(up);
        }
        worst
    })
}

//! Runs a command whose output goes through to the terminal as it comes and is kept for counting.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow};

use crate::repo;

/// The lines of stdout, then those of stderr: no summary is spread over both.
pub(crate) fn run(command: &mut Command) -> Result<(ExitStatus, Vec<String>)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().with_context(|| format!("cannot run {}", repo::line(command)))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
        return Err(anyhow!("no pipes to {}", repo::line(command)));
    };
    // Two readers, or a full pipe on one side would stop the child while we read the other.
    let (mut lines, errors) = thread::scope(|scope| {
        let errors = scope.spawn(|| pass_through(stderr, io::stderr()));
        (pass_through(stdout, io::stdout()), errors.join())
    });
    lines.extend(errors.map_err(|_| anyhow!("the reader of stderr panicked"))?);
    Ok((child.wait()?, lines))
}

/// A terminal that is gone must not stop the run: the lines and the exit status still count.
fn pass_through(from: impl Read, mut to: impl Write) -> Vec<String> {
    let mut from = BufReader::new(from);
    let mut lines = Vec::new();
    let mut line = Vec::new();
    while matches!(from.read_until(b'\n', &mut line), Ok(count) if count > 0) {
        let _ = to.write_all(&line).and_then(|()| to.flush());
        lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_line_and_keeps_it() {
        let mut copy = Vec::new();
        let lines = pass_through(&b"one\ntwo \xff\nthree"[..], &mut copy);
        assert_eq!(copy, b"one\ntwo \xff\nthree");
        assert_eq!(lines, ["one", "two \u{fffd}", "three"]);
    }

    #[test]
    fn reads_both_outputs_and_the_status() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 7"]);
        let (status, lines) = run(&mut command).unwrap();
        assert_eq!(status.code(), Some(7));
        assert_eq!(lines, ["out", "err"]);
    }
}

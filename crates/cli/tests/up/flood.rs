//! Connections that say nothing, as many as there may be open files: the owner notices nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Up, command, json};

/// The usual limit of open files.
const FILES: u64 = 1024;

/// `semel up` that may have only so many files open.
fn start(home: &Path) -> Up {
    let wanted = command(home, &["--json"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {FILES}; exec \"$@\""), "sh"]);
    shell.arg(wanted.get_program()).args(wanted.get_args()).env_remove("SEMEL_HOME");
    Up::ready(shell.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
}

fn of_process(up: &Up, what: &str) -> String {
    std::fs::read_to_string(format!("/proc/{}/{what}", up.child.id())).unwrap()
}

fn open_files(up: &Up) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", up.child.id())).unwrap().count()
}

fn resident_kb(up: &Up) -> u64 {
    let status = of_process(up, "status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn host(url: &str) -> &str {
    url.split("://").nth(1).unwrap().split('/').next().unwrap()
}

#[test]
fn silent_connections_keep_out_nobody() {
    // This process holds the other ends of them all.
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: own.maximum, maximum: own.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let up = start(folder.path());
    let mut silent = Vec::new();
    for door in ["broker", "api"] {
        let address = host(up.ready[door].as_str().unwrap()).parse().unwrap();
        for _ in 0..1100 {
            // What is over the backlog may wait; nobody waits for that here.
            if let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
                silent.push(stream);
            }
            assert!((open_files(&up) as u64) < FILES);
        }
    }
    for number in 0..5 {
        let sent = json(folder.path(), &["send", "@me", &format!("hello {number}"), "--wait"]);
        assert_eq!(sent["status"], "done");
    }
    // A new connection to the flooded doors is served, too.
    for door in ["broker", "api"] {
        let mut stream = TcpStream::connect(host(up.ready[door].as_str().unwrap())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let asked = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(asked).unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1", "{door}");
    }
    assert!((open_files(&up) as u64) < FILES);
    assert!(resident_kb(&up) < 150_000, "{} kB", resident_kb(&up));
    drop(silent);
}

//! Hosts that cannot do everything: each says what it lacks, and nothing else is blamed.

use std::fs::File;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::json;

use super::stores::refuses;
use super::{Up, command, semel};

/// Runs a command in namespaces of its own, after a line of a shell.
fn inside(flags: &str, line: &str, command: &Command) -> Command {
    let mut inside = Command::new("unshare");
    inside.args(["--map-root-user", flags, "sh", "-c"]);
    inside.arg(format!("{line} && exec \"$@\"")).arg("sh");
    inside.arg(command.get_program()).args(command.get_args()).env_remove("SEMEL_HOME");
    inside
}

#[test]
fn a_host_without_user_namespaces_is_not_the_fault_of_a_gear() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let gear = home.join("hello");
    for words in
        [&["gear", "new", gear.to_str().unwrap()][..], &["gear", "install", gear.to_str().unwrap()]]
    {
        let done = semel(home, words);
        assert!(done.status.success(), "{done:?}");
    }
    let none = "echo 0 > /proc/sys/user/max_user_namespaces";
    let mut up = inside("--user", none, &command(home, &["--json"]));
    let mut up = Up::ready(up.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let plan = home.join("plan.json");
    let steps = json!({"steps": [
        {"id": "greet", "gear": "hello", "action": "greet", "params": {"name": "you"}}]});
    std::fs::write(&plan, steps.to_string()).unwrap();
    let done =
        semel(home, &["job", "submit", "--plan", plan.to_str().unwrap(), "--wait", "--json"]);
    let last = done.stdout.trim_ascii().rsplit(|byte| *byte == b'\n').next().unwrap();
    let event: serde_json::Value = serde_json::from_slice(last).unwrap();
    let error = &event["data"]["error"];
    assert_eq!(error["class"], "resource_limit", "{event}");
    assert_eq!(error["code"], "sandbox_failed", "{event}");
    let text = error["message"].as_str().unwrap();
    assert!(text.contains("user.max_user_namespaces"), "{text}");
    assert_eq!(up.stop(Signal::TERM), Some(0));
}

#[test]
fn a_read_only_disk_is_named_with_a_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let mount = format!("mount --bind {0} {0} && mount -o remount,ro,bind {0}", home.display());
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_semel"));
    daemon.args(["daemon", "up", "--read-only", "--home"]).arg(home);
    let done = inside("--mount", &mount, &daemon).output().unwrap();
    assert_eq!(done.status.code(), Some(78), "{done:?}");
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(text.contains("daemon/local/lock is on a disk") && text.contains("cp -a"), "{text}");
}

/// The same command with words before it.
fn behind(words: &[&str], command: &Command) -> Command {
    let mut behind = Command::new(words[0]);
    behind.args(&words[1..]).arg(command.get_program()).args(command.get_args());
    behind.env_remove("SEMEL_HOME");
    behind
}

/// Sends before the limit is reached, which is soon.
const SENDS_MAX: usize = 500;

#[test]
fn a_limit_of_a_files_size_ends_it_in_words_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    assert_eq!(Up::start(home).stop(Signal::TERM), Some(0));
    let line = "ulimit -f 2000; exec \"$@\"";
    let mut limited = behind(&["sh", "-c", line, "sh"], &command(home, &["--json"]));
    let log = home.join("log");
    limited.stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
    let mut up = Up::ready(limited.spawn().unwrap());
    let body = "x".repeat(60_000);
    let mut taken = Vec::new();
    let ended = (0..SENDS_MAX).find_map(|number| {
        let key = format!("send-{number}");
        if semel(home, &["send", "@me", &body, "--key", &key]).status.success() {
            taken.push(key);
        }
        up.child.try_wait().unwrap()
    });
    let said = std::fs::read_to_string(&log).unwrap();
    let code = ended.expect("it ends").code();
    assert_eq!(code, Some(5), "it ends by itself, and by no signal: {said}");
    let last: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(last.len() == 1 && last[0].contains("it is unknown whether"), "{said}");
    let mut up = Up::start(home);
    for key in &taken {
        let row = semel(home, &["outbox", "inspect", key]);
        assert!(row.status.success(), "{key}: {row:?}");
    }
    assert_eq!(up.stop(Signal::TERM), Some(0));
}

#[test]
fn a_user_with_too_few_threads_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let program = folder.path().join("semel");
    std::fs::copy(env!("CARGO_BIN_EXE_semel"), &program).unwrap();
    // The limit is none for root; somebody of whom nothing else runs has it.
    let user = ((1 << 20) | std::process::id()).to_string();
    let other = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"];
    let other = if rustix::process::geteuid().is_root() { &other[..] } else { &[] };
    for threads in [1, 8, 30] {
        for (at, words) in [
            &["up", "--broker-listen", "127.0.0.1:0"][..],
            &["daemon", "up", "--persistent"],
            &["broker", "serve", "--listen", "127.0.0.1:0", "--store", "sqlite:none.db"],
            &["job", "serve"],
            &["events"],
        ]
        .into_iter()
        .enumerate()
        {
            // A command needs fewer.
            if at == 4 && threads > 1 {
                continue;
            }
            let mut command = Command::new(&program);
            command.args(words);
            let limit = format!("--nproc={threads}");
            let behind = behind(&[other, &["prlimit", &limit]].concat(), &command);
            let refused = refuses(behind);
            let said = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(5), "{threads} for {words:?}: {said}");
            assert!(said.contains("error: no thread can be started"), "{words:?}: {said}");
            assert!(said.contains("ulimit -u") && !said.contains("panicked"), "{words:?}: {said}");
        }
    }
}

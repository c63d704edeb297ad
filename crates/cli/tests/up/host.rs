//! Hosts that cannot do everything: each says what it lacks, and nothing else is blamed.

use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::json;

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

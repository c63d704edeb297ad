//! SIGHUP and `semel daemon reload`: what can be is read again, and nobody dies of it.

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Up, json, semel};

#[test]
fn everything_in_one_process_reads_its_configuration_again() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let mut up = Up::start(home);
    kill_process(Pid::from_child(&up.child), Signal::HUP).unwrap();
    let reloaded = json(home, &["daemon", "reload"]);
    assert_eq!(reloaded["needs_restart"], serde_json::json!([]));
    let config = home.join("daemon/local/config.toml");
    std::fs::write(&config, "[outbox]\nwindow = 7\nmax_bytes = 2000000\n").unwrap();
    let reloaded = json(home, &["daemon", "reload"]);
    assert_eq!(reloaded["needs_restart"], serde_json::json!(["outbox.window"]));
    std::fs::write(&config, "[outbox]\nwindows = 7\n").unwrap();
    let refused = semel(home, &["daemon", "reload"]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(78), "{text}");
    assert!(text.contains("config_refused") && text.contains("config.toml"), "{text}");
    let sent = json(home, &["send", "@me", "hello", "--key", "one", "--wait"]);
    assert_eq!(sent["status"], "done");
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let nobody = semel(home, &["daemon", "reload"]);
    assert_eq!(nobody.status.code(), Some(5));
}

#[test]
fn an_engine_alone_outlives_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["job", "serve", "--json", "--home"]).arg(folder.path());
    let log = folder.path().join("log");
    let logging = std::fs::File::create(&log).unwrap();
    let child = command.env_remove("SEMEL_HOME").stdout(Stdio::piped()).stderr(logging).spawn();
    let mut engine = Up::ready(child.unwrap());
    kill_process(Pid::from_child(&engine.child), Signal::HUP).unwrap();
    while !std::fs::read_to_string(&log).unwrap().contains("it is read only at a start") {
        std::thread::yield_now();
    }
    assert_eq!(engine.stop(Signal::TERM), Some(0));
}

/// The local API is for this machine: refused before anything is made.
#[test]
fn the_local_api_is_not_for_other_machines() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    for verb in [&["up"][..], &["daemon", "up", "--mesh", "local"], &["job", "serve"]] {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7118", "7118"] {
            let output = semel(&home, &[verb, &["--api-listen", address]].concat());
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{verb:?} {address}: {text}");
            assert!(text.contains("127.0.0.1:7118"), "{text}");
        }
    }
    assert!(!home.exists(), "nothing was made");
}

/// One judgement of what stays on this machine, however its address is written.
#[test]
fn an_address_of_this_machine_is_one_in_either_spelling() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    let (own, token) = ("[::ffff:127.0.0.1]:0", folder.path().join("token"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["up", "--json", "--name", "me", "--broker-listen", own, "--api-listen", own]);
    command.arg("--home").arg(&home).env_remove("SEMEL_HOME");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut up = Up::ready(child);
    let api = up.ready["api"].as_str().unwrap().to_owned();
    assert!(api.starts_with("http://[::ffff:127.0.0.1]:"), "{api}");
    let sent = json(&home, &["send", "@me", "hello", "--key", "one", "--wait"]);
    assert_eq!(sent["status"], "done");
    std::fs::copy(up.ready["token_file"].as_str().unwrap(), &token).unwrap();
    let list = ["job", "list", "--engine", &api, "--engine-token-file", token.to_str().unwrap()];
    let listed = semel(&home, &list);
    assert_eq!(listed.status.code(), Some(0), "{}", String::from_utf8_lossy(&listed.stderr));
    assert_eq!(up.stop(Signal::TERM), Some(0));
}

//! Files that steps gave, fetched from a running engine: over its socket and by a command.

use std::path::Path;
use std::process::{Command, Output};

use semel_testkit::http::{Said, request, say};
use serde_json::json;
use tokio::net::UnixStream;

use crate::process::{Engine, Home, Lottery, up};
use crate::world::{Reply, World};

/// Larger than any result that is not a file, and than everything that is buffered on its way.
fn content(seed: u64) -> Vec<u8> {
    let mut lottery = Lottery(seed);
    (0..3_000_001).map(|_| u8::try_from(lottery.below(256)).unwrap()).collect()
}

/// What `semel job artifact` says and gives.
fn artifact(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["job", "artifact"]).args(arguments).arg("--home").arg(home);
    command.env_remove("SEMEL_HOME").output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn ask(socket: &Path, path: &str) -> Said {
    say(UnixStream::connect(socket).await.unwrap(), &request("GET", path, &[], b"")).await
}

/// The status and the code of a refusal.
async fn refused(socket: &Path, path: &str) -> (u16, String) {
    let said = ask(socket, path).await;
    // Files are too large to be shown.
    assert_ne!(said.status, 200, "{path}: {} bytes came", said.body.len());
    said.problem()
}

/// A job that gave a file and failed then, and the file's hash.
async fn with_file(world: &World, engine: &Engine, content: &[u8]) -> (String, String) {
    world.will("page", Reply::Body(content.to_vec()));
    world.will("bad", Reply::Status(404));
    let id = engine.run(&[world.step("page", "GET"), world.step("bad", "GET")]).await;
    let job = engine.ended(&id).await;
    assert_eq!(job["status"], "failed", "{job:#}");
    let result = &job["steps"][0]["result"];
    assert_eq!(result["bytes"], content.len(), "{job:#}");
    (id, result["sha256"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_given_as_it_is_and_by_nothing_but_its_hash() {
    let (world, home) = (World::start().await, Home::new());
    let (engine, socket) = (home.serve(), home.path().join("jobs/sock"));
    let content = content(1);
    let (id, hash) = with_file(&world, &engine, &content).await;
    let again = engine.say(&id, "retry", &json!({})).await.body["id"].as_str().unwrap().to_owned();
    assert_eq!(engine.ended(&again).await["status"], "completed");
    for job in [&id, &again] {
        let said = ask(&socket, &format!("/v1/jobs/{job}/artifact?sha256={hash}")).await;
        assert_eq!(said.status, 200, "{job}");
        assert_eq!(said.header("content-type"), Some("application/octet-stream"));
        assert_eq!(said.header("content-length"), Some("3000001"));
        assert!(said.body == content, "{job}: {} bytes came", said.body.len());
    }
    let (upper, other) = (hash.to_uppercase(), "0".repeat(64));
    let up = format!("..%2F{}", &hash[..59]);
    for no_hash in ["", "..", &upper, &hash[1..], &format!("{hash}0"), &up, "%20"] {
        let said = refused(&socket, &format!("/v1/jobs/{id}/artifact?sha256={no_hash}")).await;
        assert_eq!(said, (400, "invalid_field".to_owned()), "{no_hash}");
    }
    let said = refused(&socket, &format!("/v1/jobs/{id}/artifact")).await;
    assert_eq!(said, (400, "missing_field".to_owned()));
    let said = refused(&socket, &format!("/v1/jobs/{id}/artifact?sha256={other}")).await;
    assert_eq!(said, (404, "artifact_not_found".to_owned()));
    for unknown in [&id.replace(&id[id.len() - 4..], "0000"), "nobody", "..", "%2e%2e"] {
        let said = refused(&socket, &format!("/v1/jobs/{unknown}/artifact?sha256={hash}")).await;
        assert_eq!(said, (404, "job_not_found".to_owned()), "{unknown}");
    }
    // A job has its own files and no others.
    let (stranger, _) = with_file(&world, &engine, b"x".repeat(1 << 20).as_slice()).await;
    let said = refused(&socket, &format!("/v1/jobs/{stranger}/artifact?sha256={hash}")).await;
    assert_eq!(said, (404, "artifact_not_found".to_owned()));
    let file = kept(&home, &id, &hash);
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(home.path().join("jobs/config.toml"), &file).unwrap();
    let said = refused(&socket, &format!("/v1/jobs/{id}/artifact?sha256={hash}")).await;
    assert_eq!(said, (500, "internal_error".to_owned()), "links are not followed");
    std::fs::remove_file(&file).unwrap();
    let said = refused(&socket, &format!("/v1/jobs/{id}/artifact?sha256={hash}")).await;
    assert_eq!(said, (404, "artifact_not_found".to_owned()));
}

/// Where the engine keeps it.
fn kept(home: &Home, id: &str, hash: &str) -> std::path::PathBuf {
    home.path().join("jobs/work/artifacts").join(id).join(hash)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_writes_a_file_that_is_whole_or_none() {
    let (world, home) = (World::start().await, Home::new());
    let (engine, _) = up(home.path(), &[]);
    let content = content(2);
    let (id, hash) = with_file(&world, &engine, &content).await;
    let out = home.path().join("page.html");
    let to = ["--output", out.to_str().unwrap()];
    let with = |hash: &str, more: &[&str]| artifact(home.path(), &[&[&id, hash], more].concat());

    // Nothing is made before there is something to write.
    let missing = with(&"0".repeat(64), &to);
    assert_eq!(missing.status.code(), Some(3), "{}", stderr(&missing));
    assert!(stderr(&missing).contains("error: artifact_not_found: "), "{}", stderr(&missing));
    for no_hash in [&hash[1..], &hash.to_uppercase(), "../../config.toml"] {
        let refused = with(no_hash, &to);
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("invalid_field"), "{}", stderr(&refused));
    }
    let unknown = artifact(home.path(), &[&["nobody", hash.as_str()], to.as_slice()].concat());
    assert_eq!(unknown.status.code(), Some(3), "{}", stderr(&unknown));
    assert!(stderr(&unknown).contains("error: job_not_found: "), "{}", stderr(&unknown));
    assert!(!out.exists());

    let fetched = with(&hash, &[&to[..], &["--json"]].concat());
    assert!(fetched.status.success(), "{}", stderr(&fetched));
    let said: serde_json::Value = serde_json::from_slice(&fetched.stdout).unwrap();
    assert_eq!(said, json!({"file": out, "sha256": hash, "bytes": content.len()}));
    assert!(std::fs::read(&out).unwrap() == content);
    let piped = with(&hash, &[]);
    assert!(piped.status.success(), "{}", stderr(&piped));
    assert!(piped.stdout == content, "{} bytes came", piped.stdout.len());
    assert_eq!(with(&hash, &["--json"]).status.code(), Some(2), "two things on one output");

    std::fs::write(&out, "mine").unwrap();
    let refused = with(&hash, &to);
    assert_eq!(refused.status.code(), Some(4), "{}", stderr(&refused));
    assert_eq!(std::fs::read(&out).unwrap(), b"mine", "what was there stays");
    std::fs::remove_file(&out).unwrap();

    // A disk that has changed it.
    let mut damaged = content.clone();
    damaged[1_500_000] ^= 1;
    std::fs::write(kept(&home, &id, &hash), &damaged).unwrap();
    let wrong = with(&hash, &to);
    assert_eq!(wrong.status.code(), Some(1), "{}", stderr(&wrong));
    assert!(stderr(&wrong).contains("is damaged"), "{}", stderr(&wrong));
    assert!(!out.exists(), "nothing is left of it");
    assert_eq!(with(&hash, &[]).status.code(), Some(1));
}

//! An engine whose database takes no commit, or is away, says so, alone and under `semel up`, and
//! so does `semel doctor`. A database that was made read-only answers every read.

use std::process::Command;

use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{ReadOnly, fresh_postgres};
use serde_json::Value;

use crate::process::{Engine, Home, PATIENCE, up};

/// Asks for its health until the answer is as it should be.
async fn until(engine: &Engine, is: impl Fn(u16, &Value) -> bool) {
    let answered = async {
        loop {
            let answer = engine.client.get("/v1/health").await.unwrap();
            if is(answer.status, &answer.body) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let answered = tokio::time::timeout(PATIENCE, answered).await;
    assert!(answered.is_ok(), "its health is never so");
}

/// What `semel doctor` says of the engine.
async fn doctor(home: &Home) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["doctor", "--home"]).arg(home.path());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("job engine"));
    line.unwrap_or_else(|| panic!("nothing of the engine: {text}")).to_owned()
}

/// Until it says so: what was found is said again for a moment.
async fn says(home: &Home, condition: &str, words: &str) {
    let asked = async {
        loop {
            let said = doctor(home).await;
            if said.starts_with(condition) {
                assert!(said.contains(words), "{said}");
                return;
            }
        }
    };
    let asked = tokio::time::timeout(PATIENCE, asked).await;
    assert!(asked.is_ok(), "it is never {condition}: {}", doctor(home).await);
}

async fn is_well(home: &Home) {
    says(home, "ok", "its store works").await;
}

async fn is_unwell(home: &Home) {
    says(home, "problem", "it runs, but").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_database_takes_no_commit_is_not_well() {
    let store = fresh_postgres().await;
    let home = Home::sharing(&store);
    let engine = home.serve();
    until(&engine, |status, _| status == 200).await;
    is_well(&home).await;
    let read_only = ReadOnly::make(&store).await;
    until(&engine, |status, body| status == 503 && body["code"] == "store_unavailable").await;
    is_unwell(&home).await;
    read_only.undo().await;
    until(&engine, |status, _| status == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_database_is_away_is_not_well() {
    let (proxy, far) = Proxy::before(&fresh_postgres().await).await;
    let home = Home::sharing(&far);
    let engine = home.serve();
    until(&engine, |status, _| status == 200).await;
    proxy.go_away();
    until(&engine, |status, body| status == 503 && body["code"] == "store_unavailable").await;
    is_unwell(&home).await;
    proxy.come_back();
    until(&engine, |status, _| status == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_answers_for_the_engine_in_its_process() {
    let address = fresh_postgres().await;
    let (proxy, far) = Proxy::before(&address).await;
    let home = Home::new();
    let (engine, _) = up(home.path(), &["--store", &far]);
    let jobs = |status: &'static str| {
        move |code: u16, body: &Value| code == 200 && body["parts"]["jobs"]["status"] == status
    };
    until(&engine, jobs("ok")).await;
    is_well(&home).await;
    let read_only = ReadOnly::make(&address).await;
    until(&engine, jobs("failing")).await;
    is_unwell(&home).await;
    read_only.undo().await;
    until(&engine, jobs("ok")).await;
    proxy.go_away();
    until(&engine, jobs("failing")).await;
    is_unwell(&home).await;
    proxy.come_back();
    until(&engine, jobs("ok")).await;
}

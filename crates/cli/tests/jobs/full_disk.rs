//! An engine whose disk is full says so, and so does `semel doctor`.

use std::process::Command;

use semel_testkit::disk::{fill, with_a_small_disk};

use crate::process::{Engine, Home, PATIENCE};

/// Waits until its health is answered so.
async fn health(engine: &Engine, status: u16) {
    let answered = async {
        while engine.client.get("/v1/health").await.unwrap().status != status {
            tokio::task::yield_now().await;
        }
    };
    let answered = tokio::time::timeout(PATIENCE, answered).await;
    assert!(answered.is_ok(), "its health is never answered {status}");
}

/// What it says of the engine.
fn doctor(home: &Home) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    let output = command.args(["doctor", "--home"]).arg(home.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("job engine"));
    line.unwrap_or_else(|| panic!("nothing of the engine: {text}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_without_room_is_not_well() {
    let test = "full_disk::an_engine_without_room_is_not_well";
    let Some(disk) = with_a_small_disk(test, 16_000_000) else { return };
    let home = Home::on(&disk);
    let engine = home.serve();
    health(&engine, 200).await;
    assert!(doctor(&home).contains("its store works"), "{}", doctor(&home));
    fill(&disk.join("filled"));
    health(&engine, 507).await;
    assert!(doctor(&home).contains("it runs, but"), "{}", doctor(&home));
    std::fs::remove_file(disk.join("filled")).unwrap();
    health(&engine, 200).await;
}

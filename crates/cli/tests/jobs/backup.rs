//! The engine's file is copied while it works, put back, and checked: what happened after the copy
//! does not happen again.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::process::{Engine, Home};
use crate::world::{Reply, World};

fn job(home: &Home, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.arg("job").args(arguments).arg("--home").arg(home.path()).env_remove("SEMEL_HOME");
    command.output().unwrap()
}

/// Overwrites the head of a table's first page: the file can be opened, that table not be read.
pub(crate) fn damage(file: &Path, table: &str) {
    let connection = semel_testkit::sqlite::open(file).unwrap();
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let page: u32 = connection.query_row(sql, [table], |row| row.get(0)).unwrap();
    let bytes: u32 = connection.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    drop(connection);
    let file = std::fs::File::options().write(true).open(file).unwrap();
    file.write_all_at(&[0x55; 8], u64::from(page - 1) * u64::from(bytes)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ran_after_a_backup_does_not_run_again_when_it_is_restored() {
    let (world, home) = (World::start().await, Home::new());
    let copy = home.path().join("monday.db").display().to_string();
    assert_eq!(job(&home, &["backup", "--out", &copy]).status.code(), Some(3), "nothing is there");
    let mut engine = home.serve();
    let over = engine.run(&[world.step("over", "POST")]).await;
    assert_eq!(engine.ended(&over).await["status"], "completed");
    let release = world.hold("pay");
    let body = json!({"plan": {"steps": [world.step("pay", "POST"), world.step("tell", "POST")]}});
    let submit = async |engine: &Engine| -> Value {
        engine.client.post("/v1/jobs", &body, Some("once")).await.unwrap().body
    };
    let paying = submit(&engine).await["id"].as_str().unwrap().to_owned();
    world.arrived("pay", 1).await;

    let backup = || job(&home, &["backup", "--out", &copy]);
    let copied = backup();
    assert!(copied.status.success(), "while it works: {copied:?}");
    assert_eq!(backup().status.code(), Some(4), "it is there already");
    release.send(200).unwrap();
    assert_eq!(engine.ended(&paying).await["status"], "completed");
    let later = engine.run(&[world.step("later", "POST")]).await;
    assert_eq!(engine.ended(&later).await["status"], "completed");

    let restore = |more: &[&str]| job(&home, &[&["restore", "--in", &copy], more].concat());
    assert_eq!(restore(&["--force"]).status.code(), Some(4), "an engine has it open");
    assert_eq!(engine.stop(), Some(0));
    assert_eq!(restore(&[]).status.code(), Some(4), "there is one");
    let restored = restore(&["--force"]);
    let said = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert!(restored.status.success(), "{restored:?}");
    assert!(said.starts_with("restored; 1 unfinished jobs are cancelled\n"), "{said}");

    let mut engine = home.serve();
    assert_eq!(engine.job(&over).await["status"], "completed");
    let cancelled = engine.job(&paying).await;
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    let again = submit(&engine).await;
    assert_eq!(again["id"], paying, "under its key nothing is made again");
    let probe = engine.run(&[world.step("probe", "GET")]).await;
    assert_eq!(engine.ended(&probe).await["status"], "completed");
    for (step, count) in [("over", 1), ("pay", 1), ("tell", 1), ("later", 1)] {
        assert_eq!(world.count(step), count, "{step}");
    }
    assert_eq!(engine.stop(), Some(0));
}

/// A job that had failed by then may have been repeated after the backup: it is not repeated again.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_repeated_after_a_backup_is_not_repeated_again_when_it_is_restored() {
    let (world, home) = (World::start().await, Home::new());
    let copy = home.path().join("monday.db").display().to_string();
    let mut engine = home.serve();
    world.will("one", Reply::Status(404));
    let steps = [world.step("one", "POST"), world.step("two", "POST")];
    let id = engine.run(&steps).await;
    assert_eq!(engine.ended(&id).await["status"], "failed");
    assert!(job(&home, &["backup", "--out", &copy]).status.success());
    let retry = async |engine: &Engine, id: &str| {
        engine.post(&format!("/v1/jobs/{id}/retry"), &json!({})).await
    };
    let again = retry(&engine, &id).await.body["id"].as_str().unwrap().to_owned();
    assert_eq!(engine.ended(&again).await["status"], "completed");
    assert_eq!(engine.stop(), Some(0));
    assert!(job(&home, &["restore", "--force", "--in", &copy]).status.success());

    let engine = home.serve();
    let refused = retry(&engine, &id).await;
    assert_eq!((refused.status, refused.code()), (409, Some("job_not_failed")), "{refused:?}");
    assert_eq!((world.count("one"), world.count("two")), (2, 1));
    // What fails from now on can be repeated.
    world.will("three", Reply::Status(404));
    let id = engine.run(&[world.step("three", "POST")]).await;
    assert_eq!(engine.ended(&id).await["status"], "failed");
    assert!(retry(&engine, &id).await.is_success());
}

/// The domain of approvals is open from the start, so that no line of its gate says so.
#[tokio::test(flavor = "multi_thread")]
async fn no_approval_passes_after_a_restore_until_its_domain_is_opened_again() {
    let (world, home) = (World::start().await, Home::new());
    let copy = home.path().join("monday.db").display().to_string();
    let mut engine = home.serve();
    let gate = async |engine: &Engine, domain: &str| {
        let path = format!("/v1/registrar/gate?domain={domain}");
        engine.get(&path).await["can_proceed"].clone()
    };
    assert_eq!(gate(&engine, "jobs").await, "YES");
    assert!(job(&home, &["backup", "--out", &copy]).status.success());
    assert_eq!(engine.stop(), Some(0));
    let restored = job(&home, &["restore", "--force", "--in", &copy]);
    let said = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert!(said.contains("registrations are held in 1 domains\n"), "{restored:?}");
    assert!(said.contains("semel registrar gate open jobs"), "{said}");

    let engine = home.serve();
    for domain in ["jobs", "never-heard-of"] {
        assert_eq!(gate(&engine, domain).await, "NO", "{domain}");
    }
    let mut step = world.step("drop", "POST");
    step["risk"] = json!("critical");
    let id = engine.run(&[step]).await;
    let asked = engine.until(&id, "awaiting_approval").await;
    let approve =
        async || engine.say(&id, "approve", &json!({"plan_hash": asked["plan_hash"]})).await;
    let refused = approve().await;
    assert_eq!((refused.status, refused.code()), (409, Some("approval_refused")), "{refused:?}");
    assert_eq!(world.count("drop"), 0);
    let open = json!({"domain": "jobs", "action": "open"});
    assert!(engine.post("/v1/registrar/gate", &open).await.is_success());
    assert_eq!(approve().await.status, 200);
    assert_eq!(engine.ended(&id).await["status"], "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_found_by_a_check_and_nothing_else_is_taken_for_a_backup() {
    let home = Home::new();
    let mut engine = home.serve();
    let sound = job(&home, &["check", "--json"]);
    assert!(sound.status.success(), "while it works: {sound:?}");
    let sound: Value = serde_json::from_slice(&sound.stdout).unwrap();
    assert_eq!((&sound["sound"], &sound["findings"]), (&json!(true), &json!([])));
    assert_eq!(engine.stop(), Some(0));

    let file = home.path().join("jobs/jobs.db");
    let other = home.path().join("other.db").display().to_string();
    std::fs::write(&other, "no database").unwrap();
    let refused = job(&home, &["restore", "--force", "--in", &other]);
    assert_eq!(refused.status.code(), Some(78), "{refused:?}");
    damage(&file, "verification");
    let found = job(&home, &["check"]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(String::from_utf8_lossy(&found.stderr).contains("semel job restore --in BACKUP"));

    // A start and a job do not read that table; after an unclean stop it is found all the same.
    let mut engine = home.serve();
    let pause = json!({"id": "a", "gear": "wait", "action": "sleep", "params": {"ms": 1}});
    let id = engine.run(&[pause]).await;
    assert_eq!(engine.ended(&id).await["status"], "completed");
    engine.kill();
    let ended = job(&home, &["serve"]);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(78), "{said}");
    assert!(said.contains(&format!("error: {} is damaged: ", file.display())), "{said}");
}

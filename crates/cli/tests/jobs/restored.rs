//! A database that was put back by PostgreSQL's own tools: what went on after the backup does not
//! happen again, once the engine's store was told.

use std::process::{Command, Output};

use semel_testkit::servers::fresh_postgres;
use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls};

use crate::process::{Engine, Home};
use crate::world::World;

async fn connect(store: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(store, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A backup: the same database under another name.
async fn copied(store: &str) -> String {
    let beside = fresh_postgres().await;
    let name = |address: &str| address.rsplit_once('/').unwrap().1.to_owned();
    let copy = format!("{}_copy", name(store));
    let sql = format!("CREATE DATABASE {copy} TEMPLATE {}", name(store));
    connect(&beside).await.batch_execute(&sql).await.unwrap();
    beside.replace(&name(&beside), &copy)
}

fn restored(home: &Home, store: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["job", "restored", "--store", store, "--home"]).arg(home.path());
    command.env_remove("SEMEL_HOME").output().unwrap()
}

fn words(output: &Output) -> (Option<i32>, String) {
    let all = [output.stdout.as_slice(), &output.stderr].concat();
    (output.status.code(), String::from_utf8(all).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ran_after_a_backup_does_not_run_again_in_a_restored_database() {
    let (world, store) = (World::start().await, fresh_postgres().await);
    let home = Home::sharing(&store);
    let mut engine = home.serve();
    let over = engine.run(&[world.step("over", "POST")]).await;
    assert_eq!(engine.ended(&over).await["status"], "completed");
    let held = world.hold("look");
    let body = json!({"plan": {"steps": [world.step("look", "GET"), world.step("pay", "POST")]}});
    let submit = async |engine: &Engine| -> Value {
        engine.client.post("/v1/jobs", &body, Some("once")).await.unwrap().body
    };
    let paying = submit(&engine).await["id"].as_str().unwrap().to_owned();
    world.arrived("look", 1).await;
    engine.kill();
    let copy = copied(&store).await;
    drop(held);
    let mut engine = home.serve();
    assert_eq!(engine.ended(&paying).await["status"], "completed");
    assert_eq!(engine.stop(), Some(0));

    let (code, said) = words(&restored(&home, &copy));
    assert_eq!(code, Some(4), "an engine was there a moment ago: {said}");
    assert!(said.contains("an engine was seen here") && said.contains("wait "), "{said}");
    // The time that a backup lies about.
    let aged = "UPDATE jobs.home SET seen_at = seen_at - 600000";
    assert_eq!(connect(&copy).await.execute(aged, &[]).await.unwrap(), 1);
    let (code, said) = words(&restored(&home, &copy));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("1 unfinished jobs are cancelled\n"), "{said}");
    assert!(said.contains("registrations are held in 1 domains\n"), "{said}");
    let (code, said) = words(&restored(&home, &copy));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("0 unfinished jobs are cancelled\n"), "{said}");

    let other = Home::sharing(&copy);
    let engine = other.serve();
    let (code, said) = words(&restored(&home, &copy));
    assert_eq!(code, Some(4), "an engine lives there: {said}");
    assert_eq!(engine.job(&over).await["status"], "completed");
    let cancelled = engine.job(&paying).await;
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    assert_eq!(submit(&engine).await["id"], paying, "under its key nothing is made again");
    let gate = engine.get("/v1/registrar/gate?domain=jobs").await;
    assert_eq!(gate["can_proceed"], "NO");
    let probe = engine.run(&[world.step("probe", "GET")]).await;
    assert_eq!(engine.ended(&probe).await["status"], "completed");
    for (step, count) in [("over", 1), ("look", 2), ("pay", 1)] {
        assert_eq!(world.count(step), count, "{step}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_jobs_is_refused_and_left_as_it_is() {
    let (home, store) = (Home::new(), fresh_postgres().await);
    let (code, said) = words(&restored(&home, &store));
    assert_eq!(code, Some(3), "{said}");
    let client = connect(&store).await;
    let sql = "SELECT count(*) FROM pg_tables
                WHERE schemaname NOT IN ('pg_catalog', 'information_schema')";
    let tables: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(tables, 0, "nothing was made");
    let (code, said) = words(&restored(&home, "sqlite:jobs.db"));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("semel job restore --in"), "{said}");
}

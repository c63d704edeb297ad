//! What a person says, and a job that is handed in, when the database's answer is lost and the
//! database stays away: nobody can tell whether it counts, and that is what is said, with the job
//! to look at. What was done before is not told as undone.

use std::process::Output;

use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::fresh_postgres;
use serde_json::{Value, json};

use crate::process::{Engine, Home, up};

fn semel(home: &Home, arguments: &[&str]) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(arguments).arg("--home").arg(home.path()).env_remove("SEMEL_HOME");
    command.output().unwrap()
}

/// Everything in one, over a database behind a proxy.
async fn behind() -> (Proxy, Home, Engine) {
    let address = fresh_postgres().await;
    let (proxy, store) = Proxy::before(&address).await;
    let home = Home::new();
    let (engine, _) = up(home.path(), &["--store", &store]);
    (proxy, home, engine)
}

/// The request with these bytes is done, and from then on nobody answers.
async fn unsure(proxy: &Proxy, needle: &str, home: &Home, verb: &[&str]) -> Value {
    proxy.fail_next(needle, Fault::CutAfter);
    proxy.go_away_at_the_fault();
    let said = tokio::task::block_in_place(|| semel(home, &[verb, &["--json"]].concat()));
    proxy.come_back();
    let problem = String::from_utf8_lossy(&said.stderr).into_owned();
    assert_eq!(said.status.code(), Some(6), "{verb:?}: {problem}");
    assert_eq!(proxy.fired(), 1, "{verb:?}");
    let problem: Value = serde_json::from_str(&problem).unwrap();
    assert_eq!((&problem["status"], &problem["code"]), (&json!(503), &json!("outcome_unknown")));
    problem
}

fn plan(home: &Home, step: &Value) -> String {
    let plan = home.path().join("plan.json");
    std::fs::write(&plan, json!({"steps": [step]}).to_string()).unwrap();
    plan.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_that_nobody_can_tell_of_ends_with_its_name_and_a_code_of_its_own() {
    let (proxy, home, engine) = behind().await;
    let step = json!({"id": "lost-one", "gear": "wait", "action": "sleep", "params": {"ms": 1}});
    let submit = ["job", "submit", "--plan", &plan(&home, &step)];
    let problem = unsure(&proxy, "lost-one", &home, &submit).await;
    let id = problem["job_id"].as_str().unwrap_or_else(|| panic!("{problem:#}"));
    assert_eq!(engine.ended(id).await["status"], "completed", "it is there, under that name");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_that_nobody_can_tell_of_names_its_job() {
    let (proxy, home, engine) = behind().await;
    let step = json!({"id": "a", "gear": "notify", "action": "send", "risk": "high",
        "params": {"message": "hello"}});
    let id = engine.run(&[step]).await;
    engine.until(&id, "awaiting_approval").await;
    let problem = unsure(&proxy, "person_approved", &home, &["job", "approve", &id]).await;
    assert_eq!(problem["job_id"], id);
    assert_eq!(engine.ended(&id).await["status"], "completed", "it was approved");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_nobody_can_tell_of_names_its_job() {
    let (proxy, home, engine) = behind().await;
    let step = json!({"id": "a", "gear": "notify", "action": "send", "risk": "high",
        "params": {"message": "hello"}});
    let id = engine.run(&[step]).await;
    engine.until(&id, "awaiting_approval").await;
    let cancel = ["job", "cancel", &id, "--reason", "lost-words"];
    let problem = unsure(&proxy, "lost-words", &home, &cancel).await;
    assert_eq!(problem["job_id"], id);
    assert_eq!(engine.ended(&id).await["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_that_nobody_can_tell_of_names_the_job_that_repeats() {
    let (proxy, home, engine) = behind().await;
    let path = "{\"path\": \"none\"}";
    let params: Value = serde_json::from_str(path).unwrap();
    let step = json!({"id": "lost-again", "gear": "files", "action": "read", "params": params});
    let id = engine.run(&[step]).await;
    assert_eq!(engine.ended(&id).await["status"], "failed");
    let problem = unsure(&proxy, "lost-again", &home, &["job", "retry", &id]).await;
    let again = problem["job_id"].as_str().unwrap_or_else(|| panic!("{problem:#}"));
    assert_ne!(again, id);
    assert_eq!(engine.ended(again).await["retry_of"], id);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_repeated_before_the_store_failed_is_told() {
    let home = Home::new();
    let engine = home.serve();
    let step =
        |id: &str| json!({"id": id, "gear": "files", "action": "read", "params": {"path": "none"}});
    let mut class = Value::Null;
    for name in ["first", "second", "third"] {
        let job = engine.ended(&engine.run(&[step(name)]).await).await;
        assert_eq!(job["status"], "failed", "{job:#}");
        class = job["failure_class"].clone();
    }
    let store = semel_testkit::sqlite::open(home.path().join("jobs/jobs.db")).unwrap();
    let refuse = |name: &str| {
        format!(
            "DROP TRIGGER IF EXISTS refused; CREATE TRIGGER refused BEFORE INSERT ON job
               WHEN NEW.plan LIKE '%{name}%' BEGIN SELECT RAISE(ABORT, 'a test'); END;"
        )
    };
    store.execute_batch(&refuse("first")).unwrap();
    let nothing = engine.post("/v1/jobs/retry", &json!({"class": class})).await;
    assert_eq!(nothing.status, 500, "nothing was repeated: {nothing:?}");
    store.execute_batch(&refuse("second")).unwrap();
    let some = engine.post("/v1/jobs/retry", &json!({"class": class})).await;
    assert_eq!(some.status, 200, "{some:?}");
    assert_eq!(some.body["jobs"].as_array().unwrap().len(), 1, "{some:?}");
    assert_eq!(
        (&some.body["more"], &some.body["stopped_by"]),
        (&json!(true), &json!("internal_error"))
    );
    store.execute_batch("DROP TRIGGER refused").unwrap();
    let rest = engine.post("/v1/jobs/retry", &json!({"class": class})).await;
    assert_eq!(
        (rest.status, &rest.body["more"], &rest.body["stopped_by"]),
        (200, &json!(false), &Value::Null)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_that_was_closed_is_not_told_as_open() {
    let home = Home::new();
    let engine = home.serve();
    let store = semel_testkit::sqlite::open(home.path().join("jobs/jobs.db")).unwrap();
    let row = |action: &str, state: &str| {
        store.execute_batch("PRAGMA ignore_check_constraints = ON").unwrap();
        let insert = "INSERT INTO breaker (action, state, run_window, until, open_for_ms, probe,
            changed_at) VALUES (?1, ?2, '', 0, 30000, 0, 0)";
        store.execute(insert, [action, state]).unwrap();
    };
    row("wait.sleep", "open");
    // Nobody can read them all any more.
    row("z.z", "strange");
    let closed = engine.post("/v1/breakers/close", &json!({"action": "wait.sleep"})).await;
    assert_eq!((closed.status, &closed.body["state"]), (200, &json!("closed")), "{closed:?}");
    let state = "SELECT state FROM breaker WHERE action = 'wait.sleep'";
    assert_eq!(store.query_row(state, [], |row| row.get::<_, String>(0)).unwrap(), "closed");
}

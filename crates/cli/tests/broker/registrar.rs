//! The registrar through the binary: the worked example of `docs/registrar.md` as it stands there,
//! the verbs, and the refusal to start.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use semel_core::clock::{Clock, SystemClock};
use semel_core::rfc3339;
use semel_testkit::servers;
use serde_json::{Value, json};

use crate::process::{Broker, semel, succeeds};

const PAGE: &str = include_str!("../../../../docs/registrar.md");

/// The code block after a marker.
fn example(name: &str) -> &'static str {
    let marker = format!("<!-- example: {name} -->");
    let (_, rest) = PAGE.split_once(&marker).expect("the example");
    let (_, block) = rest.split_once("```").expect("a block");
    let (_, code) = block.split_once('\n').expect("a language");
    code.split_once("```").expect("an end").0
}

/// A broker with a registrar, and what asks it.
struct Set {
    folder: tempfile::TempDir,
    broker: Broker,
}

impl Set {
    fn start(store: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("sqlite:{}", folder.path().join("broker.db").display());
        let token = folder.path().join("token");
        let store = store.unwrap_or(&file).to_owned();
        let broker = Broker::start(&store, &["--admin-token-file", token.to_str().unwrap()]);
        Self { folder, broker }
    }

    fn url(&self) -> String {
        self.broker.url.replace("ws://", "http://").replace("/v1/mesh", "")
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// A verb of the operator.
    fn operate(&self, verb: &[&str]) -> String {
        let (url, token) = (self.url(), self.path("token"));
        succeeds(&[verb, &["--broker", &url, "--admin-token-file", &token]].concat())
    }

    fn envelope(&self, run: &str) -> Value {
        let envelope = json!({
            "protocol_version": 1, "domain": "deploys", "operation": "deploy",
            "canonical_target": format!("prod/web/{run}"), "artifact_hash": "ab".repeat(32),
            "owner_binding": "team-web", "run_id": run,
            "issued_at": rfc3339::format(SystemClock::new().wall()), "ttl_s": 3600,
        });
        fs::write(self.path("envelope.json"), envelope.to_string()).unwrap();
        envelope
    }

    /// Envelope and grant of a run, in their files.
    fn prepare(&self, run: &str) {
        self.envelope(run);
        let envelope = self.path("envelope.json");
        let grant = self.operate(&["grant", "issue", "--envelope", &envelope]);
        fs::write(self.path("grant.json"), grant).unwrap();
    }

    /// Three machines run the example at once; says how often it was deployed.
    fn three(&self, program: &str, file: &str) -> usize {
        fs::write(self.path(file), example(file)).unwrap();
        fs::write(self.path("deploy"), "#!/bin/sh\necho deployed >> deployed\n").unwrap();
        fs::set_permissions(self.path("deploy"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(self.path("deployed"), "").unwrap();
        let binary = Path::new(env!("CARGO_BIN_EXE_semel")).parent().unwrap().display();
        let machines: Vec<_> = (0..3)
            .map(|_| {
                Command::new(program)
                    .arg(file)
                    .current_dir(self.folder.path())
                    .env("PATH", format!("{binary}:/usr/local/bin:/usr/bin:/bin"))
                    .env("BROKER", self.url())
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for mut machine in machines {
            assert!(machine.wait().unwrap().success(), "{program} {file}");
        }
        fs::read_to_string(self.path("deployed")).unwrap().lines().count()
    }
}

fn worked(store: Option<&str>) {
    let set = Set::start(store);
    set.operate(&["registrar", "gate", "open", "deploys"]);
    set.prepare("release-7");
    assert_eq!(set.three("sh", "deploy.sh"), 1);
    set.prepare("release-8");
    assert_eq!(set.three("python3", "deploy.py"), 1);
    assert_eq!(set.three("python3", "deploy.py"), 0, "not again");
}

#[test]
fn the_worked_example_deploys_once_on_sqlite() {
    worked(None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worked_example_deploys_once_on_postgres() {
    worked(Some(&servers::fresh_postgres().await));
}

#[test]
fn every_verb_says_what_it_did() {
    let set = Set::start(None);
    let (url, token) = (set.url(), set.path("token"));
    let (envelope, grant) = (set.path("envelope.json"), set.path("grant.json"));
    let shown = set.operate(&["registrar", "gate", "show", "deploys"]);
    assert_eq!(shown, "deploys: hold, CAN_PROCEED = NO");
    set.prepare("r1");
    let register =
        ["effect", "register", "--envelope", &envelope, "--grant", &grant, "--broker", &url];
    let held = semel(&register);
    assert_eq!(held.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&held.stderr).contains("registration_hold"));
    assert_eq!(
        set.operate(&["registrar", "gate", "open", "deploys"]),
        "deploys: open, CAN_PROCEED = YES"
    );
    let first = succeeds(&register);
    let key = first.strip_prefix("registered ").expect("registered").to_owned();
    assert_eq!(succeeds(&register), format!("replayed {key}"));
    let whole: Value =
        serde_json::from_str(&succeeds(&[&register[..], &["--json"]].concat())).unwrap();
    assert_eq!((&whole["replayed"], &whole["logical_request_key"]), (&json!(true), &json!(key)));

    assert_eq!(set.operate(&["effect", "resolve", &key]), "committed");
    let by_grant = ["effect", "show", &key, "--grant", &grant, "--broker", &url];
    assert_eq!(succeeds(&by_grant), "committed");
    let none = "0".repeat(64);
    let missing = ["effect", "show", &none, "--broker", &url, "--admin-token-file", &token];
    assert_eq!(semel(&missing).status.code(), Some(3));
    let verdict = set.operate(&["effect", "verify", &key, "--failed", "--note", "it answers 500"]);
    assert_eq!(verdict, format!("failed {key}"));
    assert_eq!(semel(&register).status.code(), Some(4), "a failed effect is not replayed");

    let mut undo = set.envelope("r1");
    undo["operation"] = "compensate".into();
    undo["canonical_target"] = key.as_str().into();
    fs::write(&envelope, undo.to_string()).unwrap();
    fs::write(&grant, set.operate(&["grant", "issue", "--envelope", &envelope])).unwrap();
    let compensate = ["effect", "compensate", &key, "--envelope", &envelope, "--grant", &grant];
    assert!(set.operate(&compensate).starts_with("registered "));

    // Nothing is old, and what is asked for is looked at.
    let swept = set.operate(&["registrar", "sweep"]);
    assert_eq!(swept, "swept 0 lines of attempts, 0 failures, 0 grants");
    let none = ["registrar", "sweep", "--older-than-days", "0"];
    let none = [&none[..], &["--broker", &url, "--admin-token-file", &token]].concat();
    assert_eq!(semel(&none).status.code(), Some(2));

    set.prepare("r2");
    let listed = set.operate(&["grant", "list", "deploys"]);
    let issued = listed.lines().find(|line| line.contains(" issued ")).expect("a grant");
    let nonce = issued.split(' ').next().unwrap();
    assert_eq!(set.operate(&["grant", "revoke", nonce]), format!("{nonce} revoked"));
    assert_eq!(semel(&register).status.code(), Some(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfit_store_is_refused() {
    let address = servers::fresh_postgres().await;
    succeeds(&["broker", "migrate", "--store", &address]);
    let connected = tokio_postgres::connect(&address, tokio_postgres::NoTls).await;
    let (client, connection) = connected.unwrap();
    tokio::spawn(connection);
    for (broken, code) in [
        ("DROP TRIGGER nonce_use_no_change ON registrar.nonce_use", "replay_domain_fail_closed"),
        (
            "ALTER TABLE registrar.nonce_use DROP CONSTRAINT nonce_use_pkey",
            "replay_surface_not_fit",
        ),
    ] {
        client.batch_execute(broken).await.unwrap();
        let refused = semel(&["broker", "serve", "--listen", "127.0.0.1:0", "--store", &address]);
        assert_eq!(refused.status.code(), Some(78), "{broken}");
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(text.contains(code), "{text}");
    }
}

#[test]
fn an_unfit_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broker.db");
    let store = format!("sqlite:{}", path.display());
    succeeds(&["broker", "migrate", "--store", &store]);
    let serve = ["broker", "serve", "--listen", "127.0.0.1:0", "--store", &store];
    for (broken, code) in [
        ("DROP TRIGGER attempt_no_delete", "replay_domain_fail_closed"),
        (
            "DROP TABLE effect_key; CREATE TABLE effect_key (id INTEGER PRIMARY KEY,
                idempotency_key TEXT NOT NULL, attempt_no INTEGER NOT NULL,
                UNIQUE (idempotency_key, attempt_no)) STRICT",
            "replay_surface_not_fit",
        ),
    ] {
        semel_testkit::sqlite::open(&path).unwrap().execute_batch(broken).unwrap();
        let refused = semel(&serve);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(78), "{broken}: {text}");
        assert!(text.contains(code), "{text}");
    }
    let never = [&serve[..], &["--registrar-retention-days", "0"]].concat();
    assert_eq!(semel(&never).status.code(), Some(2), "a ledger keeps a day at the least");
    for command in [&["up"][..], &["job", "serve"]] {
        let never = [command, &["--registrar-retention-days", "0"]].concat();
        assert_eq!(semel(&never).status.code(), Some(2), "{command:?}");
    }
}

#[test]
fn a_restored_store_holds_everything() {
    let mut set = Set::start(None);
    set.operate(&["registrar", "gate", "open", "deploys"]);
    let store = format!("sqlite:{}", set.path("broker.db"));
    let backup = set.path("backup.db");
    succeeds(&["broker", "backup", "--store", &store, "--out", &backup]);
    assert_eq!(set.broker.stop(), Some(0));
    let said = succeeds(&["broker", "restore", "--store", &store, "--in", &backup, "--force"]);
    assert!(said.contains("held in 2 domains"), "that of jobs, too: {said}");
    let token = set.path("token");
    set.broker = Broker::start(&store, &["--admin-token-file", &token]);
    for domain in ["deploys", "never-opened"] {
        let shown = set.operate(&["registrar", "gate", "show", domain]);
        assert_eq!(shown, format!("{domain}: hold, CAN_PROCEED = NO"));
    }
}

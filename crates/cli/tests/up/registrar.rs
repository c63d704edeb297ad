//! The registrar of `semel up` on the local API: over its socket, over TCP, and by the commands.

use std::path::Path;

use rustix::process::Signal;
use semel_core::clock::{Clock, SystemClock};
use semel_core::rfc3339;
use semel_testkit::dice::Dice;
use semel_testkit::http::{Said, request, say};
use semel_testkit::openapi::{Fuzz, fuzz, has_names};
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixStream};

use crate::{Up, json, semel, spawn};

const REQUESTS: u32 = 800;

fn envelope(target: &str, run: &str) -> Value {
    json!({
        "protocol_version": 1, "domain": "deploys", "operation": "deploy",
        "canonical_target": target, "artifact_hash": "ab".repeat(32),
        "owner_binding": "team-web", "run_id": run,
        "issued_at": rfc3339::format(SystemClock::new().wall()), "ttl_s": 3600,
    })
}

/// The local API of a running process.
struct Local<'a>(&'a Value);

impl Local<'_> {
    async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.0["socket"].as_str().unwrap()).await.unwrap()
    }

    async fn ask(&self, verb: &str, path: &str, body: Option<&Value>) -> Said {
        let body = body.map(Value::to_string).unwrap_or_default();
        say(self.connect().await, &request(verb, path, &[], body.as_bytes())).await
    }

    async fn tcp(&self, verb: &str, path: &str, headers: &[(&str, &str)]) -> Said {
        let address = self.0["api"].as_str().unwrap().strip_prefix("http://").unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        say(stream, &request(verb, path, headers, b"")).await
    }

    async fn open(&self, domain: &str) {
        let open = json!({"domain": domain, "action": "open"});
        let said = self.ask("POST", "/v1/registrar/gate", Some(&open)).await;
        assert_eq!(said.json()["can_proceed"], "YES");
    }

    async fn grant(&self, envelope: &Value) -> Value {
        let said = self.ask("POST", "/v1/grants", Some(&json!({"envelope": envelope}))).await;
        assert_eq!(said.status, 201, "{said:?}");
        said.json()
    }

    async fn register(&self, envelope: &Value, grant: &Value, attempt: &str) -> Said {
        let body = json!({"envelope": envelope, "grant": grant["grant"], "attempt_id": attempt});
        self.ask("POST", "/v1/effects", Some(&body)).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_happens_once_over_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path());
    let ready = up.ready.clone();
    let local = Local(&ready);
    let web = envelope("prod/web", "release-7");
    let grant = local.grant(&web).await;
    // A domain that nobody has opened is held.
    let held = local.register(&web, &grant, "1").await;
    assert_eq!(held.problem(), (403, "registration_hold".to_owned()));
    assert_eq!(held.json()["can_proceed"], "NO");
    local.open("deploys").await;
    let first = local.register(&web, &grant, "2").await;
    assert_eq!((first.status, &first.json()["replayed"]), (201, &json!(false)), "{first:?}");
    let again = local.register(&web, &grant, "3").await;
    assert_eq!((again.status, &again.json()["replayed"]), (200, &json!(true)), "{again:?}");
    assert_eq!(again.json()["result"], first.json()["result"], "what was told the first time");
    // The same grant for something else, and the same effect under another run.
    let other = local.register(&envelope("prod/db", "release-7"), &grant, "4").await;
    assert_eq!(other.status, 409, "{other:?}");
    let other = envelope("prod/web", "release-8");
    let fresh = local.grant(&other).await;
    let refused = local.register(&other, &fresh, "5").await;
    assert_eq!(refused.problem(), (409, "replay_attempt_no_bypass".to_owned()));
    // The fresh grant was not used: it can be taken back, once.
    let nonce = format!("/v1/grants/{}", fresh["nonce"].as_str().unwrap());
    assert_eq!(local.ask("DELETE", &nonce, None).await.status, 204);
    let listed = local.ask("GET", "/v1/grants?domain=deploys&limit=1", None).await.json();
    let next = listed["next"].as_str().expect("two grants, one a page");
    let more = local.ask("GET", next, None).await.json();
    let mut states = [&listed["items"][0]["state"], &more["items"][0]["state"]]
        .map(|state| state.as_str().unwrap().to_owned());
    states.sort();
    assert_eq!((states, &more["next"]), (["consumed", "revoked"].map(str::to_owned), &Value::Null));
    let path = format!("/v1/effects/{}", grant["logical_request_key"].as_str().unwrap());
    assert_eq!(local.ask("GET", &path, None).await.json()["state"], "committed");
    let failed = json!({"verdict": "failed", "note": "it is down"});
    assert_eq!(local.ask("POST", &format!("{path}/verify"), Some(&failed)).await.status, 200);
    assert_eq!(local.ask("GET", &path, None).await.json()["state"], "failed");
    let none = format!("/v1/effects/{}?mode=show", "cd".repeat(32));
    let none = local.ask("GET", &none, None).await;
    assert_eq!(none.problem(), (404, "effect_not_found".to_owned()));
    assert_eq!(up.stop(Signal::TERM), Some(0));
}

/// The domain of approvals is decided in the engine's own store: held there, nothing is approved.
#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_is_held_holds_approvals() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path());
    let ready = up.ready.clone();
    let local = Local(&ready);
    let gate = |action: &str| semel(folder.path(), &["registrar", "gate", action, "jobs"]);
    let step = json!({"id": "a", "gear": "notify", "action": "send", "risk": "high",
        "params": {"message": "hello"}});
    let plan = json!({"plan": {"steps": [step]}});
    let id = local.ask("POST", "/v1/jobs", Some(&plan)).await.json()["id"].clone();
    let path = format!("/v1/jobs/{}", id.as_str().unwrap());
    let job = async |status: &str| {
        let clock = SystemClock::new();
        loop {
            let job = local.ask("GET", &path, None).await.json();
            if job["status"] == status {
                return job;
            }
            assert!(clock.monotonic() < std::time::Duration::from_secs(60), "{job}");
            tokio::task::yield_now().await;
        }
    };
    let hash = job("awaiting_approval").await["plan_hash"].clone();
    let approve = async || {
        let word = json!({"plan_hash": hash});
        local.ask("POST", &format!("{path}/approve"), Some(&word)).await
    };
    let held = gate("hold");
    assert!(String::from_utf8_lossy(&held.stdout).contains("CAN_PROCEED = NO"), "{held:?}");
    let shown = gate("show");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("CAN_PROCEED = NO"), "{shown:?}");
    assert_eq!(approve().await.problem(), (409, "approval_refused".to_owned()));
    assert_eq!(job("awaiting_approval").await["plan_hash"], hash);
    let open = gate("open");
    assert!(String::from_utf8_lossy(&open.stdout).contains("CAN_PROCEED = YES"), "{open:?}");
    assert_eq!(approve().await.status, 200);
    job("completed").await;
    assert_eq!(up.stop(Signal::TERM), Some(0));
}

/// An engine alone keeps its approvals in a file of its own, and is asked itself; who does not keep
/// them says so instead of holding nothing.
#[test]
fn the_gate_of_an_engine_alone_is_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    let gate = |action: &str, more: &[&str]| {
        semel(home, &[&["registrar", "gate", action, "jobs"], more].concat())
    };
    let mut up = Up::ready(spawn(home, &["--json", "--no-jobs"]));
    let broker = up.ready["broker"].as_str().unwrap().replace("ws://", "http://");
    let broker = broker.trim_end_matches("/v1/mesh").to_owned();
    let token = home.join("broker/admin_token").display().to_string();
    let at_broker = ["--broker", &broker, "--admin-token-file", &token];
    for more in [&[][..], &at_broker] {
        let refused = gate("hold", more);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{more:?}: {said}");
        assert!(said.contains("does not decide about jobs"), "{said}");
    }
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["job", "serve", "--json", "--home"]).arg(home).env_remove("SEMEL_HOME");
    let engine = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut engine = Up::ready(engine.spawn().unwrap());
    let held = || {
        let store = semel_testkit::sqlite::open(home.join("jobs/jobs.db")).unwrap();
        let gate = "SELECT count(*) FROM gate WHERE domain = 'jobs' AND action = 'hold'";
        store.query_row(gate, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(held(), 0);
    let said = gate("hold", &[]);
    assert!(said.status.success(), "{said:?}");
    assert_eq!(held(), 1, "where approvals are decided over: {said:?}");
    assert_eq!(gate("hold", &at_broker).status.code(), Some(2), "the broker's holds nothing");
    assert_eq!(engine.stop(Signal::TERM), Some(0));
    assert_eq!(up.stop(Signal::TERM), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tcp_it_needs_the_token_and_with_it_one_is_the_operator() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path());
    let ready = up.ready.clone();
    let local = Local(&ready);
    let key = "ab".repeat(32);
    for (verb, path) in [
        ("POST", "/v1/grants".to_owned()),
        ("GET", "/v1/grants?domain=deploys".to_owned()),
        ("DELETE", format!("/v1/grants/{}", "ab".repeat(16))),
        ("POST", "/v1/effects".to_owned()),
        ("GET", format!("/v1/effects/{key}")),
        ("POST", format!("/v1/effects/{key}/verify")),
        ("POST", format!("/v1/effects/{key}/compensate")),
        ("GET", "/v1/registrar/gate?domain=deploys".to_owned()),
        ("POST", "/v1/registrar/gate".to_owned()),
        ("POST", "/v1/registrar/sweep".to_owned()),
    ] {
        let said = local.tcp(verb, &path, &[]).await;
        assert_eq!(said.problem(), (401, "unauthorised".to_owned()), "{verb} {path}");
        // The broker's admin token is another one.
        let admin = std::fs::read_to_string(folder.path().join("broker/admin_token")).unwrap();
        let admin = format!("Bearer {}", admin.trim());
        let said = local.tcp(verb, &path, &[("Authorization", &admin)]).await;
        assert_eq!(said.problem(), (401, "unauthorised".to_owned()), "{verb} {path}");
    }
    let token = std::fs::read_to_string(ready["token_file"].as_str().unwrap()).unwrap();
    let token = format!("Bearer {}", token.trim());
    let path = "/v1/registrar/gate?domain=deploys";
    let said = local.tcp("GET", path, &[("Authorization", &token)]).await;
    assert_eq!(said.json()["can_proceed"], "NO");
    assert_eq!(up.stop(Signal::TERM), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_names_the_registrars_calls_and_whatever_comes_is_answered_as_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path());
    let ready = up.ready.clone();
    let local = Local(&ready);
    let document = local.ask("GET", "/v1/openapi.json", None).await.json();
    for (verb, path) in [
        ("post", "/v1/send"),
        ("post", "/v1/grants"),
        ("get", "/v1/grants"),
        ("delete", "/v1/grants/{id}"),
        ("post", "/v1/effects"),
        ("get", "/v1/effects/{id}"),
        ("post", "/v1/effects/{id}/verify"),
        ("post", "/v1/effects/{id}/compensate"),
        ("get", "/v1/registrar/gate"),
        ("post", "/v1/registrar/gate"),
        ("post", "/v1/registrar/sweep"),
    ] {
        assert!(document["paths"][path][verb].is_object(), "{verb} {path}");
    }
    has_names(&document);
    local.open("deploys").await;
    let mut known = Vec::new();
    for number in 0..8 {
        let envelope = envelope(&format!("prod/{number}"), "release-7");
        let grant = local.grant(&envelope).await;
        known.push((envelope, grant));
    }
    let hint = |dice: &mut Dice, name: &str| {
        let (envelope, grant) = &known[usize::try_from(dice.roll(8)).unwrap()];
        match name {
            "envelope" => Some(envelope.clone()),
            "grant" => Some(grant["grant"].clone()),
            "id" if dice.roll(4) == 0 => Some(grant["nonce"].clone()),
            "id" => Some(grant["logical_request_key"].clone()),
            "domain" => Some(json!("deploys")),
            "after" => Some(grant["nonce"].clone()),
            "not_before" | "not_after" => Some(json!("2036-01-15T08:00:00.000Z")),
            _ => None,
        }
    };
    let asked = Fuzz {
        seed: 0x9e37_79b9_7f4a_7c15,
        requests: REQUESTS,
        often: ("post", "/v1/effects"),
        // The daemon's own calls are asked without a mesh that they could leave.
        asks: |path| {
            ["/v1/grants", "/v1/effects", "/v1/registrar"].iter().any(|p| path.starts_with(p))
        },
        hint: &hint,
    };
    let fuzzed = fuzz(&document, &asked, async || local.connect().await).await;
    assert!(fuzzed.judged > REQUESTS * 9 / 10, "only {} reached a call", fuzzed.judged);
    assert!(fuzzed.well > REQUESTS / 10, "only {} were valid: it is blunt", fuzzed.well);
    assert_eq!(up.stop(Signal::TERM), Some(0));
}

fn write(folder: &Path, name: &str, document: &Value) -> String {
    let path = folder.join(name);
    std::fs::write(&path, document.to_string()).unwrap();
    path.display().to_string()
}

#[test]
fn commands_ask_the_socket_when_no_broker_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let home = &folder.path().join("home");
    let web = write(folder.path(), "envelope.json", &envelope("prod/web", "release-7"));
    let nobody = semel(home, &["registrar", "gate", "show", "deploys"]);
    assert_eq!(nobody.status.code(), Some(3), "no mesh was joined");
    let mut up = Up::start(home);
    assert_eq!(json(home, &["registrar", "gate", "show", "deploys"])["can_proceed"], "NO");
    assert_eq!(json(home, &["registrar", "gate", "open", "deploys"])["can_proceed"], "YES");
    let none = json!({"attempts": 0, "failures": 0, "grants": 0, "more": false});
    assert_eq!(json(home, &["registrar", "sweep", "--older-than-days", "1"]), none);
    let issued = json(home, &["grant", "issue", "--envelope", &web]);
    let grant = write(folder.path(), "grant.json", &issued["grant"]);
    let register = ["effect", "register", "--envelope", &web, "--grant", &grant];
    let key = issued["logical_request_key"].as_str().unwrap();
    for word in ["registered", "replayed"] {
        let output = semel(home, &register);
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{word} {key}\n"));
    }
    let shown = json(home, &["effect", "show", key, "--grant", &grant]);
    assert_eq!(shown["state"], "committed");
    let revoked = semel(home, &["grant", "revoke", issued["nonce"].as_str().unwrap()]);
    assert_eq!(revoked.status.code(), Some(4), "it was used");
    assert_eq!(semel(home, &["effect", "show", &"cd".repeat(32)]).status.code(), Some(3));
    let audit = semel(home, &["registrar", "audit", "attempts"]);
    let lines = String::from_utf8_lossy(&audit.stdout).into_owned();
    assert!(lines.lines().count() > 1 && !lines.contains('\\'), "one line each: {lines}");
    let listed = semel(home, &["grant", "list", "deploys"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains(" consumed "));
    assert_eq!(up.stop(Signal::TERM), Some(0));
    let away = semel(home, &["registrar", "gate", "show", "deploys"]);
    assert_eq!(away.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&away.stderr).contains("semel up"));
}

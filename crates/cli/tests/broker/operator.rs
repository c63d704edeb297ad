//! What an operator does beside serving: lists, policies, invites, tokens, backups.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use semel_broker::store::SqliteStore;
use semel_core::clock::{Clock, SystemClock};
use semel_core::hex::Hex;
use semel_crypto::request::{RequestClaim, sign};
use semel_testkit::servers;
use semel_wire::frame::{FromBroker, FromDaemon};
use semel_wire::link::JoinLink;
use serde_json::{Value, json};
use tokio_postgres::NoTls;

use crate::daemon::{Daemon, dm, keys, pubkey};
use crate::process::{Broker, semel, succeeds};

fn file_store(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("broker.db").display())
}

/// Asks over HTTP; gives the status and the body.
fn post(url: &str, path: &str, headers: &str, body: &str) -> (u16, Value) {
    let address = url.trim_start_matches("http://");
    let mut socket = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        socket,
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

fn http_url(broker: &Broker) -> String {
    broker.url.replace("ws://", "http://").replace("/v1/mesh", "")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_mesh_is_one_command_and_its_owner_joins_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    founded(&file_store(folder.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_mesh_is_one_command_and_its_owner_joins_on_postgres() {
    founded(&servers::fresh_postgres().await).await;
}

/// From nothing, with nobody's key: whoever has the printed link is the owner.
async fn founded(store: &str) {
    succeeds(&["broker", "migrate", "--store", store]);
    let broker = Broker::start(store, &[]);
    let url = http_url(&broker);
    let at = ["--broker-url", &url, "--store", store];
    let home = tempfile::tempdir().unwrap();
    for (number, verb) in [&["init"][..], &["mesh", "create"]].into_iter().enumerate() {
        let slug = format!("ops{number}");
        let words = [&["broker"], verb, &[slug.as_str()], &at].concat();
        let link = succeeds(&words);
        assert_eq!(JoinLink::parse(&link).unwrap().mesh, slug);
        let again = semel(&words);
        assert_eq!(again.status.code(), Some(4), "{again:?}");
        assert!(String::from_utf8_lossy(&again.stderr).contains("broker invite"), "{again:?}");
        let root = home.path().join(&slug).display().to_string();
        succeeds(&["mesh", "join", &link, "--name", "ada", "--home", &root]);
        let members = succeeds(&["broker", "member", "list", &slug, "--json", "--store", store]);
        let owner: Value = serde_json::from_str(&members).expect("one member");
        assert_eq!((&owner["name"], &owner["role"]), (&json!("ada"), &json!("owner")));
        // It is for one host.
        let other = home.path().join(format!("other-{slug}")).display().to_string();
        let other = semel(&["mesh", "join", &link, "--name", "eve", "--home", &other]);
        assert!(!other.status.success(), "{other:?}");
    }
    let neither = semel(&["broker", "mesh", "create", "x", "--store", store]);
    assert_eq!(neither.status.code(), Some(2), "{neither:?}");
    let wrong = ["broker", "init", "x", "--broker-url", "ftp://x", "--store", store];
    assert_eq!(semel(&wrong).status.code(), Some(2));
    let listed = succeeds(&["broker", "mesh", "list", "--store", store]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invite_made_in_a_shell_lets_a_key_in_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    invited(&file_store(folder.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invite_made_in_a_shell_lets_a_key_in_on_postgres() {
    invited(&servers::fresh_postgres().await).await;
}

async fn invited(store: &str) {
    let broker = Broker::start(store, &[]);
    let run = |verb: &[&str]| succeeds(&[&["broker"], verb, &["--store", store]].concat());
    run(&["mesh", "create", "test", "--owner", "ada", "--owner-key", &pubkey(1)]);
    let link = run(&["invite", "test", "--broker-url", &http_url(&broker), "--ttl", "1h"]);
    let link = JoinLink::parse(&link).expect("a link");
    assert_eq!(link.mesh, "test");
    let body = json!({"token": link.token, "name": "o'brien'); --", "key_id": "any"}).to_string();
    let (time, nonce) = (SystemClock::new().wall(), Hex([9; 16]));
    let path = "/v1/meshes/test/join";
    let claim = RequestClaim {
        method: "POST",
        path_and_query: path,
        body: body.as_bytes(),
        time,
        nonce,
        mesh: "test",
    };
    let signature = sign(&keys(2), &claim);
    let headers = format!(
        "Semel-Key: {}\r\nSemel-Time: {}\r\nSemel-Nonce: {nonce}\r\n\
         Semel-Signature: {signature}\r\n",
        pubkey(2),
        time.0
    );
    let (status, joined) = post(&link.broker_url, path, &headers, &body);
    assert_eq!((status, &joined["slug"]), (201, &"test".into()), "{joined}");
    assert!(Daemon::connect(&broker.url, 2).await.is_some(), "it is a member");

    run(&["topic", "create", "test", "a/b"]);
    run(&["queue", "create", "test", "work"]);
    assert_eq!(run(&["topic", "list", "test"]), "a/b");
    assert_eq!(run(&["queue", "list", "test", "--json"]), r#"{"name":"work"}"#);
    let members = run(&["member", "list", "test", "--json"]);
    let members: Vec<Value> = members.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(members[1]["member_id"], joined["member_id"]);
    assert!(run(&["member", "list", "test"]).contains("o'brien'); --"));
    assert!(run(&["mesh", "list"]).ends_with("  test"));
    let set = run(&["mesh", "set", "test", "dedupe_retention_days=30", "rate_limit=7", "--json"]);
    let set: Value = serde_json::from_str(&set).unwrap();
    assert_eq!((&set["dedupe_retention_days"], &set["rate_limit"]), (&30.into(), &7.into()));
    let wrong = ["broker", "mesh", "set", "test", "colour=red", "--store", store];
    assert_eq!(semel(&wrong).status.code(), Some(2));
    let policy = run(&["mesh", "set", "test", "clone_concurrency_policy=prefer_oldest", "--json"]);
    let policy: Value = serde_json::from_str(&policy).unwrap();
    assert_eq!(policy["clone_concurrency_policy"], "prefer_oldest");
    let owner = members[0]["member_id"].as_str().unwrap();
    let last = ["broker", "member", "revoke", "test", owner, "--store", store];
    assert_eq!(semel(&last).status.code(), Some(4), "the mesh keeps its last owner");
}

#[test]
fn the_admin_token_is_its_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (store, token) = (file_store(folder.path()), folder.path().join("token"));
    let broker = Broker::start(&store, &["--admin-token-file", token.to_str().unwrap()]);
    let secret = std::fs::read_to_string(&token).unwrap();
    let body = json!({"slug": "m", "owner_name": "ada", "owner_pubkey": pubkey(1)}).to_string();
    let ask = |token: &str| {
        let header = format!("Authorization: Bearer {token}\r\n");
        post(&http_url(&broker), "/v1/meshes", &header, &body).0
    };
    assert_eq!((ask("x"), ask(secret.trim()), ask(secret.trim())), (401, 201, 409));
    drop(broker);
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    let path = token.to_str().unwrap();
    let serve = ["broker", "serve", "--listen", "127.0.0.1:0", "--store", &store];
    let output = semel(&[&serve[..], &["--admin-token-file", path]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{errors}");
    assert!(errors.contains("chmod 600") && !errors.contains(secret.trim()), "{errors}");
    let broker = Broker::start(&store, &[]);
    let header = format!("Authorization: Bearer {}\r\n", secret.trim());
    let (status, problem) = post(&http_url(&broker), "/v1/meshes", &header, &body);
    assert_eq!((status, &problem["code"]), (403, &"admin_disabled".into()));
}

async fn sent(daemon: &mut Daemon, id: &str) -> u16 {
    daemon.say(&FromDaemon::Send(dm(id, &pubkey(1), "hello"))).await.unwrap();
    loop {
        match daemon.next().await {
            Some(FromBroker::SendResult(result)) => return result.status,
            Some(FromBroker::Push(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn epoch(folder: &Path) -> String {
    let on_uncertain = Arc::new(|_: &semel_store::StoreError| panic!("uncertain"));
    let (path, now) = (folder.join("broker.db"), SystemClock::new().wall());
    let store = SqliteStore::open(&path, "unused".to_owned(), now, on_uncertain).await.unwrap();
    let store = semel_broker::store::Store::Sqlite(Arc::new(store));
    let epoch = store.store_epoch().await.unwrap();
    store.close().await;
    epoch
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_store_is_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = file_store(folder.path());
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (copy, target) = (at("copy.db"), ["--store", &store]);
    let code = |verb: &[&str]| semel(&[&["broker"], verb, &target].concat()).status.code();
    let mut broker = Broker::start(&store, &[]);
    let create = ["mesh", "create", "test", "--owner", "ada", "--owner-key", &pubkey(1)];
    assert_eq!(code(&create), Some(0));
    let mut daemon = Daemon::connect(&broker.url, 1).await.unwrap();
    assert_eq!(sent(&mut daemon, "before").await, 201);
    assert_eq!(code(&["backup", "--out", &copy]), Some(0), "while it is served");
    assert_eq!(code(&["backup", "--out", &copy]), Some(4), "nothing is overwritten");
    assert_eq!(sent(&mut daemon, "after").await, 201);
    assert_eq!(code(&["restore", "--in", &copy]), Some(4), "there is a store");
    assert_eq!(code(&["restore", "--in", &copy, "--force"]), Some(4), "and it is served");
    assert_eq!(sent(&mut daemon, "after").await, 200, "nothing happened to it");
    drop(daemon);
    assert_eq!(broker.stop(), Some(0));
    let old = epoch(folder.path()).await;

    std::fs::write(at("empty.db"), "").unwrap();
    std::fs::write(at("text.db"), "hello".repeat(100)).unwrap();
    let mut torn = std::fs::read(&copy).unwrap();
    let middle = torn.len() / 2;
    torn[4096..middle].fill(0xa5);
    std::fs::write(at("torn.db"), torn).unwrap();
    for wrong in ["empty.db", "text.db", "torn.db"] {
        let output =
            semel(&["broker", "restore", "--force", "--in", &at(wrong), "--store", &store]);
        assert!(!output.status.success(), "{wrong}");
    }
    assert_eq!(epoch(folder.path()).await, old, "the store is as it was");
    assert!(!Path::new(&at("broker.db.restoring")).exists());

    assert_eq!(code(&["restore", "--in", &copy, "--force"]), Some(0));
    let new = epoch(folder.path()).await;
    assert_ne!(new, old);
    assert!(Path::new(&at("broker.db.replaced")).exists(), "the old one is kept");
    let mut broker = Broker::start(&store, &[]);
    let mut daemon = Daemon::connect(&broker.url, 1).await.unwrap();
    assert_eq!(sent(&mut daemon, "before").await, 200, "it was in the backup");
    assert_eq!(sent(&mut daemon, "after").await, 201, "it was not");
    drop(daemon);
    assert_eq!(broker.stop(), Some(0));

    // A restore that was killed half-way: nobody serves what is there until it is done.
    std::fs::write(at("broker.db.lock"), "a restore is under way\n").unwrap();
    std::fs::remove_file(at("broker.db")).unwrap();
    assert_eq!(code(&["migrate"]), Some(78));
    assert!(!Path::new(&at("broker.db")).exists(), "no empty store takes its place");
    assert_eq!(code(&["restore", "--in", &copy]), Some(0));
    assert_eq!(code(&["migrate"]), Some(0));
    assert_eq!(code(&["new-epoch", "--confirm"]), Some(0));
}

/// The link is not what is served.
#[test]
fn a_store_behind_a_link_is_restored_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (store, link) = (format!("sqlite:{}", at("real.db")), format!("sqlite:{}", at("link.db")));
    let create = |slug: &str| {
        let owner = ["--owner", "ada", "--owner-key", &pubkey(1), "--store", &store];
        succeeds(&[&["broker", "mesh", "create", slug], &owner[..]].concat())
    };
    create("first");
    succeeds(&["broker", "backup", "--out", &at("copy.db"), "--store", &store]);
    create("second");
    std::os::unix::fs::symlink(at("real.db"), at("link.db")).unwrap();
    succeeds(&["broker", "restore", "--in", &at("copy.db"), "--force", "--store", &link]);
    assert!(std::fs::symlink_metadata(at("link.db")).unwrap().is_symlink());
    let listed = succeeds(&["broker", "mesh", "list", "--store", &store]);
    assert!(listed.contains("first") && !listed.contains("second"), "{listed}");
}

/// Who only looks, or changes what must be there, makes nothing: a name may be wrong, or a file
/// gone, and an empty store would hide that.
#[test]
fn only_what_begins_a_store_makes_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none.db");
    let store = format!("sqlite:{}", path.display());
    let key = pubkey(1);
    for verb in [
        &["check"][..],
        &["sweep"],
        &["audit", "m"],
        &["mesh", "list"],
        &["mesh", "show", "m"],
        &["mesh", "set", "m", "rate_limit=5"],
        &["member", "list", "m"],
        &["member", "add", "m", "bob", &key],
        &["topic", "list", "m"],
        &["topic", "create", "m", "t"],
        &["queue", "list", "m"],
        &["queue", "create", "m", "q"],
        &["invite", "m", "--broker-url", "http://127.0.0.1:1"],
        &["backup", "--out", "copy.db"],
        &["new-epoch"],
    ] {
        let output = semel(&[&["broker"], verb, &["--store", &store]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{verb:?}: {said}");
        assert!(said.contains("there is no store"), "{verb:?}: {said}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{verb:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_backed_up_by_its_own_tools() {
    let store = servers::fresh_postgres().await;
    let run = |verb: &[&str]| semel(&[&["broker"], verb, &["--store", &store]].concat());
    let output = run(&["backup", "--out", "x.db"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("pg_dump"));
    let output = run(&["restore", "--in", "x.db"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("new-epoch"));
    let output = run(&["new-epoch"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "no broker has used it: {said}");
    assert!(said.contains("no tables of a broker"), "{said}");
    let (client, connection) = tokio_postgres::connect(&store, NoTls).await.unwrap();
    tokio::spawn(connection);
    let sql = "SELECT count(*) FROM pg_tables
                WHERE schemaname NOT IN ('pg_catalog', 'information_schema')";
    let tables: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(tables, 0, "nothing was made");
    assert!(run(&["migrate"]).status.success());
    let output = run(&["new-epoch"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("no broker has daemons") && said.contains("--confirm"), "{said}");
    let epochs = [0, 1].map(|_| run(&["new-epoch", "--confirm"]));
    assert!(epochs.iter().all(|output| output.status.success()));
    assert_ne!(epochs[0].stdout, epochs[1].stdout);
    let nowhere = semel(&["broker", "new-epoch", "--store", "sqlite:/nowhere/broker.db"]);
    assert_eq!(nowhere.status.code(), Some(3), "{nowhere:?}");
}

#[test]
fn a_store_is_for_its_owner_alone_whatever_the_umask_says() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("broker.db");
    let backup = folder.path().join("backup.db");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let all = |store: &Path, arguments: &[&str]| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "umask 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_semel"), "broker"]);
        shell.args(arguments).arg("--store").arg(format!("sqlite:{}", store.display()));
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    };
    all(&store, &["migrate"]);
    assert_eq!(mode(&store), 0o600);
    let name = backup.display().to_string();
    all(&store, &["backup", "--out", &name]);
    assert_eq!(mode(&backup), 0o600);
    // As somebody may have copied it.
    std::fs::set_permissions(&backup, std::fs::Permissions::from_mode(0o666)).unwrap();
    let other = folder.path().join("other.db");
    all(&other, &["restore", "--in", &name]);
    assert_eq!(mode(&other), 0o600);
}

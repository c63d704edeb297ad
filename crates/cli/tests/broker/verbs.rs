//! An empty store serves, and its operator can do what is needed before a daemon comes.

use semel_testkit::servers;
use semel_wire::frame::{FromBroker, FromDaemon};

use crate::daemon::{Daemon, dm, pubkey};
use crate::process::{Broker, semel, succeeds};

#[tokio::test(flavor = "multi_thread")]
async fn from_an_empty_sqlite_file_to_a_delivered_message() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("broker.db").display());
    from_nothing(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_an_empty_postgres_database_to_a_delivered_message() {
    from_nothing(&servers::fresh_postgres().await).await;
}

async fn from_nothing(store: &str) {
    let mut broker = Broker::start(store, &[]);
    let (owner, friend) = (pubkey(1), pubkey(2));
    let target = ["--store", store];
    let run = |verb: &[&str]| succeeds(&[&["broker"], verb, &target].concat());
    run(&["mesh", "create", "test", "--owner", "ada", "--owner-key", &owner]);
    let member = run(&["member", "add", "test", "o'brien'); --", &friend]);
    run(&["topic", "create", "test", "builds"]);
    run(&["topic", "subscribe", "test", "builds", &member]);
    run(&["queue", "create", "test", "work"]);
    run(&["migrate"]);
    let shown = run(&["mesh", "show", "test", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["inline_bytes"], 65_536);
    assert_eq!(
        (&shown["dedupe_mode"], &shown["dedupe_retention_days"]),
        (&"retention_scoped".into(), &365.into())
    );

    let mut ada = Daemon::connect(&broker.url, 1).await.expect("the owner is let in");
    let mut brien = Daemon::connect(&broker.url, 2).await.expect("the member is let in");
    ada.say(&FromDaemon::Send(dm("one", &friend, "hello"))).await.unwrap();
    match ada.next().await {
        Some(FromBroker::SendResult(result)) => assert_eq!(result.status, 201),
        other => panic!("{other:?}"),
    }
    match brien.next().await {
        Some(FromBroker::Push(push)) => assert_eq!(push.deliveries[0].body, b"hello"),
        other => panic!("{other:?}"),
    }
    assert!(run(&["check"]).starts_with("test: "), "the check speaks of the mesh");
    assert_eq!(run(&["sweep"]), "ids forgotten 0, messages deleted 0, audit events deleted 0");
    assert_eq!(run(&["audit", "test"]), "");
    let nobody = semel(&["broker", "member", "revoke", "test", "@nobody", "--store", store]);
    assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
    // By its name, by its key, and by its id: all of them mean it.
    run(&["member", "revoke", "test", "@o'brien'); --"]);
    for again in [&friend, &member] {
        let again = semel(&["broker", "member", "revoke", "test", again, "--store", store]);
        assert_eq!(again.status.code(), Some(3), "{again:?}");
        assert!(String::from_utf8_lossy(&again.stderr).contains("not an active member"));
    }
    if store.starts_with("postgres") {
        // The running broker is told at once; with a file its heartbeat finds out.
        assert!(matches!(brien.next().await, Some(FromBroker::MemberRevoked(_))));
    }
    let audit: serde_json::Value =
        serde_json::from_str(&run(&["audit", "test", "--json"])).unwrap();
    assert_eq!(audit["kind"], "member_revoked");
    assert_eq!(audit["detail"]["member_id"], member.as_str());
    assert!(run(&["audit", "test"]).contains(" member_revoked {"));
    drop(brien);
    assert!(Daemon::connect(&broker.url, 2).await.is_none(), "it was thrown out");
    drop(ada);
    assert_eq!(broker.stop(), Some(0), "SIGTERM is a clean end");
}

#[test]
fn wrong_words_have_clear_answers() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("broker.db").display());
    succeeds(&["broker", "migrate", "--store", &store]);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["broker", "migrate", "--store", "mysql://x"], 2, "sqlite:PATH or postgres://"),
        (&["broker", "migrate", "--store", "sqlite:/nowhere/at/all.db"], 78, "cannot be used"),
        (&["broker", "migrate", "--store", "postgres://x@127.0.0.1:1/x"], 5, "cannot be reached"),
        (&["broker", "mesh", "show", "none", "--store", &store], 3, "there is no mesh"),
        (
            &["broker", "invite", "m", "--broker-url", "http://broker.example", "--store", &store],
            78,
            "plain_text_refused",
        ),
        (
            &[
                "broker",
                "invite",
                "m",
                "--broker-url",
                "https://me@broker.example",
                "--store",
                &store,
            ],
            2,
            "names a user",
        ),
        (
            &["broker", "serve", "--listen", "0.0.0.0:0", "--store", &store],
            78,
            "--insecure-allow-plain",
        ),
        (
            &[
                "broker",
                "mesh",
                "create",
                "m",
                "--owner",
                "a",
                "--owner-key",
                "x",
                "--store",
                &store,
            ],
            2,
            "64 lower-case",
        ),
    ];
    for (arguments, code, text) in cases {
        let output = semel(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {errors}");
        assert!(errors.contains(text), "{arguments:?}: {errors}");
    }
    let create = |slug| {
        let key = pubkey(1);
        let words = ["broker", "mesh", "create", slug, "--owner", "a", "--owner-key", &key];
        semel(&[&words[..], &["--store", &store]].concat()).status.code()
    };
    assert_eq!((create("m"), create("m")), (Some(0), Some(4)), "a name is taken once");
}

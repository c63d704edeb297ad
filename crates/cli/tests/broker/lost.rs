//! What an operator does in a database whose answer is lost: nobody can tell whether it was done,
//! and that is what the exit code says. What was done is not told as failed.

use semel_testkit::proxy::{Fault, Proxy};
use semel_testkit::servers::fresh_postgres;

use crate::process::{semel, succeeds};

/// A database, and the same one behind a proxy.
async fn behind() -> (String, Proxy, String) {
    let address = fresh_postgres().await;
    let (proxy, far) = Proxy::before(&address).await;
    (address, proxy, far)
}

const OWNER: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
const KEY: &str = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";

fn make_mesh(store: &str) {
    let owner = ["--owner", "ada", "--owner-key", OWNER];
    let create = ["broker", "mesh", "create", "ops", "--store", store];
    succeeds(&[&create[..], &owner].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_can_tell_of_has_an_exit_code_of_its_own() {
    let (near, proxy, far) = behind().await;
    tokio::task::block_in_place(|| make_mesh(&near));
    proxy.fail_next("somebody", Fault::Hold);
    let adding = tokio::task::spawn_blocking(move || {
        semel(&["broker", "member", "add", "ops", "somebody", KEY, "--store", &far])
    });
    // The statement is held up until its COMMIT is the next to be lost.
    proxy.until_fired(1).await;
    proxy.fail_next("COMMIT", Fault::CutAfter);
    proxy.go_away_at_the_fault();
    proxy.let_go();
    let unsure = adding.await.unwrap();
    let said = String::from_utf8_lossy(&unsure.stderr);
    assert_eq!((unsure.status.code(), proxy.fired()), (Some(6), 2), "{said}");
    assert!(said.contains("it is unknown whether"), "{said}");
    let list = ["broker", "member", "list", "ops", "--store", &near];
    let listed = tokio::task::block_in_place(|| succeeds(&list));
    assert!(listed.contains("somebody"), "it was done: {listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_revoked_is_revoked_although_no_broker_could_be_told() {
    let (near, proxy, far) = behind().await;
    tokio::task::block_in_place(|| {
        make_mesh(&near);
        let add = ["broker", "member", "add", "ops", "somebody", KEY, "--store", &near];
        let member = succeeds(&add);
        proxy.fail_always("pg_notify", Fault::CutBefore);
        let revoked = semel(&["broker", "member", "revoke", "ops", &member, "--store", &far]);
        let said = String::from_utf8_lossy(&revoked.stderr);
        assert_eq!(revoked.status.code(), Some(0), "{said}");
        assert!(proxy.fired() > 0 && said.contains("warning: "), "{said}");
        let listed = succeeds(&["broker", "member", "list", "ops", "--store", &near]);
        assert!(listed.contains("revoked"), "{listed}");
    });
}

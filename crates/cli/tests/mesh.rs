//! `semel mesh list`, as a user calls it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId};
use semel_daemon::home::{Home, HomeFile, MeshSlug};
use semel_daemon::identity::Membership;
use semel_wire::place::Plain;

const MEMBER: &str = "01890a5d-ac96-774b-bcce-b302099a8058";

fn semel(home: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(arguments)
        .env_remove("SEMEL_HOME")
        .env("HOME", home)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn join(root: &Path, slug: &str, name: &str) {
    let home = Home::at(root, &MeshSlug::parse(slug).unwrap()).lock().unwrap();
    let membership = Membership {
        broker: "ws://127.0.0.1:7117/v1/mesh".to_owned(),
        mesh_id: MeshId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap(),
        member_id: MemberId::parse(MEMBER).unwrap(),
        name: name.to_owned(),
        joined_at: UnixMs(1_700_000_000_000),
        plain: Plain::LoopbackOnly,
    };
    membership.write(&home).unwrap();
}

#[test]
fn lists_what_was_joined() {
    let user = tempfile::tempdir().unwrap();
    let output = semel(user.path(), &["mesh", "list"]);
    assert_eq!(text(&output.stdout), "this host has joined no mesh\n");
    assert!(output.status.success() && !user.path().join(".semel").exists(), "it only looks");

    let root = user.path().join(".semel");
    join(&root, "work", "ada\x1b[2J");
    join(&root, "a", "ada");
    drop(Home::at(&root, &MeshSlug::parse("half").unwrap()).lock().unwrap());
    let broker = "ws://127.0.0.1:7117/v1/mesh";
    let shown = format!(
        "a     {MEMBER}  {broker}  ada\n\
         half  not joined\n\
         work  {MEMBER}  {broker}  ada\\u{{1b}}[2J\n"
    );
    let output = semel(user.path(), &["mesh", "list"]);
    assert_eq!(text(&output.stdout), shown);
    assert!(output.status.success() && output.stderr.is_empty());

    let elsewhere = tempfile::tempdir().unwrap();
    let home = root.to_str().unwrap();
    let output = semel(elsewhere.path(), &["mesh", "list", "--home", home, "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["home"], home);
    assert_eq!(document["meshes"][0]["member_id"], MEMBER);
    assert_eq!(document["meshes"][1], serde_json::json!({"mesh": "half", "status": "not_joined"}));
    assert_eq!(document["meshes"][2]["name"], "ada\x1b[2J");
    assert_eq!(document["meshes"].as_array().unwrap().len(), 3);
}

#[test]
fn one_folder_that_cannot_be_read_hides_no_other() {
    let user = tempfile::tempdir().unwrap();
    let root = user.path().join("home");
    join(&root, "good", "ada");
    join(&root, "spoilt", "ada");
    let spoilt = Home::at(&root, &MeshSlug::parse("spoilt").unwrap());
    fs::write(spoilt.path(HomeFile::Mesh), "{}").unwrap();
    let home = root.to_str().unwrap();
    let output = semel(user.path(), &["mesh", "list", "--home", home]);
    assert!(text(&output.stdout).contains("good    01890a5d"));
    assert!(text(&output.stdout).contains("spoilt  unreadable"));
    let errors = text(&output.stderr);
    assert!(errors.contains("spoilt/mesh.json: missing field"), "{errors}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_home_that_is_not_named_is_an_error_of_usage() {
    let user = tempfile::tempdir().unwrap();
    for arguments in [&["mesh", "list", "--home", ""][..], &["mesh", "list", "--home"]] {
        assert_eq!(semel(user.path(), arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = semel(Path::new(""), &["mesh", "list"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr), "error: $HOME is not set; give --home DIR\n");
}

//! The workspace, its border, and what is on the other side.

use std::os::unix::fs::symlink;
use std::time::Duration;

use super::super::super::{Allowed, Output};
use super::*;

fn run(workspace: &Path, action: &str, params: Value) -> Ended {
    act(&Call {
        execution_id: "job:step".to_owned(),
        attempt: 1,
        action: action.to_owned(),
        params,
        workspace: workspace.to_owned(),
        timeout: Duration::from_secs(1),
        via: None,
        allowed: Allowed::all(),
    })
}

fn value(ended: Ended) -> Value {
    let Ended::Done(Output::Value(value)) = ended else { panic!("{ended:?}") };
    value
}

fn code(ended: Ended) -> String {
    let Ended::Failed(failure) = ended else { panic!("{ended:?}") };
    failure.code
}

#[test]
fn what_is_written_is_read_and_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |path: &str, content: Value| {
        let mut params = content;
        params["path"] = path.into();
        run(folder.path(), "write", params)
    };
    assert_eq!(value(write("a/b/c.txt", json!({"text": "one"}))), json!({"bytes": 3}));
    assert_eq!(value(write("a/b/c.txt", json!({"text": "more"}))), json!({"bytes": 4}));
    assert_eq!(value(write("./raw", json!({"base64": "/wA="}))), json!({"bytes": 2}));
    let read = |path: &str| value(run(folder.path(), "read", json!({"path": path})));
    assert_eq!(read("a/b/c.txt"), json!({"bytes": 4, "text": "more"}));
    assert_eq!(read("raw"), json!({"bytes": 2, "base64": "/wA="}));
    let listed = value(run(folder.path(), "list", json!({})));
    let (a, raw) = (&listed["entries"][0], &listed["entries"][1]);
    assert_eq!((&a["name"], &a["kind"]), (&json!("a"), &json!("folder")));
    assert_eq!(raw, &json!({"name": "raw", "kind": "file", "bytes": 2}));
    assert_eq!(listed["entries"].as_array().map(Vec::len), Some(2));
}

#[test]
fn nothing_outside_is_reached() {
    let outside = tempfile::tempdir().expect("a folder");
    let folder = outside.path().join("data");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(outside.path().join("secret"), "s").expect("a file");
    std::fs::create_dir(outside.path().join("database")).expect("a folder");
    symlink("../secret", folder.join("link")).expect("a link");
    symlink("..", folder.join("up")).expect("a link");
    let absolute = outside.path().join("secret").display().to_string();
    let paths = [
        "../secret",
        "link",
        "up/secret",
        absolute.as_str(),
        "x/../../secret",
        "../database/x",
        "/proc/self/environ",
    ];
    for path in paths {
        let read = code(run(&folder, "read", json!({"path": path})));
        assert!(["outside_workspace", "no_such_file"].contains(&read.as_str()), "{path}: {read}");
        let written = run(&folder, "write", json!({"path": path, "text": "x"}));
        assert!(matches!(written, Ended::Failed(_)), "{path}: {written:?}");
    }
    for path in ["..", "up", "/"] {
        assert_eq!(code(run(&folder, "list", json!({"path": path}))), "outside_workspace");
    }
    assert_eq!(std::fs::read(outside.path().join("secret")).expect("still there"), b"s");
    assert_eq!(std::fs::read_dir(outside.path()).expect("a folder").count(), 3);
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("big"), vec![b'x'; INLINE_BYTES_MAX + 1]).expect("a file");
    assert_eq!(code(run(folder.path(), "read", json!({"path": "big"}))), "file_too_large");
    // As large as it may be, whatever is in it, it fits into a document.
    for byte in [b'x', b'"', 0, 0xff] {
        std::fs::write(folder.path().join("big"), vec![byte; INLINE_BYTES_MAX]).expect("a file");
        let read = value(run(folder.path(), "read", json!({"path": "big"}))).to_string();
        assert!(read.len() <= crate::limits::DOCUMENT_BYTES_MAX, "{byte}: {}", read.len());
    }
    assert_eq!(code(run(folder.path(), "read", json!({"path": "none"}))), "no_such_file");
    assert_eq!(code(run(folder.path(), "read", json!({"path": "."}))), "wrong_kind");
    let long = "x".repeat(256);
    for (action, params) in
        [("read", json!({"path": long})), ("write", json!({"path": long, "text": "x"}))]
    {
        assert_eq!(code(run(folder.path(), action, params)), "name_too_long");
    }
}

//! Looking at files must not change what they mean.

use semel_core::clock::UnixMs;
use semel_daemon::home::{Home, HomeFile, MeshSlug};
use semel_daemon::recover::{Database, Health, examine};

use crate::support::{Host, MESH, dm, send};

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_that_was_left_open_is_still_one_after_a_look() {
    // Nobody is there.
    let host = Host::new(0, "ws://127.0.0.1:1/v1/mesh".to_owned());
    let engine = host.start().await;
    send(&engine, dm("dm", 1, "hello")).await;
    // As a killed daemon leaves it.
    let root = tempfile::tempdir().unwrap();
    let home = Home::at(root.path(), &MeshSlug::parse(MESH).unwrap()).lock().unwrap();
    let path = home.home().path(HomeFile::OutboxDb);
    for suffix in ["", "-wal"] {
        let to = format!("{}{suffix}", path.display());
        std::fs::copy(host.file(&format!("outbox.db{suffix}")), to).unwrap();
    }
    let life = engine.outbox.life();
    engine.stop().await;
    let finding = examine(&home, Database::Outbox, UnixMs(1)).await;
    assert_eq!(finding.health, Health::Sound, "{finding:?}");
    assert!(!path.with_file_name("outbox.db-wal").exists(), "a look closes it in order");
    let file = semel_testkit::sqlite::open(&path).unwrap();
    let kept: i64 = file.query_row("SELECT life FROM link", [], |row| row.get(0)).unwrap();
    assert_eq!(kept, life + 1, "the next daemon knows that marks may be missing");
}

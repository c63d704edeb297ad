//! Files that steps give: each has its own, and they go with the job.

use std::sync::Arc;
use std::time::Duration;

use semel_core::hex::Hex;
use semel_jobs::gear::{Ended, Failure, FailureClass};
use semel_jobs::life::JobStatus;
use semel_jobs::limits::{INLINE_BYTES_MAX, RETENTION};
use semel_testkit::clock::SimClock;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{PATIENCE, Setup, step};

/// Answers every request with a large body of the letter that its path names.
pub(crate) async fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut asked = [0; 4096];
                let read = stream.read(&mut asked).await.expect("a request");
                let letter = String::from_utf8_lossy(&asked[..read])[5..6].to_owned();
                let body = letter.repeat(INLINE_BYTES_MAX + 1);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all((head + &body).as_bytes()).await.expect("a reader");
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_of_one_job_are_files_of_their_own_until_it_is_forgotten() {
    let clock = SimClock::at_ms(1_700_000_000_000);
    let bench = Setup { clock: Arc::new(clock.clone()), ..Setup::default() }.open().await;
    let port = server().await;
    let fetch = |letter: &str| {
        json!({"id": letter, "gear": "http", "action": "request", "parallel_group": "g",
            "params": {"url": format!("http://127.0.0.1:{port}/{letter}")}})
    };
    let id = bench.submit(json!([fetch("a"), fetch("b")])).await;
    let kept = bench.ended(id).await;
    assert_eq!(kept.job.state.status, JobStatus::Completed, "{kept:#?}");
    let folder = bench.workspaces().join("artifacts").join(id.to_string());
    for line in &kept.executions {
        let result: Value =
            serde_json::from_str(line.result.as_deref().expect("a result")).expect("a document");
        let body = line.step_id.repeat(INLINE_BYTES_MAX + 1);
        let hash = Hex::<32>(Sha256::digest(body.as_bytes()).into());
        assert_eq!(line.artifact, Some(hash), "{}", line.step_id);
        assert_eq!(result["sha256"], hash.to_string());
        assert_eq!((&result["status"], &result["bytes"]), (&json!(200), &json!(body.len())));
        let name = result["artifact"].as_str().expect("a name");
        let file = bench.workspaces().join(id.to_string()).join(name);
        for place in [file, folder.join(hash.to_string())] {
            assert!(std::fs::read(&place).expect("a file") == body.as_bytes(), "{place:?}");
        }
    }
    clock.advance(RETENTION + Duration::from_secs(60));
    let gone = async {
        while folder.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("its files go with it");
}

/// The engine of another home, or one that was killed meanwhile, has swept their job.
#[tokio::test(flavor = "multi_thread")]
async fn files_of_jobs_that_nobody_knows_go_at_night() {
    let clock = SimClock::at_ms(1_700_000_000_000);
    let bench = Setup { clock: Arc::new(clock.clone()), ..Setup::default() }.open().await;
    let id = bench.submit(json!([step("s", "echo")])).await;
    bench.ended(id).await;
    let (known, unknown) = (id.to_string(), uuid::Uuid::from_u128(7).to_string());
    let workspaces = bench.workspaces();
    let places = |name: &str| [workspaces.join(name), workspaces.join("artifacts").join(name)];
    for place in places(&known).into_iter().chain(places(&unknown)) {
        std::fs::create_dir_all(place.join("files")).expect("a folder");
    }
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    let gone = async {
        while places(&unknown).iter().any(|place| place.exists()) {
            // Night comes, and the clock settles.
            ticks.tick().await;
            clock.advance(Duration::from_secs(60));
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("they go");
    assert!(places(&known).iter().all(|place| place.exists()), "what has a job stays");
}

/// A folder for each job would cost more than everything else that is kept of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_leaves_no_files_leaves_no_folder() {
    let bench = Setup::default().open().await;
    let done = bench.submit(json!([step("s", "echo")])).await;
    assert_eq!(bench.ended(done).await.job.state.status, JobStatus::Completed);
    let broken = Failure::new(FailureClass::UserError, "no", "it cannot be done");
    bench.script.will("f", vec![Ended::Failed(broken)]);
    let failed = bench.submit(json!([step("f", "echo")])).await;
    assert_eq!(bench.ended(failed).await.job.state.status, JobStatus::Failed);
    for id in [done, failed] {
        let folder = bench.workspaces().join(id.to_string());
        assert!(!folder.exists(), "{}", folder.display());
    }
    // While it runs it is there, and it goes when somebody ends the job.
    let cancelled = bench.submit(json!([step("w", "hang")])).await;
    bench.script.until_ran(3).await;
    let folder = bench.workspaces().join(cancelled.to_string());
    assert!(folder.exists());
    bench.engine.cancel(cancelled, "enough").await.expect("it is cancelled");
    let gone = async {
        while folder.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("it goes");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_job_has_written_stays_with_it() {
    let bench = Setup::default().open().await;
    let write = json!({"id": "w", "gear": "files", "action": "write",
        "params": {"path": "a/b", "text": "kept"}});
    let (list, read) = (
        json!({"id": "l", "gear": "files", "action": "list", "params": {}}),
        json!({"id": "r", "gear": "files", "action": "read", "params": {"path": "a/b"},
            "depends_on": ["w"]}),
    );
    let id = bench.submit(json!([list, write, read])).await;
    let kept = bench.ended(id).await;
    assert_eq!(kept.job.state.status, JobStatus::Completed, "{kept:#?}");
    let listed = kept.executions.iter().find(|line| line.step_id == "l").expect("a line");
    assert!(listed.result.as_deref().is_some_and(|text| text.contains("[]")), "{listed:?}");
    let file = bench.workspaces().join(id.to_string()).join("a/b");
    assert_eq!(std::fs::read_to_string(file).expect("a file"), "kept");
    // One that has only looked has nothing.
    let looked = bench
        .submit(json!([json!({"id": "l", "gear": "files", "action": "list",
        "params": {}})]))
        .await;
    bench.ended(looked).await;
    assert!(!bench.workspaces().join(looked.to_string()).exists());
}

//! Lines that are not to be believed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel_jobs::gear::{Desk, Ended, Gear, Later, Report, Stop, SubJob, SubJobEnded};
use semel_jobs::limits::GEAR_QUEUE_BYTES_MAX;
use serde_json::json;

use crate::warm::runtime;
use crate::world::{PATIENCE, World, alive};

#[test]
fn a_right_line_is_believed() {
    assert_eq!(World::new().result("say", &json!({"how": "right"})), "believed");
}

#[test]
fn every_wrong_line_ends_the_gear() {
    let world = World::new();
    for how in [
        "forged",
        "changed",
        "unsigned",
        "replayed",
        "reordered",
        "skipped",
        "reflected",
        "unknown",
        "not json",
        "not asked",
        "signed oversized",
    ] {
        let ended = world.ended("say", &json!({"how": how}), "30s");
        assert_eq!(ended["ended"], "uncertain", "{how}: {ended}");
        assert_eq!(ended["class"], "gear_bug", "{how}: {ended}");
        assert_eq!(ended["code"], "protocol_violation", "{how}: {ended}");
    }
    assert!(alive(&world.path().display().to_string()).is_empty());
}

#[test]
fn a_line_of_a_gigabyte_is_not_kept() {
    let world = World::new();
    // A host that kept the line would not have the room.
    let script = format!(
        "ulimit -v 1000000; exec {} gear test hostile --json --action say \
         --params '{{\"how\": \"oversized\"}}' --timeout 60s",
        env!("CARGO_BIN_EXE_semel")
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).env("SEMEL_HOME", world.home()).current_dir(world.path());
    let output = command.output().unwrap();
    let ended: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(ended["ended"], "uncertain");
    assert_eq!(ended["code"], "protocol_violation", "{ended}");
}

/// Answers at once and at length, and tells by a file that an answer was handed over.
struct Generous {
    workspace: PathBuf,
    answers: AtomicU32,
    looks: AtomicU32,
}

const ANSWER_BYTES: usize = 900_000;

impl Desk for Generous {
    fn report(&self, _report: Report) {}

    /// Asked before each thing that happens: the second time after a question, its answer was.
    fn is_full(&self) -> bool {
        let answers = self.answers.load(Ordering::SeqCst);
        if answers > 0 && self.looks.fetch_add(1, Ordering::SeqCst) == 1 {
            let file = self.workspace.join(format!("answered{}", answers - 1));
            std::fs::write(file, "").unwrap();
        }
        false
    }

    fn sub_job(&self, asked: SubJob) -> Later<'_, SubJobEnded> {
        self.answers.store(asked.number + 1, Ordering::SeqCst);
        self.looks.store(0, Ordering::SeqCst);
        Box::pin(async { SubJobEnded::Completed(json!("x".repeat(ANSWER_BYTES))) })
    }
}

#[test]
fn a_gear_that_asks_and_does_not_read_is_not_answered_for_ever() {
    let world = World::new();
    let gear = world.engine(&[]);
    let call = world.call("asks_deaf", json!({}));
    let (workspace, zero) = (call.workspace.clone(), AtomicU32::default);
    let desk = Arc::new(Generous { workspace, answers: zero(), looks: zero() });
    let (_switch, stop) = Stop::channel();
    let ended = runtime().block_on(async {
        let running = gear.run(call, Arc::<Generous>::clone(&desk), stop);
        tokio::time::timeout(PATIENCE, running).await
    });
    let Ok(Ended::Uncertain(failure)) = ended else { panic!("{ended:?}") };
    assert_eq!(failure.code, "protocol_violation", "{failure:?}");
    assert!(failure.message.contains("does not read"), "{failure:?}");
    let answers = desk.answers.load(Ordering::SeqCst);
    let most = u32::try_from(GEAR_QUEUE_BYTES_MAX / ANSWER_BYTES).unwrap();
    // The first one is read, and the second is on its way.
    assert!((most..=most + 3).contains(&answers), "{answers}");
}

//! Gears as the engine has them: warm ones, sub-jobs, what became of an earlier attempt.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_jobs::gear::installed::Installed;
use semel_jobs::gear::package::{self, State};
use semel_jobs::gear::{
    Allowed, Call, Desk, Ended, Gear, Later, Output, Report, Resolution, Stop, SubJob, SubJobEnded,
};
use serde_json::{Value, json};

use crate::world::World;

#[derive(Default)]
pub(crate) struct Notes(Mutex<Vec<Report>>);

impl Desk for Notes {
    fn report(&self, report: Report) {
        self.0.lock().unwrap().push(report);
    }

    fn sub_job(&self, asked: SubJob) -> Later<'_, SubJobEnded> {
        let value = json!({"number": asked.number, "asked": asked.asked});
        Box::pin(async move { SubJobEnded::Completed(value) })
    }
}

impl World {
    /// The hostile gear, installed; what the operator does without is named.
    pub(crate) fn engine(&self, waived: &[&str]) -> Installed {
        let (_, state) = package::install(&self.home(), &self.home(), &self.gear(), &[]).unwrap();
        let waived = waived.iter().map(|name| (*name).to_owned()).collect();
        package::set_state(&self.home(), "hostile", &State { waived, ..state }).unwrap();
        let shim = PathBuf::from(env!("CARGO_BIN_EXE_semel"));
        Installed::open(&self.home(), "hostile", shim, Arc::new(|_| None)).unwrap()
    }

    pub(crate) fn call(&self, action: &str, params: Value) -> Call {
        let workspace = self.path().join("workspace");
        std::fs::create_dir_all(&workspace).unwrap();
        Call {
            execution_id: "job:step".to_owned(),
            attempt: 1,
            action: action.to_owned(),
            params,
            workspace,
            timeout: Duration::from_secs(60),
            via: None,
            allowed: Allowed::all(),
        }
    }

    pub(crate) async fn run(&self, gear: &Installed, action: &str, params: Value) -> Ended {
        let (_switch, stop) = Stop::channel();
        gear.run(self.call(action, params), Arc::new(Notes::default()), stop).await
    }

    /// Runs an action until `is_so`, then forgets it.
    pub(crate) fn dropped_when(
        &self,
        gear: &Installed,
        action: &str,
        params: Value,
        mut is_so: impl FnMut() -> bool,
    ) {
        let (_switch, stop) = Stop::channel();
        let runtime = runtime();
        runtime.block_on(async {
            let mut running = gear.run(self.call(action, params), Arc::new(Notes::default()), stop);
            while !is_so() {
                tokio::select! {
                    ended = &mut running => panic!("{ended:?}"),
                    () = tokio::task::yield_now() => {}
                }
            }
        });
    }

    /// Runs an action until `is_so`, then stops it.
    pub(crate) fn stopped_when(
        &self,
        gear: &Installed,
        action: &str,
        params: Value,
        mut is_so: impl FnMut() -> bool,
    ) -> Ended {
        runtime().block_on(async {
            let (switch, stop) = Stop::channel();
            let mut running = gear.run(self.call(action, params), Arc::new(Notes::default()), stop);
            loop {
                tokio::select! {
                    ended = &mut running => return ended,
                    () = tokio::task::yield_now() => {
                        if !*switch.borrow() && is_so() {
                            switch.send(true).unwrap();
                        }
                    }
                }
            }
        })
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

fn value(ended: Ended) -> Value {
    let Ended::Done(Output::Value(value)) = ended else { panic!("{ended:?}") };
    value
}

#[test]
fn a_warm_gear_serves_again_and_a_stopped_one_does_not() {
    let world = World::with(|manifest| format!("warm = true\n{manifest}"));
    let gear = world.engine(&[]);
    runtime().block_on(async {
        let first = value(world.run(&gear, "who", json!({})).await);
        let second = value(world.run(&gear, "who", json!({})).await);
        assert_eq!(first, second);
        // A bug ends it.
        let broken = world.run(&gear, "raises", json!({})).await;
        assert!(matches!(broken, Ended::Uncertain(_)), "{broken:?}");
        let third = value(world.run(&gear, "who", json!({})).await);
        assert_ne!(second["started"], third["started"]);
        // So does a stop, even when it answers.
        let (switch, stop) = Stop::channel();
        let call = world.call("gentle", json!({}));
        let running = gear.run(call, Arc::new(Notes::default()), stop);
        let (ended, ()) = tokio::join!(running, async {
            switch.send(true).unwrap();
        });
        assert!(matches!(ended, Ended::Failed(_)), "{ended:?}");
        let fourth = value(world.run(&gear, "who", json!({})).await);
        assert_ne!(third["started"], fourth["started"]);
        // Its files end up in the workspace all the same.
        let ended = world.run(&gear, "artifact", json!({"path": "out/big"})).await;
        let Ended::Done(Output::Artifact(path)) = ended else { panic!("{ended:?}") };
        assert_eq!(path, PathBuf::from("gear/step/big"));
        let kept = std::fs::metadata(world.path().join("workspace").join(path));
        assert_eq!(kept.unwrap().len(), 2 << 20);
    });
}

/// Starting a process for each of them takes the machine away from those that could serve.
#[test]
fn many_calls_at_once_are_served_by_a_few_that_stay() {
    let world = World::with(|manifest| format!("warm = true\n{manifest}"));
    let gear = world.engine(&[]);
    runtime().block_on(async {
        let calls = || {
            futures_util::future::join_all((0..64).map(|_| async {
                value(world.run(&gear, "who", json!({})).await)["started"].to_string()
            }))
        };
        let mut served = BTreeSet::new();
        served.extend(calls().await);
        served.extend(calls().await);
        assert!(served.len() < 64, "{} processes served 128 calls", served.len());
    });
}

/// One that is busy for long keeps nobody else waiting.
#[test]
fn a_call_does_not_wait_for_one_that_is_busy_for_long() {
    let world = World::with(|manifest| format!("warm = true\n{manifest}"));
    let gear = world.engine(&[]);
    runtime().block_on(async {
        let (switch, stop) = Stop::channel();
        let busy = gear.run(world.call("gentle", json!({})), Arc::new(Notes::default()), stop);
        let (ended, ()) = tokio::join!(busy, async {
            for _ in 0..8 {
                value(world.run(&gear, "who", json!({})).await);
            }
            switch.send(true).unwrap();
        });
        assert!(matches!(ended, Ended::Failed(_)), "{ended:?}");
    });
}

#[test]
fn a_cold_gear_is_another_each_time() {
    let world = World::new();
    let gear = world.engine(&[]);
    runtime().block_on(async {
        let first = value(world.run(&gear, "who", json!({})).await);
        let second = value(world.run(&gear, "who", json!({})).await);
        assert_ne!(first["started"], second["started"]);
        let workspace = world.path().canonicalize().unwrap().join("workspace");
        assert_eq!(first["folder"], workspace.display().to_string());
    });
}

#[test]
fn a_package_that_was_changed_does_not_run() {
    let world = World::new();
    let gear = world.engine(&[]);
    let file = package::folder(&world.home()).join("hostile/package/main.py");
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "print('evil')").unwrap();
    let ended = runtime().block_on(world.run(&gear, "who", json!({})));
    let Ended::Failed(failure) = ended else { panic!("{ended:?}") };
    assert_eq!(failure.code, "package_changed");
}

#[test]
fn a_sub_job_and_an_earlier_attempt() {
    let world = World::new();
    let gear = world.engine(&[]);
    runtime().block_on(async {
        let asked = value(world.run(&gear, "asks", json!({})).await);
        assert_eq!(asked, json!({"number": 0, "asked": {"request": "look"}}));
        let (_switch, stop) = Stop::channel();
        let known = gear.resolve(world.call("who", json!({})), stop.clone()).await;
        assert_eq!(known, Resolution::Done(Output::Value(json!({"id": "job:step"}))));
        let unknown = gear.resolve(world.call("asks", json!({})), stop).await;
        assert_eq!(unknown, Resolution::Unknown);
    });
}

#[test]
fn only_a_plain_file_of_the_workspace_is_an_artifact() {
    let world = World::new();
    let gear = world.engine(&[]);
    runtime().block_on(async {
        let ended = world.run(&gear, "artifact", json!({"path": "out/big"})).await;
        assert!(matches!(ended, Ended::Done(Output::Artifact(_))), "{ended:?}");
        for path in ["link", "../x", "/etc/passwd", "out", "none", "out/../link", ""] {
            let ended = world.run(&gear, "artifact", json!({"path": path})).await;
            let Ended::Uncertain(failure) = ended else { panic!("{path}: {ended:?}") };
            assert_eq!(failure.code, "bad_artifact", "{path}");
        }
    });
}

/// What was looked at is what is kept, whatever the gear does to its folders meanwhile.
#[test]
fn a_folder_that_is_exchanged_for_a_link_gives_nothing_away() {
    let world = World::with(|manifest| format!("warm = true\n{manifest}"));
    let outside = world.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "of somebody else").unwrap();
    let gear = world.engine(&[]);
    runtime().block_on(async {
        for _ in 0..50 {
            let call = world.call("swap", json!({"outside": outside}));
            let workspace = call.workspace.clone();
            let (_switch, stop) = Stop::channel();
            match gear.run(call, Arc::new(Notes::default()), stop).await {
                Ended::Done(Output::Artifact(path)) => {
                    assert_eq!(std::fs::read(workspace.join(path)).unwrap(), b"mine");
                }
                Ended::Uncertain(failure) => {
                    assert_eq!(failure.code, "bad_artifact", "{failure:?}");
                }
                ended @ (Ended::Done(_) | Ended::Failed(_)) => panic!("{ended:?}"),
            }
            let there = std::fs::read(outside.join("file")).unwrap();
            assert_eq!(there, b"of somebody else");
        }
    });
}

#[test]
fn many_files_are_as_bounded_as_a_large_one() {
    for warm in ["", "warm = true\n"] {
        let world = World::with(|manifest| {
            let manifest = manifest.replace("open_files = 64", "open_files = 64\ndisk_mb = 100");
            format!("{warm}{manifest}")
        });
        let gear = world.engine(&[]);
        let ended = runtime().block_on(world.run(&gear, "fill", json!({})));
        let Ended::Uncertain(failure) = ended else { panic!("{ended:?}") };
        assert_eq!(failure.code, "disk_limit", "{failure:?}");
    }
}

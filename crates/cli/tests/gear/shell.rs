//! `shell.run` in the sandbox.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use semel_jobs::gear::builtin::shell::Shell;
use semel_jobs::gear::manifest::Recovery;
use semel_jobs::gear::{Allowed, Call, Ended, Gear, Output, Stop};
use serde_json::{Value, json};

use crate::warm::{Notes, runtime};
use crate::world::{World, alive, marker};

fn shell(world: &World) -> Shell {
    std::fs::create_dir_all(world.home()).unwrap();
    Shell::new(&world.home(), PathBuf::from(env!("CARGO_BIN_EXE_semel")), None)
}

fn call(world: &World, command: &str) -> Call {
    let workspace = world.path().join("workspace");
    std::fs::create_dir_all(&workspace).unwrap();
    Call {
        execution_id: "job:step".to_owned(),
        attempt: 1,
        action: "run".to_owned(),
        params: json!({"command": command}),
        workspace,
        timeout: Duration::from_secs(60),
        via: None,
        allowed: Allowed::all(),
    }
}

fn run(world: &World, command: &str) -> Ended {
    let (_switch, stop) = Stop::channel();
    runtime().block_on(async {
        shell(world).run(call(world, command), Arc::new(Notes::default()), stop).await
    })
}

#[test]
fn a_command_runs_in_the_workspace_and_sees_nothing_else() {
    let world = World::new();
    assert_eq!(shell(&world).recovery("run", &Value::Null), Recovery::Ask);
    assert!(shell(&world).manifest().actions["run"].always_asks);
    let ended = run(&world, "echo mine > file && cat file; echo oops >&2; cat /etc/passwd");
    let Ended::Failed(failure) = ended else { panic!("{ended:?}") };
    assert_eq!(failure.code, "exit_1");
    let Ended::Done(Output::Value(value)) = run(&world, "cat file; echo note >&2") else {
        panic!("it failed")
    };
    assert_eq!(value, json!({"exit_code": 0, "stdout": "mine\n", "stderr": "note"}));
    let Ended::Done(Output::Value(value)) = run(&world, "head -c 10000000 /dev/zero") else {
        panic!("it failed")
    };
    let kept = value["stdout"].as_str().unwrap().len();
    assert_eq!(kept, semel_jobs::limits::SHELL_OUTPUT_BYTES_MAX);
}

/// It has not said that it failed, and may have done all but say so.
#[test]
fn a_command_that_was_killed_is_uncertain() {
    let world = World::new();
    for command in ["echo done > file; kill -9 $$", "sh -c 'kill -15 $$'; exit $?"] {
        let ended = run(&world, command);
        let Ended::Uncertain(failure) = ended else { panic!("{command}: {ended:?}") };
        assert_eq!(failure.code, "command_killed");
    }
}

#[test]
fn a_command_that_is_stopped_leaves_nothing() {
    let world = World::new();
    let marker = marker(&world);
    let inner = "trap \"\" TERM; while :; do sleep 1; done";
    let command = format!("trap '' TERM; setsid sh -c '{inner}' {marker} & wait; wait");
    let (switch, stop) = Stop::channel();
    let shell = shell(&world);
    let ended = runtime().block_on(async {
        let mut running = shell.run(call(&world, &command), Arc::new(Notes::default()), stop);
        loop {
            tokio::select! {
                ended = &mut running => return ended,
                () = tokio::task::yield_now() => {
                    if !alive(&marker).is_empty() && !*switch.borrow() {
                        switch.send(true).unwrap();
                    }
                }
            }
        }
    });
    assert!(alive(&marker).is_empty());
    assert!(matches!(ended, Ended::Uncertain(_)), "{ended:?}");
}

/// Whatever it is told to work in.
#[test]
fn no_command_is_given_the_home_of_the_engine() {
    let world = World::new();
    let shell = shell(&world);
    for folder in [world.home(), world.path().to_owned()] {
        let (_switch, stop) = Stop::channel();
        let call = Call { workspace: folder, ..call(&world, "echo mine > here") };
        let ended = runtime().block_on(shell.run(call, Arc::new(Notes::default()), stop));
        let Ended::Failed(failure) = ended else { panic!("{ended:?}") };
        assert!(failure.message.contains("kept from every gear"), "{failure:?}");
    }
    assert!(!world.home().join("here").exists() && !world.path().join("here").exists());
}

//! What is planned is tested as facts in and writes out, with a folder that stands for a group; who
//! is in a group and dies with it is tested with real ones, where this host lets us have some.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::super::load::{Ports, load};
use super::super::package::{self, State};
use super::super::{Allowed, Call, Desk, Later, Report, Stop, SubJob, SubJobEnded};
use super::found::Own;
use super::*;

const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
31 22 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
";

fn found(path: &str, mounts: &str) -> Result<(PathBuf, bool, bool), Unused> {
    let own = found::own(&format!("4:memory:/other\n0::{path}\n"), mounts);
    own.map(|Own { folder, is_namespace, is_namespace_parent }| {
        (folder, is_namespace, is_namespace_parent)
    })
}

#[test]
fn the_own_group_is_found_on_disk() {
    let at = |folder: &str| PathBuf::from(format!("/sys/fs/cgroup/unified{folder}"));
    assert_eq!(found("/", MOUNTS), Ok((at(""), true, false)));
    assert_eq!(found("/semel-engine", MOUNTS), Ok((at("/semel-engine"), false, true)));
    let service = "/system.slice/semel.service";
    assert_eq!(found(service, MOUNTS), Ok((at(service), false, false)));
    // Part of it, under a name with a space in it.
    let part = "5 1 0:9 /docker/a /my\\040groups rw - cgroup2 none rw\n";
    let inside = PathBuf::from("/my groups/b");
    assert_eq!(found("/docker/a/b", part), Ok((inside, false, false)));
    for hidden in ["/docker/b", "/docker", "/docker/a (deleted)", "/docker/a/../b"] {
        let unseen = Err(Unused::Unseen { path: hidden.to_owned() });
        assert_eq!(found(hidden, part), unseen, "{hidden}");
    }
    assert_eq!(found("/", "5 1 0:9 / / rw - ext4 none rw\nodd"), Err(Unused::NoHierarchy));
    assert_eq!(found::own("4:memory:/\n", MOUNTS), Err(Unused::NoHierarchy));
}

/// Every combination of facts.
#[test]
fn only_what_is_ours_is_used() {
    let folder = PathBuf::from("/group");
    for number in 0..64_u8 {
        let is = |bit: u8| number & (1 << bit) != 0;
        let controllers = if is(4) { "cpuset cpu io memory pids" } else { "cpuset io" };
        let seen = Seen {
            folder: folder.clone(),
            is_namespace: is(0),
            is_delegated: is(1),
            is_writable: is(2),
            is_first: is(3),
            has_others: is(5),
            controllers: controllers.to_owned(),
        };
        let planned = found::plan(&seen);
        match (is(0) || is(1), is(2), is(4)) {
            (false, _, _) => assert!(matches!(planned, Err(Unused::NotDelegated { .. }))),
            (true, false, _) => assert!(matches!(planned, Err(Unused::ReadOnly { .. }))),
            (true, true, false) => assert!(matches!(planned, Err(Unused::NoControllers { .. }))),
            (true, true, true) if is(5) && !is(3) => {
                assert!(matches!(planned, Err(Unused::Shared { .. })));
            }
            (true, true, true) => {
                let all = Controller::ALL.to_vec();
                let plan = Plan { root: folder.clone(), moves: !is(3), controllers: all };
                assert_eq!(planned, Ok(plan));
            }
        }
    }
    let seen = Seen {
        folder: folder.clone(),
        is_namespace: true,
        is_delegated: false,
        is_writable: true,
        is_first: false,
        has_others: false,
        controllers: "pids memory2\n".to_owned(),
    };
    let plan = found::plan(&seen).expect("one is enough");
    assert_eq!(plan.controllers, [Controller::Pids]);
}

#[test]
fn what_is_written_follows_from_the_limits() {
    let limits = Limits { memory_bytes: 1 << 20, processes: 10, ..Limits::default() };
    let memory = ((1 << 20) + GROUP_MEMORY_BYTES).to_string();
    let all = [
        ("memory.max", memory.clone()),
        ("pids.max", (10 + GROUP_TASKS).to_string()),
        ("cpu.weight", GROUP_CPU_WEIGHT.to_string()),
    ];
    assert_eq!(writes(&limits, Controller::ALL, Network::None), all);
    let carried = u64::try_from(2 * PROXY_CONNECTIONS_MAX + 1).expect("few");
    let pids = ("pids.max", (10 + GROUP_TASKS + carried).to_string());
    assert_eq!(writes(&limits, &[Controller::Pids], Network::Proxy), [pids]);
    assert_eq!(writes(&limits, &[Controller::Memory], Network::Proxy), [("memory.max", memory)]);
    assert!(writes(&limits, &[], Network::Proxy).is_empty());
    let most = Limits { memory_bytes: u64::MAX, processes: u64::MAX, ..Limits::default() };
    let most = writes(&most, Controller::ALL, Network::Proxy);
    assert!(most.iter().take(2).all(|(_, value)| *value == u64::MAX.to_string()), "{most:?}");
    assert_eq!(extras(Controller::ALL), [("memory.swap.max", "0"), ("memory.oom.group", "1")]);
    assert!(extras(&[Controller::Pids, Controller::Cpu]).is_empty());
}

#[test]
fn what_is_not_bounded_is_said() {
    let all = told(&Ok(Controller::ALL.to_vec()));
    assert!(all.ends_with("together") && !all.contains("not for all together"), "{all}");
    let some = told(&Ok(vec![Controller::Pids]));
    assert!(some.starts_with("the number of processes are bounded for all"), "{some}");
    assert!(some.contains("memory and the share of the processor for each of them"), "{some}");
    let none = told(&Err(Unused::NoHierarchy));
    assert!(none.contains("not for all together: this host has no control groups"), "{none}");
}

/// A folder is no group: what is to be written is there to be read.
#[test]
fn an_engine_moves_into_a_leaf_and_removes_what_others_have_left() {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().to_owned();
    let dead = root.join(format!("{GEAR}{}-7", u32::MAX));
    let living = root.join(format!("{GEAR}{}-7", std::process::id()));
    let others = root.join("of-somebody-else");
    for folder in [&dead, &living, &others] {
        fs::create_dir(folder).expect("a folder");
    }
    let plan = || Plan { root: root.clone(), moves: true, controllers: vec![Controller::Cpu] };
    let groups = Arc::new(Groups::by(plan()).expect("nobody objects"));
    assert!(!dead.exists() && living.exists() && others.exists());
    let read = |path: PathBuf| fs::read_to_string(path).expect("it was written");
    assert_eq!(read(root.join("semel-engine/cgroup.procs")), std::process::id().to_string());
    assert_eq!(read(root.join("cgroup.subtree_control")), "+cpu");
    let leaf = groups.leaf(&Limits::default(), Network::None).expect("a leaf");
    assert_eq!(read(leaf.path.join("cpu.weight")), GROUP_CPU_WEIGHT.to_string());
    leaf.put(4_000_000);
    assert_eq!(read(leaf.path.join("cgroup.procs")), "4000000");
    // Names that are taken are passed over.
    groups.next.store(7, Ordering::Relaxed);
    let next = groups.leaf(&Limits::default(), Network::None).expect("a leaf");
    assert!(next.path.ends_with(format!("{GEAR}{}-8", std::process::id())));
    // One that cannot be had loses nobody anything.
    fs::remove_dir_all(&root).expect("removed");
    assert!(groups.leaf(&Limits::default(), Network::None).is_none());
    assert!(groups.has_complained.load(Ordering::Relaxed));
    assert!(matches!(Groups::by(plan()), Err(Unused::Failed { .. })));
}

/// The group of this process, if it may have others below it; bounds or no bounds.
fn real() -> Option<PathBuf> {
    let read = |path: &str| fs::read_to_string(path).expect("the system has it");
    let own = found::own(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo")).ok()?;
    let seen = Seen::at(&own.folder, own.is_namespace);
    (seen.is_writable && (seen.is_namespace || seen.is_delegated)).then_some(own.folder)
}

#[tokio::test]
async fn whoever_is_in_a_group_dies_with_it() {
    let Some(root) = real() else {
        // Then `what_is_not_bounded_is_said` of this host, too.
        assert!(look().is_err());
        return;
    };
    let groups = Arc::new(Groups::at(root, Vec::new()));
    let leaf = groups.leaf(&Limits::default(), Network::None).expect("a leaf");
    let path = leaf.path.clone();
    let mut waits = Command::new("/bin/sh");
    // It starts somebody once it is told to, and so after it was put there.
    waits.args(["-c", "read go; sleep 1000 & echo $!; wait"]);
    let mut child = waits.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
    leaf.put(child.id());
    let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take());
    io::Write::write_all(stdin.as_mut().expect("a pipe"), b"go\n").expect("it listens");
    let mut line = String::new();
    let mut stdout = io::BufReader::new(stdout.expect("a pipe"));
    io::BufRead::read_line(&mut stdout, &mut line).expect("it answers");
    let within = fs::read_to_string(path.join("cgroup.procs")).expect("a group");
    assert!(within.lines().any(|pid| pid == line.trim()), "{line:?} of {within:?}");
    assert!(!is_empty(&path));
    leaf.kill();
    child.wait().expect("it is gone");
    leaf.emptied().await;
    assert!(is_empty(&path));
    drop(leaf);
    assert!(!path.exists(), "it is removed");
}

/// From what an engine has, through the registry, to what the kernel is told. A folder is no group,
/// so what was written stays there to be read.
#[tokio::test]
async fn the_process_of_an_installed_gear_is_put_into_a_leaf() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| {
        let path = place.path().join(name);
        fs::create_dir_all(&path).expect("a folder");
        path
    };
    let (root, home, source) = (folder("group"), folder("home"), folder("source"));
    let manifest = "id = \"small\"\nversion = \"1\"\ncommand = [\"true\"]\n[actions.go]\n\
        [limits]\nmemory_mb = 7\n";
    fs::write(source.join("gear.toml"), manifest).expect("a manifest");
    package::install(&home, &home, &source, &[]).expect("installed");
    let on = State { enabled: true, sha256: String::new(), waived: Vec::new() };
    package::set_state(&home, "shell", &on).expect("kept");
    // It ends when it is told what to do, and so after it was put there.
    let shim = place.path().join("shim");
    fs::write(&shim, "#!/bin/sh\nhead -c 1 >/dev/null\n").expect("a file");
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).expect("a mode");
    let controllers = vec![Controller::Memory, Controller::Pids];
    let plan = Plan { root: root.clone(), moves: false, controllers };
    let groups = Some(Arc::new(Groups::by(plan).expect("nobody objects")));
    let registry = load(&home, shim, Ports { groups, ..Ports::default() }).expect("loaded");
    for (number, (gear, action, params, memory)) in [
        ("small", "go", json!({}), 7 << 20),
        ("shell", "run", json!({"command": "true"}), Limits::default().memory_bytes),
    ]
    .into_iter()
    .enumerate()
    {
        let prepared = registry.find(gear, action).expect("it is enabled");
        let call = Call {
            execution_id: "job:step".to_owned(),
            attempt: 1,
            action: action.to_owned(),
            params,
            workspace: folder("workspace"),
            timeout: std::time::Duration::from_secs(60),
            via: None,
            allowed: Allowed::all(),
        };
        let (_switch, stop) = Stop::channel();
        prepared.gear.run(call, Arc::new(Nobody), stop).await;
        let leaf = root.join(format!("{GEAR}{}-{number}", std::process::id()));
        let written = |file: &str| {
            let text = fs::read_to_string(leaf.join(file));
            text.unwrap_or_else(|error| panic!("{gear}: {file}: {error}"))
        };
        assert_eq!(written("memory.max"), (memory + GROUP_MEMORY_BYTES).to_string(), "{gear}");
        assert!(written("pids.max").parse::<u64>().is_ok());
        let put = written("cgroup.procs").parse::<u32>().expect("a process");
        assert_ne!(put, std::process::id(), "{gear}");
    }
}

struct Nobody;

impl Desk for Nobody {
    fn report(&self, _report: Report) {}

    fn sub_job(&self, _asked: SubJob) -> Later<'_, SubJobEnded> {
        Box::pin(async { SubJobEnded::Completed(Value::Null) })
    }
}

//! What the sandbox keeps a hostile gear from, as seen from inside.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};

use semel_jobs::gear::Ended;
use serde_json::{Value, json};

use crate::warm::runtime;
use crate::world::World;

/// What was tried and what came of it.
fn outcomes(found: &Value) -> BTreeMap<&str, &str> {
    let found = found.as_object().unwrap().iter();
    found.map(|(what, outcome)| (what.as_str(), outcome.as_str().unwrap_or("?"))).collect()
}

fn all_refused(found: &Value, reasons: &[&str]) {
    let outcomes = outcomes(found);
    assert!(!outcomes.is_empty());
    for (what, outcome) in outcomes {
        assert!(reasons.contains(&outcome), "{what}: {outcome}");
    }
}

#[test]
fn files() {
    let world = World::new();
    let mine = world.path().join("private");
    fs::write(&mine, "mine").unwrap();
    world.succeeds(&["secret", "set", "token"], "s3cret");
    let before = fs::metadata(&mine).unwrap();
    let path = |path: &std::path::Path| path.display().to_string();
    let secrets = world.home().join("jobs/secrets.key");
    let read = [
        path(&mine),
        path(&secrets),
        "/etc/passwd".into(),
        "/etc/shadow".into(),
        "/proc/self/environ".into(),
        "/proc/1/environ".into(),
        "/proc/self/mem".into(),
        "/sys/kernel/profiling".into(),
        "/dev/kmsg".into(),
        "/dev/mem".into(),
    ];
    let read: Vec<&String> = read.iter().filter(|path| fs::exists(path).unwrap()).collect();
    let write = [
        path(&mine),
        path(&world.path().join("new")),
        "/tmp/semel-hostile".into(),
        "/dev/shm/semel-hostile".into(),
        path(&world.home().join("jobs/secrets")),
    ];
    let list = [
        path(world.path()),
        path(&world.home()),
        "/".into(),
        "/root".into(),
        "/proc".into(),
        "/etc".into(),
        "/tmp".into(),
    ];
    let found = world.result(
        "files",
        &json!({"read": read, "write": write, "list": list,
        "change": [path(&mine)]}),
    );
    all_refused(&found["read"], &["EACCES", "EPERM"]);
    all_refused(&found["write"], &["EACCES", "EPERM"]);
    all_refused(&found["list"], &["EACCES", "EPERM"]);
    all_refused(&found["change"], &["EACCES", "EPERM", "EXDEV"]);
    let mut package = found["package"].clone();
    assert_eq!(package.as_object_mut().unwrap().remove("read"), Some(json!("done")));
    all_refused(&package, &["EACCES", "EPERM"]);
    assert_eq!(found["workspace"], "done");
    let after = fs::metadata(&mine).unwrap();
    assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
    assert_eq!((before.mode(), before.mtime_nsec()), (after.mode(), after.mtime_nsec()));
    assert!(!world.path().join("new").exists() && !fs::exists("/tmp/semel-hostile").unwrap());
}

#[test]
fn declared_files_and_no_others() {
    let world = World::with(|manifest| manifest);
    let data = world.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::create_dir(world.path().join("database")).unwrap();
    fs::write(data.join("x"), "x").unwrap();
    fs::write(world.path().join("database/x"), "x").unwrap();
    let manifest = fs::read_to_string(world.gear().join("gear.toml")).unwrap();
    let declared = format!("secrets = []\nread = [\"{}/**\"]", data.display());
    fs::write(world.gear().join("gear.toml"), manifest.replace("secrets = []", &declared)).unwrap();
    let allowed = data.join("x").display().to_string();
    let beside = world.path().join("database/x").display().to_string();
    let found = world.result(
        "files",
        &json!({"read": [allowed, beside], "write": [allowed],
        "list": [], "change": []}),
    );
    assert_eq!(found["read"][&allowed], "done");
    assert_eq!(found["read"][&beside], "EACCES");
    assert_eq!(found["write"][&allowed], "EACCES");
}

/// A place that is declared is opened at every start: what a gear, or somebody else, has put there
/// since then is not followed.
#[test]
fn a_declared_place_that_became_a_link_is_not_opened() {
    let data = tempfile::tempdir().unwrap();
    let (folder, other) = (data.path().join("folder"), data.path().join("other"));
    fs::create_dir(&folder).unwrap();
    fs::create_dir(&other).unwrap();
    let declared = format!("secrets = []\nread = [\"{}/**\"]", folder.display());
    let world = World::with(|manifest| manifest.replace("secrets = []", &declared));
    let gear = world.engine(&[]);
    let secret = world.home().join("jobs/secrets.key");
    fs::write(&secret, "of the engine").unwrap();
    let through = folder.join("secrets.key").display().to_string();
    let look = || {
        let params = json!({"read": [through], "write": [], "list": [], "change": []});
        runtime().block_on(world.run(&gear, "files", params))
    };
    assert!(matches!(look(), Ended::Done(_)), "as it was declared");
    for leads_to in [world.home().join("jobs"), other] {
        fs::rename(&folder, data.path().join("old")).unwrap();
        symlink(&leads_to, &folder).unwrap();
        let ended = look();
        let Ended::Failed(failure) = ended else { panic!("{ended:?}") };
        assert_eq!(failure.code, "path_refused", "{failure:?}");
        assert!(failure.message.contains(&*leads_to.display().to_string()), "{failure:?}");
        fs::remove_file(&folder).unwrap();
        fs::rename(data.path().join("old"), &folder).unwrap();
    }
    // Nor is the home itself given to it under the name that was declared.
    fs::remove_dir(&folder).unwrap();
    fs::rename(world.home(), &folder).unwrap();
    symlink(&folder, world.home()).unwrap();
    let ended = look();
    let Ended::Failed(failure) = ended else { panic!("{ended:?}") };
    assert_eq!(failure.code, "path_refused", "{failure:?}");
}

#[test]
fn what_lies_in_a_place_to_write_or_in_the_home_cannot_be_declared() {
    for (declared, named) in [
        ("write = [\"/srv/data/**\"]\nread = [\"/srv/data/cache/**\"]", "/srv/data/cache"),
        ("read = [\"HOME/**\"]", "home"),
        ("write = [\"HOME/jobs/**\"]", "home"),
        ("read = [\"/proc/1/environ\"]", "/proc/1/environ"),
    ] {
        let world = World::new();
        let home = world.home().display().to_string();
        fs::create_dir_all(world.home().join("jobs")).unwrap();
        let manifest = fs::read_to_string(world.gear().join("gear.toml")).unwrap();
        let declared = format!("secrets = []\n{}", declared.replace("HOME", &home));
        let manifest = manifest.replace("secrets = []", &declared);
        fs::write(world.gear().join("gear.toml"), manifest).unwrap();
        for arguments in [&["gear", "install", "hostile"][..], &["gear", "test", "hostile"]] {
            let refused = world.semel(arguments, "");
            let errors = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(1), "{arguments:?}: {errors}");
            assert!(errors.contains(named), "{arguments:?}: {errors}");
        }
        assert!(!world.home().join("jobs/gear/hostile").exists());
    }
}

/// A pair of datagram sockets needs no file to be opened, and could reach the journal of the host.
#[test]
fn no_socket_of_the_host_hears_a_gear() {
    let world = World::new();
    let socket = world.path().join("journal");
    let journal = UnixDatagram::bind(&socket).unwrap();
    journal.set_nonblocking(true).unwrap();
    let found = world.result("pairs", &json!({"socket": socket}));
    assert_eq!(found["a pair of streams"], "done", "programs need those");
    assert_eq!(found["from a pair of datagrams"], "EPERM", "{found}");
    assert_ne!(found["from a pair of streams"], "done", "{found}");
    assert!(journal.recv(&mut [0; 16]).is_err(), "it was heard");
}

#[test]
fn memory_that_no_limit_counts() {
    let found = World::new().result("hidden_memory", &json!({}));
    all_refused(&found, &["EPERM", "ENOSYS"]);
}

/// The numbers of the calls are those of this kind of machine.
#[cfg(target_arch = "x86_64")]
#[test]
fn nobody_is_told_of_files_that_he_may_not_open() {
    let world = World::new();
    let found = world.result("watch", &json!({"path": world.home()}));
    all_refused(&found, &["EPERM"]);
}

/// What every gear may read holds no home, and nothing is written there to find that out.
#[test]
fn a_home_among_the_programs_of_the_system() {
    let world = World::new();
    let home = "/usr/lib/semel-home-of-a-test";
    for arguments in [&["gear", "install", "hostile"][..], &["job", "serve"]] {
        let mut command = world.command(arguments);
        let output = command.env("SEMEL_HOME", home).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(errors.contains("which every gear may read"), "{arguments:?}: {errors}");
        assert!(!fs::exists(home).unwrap(), "{arguments:?}");
    }
}

/// The keys of this host are beside the certificates that every program needs.
#[test]
fn certificates_without_their_keys() {
    let world = World::new();
    let params = json!({"read": [], "write": [], "list": ["/etc/ssl", "/etc/ssl/private"],
        "change": []});
    let found = world.result("files", &params);
    all_refused(&found["list"], &["EACCES", "ENOENT"]);
}

#[test]
fn network() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let socket = world.path().join("socket");
    let _unix = UnixListener::bind(&socket).unwrap();
    let port = listener.local_addr().unwrap().port();
    let found = world.result("network", &json!({"port": port, "socket": socket}));
    all_refused(&found, &["EPERM", "EACCES"]);
    assert!(listener.accept().is_err(), "somebody got through");
}

#[test]
fn declared_hosts_through_the_proxy_and_no_others() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let other_port = other.local_addr().unwrap().port();
    let world = World::with(|manifest| {
        let declared = format!(
            "secrets = []\nprivate_network = [\"127.0.0.1:{port}\"]\nnetwork = [\"localhost\"]"
        );
        manifest.replace("secrets = []", &declared)
    });
    let serving = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 4096];
        let read = stream.read(&mut asked).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine").unwrap();
        String::from_utf8_lossy(&asked[..read]).into_owned()
    });
    let fetched = |url: String| world.result("fetch", &json!({"url": url}));
    let fine = fetched(format!("http://127.0.0.1:{port}/a"));
    assert_eq!(fine, json!({"status": 200, "text": "fine"}));
    assert!(serving.join().unwrap().starts_with("GET /a HTTP/1.1"));
    for refused in [
        // Not declared; declared, but its address is not public; and two that hide it.
        format!("http://127.0.0.1:{other_port}/"),
        format!("http://localhost:{other_port}/"),
        format!("http://[::ffff:127.0.0.1]:{other_port}/"),
        format!("http://127.1:{other_port}/"),
    ] {
        assert_eq!(fetched(refused.clone())["status"], 403, "{refused}");
    }
    // Around the proxy there is no way either.
    let socket = world.path().join("socket");
    let _unix = UnixListener::bind(&socket).unwrap();
    let mut found = world.result("network", &json!({"port": other_port, "socket": socket}));
    assert_eq!(found["tcp"], "ECONNREFUSED");
    let rest = found.as_object_mut().unwrap();
    rest.remove("tcp");
    rest.remove("tcp6");
    all_refused(&found, &["EPERM", "EACCES"]);
    assert!(other.accept().is_err(), "somebody got through");
}

#[test]
fn environment_and_descriptors() {
    let world = World::with(|manifest| manifest.replace("secrets = []", "secrets = [\"token\"]"));
    world.succeeds(&["secret", "set", "token"], "s3cret-value\n");
    let found = world.result("environment", &json!({}));
    assert_eq!(found["secret"], "[secret]", "it has it, and cannot hand it on");
    let mut names: Vec<&String> = found["variables"].as_object().unwrap().keys().collect();
    // Python's own; it sets this when the locale is plain.
    names.retain(|name| *name != "LC_CTYPE");
    assert_eq!(names, ["HOME", "LANG", "PATH", "TMPDIR"]);
    // Nor is it hidden there.
    for shown in [&found["variables"], &found["arguments"]] {
        let shown = shown.to_string();
        assert!(!shown.contains("s3cret") && !shown.contains("[secret]"), "{shown}");
    }
    // And the two pipes to the host, out of the way of what the action does with its own.
    assert_eq!(found["descriptors"].as_array().unwrap().len(), 5, "{found}");
    assert_eq!(found["handed over again"], "EBADF");
}

#[test]
fn declared_variables_and_no_others() {
    let world = World::with(|manifest| {
        manifest.replace("secrets = []", "environment = [\"ENGINE_SECRET\", \"NOT_SET\"]")
    });
    let found = world.result("environment", &json!({}));
    assert_eq!(found["variables"]["ENGINE_SECRET"], "of-the-engine");
    assert!(found["variables"].get("NOT_SET").is_none());
}

#[test]
fn a_secret_is_not_in_what_is_shown() {
    let world = World::with(|manifest| manifest.replace("secrets = []", "secrets = [\"token\"]"));
    let params = "{}";
    let arguments = ["gear", "test", "hostile", "--json", "--action", "leak", "--params", params];
    let handed = [&arguments[..], &["--with-secrets", "token"]].concat();
    let missing = |arguments: &[&str]| {
        let output = world.semel(arguments, "");
        let missing: Value = serde_json::from_slice(&output.stdout).unwrap();
        let code = (&missing["ended"], &missing["code"]);
        assert_eq!(code, (&json!("failed"), &json!("secret_missing")));
        String::from_utf8(output.stderr).unwrap()
    };
    missing(&handed);
    world.succeeds(&["secret", "set", "token"], "s3cret-value");
    // What is not installed gets none that the operator does not name.
    assert!(missing(&arguments).contains("--with-secrets token"));
    let output = world.semel(&handed, "");
    let shown = format!("{output:?}");
    assert!(shown.contains("it is [secret]") && shown.contains("stderr: [secret]"), "{shown}");
    assert!(!shown.contains("s3cret"), "{shown}");
}

/// The numbers of the calls are those of this kind of machine.
#[cfg(target_arch = "x86_64")]
#[test]
fn other_processes_and_the_kernel() {
    let world = World::new();
    let engine = std::process::id();
    let mut found = world.result("processes", &json!({"engine": engine}));
    let rest = found.as_object_mut().unwrap();
    // The first process of a namespace does not hear those inside; newer kernels say so.
    let first = rest.remove("kill the first");
    assert!([Some(json!("EPERM")), Some(json!("done"))].contains(&first), "{first:?}");
    assert_eq!(rest.remove("clone3"), Some(json!("ENOSYS")));
    for unseen in ["see the engine", "kill the engine"] {
        assert_eq!(rest.remove(unseen), Some(json!("ESRCH")));
    }
    let x32 = rest.remove("as x32");
    assert!([Some(json!("EPERM")), Some(json!("ENOSYS"))].contains(&x32), "{x32:?}");
    all_refused(&found, &["EPERM", "EACCES"]);
}

#[test]
fn a_fork_bomb() {
    let world = World::new();
    let found = world.result("fork_bomb", &json!({}));
    assert_eq!(found["why"], "EAGAIN");
    assert!(found["children"].as_u64().unwrap() < 320, "{found}");
}

#[test]
fn memory() {
    let world = World::new();
    let found = world.result("memory", &json!({}));
    assert_eq!(found["outcome"], "MemoryError");
    assert!(found["mb"].as_u64().unwrap() <= 512, "{found}");
}

#[test]
fn a_big_file() {
    let world = World::new();
    assert_eq!(world.result("big_file", &json!({})), json!({"outcome": "EFBIG", "mb": 8}));
}

#[test]
fn the_processor() {
    let world = World::new();
    let ended = world.ended("spin", &json!({}), "60s");
    assert_eq!((&ended["ended"], &ended["code"]), (&json!("uncertain"), &json!("cpu_limit")));
    assert_eq!(ended["class"], "resource_limit");
}

#[test]
fn a_flood_on_stderr() {
    let world = World::new();
    assert_eq!(world.result("flood_stderr", &json!({})), "still here");
}

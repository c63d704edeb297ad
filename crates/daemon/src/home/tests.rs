//! The folder with real files: modes, the lock, and what a killed daemon leaves.

use std::collections::BTreeSet;
use std::env;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};

use super::*;

fn home(root: &Path) -> Home {
    Home::at(root, &MeshSlug::parse("local").unwrap())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn folders_are_for_their_owner_only() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().join("deep/home");
    let locked = home(&root).lock().unwrap();
    // Those above it that were made for it, too.
    let above = root.parent().unwrap();
    for folder in [above, &root, &root.join("daemon"), locked.home().folder()] {
        assert_eq!(mode(folder), 0o700, "{}", folder.display());
    }
    drop(locked);
    chmod(&root.join("daemon"), 0o755);
    chmod(&root.join("daemon/local"), 0o755);
    chmod(&root, 0o755);
    let locked = home(&root).lock().unwrap();
    assert_eq!((mode(locked.home().folder()), mode(&root.join("daemon"))), (0o700, 0o700));
    // The home itself may be a folder that the user has for other things too.
    assert_eq!(mode(&root), 0o755);
}

#[test]
fn a_folder_that_others_can_write_to_or_have_linked_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().join("home");
    drop(home(&root).lock().unwrap());
    let folders = [root.clone(), root.join("daemon"), root.join("daemon/local")];
    for folder in &folders {
        for bits in [0o770, 0o707, 0o777] {
            chmod(folder, bits);
            let refused = home(&root).lock().unwrap_err();
            let HomeError::Open { path, mode } = &refused else { panic!("{refused}") };
            assert_eq!((path, *mode), (folder, bits));
            assert!(refused.to_string().contains("chmod go-w"), "{refused}");
        }
        chmod(folder, 0o700);
    }
    for folder in &folders[1..] {
        let aside = root.join("aside");
        fs::rename(folder, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, folder).unwrap();
        let refused = home(&root).lock().unwrap_err();
        assert!(matches!(&refused, HomeError::Linked { path } if path == folder), "{refused}");
        fs::remove_file(folder).unwrap();
        fs::write(folder, b"").unwrap();
        let refused = home(&root).lock().unwrap_err();
        assert!(matches!(&refused, HomeError::WrongKind { path, .. } if path == folder));
        fs::remove_file(folder).unwrap();
        fs::rename(&aside, folder).unwrap();
    }
    drop(home(&root).lock().unwrap());
    // The home itself may be on another disk.
    let linked = root.with_extension("link");
    std::os::unix::fs::symlink(&root, &linked).unwrap();
    drop(home(&linked).lock().unwrap());
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let root = tempfile::tempdir().unwrap();
    drop(home(root.path()).lock().unwrap());
    if !rustix::process::geteuid().is_root() {
        // Nobody can give anything away: what is root's is not ours.
        let refused = check_own(Path::new("/"), &[]).unwrap_err();
        assert!(matches!(refused, HomeError::Foreign { owner: 0, .. }), "{refused}");
        return;
    }
    for folder in
        [root.path().to_owned(), root.path().join("daemon"), root.path().join("daemon/local")]
    {
        std::os::unix::fs::chown(&folder, Some(12_345), None).unwrap();
        let refused = home(root.path()).lock().unwrap_err();
        assert!(
            matches!(&refused, HomeError::Foreign { path, owner: 12_345, .. } if *path == folder)
        );
        std::os::unix::fs::chown(&folder, Some(0), None).unwrap();
    }
    drop(home(root.path()).lock().unwrap());
}

#[test]
fn a_private_file_is_not_read_or_made_through_a_link() {
    let root = tempfile::tempdir().unwrap();
    let locked = home(root.path()).lock().unwrap();
    let elsewhere = root.path().join("elsewhere");
    fs::write(&elsewhere, b"of somebody else").unwrap();
    let link = |file| {
        let path = locked.home().path(file);
        // Some are there.
        let _ = fs::remove_file(&path);
        std::os::unix::fs::symlink(&elsewhere, path).unwrap();
    };
    for file in [HomeFile::Keypair, HomeFile::LocalToken, HomeFile::Mesh] {
        link(file);
        let refused = locked.home().read(file).unwrap_err();
        assert!(matches!(refused, HomeError::Linked { .. }), "{file}: {refused}");
    }
    link(HomeFile::OutboxDb);
    assert!(locked.prepare(HomeFile::OutboxDb).is_err());
    // A configuration may be kept elsewhere.
    link(HomeFile::Config);
    assert!(locked.home().read(HomeFile::Config).unwrap().is_some());
    link(HomeFile::Lock);
    drop(locked);
    let refused = home(root.path()).lock().unwrap_err();
    assert!(matches!(refused, HomeError::Linked { .. }), "{refused}");
    assert_eq!(fs::read(&elsewhere).unwrap(), b"of somebody else");
}

#[test]
fn every_file_has_its_mode() {
    let root = tempfile::tempdir().unwrap();
    let locked = home(root.path()).lock().unwrap();
    assert_eq!(mode(&locked.home().path(HomeFile::Lock)), 0o600);
    let is_folder = |file| file == HomeFile::Ephemeral;
    for file in HomeFile::ALL.iter().copied().filter(|file| !is_folder(*file)) {
        locked.write(file, b"x").unwrap();
        let expected = match file.as_str() {
            "http.port" | "config.toml" | "daemon.log" => 0o644,
            _ => 0o600,
        };
        assert_eq!(mode(&locked.home().path(file)), expected, "{file}");
    }
    assert!(names(locked.home().folder()).iter().all(|name| HomeFile::parse(name).is_some()));
}

#[test]
fn the_databases_of_an_ephemeral_member_end_with_it() {
    let root = tempfile::tempdir().unwrap();
    let locked = home(root.path()).lock().unwrap();
    locked.write(HomeFile::OutboxDb, b"of another member").unwrap();
    let folder = locked.prepare_ephemeral().unwrap();
    assert_eq!(mode(&folder), HomeFile::Ephemeral.mode());
    assert_eq!((mode(&folder.join("outbox.db")), mode(&folder.join("inbox.db"))), (0o600, 0o600));
    // It is killed: the next one finds nothing of it.
    fs::write(folder.join("outbox.db"), b"x").unwrap();
    fs::write(folder.join("outbox.db-wal"), b"x").unwrap();
    drop(locked);
    let locked = home(root.path()).lock().unwrap();
    let folder = locked.prepare_ephemeral().unwrap();
    assert!(names(&folder).iter().eq(["inbox.db", "outbox.db"]));
    assert_eq!(fs::read(folder.join("outbox.db")).unwrap(), b"");
    let other = locked.home().path(HomeFile::OutboxDb);
    locked.stop().unwrap();
    assert!(!folder.exists());
    assert_eq!(fs::read(other).unwrap(), b"of another member");
}

#[test]
fn a_secret_that_others_could_read_is_tightened() {
    let root = tempfile::tempdir().unwrap();
    let locked = home(root.path()).lock().unwrap();
    let home = locked.home();
    for (file, was, becomes) in [
        (HomeFile::Keypair, 0o644, 0o600),
        (HomeFile::Keypair, 0o440, 0o400),
        (HomeFile::Keypair, 0o400, 0o400),
        (HomeFile::Config, 0o664, 0o664),
    ] {
        locked.write(file, b"x").unwrap();
        chmod(&home.path(file), was);
        assert_eq!(home.read(file).unwrap().unwrap().as_slice(), b"x");
        assert_eq!(mode(&home.path(file)), becomes, "{file} {was:o}");
    }
    let database = locked.prepare(HomeFile::OutboxDb).unwrap();
    assert_eq!(mode(&database), 0o600);
    fs::write(&database, "rows").unwrap();
    chmod(&database, 0o644);
    locked.prepare(HomeFile::OutboxDb).unwrap();
    assert_eq!((mode(&database), fs::read_to_string(&database).unwrap()), (0o600, "rows".into()));
}

#[test]
fn what_is_no_small_file_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let locked = home(root.path()).lock().unwrap();
    let home = locked.home();
    assert!(home.read(HomeFile::Keypair).unwrap().is_none());
    let limit = usize::try_from(SMALL_FILE_BYTES_MAX).unwrap();
    locked.write(HomeFile::Keypair, &vec![b'x'; limit]).unwrap();
    assert_eq!(home.read(HomeFile::Keypair).unwrap().unwrap().len(), limit);
    locked.write(HomeFile::Keypair, &vec![b'x'; limit + 1]).unwrap();
    let said = home.read(HomeFile::Keypair).expect_err("too large").to_string();
    assert!(said.contains("keypair.json has more than 262144 bytes"), "{said}");
    fs::create_dir(home.path(HomeFile::Mesh)).unwrap();
    assert!(matches!(home.read(HomeFile::Mesh), Err(HomeError::WrongKind { .. })));
    // Nobody ever writes into this pipe, and nobody waits for it.
    let (pipe, kind) = (home.path(HomeFile::LocalToken), rustix::fs::FileType::Fifo);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert!(matches!(home.read(HomeFile::LocalToken), Err(HomeError::WrongKind { .. })));
}

#[test]
fn a_second_daemon_is_told_which_folder_is_in_use() {
    let root = tempfile::tempdir().unwrap();
    let first = home(root.path()).lock().unwrap();
    let said = home(root.path()).lock().expect_err("in use").to_string();
    let folder = root.path().join("daemon/local");
    assert_eq!(said, format!("{} is in use: a daemon runs there already", folder.display()));
    let other = Home::at(root.path(), &MeshSlug::parse("other").unwrap());
    other.lock().expect("another mesh is another folder");
    drop(first);
    home(root.path()).lock().expect("the lock was given back");
}

/// A child between fork and exec holds such a copy.
#[test]
fn a_copy_of_the_open_file_does_not_keep_the_lock() {
    let root = tempfile::tempdir().unwrap();
    let locked = home(root.path()).lock().unwrap();
    let _copy = locked._lock.0.try_clone().unwrap();
    assert!(matches!(home(root.path()).lock(), Err(HomeError::Busy { .. })));
    drop(locked);
    home(root.path()).lock().expect("the lock was given back");
}

#[test]
fn a_lock_on_a_file_without_its_name_does_not_count() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("lock");
    let opened = File::create(&path).unwrap();
    assert!(is_still(&opened, &path).unwrap());
    fs::remove_file(&path).unwrap();
    assert!(!is_still(&opened, &path).unwrap());
    let _second = File::create(&path).unwrap();
    assert!(!is_still(&opened, &path).unwrap());
}

const CHILD_HOME: &str = "SEMEL_TEST_LOCKED_HOME";
const CHILD_TEST: &str = "home::tests::the_lock_ends_with_its_process";

/// In the child: a daemon that holds its folder until it is killed.
fn hold_for_ever(root: &Path) {
    let locked = home(root).lock().expect("nobody else has it");
    let _listener = UnixListener::bind(locked.home().socket_path().unwrap()).unwrap();
    locked.announce(std::process::id(), Some(7118)).unwrap();
    println!("\nlocked");
    let _ = io::stdin().read_line(&mut String::new());
}

fn child(root: &Path) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args([CHILD_TEST, "--exact", "--nocapture"])
        .env(CHILD_HOME, root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "locked"), "the child has the lock");
    child
}

#[test]
fn the_lock_ends_with_its_process() {
    if let Some(root) = env::var_os(CHILD_HOME) {
        return hold_for_ever(Path::new(&root));
    }
    let root = tempfile::tempdir().unwrap();
    let mut child = child(root.path());
    assert!(matches!(home(root.path()).lock(), Err(HomeError::Busy { .. })));
    child.kill().unwrap();
    child.wait().unwrap();
    let locked = home(root.path()).lock().expect("free at once, without any time-out");
    let expected = ["http.port", "lock", "pid", "sock"].map(str::to_owned);
    assert_eq!(names(locked.home().folder()), BTreeSet::from(expected));
    locked.remove_leftovers().unwrap();
    assert_eq!(names(locked.home().folder()), BTreeSet::from(["lock".to_owned()]));
    UnixListener::bind(locked.home().socket_path().unwrap()).expect("the name is free");
}

#[test]
fn a_clean_stop_takes_back_what_was_announced() {
    let root = tempfile::tempdir().unwrap();
    let locked = home(root.path()).lock().unwrap();
    locked.announce(42, Some(7118)).unwrap();
    let path = |file| home(root.path()).path(file);
    assert_eq!(fs::read_to_string(path(HomeFile::Pid)).unwrap(), "42\n");
    assert_eq!(fs::read_to_string(path(HomeFile::HttpPort)).unwrap(), "7118\n");
    locked.stop().unwrap();
    assert_eq!(names(home(root.path()).folder()), BTreeSet::from(["lock".to_owned()]));
    let locked = home(root.path()).lock().unwrap();
    locked.announce(42, None).unwrap();
    assert!(!path(HomeFile::HttpPort).exists());
    // Whatever it is, it is no daemon's socket.
    fs::write(path(HomeFile::Socket), "precious").unwrap();
    assert!(matches!(locked.remove_leftovers(), Err(HomeError::WrongKind { .. })));
    assert!(path(HomeFile::Socket).exists());
}

#[test]
fn a_socket_has_a_path_that_the_system_can_hold() {
    let root = tempfile::tempdir().unwrap();
    let fits = SOCKET_PATH_BYTES_MAX - "/daemon/local/sock".len();
    let deep = |length: usize| {
        let more = length - root.path().as_os_str().len() - 1;
        root.path().join("x".repeat(more))
    };
    let locked = home(&deep(fits)).lock().unwrap();
    UnixListener::bind(locked.home().socket_path().unwrap()).expect("the system agrees");
    let said = home(&deep(fits + 1)).socket_path().expect_err("too long").to_string();
    assert!(said.contains("choose a shorter home"), "{said}");
}

#[test]
fn meshes_are_listed_by_name() {
    let root = tempfile::tempdir().unwrap();
    let listed = || {
        let (homes, complete) = Home::list(root.path()).unwrap();
        assert_eq!(complete, Complete::Yes);
        homes.iter().map(|home| home.mesh().to_string()).collect::<Vec<_>>()
    };
    assert!(listed().is_empty());
    for slug in ["b", "a", "c"] {
        Home::at(root.path(), &MeshSlug::parse(slug).unwrap()).lock().unwrap();
    }
    fs::create_dir(root.path().join("daemon/.hidden")).unwrap();
    fs::write(root.path().join("daemon/file"), "").unwrap();
    assert_eq!(listed(), ["a", "b", "c"]);
    for number in 0..MESHES_LISTED_MAX {
        fs::create_dir(root.path().join(format!("daemon/m{number}"))).unwrap();
    }
    let (homes, complete) = Home::list(root.path()).unwrap();
    assert_eq!((homes.len(), complete), (MESHES_LISTED_MAX, Complete::No));
}

/// A disk with a crash point before and after each step.
#[derive(Debug)]
pub(super) struct Crashing;

fn between_points<T>(step: impl FnOnce() -> T) -> T {
    semel_testkit::crash::point();
    let done = step();
    semel_testkit::crash::point();
    done
}

impl Disk for Crashing {
    fn create(&self, path: &Path, mode: u32) -> io::Result<File> {
        between_points(|| MachineDisk.create(path, mode))
    }

    fn write(&self, file: &File, path: &Path, bytes: &[u8]) -> io::Result<()> {
        between_points(|| MachineDisk.write(file, path, bytes))
    }

    fn sync(&self, file: &File, path: &Path) -> io::Result<()> {
        between_points(|| MachineDisk.sync(file, path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        between_points(|| MachineDisk.rename(from, to))
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        between_points(|| MachineDisk.sync_folder(folder))
    }
}

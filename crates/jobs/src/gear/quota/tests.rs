//! What is on disk is seen, whatever is done to hide it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};

use semel_core::clock::{Clock, SystemClock};

use super::*;

fn within(found: &Found) -> (usize, bool) {
    let Found::Within { files, complete, .. } = found else { panic!("{found:?}") };
    (*files, *complete)
}

#[test]
fn what_a_folder_has_in_it() {
    let place = tempfile::tempdir().expect("a folder");
    let (folder, outside) = (place.path().join("folder"), place.path().join("outside"));
    fs::create_dir_all(folder.join("a/b")).expect("folders");
    fs::write(&outside, vec![1; 8 << 20]).expect("a file");
    symlink(&outside, folder.join("link")).expect("a link");
    symlink(&folder, folder.join("a/round")).expect("a link");
    fs::write(folder.join("a/b/file"), vec![1; 2 << 20]).expect("a file");
    let look = |bytes_max| look(&folder, bytes_max).expect("a look");
    assert_eq!(within(&look(4 << 20)), (5, true));
    assert_eq!(look(1 << 20), Found::Over("its files have more than 1 MB".to_owned()));
    // A file without content that is long on paper takes nothing.
    let long = fs::File::create(folder.join("long")).expect("a file");
    long.set_len(1 << 40).expect("a length");
    assert_eq!(within(&look(4 << 20)), (6, true));
    // Folders that are farther up than what stays open are found again for what is beside.
    let mut deep = folder.clone();
    for _ in 0..3 * LOOK_FOLDERS_OPEN {
        deep.push("d");
        fs::create_dir_all(deep.join("beside/file")).expect("folders");
    }
    let files = 6 + 3 * 3 * LOOK_FOLDERS_OPEN;
    assert_eq!(within(&look(8 << 20)), (files, true));
    for _ in 0..WORKSPACE_DEPTH_MAX + 1 {
        deep.push("d");
        fs::create_dir(&deep).expect("a folder");
    }
    let Found::Over(over) = look(8 << 20) else { panic!("it is too deep") };
    assert!(over.contains("nested more than"), "{over}");
}

#[test]
fn a_look_holds_few_descriptors() {
    let place = tempfile::tempdir().expect("a folder");
    let mut deep = place.path().to_owned();
    for _ in 0..100 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).expect("folders");
    let mut look = Look {
        levels: Vec::new(),
        bytes: 0,
        bytes_max: u64::MAX,
        files: 0,
        names: 0,
        complete: true,
    };
    let top = beneath::folder(place.path()).expect("a folder");
    assert_eq!(look.enter(CString::default(), top).expect("a look"), None);
    while let Some(name) = look.levels.last_mut().and_then(|level| level.left.pop()) {
        let folder = look.open(&name).expect("a look").expect("it is there");
        assert_eq!(look.enter(name, folder).expect("a look"), None);
        let open = look.levels.iter().filter(|level| level.open.is_some()).count();
        assert!(open <= LOOK_FOLDERS_OPEN, "{open} folders are open");
    }
    assert_eq!(look.levels.len(), 101);
}

/// What cannot be looked at is not within its bounds.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_counted_is_too_much() {
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("file");
    fs::write(&file, "no folder").expect("a file");
    let watch = Watch::over(Place { folder: file, bytes_max: 1 << 30, process: None });
    let failure = watch.until_over().await;
    assert_eq!(failure.code, "disk_limit", "{failure:?}");
    assert!(watch.is_over());
}

#[test]
fn files_without_a_name_are_counted_once() {
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("file");
    fs::write(&file, vec![1; 4 << 20]).expect("a file");
    let opened = fs::File::options().append(true).open(&file).expect("a file");
    let device = opened.metadata().expect("it is there").dev();
    fs::remove_file(&file).expect("it is there");
    // Both the shell and the program that it starts have it.
    let mut child = Command::new("/bin/sh")
        .args(["-c", "cat; true"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(opened)
        .spawn()
        .expect("a program");
    let held = || unnamed::bytes(std::process::id(), device).expect("a look");
    // Until it has been started, and somebody looks again.
    while held() == 0 {
        std::thread::yield_now();
    }
    let bytes = held();
    assert!((4 << 20..5 << 20).contains(&bytes), "{bytes}");
    drop(child.stdin.take());
    child.wait().expect("it ends");
}

#[test]
fn the_files_of_a_job_are_counted_together() {
    let place = tempfile::tempdir().expect("a folder");
    let workspace = place.path().join("job");
    let room = || room_of_job(&workspace, 8 << 20).expect("a look");
    assert_eq!(room(), 8 << 20, "it has none yet");
    for folder in [&workspace, &kept_beside(&workspace)] {
        fs::create_dir_all(folder).expect("a folder");
        fs::write(folder.join("file"), vec![1; 3 << 20]).expect("a file");
    }
    assert!(kept_beside(&workspace).ends_with("artifacts/job"));
    assert!((1 << 20..=2 << 20).contains(&room()), "{}", room());
    fs::write(workspace.join("more"), vec![1; 3 << 20]).expect("a file");
    assert_eq!(room(), 0);
}

/// A folder that its maker alone may not look into hides what is in it from an engine that is not
/// root.
#[test]
fn a_folder_that_is_closed_to_us_is_no_hiding_place() {
    use rustix::thread::CapabilitySet;
    let place = tempfile::tempdir().expect("a folder");
    let closed = place.path().join("closed");
    fs::create_dir(&closed).expect("a folder");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o300)).expect("a mode");
    let folder = place.path().to_owned();
    // As somebody without root's rights: these are this thread's own.
    let looked = std::thread::spawn(move || {
        let mut own = rustix::thread::capabilities(None).expect("capabilities");
        own.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
        rustix::thread::set_capabilities(None, own).expect("fewer of them");
        look(&folder, 1 << 30)
    });
    let refused = looked.join().expect("no panic").expect_err("it cannot be counted");
    assert!(refused.to_string().contains("a folder in it cannot be read"), "{refused}");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("a mode");
}

#[test]
fn a_file_that_the_job_has_no_room_for_is_told_from_one_that_is_too_large() {
    let large = || io::Error::from(io::ErrorKind::FileTooLarge);
    assert!(is_of_job(&told(large(), 1)));
    assert!(!is_of_job(&told(large(), ARTIFACT_BYTES_MAX)));
    let full = io::Error::from(Errno::DQUOT);
    assert!(!is_of_job(&told(full, 1)), "the system says so");
}

/// Without namespaces a process that has lost its parent is left to the first stage, beside the
/// second one.
#[test]
fn what_orphans_hold_open_is_counted() {
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("file");
    fs::write(&file, vec![1; 4 << 20]).expect("a file");
    let opened = fs::File::options().append(true).open(&file).expect("a file");
    let device = opened.metadata().expect("it is there").dev();
    fs::remove_file(&file).expect("it is there");
    let waiting = |stderr: Stdio| {
        let mut cat = Command::new("/bin/cat");
        cat.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(stderr).spawn().expect("a program")
    };
    let mut stage = waiting(Stdio::null());
    // Younger by more than the clock's grain.
    let born = |id: u32| unnamed::born(Path::new(&format!("/proc/{id}"))).expect("it lives").1;
    let mut orphan = waiting(opened.try_clone().expect("a descriptor").into());
    while born(orphan.id()) == born(stage.id()) {
        drop(orphan.stdin.take());
        orphan.wait().expect("it ends");
        orphan = waiting(opened.try_clone().expect("a descriptor").into());
    }
    drop(opened);
    let held = || unnamed::bytes(std::process::id(), device).expect("a look");
    // Until somebody looks again.
    let patience = SystemClock::new();
    while !(4 << 20..5 << 20).contains(&held()) {
        assert!(patience.monotonic().as_secs() < 30, "{} bytes", held());
        std::thread::yield_now();
    }
    drop(orphan.stdin.take());
    orphan.wait().expect("it ends");
    drop(stage.stdin.take());
    stage.wait().expect("it ends");
}

/// Nobody else of its process has what a thread with descriptors of its own opens.
#[test]
fn what_one_thread_alone_holds_open_is_counted() {
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("file");
    let device = fs::metadata(place.path()).expect("it is there").dev();
    let (tell, told) = std::sync::mpsc::channel();
    let (end, until_end) = std::sync::mpsc::channel::<()>();
    let alone = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES).expect("descriptors of its own");
        fs::write(&file, vec![1; 4 << 20]).expect("a file");
        let opened = fs::File::open(&file).expect("a file");
        fs::remove_file(&file).expect("it is there");
        tell.send(()).expect("somebody waits");
        let _ = until_end.recv();
        drop(opened);
    });
    told.recv().expect("it is open");
    let own = Path::new("/proc").join(std::process::id().to_string());
    let bytes = unnamed::of(&own, device, &mut Default::default()).expect("a look");
    assert!((4 << 20..5 << 20).contains(&bytes), "{bytes}");
    drop(end);
    alone.join().expect("no panic");
}

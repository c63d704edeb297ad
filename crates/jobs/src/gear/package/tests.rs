//! What is installed is what runs.

use std::os::unix::fs::symlink;

use super::*;

const MANIFEST: &str = "id = \"small\"\nversion = \"1\"\ncommand = [\"{package}/run\"]\n\
    [actions.go]\n";

fn source() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join(FILE), MANIFEST).expect("a manifest");
    fs::create_dir(folder.path().join("lib")).expect("a folder");
    fs::write(folder.path().join("lib/part"), "part").expect("a file");
    fs::write(folder.path().join("run"), "#!/bin/sh\n").expect("a file");
    let runs = Permissions::from_mode(0o755);
    fs::set_permissions(folder.path().join("run"), runs).expect("a mode");
    folder
}

#[test]
fn an_installed_package_is_copied_as_it_was() {
    let (home, source) = (tempfile::tempdir().expect("a folder"), source());
    let (document, state) =
        install(home.path(), home.path(), source.path(), &[]).expect("installed");
    assert_eq!(document.manifest.id, "small");
    assert_eq!(installed(home.path()).expect("a list"), ["small"]);
    check(home.path(), "small").expect("it is what was installed");
    let to = home.path().join("copy");
    assert_eq!(private_copy(home.path(), "small", &to).expect("a copy"), state);
    assert_eq!(fs::read(to.join("lib/part")).expect("a file"), b"part");
    let mode =
        |path: &str| fs::metadata(to.join(path)).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode("run"), mode("lib/part"), mode("lib")), (0o500, 0o400, 0o500));
    remove(&to);
    assert!(!to.exists());
    // Installing again replaces it, and leaves nothing behind.
    fs::write(source.path().join("lib/part"), "other").expect("a file");
    let (_, newer) = install(home.path(), home.path(), source.path(), &[]).expect("installed");
    assert_ne!(newer.sha256, state.sha256);
    assert_eq!(fs::read_dir(folder(home.path())).expect("a folder").count(), 1);
}

#[test]
fn every_change_after_the_installation_is_noticed() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 5] = [
        ("content", |package| fs::write(package.join("lib/part"), "tarp").expect("changed")),
        ("addition", |package| fs::write(package.join("lib/new"), "").expect("added")),
        ("removal", |package| fs::remove_file(package.join("lib/part")).expect("removed")),
        ("renaming", |package| {
            fs::rename(package.join("lib/part"), package.join("lib/trap")).expect("renamed");
        }),
        ("mode", |package| {
            let mode = Permissions::from_mode(0o600);
            fs::set_permissions(package.join("run"), mode).expect("changed");
        }),
    ];
    for (what, change) in changes {
        let (home, source) = (tempfile::tempdir().expect("a folder"), source());
        install(home.path(), home.path(), source.path(), &[]).expect("installed");
        let package = folder(home.path()).join("small/package");
        for path in [package.join("lib"), package.clone(), package.join("lib/part")] {
            fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("opened");
        }
        change(&package);
        let copied = private_copy(home.path(), "small", &home.path().join("copy"));
        assert!(matches!(copied, Err(PackageError::Changed { .. })), "{what}: {copied:?}");
        let checked = check(home.path(), "small");
        assert!(matches!(checked, Err(PackageError::Changed { .. })), "{what}: {checked:?}");
    }
}

#[test]
fn links_and_too_much_are_no_package() {
    let (home, source) = (tempfile::tempdir().expect("a folder"), source());
    symlink("/etc/passwd", source.path().join("lib/link")).expect("a link");
    let refused = install(home.path(), home.path(), source.path(), &[]);
    assert!(matches!(refused, Err(PackageError::Unfit { .. })), "{refused:?}");
    fs::remove_file(source.path().join("lib/link")).expect("gone");
    let mut deep = source.path().to_owned();
    for _ in 0..=PACKAGE_DEPTH_MAX {
        deep.push("x");
        fs::create_dir(&deep).expect("a folder");
    }
    assert!(install(home.path(), home.path(), source.path(), &[]).is_err());
    assert_eq!(fs::read_dir(folder(home.path())).expect("a folder").count(), 0);
}

#[test]
fn a_package_whose_program_is_not_there_is_not_installed() {
    let (home, source) = (tempfile::tempdir().expect("a folder"), source());
    let refused = |command: &str| {
        let manifest = MANIFEST.replace("{package}/run", command);
        fs::write(source.path().join(FILE), manifest).expect("a manifest");
        match install(home.path(), home.path(), source.path(), &[]) {
            Err(PackageError::Unfit { path, why }) => Some((path, why)),
            Ok(_) => None,
            Err(error) => panic!("{command}: {error}"),
        }
    };
    for command in ["{package}/run", "sh", "/bin/sh"] {
        assert_eq!(refused(command), None, "{command}");
    }
    for (command, path, word) in [
        ("{package}/ran", source.path().join("ran"), "not in the package"),
        ("{package}/lib", source.path().join("lib"), "no file that can be run"),
        ("{package}/lib/part", source.path().join("lib/part"), "no file that can be run"),
        ("no-such-program", "no-such-program".into(), "not on this host"),
        ("/bin/no-such-program", "/bin/no-such-program".into(), "not there"),
    ] {
        let (named, why) = refused(command).expect("it is refused");
        assert!(named == path && why.contains(word), "{command}: {named:?}: {why}");
    }
}

#[test]
fn nobody_is_given_the_engines_own_files() {
    let (home, source) = (tempfile::tempdir().expect("a folder"), source());
    let inside = home.path().join("jobs");
    fs::create_dir(&inside).expect("a folder");
    let link =
        source.path().parent().expect("a folder").join(format!("link{}", std::process::id()));
    symlink(home.path(), &link).expect("a link");
    for declared in
        [home.path(), &inside, link.as_path(), Path::new("/tmp/**"), Path::new("/proc/**")]
    {
        let more = format!("[permissions]\nread = [{:?}]\n", declared.display().to_string());
        fs::write(source.path().join(FILE), format!("{MANIFEST}{more}")).expect("a manifest");
        let refused = install(home.path(), home.path(), source.path(), &[]);
        assert!(matches!(refused, Err(PackageError::Trespass(_))), "{declared:?}: {refused:?}");
        assert_eq!(installed(home.path()).expect("a list"), Vec::<String>::new());
    }
    fs::remove_file(link).expect("it is there");
}

/// A folder of the package is a link to somewhere else half of the time.
#[test]
fn a_folder_that_is_exchanged_for_a_link_leads_nowhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let (package, outside) = (folder.path().join("package"), folder.path().join("outside"));
    for place in [package.join("real"), outside.clone()] {
        fs::create_dir_all(place).expect("a folder");
    }
    fs::write(package.join("real/file"), "mine").expect("a file");
    fs::write(outside.join("file"), "secret").expect("a file");
    let link = folder.path().join("link");
    symlink(&outside, &link).expect("a link");
    let real = package.join("real");
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                let (here, cwd) = (rustix::fs::CWD, rustix::fs::CWD);
                rustix::fs::renameat_with(here, &real, cwd, &link, flags).expect("exchanged");
            }
        });
        let copies = (0..500).filter_map(|number| {
            let to = folder.path().join(format!("copy{number}"));
            copy(&package, &to).ok().map(|_| fs::read_to_string(to.join("real/file")))
        });
        let copies: Vec<_> = copies.collect();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        for copied in copies {
            assert_eq!(copied.expect("it was copied"), "mine");
        }
    });
}

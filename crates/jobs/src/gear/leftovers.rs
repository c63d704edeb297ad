//! What programs that were killed have left behind: private copies, half installed packages. They
//! are removed an hour later (jobs.md §6).

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use semel_core::clock::UnixMs;

use super::{installed, package};
use crate::limits::LEFTOVER_KEPT;

/// Removes what is old and nobody's.
pub fn purge(root: &Path, now: UnixMs) {
    installed::sweep(root);
    purge_half_written(&root.join("jobs"), now);
    let gears = package::folder(root);
    for entry in fs::read_dir(&gears).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let is_over = match name.split_once('-') {
            Some((".new", _)) => true,
            // Between two renames it is all that there is of its gear.
            Some((".old", _)) => was_replaced(&gears, &path),
            Some(_) | None => false,
        };
        if is_over && is_old(&path, now) {
            tracing::info!(name, "the remains of an installation are removed");
            package::remove(&path);
        }
    }
}

/// What `durable_write` had not named yet: it may hold secrets.
fn purge_half_written(folder: &Path, now: UnixMs) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_str().unwrap_or_default();
        let is_half = [".secrets.", ".secrets.key."].iter().any(|start| {
            let number = name.strip_prefix(start).unwrap_or_default();
            number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        if is_half && is_old(&path, now) {
            tracing::info!(name, "an incomplete file is removed");
            // What cannot be removed is left for the next time.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether there is a gear in the place of this one; of one that cannot be read nobody knows.
fn was_replaced(gears: &Path, old: &Path) -> bool {
    let gear = old.join("gear");
    match package::manifest(&gear.join("package")) {
        Ok(document) => gears.join(&document.manifest.id).exists(),
        // Nothing was moved there yet.
        Err(_) => !gear.exists(),
    }
}

fn is_old(path: &Path, now: UnixMs) -> bool {
    let changed = fs::symlink_metadata(path).and_then(|found| found.modified()).ok();
    let changed = changed.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    changed.is_some_and(|at| now >= UnixMs(0).saturating_add(at).saturating_add(LEFTOVER_KEPT))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::secrets::unfinished;
    use super::*;

    #[test]
    fn what_is_old_and_nobodys_goes_and_nothing_else() {
        let home = tempfile::tempdir().expect("a folder");
        let gears = package::folder(home.path());
        let run = installed::run_folder(home.path());
        let now = UnixMs(1_800_000_000_000);
        let at = |age: Duration| SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000) - age;
        let made = |path: &Path, age: Duration| {
            fs::create_dir_all(path.join("package")).expect("a folder");
            let folder = fs::File::open(path).expect("it is there");
            folder.set_modified(at(age)).expect("it has a time");
        };
        let (old, young) = (LEFTOVER_KEPT, LEFTOVER_KEPT - Duration::from_secs(1));
        for (name, age) in [(".new-1", old), (".new-2", young), (".old-1", old), ("hello", old)] {
            made(&gears.join(name), age);
        }
        let jobs = home.path().join("jobs");
        let half = |name: &str, age: Duration| {
            let file = fs::File::create(jobs.join(name)).expect("a file");
            file.set_modified(at(age)).expect("it has a time");
        };
        half(&unfinished("secrets", u64::MAX), old);
        half(&unfinished("secrets.key", 0), old);
        half(&unfinished("secrets", 1), young);
        half("secrets", old);
        half("secrets.key", old);
        // Nobody has this number: it is more than there can be.
        made(&run.join("4194305-1"), old);
        made(&run.join(format!("{}-1", std::process::id())), old);
        purge(home.path(), now);
        let names = |folder: &Path| {
            let entries = fs::read_dir(folder).expect("it is there").flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&gears), [".new-2", "hello"]);
        assert_eq!(names(&run), [format!("{}-1", std::process::id()).as_str()]);
        let mut kept = names(&jobs);
        kept.retain(|name| jobs.join(name).is_file());
        assert_eq!(kept, [unfinished("secrets", 1).as_str(), "secrets", "secrets.key"]);
    }
}

//! The home: who may read it, and what was left in it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use semel_daemon::home::{Complete, Home, HomeFile, MadeStores};
use semel_daemon::identity::Membership;

use super::Finding;
use crate::checks::{self, Fault};
use crate::daemon::home::{is_of_up, start_command};
use crate::exit::chain;

/// Names that are shown at the most; a folder with more has one cause.
const NAMES_MAX: usize = 8;

pub(super) fn look(root: &Path) -> Vec<Finding> {
    let name = root.display();
    if !root.exists() {
        return vec![Finding::sound("home", format!("{name} is not there yet: semel up makes it"))];
    }
    if !root.is_dir() {
        let to_do = "choose a folder: --home DIR";
        return vec![Finding::problem("home", format!("{name} is not a folder"), to_do)];
    }
    let mut findings = vec![Finding::sound("home", name.to_string())];
    findings.extend(permissions(root));
    match Home::list(root) {
        Err(error) => {
            let to_do = "give it to the user that runs semel";
            findings.push(Finding::problem("meshes", chain(&error), to_do));
        }
        Ok((homes, complete)) => {
            findings.extend(homes.iter().flat_map(mesh));
            findings.extend(gone(root).iter().map(gone_mesh));
            if complete == Complete::No {
                let to_do = "look at the others one by one: semel daemon status --mesh NAME";
                findings.push(Finding::warning("meshes", "there are more of them", to_do));
            }
        }
    }
    findings.extend(jobs(root));
    findings
}

/// The meshes whose files were made here and whose folders are gone. A list that cannot be read is
/// told where stores are.
fn gone(root: &Path) -> Vec<Home> {
    let names = MadeStores::of_home(root).names().unwrap_or_default();
    let mut gone: Vec<Home> = Vec::new();
    for home in names.iter().filter_map(|name| Home::of_name(root, name)) {
        if !home.folder().is_dir() && gone.iter().all(|known| known.mesh() != home.mesh()) {
            gone.push(home);
        }
    }
    gone
}

fn gone_mesh(home: &Home) -> Finding {
    let folder = home.folder().display();
    let detail = format!("the folder {folder} is missing, although it was made here");
    let to_do = format!("put a good copy of it there; to begin without it, {}", removal(home));
    Finding::problem(format!("mesh {}", home.mesh()), detail, to_do)
}

/// How a mesh's folder is removed so that nobody misses it.
fn removal(home: &Home) -> String {
    let list = MadeStores::of_home(home.root());
    let names = list.names().unwrap_or_default().into_iter();
    let names = names.filter(|name| {
        Home::of_name(home.root(), name).is_some_and(|of_name| of_name.mesh() == home.mesh())
    });
    let names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
    let folder = home.folder().display();
    let forgotten = format!("remove {} from {}", names.join(", "), list.path().display());
    match (home.folder().exists(), names.is_empty()) {
        (true, true) => format!("remove {folder}"),
        (true, false) => format!("remove {folder}, and {forgotten}"),
        (false, _) => forgotten,
    }
}

/// What a start would refuse, by the start's own checks. What others have access to is told by the
/// permissions.
pub(super) fn starts(root: &Path) -> Vec<Finding> {
    let (homes, _) = Home::list(root).unwrap_or((Vec::new(), Complete::Yes));
    let daemons = homes.iter().flat_map(|home| checks::daemon(&home.untouched()));
    let of_home = [checks::broker(root), checks::jobs(root), checks::serve(root)];
    let faults = daemons.chain(of_home.into_iter().flatten());
    let line = |text: String| text.replace('\n', "; ");
    let finding = |fault: Fault| Finding::problem(fault.check, line(fault.text), line(fault.to_do));
    faults.map(finding).collect()
}

/// Everything that must be its owner's alone.
fn private(root: &Path) -> Vec<(PathBuf, u32)> {
    let mut private = Vec::new();
    for folder in ["daemon", "broker", "jobs"] {
        private.push((root.join(folder), 0o700));
    }
    for file in ["broker/admin_token", "broker/authority", "jobs/authority"] {
        private.push((root.join(file), 0o600));
    }
    let (homes, _) = Home::list(root).unwrap_or((Vec::new(), Complete::Yes));
    for home in homes {
        private.push((home.folder().to_owned(), 0o700));
        let files = HomeFile::ALL.iter().filter(|file| file.is_private());
        private.extend(files.map(|file| (home.path(*file), file.mode())));
    }
    private
}

fn permissions(root: &Path) -> Vec<Finding> {
    let user = rustix::process::geteuid().as_raw();
    let (mut open, mut foreign) = (Vec::new(), Vec::new());
    for (path, allowed) in private(root) {
        let Ok(found) = std::fs::symlink_metadata(&path) else { continue };
        if found.mode() & 0o777 & !allowed != 0 {
            open.push((path.clone(), found.mode() & 0o777, allowed));
        }
        if found.uid() != user {
            foreign.push(path);
        }
    }
    let mut findings = Vec::new();
    for (path, mode, allowed) in open.iter().take(NAMES_MAX) {
        let path = path.display();
        let detail = format!("others have access to {path} (mode {mode:03o})");
        findings.push(Finding::problem("permissions", detail, format!("chmod {allowed:o} {path}")));
    }
    if let Some(path) = foreign.first() {
        let (count, path) = (foreign.len(), path.display());
        let detail = format!("{path} belongs to another user, and so do {} others", count - 1);
        let to_do = "run semel as the user that the home belongs to, or chown -R it";
        findings.push(Finding::problem("permissions", detail, to_do));
    }
    if findings.is_empty() {
        findings.push(Finding::sound("permissions", "only the owner has access to private files"));
    }
    findings
}

/// Whether somebody holds the lock of this file. It is not made, and not kept.
pub(super) fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(error) => error == rustix::io::Errno::WOULDBLOCK,
        Ok(()) => {
            // It is closed next in any case.
            let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
            false
        }
    }
}

fn mesh(home: &Home) -> Vec<Finding> {
    let mesh = home.mesh();
    let mut findings = vec![membership(home)];
    if !is_locked(&home.path(HomeFile::Lock)) && home.path(HomeFile::Socket).exists() {
        let detail = format!("{} belongs to a daemon that was killed", home.folder().display());
        let to_do = format!("start it again, which cleans up: {}", start_command(home));
        findings.push(Finding::warning(format!("leftovers of {mesh}"), detail, to_do));
    }
    findings.extend(set_aside(home));
    findings
}

fn membership(home: &Home) -> Finding {
    let (check, mesh) = (format!("mesh {}", home.mesh()), home.mesh());
    let path = home.path(HomeFile::Mesh);
    // To read a private file would tighten it, and nothing is changed here.
    let is_open = std::fs::metadata(&path).is_ok_and(|file| file.mode() & 0o077 != 0);
    if is_open {
        return Finding::warning(check, "not checked: others have access", "see permissions");
    }
    match Membership::read(home) {
        Ok(Some(joined)) => Finding::sound(check, format!("joined as {:?}", joined.name)),
        // To join makes the keys first. An ephemeral member has none here.
        Ok(None) if !home.path(HomeFile::Keypair).exists() => {
            Finding::sound(check, "this home has no member")
        }
        Ok(None) => {
            let to_do = match start_command(home) {
                start if is_of_up(home) => format!("start it again, which joins it: {start}"),
                _ => format!("semel mesh join INVITE, or {}", removal(home)),
            };
            Finding::warning(check, format!("joining {mesh} was not completed"), to_do)
        }
        Err(error) => {
            let to_do = format!("restore a good copy of {}", path.display());
            Finding::problem(check, chain(&error), to_do)
        }
    }
}

/// Databases that were damaged once.
fn set_aside(home: &Home) -> Option<Finding> {
    let entries = std::fs::read_dir(home.folder()).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let aside = names.filter(|name| name.contains(".corrupt-")).take(NAMES_MAX);
    let mut aside: Vec<String> = aside.collect();
    aside.sort();
    let detail = format!("set aside in {}: {}", home.folder().display(), aside.join(", "));
    let to_do = "repair them by hand, or delete them if you do not need them";
    let check = format!("leftovers of {}", home.mesh());
    (!aside.is_empty()).then(|| Finding::warning(check, detail, to_do))
}

/// The engine's folder and its configuration.
fn jobs(root: &Path) -> Option<Finding> {
    let folder = root.join("jobs");
    let name = folder.display();
    if !folder.exists() {
        return None;
    }
    let writable = rustix::fs::access(&folder, rustix::fs::Access::WRITE_OK);
    if let Err(error) = writable {
        let to_do = "give it to the user that runs semel";
        return Some(Finding::problem("jobs", format!("{name}: {error}"), to_do));
    }
    Some(match crate::jobs::config(&folder) {
        Err(failure) => {
            let to_do = format!("correct {}", folder.join("config.toml").display());
            Finding::problem("jobs", failure.text.trim_start_matches("error: "), to_do)
        }
        Ok(_) if is_locked(&folder.join("lock")) => Finding::sound("jobs", "an engine runs"),
        Ok(_) => Finding::sound("jobs", "no engine runs; semel up runs one"),
    })
}

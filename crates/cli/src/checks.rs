//! What a start reads of a home before it changes anything. A start refuses at the first fault, and
//! `semel doctor` shows them all: what it calls sound is not refused a moment later.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use semel_daemon::config::Config;
use semel_daemon::home::{Home, HomeError, HomeFile, Presence, check_own};
use semel_daemon::identity::{Identity, IdentityError};
use semel_jobs::gear::load::Loader;
use semel_jobs::gear::reach;
use semel_jobs::gear::registry::Registry;

use crate::broker::token;
use crate::daemon::home::{home_words, is_of_up, start_command};
use crate::exit::{Exit, Failure, chain};
use crate::gear::ports::ports;
use crate::gear::shim;
use crate::stores::Kept;
use crate::up::broker_folder;

/// A link in the place of a lock or a secret is refused.
pub(crate) const NOFOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// Something that a start would refuse.
pub(crate) struct Fault {
    /// What was looked at.
    pub(crate) check: String,
    /// What is wrong, as a start says it.
    pub(crate) text: String,
    /// What can be done about it.
    pub(crate) to_do: String,
    /// Whether a start says that, too.
    is_advised: bool,
}

impl Fault {
    fn new(check: impl Into<String>, path: PathBuf, text: impl Into<String>) -> Self {
        let to_do = format!("restore a good copy of {}", path.display());
        Self { check: check.into(), text: text.into(), to_do, is_advised: false }
    }
}

/// Refuses to start with the first of these.
pub(crate) fn refuse(faults: impl IntoIterator<Item = Fault>) -> Result<(), Failure> {
    match faults.into_iter().next() {
        None => Ok(()),
        Some(Fault { text, to_do, is_advised: true, .. }) => {
            Err(Failure::new(Exit::Refused, format!("error: {text}\n{to_do}")))
        }
        Some(Fault { text, .. }) => Err(Failure::new(Exit::Refused, format!("error: {text}"))),
    }
}

/// What the start of a daemon reads of its folder.
pub(crate) fn daemon(home: &Home) -> Vec<Fault> {
    let check = |what: &str| format!("{what} of {}", home.mesh());
    let mut faults: Vec<Fault> = own(check("folder"), home.check_own()).into_iter().collect();
    if let Err(error) = Config::read(home) {
        let path = home.path(HomeFile::Config);
        let to_do = format!("correct {}", path.display());
        faults.push(Fault { to_do, ..Fault::new(check("config"), path, chain(&error)) });
    }
    faults.extend(lost(&check("identity"), &Kept::instance(home)));
    if let Err(error) = Identity::check(home) {
        faults.push(identity(check("identity"), home, &error));
    }
    if let Err(error) = home.socket_path() {
        faults.push(Fault::new(check("socket"), home.path(HomeFile::Socket), chain(&error)));
    }
    let socket = home.path(HomeFile::Socket);
    let is_socket =
        |path: &Path| path.symlink_metadata().map_or(true, |found| found.file_type().is_socket());
    if !is_socket(&socket) {
        let text = format!("{} is not a socket", socket.display());
        faults.push(Fault::new(check("socket"), socket, text));
    }
    faults.extend(lock(&check("lock"), home.path(HomeFile::Lock)));
    faults
}

/// Secrets of a member that are gone are not made anew: only a new member has new ones.
fn identity(check: String, home: &Home, error: &IdentityError) -> Fault {
    let text = chain(error);
    let IdentityError::Lost { path, .. } = error else {
        return Fault::new(check, home.folder().to_owned(), text);
    };
    let (file, membership) = (path.display(), home.path(HomeFile::Mesh));
    let again = match is_of_up(home) {
        true => format!("{}, which names the next step", start_command(home)),
        false => format!("semel mesh join INVITE{}", home_words(home.root())),
    };
    let to_do = format!(
        "to restore a backup: put a good copy of {file} there\n\
         to join again, as a new member: remove {}, then: {again}",
        membership.display()
    );
    Fault { check, text, to_do, is_advised: true }
}

/// What the start of a home's broker reads besides its store.
pub(crate) fn broker(root: &Path) -> Vec<Fault> {
    let folder = broker_folder(root);
    let (admin, authority) = (folder.join("admin_token"), folder.join("authority"));
    let checked = [
        ("admin token", token::check(&admin), admin),
        ("authority", token::check_authority(&authority), authority),
    ];
    let lost =
        [lost("admin token", &Kept::admin_token(root)), lost("authority", &Kept::broker_key(root))];
    let lost = lost.into_iter().flatten();
    own_folder(root, "broker").into_iter().chain(lost).chain(faulty(checked)).collect()
}

/// What the start of a home's engine reads besides its store.
pub(crate) fn jobs(root: &Path) -> Vec<Fault> {
    let folder = root.join("jobs");
    let authority = folder.join("authority");
    let checked = [("authority of jobs", token::check_authority(&authority), authority)];
    let mut faults: Vec<Fault> = place(root).into_iter().collect();
    faults.extend(own_folder(root, "jobs"));
    faults.extend(lost("authority of jobs", &Kept::jobs_key(root)));
    faults.extend(faulty(checked));
    faults.extend(lock("lock of jobs", folder.join("lock")));
    if let Err(failure) = gears(root) {
        let text = failure.text.trim_start_matches("error: ").to_owned();
        faults.push(Fault::new("gears", root.join("jobs/gear"), text));
    }
    faults
}

/// Gears may read the system's folders: nothing of the engine may be in there.
fn place(root: &Path) -> Option<Fault> {
    let error = reach::judge_place(root).err()?;
    let (check, text) = ("place of the home".to_owned(), chain(&error));
    let to_do = "move the home to a folder of its own".to_owned();
    Some(Fault { check, text, to_do, is_advised: false })
}

/// What `semel job serve` reads besides that.
pub(crate) fn serve(root: &Path) -> Vec<Fault> {
    let token = root.join("jobs/local_token");
    faulty([("token of jobs", token::check(&token), token)])
}

/// The gears as an engine loads them, into a registry that nobody uses.
fn gears(root: &Path) -> Result<(), Failure> {
    let loader = Loader::new(root, shim()?, ports(None, &Default::default()));
    loader
        .refresh(&Registry::default())
        .map_err(|error| Failure::new(Exit::Refused, format!("error: {}", chain(&error))))
}

fn faulty<const N: usize>(checked: [(&str, Result<(), Failure>, PathBuf); N]) -> Vec<Fault> {
    let faults = checked.into_iter().filter_map(|(check, looked, path)| {
        if path.is_symlink() {
            return own(check.to_owned(), Err(HomeError::Linked { path }));
        }
        let text = looked.err()?.text;
        Some(Fault::new(check, path, text.trim_start_matches("error: ")))
    });
    faults.collect()
}

/// A key that was made once and is gone. A list that cannot be read is told where stores are.
fn lost(check: &str, kept: &Kept) -> Option<Fault> {
    match kept.look() {
        Ok(Presence::Lost) => {
            let ((text, to_do), check) = (kept.lost(), check.to_owned());
            Some(Fault { check, text, to_do, is_advised: true })
        }
        Ok(Presence::New | Presence::There) | Err(_) => None,
    }
}

/// A folder right below the home, and the home.
fn own_folder(root: &Path, name: &str) -> Option<Fault> {
    own(format!("folder {name}"), check_own(root, &[Path::new(name)]))
}

fn own(check: String, checked: Result<(), HomeError>) -> Option<Fault> {
    let error = checked.err()?;
    let text = chain(&error);
    let (text, to_do) = match text.split_once('\n') {
        Some((text, to_do)) => (text.to_owned(), to_do.to_owned()),
        None => (text, "put a real folder there".to_owned()),
    };
    Some(Fault { check, text, to_do, is_advised: true })
}

/// A lock must be a file that can be opened as a start opens it. Nothing is locked here.
fn lock(check: &str, path: PathBuf) -> Option<Fault> {
    let opened: std::io::Result<File> =
        OpenOptions::new().read(true).append(true).custom_flags(NOFOLLOW).open(&path);
    let text = match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        // With --read-only, too: clients find a daemon by the socket in its home.
        Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => format!(
            "{} is on a disk that cannot be written, and semel needs a lock and a socket there: \
             copy the home (cp -a) to another disk and start with --home COPY",
            path.display()
        ),
        Err(error) => format!("{}: {error}", path.display()),
        Ok(file) if file.metadata().is_ok_and(|found| found.is_file()) => return None,
        Ok(_) => format!("{} is not a plain file", path.display()),
    };
    Some(Fault::new(check, path, text))
}

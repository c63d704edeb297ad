//! Which stores and keys a home has made, and what is said of one that is gone. A start, `semel
//! doctor` and the commands that begin without one all ask here.

use std::path::{Path, PathBuf};

use semel_broker::http::AdminToken;
use semel_crypto::keys::KeyPair;
use semel_daemon::home::{Home, HomeFile, MadeStores, Presence, StoresError};
use semel_daemon::recover::Database;

use crate::broker::token;
use crate::daemon::home::{command, home_words, quoted};
use crate::exit::{Exit, Failure, chain};
use crate::system::random;
use crate::up::broker_folder;

/// What is lost with a store.
const OF_A_STORE: &str = "and lose its content";

/// What is lost with the key of a local authority.
const OF_AN_AUTHORITY: &str = "with a new key for the grants that are signed from now on";

/// A store or a key that is made once, and what to do without it.
pub(crate) struct Kept {
    pub(crate) path: PathBuf,
    made: MadeStores,
    /// How a good copy is put back.
    pub(crate) restore: String,
    /// How a new one is begun.
    fresh: String,
    /// What a new one lacks.
    lacks: &'static str,
}

impl Kept {
    /// The broker's of a home.
    pub(crate) fn broker(root: &Path) -> Self {
        let path = broker_folder(root).join("broker.db");
        Self { made: MadeStores::of_home(root), ..Self::broker_file(&path) }
    }

    /// A broker's, wherever it is.
    pub(crate) fn broker_file(path: &Path) -> Self {
        let at = quoted(&format!("sqlite:{}", path.display()));
        Self {
            path: path.to_owned(),
            made: MadeStores::beside(path),
            restore: format!("semel broker restore --in BACKUP --force --store {at}"),
            fresh: format!("semel broker start-fresh --confirm --store {at}"),
            lacks: OF_A_STORE,
        }
    }

    /// The job engine's of a home.
    pub(crate) fn jobs(root: &Path) -> Self {
        let at = home_words(root);
        Self {
            path: root.join("jobs/jobs.db"),
            made: MadeStores::of_home(root),
            restore: format!("semel job restore --in BACKUP --force{at}"),
            fresh: format!("semel job start-fresh --confirm{at}"),
            lacks: OF_A_STORE,
        }
    }

    /// One of a daemon's two.
    pub(crate) fn daemon(home: &Home, database: Database) -> Self {
        let path = home.path(database.file());
        let recover = command("daemon recover", home);
        Self {
            restore: format!("put a good copy of {} there", path.display()),
            path,
            made: MadeStores::of_home(home.root()),
            fresh: format!("{recover} --start-fresh {database} --confirm"),
            lacks: OF_A_STORE,
        }
    }

    /// The key of a home's broker.
    pub(crate) fn broker_key(root: &Path) -> Self {
        Self::key_of_home(root, "broker/authority", OF_AN_AUTHORITY)
    }

    /// The operator's token of a home's broker.
    pub(crate) fn admin_token(root: &Path) -> Self {
        let lacks = "with a new token, which you must tell to the operators";
        Self::key_of_home(root, "broker/admin_token", lacks)
    }

    /// The key of a broker that was started with this file.
    pub(crate) fn key_file(path: &Path) -> Self {
        let made = MadeStores::beside(path);
        let fresh = format!("remove {}", made.path().display());
        Self {
            path: path.to_owned(),
            made,
            restore: format!("put a good copy of {} there", path.display()),
            fresh,
            lacks: OF_AN_AUTHORITY,
        }
    }

    /// The key of a home's job engine. On a database that engines share it is the home's name, too.
    pub(crate) fn jobs_key(root: &Path) -> Self {
        let lacks = "and under a new name for the jobs of a shared database";
        Self::key_of_home(root, "jobs/authority", lacks)
    }

    /// Which daemon of its member this one is.
    pub(crate) fn instance(home: &Home) -> Self {
        let name = home.path(HomeFile::InstanceId);
        let name = name.strip_prefix(home.root()).unwrap_or(&name).display().to_string();
        let lacks = "as another daemon of the member, with unknown outcomes of open sends";
        Self::key_of_home(home.root(), &name, lacks)
    }

    fn key_of_home(root: &Path, name: &str, lacks: &'static str) -> Self {
        let (path, made) = (root.join(name), MadeStores::of_home(root));
        let fresh = format!("remove {name:?} from {}", made.path().display());
        let restore = format!("put a good copy of {} there", path.display());
        Self { path, made, restore, fresh, lacks }
    }

    /// How it is.
    pub(crate) fn look(&self) -> Result<Presence, StoresError> {
        self.made.look(&self.path)
    }

    /// What is said of one that is gone, and what can be done.
    pub(crate) fn lost(&self) -> (String, String) {
        let said =
            format!("{} is missing or empty, although it was made here", self.path.display());
        let ways = format!(
            "to restore a backup: {}\nto begin without it, {}: {}",
            self.restore, self.lacks, self.fresh
        );
        (said, ways)
    }

    /// Refuses to go on without one that there was.
    pub(crate) fn refuse_lost(&self) -> Result<Presence, Failure> {
        let refused = |text: String| Failure::new(Exit::Refused, format!("error: {text}"));
        match self.look().map_err(|error| refused(chain(&error)))? {
            Presence::Lost => {
                let (said, ways) = self.lost();
                Err(refused(format!("{said}\n{ways}")))
            }
            presence @ (Presence::New | Presence::There) => Ok(presence),
        }
    }

    /// Notes that it is there now, before anything is taken into it.
    pub(crate) fn note(&self) -> Result<(), Failure> {
        let noted = self.made.note(&self.path, random());
        noted.map_err(|error| Failure::new(Exit::Refused, format!("error: {}", chain(&error))))
    }

    /// The key of a local authority: made where there never was one, and noted.
    pub(crate) fn authority(&self) -> Result<KeyPair, Failure> {
        self.made_once(token::authority)
    }

    /// An operator's token: made where there never was one, and noted.
    pub(crate) fn admin(&self) -> Result<AdminToken, Failure> {
        self.made_once(token::load)
    }

    fn made_once<T>(&self, load: fn(&Path) -> Result<T, Failure>) -> Result<T, Failure> {
        let presence = self.refuse_lost()?;
        let secret = load(&self.path)?;
        match (self.note(), presence) {
            // Somebody may have put it into a folder that is not ours to write to.
            (Err(failure), Presence::There) => {
                tracing::warn!(failure.text, "a loss of this key will not be noticed");
            }
            (noted, _) => noted?,
        }
        Ok(secret)
    }
}

/// Begins without a store that was lost: every list that knows it forgets it. What is there is left
/// alone.
pub(crate) fn start_fresh(kept: &[Kept], confirmed: bool, loses: &str) -> Result<(), Failure> {
    let conflict = |text: String| Failure::new(Exit::Conflict, format!("error: {text}"));
    let failed =
        |error: StoresError| Failure::new(Exit::Failed, format!("error: {}", chain(&error)));
    let mut lost = Vec::new();
    for one in kept {
        let name = one.path.display();
        match one.look().map_err(failed)? {
            Presence::There => {
                let text = "exists: nothing was done\nto begin without it, move it away first";
                return Err(conflict(format!("{name} {text}")));
            }
            Presence::New => {}
            Presence::Lost => lost.push(one),
        }
    }
    let Some(first) = lost.first() else {
        let name = kept.first().map(|one| one.path.display().to_string()).unwrap_or_default();
        return Err(conflict(format!("{name} was never made: nothing was done")));
    };
    if !confirmed {
        let text = format!("{loses}\nto restore a backup: {}", first.restore);
        return Err(conflict(format!("{text}\nto do it anyway: --confirm")));
    }
    for one in &lost {
        one.made.forget(&one.path).map_err(failed)?;
    }
    Ok(())
}

/// Every list that may know a broker's file.
pub(crate) fn of_broker(path: &Path) -> Vec<Kept> {
    let mut kept = vec![Kept::broker_file(path)];
    if let Some(made) = MadeStores::around(path) {
        kept.push(Kept { made, ..Kept::broker_file(path) });
    }
    kept
}

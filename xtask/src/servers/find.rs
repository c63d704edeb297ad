//! Finds programs that are already on this machine.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian keeps every major version in a folder of its own, outside `PATH`.
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";

/// What `libfaketime` is called where distributions keep it.
const FAKETIME: &str = "faketime/libfaketimeMT.so.1";

/// Every version in a folder of its own.
const DEBIAN_RABBITMQ: &str = "/usr/lib/rabbitmq/lib";

/// The first major version with everything that the stores use.
pub(crate) const POSTGRES_MAJOR_MIN: u32 = 15;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PostgresPrograms {
    pub(crate) postgres: PathBuf,
    pub(crate) initdb: PathBuf,
}

/// A program in `PATH`.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    path_folders().iter().map(|folder| folder.join(name)).find(|path| is_executable(path))
}

/// The newest PostgreSQL that is new enough.
pub(crate) fn postgres() -> Option<PostgresPrograms> {
    let mut folders = path_folders();
    folders.extend(version_folders(Path::new(DEBIAN_POSTGRES)));
    newest_postgres(&folders, postgres_major)
}

/// The folder is named after the version.
pub(crate) fn rabbitmq() -> Option<PathBuf> {
    let entries = fs::read_dir(DEBIAN_RABBITMQ).into_iter().flatten().flatten();
    let mut programs = entries.map(|entry| entry.path().join("sbin/rabbitmq-server"));
    programs.find(|path| is_executable(path))
}

/// The library for programs with threads; Debian has a folder for each architecture.
pub(crate) fn faketime() -> Option<PathBuf> {
    let parents = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
    let below = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut libraries = parents.into_iter().chain(below).map(|folder| folder.join(FAKETIME));
    libraries.find(|path| path.is_file())
}

fn newest_postgres(
    folders: &[PathBuf],
    major: impl Fn(&Path) -> Option<u32>,
) -> Option<PostgresPrograms> {
    folders
        .iter()
        .map(|bin| PostgresPrograms { postgres: bin.join("postgres"), initdb: bin.join("initdb") })
        .filter(|found| is_executable(&found.postgres) && is_executable(&found.initdb))
        .filter_map(|found| Some((major(&found.postgres)?, found)))
        .filter(|(version, _)| *version >= POSTGRES_MAJOR_MIN)
        .max_by_key(|(version, _)| *version)
        .map(|(_, found)| found)
}

fn path_folders() -> Vec<PathBuf> {
    env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default()
}

fn version_folders(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().join("bin")).collect()
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn postgres_major(postgres: &Path) -> Option<u32> {
    let output = Command::new(postgres).arg("--version").output().ok()?;
    parse_major(&String::from_utf8_lossy(&output.stdout))
}

/// From `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`, also `17beta1` and `18devel`.
fn parse_major(version: &str) -> Option<u32> {
    let (_, after) = version.split_once("(PostgreSQL) ")?;
    let digits = after.find(|c: char| !c.is_ascii_digit()).map_or(after, |end| &after[..end]);
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake_program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn reads_the_major_version() {
        let debian = "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n";
        assert_eq!(parse_major(debian), Some(15));
        assert_eq!(parse_major("postgres (PostgreSQL) 17beta1"), Some(17));
        assert_eq!(parse_major("postgres (PostgreSQL) 16"), Some(16));
        assert_eq!(parse_major("something else 15"), None);
    }

    #[test]
    fn takes_the_newest_that_is_complete_and_new_enough() {
        let root = tempfile::tempdir().unwrap();
        for version in ["9", "14", "15", "16"] {
            fake_program(&root.path().join(version).join("bin/postgres"));
            fake_program(&root.path().join(version).join("bin/initdb"));
        }
        fake_program(&root.path().join("17/bin/postgres"));
        let major = |path: &Path| path.parent()?.parent()?.file_name()?.to_str()?.parse().ok();

        let found = newest_postgres(&version_folders(root.path()), major).unwrap();
        assert_eq!(found.postgres, root.path().join("16/bin/postgres"));

        let old = [root.path().join("14/bin"), root.path().join("9/bin")];
        assert_eq!(newest_postgres(&old, major), None);
        assert_eq!(newest_postgres(&version_folders(&root.path().join("absent")), major), None);
    }
}

//! Private PostgreSQL and Redis servers for one run, in one temporary folder, gone when dropped.

pub(crate) mod find;
mod install;
mod postgres;
mod process;
mod redis;
mod secure;
mod user;
mod wait;

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

pub(crate) use install::{
    faketime, postgres as postgres_programs, python, rabbitmq as rabbitmq_program,
    redis as redis_program, strace,
};
pub(crate) use postgres::Postgres;
pub(crate) use process::tied_to_us;
pub(crate) use redis::Redis;
use secure::Secure;
pub(crate) use wait::{pause, wait_until};

const PASSWORD_BYTES: usize = 16;

/// Fields are dropped in order: the servers end before their folder goes.
pub(crate) struct Servers {
    postgres: Postgres,
    redis: Redis,
    secure: Secure,
    _folder: TempDir,
}

impl Servers {
    /// Finds or installs both programs and returns when all servers answer.
    pub(crate) fn start() -> Result<Self> {
        let postgres_programs = install::postgres()?;
        let redis_program = install::redis()?;
        let folder = folder()?;
        let postgres = Postgres::start(&postgres_programs, folder.path())
            .context("cannot start PostgreSQL")?;
        let redis = Redis::start(&redis_program, folder.path()).context("cannot start Redis")?;
        let secure = Secure::start(&postgres_programs, &redis_program, folder.path())
            .context("cannot start servers that speak TLS")?;
        Ok(Self { postgres, redis, secure, _folder: folder })
    }

    /// What the tests and benchmarks read to find the servers.
    pub(crate) fn environment(&self) -> [(&'static str, &str); 3] {
        [
            ("SEMEL_TEST_POSTGRES", self.postgres.url()),
            ("SEMEL_TEST_REDIS", self.redis.url()),
            ("SEMEL_TEST_TLS", self.secure.folder()),
        ]
    }
}

/// PostgreSQL may run as another user than we do: that user must reach its own folder inside this
/// one, but need not list it.
pub(crate) fn folder() -> Result<TempDir> {
    let parent = folder_parent(std::env::temp_dir());
    let folder = tempfile::Builder::new()
        .prefix("semel-test-")
        .tempdir_in(&parent)
        .with_context(|| format!("cannot make a temporary folder in {}", parent.display()))?;
    fs::set_permissions(folder.path(), Permissions::from_mode(0o711))?;
    Ok(folder)
}

/// A private `TMPDIR` (say, in root's home) is closed to the server's user; `/tmp` is not.
fn folder_parent(wanted: PathBuf) -> PathBuf {
    let open = |path: &Path| {
        fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0)
    };
    if user::is_root() && !wanted.ancestors().all(open) { PathBuf::from("/tmp") } else { wanted }
}

/// Hexadecimal, so that it needs no quoting in a URL or a configuration file.
pub(crate) fn random_password() -> Result<String> {
    let mut bytes = [0; PASSWORD_BYTES];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_long_and_differ() {
        let (one, two) = (random_password().unwrap(), random_password().unwrap());
        assert_eq!(one.len(), 2 * PASSWORD_BYTES);
        assert_ne!(one, two);
    }

    #[test]
    fn an_open_parent_is_kept() {
        assert_eq!(folder_parent(PathBuf::from("/")), PathBuf::from("/"));
    }

    #[test]
    fn a_parent_closed_to_others_is_replaced_for_root_only() {
        let closed = tempfile::tempdir().unwrap();
        fs::set_permissions(closed.path(), Permissions::from_mode(0o700)).unwrap();
        let expected = if user::is_root() { Path::new("/tmp") } else { closed.path() };
        assert_eq!(folder_parent(closed.path().to_path_buf()), expected);
    }
}

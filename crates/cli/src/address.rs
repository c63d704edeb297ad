//! Where a store or a limiter is: said in the arguments, in a file, or in the environment, so that
//! a password need not stand where other users of the machine see it. No more than one of them is
//! asked: the arguments go first.

use std::env;
use std::path::{Path, PathBuf};

use semel_store::postgres::{Passwords, PostgresOptions};

use crate::broker::token;
use crate::exit::{Exit, Failure};

/// Says where the store is.
pub(crate) const STORE: &str = "SEMEL_STORE";

/// Says where the limiter is.
pub(crate) const LIMITER: &str = "SEMEL_LIMITER";

/// What is said there is no gear's business, whatever it declares.
pub(crate) const KEPT_FROM_GEARS: [&str; 4] = [STORE, LIMITER, "PGPASSWORD", "PGPASSFILE"];

/// Bytes of a file of passwords, as libpq keeps them.
const PASSWORDS_BYTES_MAX: u64 = 1 << 20;

/// A file that says what an argument would.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct StoreFile {
    /// File with the value of --store, readable by its owner only; without both options,
    /// SEMEL_STORE is used
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    store_file: Option<PathBuf>,
}

/// Where the limiter is.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LimiterArguments {
    /// `memory`; if several brokers share a store, `redis://…` or `rediss://…` (TLS) [default:
    /// memory]
    #[arg(long, value_name = "LIMITER")]
    limiter: Option<String>,
    /// File with the value of --limiter, readable by its owner only; without both options,
    /// SEMEL_LIMITER is used
    #[arg(long, value_name = "FILE", conflicts_with = "limiter")]
    limiter_file: Option<PathBuf>,
}

/// Who has said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Argument,
    File(PathBuf),
    Environment,
}

/// An address, which may hold a password, and is therefore not printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

impl StoreFile {
    /// Where the store is, if anybody says so.
    pub(crate) fn address(&self, argument: Option<&String>) -> Result<Option<Address>, Failure> {
        said(argument, "--store-file", self.store_file.as_deref(), STORE)
    }
}

impl LimiterArguments {
    /// Where the limiter is, if anybody says so.
    pub(crate) fn address(&self) -> Result<Option<Address>, Failure> {
        let file = self.limiter_file.as_deref();
        said(self.limiter.as_ref(), "--limiter-file", file, LIMITER)
    }
}

impl Address {
    /// What an argument says.
    pub(crate) fn argument(text: String) -> Self {
        Self { text, origin: Origin::Argument }
    }

    /// How a PostgreSQL there is used, with what the environment knows of its password.
    pub(crate) fn postgres(&self) -> Result<PostgresOptions, Failure> {
        let mut options = PostgresOptions::new(&self.text);
        if !user(&self.text).contains(':') {
            options.passwords = passwords()?;
        }
        Ok(options)
    }

    /// Says once that a password is where others see it.
    pub(crate) fn warn_if_seen(&self, option: &str) {
        if self.origin == Origin::Argument && holds_password(&self.text) {
            tracing::warn!(
                option,
                "every user of this machine can read the password in this argument; a file \
                 ({option}-file) or the environment can hold it instead"
            );
        }
    }
}

fn said(
    argument: Option<&String>,
    option: &str,
    file: Option<&Path>,
    variable: &str,
) -> Result<Option<Address>, Failure> {
    if let Some(text) = argument {
        return Ok(Some(Address::argument(text.clone())));
    }
    if let Some(path) = file {
        let text = token::read_line(option, path)?;
        return Ok(Some(Address { text, origin: Origin::File(path.to_owned()) }));
    }
    let text = value(variable)?;
    Ok(text.map(|text| Address { text, origin: Origin::Environment }))
}

/// A variable that is set to nothing is as good as not set.
fn value(variable: &str) -> Result<Option<String>, Failure> {
    let Some(value) = env::var_os(variable).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let refused = |_| Failure::new(Exit::Usage, format!("error: {variable} is not UTF-8"));
    value.into_string().map(Some).map_err(refused)
}

/// What libpq would look at, in its order. A file that was named has to be there.
fn passwords() -> Result<Passwords, Failure> {
    if let Some(word) = value("PGPASSWORD")? {
        return Ok(Passwords { word: Some(word), lines: None });
    }
    let read = |path: &Path| token::read("PGPASSFILE", path, PASSWORDS_BYTES_MAX).map(Some);
    let lines = match value("PGPASSFILE")? {
        Some(path) => read(Path::new(&path))?,
        None => {
            let home = env::var_os("HOME").filter(|home| !home.is_empty());
            let path = home.map(|home| Path::new(&home).join(".pgpass"));
            match path.filter(|path| path.is_file()) {
                Some(path) => read(&path)?,
                None => None,
            }
        }
    };
    Ok(Passwords { word: None, lines })
}

/// Whether a password may stand in it: in doubt it does.
pub(crate) fn holds_password(address: &str) -> bool {
    let (_, parameters) = address.split_once('?').unwrap_or_default();
    user(address).contains(':') || parameters.to_ascii_lowercase().contains("pass")
}

/// What stands before the server's name.
fn user(address: &str) -> &str {
    let (before, _) = address.rsplit_once('@').unwrap_or_default();
    before.split_once("://").map_or(before, |(_, user)| user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_seen() {
        for (address, holds) in [
            ("postgres://me:pw@host/db", true),
            ("postgres://me@host/db", false),
            ("postgres://me:p@w@host/db", true),
            ("postgres://host:5432/db?password=x", true),
            ("redis://:pw@host", true),
            ("redis+unix:///run/redis.sock?pass=x", true),
            ("redis://host:6379", false),
            ("postgres://me@compass/db", false),
            ("sqlite:/a/pass/b.db", false),
            ("sqlite:/a/b.db", false),
            ("memory", false),
        ] {
            assert_eq!(holds_password(address), holds, "{address}");
        }
    }
}

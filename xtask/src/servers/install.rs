//! Makes sure that the programs which the tests need are there: finds them, or installs them with
//! `apt-get` when we may. What stays missing is an error, never a skipped test.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::find::{self, POSTGRES_MAJOR_MIN, PostgresPrograms};
use super::user;
use crate::repo;

/// PostgreSQL's server programs.
pub(crate) fn postgres() -> Result<PostgresPrograms> {
    let wanted = format!("PostgreSQL {POSTGRES_MAJOR_MIN} or newer (postgres and initdb)");
    find_or_install(&wanted, &["postgresql"], find::postgres)
}

/// Redis or Valkey: the tests use nothing in which they differ.
pub(crate) fn redis() -> Result<PathBuf> {
    find_or_install("redis-server or valkey-server", &["redis-server", "valkey-server"], || {
        find::program("redis-server").or_else(|| find::program("valkey-server"))
    })
}

/// RabbitMQ without Debian's script around it, which changes to a user of its own.
pub(crate) fn rabbitmq() -> Result<PathBuf> {
    find_or_install("rabbitmq-server", &["rabbitmq-server"], find::rabbitmq)
}

/// The interpreter of the checks written in Python.
pub(crate) fn python() -> Result<PathBuf> {
    find_or_install("python3", &["python3"], || find::program("python3"))
}

/// Records what a process does to its files.
pub(crate) fn strace() -> Result<PathBuf> {
    find_or_install("strace", &["strace"], || find::program("strace"))
}

/// Gives a process a clock of its own.
pub(crate) fn faketime() -> Result<PathBuf> {
    find_or_install("libfaketime", &["libfaketime"], find::faketime)
}

/// `packages` are alternatives, tried in order until `find` succeeds.
fn find_or_install<T>(wanted: &str, packages: &[&str], find: impl Fn() -> Option<T>) -> Result<T> {
    if let Some(found) = find() {
        return Ok(found);
    }
    let missing = || {
        let packages = packages.join(" or ");
        format!("{wanted} not found: install it (on Debian: apt-get install {packages})")
    };
    let apt_get = find::program("apt-get").filter(|_| user::is_root()).with_context(missing)?;
    let mut problem = None;
    // An outdated list can still be enough, so the install decides.
    report(&mut problem, apt(&apt_get, &["update"]));
    for package in packages {
        report(&mut problem, apt(&apt_get, &["install", "-y", "--no-install-recommends", package]));
        if let Some(found) = find() {
            return Ok(found);
        }
    }
    match problem {
        Some(error) => Err(error.context(missing())),
        None => Err(anyhow::anyhow!(missing())),
    }
}

/// Keeps the last problem for the final error.
fn report(problem: &mut Option<anyhow::Error>, result: Result<()>) {
    if let Err(error) = result {
        eprintln!("xtask: {error:#}");
        *problem = Some(error);
    }
}

/// `RUNLEVEL=1` keeps the packages from starting their own system-wide servers.
fn apt(apt_get: &PathBuf, args: &[&str]) -> Result<()> {
    repo::succeed(
        Command::new(apt_get)
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("RUNLEVEL", "1"),
    )
}

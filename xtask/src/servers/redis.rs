//! A private Redis (or Valkey): a random password, nothing kept on disk.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::process::{Recipe, Server, connect, tied_to_us};
use super::random_password;

/// A running server, which can be stopped and started again at the same place.
pub(crate) struct Redis {
    /// `None` while it is stopped.
    server: Option<Server>,
    program: PathBuf,
    folder: PathBuf,
    password: String,
    port: u16,
    url: String,
}

impl Redis {
    /// In a folder of its own under `parent`; returns when it answers.
    pub(crate) fn start(program: &Path, parent: &Path) -> Result<Self> {
        let folder = parent.join("redis");
        std::fs::create_dir(&folder)?;
        let password = random_password()?;
        let (server, port) = with_recipe(program, &folder, &password, |recipe| recipe.start())?;
        let url = format!("redis://:{password}@127.0.0.1:{port}/");
        let program = program.to_owned();
        Ok(Self { server: Some(server), program, folder, password, port, url })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Everything in it is gone.
    pub(crate) fn stop(&mut self) {
        self.server = None;
    }

    /// Returns when it answers again.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        let port = self.port;
        let start = |recipe: &Recipe<'_>| recipe.start_on(port);
        self.server = Some(with_recipe(&self.program, &self.folder, &self.password, start)?);
        Ok(())
    }
}

fn with_recipe<T>(
    program: &Path,
    folder: &Path,
    password: &str,
    start: impl FnOnce(&Recipe<'_>) -> Result<T>,
) -> Result<T> {
    let config_file = folder.join("redis.conf");
    let command = |port| {
        write_config(&config_file, &config(folder, port, password))?;
        let mut command = tied_to_us(program, "TERM");
        command.arg(&config_file).current_dir(folder);
        Ok(command)
    };
    let ready = |port| answers(port, password).unwrap_or(false);
    start(&Recipe {
        name: "redis",
        log: folder.join("log"),
        stop: Signal::TERM,
        command: &command,
        ready: &ready,
    })
}

/// A file, because everybody can read another process's arguments.
fn write_config(path: &Path, text: &str) -> Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn config(folder: &Path, port: u16, password: &str) -> String {
    format!(
        "bind 127.0.0.1\n\
         port {port}\n\
         requirepass {password}\n\
         dir \"{}\"\n\
         daemonize no\n\
         save \"\"\n\
         appendonly no\n",
        folder.display()
    )
}

/// Only our server takes the password: one without any answers `AUTH` with an error.
fn answers(port: u16, password: &str) -> io::Result<bool> {
    let mut stream = connect(port)?;
    stream.write_all(format!("AUTH {password}\r\nPING\r\n").as_bytes())?;
    let mut lines = BufReader::new(stream).lines();
    let mut next = || lines.next().transpose();
    Ok(next()?.as_deref() == Some("+OK") && next()?.as_deref() == Some("+PONG"))
}

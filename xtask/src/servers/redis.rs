//! A private Redis (or Valkey): a random password, nothing kept on disk.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::process::{Recipe, Server, connect, tied_to_us};
use super::random_password;

/// The server and its URL.
pub(crate) fn start(program: &Path, parent: &Path) -> Result<(Server, String)> {
    let folder = parent.join("redis");
    std::fs::create_dir(&folder)?;
    let password = random_password()?;
    let config_file = folder.join("redis.conf");

    let command = |port| {
        write_config(&config_file, &config(&folder, port, &password))?;
        let mut command = tied_to_us(program, "TERM");
        command.arg(&config_file).current_dir(&folder);
        Ok(command)
    };
    let ready = |port| answers(port, &password).unwrap_or(false);
    let recipe = Recipe {
        name: "redis",
        log: folder.join("log"),
        stop: Signal::TERM,
        command: &command,
        ready: &ready,
    };
    let (server, port) = recipe.start()?;
    Ok((server, format!("redis://:{password}@127.0.0.1:{port}/")))
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

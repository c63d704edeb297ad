//! A private Redis (or Valkey): a random password, nothing kept on disk.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::process::{Recipe, Server, connect, read_log, tied_to_us};
use super::random_password;

/// A running server, which can be stopped and started again at the same place.
pub(crate) struct Redis {
    /// `None` while it is stopped.
    server: Option<Server>,
    program: PathBuf,
    folder: PathBuf,
    password: String,
    doors: Doors,
    port: u16,
    url: String,
}

/// How it is spoken to.
#[derive(Debug, Clone)]
enum Doors {
    Plain,
    /// In TLS alone, with this certificate and this key, which this authority has signed.
    Tls([PathBuf; 3]),
}

/// What our server says in its log, whoever else may answer on the port.
const READY: &str = "Ready to accept connections";

impl Redis {
    /// In a folder of its own under `parent`; returns when it answers.
    pub(crate) fn start(program: &Path, parent: &Path) -> Result<Self> {
        Self::start_in(program, parent.join("redis"), Doors::Plain)
    }

    /// The same in TLS alone: its certificate, its key, and the authority that has signed them.
    pub(crate) fn start_with_tls(program: &Path, parent: &Path, files: [&Path; 3]) -> Result<Self> {
        let doors = Doors::Tls(files.map(Path::to_owned));
        Self::start_in(program, parent.join("redis-tls"), doors)
    }

    fn start_in(program: &Path, folder: PathBuf, doors: Doors) -> Result<Self> {
        std::fs::create_dir(&folder)?;
        let password = random_password()?;
        let start = |recipe: &Recipe<'_>| recipe.start();
        let (server, port) = with_recipe(program, &folder, &password, &doors, start)?;
        let url = match &doors {
            Doors::Plain => format!("redis://:{password}@127.0.0.1:{port}/"),
            Doors::Tls([_, _, authority]) => {
                let trusted = authority.display();
                format!("rediss://:{password}@127.0.0.1:{port}/?sslrootcert={trusted}")
            }
        };
        let program = program.to_owned();
        Ok(Self { server: Some(server), program, folder, password, doors, port, url })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn password(&self) -> &str {
        &self.password
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
        let (program, folder) = (&self.program, &self.folder);
        self.server = Some(with_recipe(program, folder, &self.password, &self.doors, start)?);
        Ok(())
    }
}

fn with_recipe<T>(
    program: &Path,
    folder: &Path,
    password: &str,
    doors: &Doors,
    start: impl FnOnce(&Recipe<'_>) -> Result<T>,
) -> Result<T> {
    let config_file = folder.join("redis.conf");
    let command = |port| {
        write_config(&config_file, &config(folder, port, password, doors))?;
        let mut command = tied_to_us(program, "TERM");
        command.arg(&config_file).current_dir(folder);
        Ok(command)
    };
    let log = folder.join("log");
    let ready = |port| match doors {
        Doors::Plain => answers(port, password).unwrap_or(false),
        Doors::Tls(_) => read_log(&log).contains(READY),
    };
    start(&Recipe {
        name: "redis",
        log: log.clone(),
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

fn config(folder: &Path, port: u16, password: &str, doors: &Doors) -> String {
    let ports = match doors {
        Doors::Plain => format!("port {port}"),
        Doors::Tls([certificate, key, _]) => format!(
            "port 0\n\
             tls-port {port}\n\
             tls-cert-file \"{}\"\n\
             tls-key-file \"{}\"\n\
             tls-auth-clients no",
            certificate.display(),
            key.display()
        ),
    };
    format!(
        "bind 127.0.0.1\n\
         {ports}\n\
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

//! A private PostgreSQL: a fresh cluster with a random password, fsync left on.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::find::PostgresPrograms;
use super::process::{Recipe, Server, connect, read_log, tied_to_us};
use super::random_password;
use super::user::User;
use crate::repo;

const USER: &str = "semel";
const CONNECTIONS_MAX: u32 = 400;

/// Our server's log says so, whoever else may answer on the port.
const READY: &str = "database system is ready to accept connections";

/// `SSLRequest`: the shortest message that every PostgreSQL answers, with one byte.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// A running cluster, which can be stopped and started again at the same place.
pub(crate) struct Postgres {
    /// `None` while it is stopped.
    server: Option<Server>,
    programs: PostgresPrograms,
    user: Option<User>,
    folder: PathBuf,
    port: u16,
    url: String,
    password: String,
}

/// How it is spoken to over TCP.
#[derive(Debug, Clone, Copy)]
pub(super) enum Doors<'a> {
    Plain,
    /// In TLS alone, with this certificate, this key and this authority for clients.
    Tls([&'a Path; 3]),
}

impl Postgres {
    /// Makes a cluster in a folder of its own under `parent`, and returns when it answers.
    pub(crate) fn start(programs: &PostgresPrograms, parent: &Path) -> Result<Self> {
        Self::start_with(programs, parent.join("postgres"), Doors::Plain)
    }

    /// The same, which speaks TLS alone over TCP: its certificate, its key, and the authority that
    /// has signed them.
    pub(crate) fn start_with_tls(
        programs: &PostgresPrograms,
        parent: &Path,
        files: [&Path; 3],
    ) -> Result<Self> {
        Self::start_with(programs, parent.join("postgres"), Doors::Tls(files))
    }

    /// The same in this folder, which nothing is in yet.
    pub(super) fn start_with(
        programs: &PostgresPrograms,
        folder: PathBuf,
        doors: Doors<'_>,
    ) -> Result<Self> {
        let user = User::for_postgres()?;
        fs::create_dir(&folder)?;
        own(user, &folder)?;

        let password = random_password()?;
        init(programs, user, &folder, &password)?;
        if let Doors::Tls(files) = doors {
            secure(user, &folder, files)?;
        }

        let (server, port) = with_recipe(programs, user, &folder, |recipe| recipe.start())?;
        let query = match doors {
            Doors::Plain => String::new(),
            Doors::Tls([_, _, authority]) => {
                format!("?sslmode=verify-full&sslrootcert={}", authority.display())
            }
        };
        let url = format!("postgres://{USER}:{password}@127.0.0.1:{port}/postgres{query}");
        let programs = programs.clone();
        Ok(Self { server: Some(server), programs, user, folder, port, url, password })
    }

    /// Its port, and the password of its user.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn password(&self) -> &str {
        &self.password
    }

    /// The URL of its `postgres` database, over TCP.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The same over its Unix socket, where nobody speaks TLS.
    pub(crate) fn socket_url(&self) -> String {
        let folder = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://{USER}:{}@{folder}:{}/postgres", self.password, self.port)
    }

    /// Ends every session and stops; what was committed is on disk.
    pub(crate) fn stop(&mut self) {
        self.server = None;
    }

    /// Stops at once, as in a crash: the next start has to recover.
    pub(crate) fn crash(&mut self) -> Result<()> {
        let server = self.server.take();
        server.map_or(Ok(()), |mut server| server.end_by(Signal::QUIT))
    }

    /// Returns when it answers again.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        let port = self.port;
        let start = |recipe: &Recipe<'_>| recipe.start_on(port);
        self.server = Some(with_recipe(&self.programs, self.user, &self.folder, start)?);
        Ok(())
    }
}

/// Nobody wants what is in it any more: writing it all out first would take long after many tests.
impl Drop for Postgres {
    fn drop(&mut self) {
        if let Err(error) = self.crash() {
            eprintln!("xtask: cannot stop postgres: {error:#}");
        }
    }
}

fn with_recipe<T>(
    programs: &PostgresPrograms,
    user: Option<User>,
    folder: &Path,
    start: impl FnOnce(&Recipe<'_>) -> Result<T>,
) -> Result<T> {
    let log = folder.join("log");
    let command = |port| Ok(command(programs, user, folder, port));
    let ready = |port| read_log(&log).contains(READY) && answers(port).unwrap_or(false);
    start(&Recipe {
        name: "postgres",
        log: log.clone(),
        // "Fast shutdown": end the sessions, then write everything and stop.
        stop: Signal::INT,
        command: &command,
        ready: &ready,
    })
}

fn init(
    programs: &PostgresPrograms,
    user: Option<User>,
    folder: &Path,
    password: &str,
) -> Result<()> {
    let password_file = folder.join("password");
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&password_file)?;
    writeln!(file, "{password}")?;
    own(user, &password_file)?;

    let mut command = Command::new(&programs.initdb);
    command
        .arg("--pgdata")
        .arg(folder.join("data"))
        .arg("--pwfile")
        .arg(&password_file)
        .args(["--username", USER, "--auth", "scram-sha-256"])
        .args(["--encoding", "UTF8", "--locale", "C"])
        .current_dir(folder);
    run_as(user, &mut command);
    let output =
        command.output().with_context(|| format!("cannot run {}", repo::line(&command)))?;
    ensure!(
        output.status.success(),
        "initdb ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    fs::remove_file(&password_file)?;
    Ok(())
}

/// TLS alone over TCP; one user shows a certificate instead of a password. The server's user must
/// own its key.
fn secure(user: Option<User>, folder: &Path, files: [&Path; 3]) -> Result<()> {
    let data = folder.join("data");
    let mut settings = OpenOptions::new().append(true).open(data.join("postgresql.conf"))?;
    writeln!(settings, "ssl = on")?;
    let kinds = [("ssl_cert_file", 0o644), ("ssl_key_file", 0o600), ("ssl_ca_file", 0o644)];
    for ((setting, mode), from) in kinds.into_iter().zip(files) {
        let to = data.join(setting);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&to)?;
        file.write_all(&fs::read(from)?)?;
        own(user, &to)?;
        writeln!(settings, "{setting} = '{setting}'")?;
    }
    let doors = "local all all scram-sha-256\n\
                 hostssl all semel_client all cert\n\
                 hostssl all all all scram-sha-256\n";
    fs::write(data.join("pg_hba.conf"), doors)?;
    Ok(())
}

/// fsync and `synchronous_commit` keep their safe defaults: the tests are about durability.
fn command(programs: &PostgresPrograms, user: Option<User>, folder: &Path, port: u16) -> Command {
    let mut command = tied_to_us(&programs.postgres, "INT");
    command
        .arg("-D")
        .arg(folder.join("data"))
        .args(["-p", &port.to_string()])
        .args(["-c", "listen_addresses=127.0.0.1"])
        .args(["-c", &format!("unix_socket_directories={}", folder.display())])
        .args(["-c", &format!("max_connections={CONNECTIONS_MAX}")])
        .current_dir(folder);
    run_as(user, &mut command);
    command
}

fn answers(port: u16) -> std::io::Result<bool> {
    let mut stream = connect(port)?;
    stream.write_all(&SSL_REQUEST)?;
    let mut answer = [0];
    stream.read_exact(&mut answer)?;
    Ok(matches!(answer, [b'S' | b'N']))
}

fn run_as(user: Option<User>, command: &mut Command) {
    if let Some(user) = user {
        user.run(command);
    }
}

fn own(user: Option<User>, path: &Path) -> Result<()> {
    user.map_or(Ok(()), |user| user.own(path))
}

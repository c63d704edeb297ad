//! Which engine a command means: that of the home's daemon, one that runs alone in the home, or one
//! that is named by its address.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use semel_client::Client;
use semel_wire::place::{Plain, may_be_plain};

use crate::daemon::home::home_words;
use crate::exit::{Exit, Failure, Form};
use crate::local::{Daemon, Local};

/// Bytes of a token's file that are read: more is no token.
const TOKEN_BYTES_MAX: usize = 4096;

/// Which engine is meant, and how it answers.
#[derive(Debug, clap::Args)]
pub(crate) struct Place {
    /// Address of an engine on this host, as `semel job serve` prints it
    #[arg(long, value_name = "URL", global = true, requires = "engine_token_file")]
    engine: Option<String>,
    /// File with the engine's token: jobs/local_token in its home
    #[arg(long, value_name = "FILE", global = true, requires = "engine")]
    engine_token_file: Option<PathBuf>,
    #[command(flatten)]
    local: Local,
}

impl Place {
    pub(crate) fn form(&self) -> Form {
        self.local.form()
    }

    /// The engine. A daemon that has none does not hide one that runs alone in the same home.
    pub(crate) async fn daemon(&self) -> Result<Daemon, Failure> {
        if let (Some(url), Some(file)) = (&self.engine, &self.engine_token_file) {
            return self.at(url, file);
        }
        match self.local.daemon().await {
            Ok(daemon) if has_jobs(&daemon.client).await => Ok(daemon),
            Ok(_) => self.alone().await?.ok_or_else(|| {
                let text = "error: this daemon runs without a job engine\n\
                            to start one: semel job serve";
                Failure::new(Exit::Unavailable, text)
            }),
            Err(failure) => self.alone().await?.ok_or(failure),
        }
    }

    /// The engine that runs alone in this home, if it answers.
    async fn alone(&self) -> Result<Option<Daemon>, Failure> {
        let root = self.local.root()?;
        let client = Client::socket(root.join("jobs/sock"));
        let answers = client.get("/v1/version").await.is_ok_and(|answer| answer.is_success());
        let start = format!("semel job serve{}", home_words(&root));
        Ok(answers.then(|| Daemon { client, start, form: self.form() }))
    }

    fn at(&self, url: &str, token_file: &Path) -> Result<Daemon, Failure> {
        let usage = |text: String| Failure::new(Exit::Usage, format!("error: {text}"));
        let address = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let address: Option<SocketAddr> = address.and_then(|address| address.parse().ok());
        // The token would be read on the way to anywhere else.
        let is_here = |address: &SocketAddr| may_be_plain(address.ip(), Plain::LoopbackOnly);
        let address = address.filter(is_here).ok_or_else(|| {
            usage(
                "--engine must be an address of this host, for example http://127.0.0.1:7119"
                    .into(),
            )
        })?;
        let read = std::fs::read_to_string(token_file);
        let token = read.map_err(|error| usage(format!("{}: {error}", token_file.display())))?;
        let token = token.trim();
        if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
            return Err(usage(format!("{} holds no token", token_file.display())));
        }
        let start = "semel job serve".to_owned();
        Ok(Daemon { client: Client::tcp(address, token), start, form: self.form() })
    }
}

/// Whether the daemon has an engine; one that does not answer now is asked again by its caller.
async fn has_jobs(client: &Client) -> bool {
    client.get("/v1/jobs?limit=1").await.is_ok_and(|answer| answer.status != 404)
}

//! `semel job artifact`: fetches a file that a step gave, and looks whether it is that file.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write, stdout};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use semel_client::Download;
use semel_core::hex::Hex;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::place::Place;
use super::verbs::path;
use crate::exit::{Exit, Failure, Form};
use crate::local::{Daemon, no_daemon};
use crate::progress;
use crate::system::stopped;

/// Fetch a file that a step of a job produced
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  semel job artifact ID SHA256 --output page.html")]
pub(super) struct Arguments {
    /// The job's id, or the id of a job that repeats it
    id: String,
    /// The file's hash, as the step's result shows it
    sha256: String,
    /// File to write; it must not exist yet. Default: standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let form = arguments.place.form();
    let hash = Hex::parse(&arguments.sha256);
    let hash: Hex<32> = hash.map_err(|refusal| Failure::refused(&refusal, form))?;
    let usage = |text: &str| Err(Failure::new(Exit::Usage, format!("error: {text}")));
    match &arguments.output {
        None if stdout().is_terminal() => {
            return usage(
                "the file is not written to a terminal\nname a file for it: --output FILE",
            );
        }
        None if form == Form::Json => return usage("--json needs --output FILE"),
        None | Some(_) => {}
    }
    let daemon = arguments.place.daemon().await?;
    let address = path(&arguments.id, &format!("/artifact?sha256={hash}"));
    let download = daemon.client.download(&address).await;
    let mut download = match download.map_err(|error| no_daemon(&error, &daemon.start))? {
        Ok(download) => download,
        Err(refused) => return daemon.checked(refused).map(drop),
    };
    match &arguments.output {
        None => fetch(&daemon, &mut download, hash, &mut stdout()).await.map(drop),
        Some(path) => {
            let bytes = into_file(&daemon, &mut download, hash, path).await?;
            let document = json!({"file": path, "sha256": hash.to_string(), "bytes": bytes});
            daemon.show(&document, |_| format!("{} has {bytes} bytes\n", path.display()))
        }
    }
}

/// Into a file that was not there. It stays only if it is whole and what was asked for.
async fn into_file(
    daemon: &Daemon,
    download: &mut Download,
    hash: Hex<32>,
    path: &Path,
) -> Result<u64, Failure> {
    let stopped = stopped().map_err(not_written)?;
    let mut file =
        File::options().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
            let (exit, why) = match error.kind() == ErrorKind::AlreadyExists {
                true => (Exit::Conflict, "exists already".to_owned()),
                false => (Exit::Failed, format!("cannot be made: {error}")),
            };
            Failure::new(exit, format!("error: {} {why}", path.display()))
        })?;
    let fetched = tokio::select! {
        fetched = fetch(daemon, download, hash, &mut file) => fetched,
        () = stopped => Err(Failure::new(Exit::Failed, "error: the download was stopped")),
    };
    let synced = fetched.and_then(|bytes| file.sync_all().map(|()| bytes).map_err(not_written));
    if synced.is_err() {
        // Why it failed is what is told.
        let _ = std::fs::remove_file(path);
    }
    synced
}

/// Copies it, piece by piece; gives its length.
async fn fetch(
    daemon: &Daemon,
    download: &mut Download,
    wanted: Hex<32>,
    to: &mut impl Write,
) -> Result<u64, Failure> {
    let _shown = progress::show("fetching the file");
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    while let Some(piece) =
        download.next().await.map_err(|error| no_daemon(&error, &daemon.start))?
    {
        hash.update(&piece);
        to.write_all(&piece).map_err(not_written)?;
        bytes += u64::try_from(piece.len()).unwrap_or(0);
    }
    to.flush().map_err(not_written)?;
    if Hex(hash.finalize().into()) == wanted {
        return Ok(bytes);
    }
    let text = "error: the received file does not have that hash: the engine's copy is damaged";
    Err(Failure::new(Exit::Failed, text))
}

fn not_written(error: std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("error: the file was not written: {error}"))
}

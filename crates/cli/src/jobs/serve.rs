//! `semel job serve`: an engine alone, over a store that it may share with others.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use semel_api::Api;
use semel_api::access::Tokens;
use semel_api::door::{Listener, bind_socket, serve};
use semel_core::clock::{Clock, SystemClock};
use semel_jobs::http;
use semel_registrar::limits::RETENTION_DAYS_DEFAULT;
use semel_registrar::local;
use semel_vital::Vital;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::Signal;
use tokio::sync::watch;

use super::{RunningJobs, Start, about, config};
use crate::address::StoreFile;
use crate::broker::{registrar, token};
use crate::checks;
use crate::daemon::home::HomeArgument;
use crate::daemon::running::room;
use crate::exit::{Exit, Failure, Form};
use crate::system::{
    SERVING_THREADS, hung_up, loopback, on_loopback, plant, refuse_few_threads, stop_after, stopped,
};
use crate::{announce, budget, log};

/// Run a job engine as a process of its own
///
/// Several engines may share a store in PostgreSQL: each takes jobs that the others have not taken.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// `postgres://…`; default: embedded SQLite
    #[arg(long)]
    store: Option<String>,
    #[command(flatten)]
    store_file: StoreFile,
    /// Socket of the daemon that sends messages for the engine's jobs
    #[arg(long, value_name = "SOCKET")]
    daemon: Option<PathBuf>,
    /// Address of the engine's API besides its socket
    #[arg(long, value_name = "ADDRESS", value_parser = on_loopback)]
    api_listen: Option<SocketAddr>,
    /// Days that the registrar of approvals keeps expired grants; it keeps used grants for ever
    #[arg(long, value_name = "DAYS", default_value_t = RETENTION_DAYS_DEFAULT)]
    registrar_retention_days: u32,
    #[command(flatten)]
    home: HomeArgument,
    /// Print the ready line as JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    log::to_stderr()?;
    refuse_few_threads(SERVING_THREADS)?;
    budget::raise();
    let refused = |text: String| Failure::new(Exit::Refused, format!("error: {text}"));
    let root = arguments.home.find()?;
    let shutdown = stopped().map_err(|error| refused(error.to_string()))?;
    let reload = hung_up()?;
    let retention = registrar::retention(arguments.registrar_retention_days)?;
    checks::refuse(checks::serve(&root))?;
    let store = arguments.store_file.address(arguments.store.as_ref())?;
    if let Some(store) = &store {
        store.warn_if_seen("--store");
    }
    let (store, daemon) = (store.as_ref(), arguments.daemon.clone());
    let mut jobs = RunningJobs::open(Start { root: &root, store, daemon, retention }).await?;
    let folder = root.join("jobs");
    let tokens = Arc::new(FileToken(token::load(&folder.join("local_token"))?));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let engine = || Arc::clone(&jobs.engine);
    let registrar = local::part(Arc::clone(jobs.engine.registrar()));
    let parts = vec![about::part(engine()), http::part(engine(), jobs.loader()), registrar];
    let api = Api::new(room(), tokens, clock, parts);
    let socket = folder.join("sock");
    let ((stop, stopping), vital) = (watch::channel(false), Vital::default());
    plant(&vital, "job");
    let ends = || {
        let mut stopping = stopping.clone();
        async move { drop(stopping.wait_for(|stop| *stop).await) }
    };
    let listener = bind_socket(&socket).map_err(|error| refused(error.to_string()))?;
    let serving = serve(Arc::clone(&api), Listener::Socket(listener), ends());
    let mut doors = vec![vital.spawn("socket", serving)];
    let listen = arguments.api_listen.unwrap_or(loopback(0));
    let listener = TcpListener::bind(listen).await;
    let listener = listener
        .map_err(|error| Failure::new(Exit::Unavailable, format!("error: {listen}: {error}")))?;
    let address = listener.local_addr().map_err(|error| refused(error.to_string()))?;
    let serving = serve(Arc::clone(&api), Listener::Tcp(listener), ends());
    doors.push(vital.spawn("api", serving));
    jobs.work()?;
    let (socket, api) = (socket.display().to_string(), format!("http://{address}"));
    match Form::of_flag(arguments.json) {
        Form::Json => {
            let ready = json!({"event": "ready", "socket": socket, "api": api});
            announce(&format!("{ready}\n"));
        }
        Form::Text => {
            announce(&format!("the engine is ready\n  socket  {socket}\n  api     {api}\n"));
        }
    }
    let ended = tokio::select! {
        () = shutdown => None,
        failure = jobs.ended() => Some(failure),
        ended = vital.ended() => Some(ended.into()),
        failure = reloading(&folder, reload) => Some(failure),
    };
    let stopping = async {
        jobs.stop().await;
        vital.stop();
        stop.send_replace(true);
        for door in doors {
            let _ = door.await;
        }
        Ok(())
    };
    stop_after(ended, stopping).await
}

/// Nothing of an engine changes while it runs: whoever asks is told so, and whether a restart would
/// take the file.
async fn reloading(folder: &Path, mut asked: Signal) -> Failure {
    while asked.recv().await.is_some() {
        match config(folder) {
            Ok(_) => tracing::warn!("jobs/config.toml is valid; it is read only at a start"),
            Err(failure) => tracing::error!(error = failure.text, "jobs/config.toml is refused"),
        }
    }
    std::future::pending().await
}

/// One token, in a file of its own.
struct FileToken(semel_broker::http::AdminToken);

impl Tokens for FileToken {
    fn number_of(&self, presented: &str) -> Option<u64> {
        self.0.is(presented).then_some(0)
    }
}

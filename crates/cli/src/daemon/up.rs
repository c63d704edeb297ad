//! `semel daemon up`.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::SystemClock;
use semel_daemon::engine::Access;
use semel_daemon::environment::{Facts, IdentityKind, Switch, VARIABLES, environment};
use semel_daemon::logfile::{LogFile, Rotation};
use serde_json::json;
use tokio::signal::unix::Signal;

use super::detach::detach;
use super::ephemeral::IdentityArguments;
use super::running::{RunningDaemon, Start, usual_api};
use super::tls::{PlainText, Trust};
use crate::exit::{Exit, Failure, Form};
use crate::local::Local;
use crate::started::{Kind, Started};
use crate::system::{
    SERVING_THREADS, hung_up, on_loopback, refuse_few_threads, stop_after, stopped,
};
use crate::{announce, budget, log};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  semel daemon up --mesh ops
  semel daemon up --mesh ops --detach
  semel daemon up --mesh ops --api-listen 127.0.0.1:0 --json
  SEMEL_INVITE=semel://join/… semel daemon up --ephemeral --ttl 2h --detach
  semel daemon up --mesh ops --read-only")]
pub(crate) struct Arguments {
    /// Address of the local API besides its socket; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", value_parser = on_loopback)]
    api_listen: Option<SocketAddr>,
    /// Serve the local API on its socket only
    #[arg(long, conflicts_with = "api_listen")]
    no_tcp: bool,
    /// Run in the background; return when it is ready
    #[arg(long)]
    detach: bool,
    /// Use the defaults of a container on any host: keep the member, and serve the local API on the
    /// socket only. CI, Kubernetes and RunPod keep their own defaults
    #[arg(long)]
    container: bool,
    #[command(flatten)]
    identity: IdentityArguments,
    /// Show what is still readable in damaged files; nothing is sent, received or written
    #[arg(long, conflicts_with = "ephemeral")]
    read_only: bool,
    /// Write the log to daemon.log instead of stderr
    #[arg(long, hide = true)]
    log_file: bool,
    #[command(flatten)]
    trust: Trust,
    #[command(flatten)]
    plain: PlainText,
    #[command(flatten)]
    local: Local,
}

pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    refuse_few_threads(SERVING_THREADS)?;
    budget::raise();
    let found = environment(&facts(arguments));
    let (home, ephemeral) = arguments.identity.choose(found.identity, &arguments.local)?;
    if arguments.detach {
        return detach(home.folder(), &std::env::args().skip(1).collect::<Vec<_>>()).await;
    }
    if arguments.log_file {
        let file = LogFile::new(&home, Rotation::default(), Arc::new(SystemClock::new()));
        log::to_file(file)?;
    } else {
        log::to_stderr()?;
    }
    let reload = hung_up()?;
    let config = semel_daemon::config::Config::read(&home).unwrap_or_default();
    let place = found.with(&config);
    if let Some(remark) = place.remark {
        tracing::info!(remark, "the defaults follow from the environment");
    }
    let tcp = !arguments.no_tcp && (arguments.api_listen.is_some() || place.tcp == Switch::On);
    let api_listen = tcp.then(|| arguments.api_listen.unwrap_or_else(usual_api));
    let shutdown = stopped()
        .map_err(|error| Failure::new(Exit::Failed, format!("error: signals: {error}")))?;
    let ttl = ephemeral.as_ref().and_then(|ephemeral| ephemeral.ttl);
    let access = if arguments.read_only { Access::ReadOnly } else { Access::Full };
    let (parts, plain, trust) = (Vec::new(), arguments.plain.plain(), arguments.trust.clone());
    let to_start =
        Start { home, api_listen, trust, certificate: None, plain, parts, ephemeral, access };
    let daemon = start(to_start, arguments.api_listen.is_some()).await?;
    daemon.note(&started(arguments));
    ready(&daemon, arguments.local.form());
    // Whatever happens from here on, it ends in order.
    let ended = until_end(&daemon, shutdown, reload, ttl).await;
    stop_after(ended, daemon.stop()).await
}

/// What the next start in the background is to say.
fn started(arguments: &Arguments) -> Started {
    Started::new(Kind::Daemon)
        .flag("--no-tcp", arguments.no_tcp)
        .value("--api-listen", arguments.api_listen)
        .flag("--container", arguments.container)
        .flag("--read-only", arguments.read_only)
        .file("--broker-ca", arguments.trust.path())
}

/// Comes back when somebody says so, when its time is over, or when it must: why it must.
async fn until_end(
    daemon: &RunningDaemon,
    shutdown: impl Future<Output = ()>,
    mut reload: Signal,
    ttl: Option<Duration>,
) -> Option<Failure> {
    let over = async {
        match ttl {
            Some(ttl) => tokio::time::sleep(ttl).await,
            None => std::future::pending().await,
        }
    };
    let (mut shutdown, mut over) = (std::pin::pin!(shutdown), std::pin::pin!(over));
    loop {
        tokio::select! {
            () = &mut shutdown => return None,
            () = &mut over => {
                tracing::info!("the member's time has ended: it leaves the mesh");
                return None;
            }
            failure = daemon.ended() => return Some(failure),
            _ = reload.recv() => daemon.reload(),
        }
    }
}

/// A usual port that is taken is not fatal: another one is as good.
async fn start(start: Start, port_was_asked_for: bool) -> Result<RunningDaemon, Failure> {
    let free = start.api_listen.map(|address| SocketAddr::new(address.ip(), 0));
    let taken = match start.api_listen {
        Some(address) if !port_was_asked_for => std::net::TcpListener::bind(address).is_err(),
        Some(_) | None => false,
    };
    let api_listen = if taken { free } else { start.api_listen };
    RunningDaemon::start(Start { api_listen, ..start }).await
}

fn ready(daemon: &RunningDaemon, form: Form) {
    let api = daemon.api.map(|address| format!("http://{address}"));
    let socket = daemon.socket.display().to_string();
    match form {
        Form::Json => {
            let ready = json!({
                "event": "ready",
                "mesh": daemon.mesh,
                "socket": socket,
                "api": api,
                "token_file": daemon.token_file().display().to_string(),
                "member_id": daemon.membership.member_id.to_string(),
                "pubkey": daemon.pubkey,
                "broker": daemon.membership.broker,
                "identity": daemon.kind.as_str(),
            });
            announce(&format!("{ready}\n"));
        }
        Form::Text => {
            let api = api.map(|api| format!("\n  api     {api}")).unwrap_or_default();
            let member = match daemon.kind {
                IdentityKind::Persistent => String::new(),
                IdentityKind::Ephemeral => {
                    format!("\n  member  {:?}, until it ends", daemon.membership.name)
                }
            };
            announce(&format!("the daemon is ready\n  socket  {socket}{api}{member}\n"));
        }
    }
}

/// What the machine looks like.
fn facts(arguments: &Arguments) -> Facts {
    let variable = |name: &&str| {
        let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
        Some(((*name).to_owned(), value))
    };
    Facts {
        variables: VARIABLES.iter().filter_map(variable).collect(),
        dockerenv: Path::new("/.dockerenv").exists(),
        cgroup: std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
        container_flag: arguments.container,
        // What is read is there already: it is of a member that is kept.
        identity_flag: match arguments.read_only {
            true => Some(IdentityKind::Persistent),
            false => arguments.identity.flag(),
        },
    }
}

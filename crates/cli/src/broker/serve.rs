//! `semel broker serve`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use semel_broker::connection::Broker;
use semel_broker::hints::Hints;
use semel_broker::housekeeping;
use semel_broker::hub::Hub;
use semel_broker::life::StoreLife;
use semel_broker::limiter::{Fallback, FallbackMode, Limiter};
use semel_broker::limits::Timings;
use semel_broker::pipeline::Pipeline;
use semel_broker::roster::Rosters;
use semel_broker::server;
use semel_core::clock::{Clock, SystemClock};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::target::{self, failed, mint, random_bytes, refused};
use super::tls::Tls;
use super::token;
use crate::exit::{Exit, Failure};
use crate::print;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where daemons connect; port 0 picks a free one, and the ready line says which
    #[arg(long, default_value = "127.0.0.1:7117")]
    listen: SocketAddr,

    #[command(flatten)]
    target: target::Target,

    /// `memory`, or `redis://…` when several brokers share a store
    #[arg(long, default_value = "memory")]
    limiter: String,

    /// What happens when the limiter's server is away: `local` or `closed`
    #[arg(long, default_value = "local")]
    limiter_fallback: String,

    /// How many brokers share the limit while its server is away
    #[arg(long, default_value = "1")]
    brokers: NonZeroU32,

    #[command(flatten)]
    tls: Tls,

    /// Holds the token of operator calls over HTTP, readable by its owner alone; made when missing
    #[arg(long)]
    admin_token_file: Option<PathBuf>,

    /// Say that it is ready as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Bind, open, serve, wait: in this order, so that a taken port is told before a store is touched.
pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let tls = arguments.tls.open(arguments.listen)?;
    tracing_subscriber::fmt().json().with_writer(std::io::stderr).init();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let limiter = limiter(arguments, &clock)?;
    let admin_token = arguments.admin_token_file.as_deref().map(token::load).transpose()?;
    let io = |error: std::io::Error| {
        Failure::new(Exit::Unavailable, format!("error: {}: {error}", arguments.listen))
    };
    let listener = TcpListener::bind(arguments.listen).await.map_err(io)?;
    let address = listener.local_addr().map_err(io)?;
    let store = arguments.target.open().await?;
    let (hub, mint) = (Arc::new(Hub::default()), mint());
    let broker_id = mint.uuid();
    let hints = Hints::over(&store, broker_id, Arc::clone(&hub)).map_err(refused)?;
    let hints = hints.map(|(hints, service)| {
        drop(tokio::spawn(service.run()));
        hints
    });
    let store_epoch = store.store_epoch().await.map_err(|error| failed(&error))?;
    let life = StoreLife::new(store_epoch);
    let hints_too = hints.clone();
    let (clock_too, hub_too) = (Arc::clone(&clock), Arc::clone(&hub));
    let pipeline =
        Pipeline::with_hints(store.clone(), life.clone(), limiter, clock_too, hub_too, hints_too);
    let broker = Arc::new(Broker {
        broker_id,
        store,
        pipeline,
        hub,
        clock,
        mint,
        nonces: Arc::new(random_bytes),
        hints,
        rosters: Rosters::default(),
        life,
        timings: Timings::default(),
        admin_token,
    });
    let shutdown = stopped().map_err(io)?;
    // It ends with the process: every step of it is one transaction.
    drop(tokio::spawn(housekeeping::run(
        broker.store.clone(),
        Arc::clone(&broker.clock),
        Arc::clone(broker.pipeline.metrics()),
        std::future::pending(),
    )));
    let scheme = if tls.is_some() { "wss" } else { "ws" };
    let url = format!("{scheme}://{address}/v1/mesh");
    if arguments.json {
        let ready = json!({"event": "ready", "broker": url, "broker_id": broker_id.to_string()});
        print(&format!("{ready}\n"))?;
    } else {
        print(&format!("the broker is ready at {url}\n"))?;
    }
    let options = server::Options { tls, ..server::Options::default() };
    server::serve_with(options, broker, listener, shutdown).await.map_err(io)
}

fn limiter(arguments: &Arguments, clock: &Arc<dyn Clock>) -> Result<Limiter, Failure> {
    if arguments.limiter == "memory" {
        return Ok(Limiter::memory(Arc::clone(clock)));
    }
    let usage = |text: String| Failure::new(Exit::Usage, text);
    let mode = FallbackMode::parse(&arguments.limiter_fallback)
        .ok_or_else(|| usage("error: --limiter-fallback is local or closed".to_owned()))?;
    let fallback = Fallback { mode, brokers: arguments.brokers };
    Limiter::redis(&arguments.limiter, Arc::clone(clock), fallback)
        .map_err(|error| usage(format!("error: --limiter: {error}")))
}

/// SIGTERM and SIGINT both mean: finish what is under way, then end.
fn stopped() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

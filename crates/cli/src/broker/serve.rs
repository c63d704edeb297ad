//! `semel broker serve`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use semel_broker::connection::Broker;
use semel_broker::hints::Hints;
use semel_broker::housekeeping;
use semel_broker::http::AdminToken;
use semel_broker::hub::Hub;
use semel_broker::life::StoreLife;
use semel_broker::limiter::{Fallback, FallbackMode, Limiter, LimiterAddressError};
use semel_broker::limits::Timings;
use semel_broker::pipeline::Pipeline;
use semel_broker::roster::Rosters;
use semel_broker::server;
use semel_broker::store::Store;
use semel_core::clock::{Clock, SystemClock};
use semel_registrar::limits::RETENTION_DAYS_DEFAULT;
use semel_vital::{Ended, Vital};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::Signal;
use tokio::sync::oneshot;

use super::registrar;
use super::target::{self, failed, mint, random_bytes, refused};
use super::tls::{Certificate, Tls};
use super::token;
use crate::address::{Address, LimiterArguments};
use crate::exit::{Exit, Failure, PLAIN_TEXT_PAGE, chain};
use crate::system::{SERVING_THREADS, hung_up, plant, refuse_few_threads, stop_after, stopped};
use crate::{announce, budget, log};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Address for daemons to connect to; port 0 picks a free port, which the ready line shows
    #[arg(long, default_value = "127.0.0.1:7117")]
    listen: SocketAddr,

    #[command(flatten)]
    target: target::Target,

    #[command(flatten)]
    limiter: LimiterArguments,

    /// While the limiter's server is unreachable: `local` (this broker counts) or `closed` (refuse)
    #[arg(long, default_value = "local")]
    limiter_fallback: String,

    /// Number of brokers that share the limit while its server is unreachable
    #[arg(long, default_value = "1")]
    brokers: NonZeroU32,

    #[command(flatten)]
    tls: Tls,

    /// File with the token of operator calls over HTTP, readable by its owner only; made if missing
    #[arg(long)]
    pub(super) admin_token_file: Option<PathBuf>,

    /// File with the key that signs grants of the registrar, readable by its owner only; made if
    /// missing. Default: beside the admin token, as FILE.authority
    #[arg(long)]
    pub(super) authority_file: Option<PathBuf>,

    /// Days that the registrar keeps attempts, refusals and expired grants; it keeps used keys and
    /// grants for ever
    #[arg(long, value_name = "DAYS", default_value_t = RETENTION_DAYS_DEFAULT)]
    pub(super) registrar_retention_days: u32,

    /// Print the ready line as JSON
    #[arg(long)]
    json: bool,
}

/// Bind, open, serve, wait: in this order, so that a taken port is told before a store is touched.
pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let reload = hung_up()?;
    let certificate = arguments.tls.open(arguments.listen)?;
    log::to_stderr()?;
    refuse_few_threads(SERVING_THREADS)?;
    budget::raise();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let limiter = limiter(arguments, &clock)?;
    let admin_token = arguments.admin_token_file.as_deref().map(token::load).transpose()?;
    let io = |error: std::io::Error| {
        Failure::new(Exit::Unavailable, format!("error: {}: {error}", arguments.listen))
    };
    let listener = TcpListener::bind(arguments.listen).await.map_err(io)?;
    let address = listener.local_addr().map_err(io)?;
    let store = arguments.target.open_to_serve().await?;
    let vital = Vital::default();
    plant(&vital, "broker");
    let routes = registrar::routes(arguments, &vital, &store, &clock, admin_token.clone()).await?;
    let broker = assemble(&vital, Store::clone(&store), limiter, clock, admin_token).await?;
    let shutdown = stopped().map_err(io)?;
    let scheme = if certificate.is_some() { "wss" } else { "ws" };
    let url = format!("{scheme}://{address}/v1/mesh");
    if arguments.json {
        let broker_id = broker.broker_id.to_string();
        let ready = json!({"event": "ready", "broker": url, "broker_id": broker_id});
        announce(&format!("{ready}\n"));
    } else {
        announce(&format!("the broker is ready at {url}\n"));
    }
    let tls = certificate.as_ref().map(|certificate| Arc::clone(&certificate.config));
    let connections = server::room(budget::now().broker);
    let options = server::Options { tls, routes, connections, ..server::Options::default() };
    let (stop, stopping) = oneshot::channel::<()>();
    let shutdown = async {
        tokio::select! {
            () = shutdown => {}
            _ = stopping => {}
        }
    };
    let mut serving = pin!(server::serve_with(options, broker, listener, shutdown));
    let ended = tokio::select! {
        served = &mut serving => return served.map_err(|error| broken(&error)),
        ended = vital.ended() => ended.into(),
        failure = reloading(certificate.as_ref(), reload) => failure,
    };
    let _ = stop.send(());
    let stopping = async { serving.await.map_err(|error| broken(&error)) };
    stop_after(Some(ended), stopping).await
}

/// Reads the certificate again, each time that somebody asks for it.
async fn reloading(certificate: Option<&Certificate>, mut asked: Signal) -> Failure {
    while asked.recv().await.is_some() {
        match certificate.map(Certificate::reload) {
            Some(Ok(())) => tracing::info!("the certificate was reloaded"),
            Some(Err(failure)) => {
                tracing::error!(error = failure.text, "the old certificate stays in use");
            }
            None => tracing::info!("there is no certificate to reload"),
        }
    }
    std::future::pending().await
}

/// Why the door was closed before anybody has said so.
pub(crate) fn broken(error: &std::io::Error) -> Failure {
    let ended = error.get_ref().and_then(|source| source.downcast_ref::<Ended>());
    match ended {
        Some(ended) => (*ended).into(),
        None => Failure::new(Exit::Unavailable, format!("error: the broker: {error}")),
    }
}

/// A broker over this store, with everything that works beside it.
pub(crate) async fn assemble(
    vital: &Vital,
    store: Store,
    limiter: Limiter,
    clock: Arc<dyn Clock>,
    admin_token: Option<AdminToken>,
) -> Result<Arc<Broker>, Failure> {
    let (hub, mint) = (Arc::new(Hub::default()), mint());
    let broker_id = mint.uuid();
    let hints = Hints::over(&store, broker_id, Arc::clone(&hub)).map_err(refused)?;
    let hints = hints.map(|(hints, service)| {
        drop(vital.spawn("hints", service.run()));
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
    // It ends with the process: every step of it is one transaction.
    let housekeeping = housekeeping::run(
        broker.store.clone(),
        Arc::clone(&broker.clock),
        Arc::clone(broker.pipeline.metrics()),
        std::future::pending(),
    );
    drop(vital.spawn("housekeeping", housekeeping));
    Ok(broker)
}

/// The limiter of that address, with the usual fallback.
pub(crate) fn limiter_at(
    address: Option<&Address>,
    clock: &Arc<dyn Clock>,
) -> Result<Limiter, Failure> {
    let fallback = Fallback { mode: FallbackMode::Local, brokers: NonZeroU32::MIN };
    limiter_with(address, clock, fallback)
}

fn limiter_with(
    address: Option<&Address>,
    clock: &Arc<dyn Clock>,
    fallback: Fallback,
) -> Result<Limiter, Failure> {
    let Some(address) = address.filter(|address| address.text != "memory") else {
        return Ok(Limiter::memory(Arc::clone(clock)));
    };
    address.warn_if_seen("--limiter");
    Limiter::redis(&address.text, Arc::clone(clock), fallback).map_err(|error| not_limited(&error))
}

fn not_limited(error: &LimiterAddressError) -> Failure {
    let (exit, page) = match error {
        LimiterAddressError::Url(_) | LimiterAddressError::Parameters(_) => (Exit::Usage, ""),
        LimiterAddressError::Tls(_) => (Exit::Refused, ""),
        LimiterAddressError::PlainText { .. } => (Exit::Refused, PLAIN_TEXT_PAGE),
    };
    Failure::new(exit, format!("error: --limiter: {}{page}", chain(error)))
}

fn limiter(arguments: &Arguments, clock: &Arc<dyn Clock>) -> Result<Limiter, Failure> {
    let mode = FallbackMode::parse(&arguments.limiter_fallback).ok_or_else(|| {
        Failure::new(Exit::Usage, "error: --limiter-fallback must be local or closed")
    })?;
    let fallback = Fallback { mode, brokers: arguments.brokers };
    limiter_with(arguments.limiter.address()?.as_ref(), clock, fallback)
}

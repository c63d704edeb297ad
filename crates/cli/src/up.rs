//! `semel up`: a broker, a mesh of its own, this host's daemon and a job engine in one process, on
//! embedded SQLite, with nothing to configure. The first run makes what is missing, later ones use
//! it.

mod after;
mod door;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use semel_api::part::Part;
use semel_broker::connection::Broker;
use semel_broker::store::{Member, NewMember, Role, Store};
use semel_core::clock::{Clock, SystemClock, UnixMs};
use semel_core::id::MeshId;
use semel_daemon::config::Config;
use semel_daemon::engine::Access;
use semel_daemon::home::{Home, HomeFile, LockedHome, MeshSlug};
use semel_daemon::identity::{Identity, Membership, Sources};
use semel_daemon::logfile::{LogFile, Rotation};
use semel_daemon::recover::Database;
use semel_jobs::http::part;
use semel_registrar::limits::RETENTION_DAYS_DEFAULT;
use semel_registrar::local;
use semel_registrar::registrar::Registrar;
use semel_registrar::store::JOBS_DOMAIN;
use semel_vital::{Ended, How, Vital};
use semel_wire::place::Plain;
use serde_json::json;
use tokio::signal::unix::Signal;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use crate::address::{Address, LimiterArguments, StoreFile};
use crate::broker::registrar;
use crate::broker::serve::{assemble, broken, limiter_at};
use crate::broker::target::{Opened, Place, failed};
use crate::broker::tls::Tls;
use crate::checks;
use crate::daemon::detach::detach;
use crate::daemon::home::{HomeArgument, home_words, quoted, start_command};
use crate::daemon::running::{RunningDaemon, Start};
use crate::daemon::tls::Trust;
use crate::exit::{Exit, Failure, Form, chain};
use crate::jobs::{self, RunningJobs};
use crate::mesh::join::another_name;
use crate::started::{Kind, Started};
use crate::stores::Kept;
use crate::system::{
    SERVING_THREADS, host_name, hung_up, loopback, mint, on_loopback, plant, refuse_few_threads,
    secret, stop_after, stopped,
};
use crate::{announce, budget, log};

pub(crate) use after::{Down, Status, down, status};
use door::Door;

/// The mesh of a machine that is alone.
pub(crate) const MESH: &str = "local";

/// How long the broker, which is in the same process, may take to say who is in the mesh.
const PEERS_WAIT: Duration = Duration::from_secs(2);

/// Run everything on this machine, with nothing to configure
///
/// One process runs a broker on embedded SQLite, a mesh with this host as its owner, the mesh's
/// daemon and a job engine. The first run makes what is missing; later runs use it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  semel up
  semel send @me 'hello' --key first && semel inbox list
  semel up --json --broker-listen 127.0.0.1:0 --api-listen 127.0.0.1:0")]
pub(crate) struct Arguments {
    /// Address for daemons of other hosts; default: 127.0.0.1:7117, or a free port if it is taken
    #[arg(long, value_name = "ADDRESS")]
    broker_listen: Option<SocketAddr>,
    #[command(flatten)]
    tls: Tls,
    /// Address of the local API besides its socket; default: 127.0.0.1:7118, or a free port if it
    /// is taken
    #[arg(long, value_name = "ADDRESS", value_parser = on_loopback)]
    api_listen: Option<SocketAddr>,
    /// Name of this host in a newly made mesh; default: this machine's name
    #[arg(long)]
    name: Option<String>,
    /// `postgres://…` instead of embedded SQLite
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    #[command(flatten)]
    store_file: StoreFile,
    #[command(flatten)]
    limiter: LimiterArguments,
    /// Days that the registrar keeps attempts, refusals and expired grants; it keeps used keys and
    /// grants for ever
    #[arg(long, value_name = "DAYS", default_value_t = RETENTION_DAYS_DEFAULT)]
    registrar_retention_days: u32,
    /// Run no job engine
    #[arg(long)]
    no_jobs: bool,
    /// Run in the background; return when it is ready
    #[arg(long)]
    detach: bool,
    /// Write the log to daemon.log instead of stderr
    #[arg(long, hide = true)]
    log_file: bool,
    #[command(flatten)]
    home: HomeArgument,
    /// Print the ready line as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    refuse_few_threads(SERVING_THREADS)?;
    let usual = free_or(arguments.broker_listen, loopback(7117));
    let certificate = arguments.tls.open(usual)?;
    budget::raise();
    let root = arguments.home.find()?;
    let refused = |text: String| Failure::new(Exit::Refused, format!("error: {text}"));
    let slug = MeshSlug::parse(MESH).map_err(|error| refused(chain(&error)))?;
    let home = Home::at(&root, &slug);
    if arguments.detach {
        return detach(home.folder(), &std::env::args().skip(1).collect::<Vec<_>>()).await;
    }
    log_to(arguments, &home)?;
    let retention = registrar::retention(arguments.registrar_retention_days)?;
    let shutdown = stopped().map_err(|error| refused(error.to_string()))?;
    let reload = hung_up()?;
    let addresses = Addresses::of(arguments)?;
    check(&home, arguments)?;
    // Whoever has the folder runs here already.
    let locked = home.clone().lock().map_err(|error| refused(chain(&error)))?;
    let door = Door::open(usual, certificate).await?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let vital = Vital::default();
    plant(&vital, "up");
    let Assembled { store: _store, registrar, routes, broker } =
        assembled(arguments, &addresses, &root, &vital, &clock).await?;
    join(&broker, &locked, &door.own, arguments, clock.wall()).await?;
    let (stop, stopping) = oneshot::channel::<()>();
    let (url, certificate) = (door.told.clone(), door.certificate.clone());
    let stopping = async move { drop(stopping.await) };
    let mut serving = tokio::spawn(door.serve(routes, broker, stopping));
    drop(locked);
    let api_listen = api_listen(&home, arguments.api_listen)?;
    let socket = home.socket_path().map_err(|error| refused(chain(&error)))?;
    let daemon = Some(socket);
    let start = jobs::Start { root: &root, store: addresses.store.as_ref(), daemon, retention };
    let mut jobs = match arguments.no_jobs {
        true => None,
        false => Some(RunningJobs::open(start).await?),
    };
    let parts = parts(registrar, jobs.as_ref());
    let start = Start {
        home,
        api_listen,
        trust: Trust::default(),
        certificate,
        plain: Plain::LoopbackOnly,
        parts,
        ephemeral: None,
        access: Access::Full,
    };
    let daemon = RunningDaemon::start(start).await?;
    // Only now is everything there that gears call.
    if let Some(jobs) = &mut jobs {
        jobs.work()?;
    }
    // Whoever reads that it is ready sends to a name next. Late is no failure: the send says why.
    let _ = tokio::time::timeout(PEERS_WAIT, daemon.engine.outbox.peers_known()).await;
    daemon.note(&started(arguments, &addresses));
    ready(&root, &url, &daemon, Form::of_flag(arguments.json));
    let ended = tokio::select! {
        () = shutdown => None,
        failure = daemon.ended() => Some(failure),
        failure = jobs_ended(jobs.as_ref()) => Some(failure),
        served = &mut serving => Some(broker_ended(served)),
        ended = vital.ended() => Some(ended.into()),
        failure = reloading(&daemon, reload) => Some(failure),
    };
    stop_after(ended, stop_all(jobs.as_mut(), daemon, stop, serving)).await
}

/// Jobs first: they send through the daemon. Then the daemon: what it handed over is answered.
async fn stop_all(
    jobs: Option<&mut RunningJobs>,
    daemon: RunningDaemon,
    broker: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
) -> Result<(), Failure> {
    if let Some(jobs) = jobs {
        jobs.stop().await;
    }
    let stopped = daemon.stop().await;
    let _ = broker.send(());
    drained(serving).await;
    stopped
}

/// Where others keep what this host would keep itself.
struct Addresses {
    store: Option<Address>,
    limiter: Option<Address>,
}

impl Addresses {
    fn of(arguments: &Arguments) -> Result<Self, Failure> {
        let store = arguments.store_file.address(arguments.store.as_ref())?;
        Ok(Self { store, limiter: arguments.limiter.address()? })
    }
}

/// The broker, and what it is made of.
struct Assembled {
    /// Closed when everything else has ended.
    store: Opened,
    registrar: Arc<Registrar>,
    routes: Router,
    broker: Arc<Broker>,
}

async fn assembled(
    arguments: &Arguments,
    addresses: &Addresses,
    root: &Path,
    vital: &Vital,
    clock: &Arc<dyn Clock>,
) -> Result<Assembled, Failure> {
    let retention = registrar::retention(arguments.registrar_retention_days)?;
    let limiter = limiter_at(addresses.limiter.as_ref(), clock)?;
    make_broker_folder(root)?;
    let store = open_store(root, arguments, addresses.store.as_ref()).await?;
    let admin_token = Some(Kept::admin_token(root).admin()?);
    let authority = Some(Kept::broker_key(root));
    let registrar = registrar::start(authority, &store, clock).await?;
    registrar::sweep_nightly(vital, &registrar, retention);
    let routes = registrar::router(Arc::clone(&registrar), admin_token.clone());
    let clock = Arc::clone(clock);
    let broker = assemble(vital, Store::clone(&store), limiter, clock, admin_token).await?;
    Ok(Assembled { store, registrar, routes, broker })
}

fn log_to(arguments: &Arguments, home: &Home) -> Result<(), Failure> {
    match arguments.log_file {
        true => log::to_file(LogFile::new(home, Rotation::default(), Arc::new(SystemClock::new()))),
        false => log::to_stderr(),
    }
}

/// What the next start in the background is to say.
fn started(arguments: &Arguments, addresses: &Addresses) -> Started {
    let started = Started::new(Kind::Up)
        .value("--broker-listen", arguments.broker_listen)
        .value("--api-listen", arguments.api_listen)
        .server("--store", addresses.store.as_ref())
        .server("--limiter", addresses.limiter.as_ref())
        .value("--registrar-retention-days", Some(arguments.registrar_retention_days))
        .flag("--no-jobs", arguments.no_jobs);
    arguments.tls.add_to(started)
}

/// What can be seen to fail is refused before anything is opened or made.
fn check(home: &Home, arguments: &Arguments) -> Result<(), Failure> {
    let root = home.root();
    let of_jobs = if arguments.no_jobs { Vec::new() } else { checks::jobs(root) };
    checks::refuse([checks::daemon(home), checks::broker(root), of_jobs].into_iter().flatten())?;
    for database in Database::ALL {
        Kept::daemon(home, *database).refuse_lost()?;
    }
    Ok(())
}

/// Reads again what can be, each time that somebody asks for it.
async fn reloading(daemon: &RunningDaemon, mut asked: Signal) -> Failure {
    while asked.recv().await.is_some() {
        daemon.reload();
    }
    std::future::pending().await
}

/// Waits for a task that may have been waited for before.
async fn drained<T>(task: JoinHandle<T>) {
    if !task.is_finished() {
        let _ = task.await;
    }
}

/// Why the engine must end, if there is one, once it must.
async fn jobs_ended(jobs: Option<&RunningJobs>) -> Failure {
    match jobs {
        Some(jobs) => jobs.ended().await,
        None => std::future::pending().await,
    }
}

/// Why the broker has ended before anybody has said so.
fn broker_ended(served: Result<std::io::Result<()>, JoinError>) -> Failure {
    let how = match served {
        Ok(Err(error)) => return broken(&error),
        Ok(Ok(())) => How::Returned,
        Err(_) => How::Panicked,
    };
    Ended { name: "broker", how }.into()
}

/// What the local API has besides the daemon's own calls.
fn parts(registrar: Arc<Registrar>, jobs: Option<&RunningJobs>) -> Vec<Part> {
    // Approvals are kept beside the jobs that they let go on, and so is their gate.
    match jobs {
        Some(jobs) => registrar.entrust(JOBS_DOMAIN, Arc::clone(jobs.engine.registrar())),
        None => registrar.disown(JOBS_DOMAIN),
    }
    let mut parts = vec![local::part(registrar)];
    parts.extend(jobs.map(|jobs| part(Arc::clone(&jobs.engine), jobs.loader())));
    parts
}

/// Where the local API listens besides its socket, unless the configuration says nowhere.
fn api_listen(home: &Home, asked: Option<SocketAddr>) -> Result<Option<SocketAddr>, Failure> {
    let config = Config::read(home);
    let config =
        config.map_err(|error| Failure::new(Exit::Refused, format!("error: {}", chain(&error))))?;
    let has_tcp = asked.is_some() || config.ipc.tcp_enabled != Some(false);
    Ok(has_tcp.then(|| free_or(asked, loopback(7118))))
}

/// The usual port, unless somebody else has it: then a free one is as good.
fn free_or(asked: Option<SocketAddr>, usual: SocketAddr) -> SocketAddr {
    match asked {
        Some(asked) => asked,
        None if std::net::TcpListener::bind(usual).is_ok() => usual,
        None => SocketAddr::new(usual.ip(), 0),
    }
}

/// What the broker keeps in a home.
pub(crate) fn broker_folder(root: &Path) -> PathBuf {
    root.join("broker")
}

fn make_broker_folder(root: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let folder = broker_folder(root);
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| {
        Failure::new(Exit::Refused, format!("error: {}: {error}", folder.display()))
    })
}

/// The broker's store. What is lost of any store of this home is told before one of them is opened.
async fn open_store(
    root: &Path,
    arguments: &Arguments,
    store: Option<&Address>,
) -> Result<Opened, Failure> {
    if let Some(store) = store {
        return Place::at(store.clone()).open_to_serve().await;
    }
    let kept = Kept::broker(root);
    kept.refuse_lost()?;
    if !arguments.no_jobs {
        Kept::jobs(root).refuse_lost()?;
    }
    let file = Address::argument(format!("sqlite:{}", kept.path.display()));
    let store = Place::at(file).open_to_serve().await?;
    kept.note()?;
    Ok(store)
}

/// The mesh with this host as its owner, and what the daemon knows of it.
async fn join(
    broker: &Broker,
    home: &LockedHome,
    url: &str,
    arguments: &Arguments,
    now: UnixMs,
) -> Result<(), Failure> {
    let refused = |text: String| Failure::new(Exit::Refused, format!("error: {text}"));
    let (mint, name) = (mint(), arguments.name.clone().unwrap_or_else(host_name));
    let known = Membership::read(home.home()).map_err(|error| refused(chain(&error)))?;
    let sources = Sources { mint: &mint, random: &secret, now };
    let identity = Identity::open(home, sources).map_err(|error| refused(chain(&error)))?;
    Kept::instance(home.home()).note()?;
    let store = &broker.store;
    // A store that was begun anew has nobody in it.
    let is_there = store.mesh_find(MESH).await.map_err(|error| failed(&error))?.is_some();
    let membership = match known.filter(|_| is_there) {
        Some(membership) => membership,
        None => {
            let pubkey = identity.keys.pair.public().to_hex().to_string();
            let owner = NewMember {
                member_id: mint.uuid(),
                name: name.clone(),
                role: Role::Owner,
                key_id: identity.keys.key_id.clone(),
                pubkey: pubkey.clone(),
            };
            let made = store.mesh_create(mint.uuid(), MESH, &owner, now).await;
            made.map_err(|error| failed(&error))?;
            // An earlier first run may have been cut off after it made the mesh: the store knows.
            let Some((mesh_id, member)) = member(broker, &pubkey).await? else {
                let of_this_home = arguments.store.is_none();
                return Err(stranger(home.home(), of_this_home, &pubkey, &name));
            };
            let (member_id, name, plain) = (member.member_id, member.name, Plain::LoopbackOnly);
            Membership { broker: String::new(), mesh_id, member_id, name, joined_at: now, plain }
        }
    };
    // Ports may change from run to run.
    let plain = Plain::LoopbackOnly;
    let membership = Membership { broker: url.to_owned(), plain, ..membership };
    membership.write(home).map_err(|error| refused(chain(&error)))
}

/// Who this key is in the mesh.
async fn member(broker: &Broker, pubkey: &str) -> Result<Option<(MeshId, Member)>, Failure> {
    let store = &broker.store;
    let Some(mesh) = store.mesh_find(MESH).await.map_err(|error| failed(&error))? else {
        return Ok(None);
    };
    let found = store.member_by_key(mesh.mesh_id, pubkey).await;
    Ok(found.map_err(|error| failed(&error))?.map(|member| (mesh.mesh_id, member)))
}

/// The mesh is there, and knows nobody with this host's key. In the home's own store nobody else is
/// to be asked: the key that the mesh was made with is lost.
fn stranger(home: &Home, of_this_home: bool, pubkey: &str, name: &str) -> Failure {
    if !of_this_home {
        let text = "error: the mesh in this store belongs to another host\n\
                    ask there for an invite, then: semel mesh join INVITE";
        return Failure::new(Exit::Refused, text);
    }
    let (keypair, store) = (home.path(HomeFile::Keypair), Kept::broker(home.root()).path);
    let store = quoted(&format!("sqlite:{}", store.display()));
    let (name, start) = (quoted(&another_name(name, pubkey)), start_command(home));
    let text = format!(
        "error: the mesh {MESH:?} of this home knows no member with this host's key\n\
         to restore the known key: put a good copy of {keypair} there\n\
         to add the new key: semel broker member add {MESH} {name} {pubkey} --role owner --store \
         {store}\n\
         to continue: {start}\n\
         to revoke the member with the lost key: semel broker member list {MESH} --store {store}, \
         then: semel broker member revoke {MESH} MEMBER --store {store}",
        keypair = keypair.display()
    );
    Failure::new(Exit::Refused, text)
}

fn ready(root: &Path, url: &str, daemon: &RunningDaemon, form: Form) {
    let api = daemon.api.map(|address| format!("http://{address}")).unwrap_or_default();
    let (home, socket) = (root.display().to_string(), daemon.socket.display().to_string());
    let token_file = daemon.token_file().display().to_string();
    match form {
        Form::Json => {
            let ready = json!({
                "event": "ready",
                "home": home,
                "broker": url,
                "mesh": daemon.mesh,
                "socket": socket,
                "api": api,
                "token_file": token_file,
                "member_id": daemon.membership.member_id.to_string(),
                "pubkey": daemon.pubkey,
            });
            announce(&format!("{ready}\n"));
        }
        Form::Text => announce(&format!(
            "semel is ready\n  \
             home    {home}\n  broker  {url}\n  socket  {socket}\n  api     {api}\n\n\
             try, in another shell:\n  \
             semel send @{name} 'hello' --key first{at}\n  semel inbox list{at}\n",
            name = daemon.membership.name,
            at = home_words(root)
        )),
    }
}

//! A daemon put together: folder, identity, engine and local API. `semel daemon up` runs one, and
//! so does `semel up`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use semel_api::door::{Listener, bind_socket, serve};
use semel_api::part::Part;
use semel_api::{Api, ApiOptions, access};
use semel_core::clock::{Clock, SystemClock};
use semel_core::mint::IdMint;
use semel_core::plausible::SweepClock;
use semel_crypto::keys::KeyPair;
use semel_daemon::broker_api::BrokerApi;
use semel_daemon::config::{Config, Disk, Features, Inbox, Ipc, Outbox};
use semel_daemon::dial::Dialler;
use semel_daemon::engine::{Access, Engine, EngineOptions};
use semel_daemon::environment::IdentityKind;
use semel_daemon::home::{Home, HomeFile, LockedHome, Presence};
use semel_daemon::http::{self, Member};
use semel_daemon::identity::{Identity, Membership, Sources};
use semel_daemon::link::{Fatal, LinkOptions};
use semel_daemon::recover::{self, Database};
use semel_daemon::token::Tokens;
use semel_vital::Vital;
use semel_wire::place::Plain;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::ephemeral::{self, Ephemeral};
use super::home::command;
use super::reload::{self, Reloader};
use super::tls::{Trust, in_plain_text};
use crate::broker::tls::Certificate;
use crate::exit::{Exit, Failure, Form, chain};
use crate::started::Started;
use crate::stores::Kept;
use crate::system::{self, end, random, secret};
use crate::{budget, checks};

/// What a daemon is started with.
pub(crate) struct Start {
    pub(crate) home: Home,
    /// Where the API listens besides its socket; nothing for the socket alone.
    pub(crate) api_listen: Option<SocketAddr>,
    /// Who may speak for the broker.
    pub(crate) trust: Trust,
    /// Of the broker in the same process, when it speaks TLS.
    pub(crate) certificate: Option<Arc<Certificate>>,
    /// Whether somebody has said that plain text may go to other machines.
    pub(crate) plain: Plain,
    /// Who else is asked by its API.
    pub(crate) parts: Vec<Part>,
    /// The member that is made for this daemon; nothing for the one in its home.
    pub(crate) ephemeral: Option<Ephemeral>,
    /// What it may do with the databases in its home.
    pub(crate) access: Access,
}

/// A daemon that answers.
pub(crate) struct RunningDaemon {
    pub(crate) mesh: String,
    pub(crate) engine: Arc<Engine>,
    pub(crate) socket: PathBuf,
    pub(crate) api: Option<SocketAddr>,
    pub(crate) membership: Membership,
    pub(crate) pubkey: String,
    pub(crate) kind: IdentityKind,
    home: Arc<LockedHome>,
    doors: Vec<JoinHandle<std::io::Result<()>>>,
    stop: watch::Sender<bool>,
    reloader: Arc<Reloader>,
    vital: Vital,
}

fn refused(text: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Refused, format!("error: {text}"))
}

impl RunningDaemon {
    /// Lock, read, open, listen: in this order, so that nothing is touched twice.
    pub(crate) async fn start(start: Start) -> Result<Self, Failure> {
        let wanted = match &start.ephemeral {
            None => Wanted::Kept(membership(&start.home, start.plain)?),
            Some(ephemeral) => Wanted::Made(ephemeral),
        };
        let broker = wanted.broker(&start)?;
        if start.ephemeral.is_none() {
            checks::refuse(checks::daemon(&start.home))?;
        }
        let config = Config::read(&start.home).map_err(|error| refused(chain(&error)))?;
        start.home.socket_path().map_err(|error| refused(chain(&error)))?;
        let home = start.home.clone().lock().map_err(|error| refused(chain(&error)))?;
        if start.ephemeral.is_some() {
            home.remove_leftovers().map_err(|error| refused(chain(&error)))?;
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mint = Arc::new(IdMint::new(Arc::clone(&clock), Box::new(random)));
        let sources = Sources { mint: &mint, random: &secret, now: clock.wall() };
        let (member, made) = match wanted {
            Wanted::Kept(membership) => {
                (kept(&home, sources, membership, start.access).await?, None)
            }
            Wanted::Made(ephemeral) => {
                let dialler = broker.clone();
                let to = To { dialler, plain: start.plain, clock: &clock };
                let (who, api) = made(&home, sources, ephemeral, to).await?;
                (who, Some(api))
            }
        };
        let pubkey = member.identity.keys.pair.public().to_hex().to_string();
        let started = Self::open(start, broker, config, home, member, mint, clock).await;
        if let (Err(_), Some(api)) = (&started, &made) {
            ephemeral::give_up(api, &pubkey).await;
        }
        started
    }

    async fn open(
        start: Start,
        broker: Dialler,
        config: Config,
        home: LockedHome,
        member: Who,
        mint: Arc<IdMint>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        let mesh = start.home.mesh().as_str().to_owned();
        let Who { membership, identity, folder } = member;
        let link = link_options(&mesh, &identity, &config, broker.clone());
        let pubkey = link.keys.public().to_hex().to_string();
        let options = engine_options(&config);
        let clock_too = Arc::clone(&clock);
        let engine = match start.access {
            Access::Full => {
                Engine::start(&folder, options, link, mint, clock_too, Arc::new(end)).await
            }
            Access::ReadOnly => Engine::start_to_read(&folder, &options, &link, mint, clock_too),
        };
        let engine = Arc::new(engine.map_err(|error| unfit(&error, home.home()))?);
        let reloader = Arc::new(Reloader {
            home: home.home().clone(),
            engine: Arc::clone(&engine),
            broker,
            trust: start.trust,
            began: config.clone(),
            certificate: start.certificate,
            is_kept: start.ephemeral.is_none(),
        });
        if start.ephemeral.is_none() {
            // Not before: the lock's file may have been deleted under a daemon that runs, and then
            // its databases say so.
            home.remove_leftovers().map_err(|error| refused(chain(&error)))?;
        }
        let tokens = Tokens::new(identity.local_token, Arc::clone(&clock));
        let home = Arc::new(home);
        let tokens = Arc::new(Rotating { tokens, home: Arc::downgrade(&home) });
        let own = own_part(&engine, &mesh, &pubkey, &clock);
        let again = reload::part(Arc::clone(&reloader));
        let parts = [vec![own, again], start.parts].concat();
        let api = Api::new(api_options(&config), tokens, clock, parts);
        let socket = home.home().socket_path().map_err(|error| refused(chain(&error)))?;
        let ((stop, stopping), vital) = (watch::channel(false), Vital::default());
        system::plant(&vital, "daemon");
        let listener = bind_socket(&socket)
            .map_err(|error| refused(format_args!("{}: {error}", socket.display())))?;
        let mut doors =
            vec![vital.spawn("socket", door(&api, Listener::Socket(listener), &stopping))];
        let mut address = None;
        if let Some(listen) = start.api_listen {
            let listener = TcpListener::bind(listen).await.map_err(|error| {
                Failure::new(Exit::Unavailable, format!("error: {listen}: {error}"))
            })?;
            address = listener.local_addr().ok();
            doors.push(vital.spawn("api", door(&api, Listener::Tcp(listener), &stopping)));
        }
        let port = address.map(|address| address.port());
        home.announce(std::process::id(), port).map_err(|error| refused(chain(&error)))?;
        let kind = match start.ephemeral {
            Some(_) => IdentityKind::Ephemeral,
            None => IdentityKind::Persistent,
        };
        Ok(Self {
            mesh,
            engine,
            socket,
            api: address,
            membership,
            pubkey,
            kind,
            home,
            doors,
            stop,
            reloader,
            vital,
        })
    }

    /// Reads the configuration again; the log says what came of it.
    pub(crate) fn reload(&self) {
        // Who has asked for it with a signal hears nothing else.
        let _ = self.reloader.reload_and_log();
    }

    /// Keeps how it was started, for a restart. An ephemeral member has none.
    pub(crate) fn note(&self, started: &Started) {
        if self.kind == IdentityKind::Ephemeral {
            return;
        }
        if let Err(error) = started.write(&self.home) {
            tracing::warn!(error = chain(&error), "a restart will not know these options");
        }
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.home.home().path(HomeFile::LocalToken)
    }

    /// Why the daemon must end, once it must.
    pub(crate) async fn ended(&self) -> Failure {
        let fatal = tokio::select! {
            fatal = self.engine.ended() => fatal,
            ended = self.vital.ended() => return ended.into(),
        };
        match fatal {
            Fatal::Replaced => Failure::new(
                Exit::Failed,
                "error: another daemon speaks for this member now: a copy of this folder, or \
                 another host with its key",
            ),
            Fatal::AlreadyConnected => refused(
                "this member is connected from elsewhere, and its mesh keeps the oldest connection",
            ),
            Fatal::Revoked => {
                Failure::new(Exit::Failed, "error: this member or this daemon was revoked")
            }
            Fatal::Feature(detail) => {
                refused(format_args!("the broker is not compatible: {detail}"))
            }
            Fatal::Unfit(detail) => refused(detail),
            Fatal::Broken(detail) => {
                Failure::new(Exit::Broken, format!("error: the daemon cannot continue: {detail}"))
            }
        }
    }

    /// Stops in order: calls end, who is ephemeral leaves the mesh, what was handed in is on disk,
    /// the folder is free. What fails meanwhile is told after that.
    pub(crate) async fn stop(self) -> Result<(), Failure> {
        self.vital.stop();
        self.stop.send_replace(true);
        for door in self.doors {
            let _ = door.await;
        }
        let ended = match self.kind {
            IdentityKind::Persistent => Ok(()),
            IdentityKind::Ephemeral => ephemeral::end(&self.engine, &self.pubkey).await,
        };
        self.engine.stop().await;
        // A token that is being replaced holds it for a moment, and no call is left.
        let left = Arc::try_unwrap(self.home).map_or(Ok(()), LockedHome::stop);
        if let Err(error) = left {
            tracing::warn!(
                error = chain(&error),
                "the daemon's folder could not be closed regularly"
            );
        }
        ended
    }
}

/// Who is to be started.
enum Wanted<'a> {
    Kept(Membership),
    Made(&'a Ephemeral),
}

impl Wanted<'_> {
    /// The way to the broker, unless that were plain text to another machine.
    fn broker(&self, start: &Start) -> Result<Dialler, Failure> {
        let (place, plain) = match self {
            Self::Kept(membership) => (membership.place(), membership.plain),
            Self::Made(ephemeral) => (ephemeral.link.place(), start.plain),
        };
        let place = place.map_err(refused)?;
        place.refuse_plain(plain).map_err(|refusal| in_plain_text(&refusal, Form::Text))?;
        let home = Some(&start.home).filter(|_| start.ephemeral.is_none());
        let tls = start.trust.open(&place, home)?;
        Ok(Dialler::new(place, plain, tls))
    }
}

/// Who the daemon speaks for, and where it keeps the member's messages.
struct Who {
    membership: Membership,
    identity: Identity,
    folder: PathBuf,
}

/// As it is kept; `plain` adds to that.
fn membership(home: &Home, plain: Plain) -> Result<Membership, Failure> {
    let joined = Membership::read(home).map_err(|error| refused(chain(&error)))?;
    let allowed = |membership: Membership| match plain {
        Plain::Allowed => Membership { plain, ..membership },
        Plain::LoopbackOnly => membership,
    };
    joined.map(allowed).ok_or_else(|| {
        let mesh = home.mesh().as_str();
        let text = format!(
            "error: this host has not joined the mesh {mesh:?}\nto join: semel mesh join INVITE"
        );
        Failure::new(Exit::NotFound, text)
    })
}

/// The member that is kept in the home.
async fn kept(
    home: &LockedHome,
    sources: Sources<'_>,
    membership: Membership,
    access: Access,
) -> Result<Who, Failure> {
    let now = sources.now;
    let identity = Identity::open(home, sources).map_err(|error| refused(chain(&error)))?;
    if access == Access::Full {
        Kept::instance(home.home()).note()?;
        remember(home, &membership)?;
        for database in Database::ALL {
            let kept = Kept::daemon(home.home(), *database);
            let presence = kept.refuse_lost()?;
            home.prepare(database.file()).map_err(|error| refused(chain(&error)))?;
            if presence == Presence::New {
                let made = recover::make(home, *database, now).await;
                made.map_err(|error| unfit(&error, home.home()))?;
            }
            kept.note()?;
        }
    }
    Ok(Who { membership, identity, folder: home.home().folder().to_owned() })
}

/// What was allowed once is allowed at later starts.
fn remember(home: &LockedHome, membership: &Membership) -> Result<(), Failure> {
    let kept = Membership::read(home.home()).map_err(|error| refused(chain(&error)))?;
    match kept.as_ref() == Some(membership) {
        true => Ok(()),
        false => membership.write(home).map_err(|error| refused(chain(&error))),
    }
}

/// The tokens, and where they are kept. The lock is not theirs to hold: it ends with the daemon.
struct Rotating {
    tokens: Tokens,
    home: Weak<LockedHome>,
}

impl access::Tokens for Rotating {
    fn number_of(&self, presented: &str) -> Option<u64> {
        self.tokens.number_of(presented)
    }

    fn rotate(&self) -> bool {
        let Some(home) = self.home.upgrade() else { return false };
        match self.tokens.rotate(&home, &secret()) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(error = chain(&error), "the token could not be replaced");
                false
            }
        }
    }
}

/// The mesh that an ephemeral member joins.
struct To<'a> {
    dialler: Dialler,
    plain: Plain,
    clock: &'a Arc<dyn Clock>,
}

/// A member for this process alone. What can fail without a broker comes before it joins.
async fn made(
    home: &LockedHome,
    sources: Sources<'_>,
    ephemeral: &Ephemeral,
    to: To<'_>,
) -> Result<(Who, BrokerApi), Failure> {
    let To { dialler, plain, clock } = to;
    let identity = Identity::ephemeral(home, sources).map_err(|error| refused(chain(&error)))?;
    let folder = home.prepare_ephemeral().map_err(|error| refused(chain(&error)))?;
    let (membership, api) =
        ephemeral.join(&identity.keys, dialler, plain, Arc::clone(clock)).await?;
    Ok((Who { membership, identity, folder }, api))
}

/// A damaged outbox is not touched: what was accepted is in it.
fn unfit(error: &semel_store::OpenError, home: &Home) -> Failure {
    if let semel_store::OpenError::Served { .. } = error {
        return refused(chain(error));
    }
    let look = command("daemon recover", home);
    refused(format!("the daemon's files cannot be used: {}\nto look at them: {look}", chain(error)))
}

fn link_options(mesh: &str, identity: &Identity, config: &Config, broker: Dialler) -> LinkOptions {
    // All keys are named here and in the functions below, so that one that nobody reads does not
    // compile.
    let Config { ipc: _, outbox, inbox: _, disk: _, features } = config;
    let Outbox { max_age_hours_override, max_bytes: _, window } = outbox;
    let Features { require, optional } = features;
    LinkOptions {
        broker,
        mesh: mesh.to_owned(),
        key_id: identity.keys.key_id.clone(),
        keys: Arc::new(KeyPair::from_secret(&identity.keys.pair.secret())),
        instance_id: identity.instance_id,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        require: require.clone(),
        optional: optional.clone(),
        window: usize::try_from(*window).unwrap_or(LinkOptions::WINDOW),
        max_age_hours_override: *max_age_hours_override,
        answer_timeout: LinkOptions::ANSWER_TIMEOUT,
        expire_interval: LinkOptions::EXPIRE_INTERVAL,
        steady_after: LinkOptions::STEADY_AFTER,
        sweep_clock: SweepClock::new(),
        random: Arc::new(random),
    }
}

pub(super) fn engine_options(config: &Config) -> EngineOptions {
    let Config { ipc: _, outbox, inbox, disk, features: _ } = config;
    let Outbox { max_age_hours_override: _, max_bytes: outbox_bytes_max, window: _ } = outbox;
    let Inbox { retention_days, max_bytes: inbox_bytes_max } = inbox;
    let Disk { reserved_bytes } = disk;
    let day = 24 * 60 * 60;
    EngineOptions {
        outbox_bytes_max: *outbox_bytes_max,
        reserved_bytes: *reserved_bytes,
        inbox_kept: Duration::from_secs(u64::from(*retention_days) * day),
        inbox_bytes_max: *inbox_bytes_max,
    }
}

fn own_part(engine: &Arc<Engine>, mesh: &str, pubkey: &str, clock: &Arc<dyn Clock>) -> Part {
    let member = Member {
        mesh: mesh.to_owned(),
        pubkey: pubkey.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let remote = Arc::clone(&engine.api);
    http::part(Arc::clone(engine), member, Some(remote), Arc::clone(clock))
}

fn api_options(config: &Config) -> ApiOptions {
    // Whether TCP is on is decided before, where it begins to listen.
    let Ipc { tcp_enabled: _, public_health_check, origin_allowlist, max_inflight, max_streams } =
        &config.ipc;
    ApiOptions {
        public_health_check: *public_health_check,
        origin_allowlist: origin_allowlist.clone(),
        max_inflight: usize::try_from(*max_inflight).unwrap_or(usize::MAX),
        max_streams: usize::try_from(*max_streams).unwrap_or(usize::MAX),
        ..room()
    }
}

/// Connections of both doors of a local API.
pub(crate) fn room() -> ApiOptions {
    let budgets = budget::now();
    ApiOptions {
        connections_max: budgets.socket,
        tcp_connections_max: budgets.tcp,
        ..ApiOptions::default()
    }
}

fn door(
    api: &Arc<Api>,
    listener: Listener,
    stop: &watch::Receiver<bool>,
) -> impl Future<Output = std::io::Result<()>> + use<> {
    let mut stop = stop.clone();
    let shutdown = async move { drop(stop.wait_for(|stop| *stop).await) };
    serve(Arc::clone(api), listener, shutdown)
}

/// The first port that is free, from the usual one on.
pub(crate) fn usual_api() -> SocketAddr {
    system::loopback(7118)
}

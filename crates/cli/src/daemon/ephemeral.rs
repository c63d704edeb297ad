//! Who a daemon is when it is started: the member in its home, or one that is made for this process
//! alone, joins by an invite, and leaves when the process ends (daemon.md, "Identity").

use std::env;
use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::Clock;
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_daemon::broker_api::{ApiError, BrokerApi};
use semel_daemon::dial::Dialler;
use semel_daemon::engine::Engine;
use semel_daemon::environment::IdentityKind;
use semel_daemon::farewell::{Farewell, farewell, leave};
use semel_daemon::home::{Home, MeshSlug};
use semel_daemon::identity::{Keys, Membership};
use semel_daemon::limits::{TTL_MAX, TTL_MIN};
use semel_wire::link::JoinLink;
use semel_wire::place::Plain;

use crate::exit::{Exit, Failure, Form, chain};
use crate::local::Local;
use crate::mesh::join::{Called, enter, failed, not_a_link};
use crate::system::host_name;

/// Where an invite is looked for that was not given: a list of processes shows arguments to
/// everybody, variables only to their user.
const INVITE: &str = "SEMEL_INVITE";

/// What the command line says of it.
#[derive(Debug, clap::Args)]
pub(super) struct IdentityArguments {
    /// Be a member only while this daemon runs, with keys in memory only; the default in CI
    #[arg(long, conflicts_with = "persistent")]
    ephemeral: bool,
    /// Be the member whose keys are in the home, also in CI
    #[arg(long)]
    persistent: bool,
    /// Ephemeral member: end after this time, such as 2h
    #[arg(long, value_name = "TIME", value_parser = crate::duration::parse)]
    ttl: Option<Duration>,
    /// Ephemeral member: invite to join with; default: $SEMEL_INVITE
    #[arg(long, value_name = "INVITE")]
    invite: Option<String>,
    /// Ephemeral member: its name; default: this machine's name, with a suffix if it is taken
    #[arg(long)]
    name: Option<String>,
}

/// A member that is to be made.
#[derive(Debug)]
pub(crate) struct Ephemeral {
    pub(crate) link: JoinLink,
    name: String,
    /// It ends by itself after this.
    pub(super) ttl: Option<Duration>,
    form: Form,
}

impl IdentityArguments {
    /// What was said, if anything was.
    pub(super) fn flag(&self) -> Option<IdentityKind> {
        match (self.ephemeral, self.persistent) {
            (true, _) => Some(IdentityKind::Ephemeral),
            (false, true) => Some(IdentityKind::Persistent),
            (false, false) => None,
        }
    }

    /// The folder, and the member that is to be made where none is kept.
    pub(super) fn choose(
        &self,
        kind: IdentityKind,
        local: &Local,
    ) -> Result<(Home, Option<Ephemeral>), Failure> {
        let form = local.form();
        let refused = |code, text: &str| Failure::refused(&Refusal::new(code, text), form);
        match kind {
            IdentityKind::Persistent => {
                if self.ttl.is_some() || self.invite.is_some() || self.name.is_some() {
                    let text = "--ttl, --invite and --name are for an ephemeral member";
                    return Err(refused(Code::NotEphemeral, text));
                }
                Ok((local.home()?, None))
            }
            IdentityKind::Ephemeral => {
                if self.ttl.is_some_and(|ttl| !(TTL_MIN..=TTL_MAX).contains(&ttl)) {
                    return Err(refused(Code::InvalidField, "--ttl must be 1s to 30d"));
                }
                let given = self.invite.clone().or_else(|| env::var(INVITE).ok());
                let Some(given) = given.filter(|invite| !invite.is_empty()) else {
                    local.home().map_or(Ok(()), |home| not_joined(&home, form))?;
                    let text = "an ephemeral daemon needs an invite: --invite or $SEMEL_INVITE";
                    return Err(refused(Code::InviteNeeded, text));
                };
                let link = JoinLink::parse(&given).map_err(|why| not_a_link(&why, form))?;
                let slug = MeshSlug::parse(&link.mesh)
                    .map_err(|error| refused(Code::InvalidField, &chain(&error)))?;
                let home = local.home_for(&slug)?;
                not_joined(&home, form)?;
                let name = self.name.clone().unwrap_or_else(host_name);
                Ok((home, Some(Ephemeral { link, name, ttl: self.ttl, form })))
            }
        }
    }
}

/// One home has one member of a mesh: whoever has keys on disk there is not put aside unasked.
fn not_joined(home: &Home, form: Form) -> Result<(), Failure> {
    match Membership::read(home) {
        Ok(None) => Ok(()),
        Ok(Some(joined)) => {
            let detail = format!(
                "this home has the persistent member {:?}, and the daemon would be ephemeral; to \
                 start {:?}: --persistent",
                joined.name, joined.name
            );
            let refusal = Refusal::new(Code::AlreadyJoined, detail);
            Err(Failure { exit: Exit::Conflict, ..Failure::refused(&refusal, form) })
        }
        Err(error) => Err(Failure::new(Exit::Refused, format!("error: {}", chain(&error)))),
    }
}

impl Ephemeral {
    /// Joins; the broker has to be there.
    pub(super) async fn join(
        &self,
        keys: &Keys,
        broker: Dialler,
        plain: Plain,
        clock: Arc<dyn Clock>,
    ) -> Result<(Membership, BrokerApi), Failure> {
        // One that was killed is still called so, and nobody is there who could choose again.
        let called = Called::Like(self.name.clone());
        let entered = enter(&self.link, called, keys, broker, plain, clock).await;
        // Without an answer the invite may be used up: the keys that it let in are gone.
        entered.map_err(|error| failed(&error, self.form))
    }
}

/// A daemon that has joined and could not start leaves nobody behind.
pub(super) async fn give_up(api: &BrokerApi, pubkey: &str) {
    if let Err(error) = leave(api).await {
        tracing::error!(%error, pubkey, "the mesh was joined and could not be left");
    }
}

/// The member's end, before its databases close.
pub(super) async fn end(engine: &Engine, pubkey: &str) -> Result<(), Failure> {
    let Farewell { unsent, left } = farewell(engine).await;
    if unsent > 0 {
        tracing::error!(unsent, "accepted sends are lost: they could not be sent in time");
    }
    match left {
        Ok(()) if unsent == 0 => Ok(()),
        Ok(()) => {
            let text = format!("error: {unsent} sends were accepted and could not be sent in time");
            Err(Failure::new(Exit::Failed, text))
        }
        Err(error) => {
            tracing::error!(%error, pubkey, "the mesh was not left");
            let exit = match &error {
                ApiError::Away(_) => Exit::Unavailable,
                ApiError::Refused(problem) if problem.code == Code::OutcomeUnknown => Exit::Unknown,
                ApiError::Refused(_) => Exit::Failed,
            };
            let text = format!(
                "error: the mesh was not left: {error}\nto end the membership: semel member revoke \
                 {pubkey}, on a host of an owner"
            );
            Err(Failure::new(exit, text))
        }
    }
}

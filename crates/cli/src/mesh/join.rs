//! `semel mesh join`: from an invite to a folder that a daemon can be started in.

use std::sync::Arc;

use semel_core::clock::{Clock, SystemClock};
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_core::shown::shown;
use semel_crypto::keys::KeyPair;
use semel_daemon::broker_api::{ApiError, BrokerApi};
use semel_daemon::dial::Dialler;
use semel_daemon::home::{Home, HomeError, HomeFile, LockedHome, MeshSlug};
use semel_daemon::identity::{Identity, Keys, Membership, Sources};
use semel_wire::http::Join;
use semel_wire::limits::JOIN_NAME_BYTES_MAX;
use semel_wire::link::JoinLink;
use semel_wire::place::Plain;
use serde_json::json;

use crate::daemon::home::{HomeArgument, start_command};
use crate::daemon::tls::{PlainText, Trust, in_plain_text};
use crate::exit::{Exit, Failure, Form, chain};
use crate::stores::Kept;
use crate::system::{host_name, mint, random, secret};
use crate::{print, progress};

/// Digits of a key that tell members apart who would be called the same.
const NAME_DIGITS: usize = 8;

/// Join a mesh with an invite
///
/// The same invite again, after a failure at any point, joins as the same member.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The invite: `semel://join/…`
    invite: String,
    /// Name of this member; default: this machine's name, with a suffix if it is taken
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    trust: Trust,
    #[command(flatten)]
    plain: PlainText,
    #[command(flatten)]
    home: HomeArgument,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let form = Form::of_flag(arguments.json);
    let link = JoinLink::parse(&arguments.invite).map_err(|refusal| not_a_link(&refusal, form))?;
    let refused = |text: String| Failure::new(Exit::Refused, format!("error: {text}"));
    let slug = MeshSlug::parse(&link.mesh).map_err(|error| refused(chain(&error)))?;
    let home = Home::at(&arguments.home.find()?, &slug);
    if let Some(joined) = Membership::read(&home).map_err(|error| refused(chain(&error)))? {
        let text = format!(
            "error: this host is already in the mesh {slug}, as {}\nto start its daemon: {}",
            joined.name,
            start_command(&home)
        );
        return Err(Failure::new(Exit::Conflict, text));
    }
    let (broker, plain) =
        (link.place().map_err(|why| not_a_link(&why, form))?, arguments.plain.plain());
    broker.refuse_plain(plain).map_err(|refusal| in_plain_text(&refusal, form))?;
    let authorities = arguments.trust.named()?;
    let tls = arguments.trust.open(&broker, None)?;
    let home = home.lock().map_err(|error| refused(chain(&error)))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (mint, now) = (mint(), clock.wall());
    let sources = Sources { mint: &mint, random: &secret, now };
    // A new member may be a new daemon, too: one that was lost is made anew here.
    let identity = Identity::open(&home, sources).map_err(|error| refused(chain(&error)))?;
    Kept::instance(home.home()).note()?;
    let pubkey = identity.keys.pair.public().to_hex().to_string();
    let name = match &arguments.name {
        Some(name) => Called::This(name.clone()),
        None => Called::Like(host_name()),
    };
    let broker = Dialler::new(broker, plain, tls);
    let entered = enter(&link, name, &identity.keys, broker, plain, clock).await;
    let (membership, _) = entered.map_err(|error| {
        let failure = failed(&error, form);
        match (failure.exit, form) {
            (Exit::Unknown, Form::Text) => {
                let again = "the invite may be used up; the same invite, again in the same home, \
                             joins as the same member";
                Failure { text: format!("{}\n{again}", failure.text), ..failure }
            }
            (_, _) => failure,
        }
    })?;
    keep(&home, authorities.as_deref()).map_err(|error| refused(chain(&error)))?;
    membership.write(&home).map_err(|error| refused(chain(&error)))?;
    print(&match form {
        Form::Json => {
            let document = json!({
                "mesh": link.mesh, "mesh_id": membership.mesh_id.to_string(),
                "member_id": membership.member_id.to_string(), "pubkey": pubkey,
                "name": membership.name, "broker": membership.broker,
            });
            format!("{document}\n")
        }
        Form::Text => format!(
            "this host is in the mesh {slug} as {}\nto start its daemon: {}\n",
            shown(&membership.name),
            start_command(home.home())
        ),
    })
}

/// Keeps the authorities that were named for later starts, and none of an earlier attempt.
fn keep(home: &LockedHome, authorities: Option<&[u8]>) -> Result<(), HomeError> {
    match authorities {
        Some(pem) => home.write(HomeFile::BrokerCa, pem),
        None => home.remove(HomeFile::BrokerCa),
    }
}

/// What a member is to be called.
#[derive(Debug, Clone)]
pub(crate) enum Called {
    /// This, or it does not join.
    This(String),
    /// This, with some digits of its key after it if somebody is called so already.
    Like(String),
}

/// Becomes a member with these keys, and keeps a way to ask the broker as that member.
pub(crate) async fn enter(
    link: &JoinLink,
    called: Called,
    keys: &Keys,
    broker: Dialler,
    plain: Plain,
    clock: Arc<dyn Clock>,
) -> Result<(Membership, BrokerApi), ApiError> {
    let url = broker.place().websocket();
    let (pair, now) = (Arc::new(KeyPair::from_secret(&keys.pair.secret())), clock.wall());
    let api = BrokerApi::new(broker, &link.mesh, pair, clock, Arc::new(random));
    let key_id = keys.key_id.clone();
    let (Called::This(name) | Called::Like(name)) = &called;
    let mut join = Join { token: link.token.clone(), name: name.clone(), key_id };
    let shown = progress::show("waiting for the broker");
    let mut joined = api.join(&join).await;
    if let (Called::Like(name), Err(ApiError::Refused(problem))) = (&called, &joined)
        && problem.code == Code::NameTaken
    {
        join.name = another_name(name, &keys.pair.public().to_hex().to_string());
        joined = api.join(&join).await;
    }
    drop(shown);
    let joined = joined?;
    let membership = Membership {
        broker: url,
        mesh_id: joined.mesh_id,
        member_id: joined.member_id,
        name: joined.name,
        joined_at: now,
        plain,
    };
    Ok((membership, api))
}

/// The name with some digits of the key after it, and no longer than a name may be.
pub(crate) fn another_name(name: &str, pubkey: &str) -> String {
    let digits: String = pubkey.chars().take(NAME_DIGITS).collect();
    let kept = name.floor_char_boundary(JOIN_NAME_BYTES_MAX - 1 - NAME_DIGITS);
    format!("{}-{digits}", &name[..kept])
}

pub(crate) fn not_a_link(refusal: &Refusal, form: Form) -> Failure {
    let failure = Failure::refused(refusal, form);
    let more = match form {
        Form::Text => "\nto get one: semel mesh invite, on a host of the mesh",
        Form::Json => "",
    };
    Failure { text: failure.text + more, ..failure }
}

pub(crate) fn failed(error: &ApiError, form: Form) -> Failure {
    match error {
        ApiError::Away(_) => {
            let text = format!("error: {error}\nthe invite was not used; try again");
            Failure::new(Exit::Unavailable, text)
        }
        ApiError::Refused(problem) => {
            let refusal = Refusal::new(problem.code, &problem.detail);
            let exit = match problem.status {
                _ if problem.code == Code::PlainTextRefused => Exit::Refused,
                503 if problem.code == Code::OutcomeUnknown => Exit::Unknown,
                409 => Exit::Conflict,
                404 => Exit::NotFound,
                429 | 503 => Exit::Unavailable,
                _ => Exit::Failed,
            };
            Failure { exit, ..Failure::refused(&refusal, form) }
        }
    }
}

//! `semel broker invite`: a link that lets somebody in.

use std::time::Duration;

use semel_broker::http::token_hash;
use semel_broker::store::{NewInvite, Role};
use semel_core::clock::UnixMs;
use semel_wire::limits::INVITE_TTL_SECONDS_MAX;
use semel_wire::link::{self, JoinLink};
use semel_wire::place::{BrokerPlace, Plain};

use super::member::plain_name;
use super::target::{self, failed, mesh as find, mint, now, random_bytes};
use crate::daemon::tls::in_plain_text;
use crate::exit::{Exit, Failure, Form};
use crate::print;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  semel broker invite ops --broker-url https://broker.example:7117 --uses 3 --ttl 7d \\
    --store sqlite:broker.db

Anyone with the link can join: send it like a password.")]
pub(crate) struct Arguments {
    /// The mesh
    mesh: String,

    /// Address at which joining hosts reach the broker: http://… or https://…
    #[arg(long)]
    broker_url: String,

    /// Allow http:// to another machine; others on the network can read and change everything
    #[arg(long)]
    insecure_allow_plain: bool,

    /// Number of hosts that may join with the link
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    uses: u32,

    /// How long the link is valid: a number with s, m, h or d, at most 30d
    #[arg(long, default_value = "24h")]
    ttl: String,

    /// Role of those who join: member or owner
    #[arg(long, default_value = "member")]
    role: String,

    #[command(flatten)]
    target: target::Target,
}

/// Make a mesh, and print a link with which its owner joins
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  semel broker init ops --broker-url https://broker.example:7117 --store sqlite:broker.db
  semel mesh join LINK --name ada            # on the owner's host

Anyone with the link can become the owner: send it like a password. It works for one host. If it is
lost or has expired: semel broker invite NAME --role owner")]
pub(crate) struct InitArguments {
    /// Name of the mesh
    mesh: String,

    /// Address at which joining hosts reach the broker: http://… or https://…
    #[arg(long)]
    broker_url: String,

    /// Allow http:// to another machine; others on the network can read and change everything
    #[arg(long)]
    insecure_allow_plain: bool,

    /// How long the link is valid: a number with s, m, h or d, at most 30d
    #[arg(long, default_value = "24h")]
    ttl: String,

    #[command(flatten)]
    target: target::Target,
}

pub(super) async fn init(arguments: &InitArguments) -> Result<(), Failure> {
    let InitArguments { mesh, broker_url, ttl, target, insecure_allow_plain } = arguments;
    found(mesh, broker_url, ttl, plain(*insecure_allow_plain), target).await
}

/// Makes the mesh and its owner's invite together: neither is there without the other.
pub(super) async fn found(
    mesh: &str,
    broker_url: &str,
    ttl: &str,
    plain: Plain,
    target: &target::Target,
) -> Result<(), Failure> {
    plain_name(mesh)?;
    let now = now();
    let (link, invite) = new_invite(mesh, broker_url, Role::Owner, 1, ttl, plain, now)?;
    let store = target.open().await?;
    let made = store.mesh_create_invited(mint().uuid(), mesh, &invite, now).await;
    if !made.map_err(|error| failed(&error))? {
        let text = format!(
            "error: there is a mesh {mesh:?} already\n\
             to add an owner: semel broker invite {mesh} --role owner --broker-url {broker_url}"
        );
        return Err(Failure::new(Exit::Conflict, text));
    }
    print(&format!("{link}\n"))
}

/// A link, and what the store knows of it.
fn new_invite(
    mesh: &str,
    broker_url: &str,
    role: Role,
    uses: u32,
    life: &str,
    plain: Plain,
    now: UnixMs,
) -> Result<(String, NewInvite), Failure> {
    let usage = |text: &str| Failure::new(Exit::Usage, format!("error: {text}"));
    let life = ttl(life)
        .ok_or_else(|| usage("--ttl must be a time such as 90s, 24h or 7d, at most 30d"))?;
    refuse_place(broker_url, plain)?;
    let token = link::token(&random_bytes());
    let (broker_url, mesh) = (broker_url.to_owned(), mesh.to_owned());
    let link = JoinLink { broker_url, mesh, token: token.clone() }.encode();
    if JoinLink::parse(&link).is_err() {
        return Err(usage("the mesh's name is too long for an invite"));
    }
    let (token_hash, expires_at) = (token_hash(&token), now.saturating_add(life));
    Ok((link, NewInvite { token_hash, role, uses, expires_at, created_by: None }))
}

pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { mesh, broker_url, uses, ttl, role, target, insecure_allow_plain } = arguments;
    let plain = plain(*insecure_allow_plain);
    let role = Role::parse(role)
        .ok_or_else(|| Failure::new(Exit::Usage, "error: --role must be member or owner"))?;
    let now = now();
    let (link, invite) = new_invite(mesh, broker_url, role, *uses, ttl, plain, now)?;
    let store = target.open_used().await?;
    let mesh = find(&store, mesh).await?;
    let made = store.invite_create(mesh.mesh_id, &invite, now).await;
    if made.map_err(|error| failed(&error))? {
        return print(&format!("{link}\n"));
    }
    let text = "error: the mesh has too many invites that have not expired";
    Err(Failure::new(Exit::Conflict, text))
}

/// An address that is told to others: it must be one, and not of plain text to another machine.
pub(crate) fn refuse_place(url: &str, plain: Plain) -> Result<(), Failure> {
    let place = BrokerPlace::parse_http(url).map_err(|refusal| {
        let text = format!("error: --broker-url must be https://HOST:PORT: {}", refusal.detail);
        Failure::new(Exit::Usage, text)
    })?;
    place.refuse_plain_for_others(plain).map_err(|refusal| in_plain_text(&refusal, Form::Text))
}

fn plain(insecure_allow_plain: bool) -> Plain {
    if insecure_allow_plain { Plain::Allowed } else { Plain::LoopbackOnly }
}

fn ttl(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return None,
    };
    let number: u64 = digits.then(|| number.parse().ok())??;
    let seconds = number.checked_mul(seconds)?;
    (1..=INVITE_TTL_SECONDS_MAX).contains(&seconds).then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_a_number_with_its_unit() {
        for (text, seconds) in [("90s", 90), ("5m", 300), ("24h", 86_400), ("30d", 2_592_000)] {
            assert_eq!(ttl(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "h", "0s", "31d", "-1h", "+1h", "1", "1w", "99999999999999999999d", "1ü"]
        {
            assert_eq!(ttl(wrong), None, "{wrong}");
        }
    }
}

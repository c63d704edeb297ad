//! `semel broker invite`: a link that lets somebody in.

use std::time::Duration;

use semel_broker::http::token_hash;
use semel_broker::store::{NewInvite, Role};
use semel_wire::limits::INVITE_TTL_SECONDS_MAX;
use semel_wire::link::{self, JoinLink};
use semel_wire::place::{BrokerPlace, Plain};

use super::target::{self, failed, mesh as find, now, random_bytes};
use crate::daemon::tls::in_plain_text;
use crate::exit::{Exit, Failure, Form};
use crate::print;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  semel broker invite ops --broker-url https://broker.example:7117 --uses 3 --ttl 7d \\
    --store sqlite:broker.db

Who has the link can join: send it like a password.")]
pub(crate) struct Arguments {
    /// The mesh
    mesh: String,

    /// Where those who join reach the broker: http://… or https://…
    #[arg(long)]
    broker_url: String,

    /// Let it say http:// of another machine, where others can read and change everything
    #[arg(long)]
    insecure_allow_plain: bool,

    /// How many may join
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    uses: u32,

    /// For how long: a number with s, m, h or d, at most 30d
    #[arg(long, default_value = "24h")]
    ttl: String,

    /// What they may do: member or owner
    #[arg(long, default_value = "member")]
    role: String,

    #[command(flatten)]
    target: target::Target,
}

pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let usage = |text: &str| Failure::new(Exit::Usage, format!("error: {text}"));
    let role = Role::parse(&arguments.role).ok_or_else(|| usage("--role is member or owner"))?;
    let ttl =
        ttl(&arguments.ttl).ok_or_else(|| usage("--ttl is like 90s, 24h or 7d, at most 30d"))?;
    let plain = if arguments.insecure_allow_plain { Plain::Allowed } else { Plain::LoopbackOnly };
    refuse_place(&arguments.broker_url, plain)?;
    let token = link::token(&random_bytes());
    let (broker_url, mesh) = (arguments.broker_url.clone(), arguments.mesh.clone());
    let link = JoinLink { broker_url, mesh, token: token.clone() }.encode();
    if JoinLink::parse(&link).is_err() {
        return Err(usage("the mesh's name is too long for an invite"));
    }
    let store = arguments.target.open_used().await?;
    let mesh = find(&store, &arguments.mesh).await?;
    let now = now();
    let invite = NewInvite {
        token_hash: token_hash(&token),
        role,
        uses: arguments.uses,
        expires_at: now.saturating_add(ttl),
        created_by: None,
    };
    let made = store.invite_create(mesh.mesh_id, &invite, now).await;
    if made.map_err(|error| failed(&error))? {
        return print(&format!("{link}\n"));
    }
    let text = "error: the mesh has too many invites that have not ended";
    Err(Failure::new(Exit::Conflict, text))
}

/// An address that is told to others: it must be one, and not of plain text to another machine.
pub(crate) fn refuse_place(url: &str, plain: Plain) -> Result<(), Failure> {
    let place = BrokerPlace::parse_http(url).map_err(|refusal| {
        let text = format!("error: --broker-url is https://HOST:PORT: {}", refusal.detail);
        Failure::new(Exit::Usage, text)
    })?;
    place.refuse_plain_for_others(plain).map_err(|refusal| in_plain_text(&refusal, Form::Text))
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

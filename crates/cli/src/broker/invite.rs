//! `semel broker invite`: a link that lets somebody in.

use std::time::Duration;

use semel_broker::http::token_hash;
use semel_broker::store::{NewInvite, Role};
use semel_wire::limits::INVITE_TTL_SECONDS_MAX;
use semel_wire::link::{self, JoinLink};

use super::target::{self, failed, mesh as find, now, random_bytes};
use crate::exit::{Exit, Failure};
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
    let token = link::token(&random_bytes());
    let (broker_url, mesh) = (arguments.broker_url.clone(), arguments.mesh.clone());
    let link = JoinLink { broker_url, mesh, token: token.clone() }.encode();
    if JoinLink::parse(&link).is_err() {
        return Err(usage("--broker-url is http://… or https://…"));
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

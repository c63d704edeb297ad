//! What runs: the daemons of this home and their brokers, found by asking them.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use semel_client::Client;
use semel_daemon::home::{Complete, Home, HomeFile};
use semel_daemon::identity::Membership;
use serde_json::Value;
use tokio::net::TcpStream;

use super::Finding;
use super::folders::is_locked;
use crate::daemon::home::{command, start_command};
use crate::exit::chain;

/// A broker that is there takes a connection by then.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) async fn look(root: &Path) -> Vec<Finding> {
    let (homes, _) = Home::list(root).unwrap_or((Vec::new(), Complete::Yes));
    let mut findings = Vec::new();
    for home in &homes {
        let runs = daemon(home).await;
        findings.extend(token(home).await);
        findings.push(runs);
        findings.extend(broker(home).await);
    }
    findings
}

async fn daemon(home: &Home) -> Finding {
    let mesh = home.mesh();
    let check = format!("daemon of {mesh}");
    let socket = match home.socket_path() {
        Ok(socket) => socket,
        Err(error) => return Finding::problem(check, chain(&error), "choose a shorter --home DIR"),
    };
    match Client::socket(socket).get("/v1/health").await {
        Ok(answer) if answer.is_success() => {
            let text = |name: &str| answer.body.get(name).and_then(Value::as_str).unwrap_or("–");
            let detail = format!("it runs; its broker is {}", text("state"));
            if answer.body.get("connected") == Some(&Value::Bool(true)) {
                return Finding::sound(check, detail);
            }
            let detail = format!("{detail}: {}", text("last_error"));
            Finding::warning(check, detail, "nothing is lost; look at the broker")
        }
        Ok(answer) => {
            let detail = format!("it answers {}: {}", answer.status, answer.detail());
            Finding::problem(check, detail, command("daemon restart", home))
        }
        Err(error) if is_locked(&home.path(HomeFile::Lock)) => {
            let detail = format!("it runs, but {}", chain(&error));
            Finding::problem(check, detail, command("daemon restart", home))
        }
        Err(_) => Finding::warning(check, "it does not run", start_command(home)),
    }
}

/// Whether the token in the file is the one that the daemon takes over TCP.
async fn token(home: &Home) -> Option<Finding> {
    let check = format!("token of {}", home.mesh());
    let path = home.path(HomeFile::LocalToken);
    let found = std::fs::metadata(&path).ok()?;
    let rotate = command("daemon rotate-token", home);
    if found.mode() & 0o077 != 0 {
        // The modes were told already; this one may be in the wrong hands.
        return Some(Finding::warning(check, "others could read it", rotate));
    }
    let token = match std::fs::read_to_string(&path) {
        Ok(token) => token.trim().to_owned(),
        Err(error) => return Some(Finding::problem(check, error.to_string(), rotate)),
    };
    let port = std::fs::read_to_string(home.path(HomeFile::HttpPort)).ok();
    let port: Option<u16> = port.and_then(|port| port.trim().parse().ok());
    let running = is_locked(&home.path(HomeFile::Lock));
    let Some(port) = port.filter(|_| running) else {
        return Some(Finding::sound(check, "it is there; nobody serves TCP"));
    };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    Some(match Client::tcp(address, token).get("/v1/version").await {
        Ok(answer) if answer.is_success() => Finding::sound(check, format!("taken at {address}")),
        Ok(answer) => {
            let detail = format!("{address} answers {}: {}", answer.status, answer.detail());
            Finding::problem(check, detail, rotate)
        }
        Err(error) => Finding::problem(check, chain(&error), "look at the daemon's log"),
    })
}

async fn broker(home: &Home) -> Option<Finding> {
    let check = format!("broker of {}", home.mesh());
    let is_open = |file: &std::fs::Metadata| file.mode() & 0o077 != 0;
    if std::fs::metadata(home.path(HomeFile::Mesh)).is_ok_and(|file| is_open(&file)) {
        return None;
    }
    let url = Membership::read(home).ok()??.broker;
    let Some(place) = place(&url) else {
        let to_do = "join again by an invite: semel mesh join INVITE";
        return Some(Finding::problem(check, format!("{url:?} is no address"), to_do));
    };
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&place)).await;
    let why = match connected {
        Ok(Ok(_)) => return Some(Finding::sound(check, format!("{place} can be reached"))),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    let detail = format!("{place} cannot be reached: {why}");
    let to_do = "start it, or look at the network; what is sent meanwhile stays queued";
    Some(Finding::warning(check, detail, to_do))
}

/// `host:port` of a broker's address.
fn place(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split('/').next().filter(|host| !host.is_empty())?;
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let port = if ["wss", "https"].contains(&scheme) { 443 } else { 80 };
    Some(if has_port { host.to_owned() } else { format!("{host}:{port}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_without_a_port_has_its_schemes() {
        let found = |url: &str| place(url).unwrap_or_default();
        assert_eq!(found("ws://127.0.0.1:7117/v1/mesh"), "127.0.0.1:7117");
        assert_eq!(found("wss://broker.example/v1/mesh"), "broker.example:443");
        assert_eq!(found("ws://[::1]/v1/mesh"), "[::1]:80");
        assert_eq!(found("wss://"), "");
        assert_eq!(found("nonsense"), "");
    }
}

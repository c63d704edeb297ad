//! What runs: the daemons of this home and their brokers, found by asking them.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use semel_client::Client;
use semel_daemon::home::{Complete, Home, HomeFile};
use semel_daemon::identity::Membership;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Finding;
use super::folders::is_locked;
use crate::daemon::home::{command, start_command};
use crate::exit::chain;

/// What is read of an answer.
const ANSWER_BYTES_MAX: u64 = 4096;

/// A broker that is there takes a connection by then, and answers within as long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) async fn look(root: &Path) -> Vec<Finding> {
    let (homes, _) = Home::list(root).unwrap_or((Vec::new(), Complete::Yes));
    let mut findings = Vec::new();
    for home in &homes {
        let runs = daemon(home).await;
        findings.extend(token(home).await);
        findings.extend(runs);
        findings.extend(broker(home).await);
    }
    findings.extend(engine(root).await);
    findings
}

/// What there is to do when an engine's store does not do its work.
const TO_DO_FOR_ENGINE: &str = "look at its disk or its database, and at its log";

/// An engine that runs alone; under `semel up` its daemon answers for it ([`beside`]).
async fn engine(root: &Path) -> Option<Finding> {
    let folder = root.join("jobs");
    if !is_locked(&folder.join("lock")) {
        return None;
    }
    let check = "job engine".to_owned();
    let socket = folder.join("sock");
    if !socket.exists() {
        return None;
    }
    let to_do = TO_DO_FOR_ENGINE;
    Some(match Client::socket(socket).get("/v1/health").await {
        Ok(answer) if answer.is_success() => Finding::sound(check, "it runs, and its store works"),
        Ok(answer) => Finding::problem(check, format!("it runs, but {}", answer.detail()), to_do),
        Err(error) => Finding::problem(check, format!("it runs, but {}", chain(&error)), to_do),
    })
}

/// The engine in the process of a daemon, as that says of it.
fn beside(health: &Value) -> Option<Finding> {
    let jobs = health.get("parts")?.get("jobs")?;
    let check = "job engine".to_owned();
    if jobs.get("status").and_then(Value::as_str) == Some("ok") {
        return Some(Finding::sound(check, "it runs, and its store works"));
    }
    let why = jobs.get("detail").and_then(Value::as_str).unwrap_or("its state is unknown");
    Some(Finding::problem(check, format!("it runs, but {why}"), TO_DO_FOR_ENGINE))
}

async fn daemon(home: &Home) -> Vec<Finding> {
    let mesh = home.mesh();
    let check = format!("daemon of {mesh}");
    let socket = match home.socket_path() {
        Ok(socket) => socket,
        Err(error) => {
            return vec![Finding::problem(check, chain(&error), "choose a shorter --home DIR")];
        }
    };
    let runs = match Client::socket(socket).get("/v1/health").await {
        Ok(answer) if answer.is_success() => {
            let text = |name: &str| answer.body.get(name).and_then(Value::as_str).unwrap_or("–");
            let detail = format!("it runs; its broker is {}", text("state"));
            let connected = match answer.body.get("connected") {
                Some(Value::Bool(true)) => Finding::sound(check, detail),
                _ => {
                    let detail = format!("{detail}: {}", text("last_error"));
                    Finding::warning(check, detail, "nothing is lost; look at the broker")
                }
            };
            let others = inbox(home, &answer.body).into_iter().chain(beside(&answer.body));
            return std::iter::once(connected).chain(others).collect();
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
    };
    vec![runs]
}

/// What arrived and is not where it should be.
fn inbox(home: &Home, health: &Value) -> Vec<Finding> {
    let check = format!("inbox of {}", home.mesh());
    let mut findings = Vec::new();
    if health.get("inbox_full") == Some(&Value::Bool(true)) {
        let detail = "inbox_full: unread messages fill it; new messages wait at the broker";
        let to_do = format!(
            "read and acknowledge them ({} ID), or raise inbox.max_bytes",
            command("inbox ack", home)
        );
        findings.push(Finding::problem(check.clone(), detail, to_do));
    }
    let aside = health.get("set_aside").and_then(Value::as_u64).unwrap_or(0);
    if aside > 0 {
        let detail = format!("{aside} messages could not be accepted and are set aside");
        findings.push(Finding::warning(check, detail, command("inbox aside", home)));
    }
    findings
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
        return Some(Finding::sound(check, "it exists; no daemon serves TCP"));
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
    let membership = Membership::read(home).ok()??;
    let url = &membership.broker;
    let Ok(place) = membership.place() else {
        let to_do = "join again with an invite: semel mesh join INVITE";
        return Some(Finding::problem(check, format!("{url:?} is not an address"), to_do));
    };
    if let Err(refusal) = place.refuse_plain(membership.plain) {
        let to_do =
            "join again with an invite for https://, or see semel explain plain_text_refused";
        return Some(Finding::problem(check, refusal.to_string(), to_do));
    }
    let connected =
        tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((place.host(), place.port())))
            .await;
    let why = match connected {
        Ok(Ok(stream)) => {
            let authority = place.authority();
            let asked = not_ready(stream, &authority);
            let asked = match place.is_secure() {
                false => tokio::time::timeout(CONNECT_TIMEOUT, asked).await,
                // Whoever speaks TLS is asked by its own daemon alone.
                true => Ok(None),
            };
            return Some(match asked {
                Ok(None) => Finding::sound(check, format!("{place} can be reached")),
                Ok(Some(why)) => {
                    let detail = format!("{place} is not ready: {why}");
                    Finding::problem(check, detail, "look at the broker, its disk and its log")
                }
                Err(_) => {
                    let detail = format!("{place} takes connections and does not answer");
                    Finding::problem(check, detail, "look at the broker and its log")
                }
            });
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    let detail = format!("{place} cannot be reached: {why}");
    let to_do = "start it, or check the network; messages stay queued meanwhile";
    Some(Finding::warning(check, detail, to_do))
}

/// Why a broker cannot do its work now, as far as it says so.
async fn not_ready(mut stream: TcpStream, place: &str) -> Option<String> {
    let ask = format!("GET /readyz HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await.ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, why) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 503").then(|| why.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_broker_that_is_not_ready_says_why() {
        for (answer, why) in [
            ("HTTP/1.1 200 OK\r\n\r\nready\n", None),
            (
                "HTTP/1.1 503 Service Unavailable\r\n\r\nthe disk is full\n",
                Some("the disk is full"),
            ),
            ("something else", None),
        ] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let serving = async {
                let mut stream = listener.accept().await.unwrap().0;
                // All of it: what is left unread when it closes would take the answer along.
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    asked.push(stream.read_u8().await.unwrap());
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
            };
            let (found, ()) = tokio::join!(not_ready(stream, "broker"), serving);
            assert_eq!(found.as_deref(), why);
        }
    }
}

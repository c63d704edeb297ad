//! Reading again what a running daemon was set up with: by SIGHUP, or by `POST /v1/reload`, whose
//! caller is told what came of it. All of it is read before any of it is used.

use std::sync::Arc;

use semel_api::access::Door;
use semel_api::part::{Part, State};
use semel_api::problem::Problem;
use semel_api::route::{Answer, Call, Reply, Route};
use semel_api::schema;
use semel_core::code::Code;
use semel_daemon::config::Config;
use semel_daemon::dial::Dialler;
use semel_daemon::engine::Engine;
use semel_daemon::home::Home;
use serde_json::{Value, json};

use super::running::engine_options;
use super::tls::Trust;
use crate::broker::tls::Certificate;
use crate::exit::chain;

/// Keys of `config.toml` that change while a daemon runs.
const LIVE: &[&str] =
    &["outbox.max_bytes", "inbox.retention_days", "inbox.max_bytes", "disk.reserved_bytes"];

/// What is read again, and whom it is for.
pub(crate) struct Reloader {
    pub(super) home: Home,
    pub(super) engine: Arc<Engine>,
    pub(super) broker: Dialler,
    pub(super) trust: Trust,
    /// As it was when the daemon started.
    pub(super) began: Config,
    /// Of the broker in the same process.
    pub(super) certificate: Option<Arc<Certificate>>,
    /// Whether the authorities that the home keeps are for this member.
    pub(super) is_kept: bool,
}

impl Reloader {
    /// The keys that a restart is needed for; or why everything stays as it was.
    fn reload(&self) -> Result<Vec<String>, String> {
        let config = Config::read(&self.home).map_err(|error| chain(&error))?;
        let home = Some(&self.home).filter(|_| self.is_kept);
        let plain = |text: String| text.trim_start_matches("error: ").to_owned();
        let tls = self.trust.open(self.broker.place(), home);
        let tls = tls.map_err(|failure| plain(failure.text))?;
        if let Some(certificate) = &self.certificate {
            certificate.reload().map_err(|failure| plain(failure.text))?;
        }
        self.broker.trust(tls);
        self.engine.change(&engine_options(&config));
        Ok(waiting(&self.began, &config))
    }

    /// The same for somebody who reads the log.
    pub(crate) fn reload_and_log(&self) -> Result<Vec<String>, String> {
        let done = self.reload();
        match &done {
            Ok(waiting) if waiting.is_empty() => {
                tracing::info!("the configuration was reloaded");
            }
            Ok(waiting) => {
                let keys = waiting.join(", ");
                tracing::warn!(keys, "the configuration was reloaded; these keys need a restart");
            }
            Err(error) => tracing::error!(error, "the configuration was not changed"),
        }
        done
    }
}

/// The keys that differ and are read at a start alone.
fn waiting(began: &Config, now: &Config) -> Vec<String> {
    let (began, now) = (flat(began), flat(now));
    let differs = |(key, value): &(String, Value)| !began.contains(&(key.clone(), value.clone()));
    let keys = now.into_iter().filter(differs).map(|(key, _)| key);
    keys.filter(|key| !LIVE.contains(&key.as_str())).collect()
}

fn flat(config: &Config) -> Vec<(String, Value)> {
    let Ok(Value::Object(sections)) = serde_json::to_value(config) else { return Vec::new() };
    let mut keys = Vec::new();
    for (section, values) in sections {
        for (key, value) in values.as_object().cloned().unwrap_or_default() {
            keys.push((format!("{section}.{key}"), value));
        }
    }
    keys
}

impl State for Reloader {}

pub(super) fn part(reloader: Arc<Reloader>) -> Part {
    Part::new(reloader, ROUTES)
}

const ROUTES: &[Route<Reloader>] = &[Route {
    name: "reload",
    answers: &[Answer::json(200, "the configuration was reloaded", reloaded)],
    problems: &[Code::SocketOnly, Code::ConfigRefused],
    ..Route::post("/v1/reload", "Reloads the configuration; only over the socket", |call| {
        Box::pin(reload(call))
    })
}];

fn reloaded() -> Value {
    schema::record("Reloaded", &[("needs_restart", schema::array(schema::text()))])
}

/// Whoever has only a token does not decide whom the daemon trusts.
async fn reload(call: Call<Reloader>) -> Result<Reply, Problem> {
    match call.door {
        Door::Socket => {}
        Door::Tcp => {
            let detail = "the configuration can be reloaded over the socket only";
            return Err(Problem::new(Code::SocketOnly, detail));
        }
    }
    let reloader = Arc::clone(&call.state);
    let done = tokio::task::spawn_blocking(move || reloader.reload_and_log()).await;
    match done {
        Ok(Ok(needs_restart)) => Ok(Reply::value(&json!({"needs_restart": needs_restart}))),
        Ok(Err(why)) => {
            Err(Problem::new(Code::ConfigRefused, format!("nothing was changed: {why}")))
        }
        Err(error) => Err(Problem::new(Code::InternalError, error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_at_a_start_alone_is_named() {
        let (began, mut now) = (Config::default(), Config::default());
        assert!(waiting(&began, &now).is_empty());
        now.outbox.max_bytes += 1;
        assert!(waiting(&began, &now).is_empty(), "it changes at once");
        now.outbox.window += 1;
        now.ipc.tcp_enabled = Some(true);
        assert_eq!(waiting(&began, &now), ["ipc.tcp_enabled", "outbox.window"]);
    }

    #[test]
    fn every_live_key_is_a_key() {
        let keys = flat(&Config::default());
        for live in LIVE {
            assert!(keys.iter().any(|(key, _)| key == live), "{live}");
        }
    }
}

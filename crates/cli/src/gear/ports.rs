//! What the engine's gears reach the world through, on this host.

use std::sync::{Arc, OnceLock};

use semel_client::{Answer, Client, ClientError};
use semel_core::outbox::{Conflict, Outcome};
use semel_jobs::config::Config;
use semel_jobs::gear::builtin::http::HttpSettings;
use semel_jobs::gear::builtin::mesh::MeshPort;
use semel_jobs::gear::load::Ports;
use semel_jobs::gear::net::Hosts;
use semel_jobs::gear::{Failure, FailureClass, Later};
use serde_json::{Value, json};

use crate::address::KEPT_FROM_GEARS;
use crate::daemon::tls;

/// The daemon of a mesh, as gears see it.
struct DaemonPort {
    client: Client,
    /// The mesh and the member's key, once they are known.
    sender: OnceLock<String>,
}

impl MeshPort for DaemonPort {
    fn sender(&self) -> Option<String> {
        self.sender.get().cloned()
    }

    fn learn_sender(&self) -> Later<'_, Option<String>> {
        Box::pin(async move {
            if self.sender.get().is_none() {
                let answer = self.client.get("/v1/health").await.ok()?;
                let text = |name: &str| Some(answer.body.get(name)?.as_str()?.to_owned());
                let sender = format!("{}/{}", text("mesh")?, text("member_pubkey")?);
                let _ = self.sender.set(sender);
            }
            self.sender()
        })
    }

    fn send<'a>(
        &'a self,
        to: &'a str,
        message: &'a Value,
        client_message_id: &'a str,
    ) -> Later<'a, Result<Value, Failure>> {
        Box::pin(async move {
            let body = json!({"to": to, "message": message});
            let answer = self.client.post("/v1/send", &body, Some(client_message_id)).await;
            let answer = answer.map_err(|error| {
                let (class, code) = match &error {
                    ClientError::NoDaemon { .. } => (FailureClass::Transient, "no_daemon"),
                    ClientError::TimedOut => (FailureClass::Transient, "timed_out"),
                    ClientError::Broken(_) => (FailureClass::Transient, "connection_cut"),
                    ClientError::Invalid(_) | ClientError::Refused(_) => {
                        (FailureClass::UserError, "invalid_request")
                    }
                };
                Failure::new(class, code, error.to_string())
            })?;
            if answer.is_success() {
                return Ok(answer.body);
            }
            let class = match answer.status {
                409 if self.may_be_sent(&answer, client_message_id).await => {
                    FailureClass::Transient
                }
                408 | 425 | 429 | 500..=506 | 508.. => FailureClass::Transient,
                507 => FailureClass::ResourceLimit,
                _ => FailureClass::UserError,
            };
            Err(Failure::new(class, answer.code().unwrap_or("refused"), answer.detail()))
        })
    }
}

impl DaemonPort {
    /// An earlier attempt was accepted, and its row was given up or retired since: whether it was
    /// delivered, or is under the id that took its place, this answer does not say.
    async fn may_be_sent(&self, answer: &Answer, client_message_id: &str) -> bool {
        let conflict = answer.body.get("conflict").and_then(Value::as_str);
        match conflict.and_then(Conflict::parse) {
            Some(Conflict::AbortedMatch) => true,
            Some(Conflict::DeadMatch) => {
                let path = format!("/v1/outbox/{}", semel_wire::path::encode(client_message_id));
                let row = self.client.get(&path).await.ok();
                let outcome = row.as_ref().and_then(|row| row.body.get("outcome")?.as_str());
                !matches!(
                    outcome.and_then(Outcome::parse),
                    Some(Outcome::Refused | Outcome::NeverSent)
                )
            }
            Some(
                Conflict::PendingMismatch
                | Conflict::InflightMismatch
                | Conflict::DoneMismatch
                | Conflict::DeadMismatch
                | Conflict::AbortedMismatch,
            )
            | None => false,
        }
    }
}

/// The ports of an engine: a daemon, if there is one, and what its operator knows of hosts.
pub(crate) fn ports(daemon: Option<Client>, config: &Config) -> Ports {
    // A system without authorities can still speak plain HTTP.
    let tls = tls::system().ok();
    Ports {
        mesh: daemon.map(|client| {
            Arc::new(DaemonPort { client, sender: OnceLock::new() }) as Arc<dyn MeshPort>
        }),
        http: HttpSettings {
            tls,
            private_hosts: Hosts::new(config.private_hosts.clone()),
            keyed_hosts: Hosts::new(config.keyed_hosts.clone()),
        },
        environment: Arc::new(|name| {
            let is_ours = KEPT_FROM_GEARS.contains(&name);
            if is_ours { None } else { std::env::var(name).ok() }
        }),
        groups: None,
    }
}

//! What the engine's gears reach the world through, on this host.

use std::sync::Arc;

use semel_client::{Client, ClientError};
use semel_jobs::gear::builtin::http::HttpSettings;
use semel_jobs::gear::builtin::mesh::MeshPort;
use semel_jobs::gear::load::Ports;
use semel_jobs::gear::net::PrivateHosts;
use semel_jobs::gear::{Failure, FailureClass, Later};
use serde_json::{Value, json};

use crate::daemon::tls::Trust;

/// The daemon of a mesh, as gears see it.
struct DaemonPort(Client);

impl MeshPort for DaemonPort {
    fn send<'a>(
        &'a self,
        to: &'a str,
        message: &'a Value,
        client_message_id: &'a str,
    ) -> Later<'a, Result<Value, Failure>> {
        Box::pin(async move {
            let body = json!({"to": to, "message": message});
            let answer = self.0.post("/v1/send", &body, Some(client_message_id)).await;
            let answer = answer.map_err(|error| {
                let (class, code) = match &error {
                    ClientError::NoDaemon { .. } => (FailureClass::Transient, "no_daemon"),
                    ClientError::TimedOut => (FailureClass::Transient, "timed_out"),
                    ClientError::Broken(_) => (FailureClass::Transient, "connection_cut"),
                    ClientError::Invalid(_) => (FailureClass::UserError, "invalid_request"),
                };
                Failure::new(class, code, error.to_string())
            })?;
            if answer.is_success() {
                return Ok(answer.body);
            }
            let class = match answer.status {
                408 | 425 | 429 | 500..=506 | 508.. => FailureClass::Transient,
                507 => FailureClass::ResourceLimit,
                _ => FailureClass::UserError,
            };
            Err(Failure::new(class, answer.code().unwrap_or("refused"), answer.detail()))
        })
    }
}

/// The ports of an engine: a daemon, if there is one, and hosts that `http` may reach although
/// their addresses are not public.
pub(crate) fn ports(daemon: Option<Client>, private_hosts: Vec<String>) -> Ports {
    // A system without authorities can still speak plain HTTP.
    let tls = Trust::default().open("https://").ok().flatten();
    Ports {
        mesh: daemon.map(|client| Arc::new(DaemonPort(client)) as Arc<dyn MeshPort>),
        http: HttpSettings { tls, private_hosts: PrivateHosts::new(private_hosts) },
        environment: Arc::new(|name| std::env::var(name).ok()),
    }
}

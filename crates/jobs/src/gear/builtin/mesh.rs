//! `mesh.send {to, message}` and `mesh.post {topic, message}`. The execution's id is the message's
//! `client_message_id`, so an attempt that is run again goes into the same outbox row (jobs.md §4).

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::manifest::{Manifest, Risk};
use super::super::{
    Call, Desk, Ended, Failure, FailureClass, Gear, Later, ORIGIN_UNKNOWN, Resolution, Stop,
};

/// The way to a mesh: its daemon.
pub trait MeshPort: Send + Sync {
    /// The member as which messages leave, as far as is known: the same id from another member is
    /// another message.
    fn sender(&self) -> Option<String>;

    /// The same, asked for now if it is not known.
    fn learn_sender(&self) -> Later<'_, Option<String>>;

    /// Has a message accepted under this id, once. A failure that is transient leaves open whether
    /// it was.
    fn send<'a>(
        &'a self,
        to: &'a str,
        message: &'a Value,
        client_message_id: &'a str,
    ) -> Later<'a, Result<Value, Failure>>;
}

/// The gear.
pub struct Mesh {
    manifest: Manifest,
    port: Option<Arc<dyn MeshPort>>,
}

impl Mesh {
    /// The gear; without a port every message fails for now.
    pub fn new(port: Option<Arc<dyn MeshPort>>) -> Self {
        let name = || json!({"type": "string", "minLength": 1, "maxLength": 1024});
        let one = json!({"to": name(), "message": {"type": "string"}});
        let all = json!({"topic": name(), "message": {"type": "string"}});
        let mut send = super::action("Send a message to a member", one, &["to", "message"]);
        let mut post = super::action("Post a message to a topic", all, &["topic", "message"]);
        (send.risk, post.risk) = (Risk::Medium, Risk::Medium);
        let manifest = super::manifest("mesh", [("send", send), ("post", post)]);
        Self { manifest, port }
    }

    async fn send(&self, call: &Call) -> Ended {
        if !self.manifest.actions.contains_key(&call.action) {
            return super::no_such_action(&call.action);
        }
        let to = self.receiver(&call.action, &call.params);
        let (Some(to), Some(message)) = (to, call.params.get("message")) else {
            return super::user_error("no_receiver", "give a recipient and a message");
        };
        let Some(port) = &self.port else {
            let text = "this engine has no daemon of a mesh";
            return Ended::Failed(Failure::new(FailureClass::Transient, "no_daemon", text));
        };
        let sender = port.learn_sender().await;
        if sender.is_none() || call.via != sender {
            // Nothing was sent: what was written down of this attempt names somebody else.
            let text = "the daemon of the mesh did not tell its member, or its member has changed";
            return Ended::Failed(Failure::new(FailureClass::Transient, "no_daemon", text));
        }
        match port.send(&to, message, &call.execution_id).await {
            Ok(value) => super::done(value),
            Err(failure) if failure.class == FailureClass::Transient => Ended::Uncertain(failure),
            Err(failure) => Ended::Failed(failure),
        }
    }
}

/// A reference stays one until it is known what it stands for.
fn topic(name: &str) -> String {
    if name.starts_with('#') || name.starts_with("$ref:") {
        name.to_owned()
    } else {
        format!("#{name}")
    }
}

impl Gear for Mesh {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn needs_workspace(&self) -> bool {
        false
    }

    fn is_ready(&self) -> bool {
        self.port.is_some()
    }

    fn receiver(&self, action: &str, params: &Value) -> Option<String> {
        match action {
            "post" => super::text(params, "topic").map(topic),
            _ => super::text(params, "to").map(str::to_owned),
        }
    }

    fn learn_origin(&self) -> Later<'_, ()> {
        Box::pin(async {
            if let Some(port) = &self.port {
                drop(port.learn_sender().await);
            }
        })
    }

    fn origin(&self) -> Option<String> {
        let port = self.port.as_ref()?;
        Some(port.sender().unwrap_or_else(|| ORIGIN_UNKNOWN.to_owned()))
    }

    /// It is not cut off by a stop: the daemon answers at once or not, within its own limit.
    fn run<'a>(&'a self, call: Call, _desk: Arc<dyn Desk>, stop: Stop) -> Later<'a, Ended> {
        Box::pin(async move {
            if stop.is_stopped() {
                return super::stopped();
            }
            self.send(&call).await
        })
    }

    fn resolve<'a>(&'a self, _call: Call, _stop: Stop) -> Later<'a, Resolution> {
        Box::pin(async { Resolution::Unknown })
    }
}

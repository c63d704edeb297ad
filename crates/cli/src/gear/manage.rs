//! What is installed, and what of it may be used.

use std::path::Path;

use semel_client::{Client, ClientError};
use semel_core::shown::shown;
use semel_daemon::home::{Complete, Home};
use semel_jobs::config::Config;
use semel_jobs::gear::groups;
use semel_jobs::gear::load::{built_in, load};
use semel_jobs::gear::manifest::Manifest;
use semel_jobs::gear::package::{self, State};
use semel_jobs::gear::sandbox::{Ability, probe};
use serde_json::{Value, json};

use super::{failed, ports, shim};
use crate::exit::{Exit, Failure, Form, chain};
use crate::{log, print, progress};

/// What the operator says to a sandbox that is not all it could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weaker {
    Refused,
    Accepted,
}

pub(super) async fn install(
    home: &Path,
    folder: &Path,
    weaker: Weaker,
    form: Form,
) -> Result<(), Failure> {
    let document = package::manifest(folder).map_err(|error| failed(chain(&error)))?;
    let id = &document.manifest.id;
    if built_in(id).is_some() {
        let text = format!("error: {id} is built in; choose another id");
        return Err(Failure::new(Exit::Conflict, text));
    }
    let missing = missing(weaker).await?;
    if document.has_network() && missing.contains(&Ability::Namespaces) {
        let text = "it needs a network, which this host cannot limit without namespaces";
        return Err(failed(text.to_owned()));
    }
    let installing = progress::show("installing");
    let installed = package::install(home, home, folder, &missing);
    drop(installing);
    let (document, state) = installed.map_err(|error| failed(chain(&error)))?;
    let found = groups::look();
    let (asks, bounded) = (document.asks_for(&found), groups::told(&found));
    let manifest = &document.manifest;
    print(&match form {
        Form::Json => {
            let installed = json!({"id": manifest.id, "version": manifest.version,
                "sha256": state.sha256, "waived": state.waived, "permissions": asks,
                "bounded": bounded});
            format!("{installed}\n")
        }
        Form::Text => {
            let asks: String =
                asks.iter().map(|ask| format!("  it may {}\n", shown(ask))).collect();
            let sum = shown(&bounded).to_string();
            format!("installed {} {}\n{asks}  {sum}\n", manifest.id, manifest.version)
        }
    })?;
    tell_engines(home).await
}

/// What this host cannot enforce, if the operator does without it.
pub(super) async fn missing(weaker: Weaker) -> Result<Vec<Ability>, Failure> {
    let shown = progress::show("checking the sandbox");
    let missing = probe::missing(&shim()?).await.map_err(|error| failed(chain(&error)))?;
    drop(shown);
    if missing.is_empty() || weaker == Weaker::Accepted {
        return Ok(missing.into_iter().map(|(ability, _)| ability).collect());
    }
    let lines: String =
        missing.iter().map(|(ability, why)| format!("  {}: {why}\n", ability.as_str())).collect();
    let text = format!(
        "error: this host cannot enforce the whole sandbox:\n\
         {lines}to do without it: --accept-weaker-sandbox"
    );
    Err(Failure::new(Exit::Failed, text))
}

pub(super) fn list(home: &Path, form: Form) -> Result<(), Failure> {
    let registry = load(home, shim()?, ports::ports(None, &Config::default()));
    let registry = registry.map_err(|error| failed(chain(&error)))?;
    let gears = registry.list();
    print(&match form {
        Form::Json => {
            let items: Vec<Value> = gears.iter().map(document).collect();
            format!("{}\n", json!({"items": items}))
        }
        Form::Text => table(&gears),
    })
}

fn document((gear, enabled): &(Manifest, bool)) -> Value {
    let actions = gear.actions.iter().map(|(name, action)| {
        json!({"name": name, "about": action.about, "risk": action.risk.as_str(),
            "recovery": action.recovery.as_str(), "always_asks": action.always_asks,
            "params": action.params, "result": action.result})
    });
    let actions: Vec<Value> = actions.collect();
    json!({"id": gear.id, "version": gear.version, "enabled": enabled,
        "built_in": built_in(&gear.id).is_some(), "actions": actions})
}

fn table(gears: &[(Manifest, bool)]) -> String {
    let width = gears.iter().map(|(gear, _)| gear.id.len()).max().unwrap_or(0);
    let line = |(gear, enabled): &(Manifest, bool)| {
        let enabled = if *enabled { "enabled " } else { "disabled" };
        let actions: Vec<&str> = gear.actions.keys().map(String::as_str).collect();
        let (id, version, actions) = (&gear.id, &gear.version, actions.join(", "));
        format!("{id:width$}  {version:8}  {enabled}  {actions}\n")
    };
    gears.iter().map(line).collect()
}

pub(super) async fn switch(home: &Path, id: &str, enabled: bool) -> Result<(), Failure> {
    let known = package::installed(home).map_err(|error| failed(chain(&error)))?;
    if built_in(id).is_none() && !known.iter().any(|name| name == id) {
        let text = format!("error: there is no gear {id:?}\nto see them all: semel gear list");
        return Err(Failure::new(Exit::NotFound, text));
    }
    let state = package::state(home, id).map_err(|error| failed(chain(&error)))?;
    let new = State { enabled, sha256: String::new(), waived: Vec::new() };
    let state = state.map_or(new, |state| State { enabled, ..state });
    package::set_state(home, id, &state).map_err(|error| failed(chain(&error)))?;
    print(&format!("{id} is {}\n", if enabled { "enabled" } else { "disabled" }))?;
    tell_engines(home).await
}

/// Returns when the engines that run in this home go by what was just written. They would find out
/// by themselves, only later.
async fn tell_engines(home: &Path) -> Result<(), Failure> {
    let (daemons, _) = Home::list(home).unwrap_or((Vec::new(), Complete::Yes));
    let of_daemons = daemons.iter().filter_map(|daemon| daemon.socket_path().ok());
    let mut told = 0;
    for socket in of_daemons.chain([home.join("jobs/sock")]) {
        match Client::socket(&socket).post("/v1/gears/refresh", &json!({}), None).await {
            Ok(answer) if answer.is_success() => told += 1,
            // A daemon without an engine, or none.
            Ok(answer) if answer.status == 404 => {}
            Err(ClientError::NoDaemon { .. }) => {}
            Ok(answer) => return Err(untold(&socket, answer.detail())),
            Err(error) => return Err(untold(&socket, &chain(&error))),
        }
    }
    if told == 0 {
        log::say("no engine runs in this home; the next one will use it");
    }
    Ok(())
}

fn untold(socket: &Path, why: &str) -> Failure {
    let text = format!(
        "error: it is done, but the engine at {} could not be notified: {}\n\
         it will notice by itself within seconds",
        socket.display(),
        shown(why)
    );
    Failure::new(Exit::Unavailable, text)
}

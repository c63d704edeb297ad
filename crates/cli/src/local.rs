//! Commands that ask the daemon of this host. There is no way around it: when none answers, nothing
//! is done, and the exit code says that it can be tried again.

pub(crate) mod events;
pub(crate) mod inbox;
pub(crate) mod member;
pub(crate) mod outbox;
pub(crate) mod peers;
pub(crate) mod queue;
pub(crate) mod send;
pub(crate) mod table;
pub(crate) mod topic;

use std::path::PathBuf;

use semel_client::{Answer, Client, ClientError, Events};
use semel_core::code::Code;
use semel_core::refusal::Refusal;
use semel_core::shown::shown as plain;
use semel_daemon::home::{Home, MeshSlug};
use serde_json::Value;

use crate::daemon::home::{HomeArgument, start_command};
use crate::exit::{Exit, Failure, Form, chain};
use crate::{print, progress};

/// Which daemon is meant, and how it answers.
#[derive(Debug, clap::Args)]
pub(crate) struct Local {
    /// The mesh; default: the only one of this host
    #[arg(long, global = true)]
    mesh: Option<String>,
    #[command(flatten)]
    home: HomeArgument,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

/// Which mesh is meant by what prints in one form alone.
#[derive(Debug, clap::Args)]
pub(crate) struct Joined {
    /// The mesh; default: the only one of this host
    #[arg(long)]
    mesh: Option<String>,
    #[command(flatten)]
    home: HomeArgument,
}

impl Joined {
    /// The folder of the mesh that is meant.
    pub(crate) fn home(&self) -> Result<Home, Failure> {
        Local { mesh: self.mesh.clone(), home: self.home.clone(), json: false }.home()
    }
}

/// A daemon that answers for a mesh.
pub(crate) struct Daemon {
    pub(crate) client: Client,
    /// The command that starts it.
    pub(crate) start: String,
    pub(crate) form: Form,
}

/// What a problem document says besides, for people.
const MORE: &[&str] = &["conflict", "reason", "pointer", "client_message_id"];

impl Local {
    /// The daemon of one mesh in a home.
    pub(crate) fn of(home: HomeArgument, mesh: &str, json: bool) -> Self {
        Self { mesh: Some(mesh.to_owned()), home, json }
    }

    pub(crate) fn form(&self) -> Form {
        Form::of_flag(self.json)
    }

    /// The home with everything in it.
    pub(crate) fn root(&self) -> Result<PathBuf, Failure> {
        self.home.find()
    }

    /// The folder of the mesh that is meant.
    pub(crate) fn home(&self) -> Result<Home, Failure> {
        let root = self.home.find()?;
        let usage = |text: String| Failure::new(Exit::Usage, format!("error: {text}"));
        if let Some(mesh) = &self.mesh {
            let slug = MeshSlug::parse(mesh).map_err(|error| usage(chain(&error)))?;
            return Ok(Home::at(&root, &slug));
        }
        let (mut homes, _) = Home::list(&root).map_err(|error| usage(chain(&error)))?;
        match homes.len() {
            1 => Ok(homes.remove(0)),
            0 => {
                let text = "error: this host has joined no mesh\n\
                            to join one: semel mesh join INVITE, or run everything here: semel up";
                Err(Failure::new(Exit::NotFound, text))
            }
            _ => {
                let names: Vec<&str> = homes.iter().map(|home| home.mesh().as_str()).collect();
                let names = names.join(", ");
                Err(usage(format!(
                    "this host has several meshes: {names}\nchoose one: --mesh NAME"
                )))
            }
        }
    }

    /// The folder of the mesh that an invite is for, whatever else is on this host.
    pub(crate) fn home_for(&self, invited: &MeshSlug) -> Result<Home, Failure> {
        match &self.mesh {
            Some(mesh) if mesh != invited.as_str() => {
                let detail = format!("the invite is for the mesh {invited}, not for {mesh:?}");
                let refusal = Refusal::new(Code::InvalidField, detail);
                Err(Failure::refused(&refusal, self.form()))
            }
            Some(_) | None => Ok(Home::at(&self.home.find()?, invited)),
        }
    }

    /// The daemon, found by asking it: never by its pid.
    pub(crate) async fn daemon(&self) -> Result<Daemon, Failure> {
        let home = self.home()?;
        let socket = home.socket_path();
        let socket = socket.map_err(|error| Failure::new(Exit::Usage, chain(&error)))?;
        let (client, start) = (Client::socket(socket), start_command(&home));
        let version = client.get("/v1/version").await.map_err(|error| no_daemon(&error, &start))?;
        let found = version.body.get("mesh").and_then(Value::as_str).unwrap_or_default();
        if found != home.mesh().as_str() {
            let text = format!("error: the daemon at this place serves the mesh {found:?}");
            return Err(Failure::new(Exit::Unavailable, text));
        }
        Ok(Daemon { client, start, form: self.form() })
    }
}

impl Daemon {
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Failure> {
        let _shown = progress::show("waiting for the daemon");
        let answer = self.client.get(path).await.map_err(|error| no_daemon(&error, &self.start))?;
        self.checked(answer)
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let _shown = progress::show("waiting for the daemon");
        let answer = self.client.post(path, body, None).await;
        let again = "check before you repeat it";
        self.checked(answer.map_err(|error| unsure(&error, &self.start, again))?)
    }

    /// Gives the engine a job, under a key if there is one.
    pub(crate) async fn submit(&self, job: &Value, key: Option<&str>) -> Result<Value, Failure> {
        let _shown = progress::show("waiting for the daemon");
        let answer = self.client.post("/v1/jobs", job, key).await;
        let again = match key {
            Some(key) => format!("the same command with --key {key} is the same job"),
            None => "check before you repeat it: semel job list".to_owned(),
        };
        self.checked(answer.map_err(|error| unsure(&error, &self.start, &again))?)
    }

    /// What was answered, or why not, with the exit code that goes with it.
    pub(crate) fn checked(&self, answer: Answer) -> Result<Value, Failure> {
        if answer.is_success() {
            return Ok(answer.body);
        }
        let exit = match answer.status {
            503 if answer.code() == Some(Code::OutcomeUnknown.as_str()) => Exit::Unknown,
            _ if answer.code() == Some(Code::ConfigRefused.as_str()) => Exit::Refused,
            400 | 413 => Exit::Usage,
            404 => Exit::NotFound,
            409 => Exit::Conflict,
            429 | 503 | 507 => Exit::Unavailable,
            _ => Exit::Failed,
        };
        let text = match self.form {
            Form::Json => answer.body.to_string(),
            Form::Text => {
                let code = answer.code().unwrap_or("unknown");
                let more = MORE.iter().filter_map(|name| {
                    Some(format!("\n{name}: {}", plain(answer.body.get(name)?.as_str()?)))
                });
                let more: String = more.collect();
                let (code, detail) = (plain(code), plain(answer.detail()));
                format!("error: {code}: {detail}{more}\nto learn more: semel explain {code}")
            }
        };
        Err(Failure::new(exit, text))
    }

    /// A stream, or nothing where the next try may have one: the daemon is away, or busy. One that
    /// would be refused for ever ends the command.
    pub(crate) fn opened(
        &self,
        stream: Result<Events, ClientError>,
    ) -> Result<Option<Events>, Failure> {
        match stream {
            Ok(events) => Ok(Some(events)),
            Err(ClientError::Refused(answer)) if answer.is_final() => {
                self.checked(answer).map(|_| None)
            }
            Err(error @ ClientError::Invalid(_)) => Err(no_daemon(&error, &self.start)),
            Err(
                ClientError::NoDaemon { .. }
                | ClientError::TimedOut
                | ClientError::Broken(_)
                | ClientError::Refused(_),
            ) => Ok(None),
        }
    }

    /// Prints a document: as it is, or as the lines that `shown` makes of it.
    pub(crate) fn show(
        &self,
        document: &Value,
        shown: impl FnOnce(&Value) -> String,
    ) -> Result<(), Failure> {
        match self.form {
            Form::Json => print(&format!("{document}\n")),
            Form::Text => print(&shown(document)),
        }
    }

    /// Every page of a list, up to `max` items.
    pub(crate) async fn list(&self, path: String, max: usize) -> Result<Value, Failure> {
        let mut items = Vec::new();
        let mut next = Some(path);
        while let Some(path) = next.take() {
            let page = self.get(&path).await?;
            items
                .extend(page.get("items").and_then(Value::as_array).into_iter().flatten().cloned());
            if items.len() < max {
                next = page.get("next").and_then(Value::as_str).map(str::to_owned);
            }
        }
        items.truncate(max);
        Ok(serde_json::json!({"items": items}))
    }
}

/// Nobody answers a question. That nothing was done is said only if it could not even be asked.
pub(crate) fn no_daemon(error: &ClientError, start: &str) -> Failure {
    let why = chain(error);
    let text = match error {
        ClientError::NoDaemon { .. } => {
            format!("error: {why}\nnothing was done; to start it: {start}")
        }
        ClientError::TimedOut | ClientError::Broken(_) => format!("error: {why}"),
        ClientError::Invalid(_) => return Failure::new(Exit::Usage, format!("error: {why}")),
        ClientError::Refused(_) => return Failure::new(Exit::Failed, format!("error: {why}")),
    };
    Failure::new(Exit::Unavailable, text)
}

/// The same of a call that changes something: it may have been done. `again` says how it is said
/// again without being done twice.
fn unsure(error: &ClientError, start: &str, again: &str) -> Failure {
    match error {
        ClientError::TimedOut | ClientError::Broken(_) => {
            let why = chain(error);
            let text = format!("error: {why}\nit is unknown whether it was done\n{again}");
            Failure::new(Exit::Unknown, text)
        }
        ClientError::NoDaemon { .. } | ClientError::Invalid(_) | ClientError::Refused(_) => {
            no_daemon(error, start)
        }
    }
}

/// How many lines of a list are wanted: one at the least.
pub(crate) fn limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|limit| *limit > 0);
    limit.ok_or_else(|| format!("{text:?} is not a number of 1 or more"))
}

/// A name or a value as one part of a query.
pub(crate) fn query(pairs: &[(&str, Option<String>)]) -> String {
    let given = pairs.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    let parts: Vec<String> =
        given.map(|(name, value)| format!("{name}={}", semel_wire::path::encode(value))).collect();
    if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) }
}

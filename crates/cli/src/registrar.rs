//! `semel grant`, `semel effect`, `semel registrar`: the registrar of a broker over HTTP, or that
//! of `semel up` over the daemon's socket.

mod client;
mod effect;
mod grant;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use semel_core::shown::shown;
use semel_registrar::limits::RETENTION_DAYS_DEFAULT;
use semel_registrar::store::JOBS_DOMAIN;
use serde_json::{Value, json};

use crate::daemon::tls::Trust;
use crate::exit::{Exit, Failure, Form, chain};
use crate::local::Local;
use crate::print;
use client::Server;

pub(crate) use effect::EffectCommand;
pub(crate) use grant::GrantCommand;

/// Bytes of an envelope or a grant in a file.
const DOCUMENT_BYTES_MAX: u64 = 64 << 10;

/// What every one of these commands has.
#[derive(Debug, clap::Args)]
pub(crate) struct Common {
    /// Address of the broker: https://HOST:PORT, or http:// on this machine; default: the registrar
    /// of `semel up` on this host
    #[arg(long)]
    broker: Option<String>,

    #[command(flatten)]
    trust: Trust,

    /// File with the operator's token at the broker; the socket needs none
    #[arg(long, requires = "broker")]
    admin_token_file: Option<PathBuf>,

    #[command(flatten)]
    local: Local,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RegistrarCommand {
    /// Allow or hold the registrations of a domain
    #[command(subcommand)]
    Gate(GateCommand),
    /// Show attempts or refusals, newest first
    Audit(AuditArguments),
    /// Delete old lines of the ledgers; used keys and grants are never deleted
    Sweep(SweepArguments),
}

#[derive(Debug, clap::Args)]
pub(crate) struct AuditArguments {
    /// Which ledger
    #[arg(value_parser = ["attempts", "failures"])]
    ledger: String,
    /// Only this domain; the ledger of job approvals is kept beside the jobs
    #[arg(long)]
    domain: Option<String>,
    /// Only lines before this entry
    #[arg(long, value_name = "ENTRY")]
    before: Option<u64>,
    /// At most this many lines
    #[arg(long, default_value_t = 50)]
    limit: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SweepArguments {
    /// Delete attempts and refusals that are older than this many days, and grants that expired
    /// before
    #[arg(long, value_name = "DAYS", default_value_t = RETENTION_DAYS_DEFAULT)]
    older_than_days: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GateCommand {
    /// Allow registrations
    Open(GateArguments),
    /// Hold registrations
    Hold(GateArguments),
    /// Show whether registrations are allowed or held
    Show(GateArguments),
}

#[derive(Debug, clap::Args)]
pub(crate) struct GateArguments {
    /// The domain
    domain: String,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn grant(command: &GrantCommand) -> Result<(), Failure> {
    grant::run(command)
}

pub(crate) fn effect(command: &EffectCommand) -> Result<(), Failure> {
    effect::run(command)
}

pub(crate) fn registrar(command: &RegistrarCommand) -> Result<(), Failure> {
    match command {
        RegistrarCommand::Gate(command) => gate(command),
        RegistrarCommand::Audit(arguments) => audit(arguments),
        RegistrarCommand::Sweep(arguments) => sweep(arguments),
    }
}

fn audit(arguments: &AuditArguments) -> Result<(), Failure> {
    let (ledger, limit) = (&arguments.ledger, arguments.limit);
    let mut path = format!("/v1/registrar/audit?ledger={ledger}&limit={limit}");
    if let Some(domain) = &arguments.domain {
        path.push_str(&format!("&domain={}", semel_wire::path::encode(domain)));
    }
    if let Some(before) = arguments.before {
        path.push_str(&format!("&before={before}"));
    }
    let server = arguments.common.server_over(arguments.domain.as_deref())?;
    let answer = server.ask("GET", &path, None)?;
    let lines = answer.body.get("items").and_then(Value::as_array);
    let line = |line: &Value| {
        let entry = line.get("entry").and_then(Value::as_i64).unwrap_or_default();
        let (at, event, key) =
            (text(line, "at"), text(line, "event"), text(line, "logical_request_key"));
        let (outcome, attempt) = (text(line, "outcome"), text(line, "attempt_id"));
        shown(&format!("{entry} {at} {event} {outcome} {key} {attempt}")).into_owned()
    };
    let lines: Vec<String> = lines.into_iter().flatten().map(line).collect();
    arguments.common.show_lines(&answer.text, &lines.join("\n"))
}

fn sweep(arguments: &SweepArguments) -> Result<(), Failure> {
    let asked = json!({"older_than_days": arguments.older_than_days});
    let answer = arguments.common.server()?.ask("POST", "/v1/registrar/sweep", Some(&asked))?;
    let count = |field: &str| answer.body.get(field).and_then(Value::as_u64).unwrap_or_default();
    let (attempts, failures, grants) = (count("attempts"), count("failures"), count("grants"));
    let more = answer.body.get("more").and_then(Value::as_bool).unwrap_or_default();
    let rest = if more { "; there is more: run it again" } else { "" };
    let line =
        format!("swept {attempts} lines of attempts, {failures} failures, {grants} grants{rest}");
    arguments.common.show(&answer.text, &line)
}

fn gate(command: &GateCommand) -> Result<(), Failure> {
    let (arguments, action) = match command {
        GateCommand::Open(arguments) => (arguments, Some("open")),
        GateCommand::Hold(arguments) => (arguments, Some("hold")),
        GateCommand::Show(arguments) => (arguments, None),
    };
    let domain = &arguments.domain;
    let server = arguments.common.server_over(Some(domain))?;
    let path = "/v1/registrar/gate";
    let answer = match action {
        Some(action) => {
            server.ask("POST", path, Some(&json!({"domain": domain, "action": action})))?
        }
        None => {
            let domain = semel_wire::path::encode(domain);
            server.ask("GET", &format!("{path}?domain={domain}"), None)?
        }
    };
    let gate = text(&answer.body, "gate").to_owned();
    let proceed = text(&answer.body, "can_proceed").to_owned();
    arguments.common.show(&answer.text, &format!("{domain}: {gate}, CAN_PROCEED = {proceed}"))
}

impl Common {
    /// Whom to ask about a domain. That of approvals is decided over by the engine that keeps the
    /// jobs: where one runs alone in this home, it is asked itself.
    fn server_over(&self, domain: Option<&str>) -> Result<Server, Failure> {
        if self.broker.is_none() && domain == Some(JOBS_DOMAIN) {
            let socket = self.local.root()?.join("jobs/sock");
            if UnixStream::connect(&socket).is_ok() {
                return Ok(Server::socket(socket));
            }
        }
        self.server()
    }

    /// Where to ask, with the operator's token where there is one.
    fn server(&self) -> Result<Server, Failure> {
        let Some(broker) = &self.broker else {
            let socket = self.local.home()?.socket_path();
            let socket = socket.map_err(|error| Failure::new(Exit::Usage, chain(&error)))?;
            return Ok(Server::socket(socket));
        };
        let token = match &self.admin_token_file {
            Some(path) => Some(read(path)?.trim().to_owned()),
            None => None,
        };
        Server::new(broker, &self.trust, token)
    }

    /// Prints the answer as it came, or a line for people.
    fn show(&self, answer: &str, line: &str) -> Result<(), Failure> {
        self.show_lines(answer, &shown(line))
    }

    /// The same of lines of which each can be shown.
    fn show_lines(&self, answer: &str, lines: &str) -> Result<(), Failure> {
        let text = match self.local.form() {
            Form::Json => answer,
            Form::Text => lines,
        };
        print(&format!("{}\n", text.trim_end()))
    }
}

/// A text of the answer; empty when it is not there.
fn text<'a>(body: &'a Value, field: &str) -> &'a str {
    body.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// A JSON document in a file, or from stdin.
fn document(path: &Path) -> Result<Value, Failure> {
    let text = read(path)?;
    serde_json::from_str(&text)
        .map_err(|error| Failure::new(Exit::Usage, format!("error: {}: {error}", path.display())))
}

fn read(path: &Path) -> Result<String, Failure> {
    let io = |error: std::io::Error| {
        Failure::new(Exit::Usage, format!("error: {}: {error}", path.display()))
    };
    let mut text = String::new();
    if path == Path::new("-") {
        let stdin = std::io::stdin().lock();
        stdin.take(DOCUMENT_BYTES_MAX).read_to_string(&mut text).map_err(io)?;
    } else {
        let file = std::fs::File::open(path).map_err(io)?;
        file.take(DOCUMENT_BYTES_MAX).read_to_string(&mut text).map_err(io)?;
    }
    Ok(text)
}

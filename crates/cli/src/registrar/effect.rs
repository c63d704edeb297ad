//! `semel effect`: let something happen once, and find out what happened.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};

use super::client::Server;
use super::{Common, document, text};
use crate::exit::{Exit, Failure};
use crate::system::mint;

#[derive(Debug, Subcommand)]
pub(crate) enum EffectCommand {
    /// Register an effect; prints `registered` the first time, `replayed` on every exact retry
    Register(RegisterArguments),
    /// Look up the outcome of a request, and close lost attempts
    Resolve(KeyArguments),
    /// Show an effect; exit 3 if there is none
    Show(KeyArguments),
    /// Record whether an effect is correct
    Verify(VerifyArguments),
    /// Register the compensation of an effect whose verification has failed
    Compensate(CompensateArguments),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  if [ \"$(semel effect register --envelope deploy.json --grant grant.json \\
      --broker http://127.0.0.1:7117 | cut -d' ' -f1)\" = registered ]; then ./deploy; fi")]
pub(crate) struct RegisterArguments {
    /// File with the envelope; - reads stdin
    #[arg(long)]
    envelope: PathBuf,
    /// File with the grant
    #[arg(long)]
    grant: PathBuf,
    /// Name of this attempt; default: a generated one
    #[arg(long)]
    attempt: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(crate) struct KeyArguments {
    /// The logical request key
    key: String,
    /// File with a grant for this effect, instead of the operator's token
    #[arg(long)]
    grant: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArguments {
    /// The logical request key
    key: String,
    /// The effect is correct
    #[arg(long, conflicts_with = "failed", required_unless_present = "failed")]
    passed: bool,
    /// The effect is not correct
    #[arg(long)]
    failed: bool,
    /// Findings, in words
    #[arg(long)]
    note: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompensateArguments {
    /// The logical request key of the effect that has failed
    key: String,
    #[command(flatten)]
    register: RegisterArguments,
}

pub(super) fn run(command: &EffectCommand) -> Result<(), Failure> {
    match command {
        EffectCommand::Register(arguments) => register(arguments, "/v1/effects"),
        EffectCommand::Compensate(arguments) => {
            let path = format!("/v1/effects/{}/compensate", encoded(&arguments.key));
            register(&arguments.register, &path)
        }
        EffectCommand::Resolve(arguments) => look(arguments, ""),
        EffectCommand::Show(arguments) => look(arguments, "?mode=show"),
        EffectCommand::Verify(arguments) => verify(arguments),
    }
}

fn register(arguments: &RegisterArguments, path: &str) -> Result<(), Failure> {
    let attempt = arguments.attempt.clone();
    let attempt = attempt.unwrap_or_else(|| mint().client_message_id().to_string());
    let body = json!({
        "envelope": document(&arguments.envelope)?,
        "grant": document(&arguments.grant)?,
        "attempt_id": attempt,
    });
    let answer = arguments.common.server()?.ask("POST", path, Some(&body))?;
    let key = text(&answer.body, "logical_request_key");
    let word = if answer.status == 201 { "registered" } else { "replayed" };
    arguments.common.show(&answer.text, &format!("{word} {key}"))
}

fn look(arguments: &KeyArguments, mode: &str) -> Result<(), Failure> {
    let mut server = arguments.common.server()?;
    if let Some(grant) = &arguments.grant {
        server.header("Semel-Grant", document(grant)?.to_string())?;
    }
    let path = format!("/v1/effects/{}{mode}", encoded(&arguments.key));
    let answer = server.ask("GET", &path, None)?;
    let state = text(&answer.body, "state");
    let closed = answer.body.get("closed_attempts").and_then(Value::as_u64).unwrap_or_default();
    let lost = if closed > 0 { format!(", {closed} lost attempts closed") } else { String::new() };
    arguments.common.show(&answer.text, &format!("{state}{lost}"))
}

fn verify(arguments: &VerifyArguments) -> Result<(), Failure> {
    let verdict = match (arguments.passed, arguments.failed) {
        (true, false) => "passed",
        (false, true) => "failed",
        (true, true) | (false, false) => {
            return Err(Failure::new(Exit::Usage, "error: --passed or --failed"));
        }
    };
    let mut body = json!({"verdict": verdict});
    if let Some(note) = &arguments.note {
        body["note"] = note.as_str().into();
    }
    let path = format!("/v1/effects/{}/verify", encoded(&arguments.key));
    let server: Server = arguments.common.server()?;
    let answer = server.ask("POST", &path, Some(&body))?;
    arguments.common.show(&answer.text, &format!("{verdict} {}", arguments.key))
}

fn encoded(key: &str) -> String {
    semel_wire::path::encode(key)
}

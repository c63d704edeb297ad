//! `semel grant`: allow one request, once.

use std::path::PathBuf;

use clap::Subcommand;
use semel_core::shown::shown;
use serde_json::{Value, json};

use super::{Common, document, text};
use crate::exit::{Failure, Form};
use crate::print;

#[derive(Debug, Subcommand)]
pub(crate) enum GrantCommand {
    /// Allow the request in an envelope, once, and print the grant
    Issue(IssueArguments),
    /// List the grants of a domain
    List(ListArguments),
    /// Revoke an unused grant
    Revoke(RevokeArguments),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  semel grant issue --envelope deploy.json --broker http://127.0.0.1:7117 \\
    --admin-token-file token > grant.json")]
pub(crate) struct IssueArguments {
    /// File with the envelope; - reads stdin
    #[arg(long)]
    envelope: PathBuf,
    /// Start of validity, such as 2027-01-15T08:00:00.000Z; default: now
    #[arg(long)]
    not_before: Option<String>,
    /// End of validity; default: when the request becomes stale
    #[arg(long)]
    not_after: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArguments {
    /// The domain
    domain: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RevokeArguments {
    /// The grant's nonce
    nonce: String,
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(command: &GrantCommand) -> Result<(), Failure> {
    match command {
        GrantCommand::Issue(arguments) => issue(arguments),
        GrantCommand::List(arguments) => list(arguments),
        GrantCommand::Revoke(arguments) => {
            let path = format!("/v1/grants/{}", semel_wire::path::encode(&arguments.nonce));
            arguments.common.server()?.ask("DELETE", &path, None)?;
            let nonce = &arguments.nonce;
            let answer = json!({"nonce": nonce, "state": "revoked"}).to_string();
            arguments.common.show(&answer, &format!("{nonce} revoked"))
        }
    }
}

fn issue(arguments: &IssueArguments) -> Result<(), Failure> {
    let mut body = json!({"envelope": document(&arguments.envelope)?});
    let window = [("not_before", &arguments.not_before), ("not_after", &arguments.not_after)];
    for (field, value) in window {
        if let Some(value) = value {
            body[field] = value.as_str().into();
        }
    }
    let answer = arguments.common.server()?.ask("POST", "/v1/grants", Some(&body))?;
    let grant = answer.body.get("grant").map(Value::to_string).unwrap_or_default();
    arguments.common.show(&answer.text, &grant)
}

fn list(arguments: &ListArguments) -> Result<(), Failure> {
    let server = arguments.common.server_over(Some(&arguments.domain))?;
    let domain = semel_wire::path::encode(&arguments.domain);
    let mut next = Some(format!("/v1/grants?domain={domain}"));
    while let Some(path) = next {
        let answer = server.ask("GET", &path, None)?;
        let items = answer.body.get("items").and_then(Value::as_array);
        for item in items.into_iter().flatten() {
            let (nonce, state) = (text(item, "nonce"), text(item, "state"));
            let (key, until) = (text(item, "logical_request_key"), text(item, "not_after"));
            let line = match arguments.common.local.form() {
                Form::Json => item.to_string(),
                Form::Text => shown(&format!("{nonce} {state} {until} {key}")).into_owned(),
            };
            print(&format!("{line}\n"))?;
        }
        next = answer.body.get("next").and_then(Value::as_str).map(str::to_owned);
    }
    Ok(())
}

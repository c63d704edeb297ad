//! `semel secret`: what gears must know and nobody else.

use std::io::Read;

use clap::Subcommand;
use semel_jobs::gear::secrets::{SecretName, Secrets};
use semel_jobs::limits::{SECRET_BYTES_MAX, SECRET_BYTES_MIN};
use serde_json::json;
use zeroize::Zeroizing;

use crate::daemon::home::HomeArgument;
use crate::exit::{Exit, Failure, Form, chain};
use crate::print;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    home: HomeArgument,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Store a secret; its value is read from stdin, without the newline at its end
    Set {
        /// The name of the secret
        name: String,
    },
    /// List the names of secrets
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Delete a secret
    Rm {
        /// The name of the secret
        name: String,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let secrets = Secrets::of(&arguments.home.find()?);
    let failed = |text: String| Failure::new(Exit::Failed, format!("error: {text}"));
    let usage = |text: String| Failure::new(Exit::Usage, format!("error: {text}"));
    match &arguments.command {
        Command::Set { name } => {
            let name = SecretName::parse(name).map_err(usage)?;
            let value = value()?;
            secrets.set(&name, value).map_err(|error| failed(chain(&error)))
        }
        Command::List { json } => {
            let names = secrets.names().map_err(|error| failed(chain(&error)))?;
            print(&match Form::of_flag(*json) {
                Form::Json => format!("{}\n", json!({"items": names})),
                Form::Text if names.is_empty() => {
                    "there are no secrets\nto add one: semel secret set NAME < FILE\n".to_owned()
                }
                Form::Text => names.iter().map(|name| format!("{name}\n")).collect(),
            })
        }
        Command::Rm { name } => {
            let name = SecretName::parse(name).map_err(usage)?;
            match secrets.remove(&name).map_err(|error| failed(chain(&error)))? {
                true => Ok(()),
                false => {
                    let text = format!(
                        "error: there is no secret {}\nto see them all: semel secret list",
                        name.as_str()
                    );
                    Err(Failure::new(Exit::NotFound, text))
                }
            }
        }
    }
}

fn value() -> Result<Zeroizing<String>, Failure> {
    let usage = |text: &str| Failure::new(Exit::Usage, format!("error: {text}"));
    let limit = u64::try_from(SECRET_BYTES_MAX).unwrap_or(u64::MAX);
    // Room for all of it at once: a text that grows leaves copies behind.
    let mut value = Zeroizing::new(String::with_capacity(SECRET_BYTES_MAX + 4));
    let read = std::io::stdin().lock().take(limit + 2).read_to_string(&mut value);
    read.map_err(|error| usage(&format!("stdin: {error}")))?;
    if value.ends_with('\n') {
        value.pop();
    }
    if value.ends_with('\r') {
        value.pop();
    }
    if value.is_empty() {
        return Err(usage(
            "the value on stdin is empty; for example: semel secret set NAME < FILE",
        ));
    }
    if value.len() < SECRET_BYTES_MIN {
        let text = format!(
            "a secret has at least {SECRET_BYTES_MIN} bytes: a shorter one cannot be told from \
             ordinary words in a gear's messages"
        );
        return Err(usage(&text));
    }
    Ok(value)
}

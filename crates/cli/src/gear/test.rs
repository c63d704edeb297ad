//! `semel gear test`: a gear in the sandbox, through the real protocol.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use semel_core::shown::shown as plain;
use semel_jobs::config::Config;
use semel_jobs::gear::groups;
use semel_jobs::gear::trial::Trial;
use semel_jobs::gear::{
    Desk, Ended, Failure as GearFailure, FailureClass, Later, Output, Report, SubJob, SubJobEnded,
};
use serde_json::{Value, json};

use super::manage::{Weaker, missing};
use super::{failed, ports, shim};
use crate::exit::{Exit, Failure, Form, chain};
use crate::{log, print};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The folder with gear.toml
    folder: PathBuf,
    /// Action to run; without it only the manifest and the sandbox are checked
    #[arg(long)]
    action: Option<String>,
    /// The action's parameters, as JSON
    #[arg(long, default_value = "{}", value_name = "JSON")]
    params: String,
    /// Time limit of the action; default: the manifest's
    #[arg(long, value_parser = crate::duration::parse)]
    timeout: Option<Duration>,
    /// Try it even if this host cannot enforce the whole sandbox
    #[arg(long)]
    accept_weaker_sandbox: bool,
    /// Give the gear these secrets of the home, if it declares them; default: none
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    with_secrets: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows what a gear reports, on stderr.
struct Shown(Form);

impl Desk for Shown {
    fn report(&self, report: Report) {
        let line = match (&report, self.0) {
            (Report::Log { message, side_effect }, Form::Json) => {
                json!({"type": "log", "message": message, "side_effect": side_effect}).to_string()
            }
            (Report::Progress { percent, message }, Form::Json) => {
                json!({"type": "progress", "percent": percent, "message": message}).to_string()
            }
            (Report::Log { message, side_effect: true }, Form::Text) => {
                format!("effect: {}", plain(message))
            }
            (Report::Log { message, side_effect: false }, Form::Text) => {
                format!("log: {}", plain(message))
            }
            (Report::Progress { percent, message }, Form::Text) => {
                format!("{percent} %: {}", plain(message.as_deref().unwrap_or_default()))
            }
        };
        log::say(&line);
    }

    fn sub_job(&self, asked: SubJob) -> Later<'_, SubJobEnded> {
        let text = format!("a trial has no engine for a sub-job: {}", asked.asked);
        let failure = GearFailure::new(FailureClass::UserError, "no_engine", text);
        Box::pin(async move { SubJobEnded::Failed(failure) })
    }
}

pub(super) async fn run(home: &Path, arguments: &Arguments) -> Result<(), Failure> {
    let form = Form::of_flag(arguments.json);
    let weaker = match arguments.accept_weaker_sandbox {
        true => Weaker::Accepted,
        false => Weaker::Refused,
    };
    let missing = missing(weaker).await?;
    let environment = ports::ports(None, &Config::default()).environment;
    let handed = &arguments.with_secrets;
    let trial = Trial::new(home, &arguments.folder, shim()?, environment, &missing, handed);
    let trial = trial.map_err(|error| failed(chain(&error)))?;
    let document = trial.gear().document();
    let Some(action) = &arguments.action else {
        let actions: Vec<&String> = document.manifest.actions.keys().collect();
        let asks = document.asks_for(&groups::look());
        let found = json!({"id": document.manifest.id, "version": document.manifest.version,
            "actions": actions, "permissions": asks});
        return print(&match form {
            Form::Json => format!("{found}\n"),
            Form::Text => {
                let actions: Vec<&str> = actions.into_iter().map(String::as_str).collect();
                let asks: String =
                    asks.iter().map(|ask| format!("it may {}\n", plain(ask))).collect();
                format!("{} can: {}\n{asks}", document.manifest.id, actions.join(", "))
            }
        });
    };
    let declared = &document.permissions.secrets;
    let kept: Vec<&str> =
        declared.iter().filter(|name| !handed.contains(name)).map(String::as_str).collect();
    if !kept.is_empty() {
        log::say(&format!(
            "it gets no secrets, because it is not installed; to give them to it: --with-secrets \
             {}",
            declared.join(",")
        ));
    }
    let params: Value = serde_json::from_str(&arguments.params)
        .map_err(|error| Failure::new(Exit::Usage, format!("error: --params: {error}")))?;
    let ended = trial.run(action, params, arguments.timeout, Arc::new(Shown(form))).await;
    shown(&ended, form)
}

fn shown(ended: &Ended, form: Form) -> Result<(), Failure> {
    let (what, failure) = match ended {
        Ended::Done(Output::Value(value)) => {
            return print(&match form {
                Form::Json => format!("{}\n", json!({"ended": "done", "result": value})),
                Form::Text => format!("{}\n", plain(&value.to_string())),
            });
        }
        Ended::Done(Output::Artifact(path) | Output::With { file: path, .. }) => {
            let path = path.display().to_string();
            return print(&match form {
                Form::Json => format!("{}\n", json!({"ended": "done", "artifact": path})),
                Form::Text => format!("file: {}\n", plain(&path)),
            });
        }
        Ended::Failed(failure) => ("failed", failure),
        Ended::Uncertain(failure) => ("uncertain", failure),
    };
    let class = failure.class.as_str();
    if form == Form::Json {
        let milliseconds = |after: Duration| u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        let retry_after_ms = failure.retry_after.map(milliseconds);
        let document = json!({"ended": what, "class": class, "code": failure.code,
            "message": failure.message, "retry_after_ms": retry_after_ms});
        print(&format!("{document}\n"))?;
    }
    let (code, message) = (plain(&failure.code), plain(&failure.message));
    let text = format!("{what}: {class}: {code}: {message}");
    Err(Failure::new(Exit::Failed, text))
}

//! `semel doctor`: looks at the machine, the home, the stores and what runs, and says what to do.
//! It changes nothing: no store is migrated, no mode is tightened, no leftover is removed.

mod deep;
mod folders;
mod machine;
mod running;
mod stores;

use semel_core::shown::{shown, shown_lines};
use serde_json::{Value, json};

use crate::address::{LimiterArguments, StoreFile};
use crate::daemon::home::HomeArgument;
use crate::exit::{Exit, Failure, Form};
use crate::{print, progress};

/// Check this machine, the home, the stores and running programs, and suggest what to do
///
/// The command changes nothing. The exit code is 1 if there is a problem; a warning is not a
/// problem. With --deep it reads everything: every row of every database, secrets and gears.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  semel doctor
  semel doctor --deep
  semel doctor --json
  semel doctor --store postgres://semel@db/semel --limiter redis://cache:6379")]
pub(crate) struct Arguments {
    /// Read all stored data and compare it with its fingerprints; this can take minutes
    #[arg(long)]
    deep: bool,
    /// Also check this PostgreSQL: `postgres://…`
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    #[command(flatten)]
    store_file: StoreFile,
    #[command(flatten)]
    limiter: LimiterArguments,
    #[command(flatten)]
    home: HomeArgument,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// As it must be.
    Sound,
    /// It works, but somebody should know.
    Warning,
    /// It does not work, or not for long.
    Problem,
}

impl Condition {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Sound => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// What was looked at, how it is, and what to do about it.
#[derive(Debug)]
struct Finding {
    check: String,
    condition: Condition,
    detail: String,
    to_do: Option<String>,
}

impl Finding {
    fn sound(check: impl Into<String>, detail: impl Into<String>) -> Self {
        let (check, detail) = (check.into(), detail.into());
        Self { check, condition: Condition::Sound, detail, to_do: None }
    }

    fn warning(
        check: impl Into<String>,
        detail: impl Into<String>,
        to_do: impl Into<String>,
    ) -> Self {
        let to_do = Some(to_do.into());
        Self { condition: Condition::Warning, to_do, ..Self::sound(check, detail) }
    }

    fn problem(
        check: impl Into<String>,
        detail: impl Into<String>,
        to_do: impl Into<String>,
    ) -> Self {
        let to_do = Some(to_do.into());
        Self { condition: Condition::Problem, to_do, ..Self::sound(check, detail) }
    }
}

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let root = arguments.home.find()?;
    let shown = progress::show("looking");
    let mut findings = machine::look(&root).await;
    findings.extend(folders::look(&root));
    findings.extend(folders::starts(&root));
    let expected = stores::expected(&root);
    findings.extend(stores::files(&expected));
    let store = arguments.store_file.address(arguments.store.as_ref())?;
    if let Some(store) = store.filter(|store| !store.text.starts_with("sqlite:")) {
        findings.push(stores::postgres(&store).await?);
    }
    let limiter = arguments.limiter.address()?;
    if let Some(limiter) = limiter.filter(|limiter| limiter.text != "memory") {
        findings.push(stores::redis(&limiter.text).await);
    }
    findings.extend(running::look(&root).await);
    drop(shown);
    if arguments.deep {
        let bar = progress::bar("reading");
        findings.extend(deep::databases(&expected, &bar).await);
        findings.extend(deep::secrets(&root));
        findings.extend(deep::gears(&root, &bar));
    }
    let problems = findings.iter().filter(|one| one.condition == Condition::Problem).count();
    print(&match Form::of_flag(arguments.json) {
        Form::Json => format!("{}\n", document(&findings)),
        Form::Text => findings.iter().map(lines).collect(),
    })?;
    match problems {
        0 => Ok(()),
        1 => Err(Failure::new(Exit::Failed, "error: there is a problem; see above what to do")),
        _ => {
            let text = format!("error: there are {problems} problems; see above what to do");
            Err(Failure::new(Exit::Failed, text))
        }
    }
}

fn document(findings: &[Finding]) -> Value {
    let worst = [Condition::Problem, Condition::Warning];
    let worst = worst.into_iter().find(|one| findings.iter().any(|found| found.condition == *one));
    let item = |found: &Finding| {
        json!({"check": found.check, "condition": found.condition.as_str(),
            "detail": found.detail, "to_do": found.to_do})
    };
    let items: Vec<Value> = findings.iter().map(item).collect();
    json!({"condition": worst.unwrap_or(Condition::Sound).as_str(), "items": items})
}

fn lines(found: &Finding) -> String {
    let (condition, check) = (found.condition.as_str(), shown(&found.check));
    let detail = shown_lines(&found.detail);
    let to_do = found.to_do.as_ref();
    let to_do = to_do.map(|to_do| format!("{:9}to do: {}\n", "", shown_lines(to_do)));
    format!("{condition:7}  {check}: {detail}\n{}", to_do.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_decides_and_every_fault_has_something_to_do() {
        let mut findings = vec![Finding::sound("kernel", "Linux 6.1")];
        assert_eq!(document(&findings)["condition"], "ok");
        findings.push(Finding::problem("disk", "it is full", "make room"));
        findings.push(Finding::warning("clock", "it went back", "set it"));
        assert_eq!(document(&findings)["condition"], "problem");
        let text: String = findings.iter().map(lines).collect();
        assert_eq!(
            text,
            "ok       kernel: Linux 6.1\nproblem  disk: it is full\n         to do: make room\n\
             warning  clock: it went back\n         to do: set it\n"
        );
    }
}

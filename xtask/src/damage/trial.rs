//! One trial: a copy of a home, a blow, a start, and a look at what is left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::blow::Blow;
use super::home::{self, Running, Start, Template};
use super::view::View;
use crate::chaos::Outside;
use crate::servers::wait_until;

/// How long a home may take until it shows again what it showed.
const WHOLE_LIMIT: Duration = Duration::from_secs(30);

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Everything is as it was.
    Harmless,
    /// It did not start, and named the file.
    Refused,
    /// Something is not as it was, and somebody is told so.
    Said(String),
    /// It did not start, and did not name the file.
    Unnamed(String),
    /// Something is not as it was, and nobody is told.
    Silent(String),
    /// It panicked, was ended by a signal, hung, or did not stop in order.
    Crashed(String),
}

impl Ending {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Harmless => "harmless",
            Self::Refused => "refused",
            Self::Said(_) => "said",
            Self::Unnamed(_) => "unnamed",
            Self::Silent(_) => "silent",
            Self::Crashed(_) => "crashed",
        }
    }

    pub(crate) fn is_fine(&self) -> bool {
        matches!(self, Self::Harmless | Self::Refused | Self::Said(_))
    }
}

/// What every trial needs.
pub(crate) struct Drill<'a> {
    pub(crate) program: &'a Path,
    pub(crate) older: &'a Path,
    pub(crate) outside: &'a Outside,
    pub(crate) runtime: &'a Handle,
}

impl Drill<'_> {
    /// In a folder of its own, which is gone afterwards unless something is wrong.
    pub(crate) fn trial(&self, template: &Template, blow: &Blow, folder: &Path) -> Result<Ending> {
        let home = folder.join("home");
        home::copy(&template.folder, &home)?;
        blow.strike(&home, self.older)?;
        let ending = match Running::start(self.program, &home)? {
            Start::Ready(running) => self.look(running, template, blow, &home)?,
            Start::Hung => Ending::Crashed("it is not ready and does not end".to_owned()),
            Start::Ended(status, said) => match status.code() {
                _ if said.contains("panicked") => Ending::Crashed(last_lines(&said)),
                None => Ending::Crashed(format!("{status}: {}", last_lines(&said))),
                Some(_) if said.contains(&blow.file_name()) => Ending::Refused,
                Some(_) => Ending::Unnamed(last_lines(&said)),
            },
        };
        Ok(ending)
    }

    fn look(
        &self,
        mut running: Running,
        template: &Template,
        blow: &Blow,
        home: &Path,
    ) -> Result<Ending> {
        let differs = self.differs(&running, template, blow)?;
        let used = match &differs {
            None => self.runtime.block_on(self.used(&running, template)),
            Some(_) => Ok(()),
        };
        let told = running.said();
        let ending = match (differs, used) {
            _ if told.contains("panicked") => Ending::Crashed(last_lines(&told)),
            (None, Ok(())) => Ending::Harmless,
            (None, Err(wrong)) => self.told_of(blow, &told, home, wrong)?,
            (Some(wrong), _) => self.told_of(blow, &told, home, wrong)?,
        };
        Ok(match running.stop()? {
            Some(status) if status.success() => ending,
            status if ending.is_fine() => {
                Ending::Crashed(format!("it ends with {status:?}: {}", last_lines(&running.said())))
            }
            _ => ending,
        })
    }

    /// Until it shows what it showed, or says that it cannot.
    fn differs(
        &self,
        running: &Running,
        template: &Template,
        blow: &Blow,
    ) -> Result<Option<String>> {
        let mut differs = String::new();
        let whole = wait_until(WHOLE_LIMIT, || {
            match self.runtime.block_on(View::of(&running.client())) {
                Ok(view) => differs = view.differs_from(&template.truth).join("; "),
                Err(error) => differs = error,
            }
            if !differs.is_empty() {
                home::breathe();
            }
            Ok(differs.is_empty() || is_told(blow, &running.said()))
        })?;
        Ok((!whole || !differs.is_empty()).then_some(differs))
    }

    /// What was sent and submitted is known by its key, and what is new gets through.
    async fn used(&self, running: &Running, template: &Template) -> Result<(), String> {
        let client = running.client();
        let post = async |path: &str, what: &Value, key: &str| {
            let answer = client.post(path, what, Some(key)).await.map_err(|e| e.to_string())?;
            match answer.is_success() {
                true => Ok(answer.body),
                false => Err(format!("{key}: {} {}", answer.status, answer.body)),
            }
        };
        let last = if template.name == "killed" { 2 } else { 1 };
        for part in 0..=last {
            let (key, send) = home::send(part, 2);
            post("/v1/send", &send, &key).await?;
            let (key, job) = home::job(part, 0, self.outside);
            let again = post("/v1/jobs", &job, &key).await?;
            let id = again["id"].as_str().unwrap_or_default();
            if !template.truth.things.contains_key(&format!("job {id}")) {
                return Err(format!("{key} is a new job: {id}"));
            }
        }
        let new = json!({"to": "@me", "message": "after all that"});
        post("/v1/send", &new, "send-after").await?;
        for _ in 0..WHOLE_LIMIT.as_millis() / 100 {
            let view = View::of(&client).await?;
            if view.things.contains_key("message send-after") {
                let expected = template.truth.things.len() + 2;
                return match view.things.len() == expected {
                    true => Ok(()),
                    false => Err(view.differs_from(&template.truth).join("; ")),
                };
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err("a new message does not arrive".to_owned())
    }

    fn told_of(&self, blow: &Blow, log: &str, home: &Path, wrong: String) -> Result<Ending> {
        if is_told(blow, log) {
            return Ok(Ending::Said(wrong));
        }
        let doctor = Command::new(self.program)
            .args(["doctor", "--json", "--home"])
            .arg(home)
            .env_remove("SEMEL_HOME")
            .env_remove("CI")
            .output()?;
        let report: Value = serde_json::from_slice(&doctor.stdout).unwrap_or_default();
        let items = report["items"].as_array().cloned().unwrap_or_default();
        let name = blow.file_name();
        let found =
            items.iter().any(|item| item["condition"] != "ok" && item.to_string().contains(&name));
        Ok(if found { Ending::Said(wrong) } else { Ending::Silent(wrong) })
    }
}

/// Whether a warning or an error of the log names the file.
fn is_told(blow: &Blow, log: &str) -> bool {
    let name = blow.file_name();
    log.lines().any(|line| {
        let is_loud = line.contains("\"level\":\"WARN\"") || line.contains("\"level\":\"ERROR\"");
        is_loud && line.contains(&name)
    })
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}

/// A trial's own folder.
pub(crate) fn folder(all: &Path, number: u64) -> Result<PathBuf> {
    let folder = all.join(format!("t{number}"));
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

//! `semel daemon recover`: is anything wrong with the daemon's databases, and what can be done.

use std::path::PathBuf;

use semel_daemon::home::LockedHome;
use semel_daemon::recover::{Database, Finding, Health, examine, start_fresh};
use serde_json::{Value, json};

use super::home::command;
use crate::exit::{Exit, Failure, Form, chain};
use crate::local::Local;
use crate::system::now;
use crate::{print, progress};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  semel daemon recover --mesh ops
  semel daemon recover --mesh ops --start-fresh inbox --confirm")]
pub(super) struct Arguments {
    /// Set this damaged database aside, or give up a lost one; the daemon begins a new one
    #[arg(long, value_name = "DATABASE", value_parser = ["outbox", "inbox"])]
    start_fresh: Option<String>,
    /// Confirm it; without this option nothing is done
    #[arg(long, requires = "start_fresh")]
    confirm: bool,
    #[command(flatten)]
    local: Local,
}

pub(super) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let home = arguments.local.home()?;
    let mesh = home.mesh().as_str().to_owned();
    let stop = command("daemon down", &home);
    let home = home.lock().map_err(|error| {
        let text = format!("error: {}\nto stop it: {stop}", chain(&error));
        Failure::new(Exit::Refused, text)
    })?;
    let asked = arguments.start_fresh.as_deref().and_then(Database::parse);
    let mut files = Vec::new();
    for database in Database::ALL.iter().copied() {
        let shown = progress::show(format!("examining the {database}"));
        let finding = examine(&home, database, now()).await;
        drop(shown);
        let fresh = match asked == Some(database) {
            true => Some(begin_anew(&home, database, &finding, arguments.confirm)?),
            false => None,
        };
        files.push(File { database, finding, fresh });
    }
    report(&mesh, &files, arguments.local.form())?;
    let mut text = String::new();
    let left = |care: Care| -> Vec<&str> {
        let left = files.iter().filter(|file| file.fresh.is_none());
        let left = left.filter(|file| care_of(file.finding.health) == care);
        left.map(|file| file.database.as_str()).collect()
    };
    let bad = left(Care::Replace);
    if let Some(first) = bad.first() {
        text.push_str(&format!(
            "error: {} cannot be used as it is\n\
             to restore a good copy: replace the file; to begin without it: {} --start-fresh \
             {first} --confirm; to read what is still readable: {} --read-only\n",
            bad.join(" and "),
            command("daemon recover", home.home()),
            command("daemon up", home.home())
        ));
    }
    let kept = left(Care::Reach);
    if !kept.is_empty() {
        let names = kept.join(" and ");
        text.push_str(&format!("error: {names} cannot be opened, {NOT_DAMAGED}\n"));
    }
    match text.trim_end() {
        "" => Ok(()),
        text => Err(Failure::new(Exit::Failed, text)),
    }
}

/// What helps a file that is whole for all that anybody knows.
const NOT_DAMAGED: &str = "\
and there is no sign of damage
to use it: give it to the user that runs semel, or run the version that made it; if it belongs to \
another program, move it away";

/// A database, how it is, and whether a new one is begun.
struct File {
    database: Database,
    finding: Finding,
    fresh: Option<Fresh>,
}

/// Where the old one is now, if there was one.
struct Fresh(Option<PathBuf>);

/// What a database needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Care {
    /// Nothing.
    None,
    /// A good copy, or a new beginning.
    Replace,
    /// Somebody who can open it: what is in it may be whole.
    Reach,
}

const fn care_of(health: Health) -> Care {
    match health {
        Health::Damaged | Health::Lost => Care::Replace,
        Health::Unusable => Care::Reach,
        Health::Absent | Health::Sound => Care::None,
    }
}

fn begin_anew(
    home: &LockedHome,
    database: Database,
    finding: &Finding,
    confirm: bool,
) -> Result<Fresh, Failure> {
    let conflict = |text: String| Failure::new(Exit::Conflict, format!("error: {text}"));
    match care_of(finding.health) {
        Care::Replace => {}
        Care::None => {
            let health = finding.health;
            return Err(conflict(format!("the {database} is {health}: nothing was done")));
        }
        Care::Reach => {
            let why = finding.wrong.join("; ");
            let text = format!("the {database} cannot be opened, {NOT_DAMAGED}\nit says: {why}");
            return Err(conflict(text));
        }
    }
    if !confirm {
        let what = match database {
            Database::Outbox => {
                "sends that are queued in it are lost unless the file is repaired, and the ids in \
                 it are forgotten"
            }
            Database::Inbox => "the inbox is rebuilt from the messages that the broker still has",
        };
        return Err(conflict(format!("{what}\nto do it anyway: --confirm")));
    }
    start_fresh(home, database, now())
        .map(Fresh)
        .map_err(|error| Failure::new(Exit::Failed, format!("error: {}", chain(&error))))
}

fn report(mesh: &str, files: &[File], form: Form) -> Result<(), Failure> {
    match form {
        Form::Json => {
            let files: Vec<Value> = files.iter().map(document).collect();
            print(&format!("{}\n", json!({"mesh": mesh, "files": files})))
        }
        Form::Text => print(&files.iter().map(lines).collect::<String>()),
    }
}

fn document(File { database, finding, fresh }: &File) -> Value {
    let aside = fresh.as_ref().and_then(|fresh| fresh.0.as_ref());
    json!({
        "file": database.file().as_str(),
        "state": finding.health.as_str(),
        "wrong": finding.wrong,
        "set_aside": aside.map(|aside| aside.display().to_string()),
    })
}

fn lines(File { database, finding, fresh }: &File) -> String {
    let mut text = format!("{}  {}\n", database.file(), finding.health);
    for wrong in &finding.wrong {
        text.push_str(&format!("  {wrong}\n"));
    }
    match fresh {
        None => return text,
        Some(Fresh(Some(aside))) => {
            text.push_str(&format!("  set aside as {}\n", aside.display()));
        }
        Some(Fresh(None)) => text.push_str("  the next start makes a new one\n"),
    }
    if *database == Database::Outbox {
        text.push_str("  sends that were queued in it are not sent\n");
    }
    text
}

//! What tells the homes of two engines apart: a gear that only one of them has, and one that both
//! have and whose secret only the first knows. The jobs that need them also have files.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Which engine can do a job; the names of such jobs end with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    FirstGear,
    SecondGear,
    FirstSecret,
}

impl Needs {
    pub(crate) const ALL: [Self; 3] = [Self::FirstGear, Self::SecondGear, Self::FirstSecret];

    /// The gear, and the end of the job's name.
    pub(crate) fn gear(self) -> &'static str {
        match self {
            Self::FirstGear => "first",
            Self::SecondGear => "second",
            Self::FirstSecret => "secret",
        }
    }

    /// The engines that take such a job in: those that have the gear, with or without its secret.
    pub(crate) fn doors(self) -> &'static [usize] {
        match self {
            Self::FirstGear => &[0],
            Self::SecondGear => &[1],
            Self::FirstSecret => &[0, 1],
        }
    }

    /// A stamp by the gear, a file, what must happen once, and the file again.
    pub(crate) fn steps(self, pay: &Value) -> Value {
        json!([
            {"id": "stamp", "gear": self.gear(), "action": "stamp"},
            {"id": "write", "gear": "files", "action": "write",
             "params": {"path": "note", "text": "here"}},
            pay,
            {"id": "read", "gear": "files", "action": "read", "params": {"path": "note"}},
        ])
    }
}

const MAIN: &str = "\
from semel_gear import Worker

worker = Worker()


@worker.action(\"stamp\")
def stamp(context):
    return {}


worker.run()
";

/// Gives the home of this engine what it has, and the others have not.
pub(crate) fn furnish(program: &Path, folder: &Path, home: &Path, number: usize) -> Result<()> {
    let mine = Needs::ALL.iter().filter(|needs| needs.doors().contains(&number));
    for needs in mine {
        let gear = folder.join(format!("gears-{number}")).join(needs.gear());
        semel(program, home, &["gear", "new", &gear.display().to_string()], "")?;
        let secrets = if *needs == Needs::FirstSecret { "secrets = [\"token\"]\n" } else { "" };
        let manifest = format!(
            "id = \"{}\"\nversion = \"1\"\ncommand = [\"python3\", \"{{package}}/main.py\"]\n\
             warm = true\n\n[actions.stamp]\nabout = \"Says that it was here\"\nrisk = \"low\"\n\n\
             [permissions]\n{secrets}",
            needs.gear()
        );
        std::fs::write(gear.join("gear.toml"), manifest)?;
        std::fs::write(gear.join("main.py"), MAIN)?;
        let weaker = "--accept-weaker-sandbox";
        semel(program, home, &["gear", "install", weaker, &gear.display().to_string()], "")?;
    }
    if number == 0 {
        semel(program, home, &["secret", "set", "token"], "known here")?;
    }
    Ok(())
}

fn semel(program: &Path, home: &Path, words: &[&str], input: &str) -> Result<()> {
    let mut command = Command::new(program);
    command.args(words).arg("--home").arg(home).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).spawn()?;
    child.stdin.take().context("a pipe")?.write_all(input.as_bytes())?;
    let status = child.wait()?;
    ensure!(status.success(), "semel {words:?}: {status}");
    Ok(())
}

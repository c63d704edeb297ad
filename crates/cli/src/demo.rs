//! `semel demo`: the first five minutes as a tour that checks itself. It runs this very program in
//! a folder of its own on ports of its own, kills it without mercy, and counts what happened.

mod process;
mod steps;

use std::io::Write;
use std::path::{Path, PathBuf};

use semel_core::clock::{Clock, SystemClock};
use serde_json::json;

use crate::exit::{Exit, Failure, Form};
use crate::print;
use crate::system::{random, stopped};
use process::World;

/// Show on this machine that Semel keeps its promises while its programs are killed
///
/// The demonstration uses a temporary folder and free ports; it touches nothing of yours.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  semel demo
  semel demo --keep
  semel demo --json")]
pub(crate) struct Arguments {
    /// Keep the folder afterwards, so that you can look around in it
    #[arg(long)]
    keep: bool,
    /// Print one JSON document per step
    #[arg(long)]
    json: bool,
}

/// How many steps the tour has.
const STEPS: usize = 8;

pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let failed = |text: String| Failure::new(Exit::Failed, format!("error: {text}"));
    let shutdown = stopped().map_err(|error| failed(format!("signals: {error}")))?;
    let folder = std::env::temp_dir().join(format!("semel-demo-{:08x}", random() >> 96));
    let world = World::new(&folder).map_err(failed)?;
    let form = Form::of_flag(arguments.json);
    let mut tour = Tour { world, form, number: 0 };
    let toured = tokio::select! {
        toured = tour.all() => toured,
        () = shutdown => {
            tour.world.kill().await;
            remove(&folder)?;
            return Err(failed("the demo was interrupted; it left nothing behind".to_owned()));
        }
    };
    tour.world.kill().await;
    if let Err(failure) = toured {
        let text = format!("{}\nits folder was kept: {}", failure.text, folder.display());
        return Err(Failure::new(failure.exit, text));
    }
    if arguments.keep {
        return tour.kept(&folder);
    }
    remove(&folder)?;
    tour.ended("every check passed; the demo left nothing behind\nto begin: semel up", None)
}

fn remove(folder: &Path) -> Result<(), Failure> {
    std::fs::remove_dir_all(folder).map_err(|error| {
        let text = format!("error: {}: {error}\nto clean up: delete it", folder.display());
        Failure::new(Exit::Failed, text)
    })
}

struct Tour {
    world: World,
    form: Form,
    number: usize,
}

impl Tour {
    /// The steps, in order; the first that does not hold ends the tour.
    async fn all(&mut self) -> Result<(), Failure> {
        self.step("start", "start everything in one process", steps::start).await?;
        self.step("send", "send a message to itself", steps::send).await?;
        self.step("repeat", "send it again under the same key", steps::repeat).await?;
        self.step("reuse", "send something else under the same key", steps::reuse).await?;
        self.step("kill", "send 50 messages, and kill it in the middle", steps::kill).await?;
        self.step("invite", "invite a second member, and send to it", steps::invite).await?;
        self.step("job", "run a job of 3 steps, and kill it in the middle", steps::job).await?;
        self.step("stop", "stop it in order", steps::stop).await
    }

    async fn step(
        &mut self,
        name: &str,
        title: &str,
        act: impl AsyncFnOnce(&mut World) -> Result<String, String>,
    ) -> Result<(), Failure> {
        self.number += 1;
        let (number, clock) = (self.number, SystemClock::new());
        if self.form == Form::Text {
            print(&format!("{number}/{STEPS}  {title} … "))?;
            // A reader that went away is told of by the next line.
            let _ = std::io::stdout().flush();
        }
        let done = act(&mut self.world).await;
        let ms = u64::try_from(clock.monotonic().as_millis()).unwrap_or(u64::MAX);
        let (ok, detail) = match &done {
            Ok(detail) => ("ok", detail),
            Err(detail) => ("wrong", detail),
        };
        print(&match self.form {
            Form::Text => format!("{ok} ({ms} ms)\n     {detail}\n"),
            Form::Json => {
                let step = json!({"step": number, "of": STEPS, "name": name, "title": title,
                    "ok": done.is_ok(), "detail": detail, "ms": ms});
                format!("{step}\n")
            }
        })?;
        done.map(|_| ()).map_err(|why| {
            let log = self.world.log();
            let text = format!("error: step {number} ({name}): {why}\nits log: {}", log.display());
            Failure::new(Exit::Failed, text)
        })
    }

    fn kept(&self, folder: &Path) -> Result<(), Failure> {
        let home = self.world.home();
        let text = format!(
            "every check passed; the folder was kept\n\
             to look around: semel up --home {home}, then semel inbox list --home {home}\n\
             to clean up: rm -r {}",
            folder.display(),
            home = home.display()
        );
        self.ended(&text, Some(home))
    }

    fn ended(&self, text: &str, home: Option<PathBuf>) -> Result<(), Failure> {
        let home = home.map(|home| home.display().to_string());
        print(&match self.form {
            Form::Text => format!("\n{text}\n"),
            Form::Json => format!("{}\n", json!({"event": "ended", "ok": true, "home": home})),
        })
    }
}

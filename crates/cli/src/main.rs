//! `semel`: the only binary. Arguments in, commands run, exit code out.

mod address;
mod broker;
mod budget;
mod checks;
mod colour;
mod completions;
mod daemon;
mod demo;
mod doctor;
mod duration;
mod exit;
mod explain;
mod fingerprint;
mod gear;
mod gear_shim;
mod jobs;
mod local;
mod log;
mod mesh;
mod progress;
mod registrar;
mod secret;
mod started;
mod stores;
mod system;
mod up;

use std::borrow::Cow;
use std::time::Duration;

use clap::{Parser, Subcommand};
use semel_core::shown::{shown_json, shown_lines};

use exit::Failure;

/// A message is sent once, a step takes effect once, an authorisation is used once.
#[derive(Debug, Parser)]
#[command(name = "semel", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Arguments),
    Down(up::Down),
    Status(up::Status),
    /// Show the canonical form and the fingerprint of an envelope
    Fingerprint(fingerprint::Arguments),
    /// Run a broker, or maintain its store
    #[command(after_help = "Examples:
  semel broker serve --listen 127.0.0.1:7117 --store sqlite:broker.db
  semel broker mesh create ops --store sqlite:broker.db
  semel broker backup --out monday.db --store sqlite:broker.db")]
    Broker(broker::Arguments),
    /// Run the daemon of a mesh, or manage it
    #[command(after_help = "Examples:
  semel daemon up --mesh ops --detach
  semel daemon status --mesh ops
  semel daemon logs --mesh ops -f")]
    Daemon(daemon::Arguments),
    /// Join meshes, invite others, and leave
    #[command(after_help = "Examples:
  semel mesh invite --uses 3 --ttl 1h
  semel mesh join semel://join/… --name build-host
  semel mesh list --json")]
    Mesh(mesh::Arguments),
    Send(local::send::Arguments),
    /// Messages that arrived on this host
    #[command(after_help = "Examples:
  semel inbox list
  semel inbox search 'build 17'
  semel inbox watch --json")]
    Inbox(local::inbox::Arguments),
    /// Messages that were accepted on this host, and their delivery
    #[command(after_help = "Examples:
  semel outbox list --failed
  semel outbox inspect build-17
  semel outbox requeue --id build-17")]
    Outbox(local::outbox::Arguments),
    /// Topics of the mesh
    #[command(after_help = "Examples:
  semel topic create builds
  semel topic subscribe builds
  semel topic post builds 'build 17 is green'")]
    Topic(local::topic::Arguments),
    /// Work queues of the mesh
    #[command(after_help = "Examples:
  semel queue create work
  semel queue take work
  semel queue ack work 17")]
    Queue(local::queue::Arguments),
    #[command(after_help = "Examples:
  semel peers
  semel peers --json")]
    Peers(local::peers::Arguments),
    /// Members of the mesh
    #[command(after_help = "Examples:
  semel member list
  semel member revoke PUBKEY")]
    Member(local::member::Arguments),
    #[command(after_help = "Examples:
  semel events
  semel events --json")]
    Events(local::events::Arguments),
    /// Submit jobs, follow them, and answer their questions
    Job(jobs::Arguments),
    /// Allow a request, once
    #[command(subcommand)]
    #[command(after_help = "Examples:
  semel grant issue --envelope envelope.json
  semel grant list payments")]
    Grant(registrar::GrantCommand),
    /// Register effects, each once, and look up their outcomes
    #[command(subcommand)]
    #[command(after_help = "Examples:
  semel effect register --envelope envelope.json --grant GRANT
  semel effect show KEY")]
    Effect(registrar::EffectCommand),
    /// Operate the registrar
    #[command(subcommand)]
    #[command(after_help = "Examples:
  semel registrar gate show payments
  semel registrar gate hold payments")]
    Registrar(registrar::RegistrarCommand),
    /// Gears: programs that carry out the steps of jobs
    #[command(after_help = "Examples:
  semel gear new hello && semel gear test hello
  semel gear install hello
  semel gear list --json")]
    Gear(gear::Arguments),
    /// Secrets of gears, such as passwords and tokens
    #[command(after_help = "Examples:
  semel secret set TOKEN < token.txt
  semel secret list")]
    Secret(secret::Arguments),
    #[command(hide = true)]
    GearShim(gear_shim::Arguments),
    /// Show the page of an error code
    #[command(after_help = "Examples:
  semel explain
  semel explain idempotency_key_reused")]
    Explain(explain::Arguments),
    Doctor(doctor::Arguments),
    Demo(demo::Arguments),
    Completions(completions::Arguments),
}

fn main() {
    let arguments = Arguments::parse();
    if let Command::GearShim(arguments) = &arguments.command {
        std::process::exit(gear_shim::run(arguments));
    }
    let done = std::panic::catch_unwind(|| run(&arguments.command)).unwrap_or_else(|_| {
        // The hook has said where.
        let text = "error: this should not be possible, please report it";
        Err(Failure::new(exit::Exit::Broken, text))
    });
    if let Err(failure) = done {
        let code = failure.exit.code();
        log::last_words(move || log::say(&colour::error(&sayable(&failure.text))));
        std::process::exit(code);
    }
}

/// What failed as a terminal may show it: servers, files and gears have a part in the words. A JSON
/// document says the same.
fn sayable(text: &str) -> Cow<'_, str> {
    if text.starts_with('{') { shown_json(text) } else { shown_lines(text) }
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Up(arguments) => running(up::run(arguments)),
        Command::Down(arguments) => running(up::down(arguments)),
        Command::Status(arguments) => running(up::status(arguments)),
        Command::Fingerprint(arguments) => fingerprint::run(arguments),
        Command::Broker(arguments) => running(broker::run(arguments)),
        Command::Daemon(arguments) => running(daemon::run(arguments)),
        Command::Mesh(arguments) => running(mesh::run(arguments)),
        Command::Send(arguments) => running(local::send::run(arguments)),
        Command::Inbox(arguments) => running(local::inbox::run(arguments)),
        Command::Outbox(arguments) => running(local::outbox::run(arguments)),
        Command::Topic(arguments) => running(local::topic::run(arguments)),
        Command::Queue(arguments) => running(local::queue::run(arguments)),
        Command::Peers(arguments) => running(local::peers::run(arguments)),
        Command::Member(arguments) => running(local::member::run(arguments)),
        Command::Events(arguments) => running(local::events::run(arguments)),
        Command::Job(arguments) => running(jobs::run(arguments)),
        Command::Grant(command) => registrar::grant(command),
        Command::Effect(command) => registrar::effect(command),
        Command::Registrar(command) => registrar::registrar(command),
        Command::Gear(arguments) => running(gear::run(arguments)),
        Command::Secret(arguments) => secret::run(arguments),
        // It has codes of its own, and was run before.
        Command::GearShim(_) => Ok(()),
        Command::Explain(arguments) => explain::run(arguments),
        Command::Doctor(arguments) => running(doctor::run(arguments)),
        Command::Demo(arguments) => running(demo::run(arguments)),
        Command::Completions(arguments) => completions::run(arguments),
    }
}

/// Whether these words are a command.
fn check(words: &[String]) -> Result<(), Failure> {
    let words = std::iter::once("semel").chain(words.iter().map(String::as_str));
    match Arguments::try_parse_from(words) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(exit::Exit::Usage, error.to_string().trim().to_owned())),
    }
}

/// Says that what serves is ready. Whoever cannot be told is served all the same.
fn announce(text: &str) {
    if let Err(failure) = print(text) {
        tracing::warn!(failure.text, "the ready line could not be written");
    }
}

/// How much of what could not be written to stdout is said on stderr.
const UNWRITTEN_MAX: usize = 4096;

/// How long threads that are still at work are waited for.
const LEFT_MAX: Duration = Duration::from_secs(5);

/// Runs what waits for things.
fn running(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let failed = |error| Failure::new(exit::Exit::Failed, format!("error: {error}"));
    system::refuse_few_threads(system::COMMAND_THREADS)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let done = runtime.block_on(async {
        system::outlive_large_files().map_err(failed)?;
        command.await
    });
    // What blocks a thread for ever does not keep the process from ending.
    runtime.shutdown_timeout(LEFT_MAX);
    done
}

/// Writes to stdout. A reader that has seen enough and went away (`| head`) is not an error. What
/// cannot be written was done all the same, and so nothing has failed: it is said on stderr.
fn print(text: &str) -> Result<(), Failure> {
    use std::io::{IsTerminal, Write};
    let is_terminal = std::io::stdout().is_terminal();
    let text = &*if is_terminal { colour::shown(text) } else { Cow::Borrowed(text) };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let said = text.get(..UNWRITTEN_MAX).unwrap_or(text).trim_end();
            let why = format!("error: stdout: {error}; the output was:\n{said}");
            Err(Failure::new(exit::Exit::Unknown, why))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

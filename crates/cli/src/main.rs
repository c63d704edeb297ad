//! `semel`: the only binary. Arguments in, commands run, exit code out.

#![expect(clippy::print_stderr, reason = "the command line is the one place that prints")]

mod broker;
mod daemon;
mod duration;
mod exit;
mod explain;
mod fingerprint;
mod gear;
mod gear_shim;
mod jobs;
mod local;
mod mesh;
mod registrar;
mod secret;
mod system;
mod up;

use clap::{Parser, Subcommand};

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
    /// Show the canonical form and the fingerprint of an envelope
    Fingerprint(fingerprint::Arguments),
    /// Run a broker, or look after its store
    Broker(broker::Arguments),
    /// Run the daemon of a mesh, or look after it
    Daemon(daemon::Arguments),
    /// Join meshes, invite others, leave
    Mesh(mesh::Arguments),
    Send(local::send::Arguments),
    /// What arrived on this host
    Inbox(local::inbox::Arguments),
    /// What was accepted on this host, and what became of it
    Outbox(local::outbox::Arguments),
    /// Topics of the mesh
    Topic(local::topic::Arguments),
    /// Work queues of the mesh
    Queue(local::queue::Arguments),
    Peers(local::peers::Arguments),
    /// Who may take part in the mesh
    Member(local::member::Arguments),
    Events(local::events::Arguments),
    /// Give the job engine work, look at it, answer it
    Job(jobs::Arguments),
    /// Allow a request, once
    #[command(subcommand)]
    Grant(registrar::GrantCommand),
    /// Let something happen once, and find out what happened
    #[command(subcommand)]
    Effect(registrar::EffectCommand),
    /// Look after the registrar
    #[command(subcommand)]
    Registrar(registrar::RegistrarCommand),
    /// Programs that do the steps of jobs
    Gear(gear::Arguments),
    /// What gears must know and nobody else
    Secret(secret::Arguments),
    #[command(hide = true)]
    GearShim(gear_shim::Arguments),
    /// Show the page of an error code
    Explain(explain::Arguments),
}

fn main() {
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        Command::Up(arguments) => running(up::run(arguments)),
        Command::Fingerprint(arguments) => fingerprint::run(arguments),
        Command::Broker(arguments) => broker::run(arguments),
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
        Command::GearShim(arguments) => std::process::exit(gear_shim::run(arguments)),
        Command::Explain(arguments) => explain::run(arguments),
    };
    match done {
        Ok(()) => {}
        Err(failure) => {
            eprintln!("{}", failure.text);
            std::process::exit(failure.exit.code());
        }
    }
}

/// Runs what waits for things.
fn running(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let failed = |error| Failure::new(exit::Exit::Failed, format!("error: {error}"));
    runtime.map_err(failed)?.block_on(command)
}

/// Writes to stdout. A reader that has seen enough and went away (`| head`) is not an error.
fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(exit::Exit::Failed, format!("error: stdout: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

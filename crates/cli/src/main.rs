//! `semel`: the only binary. Arguments in, commands run, exit code out.

#![expect(clippy::print_stderr, reason = "the command line is the one place that prints")]

mod broker;
mod exit;
mod explain;
mod fingerprint;

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
    /// Show the canonical form and the fingerprint of an envelope
    Fingerprint(fingerprint::Arguments),
    /// Run a broker, or look after its store
    Broker(broker::Arguments),
    /// Show the page of an error code
    Explain(explain::Arguments),
}

fn main() {
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        Command::Fingerprint(arguments) => fingerprint::run(arguments),
        Command::Broker(arguments) => broker::run(arguments),
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

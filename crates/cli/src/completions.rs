//! `semel completions`: what a shell must know to complete our commands.

use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate};

use crate::exit::Failure;
use crate::print;

/// Print a shell's completion script for commands and options
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  semel completions bash > ~/.local/share/bash-completion/completions/semel
  semel completions zsh > ~/.zfunc/_semel
  semel completions fish > ~/.config/fish/completions/semel.fish")]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(arguments.shell, &mut offered(), "semel", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Everything but what is hidden: shells would offer that, too.
fn offered() -> Command {
    let all = crate::Arguments::command();
    let shown: Vec<Command> =
        all.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let version = env!("CARGO_PKG_VERSION");
    Command::new("semel").version(version).propagate_version(true).subcommands(shown)
}

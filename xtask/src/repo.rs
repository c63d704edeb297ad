//! Where the repository is, and how a command is run from its root.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The folder that holds the workspace's `Cargo.toml`.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// The cargo that runs us, so that a toolchain chosen by the caller stays chosen.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// Runs a command with the terminal as its output; anything but success is an error.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {}", line(command)))?;
    ensure!(status.success(), "{} ended with {status}", line(command));
    Ok(())
}

/// The command for a message; its `Debug` form would also print variables, with passwords in them.
pub(crate) fn line(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_no_variables() {
        let mut command = Command::new("true");
        command.arg("a").env("PASSWORD", "secret");
        assert_eq!(line(&command), "true a");
    }

    #[test]
    fn failure_is_an_error() {
        assert!(succeed(&mut Command::new("true")).is_ok());
        let error = succeed(&mut Command::new("false")).unwrap_err();
        assert!(error.to_string().starts_with("false ended with"));
    }
}

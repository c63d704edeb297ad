//! Which home a command means: `--home`, else `$SEMEL_HOME`, else `~/.semel`.

use std::env;
use std::ffi::OsString;
use std::path::{self, Path, PathBuf};

use semel_daemon::home::{Home, HomeFile};

use crate::exit::{Exit, Failure};
use crate::up;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct HomeArgument {
    /// Folder of Semel's files; default: $SEMEL_HOME, else ~/.semel
    #[arg(long, value_name = "DIR", global = true)]
    home: Option<PathBuf>,
}

impl HomeArgument {
    /// The home as an absolute path; it may not exist yet.
    pub(crate) fn find(&self) -> Result<PathBuf, Failure> {
        let usage = |text: &str| Failure::new(Exit::Usage, format!("error: {text}"));
        let (semel_home, user_home) = (env::var_os("SEMEL_HOME"), env::var_os("HOME"));
        let home = choose(self.home.clone(), semel_home, user_home);
        let home = home.ok_or_else(|| usage("$HOME is not set; give --home DIR"))?;
        path::absolute(&home).map_err(|error| usage(&format!("{}: {error}", home.display())))
    }
}

/// A command about the daemon of this home, as it can be copied into a shell.
pub(crate) fn command(words: &str, home: &Home) -> String {
    format!("semel {words} --mesh {}{}", home.mesh(), home_words(home.root()))
}

/// The command that starts the daemon of this home. The one of the mesh that `semel up` makes runs
/// together with its broker; whoever has joined that mesh from elsewhere has no broker.
pub(crate) fn start_command(home: &Home) -> String {
    let has_joined = home.path(HomeFile::Mesh).exists();
    if is_of_up(home) || home.mesh().as_str() == up::MESH && !has_joined {
        return format!("semel up{}", home_words(home.root()));
    }
    command("daemon up", home)
}

/// Whether it is the mesh that `semel up` has made in this home.
pub(crate) fn is_of_up(home: &Home) -> bool {
    home.mesh().as_str() == up::MESH && up::broker_folder(home.root()).is_dir()
}

/// Says which home is meant, if a command that does not say it means another.
pub(crate) fn home_words(root: &Path) -> String {
    match (HomeArgument { home: None }).find() {
        Ok(usual) if usual == root => String::new(),
        Ok(_) | Err(_) => format!(" --home {}", quoted(&root.display().to_string())),
    }
}

/// One word for a shell, whatever is in it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@".contains(&byte);
    match word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A variable that is set to nothing is as good as not set.
fn choose(
    argument: Option<PathBuf>,
    semel_home: Option<OsString>,
    user_home: Option<OsString>,
) -> Option<PathBuf> {
    let given =
        |variable: Option<OsString>| variable.filter(|value| !value.is_empty()).map(PathBuf::from);
    argument
        .or_else(|| given(semel_home))
        .or_else(|| given(user_home).map(|home| home.join(".semel")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_wins() {
        let chosen = |argument: Option<&str>, semel_home: Option<&str>, home: Option<&str>| {
            let home =
                choose(argument.map(Into::into), semel_home.map(Into::into), home.map(Into::into));
            home.map(|home| home.display().to_string())
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(chosen(Some("/a"), Some("/b"), Some("/c")), some("/a"));
        assert_eq!(chosen(None, Some("/b"), Some("/c")), some("/b"));
        assert_eq!(chosen(None, Some(""), Some("/c")), some("/c/.semel"));
        assert_eq!(chosen(None, None, Some("/c")), some("/c/.semel"));
        assert_eq!(chosen(None, None, Some("")), None);
        assert_eq!(chosen(None, None, None), None);
    }

    #[test]
    fn a_word_stays_one_word_in_a_shell() {
        for word in ["/srv/semel-1.0", "/srv/a b", "/it's", "$HOME", "/grün", "*", "~"] {
            let script = format!("printf %s {}", quoted(word));
            let said = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), word);
        }
        assert_eq!(quoted("/srv/semel-1.0"), "/srv/semel-1.0");
    }
}

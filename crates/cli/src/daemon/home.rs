//! Which home a command means: `--home`, else `$SEMEL_HOME`, else `~/.semel`.

use std::env;
use std::ffi::OsString;
use std::path::{self, PathBuf};

use crate::exit::{Exit, Failure};

#[derive(Debug, clap::Args)]
pub(crate) struct HomeArgument {
    /// Where Semel keeps its files; without it $SEMEL_HOME, else ~/.semel
    #[arg(long, value_name = "DIR", global = true)]
    home: Option<PathBuf>,
}

impl HomeArgument {
    /// The home as an absolute path; it may not exist yet.
    pub(crate) fn find(&self) -> Result<PathBuf, Failure> {
        let usage = |text: &str| Failure::new(Exit::Usage, format!("error: {text}"));
        let (semel_home, user_home) = (env::var_os("SEMEL_HOME"), env::var_os("HOME"));
        let home = choose(self.home.clone(), semel_home, user_home);
        let home = home.ok_or_else(|| usage("there is no $HOME; say --home DIR"))?;
        path::absolute(&home).map_err(|error| usage(&format!("{}: {error}", home.display())))
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
}

//! How a command ends when it does not succeed.

use semel_core::refusal::Refusal;
use semel_core::shown::shown_lines;
use semel_store::OpenError;
use semel_vital::Ended;
use serde_json::json;

/// The exit codes that scripts rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Failed,
    Usage,
    NotFound,
    Conflict,
    /// Nothing was lost, try again.
    Unavailable,
    /// A part that the process cannot do without has ended.
    Broken,
    /// It may have been done, or not: only looking can tell.
    Unknown,
    /// Refused to start: configuration, an unfit or newer store.
    Refused,
}

impl Exit {
    pub(crate) const fn code(self) -> i32 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Conflict => 4,
            Self::Unavailable => 5,
            Self::Unknown => 6,
            Self::Broken => 70,
            Self::Refused => 78,
        }
    }

    /// A store that was not opened: one that is away may be there another time.
    pub(crate) const fn of_open(error: &OpenError) -> Self {
        if matches!(error, OpenError::Unreachable(_)) { Self::Unavailable } else { Self::Refused }
    }

    /// What another process of ours has ended with.
    pub(crate) const fn of_code(code: i32) -> Self {
        match code {
            2 => Self::Usage,
            3 => Self::NotFound,
            4 => Self::Conflict,
            5 => Self::Unavailable,
            6 => Self::Unknown,
            70 => Self::Broken,
            78 => Self::Refused,
            _ => Self::Failed,
        }
    }
}

/// What is said on stderr, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into() }
    }

    /// A refusal of what the user gave us: as a sentence, or as a problem document.
    pub(crate) fn refused(refusal: &Refusal, form: Form) -> Self {
        let code = refusal.code;
        let text = match form {
            Form::Text => format!("error: {refusal}\nto learn more: semel explain {code}"),
            Form::Json => json!({
                "type": format!("urn:semel:error:{code}"),
                "title": code.as_str().replace('_', " "),
                "status": code.http(),
                "code": code.as_str(),
                "detail": refusal.detail,
                "pointer": refusal.pointer,
            })
            .to_string(),
        };
        Self::new(Exit::Usage, text)
    }
}

impl From<Ended> for Failure {
    /// What the process cannot do without has ended, and so does the process.
    fn from(ended: Ended) -> Self {
        let text = format!(
            "error: {ended}, so the process ends; its log says more\n\
             nothing that was acknowledged is lost: start it again"
        );
        Self::new(Exit::Broken, text)
    }
}

/// Where to read why plain text was refused.
pub(crate) const PLAIN_TEXT_PAGE: &str = "\nto learn more: semel explain plain_text_refused";

/// What a store that was not opened is, with everything that is known about why and where to read
/// more.
pub(crate) fn unopened(error: &OpenError) -> String {
    let is_plain = matches!(error, OpenError::PlainText { .. });
    format!("{}{}", chain(error), if is_plain { PLAIN_TEXT_PAGE } else { "" })
}

/// An error and everything that is known about why. A server's words may be among it: they move no
/// cursor, and only its first line begins where a line of ours does.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    shown_lines(&text).replace('\n', "\n  ")
}

/// How data and errors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

impl Form {
    pub(crate) const fn of_flag(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }
}

#[cfg(test)]
mod tests {
    use semel_store::StoreError;

    use super::*;

    #[test]
    fn the_words_of_a_server_are_no_lines_of_ours() {
        let cause = "away\u{1b}[2J\nerror: everything is lost".into();
        let error = StoreError::Unavailable { cause };
        let said = "the store is not reachable: away\\u{1b}[2J\n  error: everything is lost";
        assert_eq!(chain(&error), said);
    }
}

//! How the process that runs in a home was started (`started.json`), so that it can be started
//! again in the same way. No secret is in it: what may hold one is named, and has to be said again.

use std::path::Path;

use semel_core::status;
use semel_daemon::home::{Home, HomeError, HomeFile, LockedHome};
use serde_json::{Value, json};

use crate::address::{Address, LIMITER, Origin, STORE, holds_password};
use crate::exit::{Exit, Failure, chain};

const VERSION: u64 = 1;

status! {
    /// What was started.
    pub enum Kind {
        /// `semel daemon up`.
        Daemon = "daemon",
        /// `semel up`.
        Up = "up",
    }
}

/// A start, and the options that it had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Started {
    pub(crate) kind: Kind,
    /// Each with its value, if it has one.
    options: Vec<Vec<String>>,
    /// Options whose values hold a password.
    left_out: Vec<String>,
}

impl Started {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self { kind, options: Vec::new(), left_out: Vec::new() }
    }

    pub(crate) fn flag(mut self, name: &str, is_set: bool) -> Self {
        if is_set {
            self.options.push(vec![name.to_owned()]);
        }
        self
    }

    pub(crate) fn value(mut self, name: &str, value: Option<impl ToString>) -> Self {
        self.options.extend(value.map(|value| vec![name.to_owned(), value.to_string()]));
        self
    }

    /// A file, wherever the next start is said.
    pub(crate) fn file(self, name: &str, path: Option<&Path>) -> Self {
        let path = path.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        self.value(name, path.map(|path| path.display().to_string()))
    }

    /// The address of a server, which may hold a password; its option has another one that names
    /// a file.
    pub(crate) fn server(mut self, name: &str, address: Option<&Address>) -> Self {
        let Some(address) = address else { return self };
        match &address.origin {
            Origin::File(path) => self.file(&format!("{name}-file"), Some(path)),
            Origin::Argument | Origin::Environment if holds_password(&address.text) => {
                self.left_out.push(name.to_owned());
                self
            }
            Origin::Argument | Origin::Environment => self.value(name, Some(&address.text)),
        }
    }

    /// What the home says; `None` before the first start.
    pub(crate) fn read(home: &Home) -> Result<Option<Self>, Failure> {
        let refused = |text: String| Failure::new(Exit::Refused, format!("error: {text}"));
        let bytes = home.read(HomeFile::Started).map_err(|error| refused(chain(&error)))?;
        let Some(bytes) = bytes else { return Ok(None) };
        Self::parse(&bytes).map(Some).ok_or_else(|| {
            let path = home.path(HomeFile::Started);
            refused(format!("{} is damaged; remove it, and start by hand", path.display()))
        })
    }

    pub(crate) fn write(&self, home: &LockedHome) -> Result<(), HomeError> {
        let document = json!({
            "version": VERSION,
            "kind": self.kind.as_str(),
            "options": self.options,
            "left_out": self.left_out,
        });
        home.write(HomeFile::Started, format!("{document:#}\n").as_bytes())
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let document: Value = serde_json::from_slice(bytes).ok()?;
        let words = |value: &Value| -> Option<Vec<String>> {
            value.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect()
        };
        if document["version"].as_u64()? != VERSION {
            return None;
        }
        Some(Self {
            kind: Kind::parse(document["kind"].as_str()?)?,
            options: document["options"].as_array()?.iter().map(words).collect::<Option<_>>()?,
            left_out: words(&document["left_out"])?,
        })
    }

    /// The same command, in the background; what is said now wins.
    pub(crate) fn again(&self, home: &Home, said: &[String]) -> Result<Vec<String>, Failure> {
        let is_said = |name: &str| said.iter().any(|word| word.split('=').next() == Some(name));
        let is_given = |name: &str| {
            is_said(name)
                || is_said(&format!("{name}-file"))
                || variable(name).is_some_and(|name| std::env::var_os(name).is_some())
        };
        if let Some(name) = self.left_out.iter().find(|name| !is_given(name)) {
            let variable = variable(name).unwrap_or_default();
            let text = format!(
                "error: it was started with {name} or {variable}, whose value holds a password and \
                 is not kept: nothing was done\n\
                 give it again: semel daemon restart -- {name}-file FILE"
            );
            return Err(Failure::new(Exit::Conflict, text));
        }
        let mut words: Vec<String> = match self.kind {
            Kind::Daemon => {
                let mesh = home.mesh().as_str();
                ["daemon", "up", "--persistent", "--mesh", mesh].map(str::to_owned).to_vec()
            }
            Kind::Up => vec!["up".to_owned()],
        };
        words.extend(["--detach", "--home"].map(str::to_owned));
        words.push(home.root().display().to_string());
        let goes = |option: &&Vec<String>| {
            option.first().is_some_and(|name| {
                !is_said(name) && !against(name).iter().any(|other| is_said(other))
            })
        };
        words.extend(self.options.iter().filter(goes).flatten().cloned());
        words.extend(said.iter().cloned());
        Ok(words)
    }
}

/// Options that do not go together with this one.
fn against(name: &str) -> &'static [&'static str] {
    match name {
        "--no-tcp" => &["--api-listen"],
        "--store" => &["--store-file"],
        "--store-file" => &["--store"],
        "--limiter" => &["--limiter-file"],
        "--limiter-file" => &["--limiter"],
        "--api-listen" => &["--no-tcp"],
        "--insecure-allow-plain" => &["--tls-cert"],
        "--tls-cert" | "--tls-key" => &["--insecure-allow-plain"],
        _ => &[],
    }
}

/// Where the environment says what this option would.
fn variable(option: &str) -> Option<&'static str> {
    match option {
        "--store" => Some(STORE),
        "--limiter" => Some(LIMITER),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use semel_daemon::home::MeshSlug;

    use super::*;

    #[test]
    fn a_start_is_said_again_without_its_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path(), &MeshSlug::parse("local").unwrap());
        let locked = home.clone().lock().unwrap();
        assert_eq!(Started::read(&home).unwrap(), None);
        let started = Started::new(Kind::Up)
            .flag("--no-jobs", true)
            .flag("--other", false)
            .value("--api-listen", Some("127.0.0.1:7"))
            .file("--tls-cert", Some(Path::new("cert.pem")))
            .server("--limiter", Some(&Address::argument("redis://127.0.0.1".to_owned())))
            .server("--store", Some(&Address::argument("postgres://me:secret@host/db".to_owned())));
        started.write(&locked).unwrap();
        let text = std::fs::read_to_string(home.path(HomeFile::Started)).unwrap();
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(Started::read(&home).unwrap(), Some(started.clone()));
        let failure = started.again(&home, &[]).unwrap_err();
        assert!(failure.exit == Exit::Conflict && failure.text.contains("--store"));
        let file = ["--store-file=x".to_owned()];
        assert!(started.again(&home, &file).is_ok());
        let kept = Address { text: String::new(), origin: Origin::File("/a/limiter".into()) };
        let kept = Started::new(Kind::Up).server("--limiter", Some(&kept)).again(&home, &[]);
        assert!(kept.unwrap().join(" ").ends_with("--limiter-file /a/limiter"));
        let said = ["--store=sqlite:x", "--no-tcp", "--insecure-allow-plain"].map(str::to_owned);
        let again = started.again(&home, &said).unwrap().join(" ");
        let root = folder.path().display();
        assert_eq!(
            again,
            format!(
                "up --detach --home {root} --no-jobs --limiter redis://127.0.0.1 \
                 --store=sqlite:x --no-tcp --insecure-allow-plain"
            )
        );
        std::fs::write(home.path(HomeFile::Started), "{}").unwrap();
        assert_eq!(Started::read(&home).unwrap_err().exit, Exit::Refused);
    }
}

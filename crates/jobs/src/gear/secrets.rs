//! Secrets of a home, for gears that declare them: encrypted (ChaCha20-Poly1305) under a key file
//! that only its owner can read. A copy of the secrets alone, in a backup or a log, says nothing.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use crate::limits::{SECRET_BYTES_MAX, SECRETS_FILE_BYTES_MAX, SECRETS_MAX};

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The name is no name.
    #[error("{0}")]
    Name(String),
    /// Too many, or too long.
    #[error("{0}")]
    TooMuch(String),
    /// The file was changed, or is of another key.
    #[error("{} cannot be decrypted with the key of this home", path.display())]
    Undecryptable {
        /// The file.
        path: PathBuf,
    },
    /// The file system said no.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// A verb.
        what: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SecretError {
    let path = path.to_owned();
    move |source| SecretError::Io { what, path, source }
}

/// A secret's name: letters, digits, `_`, `-` and `.`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretName(String);

impl SecretName {
    /// Reads a name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        match first && text.len() <= 64 && text.bytes().all(plain) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!("{text:?}: 1 to 64 letters, digits, underscores, hyphens, dots")),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The secrets of a home.
#[derive(Debug, Clone)]
pub struct Secrets {
    folder: PathBuf,
}

type All = BTreeMap<String, Zeroizing<String>>;

impl Secrets {
    /// Those of the home `root`. Nothing is read or made.
    pub fn of(root: &Path) -> Self {
        Self { folder: root.join("jobs") }
    }

    /// Keeps a secret; it is on disk when this returns.
    pub fn set(&self, name: &SecretName, value: Zeroizing<String>) -> Result<(), SecretError> {
        if value.len() > SECRET_BYTES_MAX {
            let text = format!("a secret has at most {SECRET_BYTES_MAX} bytes");
            return Err(SecretError::TooMuch(text));
        }
        let _lock = self.lock()?;
        let mut all = self.read()?;
        all.insert(name.0.clone(), value);
        if all.len() > SECRETS_MAX {
            return Err(SecretError::TooMuch(format!("there are {SECRETS_MAX} secrets already")));
        }
        self.write(&all)
    }

    /// Forgets a secret; whether there was one.
    pub fn remove(&self, name: &SecretName) -> Result<bool, SecretError> {
        let _lock = self.lock()?;
        let mut all = self.read()?;
        let found = all.remove(&name.0).is_some();
        if found {
            self.write(&all)?;
        }
        Ok(found)
    }

    /// The names.
    pub fn names(&self) -> Result<Vec<String>, SecretError> {
        Ok(self.read()?.into_keys().collect())
    }

    /// Those that a gear declares; the error names one that is not there.
    pub fn select(&self, names: &[String]) -> Result<Result<All, String>, SecretError> {
        if names.is_empty() {
            return Ok(Ok(All::new()));
        }
        let mut all = self.read()?;
        let mut selected = All::new();
        for name in names {
            match all.remove(name) {
                Some(value) => selected.insert(name.clone(), value),
                None => return Ok(Err(name.clone())),
            };
        }
        Ok(Ok(selected))
    }

    fn path(&self) -> PathBuf {
        self.folder.join("secrets")
    }

    fn lock(&self) -> Result<File, SecretError> {
        let mut folder = fs::DirBuilder::new();
        folder
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(io("make", &self.folder))?;
        let path = self.folder.join("secrets.lock");
        let file = private(&path, false).map_err(io("open", &path))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|errno| io("lock", &path)(errno.into()))?;
        Ok(file)
    }

    fn read(&self) -> Result<All, SecretError> {
        let path = self.path();
        let Some(text) = read_small(&path)? else { return Ok(All::new()) };
        let undecryptable = || SecretError::Undecryptable { path: path.clone() };
        let key = self.key(false)?.ok_or_else(undecryptable)?;
        let sealed = STANDARD.decode(text.trim_ascii()).map_err(|_| undecryptable())?;
        let (nonce, sealed) = sealed.split_at_checked(24).ok_or_else(undecryptable)?;
        let nonce = XNonce::try_from(nonce).map_err(|_| undecryptable())?;
        let payload = Payload { msg: sealed, aad: b"semel secrets 1" };
        let opened = XChaCha20Poly1305::new(&key).decrypt(&nonce, payload);
        let opened = Zeroizing::new(opened.map_err(|_| undecryptable())?);
        let all: BTreeMap<String, String> =
            serde_json::from_slice(&opened).map_err(|_| undecryptable())?;
        Ok(all.into_iter().map(|(name, value)| (name, Zeroizing::new(value))).collect())
    }

    fn write(&self, all: &All) -> Result<(), SecretError> {
        let path = self.path();
        let failed = |_| io("encrypt", &path)(ErrorKind::Other.into());
        let plain: BTreeMap<&str, &str> =
            all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let plain =
            serde_json::to_vec(&plain).map_err(|error| io("encrypt", &path)(error.into()))?;
        let plain = Zeroizing::new(plain);
        let key = self.key(true)?.ok_or(SecretError::Undecryptable { path: path.clone() })?;
        let mut nonce = [0; 24];
        getrandom::fill(&mut nonce).map_err(|_| io("encrypt", &path)(ErrorKind::Other.into()))?;
        let payload = Payload { msg: &plain, aad: b"semel secrets 1" };
        let sealed = XChaCha20Poly1305::new(&key).encrypt(&XNonce::from(nonce), payload);
        let mut bytes = nonce.to_vec();
        bytes.extend_from_slice(&sealed.map_err(failed)?);
        let text = STANDARD.encode(bytes);
        durable_write(&self.folder, "secrets", text.as_bytes()).map_err(io("write", &path))
    }

    /// The key of this home; made when there is none and `make` says so.
    fn key(&self, make: bool) -> Result<Option<Key>, SecretError> {
        let path = self.folder.join("secrets.key");
        if let Some(bytes) = read_small(&path)? {
            let key = <[u8; 32]>::try_from(bytes.as_slice());
            let key = key.map_err(|_| SecretError::Undecryptable { path })?;
            return Ok(Some(Key::from(key)));
        }
        // A new key beside old secrets would be a loss of all of them.
        if !make || self.path().exists() {
            return Ok(None);
        }
        let mut key = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *key).map_err(|_| io("make", &path)(ErrorKind::Other.into()))?;
        durable_write(&self.folder, "secrets.key", &*key).map_err(io("write", &path))?;
        Ok(Some(Key::from(*key)))
    }
}

fn private(path: &Path, new: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(!new).create_new(new).truncate(false).mode(0o600);
    options.open(path)
}

fn read_small(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, SecretError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(io("open", path))?,
    };
    let mut bytes = Zeroizing::new(Vec::new());
    let limit = u64::try_from(SECRETS_FILE_BYTES_MAX).unwrap_or(u64::MAX);
    file.take(limit + 1).read_to_end(&mut bytes).map_err(io("read", path))?;
    if bytes.len() > SECRETS_FILE_BYTES_MAX {
        return Err(SecretError::TooMuch(format!("{} is too large", path.display())));
    }
    Ok(Some(bytes))
}

/// What a file is called until it is written to its end.
pub(super) fn unfinished(name: &str, number: u64) -> String {
    format!(".{name}.{number:016x}")
}

/// A file with its name, or the one before; on disk when this returns (trap 46).
pub(crate) fn durable_write(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| ErrorKind::Other)?;
    let temporary = folder.join(unfinished(name, u64::from_be_bytes(random)));
    let written = private(&temporary, true).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, folder.join(name))?;
        File::open(folder)?.sync_all()
    });
    if written.is_err() {
        // It has its name already when only the last sync failed.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn name(text: &str) -> SecretName {
        SecretName::parse(text).expect("a name")
    }

    #[test]
    fn a_secret_is_kept_and_not_to_be_seen() {
        let home = tempfile::tempdir().expect("a folder");
        let secrets = Secrets::of(home.path());
        assert!(secrets.names().expect("none").is_empty());
        let value = || Zeroizing::new("hunter2-hunter2".to_owned());
        secrets.set(&name("token"), value()).expect("kept");
        secrets.set(&name("other"), Zeroizing::new("x".to_owned())).expect("kept");
        assert_eq!(secrets.names().expect("names"), ["other", "token"]);
        let selected = secrets.select(&["token".to_owned()]).expect("read").expect("there");
        assert_eq!(selected.get("token"), Some(&value()));
        assert_eq!(selected.len(), 1);
        let missing = secrets.select(&["none".to_owned()]).expect("read");
        assert_eq!(missing.expect_err("not there"), "none");
        for file in ["secrets", "secrets.key"] {
            let path = home.path().join("jobs").join(file);
            let bytes = fs::read(&path).expect("a file");
            assert!(!String::from_utf8_lossy(&bytes).contains("hunter2"));
            let mode = fs::metadata(&path).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        assert!(secrets.remove(&name("token")).expect("gone"));
        assert!(!secrets.remove(&name("token")).expect("gone before"));
    }

    #[test]
    fn changed_secrets_and_another_key_are_noticed() {
        let home = tempfile::tempdir().expect("a folder");
        let secrets = Secrets::of(home.path());
        secrets.set(&name("a"), Zeroizing::new("b".to_owned())).expect("kept");
        let path = home.path().join("jobs/secrets.key");
        fs::write(&path, [1; 32]).expect("another key");
        let broken = secrets.names().expect_err("not ours");
        assert!(matches!(broken, SecretError::Undecryptable { .. }));
        fs::remove_file(&path).expect("gone");
        let again = secrets.set(&name("c"), Zeroizing::new("d".to_owned()));
        assert!(again.is_err(), "a new key beside old secrets");
    }

    #[test]
    fn names_are_plain() {
        for bad in ["", "../a", "a/b", ".a", "a b", "ä"] {
            assert!(SecretName::parse(bad).is_err(), "{bad:?}");
        }
    }
}

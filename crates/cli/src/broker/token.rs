//! The operator's token and the local authority's key: files that only their owner can read, made
//! when they are missing.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use semel_broker::http::AdminToken;
use semel_core::hex::Hex;
use semel_crypto::keys::KeyPair;

use super::target::random_bytes;
use crate::exit::{Exit, Failure};

/// Bytes of the file that are read: more is no token.
const TOKEN_BYTES_MAX: u64 = 4096;

/// Reads the token; a missing file gets a random one first.
pub(crate) fn load(path: &Path) -> Result<AdminToken, Failure> {
    let text = secret("--admin-token-file", path, random_line)?;
    AdminToken::parse(&text).map_err(|refusal| refused("--admin-token-file", path, &refusal.detail))
}

/// Looks whether a token that is there can be used.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    if path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Ok(());
    }
    load(path).map(drop)
}

/// Looks whether a key of the local authority that is there can be used.
pub(crate) fn check_authority(path: &Path) -> Result<(), Failure> {
    if path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Ok(());
    }
    authority(path).map(drop)
}

/// Reads the key of the local authority; a missing file gets a random one first.
pub(crate) fn authority(path: &Path) -> Result<KeyPair, Failure> {
    let refused = |text: &str| refused("--authority-file", path, text);
    let text = secret("--authority-file", path, new_authority)?;
    let (secret, public) = match text.split_once(' ') {
        Some((secret, public)) => (secret, Some(public)),
        None => (text.as_str(), None),
    };
    let secret = Hex::<32>::parse(secret);
    let secret = secret.map_err(|_| refused("the file must hold a key: 64 hexadecimal digits"))?;
    let keys = KeyPair::from_secret(&secret.0);
    match public {
        Some(public) if public != keys.public().to_string() => {
            Err(refused("it is damaged: the second word is not the public half of the first"))
        }
        Some(_) | None => Ok(keys),
    }
}

fn random_line() -> String {
    Hex(random_bytes()).to_string()
}

/// Both halves, so that a digit that has changed is noticed.
fn new_authority() -> String {
    let secret = random_bytes();
    format!("{} {}", Hex(secret), KeyPair::from_secret(&secret).public())
}

fn refused(option: &str, path: &Path, text: &str) -> Failure {
    Failure::new(Exit::Refused, format!("error: {option} {}: {text}", path.display()))
}

/// One line that only its owner can read.
fn secret(option: &str, path: &Path, line: fn() -> String) -> Result<String, Failure> {
    let refused = |text: String| refused(option, path, &text);
    let io = |error: std::io::Error| refused(error.to_string());
    if File::open(path).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        make(path, &line()).map_err(io)?;
    }
    let text = read(option, path, TOKEN_BYTES_MAX)?;
    Ok(text.trim_end_matches('\n').to_owned())
}

/// One line, of a file that only its owner can read.
pub(crate) fn read_line(option: &str, path: &Path) -> Result<String, Failure> {
    let text = read(option, path, TOKEN_BYTES_MAX)?;
    let line = text.trim();
    match line.lines().count() {
        1 => Ok(line.to_owned()),
        0 => Err(refused(option, path, "it is empty")),
        _ => Err(refused(option, path, "it holds more than one line")),
    }
}

/// What is in a file that only its owner can read; nothing is made.
pub(crate) fn read(option: &str, path: &Path, bytes_max: u64) -> Result<String, Failure> {
    let refused = |text: String| refused(option, path, &text);
    let io = |error: std::io::Error| refused(error.to_string());
    // Nothing is waited for: a pipe without a writer is not a file, and is refused as such.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    let mode = metadata.permissions().mode();
    if !metadata.is_file() {
        return Err(refused("it is not a file".to_owned()));
    }
    if mode & 0o077 != 0 {
        let mode = mode & 0o777;
        return Err(refused(format!(
            "others can read or change it (mode {mode:03o})\nto keep it: chmod 600 {}",
            path.display()
        )));
    }
    let (owner, ours) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if !is_trusted(owner, ours) {
        return Err(refused(format!(
            "it belongs to the user {owner}, who knows its content; semel runs as the user {ours}\n\
             to keep it: chown {ours} {}",
            path.display()
        )));
    }
    let mut text = String::new();
    file.take(bytes_max.saturating_add(1)).read_to_string(&mut text).map_err(io)?;
    match u64::try_from(text.len()) {
        Ok(length) if length <= bytes_max => Ok(text),
        Ok(_) | Err(_) => Err(refused(format!("it has more than {bytes_max} bytes"))),
    }
}

/// Root reads and changes what it likes anyhow.
const fn is_trusted(owner: u32, ours: u32) -> bool {
    owner == ours || owner == 0
}

/// Whole or not at all, also when two processes make it at once: the first one's counts.
fn make(path: &Path, line: &str) -> std::io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", Hex(random_bytes()).to_string().split_off(48)));
    let draft = Path::new(&draft);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
    let written = writeln!(file, "{line}").and_then(|()| file.sync_all());
    let linked = written.and_then(|()| std::fs::hard_link(draft, path));
    std::fs::remove_file(draft)?;
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digit_of_an_authority_that_has_changed_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("authority");
        let made = authority(&path).expect("made");
        assert_eq!(authority(&path).expect("read").public(), made.public());
        let text = std::fs::read_to_string(&path).expect("a key");
        for place in [0, 70] {
            let mut changed = text.clone().into_bytes();
            changed[place] = if changed[place] == b'0' { b'1' } else { b'0' };
            std::fs::write(&path, changed).expect("changed");
            assert!(authority(&path).is_err_and(|refused| refused.text.contains("damaged")));
        }
        // One that somebody else has made may be the secret alone.
        std::fs::write(&path, &text[..64]).expect("changed");
        assert_eq!(authority(&path).expect("read").public(), made.public());
    }

    #[test]
    fn a_secret_of_another_user_is_refused() {
        assert!(is_trusted(0, 0) && is_trusted(1000, 1000) && is_trusted(0, 1000));
        assert!(!is_trusted(1000, 0) && !is_trusted(1000, 1001));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        assert!(load(&path).is_ok());
        // Only root can give a file away; anybody else has shown above what would be said.
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
            let refused = load(&path).err().expect("refused");
            assert_eq!(refused.exit, Exit::Refused);
            assert!(refused.text.contains("the user 12345,"), "{}", refused.text);
        }
    }

    #[test]
    fn a_missing_file_is_made_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        assert!(load(&path).is_ok());
        let made = std::fs::read(&path).expect("a token");
        assert_eq!((made.len(), made.last()), (65, Some(&b'\n')));
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(load(&path).is_ok());
        assert_eq!(std::fs::read(&path).expect("a token"), made, "it stays");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
        for mode in [0o640, 0o604, 0o660] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).expect("a mode");
            let refused = load(&path).err().expect("refused");
            assert_eq!(refused.exit, Exit::Refused, "{mode:o}");
            assert!(refused.text.contains("chmod 600"), "{}", refused.text);
        }
        std::fs::remove_file(&path).expect("a file");
        std::fs::write(&path, "short").expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("a mode");
        assert!(load(&path).is_err_and(|refused| !refused.text.contains("short\n")));
    }
}

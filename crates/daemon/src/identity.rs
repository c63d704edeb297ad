//! Who this daemon is (daemon.md, "Identity"): its keys, its own id, its commitment key, its local
//! token, and the mesh it has joined.
//!
//! Each file is written whole or not at all, in the order below and `mesh.json` last, after the
//! broker has let the member in. So a first start that was cut off is completed by the next one,
//! while keys that are missing beside a `mesh.json` were lost, and making new ones would only hide
//! it.

mod keypair;
mod membership;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;

use semel_core::clock::UnixMs;
use semel_core::fingerprint::BodyHash;
use semel_core::hex::Hex;
use semel_core::id::InstanceId;
use semel_core::mint::IdMint;
use zeroize::Zeroizing;

use crate::home::{Home, HomeError, HomeFile, LockedHome};
use crate::token::LocalToken;

pub use keypair::Keys;
pub use membership::Membership;

/// Where random bytes come from; each call gives fresh ones that nobody can guess.
pub type Random = dyn Fn() -> Zeroizing<[u8; 32]> + Send + Sync;

/// What new files are made from.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// For ids.
    pub mint: &'a IdMint,
    /// For secrets.
    pub random: &'a Random,
    /// What a calendar says.
    pub now: UnixMs,
}

/// Why a daemon cannot be who it was.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The folder.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// A file does not say what it must.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, without any of its content.
        what: String,
    },
    /// A member without its secrets.
    #[error("{} is missing, but {} has joined the mesh", path.display(), member)]
    Lost {
        /// The file.
        path: PathBuf,
        /// The member's name.
        member: String,
    },
}

/// Everything a daemon needs to be itself.
#[derive(Debug)]
pub struct Identity {
    /// The member's keys.
    pub keys: Keys,
    /// Which daemon this is.
    pub instance_id: InstanceId,
    /// Commitment key (mesh.md §9).
    pub fingerprint_secret: FingerprintSecret,
    /// For the local API over TCP.
    pub local_token: LocalToken,
}

impl Identity {
    /// Looks whether what is there can be read, and whether something is missing that there must
    /// have been. Nothing is made: a start does this first, and whoever looks after it too.
    pub fn check(home: &Home) -> Result<(), IdentityError> {
        let member = Membership::read(home)?.map(|membership| membership.name);
        let lost = |file| match &member {
            None => Ok(()),
            Some(member) => {
                Err(IdentityError::Lost { path: home.path(file), member: member.clone() })
            }
        };
        if Keys::read(home)?.is_none() {
            lost(HomeFile::Keypair)?;
        }
        read_instance_id(home)?;
        if FingerprintSecret::read(home)?.is_none() {
            lost(HomeFile::FingerprintSecret)?;
        }
        read_local_token(home)?;
        Ok(())
    }

    /// Reads the folder's identity, and makes what is missing.
    pub fn open(home: &LockedHome, sources: Sources<'_>) -> Result<Self, IdentityError> {
        Self::check(home.home())?;
        let keys = match Keys::read(home.home())? {
            Some(keys) => keys,
            None => {
                let keys = Keys::new(sources);
                keys.write(home)?;
                keys
            }
        };
        let instance_id = match read_instance_id(home.home())? {
            Some(instance_id) => instance_id,
            // Also beside a `mesh.json`: another daemon of the member, which the broker fences
            // from the one before.
            None => {
                let made: InstanceId = sources.mint.uuid();
                home.write(HomeFile::InstanceId, format!("{made}\n").as_bytes())?;
                made
            }
        };
        let fingerprint_secret = match FingerprintSecret::read(home.home())? {
            Some(secret) => secret,
            None => {
                let secret = FingerprintSecret((sources.random)());
                secret.write(home)?;
                secret
            }
        };
        let local_token = Self::local_token(home, sources)?;
        Ok(Self { keys, instance_id, fingerprint_secret, local_token })
    }

    /// An identity that ends with the process. Only the local token is on disk, for the callers on
    /// this host.
    pub fn ephemeral(home: &LockedHome, sources: Sources<'_>) -> Result<Self, IdentityError> {
        Ok(Self {
            keys: Keys::new(sources),
            instance_id: sources.mint.uuid(),
            fingerprint_secret: FingerprintSecret((sources.random)()),
            local_token: Self::local_token(home, sources)?,
        })
    }

    fn local_token(home: &LockedHome, sources: Sources<'_>) -> Result<LocalToken, IdentityError> {
        match read_local_token(home.home())? {
            Some(token) => Ok(token),
            None => {
                let token = LocalToken::new(&(sources.random)());
                token.write(home)?;
                Ok(token)
            }
        }
    }
}

/// 32 bytes that never leave the host, and do not change when the keys do. In no `Debug` output.
pub struct FingerprintSecret(Zeroizing<[u8; 32]>);

impl FingerprintSecret {
    /// The bytes.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    fn read(home: &Home) -> Result<Option<Self>, IdentityError> {
        let Some(text) = read_line(home, HomeFile::FingerprintSecret)? else { return Ok(None) };
        let secret = Hex::parse(&text).map_err(|refusal| IdentityError::Malformed {
            path: home.path(HomeFile::FingerprintSecret),
            what: refusal.detail,
        })?;
        Ok(Some(Self(Zeroizing::new(secret.0))))
    }

    fn write(&self, home: &LockedHome) -> Result<(), HomeError> {
        let text = Zeroizing::new(format!("{}\n", Hex(*self.0)));
        home.write(HomeFile::FingerprintSecret, text.as_bytes())
    }
}

impl fmt::Debug for FingerprintSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintSecret(…)")
    }
}

fn read_instance_id(home: &Home) -> Result<Option<InstanceId>, IdentityError> {
    let Some(text) = read_line(home, HomeFile::InstanceId)? else { return Ok(None) };
    let instance_id = InstanceId::parse(&text).ok_or_else(|| IdentityError::Malformed {
        path: home.path(HomeFile::InstanceId),
        what: "is not a UUID in lower-case hyphenated form".to_owned(),
    })?;
    Ok(Some(instance_id))
}

fn read_local_token(home: &Home) -> Result<Option<LocalToken>, IdentityError> {
    let Some(text) = read_line(home, HomeFile::LocalToken)? else { return Ok(None) };
    let token = LocalToken::parse(&text).ok_or_else(|| IdentityError::Malformed {
        path: home.path(HomeFile::LocalToken),
        what: "is not 32 bytes of base64url; delete it, and a new one is made".to_owned(),
    })?;
    Ok(Some(token))
}

/// A file of one line, without its end.
fn read_line(home: &Home, file: HomeFile) -> Result<Option<Zeroizing<String>>, IdentityError> {
    let Some(bytes) = home.read(file)? else { return Ok(None) };
    let text = std::str::from_utf8(&bytes).map_err(|_| IdentityError::Malformed {
        path: home.path(file),
        what: "is not text".to_owned(),
    })?;
    Ok(Some(Zeroizing::new(text.strip_suffix('\n').unwrap_or(text).to_owned())))
}

/// What serde says about a document of ours, without any of the document's values: those may be
/// secrets. Names of fields are none.
fn said(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let names_a_field = ["unknown field", "missing field", "duplicate field"];
    let what = match text.split_once(" at line ") {
        _ if !error.is_data() => "is not a JSON document",
        Some((what, _)) if names_a_field.iter().any(|start| what.starts_with(start)) => what,
        _ => "a field is not of its type",
    };
    format!("{what} (line {line}, column {column})")
}

/// A checksum of a document's values.
fn sum(values: &[&str]) -> String {
    Hex(BodyHash::of(values.join("\n").as_bytes()).0).to_string()
}

/// A value that makes sense may still be another one than was written. Whoever changes a document
/// by hand takes its checksum out.
fn refuse_changed(said: Option<&str>, sum: &str) -> Result<(), String> {
    match said {
        Some(said) if said != sum => {
            Err("it is not what was written (if you have changed it, delete the line sha256)"
                .to_owned())
        }
        Some(_) | None => Ok(()),
    }
}

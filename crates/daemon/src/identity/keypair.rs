//! `keypair.json`: the member's keys. Read strictly, because a key file that somebody has changed
//! is not to be guessed at; the secret is wiped from memory after use and is in no message.

use std::fmt::Write;

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_crypto::keys::KeyPair;
use serde::Deserialize;
use zeroize::Zeroizing;

use super::{IdentityError, Sources, refuse_changed, said, sum};
use crate::home::{Home, HomeError, HomeFile, LockedHome};

const VERSION: u32 = 1;

/// More than the document has, so that it is never copied while it grows.
const DOCUMENT_BYTES: usize = 1024;

/// Characters of a key's id.
const KEY_ID_CHARS_MAX: usize = 64;

/// A key pair and what it is called.
#[derive(Debug)]
pub struct Keys {
    /// Names this pair among the member's.
    pub key_id: String,
    /// The pair; its secret is in no `Debug` output.
    pub pair: KeyPair,
    /// When it was made.
    pub created_at: UnixMs,
}

/// The text is borrowed: serde must make no copy of the secret that nobody wipes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<'a> {
    version: u32,
    key_id: &'a str,
    ed25519_secret: &'a str,
    ed25519_public: &'a str,
    created_at: i64,
    /// Of all that is above.
    sha256: Option<&'a str>,
}

impl Keys {
    /// A new pair.
    pub fn new(sources: Sources<'_>) -> Self {
        Self {
            key_id: sources.mint.client_message_id().to_string(),
            pair: KeyPair::from_secret(&(sources.random)()),
            created_at: sources.now,
        }
    }

    pub(super) fn read(home: &Home) -> Result<Option<Self>, IdentityError> {
        let Some(bytes) = home.read(HomeFile::Keypair)? else { return Ok(None) };
        let malformed =
            |what| IdentityError::Malformed { path: home.path(HomeFile::Keypair), what };
        Self::parse(&bytes).map(Some).map_err(malformed)
    }

    /// The error is a sentence without any of the document's values.
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let document: Document<'_> = serde_json::from_slice(bytes).map_err(|error| said(&error))?;
        if document.version != VERSION {
            let version = document.version;
            return Err(format!("version {version} is not known here; {VERSION} is"));
        }
        let key_id = document.key_id;
        let is_id = (1..=KEY_ID_CHARS_MAX).contains(&key_id.len())
            && key_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_id {
            return Err("key_id must be 1 to 64 letters, digits and '-'".to_owned());
        }
        let hex = |field: &str, text: &str| {
            let parsed = Hex::<32>::parse(text).map_err(|refusal| refusal.detail);
            parsed.map_err(|detail| format!("{field} {detail}"))
        };
        let secret = Zeroizing::new(hex("ed25519_secret", document.ed25519_secret)?.0);
        let public = hex("ed25519_public", document.ed25519_public)?;
        let pair = KeyPair::from_secret(&secret);
        if pair.public().to_hex() != public {
            return Err("ed25519_public is not the public half of ed25519_secret".to_owned());
        }
        let (key_id, created_at) = (key_id.to_owned(), UnixMs(document.created_at));
        let keys = Self { key_id, pair, created_at };
        refuse_changed(document.sha256, &keys.sum()).map(|()| keys)
    }

    /// The secret is not part of it: its public half stands for it.
    fn sum(&self) -> String {
        sum(&[&self.key_id, &self.pair.public().to_string(), &self.created_at.0.to_string()])
    }

    pub(super) fn write(&self, home: &LockedHome) -> Result<(), HomeError> {
        home.write(HomeFile::Keypair, self.document().as_bytes())
    }

    fn document(&self) -> Zeroizing<String> {
        let (key_id, created_at, sum) = (&self.key_id, self.created_at.0, self.sum());
        let (secret, public) = (Hex(*self.pair.secret()), self.pair.public());
        let mut text = Zeroizing::new(String::with_capacity(DOCUMENT_BYTES));
        // Writing into a string cannot fail.
        let _ = write!(
            text,
            "{{\n  \"version\": {VERSION},\n  \"key_id\": \"{key_id}\",\n  \
             \"ed25519_secret\": \"{secret}\",\n  \"ed25519_public\": \"{public}\",\n  \
             \"created_at\": {created_at},\n  \"sha256\": \"{sum}\"\n}}\n"
        );
        text
    }
}

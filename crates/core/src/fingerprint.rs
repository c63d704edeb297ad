//! The request fingerprint: everything that makes one send different from another (mesh.md §3).
//! `conformance/fingerprint.json` is its specification by example, for every language.

use sha2::{Digest, Sha256};

use crate::canonical::Meta;
use crate::envelope::{Envelope, Priority};

/// Version of the envelope whose fields are joined below.
pub const ENVELOPE_VERSION: &str = "1";

/// What stands for the body in the fingerprint: its sha256, or the commitment of a sealed body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BodyHash(pub [u8; 32]);

impl BodyHash {
    /// The hash of a body in the clear.
    pub fn of(body: &[u8]) -> Self {
        Self(Sha256::digest(body).into())
    }

    /// 64 lower-case hexadecimal digits, as they enter the fingerprint.
    pub fn to_hex(self) -> String {
        hex(&self.0)
    }
}

/// sha256 over the joined fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of an envelope in the clear.
    pub fn of(envelope: &Envelope) -> Self {
        Self::with_body_hash(envelope, BodyHash::of(&envelope.body))
    }

    /// The fingerprint of an envelope whose body is represented by `body_hash`.
    pub fn with_body_hash(envelope: &Envelope, body_hash: BodyHash) -> Self {
        join(
            envelope.destination.kind().as_str(),
            envelope.destination.reference(),
            envelope.reply_to_id.as_deref().unwrap_or_default(),
            envelope.priority,
            &envelope.meta,
            body_hash,
        )
    }

    /// 64 lower-case hexadecimal digits.
    pub fn to_hex(self) -> String {
        hex(&self.0)
    }

    /// The first 8 bytes in hex: enough to compare two parties' views, safe to show.
    pub fn prefix(self) -> String {
        hex(&self.0[..8])
    }
}

/// The join is unambiguous because no field before the last can contain the separator.
fn join(
    kind: &str,
    reference: &str,
    reply_to_id: &str,
    priority: Priority,
    meta: &Meta,
    body_hash: BodyHash,
) -> Fingerprint {
    let mut hash = Sha256::new();
    for field in [ENVELOPE_VERSION, kind, reference, reply_to_id, priority.as_str(), meta.as_str()]
    {
        hash.update(field.as_bytes());
        hash.update([0]);
    }
    hash.update(body_hash.to_hex().as_bytes());
    Fingerprint(hash.finalize().into())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

impl std::fmt::Debug for BodyHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_hex())
    }
}

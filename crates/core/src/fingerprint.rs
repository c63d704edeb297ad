//! The request fingerprint: everything that makes one send different from another (mesh.md §3).
//! `conformance/fingerprint.json` is its specification by example, for every language.

use sha2::{Digest, Sha256};

use crate::canonical::Meta;
use crate::envelope::{Destination, Envelope, Priority};
use crate::hex;

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
        hex::text(&self.0)
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
        let reply_to_id = envelope.reply_to_id.as_deref();
        let (priority, meta) = (envelope.priority, &envelope.meta);
        Self::of_parts(&envelope.destination, reply_to_id, priority, meta, body_hash)
    }

    /// The fingerprint of an envelope's parts, whose body is represented by `body_hash`. The join
    /// is unambiguous because no field before the last can contain the separator.
    pub fn of_parts(
        destination: &Destination,
        reply_to_id: Option<&str>,
        priority: Priority,
        meta: &Meta,
        body_hash: BodyHash,
    ) -> Self {
        let fields = Fields { destination, reply_to_id, priority, meta: meta.as_str() };
        fields.fingerprint(body_hash)
    }

    /// 64 lower-case hexadecimal digits.
    pub fn to_hex(self) -> String {
        hex::text(&self.0)
    }

    /// The first 8 bytes in hex: enough to compare two parties' views, safe to show.
    pub fn prefix(self) -> String {
        hex::text(&self.0[..8])
    }
}

/// What was accepted once, read back: its meta is text that was canonical then.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    /// Where it was sent.
    pub destination: &'a Destination,
    /// The message it replies to.
    pub reply_to_id: Option<&'a str>,
    /// How urgent it is.
    pub priority: Priority,
    /// Canonical JSON, or empty.
    pub meta: &'a str,
}

impl Fields<'_> {
    /// The fingerprint of these with a body that is represented by `body_hash`: whoever has kept
    /// the one of the accept sees by it whether they are still the same.
    pub fn fingerprint(&self, body_hash: BodyHash) -> Fingerprint {
        let mut hash = Sha256::new();
        for field in [
            ENVELOPE_VERSION,
            self.destination.kind().as_str(),
            self.destination.reference(),
            self.reply_to_id.unwrap_or_default(),
            self.priority.as_str(),
            self.meta,
        ] {
            hash.update(field.as_bytes());
            hash.update([0]);
        }
        hash.update(hex::pairs(body_hash.0).as_flattened());
        Fingerprint(hash.finalize().into())
    }
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

//! What a request is called. Both keys are computed here and never taken from a caller: sha256 over
//! a label and fields, each with its length in four bytes in front, the highest first.
//! `conformance/registrar.json` fixes them for every language.

use std::fmt;

use semel_core::hex::Hex;
use sha2::{Digest, Sha256};

use crate::envelope::Envelope;

/// *What* effect is asked for: one of them is committed at the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogicalRequestKey(pub Hex<32>);

/// The request in every detail that a retry repeats: the effect and the run that asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplayKey(pub Hex<32>);

impl LogicalRequestKey {
    /// The key of an envelope. The domain is part of it, so that nobody who is trusted in one
    /// domain can use up the keys of another.
    pub fn of(envelope: &Envelope) -> Self {
        Self(hash(&[
            b"semel/logical-request/v1",
            envelope.domain.as_bytes(),
            envelope.operation.as_bytes(),
            envelope.canonical_target.as_bytes(),
            &envelope.artifact_hash.0,
            envelope.owner_binding.as_bytes(),
        ]))
    }
}

impl ReplayKey {
    /// The key of an envelope; neither its time nor any attempt or nonce is part of it.
    pub fn of(envelope: &Envelope) -> Self {
        Self(hash(&[
            b"semel/replay/v1",
            envelope.protocol_version.to_string().as_bytes(),
            &LogicalRequestKey::of(envelope).0.0,
            envelope.operation.as_bytes(),
            envelope.canonical_target.as_bytes(),
            &envelope.artifact_hash.0,
            envelope.owner_binding.as_bytes(),
            envelope.run_id.as_bytes(),
        ]))
    }
}

impl fmt::Display for LogicalRequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ReplayKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn hash(fields: &[&[u8]]) -> Hex<32> {
    let mut hasher = Sha256::new();
    for field in fields {
        // No field comes near four gigabytes: the envelope's limits are far below.
        let length = u32::try_from(field.len()).unwrap_or(u32::MAX);
        hasher.update(length.to_be_bytes());
        hasher.update(field);
    }
    Hex(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn the_keys_are_those_of_the_vectors() {
        let text = include_str!("../../../conformance/registrar.json");
        let document: Value = serde_json::from_str(text).expect("JSON");
        let cases = document["cases"].as_array().expect("cases");
        assert!(cases.len() >= 12);
        for case in cases {
            let envelope = Envelope::parse(case["envelope"].to_string().as_bytes());
            let envelope = envelope.expect("an envelope");
            let keys = (LogicalRequestKey::of(&envelope), ReplayKey::of(&envelope));
            let told = (&case["logical_request_key"], &case["replay_key"]);
            let keys = (Value::from(keys.0.to_string()), Value::from(keys.1.to_string()));
            assert_eq!((&keys.0, &keys.1), told, "{}", case["name"]);
        }
    }
}

//! The signature of one HTTP request of a member (broker.md, "HTTP"): method, path, body, time and
//! a nonce that is used once.

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use sha2::{Digest, Sha256};

use crate::keys::{KeyPair, PublicKey, SignatureInvalid};
use crate::signed::SignedBytes;

/// What this signature is for.
const LABEL: &str = "semel/request/v1";

/// What a member asks for, beside its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestClaim<'a> {
    /// Upper-case, as HTTP spells it.
    pub method: &'a str,
    /// Path and query, as they are on the request line.
    pub path_and_query: &'a str,
    /// The body; empty where there is none.
    pub body: &'a [u8],
    /// The member's clock.
    pub time: UnixMs,
    /// Used once; the broker remembers it for as long as `time` could pass.
    pub nonce: Hex<16>,
    /// The mesh in which the key counts.
    pub mesh: &'a str,
}

/// Signs a request; the key is part of what is signed.
pub fn sign(keys: &KeyPair, claim: &RequestClaim<'_>) -> Hex<64> {
    keys.sign(&signed_bytes(&keys.public(), claim))
}

/// Whether the owner of this key made this request. The caller checks the clock
/// ([`crate::clock::clock_skew_ok`]) and that the nonce is new.
pub fn verify(
    key: &PublicKey,
    claim: &RequestClaim<'_>,
    signature: &Hex<64>,
) -> Result<(), SignatureInvalid> {
    key.verify(&signed_bytes(key, claim), signature)
}

fn signed_bytes(key: &PublicKey, claim: &RequestClaim<'_>) -> Vec<u8> {
    SignedBytes::new(LABEL)
        .field(claim.method.as_bytes())
        .field(claim.path_and_query.as_bytes())
        .field(&Sha256::digest(claim.body))
        .field(&claim.time.0.to_be_bytes())
        .field(&claim.nonce.0)
        .field(claim.mesh.as_bytes())
        .field(&key.to_hex().0)
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use semel_core::id::{BrokerId, InstanceId};
    use uuid::Uuid;

    use super::*;
    use crate::hello::{self, HelloClaim};

    fn keys() -> KeyPair {
        KeyPair::from_secret(&[7; 32])
    }

    fn claim() -> RequestClaim<'static> {
        RequestClaim {
            method: "POST",
            path_and_query: "/v1/topics?limit=1",
            body: b"{}",
            time: UnixMs(1_700_000_000_000),
            nonce: Hex([0x33; 16]),
            mesh: "ops",
        }
    }

    #[test]
    fn any_changed_field_fails() {
        let signature = sign(&keys(), &claim());
        let key = keys().public();
        assert_eq!(verify(&key, &claim(), &signature), Ok(()));
        let good = claim();
        let changed = [
            RequestClaim { method: "PUT", ..good },
            RequestClaim { path_and_query: "/v1/topics?limit=2", ..good },
            RequestClaim { path_and_query: "/v1/topics", ..good },
            RequestClaim { method: "POST/", path_and_query: "v1/topics?limit=1", ..good },
            RequestClaim { body: b"", ..good },
            RequestClaim { body: b"{ }", ..good },
            RequestClaim { time: UnixMs(1_700_000_000_001), ..good },
            RequestClaim { nonce: Hex([0x34; 16]), ..good },
            RequestClaim { mesh: "ops2", ..good },
        ];
        for claim in changed {
            assert_eq!(verify(&key, &claim, &signature), Err(SignatureInvalid), "{claim:?}");
        }
        let other = KeyPair::from_secret(&[8; 32]).public();
        assert_eq!(verify(&other, &good, &signature), Err(SignatureInvalid));
    }

    #[test]
    fn a_signature_of_one_kind_is_none_of_the_other() {
        let hello = HelloClaim {
            broker_id: BrokerId::new(Uuid::nil()),
            broker_nonce: Hex([0; 32]),
            mesh: "ops",
            key_id: "k1",
            instance_id: InstanceId::new(Uuid::nil()),
            host_fingerprint: None,
            hello_nonce: Hex([0x33; 16]),
            time: UnixMs(1_700_000_000_000),
            retire: &[],
        };
        let key = keys().public();
        let of_hello = hello::sign(&keys(), &hello);
        let of_request = sign(&keys(), &claim());
        assert_eq!(verify(&key, &claim(), &of_hello), Err(SignatureInvalid));
        assert_eq!(hello::verify(&key, &hello, &of_request), Err(SignatureInvalid));
        // The same fields under the other label: the label alone makes the difference.
        let bytes = signed_bytes(&key, &claim());
        let relabelled = [b"\0\0\0\x0esemel/hello/v1", &bytes[4 + LABEL.len()..]].concat();
        let signature = keys().sign(&relabelled);
        assert_eq!(verify(&key, &claim(), &signature), Err(SignatureInvalid));
    }

    #[test]
    fn the_signed_bytes_are_these() {
        let bytes = signed_bytes(&keys().public(), &claim());
        let body = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        let mut expected = Vec::new();
        let parts: [&[u8]; 8] = [
            b"semel/request/v1",
            b"POST",
            b"/v1/topics?limit=1",
            &Hex::<32>::parse(body).unwrap().0,
            &[0x00, 0x00, 0x01, 0x8b, 0xcf, 0xe5, 0x68, 0x00],
            &[0x33; 16],
            b"ops",
            &keys().public().to_hex().0,
        ];
        for part in parts {
            expected.extend([0, 0, 0, u8::try_from(part.len()).unwrap()]);
            expected.extend(part);
        }
        assert_eq!(bytes, expected);
    }
}

//! The signature of `hello` (broker.md, "Handshake"): it names the broker and the nonce of its
//! challenge, so that it is worth nothing to another broker and nothing later.

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_core::id::{BrokerId, InstanceId};

use crate::keys::{KeyPair, PublicKey, SignatureInvalid};
use crate::signed::SignedBytes;

/// What this signature is for.
const LABEL: &str = "semel/hello/v1";

/// What a daemon says about itself, beside its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelloClaim<'a> {
    /// The broker that asked.
    pub broker_id: BrokerId,
    /// The nonce of its challenge.
    pub broker_nonce: Hex<32>,
    /// The mesh to join.
    pub mesh: &'a str,
    /// The name of the key.
    pub key_id: &'a str,
    /// The daemon's folder.
    pub instance_id: InstanceId,
    /// The machine, where it is known.
    pub host_fingerprint: Option<Hex<32>>,
    /// The daemon's own nonce.
    pub hello_nonce: Hex<16>,
    /// The daemon's clock.
    pub time: UnixMs,
    /// Instances that this one retires.
    pub retire: &'a [InstanceId],
}

/// Signs a claim; the key is part of what is signed.
pub fn sign(keys: &KeyPair, claim: &HelloClaim<'_>) -> Hex<64> {
    keys.sign(&signed_bytes(&keys.public(), claim))
}

/// Whether the owner of this key made this claim. The caller checks the clock
/// ([`crate::clock::clock_skew_ok`]) and that the nonce is the one it sent.
pub fn verify(
    key: &PublicKey,
    claim: &HelloClaim<'_>,
    signature: &Hex<64>,
) -> Result<(), SignatureInvalid> {
    key.verify(&signed_bytes(key, claim), signature)
}

fn signed_bytes(key: &PublicKey, claim: &HelloClaim<'_>) -> Vec<u8> {
    let host_fingerprint = claim.host_fingerprint.as_ref().map_or(&[][..], |hex| &hex.0);
    let retire: Vec<u8> =
        claim.retire.iter().flat_map(|instance| instance.as_uuid().into_bytes()).collect();
    SignedBytes::new(LABEL)
        .field(claim.broker_id.as_uuid().as_bytes())
        .field(&claim.broker_nonce.0)
        .field(claim.mesh.as_bytes())
        .field(&key.to_hex().0)
        .field(claim.key_id.as_bytes())
        .field(claim.instance_id.as_uuid().as_bytes())
        .field(host_fingerprint)
        .field(&claim.hello_nonce.0)
        .field(&claim.time.0.to_be_bytes())
        .field(&retire)
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const RETIRE: &[InstanceId] =
        &[InstanceId::new(Uuid::from_u128(1)), InstanceId::new(Uuid::from_u128(2))];

    fn keys() -> KeyPair {
        KeyPair::from_secret(&[7; 32])
    }

    fn claim() -> HelloClaim<'static> {
        HelloClaim {
            broker_id: BrokerId::new(Uuid::from_u128(0xb0)),
            broker_nonce: Hex([0x11; 32]),
            mesh: "ops",
            key_id: "k1",
            instance_id: InstanceId::new(Uuid::from_u128(0x1a)),
            host_fingerprint: Some(Hex([0x22; 32])),
            hello_nonce: Hex([0x33; 16]),
            time: UnixMs(1_700_000_000_000),
            retire: RETIRE,
        }
    }

    #[test]
    fn any_changed_field_fails() {
        let signature = sign(&keys(), &claim());
        let key = keys().public();
        assert_eq!(verify(&key, &claim(), &signature), Ok(()));
        let good = claim();
        let changed = [
            HelloClaim { broker_id: BrokerId::new(Uuid::from_u128(0xb1)), ..good },
            HelloClaim { broker_nonce: Hex([0x12; 32]), ..good },
            HelloClaim { mesh: "ops2", ..good },
            // The end of one field is not the beginning of the next.
            HelloClaim { mesh: "op", key_id: "sk1", ..good },
            HelloClaim { key_id: "k2", ..good },
            HelloClaim { instance_id: InstanceId::new(Uuid::from_u128(0x1b)), ..good },
            HelloClaim { host_fingerprint: Some(Hex([0; 32])), ..good },
            HelloClaim { host_fingerprint: None, ..good },
            HelloClaim { hello_nonce: Hex([0x34; 16]), ..good },
            HelloClaim { time: UnixMs(1_700_000_000_001), ..good },
            HelloClaim { retire: &[], ..good },
            HelloClaim { retire: &RETIRE[..1], ..good },
            HelloClaim { retire: &[RETIRE[1], RETIRE[0]], ..good },
        ];
        for claim in changed {
            assert_eq!(verify(&key, &claim, &signature), Err(SignatureInvalid), "{claim:?}");
        }
        let other = KeyPair::from_secret(&[8; 32]).public();
        assert_eq!(verify(&other, &good, &signature), Err(SignatureInvalid));
    }

    #[test]
    fn the_signed_bytes_are_these() {
        let bytes = signed_bytes(&keys().public(), &HelloClaim { retire: &[], ..claim() });
        let mut expected = Vec::new();
        let parts: [&[u8]; 11] = [
            b"semel/hello/v1",
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xb0],
            &[0x11; 32],
            b"ops",
            &keys().public().to_hex().0,
            b"k1",
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x1a],
            &[0x22; 32],
            &[0x33; 16],
            &[0x00, 0x00, 0x01, 0x8b, 0xcf, 0xe5, 0x68, 0x00],
            b"",
        ];
        for part in parts {
            expected.extend([0, 0, 0, u8::try_from(part.len()).unwrap()]);
            expected.extend(part);
        }
        assert_eq!(bytes, expected);
    }
}

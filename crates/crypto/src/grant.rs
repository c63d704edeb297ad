//! The signature of a grant (registrar.md, "Grants"): an authority allows one request, once, within
//! a window of time.

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;

use crate::keys::{KeyPair, PublicKey, SignatureInvalid};
use crate::signed::SignedBytes;

/// What this signature is for.
const LABEL: &str = "semel/grant/v1";

/// What an authority allows, beside its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantClaim<'a> {
    /// Where it counts.
    pub domain: &'a str,
    /// Used once.
    pub nonce: Hex<16>,
    /// The one request that it allows.
    pub logical_request_key: Hex<32>,
    /// Not valid before.
    pub not_before: UnixMs,
    /// Not valid after.
    pub not_after: UnixMs,
}

/// Signs a claim; the key is part of what is signed.
pub fn sign(keys: &KeyPair, claim: &GrantClaim<'_>) -> Hex<64> {
    keys.sign(&signed_bytes(&keys.public(), claim))
}

/// Whether the owner of this key made this claim. The caller checks that the domain trusts the key
/// and looks at the clock.
pub fn verify(
    key: &PublicKey,
    claim: &GrantClaim<'_>,
    signature: &Hex<64>,
) -> Result<(), SignatureInvalid> {
    key.verify(&signed_bytes(key, claim), signature)
}

fn signed_bytes(key: &PublicKey, claim: &GrantClaim<'_>) -> Vec<u8> {
    SignedBytes::new(LABEL)
        .field(claim.domain.as_bytes())
        .field(&claim.nonce.0)
        .field(&claim.logical_request_key.0)
        .field(&claim.not_before.0.to_be_bytes())
        .field(&claim.not_after.0.to_be_bytes())
        .field(&key.to_hex().0)
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_field_fails() {
        let keys = KeyPair::from_secret(&[7; 32]);
        let good = GrantClaim {
            domain: "deploys",
            nonce: Hex([1; 16]),
            logical_request_key: Hex([2; 32]),
            not_before: UnixMs(10),
            not_after: UnixMs(20),
        };
        let signature = sign(&keys, &good);
        assert_eq!(verify(&keys.public(), &good, &signature), Ok(()));
        for changed in [
            GrantClaim { domain: "deploy", ..good },
            GrantClaim { nonce: Hex([3; 16]), ..good },
            GrantClaim { logical_request_key: Hex([3; 32]), ..good },
            GrantClaim { not_before: UnixMs(11), ..good },
            GrantClaim { not_after: UnixMs(21), ..good },
            GrantClaim { not_before: UnixMs(20), not_after: UnixMs(10), ..good },
        ] {
            let verified = verify(&keys.public(), &changed, &signature);
            assert_eq!(verified, Err(SignatureInvalid), "{changed:?}");
        }
        let other = KeyPair::from_secret(&[8; 32]).public();
        assert_eq!(verify(&other, &good, &signature), Err(SignatureInvalid));
    }
}

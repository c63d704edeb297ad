//! Ed25519 keys. Verification is always the strict one: no weak keys, no second spelling of a
//! signature. The secret half is wiped when it is dropped and is in no `Debug` output.

use std::fmt;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::refusal::Refusal;
use zeroize::Zeroizing;

/// A signature does not fit key and bytes. It says no more: the reason helps only a forger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the signature is not valid")]
pub struct SignatureInvalid;

/// A member's key pair.
pub struct KeyPair(SigningKey);

impl KeyPair {
    /// The key pair of a secret: 32 bytes from the system's random source, or from a key file.
    pub fn from_secret(secret: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(secret))
    }

    /// The secret, for the key file; wiped when dropped.
    pub fn secret(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.0.to_bytes())
    }

    /// The half that everybody may know.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs bytes as they are; callers put a label in front ([`crate::hello`],
    /// [`crate::request`]).
    pub fn sign(&self, message: &[u8]) -> Hex<64> {
        Hex(self.0.sign(message).to_bytes())
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("public", &self.public()).finish_non_exhaustive()
    }
}

/// A public key that can be verified with: a point of the curve, and not a weak one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Reads 64 lower-case hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, Refusal> {
        Self::from_bytes(Hex::parse(text)?)
    }

    /// A key from its bytes. Weak keys (small order) are refused: under them one signature fits
    /// many messages.
    pub fn from_bytes(bytes: Hex<32>) -> Result<Self, Refusal> {
        let key = VerifyingKey::from_bytes(&bytes.0).ok().filter(|key| !key.is_weak());
        key.map(Self)
            .ok_or_else(|| Refusal::new(Code::InvalidField, "is not a usable ed25519 public key"))
    }

    /// Its bytes.
    pub fn to_hex(self) -> Hex<32> {
        Hex(self.0.to_bytes())
    }

    /// Whether `signature` was made by this key over these bytes.
    pub fn verify(&self, message: &[u8], signature: &Hex<64>) -> Result<(), SignatureInvalid> {
        let signature = Signature::from_bytes(&signature.0);
        self.0.verify_strict(message, &signature).map_err(|_| SignatureInvalid)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_hex().fmt(f)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8032, section 7.1, test 3.
    const SECRET: &str = "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7";
    const PUBLIC: &str = "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025";
    const SIGNATURE: &str = "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac\
                             18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a";

    fn pair() -> KeyPair {
        KeyPair::from_secret(&Hex::parse(SECRET).unwrap().0)
    }

    #[test]
    fn agrees_with_the_published_vector() {
        assert_eq!(pair().public().to_string(), PUBLIC);
        let signature = pair().sign(&[0xaf, 0x82]);
        assert_eq!(signature.to_string(), SIGNATURE);
        let public = PublicKey::from_hex(PUBLIC).unwrap();
        assert_eq!(public, pair().public());
        assert_eq!(public.verify(&[0xaf, 0x82], &signature), Ok(()));
        assert_eq!(public.verify(&[0xaf, 0x83], &signature), Err(SignatureInvalid));
    }

    #[test]
    fn a_changed_bit_of_a_signature_is_noticed() {
        let (public, signature) = (pair().public(), pair().sign(b"m"));
        for bit in (0..512).step_by(7) {
            let mut changed = signature;
            changed.0[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(public.verify(b"m", &changed), Err(SignatureInvalid), "bit {bit}");
        }
    }

    #[test]
    fn weak_and_malformed_keys_are_refused() {
        let identity = format!("01{}", "00".repeat(31));
        let order_two = format!("ec{}7f", "ff".repeat(30));
        let order_four = "00".repeat(32);
        let order_eight = "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a";
        // No x belongs to y = 2.
        let no_point = format!("02{}", "00".repeat(31));
        for key in [&identity, &order_two, &order_four, order_eight, &no_point] {
            let refusal = PublicKey::from_hex(key).expect_err(key);
            assert_eq!(refusal.code, Code::InvalidField);
        }
        for text in ["", "fc51", &PUBLIC.to_uppercase(), &PUBLIC.replace('f', "g")] {
            assert_eq!(PublicKey::from_hex(text).expect_err(text).code, Code::InvalidField);
        }
    }

    #[test]
    fn debug_output_holds_no_secret() {
        let shown = format!("{:?} {:#?}", pair(), pair());
        assert!(shown.contains(PUBLIC));
        assert!(!shown.contains(SECRET) && !shown.contains("197, 170"), "{shown}");
        assert_eq!(Hex(*pair().secret()).to_string(), SECRET);
    }
}

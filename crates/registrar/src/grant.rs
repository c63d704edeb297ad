//! A grant: an authority allows one request, once, within a window of time (registrar.md,
//! "Grants"). Pure: whether it was used is the store's to say, which issuers count the domain's.

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_core::refusal::Refusal;
use semel_core::rfc3339;
use semel_crypto::grant::{GrantClaim, sign, verify};
use semel_crypto::keys::{KeyPair, PublicKey};
use serde_json::{Value, json};

use crate::decide::{Binding, Time};
use crate::document::Fields;
use crate::envelope::Valid;
use crate::key::LogicalRequestKey;
use crate::limits::DOMAIN_BYTES_MAX;

/// Names a grant: 128 random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce(pub Hex<16>);

impl std::fmt::Display for Nonce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A signed grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Where it counts.
    pub domain: String,
    /// Its name.
    pub nonce: Nonce,
    /// The request that it allows.
    pub logical_request_key: LogicalRequestKey,
    /// Not valid before.
    pub not_before: UnixMs,
    /// Not valid after.
    pub not_after: UnixMs,
    /// The authority's public key.
    pub issuer: Hex<32>,
    /// Over all of the above.
    pub signature: Hex<64>,
}

impl Grant {
    /// An authority allows a request.
    pub fn issue(
        authority: &KeyPair,
        domain: &str,
        nonce: Nonce,
        logical_request_key: LogicalRequestKey,
        window: (UnixMs, UnixMs),
    ) -> Self {
        let (not_before, not_after) = window;
        let issuer = authority.public().to_hex();
        let unsigned = Self {
            domain: domain.to_owned(),
            nonce,
            logical_request_key,
            not_before,
            not_after,
            issuer,
            signature: Hex([0; 64]),
        };
        let signature = sign(authority, &unsigned.claim());
        Self { signature, ..unsigned }
    }

    /// Reads a document strictly.
    pub fn parse(text: &[u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::parse(text)?;
        let grant = Self::read(&mut fields)?;
        fields.finish().map(|()| grant)
    }

    pub(crate) fn take(fields: &mut Fields) -> Result<Self, Refusal> {
        let mut inner = fields.object("grant")?;
        let grant = Self::read(&mut inner)?;
        inner.finish().map(|()| grant)
    }

    fn read(fields: &mut Fields) -> Result<Self, Refusal> {
        Ok(Self {
            domain: fields.name("domain", DOMAIN_BYTES_MAX)?,
            nonce: Nonce(fields.hex("nonce")?),
            logical_request_key: LogicalRequestKey(fields.hex("logical_request_key")?),
            not_before: fields.moment("not_before")?,
            not_after: fields.moment("not_after")?,
            issuer: fields.hex("issuer")?,
            signature: fields.hex("signature")?,
        })
    }

    /// The document.
    pub fn to_json(&self) -> Value {
        json!({
            "domain": self.domain,
            "nonce": self.nonce.to_string(),
            "logical_request_key": self.logical_request_key.to_string(),
            "not_before": rfc3339::format(self.not_before),
            "not_after": rfc3339::format(self.not_after),
            "issuer": self.issuer.to_string(),
            "signature": self.signature.to_string(),
        })
    }

    /// Whether its issuer has signed it. Whether the domain trusts the issuer is another question.
    pub fn is_signed(&self) -> bool {
        let key = PublicKey::from_bytes(self.issuer);
        key.is_ok_and(|key| verify(&key, &self.claim(), &self.signature).is_ok())
    }

    /// Whether it allows this request.
    pub fn binding(&self, valid: &Valid) -> Binding {
        let same = self.logical_request_key == valid.logical_request_key
            && self.domain == valid.envelope.domain;
        if same { Binding::Bound } else { Binding::Unbound }
    }

    /// Whether a new request may be admitted by it now.
    pub fn time(&self, valid: &Valid, now: UnixMs) -> Time {
        match valid.time {
            Time::Fresh if self.not_before <= now && now <= self.not_after => Time::Fresh,
            Time::Fresh | Time::OutsideWindow => Time::OutsideWindow,
            Time::Stale => Time::Stale,
        }
    }

    fn claim(&self) -> GrantClaim<'_> {
        GrantClaim {
            domain: &self.domain,
            nonce: self.nonce.0,
            logical_request_key: self.logical_request_key.0,
            not_before: self.not_before,
            not_after: self.not_after,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_reads_back_and_any_change_shows() {
        let authority = KeyPair::from_secret(&[5; 32]);
        let key = LogicalRequestKey(Hex([1; 32]));
        let window = (UnixMs(1000), UnixMs(2000));
        let grant = Grant::issue(&authority, "deploys", Nonce(Hex([2; 16])), key, window);
        assert!(grant.is_signed());
        let text = grant.to_json().to_string();
        assert_eq!(Grant::parse(text.as_bytes()), Ok(grant.clone()));
        let later = Grant { not_after: UnixMs(2001), ..grant.clone() };
        let other = Grant { issuer: KeyPair::from_secret(&[6; 32]).public().to_hex(), ..grant };
        assert!(!later.is_signed() && !other.is_signed());
    }
}

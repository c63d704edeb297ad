//! What is asked for, and whether it may be asked now. Pure: the store is never touched here, and
//! nothing here knows what was used before (registrar.md, "Parts").

use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_core::code::Code;
use semel_core::hex::Hex;
use semel_core::refusal::Refusal;
use semel_core::rfc3339;
use serde_json::{Value, json};

use crate::decide::Time;
use crate::document::Fields;
use crate::key::{LogicalRequestKey, ReplayKey};
use crate::limits::{
    CLOCK_AHEAD_MAX, DOMAIN_BYTES_MAX, NAME_BYTES_MAX, TARGET_BYTES_MAX, TTL_SECONDS_MAX,
};

/// The one version there is.
pub const PROTOCOL_VERSION: u64 = 1;

/// The operation that undoes an effect whose verification has failed; its target is the effect's
/// key.
pub const COMPENSATE: &str = "compensate";

/// A request for one effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// Always [`PROTOCOL_VERSION`].
    pub protocol_version: u64,
    /// Whose gate and authorities count.
    pub domain: String,
    /// What is to be done.
    pub operation: String,
    /// To what, in the one spelling that the domain has for it.
    pub canonical_target: String,
    /// With what: sha256 of the attested artifact.
    pub artifact_hash: Hex<32>,
    /// For whom, or by which approval.
    pub owner_binding: String,
    /// Which run asks; a retry repeats it.
    pub run_id: String,
    /// When it was asked.
    pub issued_at: UnixMs,
    /// For how long it may be admitted as a new request.
    pub ttl_s: u64,
}

/// A request that is well formed, with its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Valid {
    /// What is asked for.
    pub envelope: Envelope,
    /// One effect per key.
    pub logical_request_key: LogicalRequestKey,
    /// What an exact retry repeats.
    pub replay_key: ReplayKey,
    /// Whether it may be admitted as a new request.
    pub time: Time,
}

impl Envelope {
    /// Reads a document strictly.
    pub fn parse(text: &[u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::parse(text)?;
        let envelope = Self::read(&mut fields)?;
        fields.finish().map(|()| envelope)
    }

    pub(crate) fn take(fields: &mut Fields) -> Result<Self, Refusal> {
        let mut inner = fields.object("envelope")?;
        let envelope = Self::read(&mut inner)?;
        inner.finish().map(|()| envelope)
    }

    fn read(fields: &mut Fields) -> Result<Self, Refusal> {
        Ok(Self {
            protocol_version: fields.number(
                "protocol_version",
                PROTOCOL_VERSION,
                PROTOCOL_VERSION,
            )?,
            domain: fields.name("domain", DOMAIN_BYTES_MAX)?,
            operation: fields.name("operation", NAME_BYTES_MAX)?,
            canonical_target: fields.name("canonical_target", TARGET_BYTES_MAX)?,
            artifact_hash: fields.hex("artifact_hash")?,
            owner_binding: fields.name("owner_binding", NAME_BYTES_MAX)?,
            run_id: fields.name("run_id", NAME_BYTES_MAX)?,
            issued_at: fields.moment("issued_at")?,
            ttl_s: fields.number("ttl_s", 1, TTL_SECONDS_MAX)?,
        })
    }

    /// The document.
    pub fn to_json(&self) -> Value {
        json!({
            "protocol_version": self.protocol_version,
            "domain": self.domain,
            "operation": self.operation,
            "canonical_target": self.canonical_target,
            "artifact_hash": self.artifact_hash.to_string(),
            "owner_binding": self.owner_binding,
            "run_id": self.run_id,
            "issued_at": rfc3339::format(self.issued_at),
            "ttl_s": self.ttl_s,
        })
    }

    /// The last moment at which it may be admitted as a new request.
    pub fn fresh_until(&self) -> UnixMs {
        self.issued_at.saturating_add(Duration::from_secs(self.ttl_s))
    }
}

/// Names a request and judges its age. What a compensation compensates must be a key.
pub fn validate(envelope: Envelope, now: UnixMs) -> Result<Valid, Refusal> {
    if envelope.operation == COMPENSATE {
        compensated(&envelope)?;
    }
    let early = now.saturating_add(CLOCK_AHEAD_MAX) < envelope.issued_at;
    let late = envelope.fresh_until() < now;
    Ok(Valid {
        logical_request_key: LogicalRequestKey::of(&envelope),
        replay_key: ReplayKey::of(&envelope),
        time: if early || late { Time::Stale } else { Time::Fresh },
        envelope,
    })
}

/// The effect that a compensation is of.
pub fn compensated(envelope: &Envelope) -> Result<LogicalRequestKey, Refusal> {
    let key = Hex::parse(&envelope.canonical_target).map(LogicalRequestKey);
    key.map_err(|refusal| {
        let detail = format!("of a compensation {}", refusal.detail);
        Refusal::at(Code::InvalidField, "/envelope/canonical_target", detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"protocol_version":1,"domain":"deploys","operation":"deploy",
        "canonical_target":"prod/web","artifact_hash":"HASH","owner_binding":"team-web",
        "run_id":"r1","issued_at":"2027-01-15T08:00:00.000Z","ttl_s":60}"#;

    fn text() -> String {
        TEXT.replace("HASH", &"ab".repeat(32))
    }

    fn envelope() -> Envelope {
        Envelope::parse(text().as_bytes()).expect("an envelope")
    }

    #[test]
    fn a_time_is_the_same_in_every_spelling() {
        for spelling in ["Z", ".0Z", "+00:00"] {
            let text = text().replace(".000Z", spelling);
            assert_eq!(Envelope::parse(text.as_bytes()), Ok(envelope()), "{spelling}");
        }
    }

    #[test]
    fn a_document_is_read_strictly() {
        let envelope = envelope();
        let again = Envelope::parse(envelope.to_json().to_string().as_bytes());
        assert_eq!(again, Ok(envelope));
        let refused = |from: &str, to: &str| {
            let changed = text().replace(from, to);
            assert_ne!(changed, text());
            let refusal = Envelope::parse(changed.as_bytes()).expect_err(to);
            (refusal.code, refusal.pointer)
        };
        let at = |code, pointer: &str| (code, pointer.to_owned());
        assert_eq!(
            refused("_version\":1", "_version\":2"),
            at(Code::InvalidField, "/protocol_version")
        );
        assert_eq!(refused("\"domain\":\"deploys\",", ""), at(Code::MissingField, "/domain"));
        assert_eq!(refused("\"ttl_s\":60", "\"ttl_s\":0"), at(Code::InvalidField, "/ttl_s"));
        assert_eq!(refused("\"ttl_s\":60", "\"ttl_s\":60,\"x\":1"), at(Code::UnknownField, "/x"));
        assert_eq!(
            refused("\"ttl_s\":60", "\"ttl_s\":60,\"ttl_s\":60"),
            at(Code::DuplicateKey, "/ttl_s")
        );
        assert_eq!(refused(".000Z", ".0001Z"), at(Code::InvalidField, "/issued_at"));
        assert_eq!(refused("team-web", ""), at(Code::InvalidField, "/owner_binding"));
        assert_eq!(refused("abab", "ABAB"), at(Code::InvalidField, "/artifact_hash"));
    }

    #[test]
    fn freshness_ends_with_the_ttl_and_begins_a_little_early() {
        let envelope = envelope();
        let at = |ms: i64| {
            let now = UnixMs(envelope.issued_at.0 + ms);
            validate(envelope.clone(), now).expect("valid").time
        };
        for (ms, time) in [
            (0, Time::Fresh),
            (60_000, Time::Fresh),
            (60_001, Time::Stale),
            (-300_000, Time::Fresh),
            (-300_001, Time::Stale),
        ] {
            assert_eq!(at(ms), time, "{ms}");
        }
    }

    #[test]
    fn a_compensation_names_a_key() {
        let mut envelope = envelope();
        envelope.operation = COMPENSATE.to_owned();
        let refusal = validate(envelope.clone(), envelope.issued_at).expect_err("no key");
        assert_eq!(refusal.pointer, "/envelope/canonical_target");
        envelope.canonical_target = "cd".repeat(32);
        assert!(validate(envelope.clone(), envelope.issued_at).is_ok());
    }

    #[test]
    fn the_time_of_a_request_is_not_part_of_its_names() {
        let (one, mut other) = (envelope(), envelope());
        other.issued_at = UnixMs(0);
        other.ttl_s = 1;
        assert_eq!(ReplayKey::of(&one), ReplayKey::of(&other));
        other.run_id = "r2".to_owned();
        assert_ne!(ReplayKey::of(&one), ReplayKey::of(&other));
        assert_eq!(LogicalRequestKey::of(&one), LogicalRequestKey::of(&other));
    }
}

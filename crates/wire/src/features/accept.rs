//! The daemon's decision: does this broker offer what is needed (mesh.md §8)?

use semel_core::limits::DEDUPE_RETENTION_DAYS_MIN;
use semel_core::max_age::DedupeWindow;
use serde_json::Value;

use super::{
    CONCURRENT_EPOCHS_MIN, ConnectionPolicy, Dedupe, FEATURE_VERSION, Feature, FeatureRefusal,
    Ignored, MaxPayload, Negotiated, PAYLOAD_BYTES_MIN,
};
use crate::close::CloseKind;
use crate::frame::{FeatureNegotiationResponse, FeatureParams};

/// What is wrong with a bit.
struct Fault {
    kind: CloseKind,
    detail: String,
}

/// Judges the broker's response. A required bit that is absent or unusable is a refusal; an
/// optional one is done without, and an optional parameter falls back, both with a note.
pub fn accept(
    required: &[&str],
    response: &FeatureNegotiationResponse,
) -> Result<Negotiated, FeatureRefusal> {
    // The order of `required` decides which refusal is told when there are several.
    for bit in required {
        let listed = response.missing_required.iter().any(|missing| missing == bit);
        if listed || !response.supported.contains_key(*bit) {
            return Err(refusal(bit, unavailable("the broker does not offer it")));
        }
        let Some(feature) = Feature::parse(bit) else {
            return Err(refusal(bit, unavailable("this daemon does not know it")));
        };
        read(feature, response, &mut Negotiated::default()).map_err(|fault| refusal(bit, fault))?;
    }
    let mut negotiated = Negotiated::default();
    for feature in Feature::ALL {
        if let Err(Fault { kind, detail }) = read(*feature, response, &mut negotiated) {
            let detail = format!("{kind}: {detail}; going on without it");
            negotiated.ignored.push(Ignored { feature: *feature, detail });
        }
    }
    Ok(negotiated)
}

/// Reads one bit into `into`; a bit that is not offered changes nothing.
fn read(
    feature: Feature,
    response: &FeatureNegotiationResponse,
    into: &mut Negotiated,
) -> Result<(), Fault> {
    let Some(params) = response.supported.get(feature.as_str()) else { return Ok(()) };
    let params = Params { feature, params };
    match params.get("version").map(Value::as_u64) {
        Some(Some(FEATURE_VERSION)) => {}
        Some(_) => return Err(invalid("version is not 1")),
        None => return Err(invalid("version is missing")),
    }
    match feature {
        Feature::ClientMessageIdDedupe => into.dedupe = Some(dedupe(&params, &mut into.ignored)?),
        Feature::ConcurrentConnectionPolicy => {
            into.connection_policy = Some(policy(&params, &mut into.ignored));
        }
        Feature::MemberKeypairRotatedEvent => into.member_keypair_rotated_event = true,
        Feature::KeyEpoch => {
            let least = CONCURRENT_EPOCHS_MIN.into();
            let epochs = params.at_least("max_concurrent_epochs", least)?;
            into.max_concurrent_epochs = Some(u32::try_from(epochs).unwrap_or(u32::MAX));
        }
        Feature::MaxPayload => {
            into.max_payload = Some(MaxPayload {
                inline_bytes: params.at_least("inline_bytes", PAYLOAD_BYTES_MIN)?,
                blob_bytes: params.at_least("blob_bytes", PAYLOAD_BYTES_MIN)?,
            });
        }
    }
    Ok(())
}

fn dedupe(params: &Params<'_>, ignored: &mut Vec<Ignored>) -> Result<Dedupe, Fault> {
    match params.get("request_fingerprint") {
        Some(Value::Bool(true)) => {}
        Some(_) => return Err(invalid("request_fingerprint is not true")),
        None => return Err(invalid("request_fingerprint is missing")),
    }
    let window = match params.get("mode").map(Value::as_str) {
        Some(Some("permanent")) => DedupeWindow::Permanent,
        Some(Some("retention_scoped")) => {
            let least = DEDUPE_RETENTION_DAYS_MIN.into();
            let days = params.at_least("dedupe_retention_days", least)?;
            DedupeWindow::RetentionScoped { days: u32::try_from(days).unwrap_or(u32::MAX) }
        }
        Some(_) => return Err(invalid("mode is neither retention_scoped nor permanent")),
        None => return Err(invalid("mode is missing")),
    };
    let name = "tombstone_history_pruned_window_days";
    let tombstone_history_pruned_window_days = params.get(name).and_then(|value| {
        let days = value.as_u64().and_then(|days| u32::try_from(days).ok());
        if days.is_none() {
            ignored.push(params.ignore(&format!("{name} is not a number of days")));
        }
        days
    });
    Ok(Dedupe { window, tombstone_history_pruned_window_days })
}

fn policy(params: &Params<'_>, ignored: &mut Vec<Ignored>) -> ConnectionPolicy {
    let default = ConnectionPolicy::PreferNewest;
    let Some(value) = params.get("default_policy") else { return default };
    value.as_str().and_then(ConnectionPolicy::parse).unwrap_or_else(|| {
        ignored.push(params.ignore(&format!("default_policy is unknown; {default} holds")));
        default
    })
}

/// The parameters of one bit.
struct Params<'a> {
    feature: Feature,
    params: &'a FeatureParams,
}

impl<'a> Params<'a> {
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.params.get(name)
    }

    /// A whole number is well-formed; it is then below the floor or good.
    fn at_least(&self, name: &str, least: u64) -> Result<u64, Fault> {
        let value = self.get(name).ok_or_else(|| invalid(&format!("{name} is missing")))?;
        let is_negative = value.as_i64().is_some_and(|number| number < 0);
        match value.as_u64() {
            Some(number) if number >= least => Ok(number),
            None if !is_negative => Err(invalid(&format!("{name} is not a whole number"))),
            Some(_) | None => Err(Fault {
                kind: CloseKind::FeatureParamBelowFloor,
                detail: format!("{name} is {value}, at least {least} is needed"),
            }),
        }
    }

    fn ignore(&self, detail: &str) -> Ignored {
        Ignored { feature: self.feature, detail: detail.to_owned() }
    }
}

fn unavailable(detail: &str) -> Fault {
    Fault { kind: CloseKind::FeatureUnavailable, detail: detail.to_owned() }
}

fn invalid(detail: &str) -> Fault {
    Fault { kind: CloseKind::FeatureParamInvalid, detail: detail.to_owned() }
}

fn refusal(bit: &str, fault: Fault) -> FeatureRefusal {
    FeatureRefusal { kind: fault.kind, feature: bit.to_owned(), detail: fault.detail }
}

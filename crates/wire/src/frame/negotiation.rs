//! What a daemon needs and what a broker offers (mesh.md §8), as they travel. What they mean is
//! in [`crate::features`].

use std::collections::BTreeMap;

use semel_core::code::Code;
use semel_core::refusal::Refusal;
use serde_json::{Map, Value};

use crate::codec::{Field, Fields, Object, Record, invalid, under};
use crate::limits::{FEATURES_MAX, NAME_BYTES_MAX};

/// The parameters of one feature bit, by name.
pub type FeatureParams = BTreeMap<String, Value>;

/// Which features the daemon needs, and which it would use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeatureNegotiationRequest {
    /// Without these it closes.
    pub require: Vec<String>,
    /// Without these it goes on.
    pub optional: Vec<String>,
}

impl Record for FeatureNegotiationRequest {
    fn read(fields: &mut Fields) -> Result<Self, Refusal> {
        Ok(Self {
            require: fields.names("require", FEATURES_MAX, NAME_BYTES_MAX)?,
            optional: fields.names("optional", FEATURES_MAX, NAME_BYTES_MAX)?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put_list("require", &self.require);
        object.put_list("optional", &self.optional);
    }
}

/// What the broker offers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FeatureNegotiationResponse {
    /// By bit, with its parameters.
    pub supported: BTreeMap<String, FeatureParams>,
    /// Required bits that the broker does not have.
    pub missing_required: Vec<String>,
}

impl Record for FeatureNegotiationResponse {
    fn read(fields: &mut Fields) -> Result<Self, Refusal> {
        Ok(Self {
            supported: fields.take::<Supported>("supported")?.0,
            missing_required: fields.names("missing_required", FEATURES_MAX, NAME_BYTES_MAX)?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        write_supported(&self.supported, object.key("supported"));
        object.put_list("missing_required", &self.missing_required);
    }
}

/// Bits and parameters are names that a later broker may add to, so they are no fields of a frame.
struct Supported(BTreeMap<String, FeatureParams>);

impl Field for Supported {
    fn read(value: Value) -> Result<Self, Refusal> {
        let mut bits = BTreeMap::new();
        for (bit, params) in object(value)? {
            let read = object(params).map_err(|refusal| under(&bit, refusal))?;
            bits.insert(bit, read.into_iter().collect());
        }
        Ok(Self(bits))
    }

    fn write(&self, out: &mut String) {
        write_supported(&self.0, out);
    }
}

fn object(value: Value) -> Result<Map<String, Value>, Refusal> {
    let Value::Object(map) = value else { return Err(invalid("must be an object")) };
    if map.len() > FEATURES_MAX {
        let detail = format!("has {} names, {FEATURES_MAX} are allowed", map.len());
        return Err(Refusal::new(Code::InvalidField, detail));
    }
    match map.keys().find(|name| name.is_empty() || name.len() > NAME_BYTES_MAX) {
        None => Ok(map),
        Some(_) => Err(invalid("has a name that is empty or too long")),
    }
}

fn write_supported(bits: &BTreeMap<String, FeatureParams>, out: &mut String) {
    let bits = bits.iter().map(|(bit, params)| {
        let params = params.iter().map(|(name, value)| (name.clone(), value.clone()));
        (bit.clone(), Value::Object(params.collect()))
    });
    out.push_str(&Value::Object(bits.collect()).to_string());
}

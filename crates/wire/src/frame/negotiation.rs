//! What a daemon needs and what a broker offers (mesh.md §8), as they travel. What they mean is
//! in [`crate::features`].

use std::borrow::Cow;
use std::collections::BTreeMap;

use semel_core::code::Code;
use semel_core::json::Node;
use semel_core::refusal::Refusal;
use serde_json::Value;

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
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
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
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
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
    fn read(node: Node<'_>) -> Result<Self, Refusal> {
        let mut bits = BTreeMap::new();
        for (bit, params) in object(node)? {
            let read = object(params).map_err(|refusal| under(&bit, refusal))?;
            let read = read.into_iter().map(|(name, node)| (name.into_owned(), node.into()));
            bits.insert(bit.into_owned(), read.collect());
        }
        Ok(Self(bits))
    }

    fn write(&self, out: &mut String) {
        write_supported(&self.0, out);
    }
}

fn object(node: Node<'_>) -> Result<Vec<(Cow<'_, str>, Node<'_>)>, Refusal> {
    let Node::Object(named) = node else { return Err(invalid("must be an object")) };
    if named.len() > FEATURES_MAX {
        let detail = format!("has {} names, {FEATURES_MAX} are allowed", named.len());
        return Err(Refusal::new(Code::InvalidField, detail));
    }
    match named.iter().find(|(name, _)| name.is_empty() || name.len() > NAME_BYTES_MAX) {
        None => Ok(named),
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

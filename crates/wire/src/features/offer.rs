//! What a broker offers to the daemons of one mesh.

use std::collections::BTreeMap;

use semel_core::max_age::DedupeWindow;
use serde_json::Value;

use super::{ConnectionPolicy, Dedupe, FEATURE_VERSION, Feature, MaxPayload};
use crate::frame::{FeatureNegotiationRequest, FeatureNegotiationResponse, FeatureParams};

/// The policies of a mesh, as features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// How long ids are remembered; the rows themselves live a day longer.
    pub dedupe: Dedupe,
    /// What happens when a member connects twice.
    pub connection_policy: ConnectionPolicy,
    /// Epochs that a topic may have at a time.
    pub max_concurrent_epochs: u32,
    /// How large bodies may be.
    pub max_payload: MaxPayload,
}

impl Offer {
    /// Answers a request: the bits that it asks for, and which of the required ones there are not.
    pub fn respond(&self, request: &FeatureNegotiationRequest) -> FeatureNegotiationResponse {
        let asked = request.require.iter().chain(&request.optional);
        let known = asked.filter_map(|bit| Feature::parse(bit));
        let missing = request.require.iter().filter(|bit| Feature::parse(bit).is_none());
        FeatureNegotiationResponse {
            supported: known.map(|bit| (bit.as_str().to_owned(), self.params(bit))).collect(),
            missing_required: missing.cloned().collect(),
        }
    }

    fn params(&self, feature: Feature) -> FeatureParams {
        let mut params = BTreeMap::new();
        let mut set = |name: &str, value: Value| params.insert(name.to_owned(), value);
        set("version", FEATURE_VERSION.into());
        match feature {
            Feature::ClientMessageIdDedupe => {
                set("request_fingerprint", true.into());
                match self.dedupe.window {
                    DedupeWindow::Permanent => {
                        set("mode", "permanent".into());
                    }
                    DedupeWindow::RetentionScoped { days } => {
                        set("mode", "retention_scoped".into());
                        set("dedupe_retention_days", days.into());
                    }
                }
                if let Some(days) = self.dedupe.tombstone_history_pruned_window_days {
                    set("tombstone_history_pruned_window_days", days.into());
                }
            }
            Feature::ConcurrentConnectionPolicy => {
                set("default_policy", self.connection_policy.as_str().into());
            }
            Feature::MemberKeypairRotatedEvent => {}
            Feature::KeyEpoch => {
                set("max_concurrent_epochs", self.max_concurrent_epochs.into());
            }
            Feature::MaxPayload => {
                set("inline_bytes", self.max_payload.inline_bytes.into());
                set("blob_bytes", self.max_payload.blob_bytes.into());
            }
        }
        params
    }
}

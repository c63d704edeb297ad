//! What a gear may have done by jobs of its own, in the operator's name (jobs.md §8). A manifest
//! declares it, nothing is allowed by default, and whoever installs the gear is shown it in words.

use serde::{Deserialize, Serialize};

use crate::limits::NAME_BYTES_MAX;

/// The actions and the receivers that a manifest declares.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grants {
    /// Actions: `gear.action`, `gear.*` or `*`.
    pub sub_jobs: Vec<String>,
    /// Receivers of messages: `#topic`, `@name`, a member's key, or `*`.
    pub publish: Vec<String>,
}

impl Grants {
    /// Of a gear that declares nothing.
    pub const NONE: &Self = &Self { sub_jobs: Vec::new(), publish: Vec::new() };

    /// As a store keeps them.
    pub(crate) fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// From a store; nothing when it is no such document.
    pub(crate) fn of_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Whether a sub-job may have a step with this action.
    pub fn has_action(&self, gear: &str, action: &str) -> bool {
        self.sub_jobs.iter().any(|pattern| names_action(pattern, gear, action))
    }

    /// Whether a sub-job may have any step at all: nobody knows yet what a planner makes of words.
    pub fn has_all_actions(&self) -> bool {
        self.sub_jobs.iter().any(|pattern| pattern == "*")
    }

    /// Whether a sub-job may send a message there.
    pub fn has_receiver(&self, receiver: &str) -> bool {
        self.publish.iter().any(|declared| declared == "*" || declared == receiver)
    }
}

/// Whether a text is `gear.action`, `gear.*` or `*`; any other would name nothing.
pub(crate) fn is_pattern(pattern: &str) -> bool {
    let part = |text: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        text == "*" || (!text.is_empty() && text.bytes().all(plain))
    };
    let parts = pattern.split_once('.');
    let named = parts.is_some_and(|(gear, action)| gear != "*" && part(gear) && part(action));
    pattern.len() <= NAME_BYTES_MAX && (named || pattern == "*")
}

/// Whether `gear.action`, `gear.*` or `*` names an action.
pub(crate) fn names_action(pattern: &str, gear: &str, action: &str) -> bool {
    match pattern.split_once('.') {
        Some((named, "*")) => named == gear,
        Some((named, name)) => (named, name) == (gear, action),
        None => pattern == "*",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_declared() {
        let grants = Grants {
            sub_jobs: vec!["http.request".to_owned(), "mesh.*".to_owned()],
            publish: vec!["#news".to_owned()],
        };
        for (gear, action, allowed) in [
            ("http", "request", true),
            ("http", "other", false),
            ("mesh", "send", true),
            ("meshes", "send", false),
            ("shell", "run", false),
        ] {
            assert_eq!(grants.has_action(gear, action), allowed, "{gear}.{action}");
            assert!(!Grants::NONE.has_action(gear, action));
        }
        assert!(grants.has_receiver("#news") && !grants.has_receiver("@news"));
        assert!(!grants.has_all_actions() && !Grants::NONE.has_receiver("#news"));
        let all = Grants { sub_jobs: vec!["*".to_owned()], publish: vec!["*".to_owned()] };
        assert_eq!(Grants::of_json(&all.to_json()), Some(all.clone()));
        assert!(all.has_action("a", "b") && all.has_receiver("@any") && all.has_all_actions());
    }
}

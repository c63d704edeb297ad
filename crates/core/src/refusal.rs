//! A refusal: the request is malformed or not allowed, nothing was decided and nothing written.

use crate::code::Code;

/// Why a request was refused, and where in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}{}", Place(pointer))]
pub struct Refusal {
    /// What kind of refusal.
    pub code: Code,
    /// JSON pointer (RFC 6901) to the offending place; empty for the document as a whole.
    pub pointer: String,
    /// One sentence for a person: lower-case, no full stop.
    pub detail: String,
}

impl Refusal {
    /// A refusal of the request as a whole.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, pointer: String::new(), detail: detail.into() }
    }

    /// A refusal of one field, named by JSON pointer.
    pub fn at(code: Code, pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { code, pointer: pointer.into(), detail: detail.into() }
    }
}

/// Appends ` (at /meta/a)` where there is a place to name.
struct Place<'a>(&'a str);

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " (at {})", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_code_sentence_and_place() {
        let refusal = Refusal::at(Code::DuplicateKey, "/meta/a", "this key was given twice");
        assert_eq!(refusal.to_string(), "duplicate_key: this key was given twice (at /meta/a)");
        let refusal = Refusal::new(Code::InvalidJson, "the document is empty");
        assert_eq!(refusal.to_string(), "invalid_json: the document is empty");
    }
}

//! The bytes that are signed: a label and fields, each with its length in front. The lengths make
//! the join unambiguous (no two lists of fields give the same bytes), and the label keeps a
//! signature made for one purpose from being used for another.

/// A growing list of fields.
pub(crate) struct SignedBytes(Vec<u8>);

impl SignedBytes {
    /// Begins with the label of the purpose.
    pub(crate) fn new(label: &str) -> Self {
        Self(Vec::new()).field(label.as_bytes())
    }

    /// Adds a field: its length in four bytes, the highest first, and its bytes.
    pub(crate) fn field(mut self, bytes: &[u8]) -> Self {
        // No field comes near four gigabytes; one that did would be signed as another one, which
        // no verifier accepts for the first.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&length.to_be_bytes());
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cannot_flow_into_each_other() {
        let of = |fields: &[&str]| {
            let start = SignedBytes::new("l");
            fields.iter().fold(start, |all, field| all.field(field.as_bytes())).into_bytes()
        };
        assert_eq!(of(&["ab"]), b"\0\0\0\x01l\0\0\0\x02ab");
        let lists: [&[&str]; 5] =
            [&["ab", "c"], &["a", "bc"], &["abc"], &["abc", ""], &["", "abc"]];
        for (index, one) in lists.iter().enumerate() {
            for other in &lists[index + 1..] {
                assert_ne!(of(one), of(other));
            }
        }
    }
}

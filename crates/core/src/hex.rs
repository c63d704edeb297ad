//! Byte strings of a fixed length as lower-case hexadecimal text: keys, nonces, signatures. One
//! value has one spelling, so two texts are equal iff the bytes are.

use std::fmt;

use crate::code::Code;
use crate::refusal::Refusal;

/// `N` bytes, written as `2 * N` lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hex<const N: usize>(pub [u8; N]);

impl<const N: usize> Hex<N> {
    /// Reads exactly `2 * N` lower-case digits.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let refuse = || {
            let detail = format!("must be {} lower-case hexadecimal digits", 2 * N);
            Refusal::new(Code::InvalidField, detail)
        };
        let digits = text.as_bytes();
        if digits.len() != 2 * N {
            return Err(refuse());
        }
        let mut bytes = [0; N];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let (high, low) = (nibble(pair[0]), nibble(pair[1]));
            let (Some(high), Some(low)) = (high, low) else { return Err(refuse()) };
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

/// Any bytes as lower-case digits.
pub fn text(bytes: &[u8]) -> String {
    let pairs: Vec<[u8; 2]> = bytes.iter().map(|byte| PAIRS[usize::from(*byte)]).collect();
    // Digits are text.
    String::from_utf8(pairs.into_flattened()).unwrap_or_default()
}

/// The digits of each byte, for whoever needs no text.
pub fn pairs<const N: usize>(bytes: [u8; N]) -> [[u8; 2]; N] {
    bytes.map(|byte| PAIRS[usize::from(byte)])
}

/// Every byte as its two digits.
const PAIRS: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let (mut pairs, mut byte) = ([[0; 2]; 256], 0);
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 0xf]];
        byte += 1;
    }
    pairs
};

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl<const N: usize> fmt::Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&self.0))
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_has_one_spelling() {
        let hex = Hex::<4>::parse("00ff10ab").unwrap();
        assert_eq!(hex.0, [0x00, 0xff, 0x10, 0xab]);
        assert_eq!(hex.to_string(), "00ff10ab");
        for bad in ["", "00ff10a", "00ff10abc", "00FF10AB", "00ff10ag", "00ff10é", "0x00ff10"] {
            let refusal = Hex::<4>::parse(bad).expect_err(bad);
            assert_eq!(refusal.code, Code::InvalidField, "{bad:?}");
        }
    }
}

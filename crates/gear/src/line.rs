//! A line: `<number> <code> <document>\n`. The code is HMAC-SHA256 under the process's key over the
//! direction, the number and the raw bytes of the document, so that a line that was made up,
//! changed, repeated, left out, moved or sent back to its sender is not believed (trap 36). Nothing
//! of a document is looked at before that.

use std::io::{self, BufRead, Read};

use hmac::{Hmac, KeyInit, Mac};
use semel_core::hex::Hex;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::limits::{DOCUMENT_BYTES_MAX, LINE_BYTES_MAX};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The host.
    ToGear,
    /// The gear.
    FromGear,
}

impl Direction {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::ToGear => b"semel gear 1 to\0",
            Self::FromGear => b"semel gear 1 from\0",
        }
    }
}

/// The key of one process.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; 32]>);

impl Key {
    /// A key of these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    fn code(&self, direction: Direction, number: u64, document: &[u8]) -> Option<Hmac<Sha256>> {
        // A key of any length is fine; there is no error to meet.
        let mut code = Hmac::<Sha256>::new_from_slice(&*self.0).ok()?;
        code.update(direction.label());
        code.update(&number.to_be_bytes());
        code.update(document);
        Some(code)
    }
}

/// Why a line is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// Longer than any line may be.
    #[error("a line has more than {LINE_BYTES_MAX} bytes")]
    Oversized,
    /// Not `<number> <code> <document>`.
    #[error("a line is not a number, a code and a document")]
    Malformed,
    /// Repeated, left out or moved.
    #[error("line {found} came where line {expected} was due")]
    OutOfOrder {
        /// Which one was due.
        expected: u64,
        /// Which one came.
        found: u64,
    },
    /// Made up, changed or sent back.
    #[error("the code of line {number} is wrong")]
    Forged {
        /// Which one.
        number: u64,
    },
    /// The code is right, and yet the document is none of the protocol.
    #[error("line {number} is not a message of the protocol")]
    Unknown {
        /// Which one.
        number: u64,
    },
}

/// Writes the lines of one direction.
pub struct Signer {
    key: Key,
    direction: Direction,
    next: u64,
}

impl Signer {
    /// The first line has the number 0.
    pub fn new(key: Key, direction: Direction) -> Self {
        Self { key, direction, next: 0 }
    }

    /// The next line. `None` when the document is too long or has a line's end in it; then no
    /// number is used up.
    pub fn line(&mut self, document: &str) -> Option<Vec<u8>> {
        if document.len() > DOCUMENT_BYTES_MAX || document.contains('\n') {
            return None;
        }
        let code = self.key.code(self.direction, self.next, document.as_bytes())?;
        let code = Hex::<32>(code.finalize().into_bytes().into());
        let line = format!("{} {code} {document}\n", self.next).into_bytes();
        self.next += 1;
        Some(line)
    }
}

/// Checks the lines of one direction.
pub struct Verifier {
    key: Key,
    direction: Direction,
    next: u64,
}

impl Verifier {
    /// The first line has the number 0.
    pub fn new(key: Key, direction: Direction) -> Self {
        Self { key, direction, next: 0 }
    }

    /// The document of a line without its end. After a breach nothing more is to be believed.
    pub fn document<'a>(&mut self, line: &'a [u8]) -> Result<&'a str, Breach> {
        if line.len() >= LINE_BYTES_MAX {
            return Err(Breach::Oversized);
        }
        let line = std::str::from_utf8(line).map_err(|_| Breach::Malformed)?;
        let (number, rest) = line.split_once(' ').ok_or(Breach::Malformed)?;
        let (code, document) = rest.split_once(' ').ok_or(Breach::Malformed)?;
        let found = plain_number(number).ok_or(Breach::Malformed)?;
        let code = Hex::<32>::parse(code).map_err(|_| Breach::Malformed)?;
        // The code first: what a stranger writes says nothing about order either.
        let expected = self.key.code(self.direction, found, document.as_bytes());
        let proven = expected.is_some_and(|expected| expected.verify_slice(&code.0).is_ok());
        if !proven {
            return Err(Breach::Forged { number: found });
        }
        if found != self.next {
            return Err(Breach::OutOfOrder { expected: self.next, found });
        }
        self.next += 1;
        Ok(document)
    }

    /// The number of the line that was believed last.
    pub fn last(&self) -> u64 {
        self.next.saturating_sub(1)
    }
}

/// One number has one spelling.
fn plain_number(text: &str) -> Option<u64> {
    let plain = text == "0" || !text.starts_with('0');
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain && digits)
}

/// Reads a line without its end and no more than a line may have; `None` at the end. A line that is
/// cut off by the end is malformed.
pub fn read_line(from: &mut impl BufRead) -> io::Result<Option<Result<Vec<u8>, Breach>>> {
    let mut line = Vec::new();
    let limit = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
    from.take(limit).read_until(b'\n', &mut line)?;
    Ok(match line.pop() {
        None => None,
        Some(b'\n') => Some(Ok(line)),
        Some(_) if line.len() + 1 == LINE_BYTES_MAX => Some(Err(Breach::Oversized)),
        Some(_) => Some(Err(Breach::Malformed)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Signer, Verifier) {
        let key = Key::new([7; 32]);
        let signer = Signer::new(key.clone(), Direction::FromGear);
        (signer, Verifier::new(key, Direction::FromGear))
    }

    fn line(signer: &mut Signer, document: &str) -> Vec<u8> {
        let mut line = signer.line(document).expect("a line");
        assert_eq!(line.pop(), Some(b'\n'));
        line
    }

    #[test]
    fn lines_in_order_are_believed() {
        let (mut signer, mut verifier) = pair();
        for document in ["{}", "", "{\"a\": \"ä b\"}"] {
            let line = line(&mut signer, document);
            assert_eq!(verifier.document(&line), Ok(document));
        }
    }

    #[test]
    fn a_repeated_a_skipped_and_a_moved_line_are_refused() {
        let (mut signer, mut verifier) = pair();
        let lines: Vec<_> = (0..3).map(|_| line(&mut signer, "{}")).collect();
        let early = verifier.document(&lines[1]);
        assert_eq!(early, Err(Breach::OutOfOrder { expected: 0, found: 1 }));
        assert_eq!(verifier.document(&lines[0]), Ok("{}"));
        let again = verifier.document(&lines[0]);
        assert_eq!(again, Err(Breach::OutOfOrder { expected: 1, found: 0 }));
        let skipped = verifier.document(&lines[2]);
        assert_eq!(skipped, Err(Breach::OutOfOrder { expected: 1, found: 2 }));
    }

    #[test]
    fn a_line_that_comes_back_is_refused() {
        let (_, mut verifier) = pair();
        let mut host = Signer::new(Key::new([7; 32]), Direction::ToGear);
        let reflected = line(&mut host, "{}");
        assert_eq!(verifier.document(&reflected), Err(Breach::Forged { number: 0 }));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let (mut signer, mut verifier) = pair();
        let good = line(&mut signer, "{\"type\":\"log\"}");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(verifier.document(&bad).is_err(), "byte {at}");
        }
        let unsigned = format!("0 {} {{}}", "0".repeat(64));
        assert_eq!(verifier.document(unsigned.as_bytes()), Err(Breach::Forged { number: 0 }));
        for malformed in ["", "{}", "0", "0 {}", "x {} {}", "0  {}"] {
            assert_eq!(verifier.document(malformed.as_bytes()), Err(Breach::Malformed));
        }
        for other in ["00", "+0", "-0", " 0"] {
            let spelled = [other.as_bytes(), &good[1..]].concat();
            assert_eq!(verifier.document(&spelled), Err(Breach::Malformed), "{other}");
        }
        assert!(verifier.document(&good).is_ok());
    }

    #[test]
    fn a_line_is_read_with_a_bound() {
        let long = vec![b'x'; 3 * LINE_BYTES_MAX];
        let read = read_line(&mut long.as_slice()).expect("no input fails");
        assert_eq!(read, Some(Err(Breach::Oversized)));
        let read = read_line(&mut b"cut".as_slice()).expect("no input fails");
        assert_eq!(read, Some(Err(Breach::Malformed)));
        assert_eq!(read_line(&mut b"".as_slice()).expect("no input fails"), None);
        let (mut signer, mut verifier) = pair();
        let largest = "x".repeat(DOCUMENT_BYTES_MAX);
        let written = signer.line(&largest).expect("as long as it may be");
        let read = read_line(&mut written.as_slice()).expect("no input fails");
        let read = read.expect("a line").expect("not too long");
        assert_eq!(verifier.document(&read), Ok(largest.as_str()));
        assert!(signer.line(&"x".repeat(DOCUMENT_BYTES_MAX + 1)).is_none());
        assert!(signer.line("a\nb").is_none());
    }

    proptest::proptest! {
        #[test]
        fn nothing_unsigned_is_believed(bytes in proptest::collection::vec(0_u8..=255, 0..300)) {
            let (_, mut verifier) = pair();
            assert!(verifier.document(&bytes).is_err());
        }
    }
}

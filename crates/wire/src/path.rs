//! Names as segments of a path: everything but the unreserved characters of RFC 3986 is
//! percent-encoded, so that `a/b` is one name.

/// A name as one segment.
pub fn encode(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The name that a segment stands for; nothing when an escape is broken or it is not UTF-8.
pub fn decode(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let (high, low) = (digit(*after.first()?)?, digit(*after.get(1)?)?);
            bytes.push(high << 4 | low);
            rest = after.get(2..)?;
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_and_their_segments() {
        for (name, segment) in [
            ("builds", "builds"),
            ("a/b", "a%2Fb"),
            ("o'brien'); --", "o%27brien%27%29%3B%20--"),
            ("ü", "%C3%BC"),
            ("100%", "100%25"),
            ("..", ".."),
        ] {
            assert_eq!(encode(name), segment);
            assert_eq!(decode(segment).as_deref(), Some(name));
        }
        assert_eq!(decode("a%2fb").as_deref(), Some("a/b"));
        for broken in ["%", "%2", "%zz", "%ff", "a%", "%2\u{fc}"] {
            assert_eq!(decode(broken), None, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn reads_what_it_writes(name in "\\PC{0,32}") {
            let decoded = decode(&encode(&name));
            prop_assert_eq!(decoded, Some(name));
        }
    }
}

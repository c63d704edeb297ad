//! What stands behind the `?` of a server's address. Some of it is ours and unknown to the driver
//! that reads the rest: how the server is trusted, and whether plain text is allowed.

use crate::tls::{Pem, Trust};

/// Consent to plain text with another machine; others can read and change everything on the way.
const ALLOW_PLAIN: &str = "insecure_allow_plain";

/// An address without our parameters, and these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// What is left for the driver. It may hold a password.
    pub address: String,
    /// `sslmode`.
    pub mode: Option<String>,
    /// `sslrootcert`, `sslcert` and `sslkey`.
    pub pem: Pem,
    /// Whether somebody has said that plain text may go to other machines.
    pub allow_plain: bool,
}

impl Parameters {
    /// Takes what is ours out of the address. The error says what is wrong in words that hold
    /// nothing of the address: a password may stand anywhere in it.
    pub fn of(address: &str) -> Result<Self, &'static str> {
        let (front, query) = address.split_once('?').unwrap_or((address, ""));
        if query.contains('@') {
            return Err("has an @ behind its ?; in a user or password, ? is written %3F, \
                        @ %40, / %2F and % %25");
        }
        let (mut left, mut allow_plain) = (Vec::new(), None);
        let mut found =
            Self { address: String::new(), mode: None, pem: Pem::default(), allow_plain: false };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or("has a parameter without a value")?;
            // The driver decodes names, too: one that is spelled otherwise is not its own.
            match decoded(key)?.as_str() {
                "sslmode" => set(&mut found.mode, decoded(value)?)?,
                "sslrootcert" => set(&mut found.pem.trust, trust(decoded(value)?))?,
                "sslcert" => set(&mut found.pem.certificate, decoded(value)?.into())?,
                "sslkey" => set(&mut found.pem.key, decoded(value)?.into())?,
                ALLOW_PLAIN => set(&mut allow_plain, truth(value)?)?,
                _ => left.push(pair),
            }
        }
        found.allow_plain = allow_plain.unwrap_or(false);
        found.address = match left.is_empty() {
            true => front.to_owned(),
            false => format!("{front}?{}", left.join("&")),
        };
        Ok(found)
    }
}

fn set<T>(place: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err("has a parameter twice"),
    }
}

fn trust(text: String) -> Trust {
    match text.as_str() {
        "system" => Trust::System,
        _ => Trust::File(text.into()),
    }
}

fn truth(value: &str) -> Result<bool, &'static str> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("has insecure_allow_plain, which must be true or false"),
    }
}

/// `%41` is `A`.
fn decoded(text: &str) -> Result<String, &'static str> {
    const NONE: &str = "has a % that does not begin a character; % itself is written %25";
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend(parts.next().unwrap_or_default().bytes());
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).ok_or(NONE)?;
        bytes.push(byte);
        bytes.extend(part.bytes().skip(2));
    }
    String::from_utf8(bytes).map_err(|_| NONE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ours_are_taken_out_and_the_others_stay() {
        let found = Parameters::of(
            "postgres://me:pw@h/db?connect_timeout=3&sslmode=verify-full&\
             sslrootcert=/a%20b/ca.pem&options=-c%20a%3Db&sslcert=c&sslkey=k",
        )
        .unwrap();
        assert_eq!(found.address, "postgres://me:pw@h/db?connect_timeout=3&options=-c%20a%3Db");
        assert_eq!(found.mode.as_deref(), Some("verify-full"));
        assert_eq!(found.pem.trust, Some(Trust::File("/a b/ca.pem".into())));
        assert_eq!(found.pem.certificate, Some("c".into()));
        assert_eq!(found.pem.key, Some("k".into()));
        assert!(!found.allow_plain);
        let found = Parameters::of("postgres://h/db?ssl%6dode=require").unwrap();
        assert_eq!(
            (found.address.as_str(), found.mode.as_deref()),
            ("postgres://h/db", Some("require"))
        );
        let found = Parameters::of("redis://h?sslrootcert=system&insecure_allow_plain=true");
        let found = found.unwrap();
        assert_eq!(found.address, "redis://h");
        assert_eq!(found.pem.trust, Some(Trust::System));
        assert!(found.allow_plain);
    }

    #[test]
    fn what_makes_no_sense_is_refused_without_a_word_of_it() {
        for address in [
            "postgres://me:secret?x=1@h/db",
            "postgres://h/db?sslmode=a&sslmode=secret",
            "postgres://h/db?sslrootcert=a&sslrootcert=secret",
            "postgres://h/db?secret",
            "postgres://h/db?insecure_allow_plain=secret",
            "postgres://h/db?sslmode=require&ssl%6dode=secret",
            "postgres://h/db?insecure_allow_plain=false&insecure_allow_plain=true",
            "postgres://h/db?sslcert=%2",
            "postgres://h/db?sslcert=%+1",
            "postgres://h/db?sslcert=%ff",
        ] {
            let why = Parameters::of(address).unwrap_err();
            assert!(!why.contains("secret"), "{address}: {why}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(query in "([a-z]{0,4}[=&%@é+ ]?){0,12}") {
            let _ = Parameters::of(&format!("postgres://h/d?{query}"));
            let _ = decoded(&query);
        }
    }
}

//! The link that an invite travels as: `semel://join/<broker>/<mesh>/<token>`. The broker's URL is
//! base64url without padding, the mesh is percent-encoded, the token is as the broker gave it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use semel_core::code::Code;
use semel_core::refusal::Refusal;

use crate::codec::{check_name, invalid};
use crate::limits::{JOIN_LINK_BYTES_MAX, NAME_BYTES_MAX};
use crate::path;
use crate::place::BrokerPlace;

const PREFIX: &str = "semel://join/";

/// Bytes of a token, before base64url.
pub const TOKEN_BYTES: usize = 32;

/// What somebody needs to join.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinLink {
    /// Where the broker's HTTP API is: `http://…` or `https://…`.
    pub broker_url: String,
    /// The mesh.
    pub mesh: String,
    /// The secret.
    pub token: String,
}

impl JoinLink {
    /// The link.
    pub fn encode(&self) -> String {
        let broker = URL_SAFE_NO_PAD.encode(&self.broker_url);
        format!("{PREFIX}{broker}/{}/{}", path::encode(&self.mesh), self.token)
    }

    /// Reads what [`Self::encode`] writes, and no other spelling.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let refuse = || Refusal::new(Code::InvalidField, "is not a semel://join link");
        if text.len() > JOIN_LINK_BYTES_MAX {
            return Err(refuse());
        }
        let rest = text.strip_prefix(PREFIX).ok_or_else(refuse)?;
        let mut parts = rest.split('/');
        let (Some(broker), Some(mesh), Some(token), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(refuse());
        };
        let broker = URL_SAFE_NO_PAD.decode(broker).map_err(|_| refuse())?;
        let link = Self {
            broker_url: String::from_utf8(broker).map_err(|_| refuse())?,
            mesh: check_name(path::decode(mesh).ok_or_else(refuse)?, NAME_BYTES_MAX)?,
            token: checked_token(token.to_owned())?,
        };
        if link.place().is_err() || link.encode() != text {
            return Err(refuse());
        }
        Ok(link)
    }

    /// Where the broker is.
    pub fn place(&self) -> Result<BrokerPlace, Refusal> {
        BrokerPlace::parse_http(&self.broker_url)
    }
}

/// Debug output goes to logs, and a token must not.
impl std::fmt::Debug for JoinLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinLink")
            .field("broker_url", &self.broker_url)
            .field("mesh", &self.mesh)
            .finish_non_exhaustive()
    }
}

/// A token as text.
pub fn token(bytes: &[u8; TOKEN_BYTES]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A text that can be a token.
pub(crate) fn checked_token(text: String) -> Result<String, Refusal> {
    match URL_SAFE_NO_PAD.decode(&text) {
        Ok(bytes) if bytes.len() == TOKEN_BYTES => Ok(text),
        Ok(_) | Err(_) => Err(invalid("must be 32 bytes in base64url without padding")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn link() -> JoinLink {
        JoinLink {
            broker_url: "https://broker.example:7117".to_owned(),
            mesh: "o'brien'); --/ü".to_owned(),
            token: token(&[7; 32]),
        }
    }

    #[test]
    fn a_link_has_one_spelling() {
        let text = link().encode();
        assert_eq!(
            text,
            "semel://join/aHR0cHM6Ly9icm9rZXIuZXhhbXBsZTo3MTE3/o%27brien%27%29%3B%20--%2F%C3%BC/\
             BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc"
        );
        assert_eq!(JoinLink::parse(&text), Ok(link()));
        for wrong in [
            "",
            "semel://join/",
            "semel://join/a/b/c",
            &text.replace("semel:", "http:"),
            &text.replace("%27", "'"),
            &text.replace("%C3", "%c3"),
            &format!("{text}/"),
            &format!("{text}="),
            &text[..text.len() - 1],
            &text.replace("%2F", "/"),
            &text.replace("%20", "%00"),
            &text.replace("aHR0cHM6Ly9icm9rZXIuZXhhbXBsZTo3MTE3", "aHR0cHM6Ly8"),
            &text.replace("aHR0cHM6Ly9icm9rZXIuZXhhbXBsZTo3MTE3", "ZmlsZTovLy9ldGM"),
            &text.repeat(1000),
        ] {
            assert!(JoinLink::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn its_broker_has_a_plain_address() {
        for broker in ["https://u@a", "http://u:p@a:1", "https://a/path", "https://a?q", "wss://a"]
        {
            let text = JoinLink { broker_url: broker.to_owned(), ..link() }.encode();
            assert!(JoinLink::parse(&text).is_err(), "{broker}");
        }
        let text = JoinLink { broker_url: "https://[::1]:7117/".to_owned(), ..link() }.encode();
        assert_eq!(JoinLink::parse(&text).unwrap().place().unwrap().host(), "::1");
    }

    #[test]
    fn debug_output_holds_no_token() {
        assert!(!format!("{:?}", link()).contains(&link().token));
    }

    proptest! {
        #[test]
        fn reads_what_it_writes(mesh in "[^\\p{Cc}]{1,16}", port in 1u16.., bytes: [u8; 32]) {
            let broker_url = format!("http://127.0.0.1:{port}");
            let link = JoinLink { broker_url, mesh, token: token(&bytes) };
            prop_assert_eq!(JoinLink::parse(&link.encode()), Ok(link));
        }

        #[test]
        fn nothing_makes_it_panic(text in "semel://join/[a-zA-Z0-9%/_-]{0,80}|\\PC{0,80}") {
            let _ = JoinLink::parse(&text);
        }
    }
}

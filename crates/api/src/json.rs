//! Writes JSON answers, field by field and without a tree in between.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use semel_core::clock::UnixMs;
use semel_core::rfc3339;

/// An object that is being written.
pub struct Object<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Object<'a> {
    /// Begins one.
    pub fn open(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    /// Ends it.
    pub fn close(self) {
        self.out.push(b'}');
    }

    fn key(&mut self, name: &str) {
        if !self.first {
            self.out.push(b',');
        }
        self.first = false;
        self.plain_text(name);
        self.out.push(b':');
    }

    fn plain_text(&mut self, text: &str) {
        self.out.push(b'"');
        self.out.extend_from_slice(text.as_bytes());
        self.out.push(b'"');
    }

    /// A text.
    pub fn text(&mut self, name: &str, value: &str) {
        self.key(name);
        text(value, self.out);
    }

    /// A text that is known to need no escapes: an id, a word, hex.
    pub fn plain(&mut self, name: &str, value: &str) {
        self.key(name);
        self.plain_text(value);
    }

    /// A text or null.
    pub fn maybe_text(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => self.text(name, value),
            None => self.raw(name, "null"),
        }
    }

    /// A number.
    pub fn number(&mut self, name: &str, value: i64) {
        self.raw(name, &value.to_string());
    }

    /// A number or null.
    pub fn maybe_number(&mut self, name: &str, value: Option<i64>) {
        match value {
            Some(value) => self.number(name, value),
            None => self.raw(name, "null"),
        }
    }

    /// True or false.
    pub fn flag(&mut self, name: &str, value: bool) {
        self.raw(name, if value { "true" } else { "false" });
    }

    /// A time.
    pub fn time(&mut self, name: &str, at: UnixMs) {
        self.plain(name, &rfc3339::format(at));
    }

    /// A time or null.
    pub fn maybe_time(&mut self, name: &str, at: Option<UnixMs>) {
        match at {
            Some(at) => self.time(name, at),
            None => self.raw(name, "null"),
        }
    }

    /// What is JSON already.
    pub fn raw(&mut self, name: &str, json: &str) {
        self.key(name);
        self.out.extend_from_slice(json.as_bytes());
    }

    /// A body: as text where it is UTF-8, else `body` is null and `body_base64` has it.
    pub fn body(&mut self, body: &[u8]) {
        match std::str::from_utf8(body) {
            Ok(body) => self.text("body", body),
            Err(_) => {
                self.raw("body", "null");
                self.plain("body_base64", &STANDARD.encode(body));
            }
        }
    }

    /// Meta in its canonical form; none is an empty object.
    pub fn meta(&mut self, canonical: &str) {
        self.raw("meta", if canonical.is_empty() { "{}" } else { canonical });
    }
}

/// A string with its escapes.
pub fn text(value: &str, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(out, value);
}

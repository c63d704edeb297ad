//! What a gear says, without the secrets that it was given (trap 38): as they are, in base64, and
//! as JSON writes them inside a text.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::limits::SECRET_BYTES_MIN;

/// Fewer characters of base64 stand in innocent texts, too.
const INSIDE_BASE64_MIN: usize = 8;

/// What is shown in the place of a secret.
const HIDDEN: &str = "[secret]";

/// Forms of secrets that are looked for, the longest first: one may be part of another.
pub(super) struct Veil(Vec<Zeroizing<String>>);

impl Veil {
    pub(super) fn over<'s>(secrets: impl IntoIterator<Item = &'s Zeroizing<String>>) -> Self {
        let mut forms = Vec::new();
        // A shorter one would hide words that have nothing to do with it. None is set any more.
        for secret in secrets.into_iter().filter(|secret| secret.len() >= SECRET_BYTES_MIN) {
            let escaped = serde_json::to_string(secret.as_str()).map(Zeroizing::new);
            forms.extend(escaped.iter().map(|text| text.trim_matches('"').to_owned()));
            for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                forms.push(engine.encode(secret.as_str()));
                forms.extend((0..=2).filter_map(|before| inside(&engine, secret, before)));
            }
            forms.push(secret.to_string());
        }
        forms.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        Self(forms.into_iter().map(Zeroizing::new).collect())
    }

    /// Whether one is in it.
    pub(super) fn is_in(&self, text: &str) -> bool {
        self.0.iter().any(|form| text.contains(form.as_str()))
    }

    /// A text in which none is to be read.
    pub(super) fn text(&self, text: String) -> String {
        match self.is_in(&text) {
            true => self.0.iter().fold(text, |text, form| text.replace(form.as_str(), HIDDEN)),
            false => text,
        }
    }

    /// The end of a text of which more was said: it may begin inside a secret.
    pub(super) fn tail(&self, text: String) -> String {
        // A character that was cut apart is none.
        let text = text.trim_start_matches(char::REPLACEMENT_CHARACTER);
        let mut hidden = 0;
        for form in &self.0 {
            if form.contains(text) && text.len() >= SECRET_BYTES_MIN {
                return HIDDEN.to_owned();
            }
            let ends = form.char_indices().map(|(at, _)| form.get(at..).unwrap_or_default());
            let longest = ends.skip(1).find(|end| text.starts_with(end)).unwrap_or_default();
            hidden = hidden.max(longest.len());
        }
        let rest = text.get(hidden..).unwrap_or_default();
        match hidden >= SECRET_BYTES_MIN {
            true => format!("{HIDDEN}{}", self.text(rest.to_owned())),
            false => self.text(text.to_owned()),
        }
    }

    /// A document in which none is to be read, however deep it is.
    pub(super) fn value(&self, mut document: Value) -> Value {
        let mut left = if self.0.is_empty() { Vec::new() } else { vec![&mut document] };
        while let Some(value) = left.pop() {
            match value {
                Value::String(text) => *text = self.text(std::mem::take(text)),
                Value::Array(items) => left.extend(items),
                Value::Object(fields) => {
                    if fields.keys().any(|name| self.is_in(name)) {
                        let named = std::mem::take(fields).into_iter();
                        fields.extend(named.map(|(name, value)| (self.text(name), value)));
                    }
                    left.extend(fields.values_mut());
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
        }
        document
    }
}

/// What base64 makes of a secret with so many bytes before it, as in `name:secret`, and anything
/// behind: the characters that depend on nothing else. Of a short one they are too few to tell.
fn inside(engine: &impl Engine, secret: &str, before: usize) -> Option<String> {
    let padded = Zeroizing::new([&[0; 2][..before], secret.as_bytes()].concat());
    let text = engine.encode(padded.as_slice());
    let whole = padded.len() * 8 / 6;
    let own = text.get((before * 8).div_ceil(6)..whole)?;
    (own.len() >= INSIDE_BASE64_MIN).then(|| own.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn veil(secrets: &[&str]) -> Veil {
        let secrets: Vec<_> =
            secrets.iter().map(|text| Zeroizing::new((*text).to_owned())).collect();
        Veil::over(&secrets)
    }

    #[test]
    fn every_form_of_a_secret_is_hidden_in_values_and_names() {
        let veil = veil(&["s3cret\"value?>", "s3cret\"value?>-longer", "abc"]);
        let said = json!({
            "plain": "it is s3cret\"value?>!",
            "longer": "s3cret\"value?>-longer",
            "base64": STANDARD_NO_PAD.encode("s3cret\"value?>"),
            "url": URL_SAFE_NO_PAD.encode("s3cret\"value?>"),
            "escaped": json!({"inside": "s3cret\"value?>"}).to_string(),
            "s3cret\"value?>": [{"deep": ["s3cret\"value?>"]}, 7, null, true],
            "short": "abc",
        });
        let hidden = veil.value(said);
        assert_eq!(hidden["plain"], "it is [secret]!");
        assert_eq!(hidden["longer"], "[secret]");
        assert_eq!((&hidden["base64"], &hidden["url"]), (&json!("[secret]"), &json!("[secret]")));
        assert_eq!(hidden["escaped"], r#"{"inside":"[secret]"}"#);
        assert_eq!(hidden["[secret]"], json!([{"deep": ["[secret]"]}, 7, null, true]));
        assert_eq!(hidden["short"], "abc", "it says nothing");
    }

    #[test]
    fn a_tail_that_begins_inside_a_secret_does_not_show_its_end() {
        let veil = veil(&["s3cret-välue-of-somebody"]);
        let tail = |text: &str| veil.tail(text.to_owned());
        assert_eq!(tail("of-somebody and more"), "[secret] and more");
        assert_eq!(tail("\u{fffd}lue-of-somebody; s3cret-välue-of-somebody"), "[secret]; [secret]");
        assert_eq!(tail("cret-välue-of"), "[secret]", "all of it is inside of one");
        assert_eq!(tail("nobody was here"), "nobody was here");
        assert_eq!(tail("dy"), "dy", "that says nothing");
        assert_eq!(tail(""), "");
    }

    #[test]
    fn depth_costs_no_stack() {
        let mut deep = json!("s3cret-value");
        for _ in 0..100 {
            deep = json!([deep]);
        }
        assert!(veil(&["s3cret-value"]).value(deep).to_string().contains("[secret]"));
    }

    #[test]
    fn a_secret_inside_of_base64_is_hidden() {
        let secret = Zeroizing::new("correct horse".to_owned());
        let veil = Veil::over([&secret]);
        for name in ["u", "us", "use", "user", ""] {
            let text = STANDARD_NO_PAD.encode(format!("{name}:correct horse, and more"));
            let shown = veil.text(format!("Basic {text}"));
            assert!(shown.contains(HIDDEN), "{name}: {shown}");
            let inner = &STANDARD_NO_PAD.encode("correct horse")[4..12];
            assert!(!shown.contains(inner), "{name}: {shown}");
        }
    }
}

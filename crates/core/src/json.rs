//! Strict JSON intake (mesh.md §3): what two readers could understand differently is refused here,
//! before anything is hashed. Beyond RFC 8259 that means duplicate keys, lone surrogates, integers
//! that a double cannot hold, numbers that overflow, and nesting without end.
//!
//! A parser of our own, because general ones either accept these or tell them apart only by the
//! text of their error messages.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Number, Value};

use crate::code::Code;
use crate::limits::INTEGER_MAX;
use crate::refusal::Refusal;

/// What a document may cost to read.
#[derive(Debug, Clone, Copy)]
pub struct JsonLimits {
    /// Bytes of text.
    pub bytes_max: usize,
    /// Containers inside each other; the outermost is the first.
    pub depth_max: usize,
}

/// A document whose texts are still where they were read, unless they have escapes.
#[derive(Debug, Clone, PartialEq)]
pub enum Node<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(Cow<'a, str>),
    /// An array.
    List(Vec<Node<'a>>),
    /// An object, its keys in the order of the text.
    Object(Vec<(Cow<'a, str>, Node<'a>)>),
}

impl From<Node<'_>> for Value {
    fn from(node: Node<'_>) -> Self {
        match node {
            Node::Null => Self::Null,
            Node::Bool(flag) => Self::Bool(flag),
            Node::Number(number) => Self::Number(number),
            Node::Text(text) => Self::String(text.into_owned()),
            Node::List(nodes) => Self::Array(nodes.into_iter().map(Self::from).collect()),
            Node::Object(fields) => {
                let fields = fields.into_iter();
                Self::Object(fields.map(|(key, node)| (key.into_owned(), node.into())).collect())
            }
        }
    }
}

/// Reads one JSON document, strictly.
pub fn parse(text: &[u8], limits: JsonLimits) -> Result<Value, Refusal> {
    read(text, limits).map(Value::from)
}

/// The same without copying its texts.
pub fn read(text: &[u8], limits: JsonLimits) -> Result<Node<'_>, Refusal> {
    if text.len() > limits.bytes_max {
        return Err(Refusal::new(
            Code::PayloadTooLarge,
            format!("the document has {} bytes, {} are allowed", text.len(), limits.bytes_max),
        ));
    }
    let text = std::str::from_utf8(text).map_err(|error| {
        let offset = error.valid_up_to();
        Refusal::new(Code::InvalidJson, format!("byte {offset} is not UTF-8"))
    })?;
    let mut parser = Parser { text, offset: 0, depth_max: limits.depth_max, path: Vec::new() };
    parser.skip_space();
    let value = parser.value()?;
    parser.skip_space();
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.malformed("there is text after the document")),
    }
}

/// One step from a container into what it holds.
enum Step {
    /// The offset of the key's opening quote.
    Key(usize),
    Index(usize),
}

struct Parser<'a> {
    text: &'a str,
    /// Always on a character boundary.
    offset: usize,
    depth_max: usize,
    /// Where we are, for the error; its length is the depth.
    path: Vec<Step>,
}

/// One bit that a key has in common with few others: most keys are new, and that is seen by it.
fn mark(key: &str) -> u64 {
    let bytes = key.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    let ends = ends.map_or(0, |(first, last)| usize::from(*first) * 7 + usize::from(*last) * 3);
    1 << ((bytes.len() + ends) % 64)
}

/// Up to here a key is looked for among those before it one by one.
const FEW_KEYS: usize = 16;

impl<'a> Parser<'a> {
    fn value(&mut self) -> Result<Node<'a>, Refusal> {
        match self.peek() {
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => Ok(Node::Text(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Node::Bool(true)),
            Some(b'f') => self.word("false", Node::Bool(false)),
            Some(b'n') => self.word("null", Node::Null),
            Some(_) => Err(self.malformed("a value was expected")),
            None => Err(self.malformed("the document ends where a value was expected")),
        }
    }

    fn object(&mut self) -> Result<Node<'a>, Refusal> {
        self.enter()?;
        let mut object: Vec<(Cow<'a, str>, Node<'a>)> = Vec::new();
        let (mut marks, mut seen) = (0, HashSet::new());
        self.skip_space();
        if self.take(b'}') {
            return Ok(Node::Object(object));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.malformed("a key in quotes was expected"));
            }
            let key_offset = self.offset;
            let key = self.string()?;
            if seen.is_empty() && object.len() == FEW_KEYS {
                seen.extend(object.iter().map(|(key, _)| key.clone()));
            }
            let mark = mark(&key);
            let is_known = if seen.is_empty() {
                marks & mark != 0 && object.iter().any(|(other, _)| *other == key)
            } else {
                !seen.insert(key.clone())
            };
            marks |= mark;
            if is_known {
                self.path.push(Step::Key(key_offset));
                return Err(self.refuse(Code::DuplicateKey, "this key was given twice"));
            }
            self.skip_space();
            if !self.take(b':') {
                return Err(self.malformed("a colon was expected after the key"));
            }
            self.skip_space();
            self.path.push(Step::Key(key_offset));
            let value = self.value()?;
            self.path.pop();
            object.push((key, value));
            self.skip_space();
            if self.take(b'}') {
                return Ok(Node::Object(object));
            }
            if !self.take(b',') {
                return Err(self.malformed("a comma or a closing brace was expected"));
            }
        }
    }

    fn array(&mut self) -> Result<Node<'a>, Refusal> {
        self.enter()?;
        let mut array = Vec::new();
        self.skip_space();
        if self.take(b']') {
            return Ok(Node::List(array));
        }
        loop {
            self.skip_space();
            self.path.push(Step::Index(array.len()));
            let value = self.value()?;
            self.path.pop();
            array.push(value);
            self.skip_space();
            if self.take(b']') {
                return Ok(Node::List(array));
            }
            if !self.take(b',') {
                return Err(self.malformed("a comma or a closing bracket was expected"));
            }
        }
    }

    /// Steps over an opening brace or bracket, unless that is one level too deep.
    fn enter(&mut self) -> Result<(), Refusal> {
        if self.path.len() >= self.depth_max {
            return Err(self.refuse(Code::NestingTooDeep, "containers are nested too deep"));
        }
        self.offset += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Refusal> {
        self.offset += 1;
        let mut out = Cow::Borrowed("");
        loop {
            let rest = &self.text[self.offset..];
            let plain = plain_length(rest.as_bytes())
                .ok_or_else(|| self.malformed("a string does not end"))?;
            // The first run is borrowed, and copied only when something follows it.
            out += &rest[..plain];
            self.offset += plain;
            match rest.as_bytes()[plain] {
                b'"' => {
                    self.offset += 1;
                    return Ok(out);
                }
                b'\\' => out.to_mut().push(self.escape()?),
                _ => return Err(self.malformed("a control character in a string is not escaped")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Refusal> {
        self.offset += 1;
        let letter = self.peek();
        let plain = match letter {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(),
            _ => return Err(self.malformed("JSON has no such escape")),
        };
        self.offset += 1;
        Ok(plain)
    }

    /// `\uXXXX`, or two of them that make one character; the backslash is behind us.
    fn unicode_escape(&mut self) -> Result<char, Refusal> {
        let first = self.hex4()?;
        if let Some(plain) = char::from_u32(first) {
            return Ok(plain);
        }
        let lone = |parser: &Self| {
            let detail = format!("the surrogate \\u{first:04x} has no partner");
            parser.refuse(Code::LoneSurrogate, detail)
        };
        if first >= 0xdc00 || !self.text[self.offset..].starts_with("\\u") {
            return Err(lone(self));
        }
        self.offset += 1;
        let second = self.hex4()?;
        let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400);
        low.and_then(|low| char::from_u32(0x10000 + ((first - 0xd800) << 10) + low))
            .ok_or_else(|| lone(self))
    }

    /// The letter `u` and its four digits.
    fn hex4(&mut self) -> Result<u32, Refusal> {
        let digits = self.text.as_bytes().get(self.offset + 1..self.offset + 5);
        let digits = digits
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .ok_or_else(|| self.malformed("\\u needs four hexadecimal digits"))?;
        self.offset += 5;
        Ok(digits)
    }

    fn number(&mut self) -> Result<Node<'a>, Refusal> {
        let start = self.offset;
        self.take(b'-');
        if !self.take(b'0') && self.digits() == 0 {
            return Err(self.malformed("a number needs a digit"));
        }
        let integer_end = self.offset;
        if self.take(b'.') && self.digits() == 0 {
            return Err(self.malformed("a number needs a digit after its point"));
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'+') || self.take(b'-');
            if self.digits() == 0 {
                return Err(self.malformed("a number needs a digit in its exponent"));
            }
        }
        let literal = &self.text[start..self.offset];
        let number = if self.offset == integer_end {
            let exact = literal.parse::<i64>().ok();
            exact
                .filter(|n| n.unsigned_abs() <= INTEGER_MAX.unsigned_abs())
                .map(Number::from)
                .ok_or_else(|| {
                    self.refuse(
                        Code::IntegerOutOfRange,
                        "an integer is beyond ±(2^53 − 1): write it as a string",
                    )
                })?
        } else {
            // `from_f64` refuses what overflowed to infinity.
            literal.parse::<f64>().ok().and_then(Number::from_f64).ok_or_else(|| {
                self.refuse(Code::NumberOutOfRange, "a number is too large for a double")
            })?
        };
        Ok(Node::Number(number))
    }

    /// Steps over digits and counts them.
    fn digits(&mut self) -> usize {
        let rest = &self.text.as_bytes()[self.offset..];
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.offset += count;
        count
    }

    fn word(&mut self, word: &str, value: Node<'a>) -> Result<Node<'a>, Refusal> {
        if !self.text[self.offset..].starts_with(word) {
            return Err(self.malformed("a value was expected"));
        }
        self.offset += word.len();
        Ok(value)
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.offset += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.offset).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.offset += usize::from(found);
        found
    }

    /// A key that was read before.
    fn key_at(&self, offset: usize) -> Cow<'a, str> {
        let Self { text, depth_max, .. } = *self;
        Parser { text, offset, depth_max, path: Vec::new() }.string().unwrap_or_default()
    }

    fn malformed(&self, detail: &str) -> Refusal {
        self.refuse(Code::InvalidJson, format!("{detail}, at byte {}", self.offset))
    }

    fn refuse(&self, code: Code, detail: impl Into<String>) -> Refusal {
        let mut pointer = String::new();
        for step in &self.path {
            pointer.push('/');
            match step {
                Step::Key(offset) => {
                    let key = self.key_at(*offset);
                    pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
                }
                Step::Index(index) => pointer.push_str(&index.to_string()),
            }
        }
        Refusal::at(code, pointer, detail)
    }
}

/// How many bytes of a string come before its end, an escape or a control character; nothing if
/// it has none of them. Eight at a time: bodies are long.
fn plain_length(text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    // The lowest marked byte is right; those above it may be marked by a borrow.
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGH;
    let is = |word: u64, byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    let (words, rest) = text.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let marks = is(word, b'"') | is(word, b'\\') | below(word, 0x20);
        if marks != 0 {
            return Some(number * 8 + (marks.trailing_zeros() / 8) as usize);
        }
    }
    let ends = |byte: &u8| matches!(byte, b'"' | b'\\' | ..0x20);
    rest.iter().position(ends).map(|place| words.len() * 8 + place)
}

#[cfg(test)]
mod tests;

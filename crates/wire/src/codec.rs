//! Objects, field by field. [`Fields`] takes each field out of a strictly read object and refuses
//! what is left over; [`Object`] writes them in the order of the document, so that a frame has
//! one spelling. A refusal gets its JSON pointer on the way out, so that a good frame pays nothing
//! for it.
//!
//! By hand rather than derived: serde's errors do not say where they happened.

mod field;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Display;

use crate::limits::DETAIL_BYTES_MAX;
use semel_core::code::Code;
use semel_core::json::Node;
use semel_core::limits::INTEGER_MAX;
use semel_core::refusal::Refusal;
use semel_core::shown::is_plain_name;

pub(crate) use field::{Field, invalid, one_of, write_plain};

/// A value that a field of a frame can have.
pub(crate) trait Record: Sized {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal>;
    fn write(&self, object: &mut Object<'_>);
}

/// The fields of an object that have not been read yet.
pub(crate) struct Fields<'a>(VecDeque<(Cow<'a, str>, Node<'a>)>);

impl<'a> Fields<'a> {
    pub(crate) fn of(node: Node<'a>) -> Result<Self, Refusal> {
        match node {
            Node::Object(fields) => Ok(Self(fields.into())),
            Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) | Node::List(_) => {
                Err(Refusal::new(Code::InvalidField, "must be an object"))
            }
        }
    }

    /// Frames have few fields, and in the order in which they are asked for: mostly the first.
    fn remove(&mut self, name: &str) -> Option<Node<'a>> {
        let place = self.0.iter().position(|(key, _)| key == name)?;
        self.0.remove(place).map(|(_, node)| node)
    }

    /// A field that must be there.
    pub(crate) fn take<T: Field>(&mut self, name: &str) -> Result<T, Refusal> {
        self.take_optional(name)?.ok_or_else(|| missing(name))
    }

    /// A field that may be absent; `null` is not a way to say so, because one frame has one
    /// spelling.
    pub(crate) fn take_optional<T: Field>(&mut self, name: &str) -> Result<Option<T>, Refusal> {
        let node = self.remove(name);
        node.map(T::read).transpose().map_err(|refusal| under(name, refusal))
    }

    /// A field that must be there, and is `null` where there is nothing to say: answers over HTTP
    /// have the same fields always.
    pub(crate) fn take_nullable<T: Field>(&mut self, name: &str) -> Result<Option<T>, Refusal> {
        match self.remove(name) {
            None => Err(missing(name)),
            Some(Node::Null) => Ok(None),
            Some(node) => T::read(node).map(Some).map_err(|refusal| under(name, refusal)),
        }
    }

    /// 1 to `bytes_max` bytes without control characters.
    pub(crate) fn name(&mut self, name: &str, bytes_max: usize) -> Result<String, Refusal> {
        self.optional_name(name, bytes_max)?.ok_or_else(|| missing(name))
    }

    /// The name of something that is made: as [`Self::name`], and it looks like what it is.
    pub(crate) fn new_name(&mut self, name: &str, bytes_max: usize) -> Result<String, Refusal> {
        let text = self.name(name, bytes_max)?;
        // A member is named with an @ before its name.
        if is_plain_name(&text) && !text.starts_with('@') {
            return Ok(text);
        }
        let detail = "must have no invisible characters, none that turn text around, no blanks at \
                      its ends, and no @ before it";
        Err(under(name, Refusal::new(Code::InvalidField, detail)))
    }

    /// See [`Self::name`].
    pub(crate) fn optional_name(
        &mut self,
        name: &str,
        bytes_max: usize,
    ) -> Result<Option<String>, Refusal> {
        let text: Option<String> = self.take_optional(name)?;
        text.map(|text| check_name(text, bytes_max)).transpose().map_err(|r| under(name, r))
    }

    /// A sentence for a person.
    pub(crate) fn detail(&mut self) -> Result<String, Refusal> {
        self.optional_detail()?.ok_or_else(|| missing("detail"))
    }

    /// See [`Self::detail`].
    pub(crate) fn optional_detail(&mut self) -> Result<Option<String>, Refusal> {
        let text: Option<String> = self.take_optional("detail")?;
        match text {
            Some(text) if text.len() > DETAIL_BYTES_MAX => {
                let detail = format!("has {} bytes, {DETAIL_BYTES_MAX} are allowed", text.len());
                Err(Refusal::at(Code::InvalidField, "/detail", detail))
            }
            text => Ok(text),
        }
    }

    /// A whole number between the two, which are allowed.
    pub(crate) fn number(&mut self, name: &str, min: u64, max: u64) -> Result<u64, Refusal> {
        self.optional_number(name, min, max)?.ok_or_else(|| missing(name))
    }

    /// See [`Self::number`].
    pub(crate) fn optional_number(
        &mut self,
        name: &str,
        min: u64,
        max: u64,
    ) -> Result<Option<u64>, Refusal> {
        match self.take_optional(name)? {
            Some(number) if !(min..=max).contains(&number) => {
                let detail = format!("must be from {min} to {max}");
                Err(Refusal::at(Code::InvalidField, format!("/{name}"), detail))
            }
            number => Ok(number),
        }
    }

    /// An array of at most `items_max`; absent is refused.
    pub(crate) fn list<T: Field>(
        &mut self,
        name: &str,
        items_max: usize,
    ) -> Result<Vec<T>, Refusal> {
        self.optional_list(name, items_max)?.ok_or_else(|| missing(name))
    }

    /// See [`Self::list`].
    pub(crate) fn optional_list<T: Field>(
        &mut self,
        name: &str,
        items_max: usize,
    ) -> Result<Option<Vec<T>>, Refusal> {
        let Some(node) = self.remove(name) else { return Ok(None) };
        read_list(node, items_max).map(Some).map_err(|refusal| under(name, refusal))
    }

    /// An array of names.
    pub(crate) fn names(
        &mut self,
        name: &str,
        items_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<String>, Refusal> {
        let names: Vec<String> = self.list(name, items_max)?;
        let checked = names.into_iter().enumerate().map(|(index, text)| {
            check_name(text, bytes_max).map_err(|refusal| under(name, under(index, refusal)))
        });
        checked.collect()
    }

    /// Nothing may be left: an unknown field could be one that matters.
    pub(crate) fn finish(self) -> Result<(), Refusal> {
        match self.0.front() {
            None => Ok(()),
            Some((name, _)) => {
                let detail = format!("there is no field {:?} here", shown(name));
                Err(under(shown(name), Refusal::new(Code::UnknownField, detail)))
            }
        }
    }
}

/// Writes an object into a text that already holds what comes before it.
pub(crate) struct Object<'a> {
    out: &'a mut String,
    is_empty: bool,
}

impl<'a> Object<'a> {
    pub(crate) fn open(out: &'a mut String) -> Self {
        out.push('{');
        Self { out, is_empty: true }
    }

    pub(crate) fn close(self) {
        self.out.push('}');
    }

    /// `name` is never one that needs escapes: it is ours.
    pub(crate) fn key(&mut self, name: &str) -> &mut String {
        if !self.is_empty {
            self.out.push(',');
        }
        self.is_empty = false;
        self.out.push('"');
        self.out.push_str(name);
        self.out.push_str("\":");
        self.out
    }

    pub(crate) fn put<T: Field>(&mut self, name: &str, value: &T) {
        value.write(self.key(name));
    }

    pub(crate) fn put_optional<T: Field>(&mut self, name: &str, value: Option<&T>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    /// See [`Fields::take_nullable`].
    pub(crate) fn put_nullable<T: Field>(&mut self, name: &str, value: Option<&T>) {
        match value {
            Some(value) => self.put(name, value),
            None => self.key(name).push_str("null"),
        }
    }

    pub(crate) fn put_list<T: Field>(&mut self, name: &str, items: &[T]) {
        let out = self.key(name);
        out.push('[');
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            item.write(out);
        }
        out.push(']');
    }

    /// Cut at a character where it is too long: a sentence must not cost the connection.
    pub(crate) fn put_detail(&mut self, text: &str) {
        let end = text.floor_char_boundary(DETAIL_BYTES_MAX);
        field::write_text(&text[..end], self.key("detail"));
    }

    pub(crate) fn put_text(&mut self, name: &str, text: &str) {
        field::write_text(text, self.key(name));
    }
}

/// Puts the step that led to a refusal in front of its pointer.
pub(crate) fn under(step: impl Display, refusal: Refusal) -> Refusal {
    let step = step.to_string().replace('~', "~0").replace('/', "~1");
    Refusal { pointer: format!("/{step}{}", refusal.pointer), ..refusal }
}

fn missing(name: &str) -> Refusal {
    under(name, Refusal::new(Code::MissingField, format!("{name} is needed")))
}

pub(crate) fn check_name(text: String, bytes_max: usize) -> Result<String, Refusal> {
    if text.is_empty() || text.len() > bytes_max || text.chars().any(char::is_control) {
        let detail = format!("must be 1 to {bytes_max} bytes without control characters");
        return Err(Refusal::new(Code::InvalidField, detail));
    }
    Ok(text)
}

pub(crate) fn read_list<T: Field>(node: Node<'_>, items_max: usize) -> Result<Vec<T>, Refusal> {
    let Node::List(items) = node else {
        return Err(Refusal::new(Code::InvalidField, "must be an array"));
    };
    if items.len() > items_max {
        let detail = format!("has {} items, {items_max} are allowed", items.len());
        return Err(Refusal::new(Code::InvalidField, detail));
    }
    let read = items.into_iter().enumerate();
    read.map(|(index, item)| T::read(item).map_err(|refusal| under(index, refusal))).collect()
}

/// The largest integer of a frame, unsigned.
pub(crate) const NUMBER_MAX: u64 = INTEGER_MAX.unsigned_abs();

/// A name from outside, short enough for a message.
pub(crate) fn shown(name: &str) -> &str {
    &name[..name.floor_char_boundary(crate::limits::NAME_BYTES_MAX)]
}

//! The JSON Schemas of a gear's manifest. Their author is a stranger, and they are checked on the
//! engine's own threads: so a schema has a price, all of a manifest have one budget, and a document
//! is checked only if that costs little.

use std::collections::HashMap;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::limits::{
    PATTERN_SIZES, PATTERN_TEXT_BYTES_MAX, PATTERN_UNICODE_COST, REPORT_BYTES_MAX,
    SCHEMA_BYTES_MAX, SCHEMA_CONTENT_STEPS, SCHEMA_COST_MAX, SCHEMA_DEPTH_MAX, SCHEMA_PATTERN_COST,
    SCHEMA_WORK_AT_ONCE, SCHEMA_WORK_MAX, SCHEMA_WORK_TOLD_MAX,
};

/// What cannot be priced: the validator compiles and evaluates their neighbours again for them, and
/// the neighbours of these, or reads texts of the document as documents.
const UNPRICED: [&str; 3] = ["unevaluatedProperties", "unevaluatedItems", "contentSchema"];

/// A schema that can be used.
pub(crate) struct Schema {
    validator: Validator,
    price: Price,
}

/// What all schemas of a manifest may cost together.
pub(crate) struct Budget {
    parts: usize,
    bytes: usize,
    /// Steps for each byte of a text, by pattern.
    patterns: HashMap<String, usize>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { parts: SCHEMA_COST_MAX, bytes: SCHEMA_BYTES_MAX, patterns: HashMap::new() }
    }
}

/// What a part of a schema costs, with everything that is in it and that it refers to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Price {
    /// How many parts may look at one part of a document.
    parts: usize,
    /// What the validator keeps of it: each of its parts knows the names of all above it.
    bytes: usize,
    /// Steps for each byte of a text.
    per_byte: usize,
    /// How many parts compare whole trees with each other.
    unique: usize,
}

impl Price {
    fn and(self, other: Self) -> Self {
        Self {
            parts: self.parts.saturating_add(other.parts),
            bytes: self.bytes.saturating_add(other.bytes),
            per_byte: self.per_byte.saturating_add(other.per_byte),
            unique: self.unique.saturating_add(other.unique),
        }
    }

    /// The same below a name.
    fn below(self, name: &str) -> Self {
        let names = self.parts.saturating_mul(name.len() + 1);
        Self { bytes: self.bytes.saturating_add(names), ..self }
    }
}

impl Schema {
    /// Refuses what is no schema, what could take for ever, and what is too much together with the
    /// others that the budget has paid for.
    pub(crate) fn read(document: &Value, budget: &mut Budget) -> Result<Self, String> {
        let mut prices = Prices { whole: document, known: HashMap::new(), budget };
        let price = prices.of(document, 0).map_err(cut)?;
        budget.parts = budget.parts.saturating_sub(price.parts);
        budget.bytes = budget.bytes.saturating_sub(price.bytes);
        let validator = options(PATTERN_SIZES.last().map_or(0, |(bytes, _)| *bytes));
        let validator = validator.build(document).map_err(|error| cut(error.to_string()))?;
        Ok(Self { validator, price })
    }

    /// How many steps it takes to check a document, at the most.
    pub(crate) fn work(&self, document: &Value) -> usize {
        let Price { parts, per_byte, unique, .. } = self.price;
        let size = Size::of(document);
        // A pattern looks at every character, a comparison at everything below.
        let looks = parts.saturating_mul(size.parts.saturating_add(size.bytes / 16));
        let reads = per_byte.saturating_mul(size.bytes);
        looks.saturating_add(reads).saturating_add(unique.saturating_mul(size.depths))
    }

    /// What is wrong with a document; the first thing only.
    pub(crate) fn check(&self, document: &Value) -> Result<(), String> {
        let work = self.work(document);
        if work > SCHEMA_WORK_MAX {
            return Err(format!("its schema cannot be checked: that would take {work} steps"));
        }
        if work <= SCHEMA_WORK_AT_ONCE {
            return self.checked(document, work);
        }
        match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| {
                let _turn = turns::take();
                self.checked(document, work)
            }),
            Ok(_) | Err(_) => self.checked(document, work),
        }
    }

    /// To say what is wrong costs more than to find out that something is: every branch that does
    /// not fit is told of, with its place.
    fn checked(&self, document: &Value, work: usize) -> Result<(), String> {
        if work > SCHEMA_WORK_TOLD_MAX {
            let fits = self.validator.is_valid(document);
            let text = "it does not fit its schema, and is too large to say where";
            return if fits { Ok(()) } else { Err(text.to_owned()) };
        }
        let checked = self.validator.validate(document);
        checked.map_err(|error| {
            let place = cut(error.instance_path().to_string());
            format!("{} (at {place})", cut(error.to_string()))
        })
    }
}

/// Patterns in time that grows with the text alone, in bounded memory, whatever they are. Formats
/// are not checked in any draft: some would read a text of the document as a pattern.
fn options(pattern_bytes: usize) -> jsonschema::ValidationOptions<'static> {
    let patterns = PatternOptions::regex();
    let patterns = patterns.size_limit(pattern_bytes).dfa_size_limit(pattern_bytes);
    jsonschema::options().with_pattern_options(patterns).should_validate_formats(false)
}

/// What is wrong may quote a whole document.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(REPORT_BYTES_MAX / 16));
    text
}

/// Checks that take long have their turn: beside them there is room for everything else.
mod turns {
    use std::sync::{Condvar, Mutex, PoisonError};

    use crate::limits::SCHEMA_CHECKS_AT_ONCE;

    static NOW: Mutex<Now> = Mutex::new(Now { under_way: 0, waiting: 0 });
    static FREE: Condvar = Condvar::new();

    struct Now {
        under_way: usize,
        waiting: usize,
    }

    pub(super) struct Turn(());

    /// Waits on a thread that may be waited on.
    pub(super) fn take() -> Turn {
        let mut now = NOW.lock().unwrap_or_else(PoisonError::into_inner);
        now.waiting += 1;
        let free = FREE.wait_while(now, |now| now.under_way >= SCHEMA_CHECKS_AT_ONCE);
        let mut now = free.unwrap_or_else(PoisonError::into_inner);
        now.waiting -= 1;
        now.under_way += 1;
        Turn(())
    }

    /// How many wait.
    #[cfg(test)]
    pub(super) fn waiting() -> usize {
        NOW.lock().unwrap_or_else(PoisonError::into_inner).waiting
    }

    impl Drop for Turn {
        fn drop(&mut self) {
            NOW.lock().unwrap_or_else(PoisonError::into_inner).under_way -= 1;
            FREE.notify_one();
        }
    }
}

/// What the parts of a schema cost, with everything that they refer to.
struct Prices<'a, 'b> {
    whole: &'a Value,
    /// Of what was referred to; nothing while it is being looked at.
    known: HashMap<&'a str, Option<Price>>,
    budget: &'b mut Budget,
}

impl<'a> Prices<'a, '_> {
    fn of(&mut self, part: &'a Value, depth: usize) -> Result<Price, String> {
        if depth > SCHEMA_DEPTH_MAX {
            return Err(format!("it is more than {SCHEMA_DEPTH_MAX} levels deep"));
        }
        let mut price = Price { parts: 1, ..Price::default() };
        match part {
            Value::Object(object) => {
                for (name, inner) in object {
                    price = price.and(self.field(name, inner, depth)?.below(name));
                }
            }
            Value::Array(list) => {
                for inner in list {
                    // Numbers of list items are names, too.
                    price = price.and(self.of(inner, depth + 1)?.below("0000"));
                    self.affords(price)?;
                }
            }
            Value::String(text) => price.bytes = text.len(),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        self.affords(price)?;
        Ok(price)
    }

    fn affords(&self, price: Price) -> Result<(), String> {
        if price.parts > self.budget.parts {
            return Err(format!(
                "all schemas together have more than {SCHEMA_COST_MAX} parts with what they refer \
                 to"
            ));
        }
        if price.bytes > self.budget.bytes {
            return Err(format!(
                "all schemas together would take more than {SCHEMA_BYTES_MAX} bytes"
            ));
        }
        Ok(())
    }

    fn field(&mut self, name: &'a str, inner: &'a Value, depth: usize) -> Result<Price, String> {
        if UNPRICED.contains(&name) {
            return Err(format!("{name} is not possible here: its cost has no bound"));
        }
        match (name, inner) {
            ("$ref", Value::String(pointer)) => self.referred(pointer, depth + 1),
            // They make a reference lead elsewhere than its text says.
            (
                "$id" | "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" | "$dynamicRef"
                | "$recursiveRef",
                Value::String(_) | Value::Bool(_),
            ) => Err(format!("{name} is not possible here")),
            // It would have `id` where others have `$id`.
            ("$schema", Value::String(draft)) if draft.contains("draft-04") => {
                Err(format!("{draft} is not possible here"))
            }
            ("pattern", Value::String(pattern)) => self.pattern(pattern),
            ("patternProperties", Value::Object(patterns)) => {
                let mut price = self.of(inner, depth + 1)?;
                for pattern in patterns.keys() {
                    price = price.and(self.pattern(pattern)?);
                }
                Ok(price)
            }
            ("uniqueItems", Value::Bool(true)) => {
                Ok(Price { parts: 1, unique: 1, ..Price::default() })
            }
            ("contentMediaType" | "contentEncoding", Value::String(_)) => {
                Ok(Price { parts: 1, per_byte: SCHEMA_CONTENT_STEPS, ..Price::default() })
            }
            _ => self.of(inner, depth + 1),
        }
    }

    fn referred(&mut self, pointer: &'a str, depth: usize) -> Result<Price, String> {
        match self.known.get(pointer) {
            Some(Some(price)) => return Ok(*price),
            Some(None) => return Err(format!("{pointer:?} refers to itself")),
            None => {}
        }
        // The validator would read a percent sign as the beginning of another character.
        let plain = pointer.strip_prefix('#').filter(|path| !path.contains('%'));
        let target = plain.and_then(|path| self.whole.pointer(path));
        let target = target.ok_or_else(|| format!("{pointer:?} is not a part of it"))?;
        self.known.insert(pointer, None);
        let price = self.of(target, depth)?.below(pointer);
        self.known.insert(pointer, Some(price));
        Ok(price)
    }

    /// What a pattern costs depends on how large it becomes: at the worst each of its states looks
    /// at each byte.
    fn pattern(&mut self, pattern: &str) -> Result<Price, String> {
        if pattern.len() > PATTERN_TEXT_BYTES_MAX {
            return Err(format!("a pattern has at most {PATTERN_TEXT_BYTES_MAX} bytes"));
        }
        // Letters of all languages in both cases take long to be put together.
        let mut groups = pattern.split("(?").skip(1);
        if groups.any(|rest| !rest.starts_with([':', '=', '!', '<', 'P'])) {
            return Err(format!("{pattern:?}: a pattern has no flags"));
        }
        let classes = pattern.matches("\\p").count() + pattern.matches("\\P").count();
        let parts = SCHEMA_PATTERN_COST + pattern.len() + classes * PATTERN_UNICODE_COST;
        let price = Price { parts, bytes: pattern.len(), ..Price::default() };
        self.affords(price)?;
        if let Some(per_byte) = self.budget.patterns.get(pattern) {
            return Ok(Price { per_byte: *per_byte, ..price });
        }
        let schema = serde_json::json!({"pattern": pattern});
        let fits = |(bytes, _): &&(usize, usize)| options(*bytes).build(&schema).is_ok();
        let Some((_, per_byte)) = PATTERN_SIZES.iter().find(fits) else {
            return Err(format!("{pattern:?} is not a pattern, or becomes too large"));
        };
        self.budget.patterns.insert(pattern.to_owned(), *per_byte);
        Ok(Price { per_byte: *per_byte, ..price })
    }
}

/// How much there is to look at in a document.
#[derive(Default)]
struct Size {
    parts: usize,
    /// Of texts and names.
    bytes: usize,
    /// How deep its parts are, all together.
    depths: usize,
}

impl Size {
    fn of(document: &Value) -> Self {
        let (mut size, mut left) = (Self::default(), vec![(document, 1)]);
        while let Some((part, depth)) = left.pop() {
            size.parts += 1;
            size.depths += depth;
            match part {
                Value::Object(object) => {
                    size.bytes += object.keys().map(String::len).sum::<usize>();
                    left.extend(object.values().map(|inner| (inner, depth + 1)));
                }
                Value::Array(list) => left.extend(list.iter().map(|inner| (inner, depth + 1))),
                Value::String(text) => size.bytes += text.len(),
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
        }
        size
    }
}

#[cfg(test)]
mod tests;

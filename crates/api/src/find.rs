//! What a path leads to. Paths that are spelt out are looked up at once; those with an `{id}` are
//! few, and are tried one after the other.

use std::collections::HashMap;

use crate::part::Part;
use crate::route::{Facts, Verb};

/// Every call of every part.
pub(crate) struct Calls {
    all: Vec<Found>,
    fixed: HashMap<&'static str, Numbers>,
    patterns: Vec<Pattern>,
}

/// A call: what is known of it, and who serves it under which number of its table.
pub(crate) struct Found {
    pub(crate) facts: Facts,
    pub(crate) part: usize,
    pub(crate) number: usize,
}

/// The calls of one path, by verb.
type Numbers = [Option<usize>; Verb::ALL.len()];

struct Pattern {
    before: &'static str,
    after: &'static str,
    numbers: Numbers,
}

impl Pattern {
    /// What stands for `{id}` in this path.
    fn id<'a>(&self, path: &'a str) -> Option<&'a str> {
        let id = path.strip_prefix(self.before)?.strip_suffix(self.after)?;
        (!id.is_empty() && !id.contains('/')).then_some(id)
    }
}

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Leads<'a> {
    /// To the call of this number, with the part of the path that is not fixed.
    To(usize, &'a str),
    /// The path is there, under these other verbs.
    OtherVerbs(Vec<Verb>),
    /// To nothing.
    Nowhere,
}

impl Calls {
    /// Two parts with the same call are a mistake of whoever put them together.
    pub(crate) fn new(parts: &[Part]) -> Self {
        let mut calls = Self { all: Vec::new(), fixed: HashMap::new(), patterns: Vec::new() };
        for (part, served) in parts.iter().enumerate() {
            for (number, facts) in served.facts().into_iter().enumerate() {
                let next = calls.all.len();
                let known = calls.numbers(facts.path)[facts.verb as usize].replace(next);
                assert!(known.is_none(), "{} {} is there twice", facts.verb, facts.path);
                calls.all.push(Found { facts, part, number });
            }
        }
        calls
    }

    fn numbers(&mut self, path: &'static str) -> &mut Numbers {
        let Some((before, after)) = path.split_once("{id}") else {
            return self.fixed.entry(path).or_default();
        };
        let same = |known: &Pattern| known.before == before && known.after == after;
        let at = self.patterns.iter().position(same).unwrap_or_else(|| {
            self.patterns.push(Pattern { before, after, numbers: Numbers::default() });
            self.patterns.len() - 1
        });
        &mut self.patterns[at].numbers
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The call of a number.
    pub(crate) fn get(&self, number: usize) -> &Found {
        &self.all[number]
    }

    /// All of them.
    pub(crate) fn facts(&self) -> impl Iterator<Item = &Facts> {
        self.all.iter().map(|call| &call.facts)
    }

    /// Looks a path up. What is spelt out goes before `{id}`.
    pub(crate) fn find<'a>(&self, verb: Option<Verb>, path: &'a str) -> Leads<'a> {
        let of = |numbers: &Numbers| verb.and_then(|verb| numbers[verb as usize]);
        let fixed = self.fixed.get(path);
        if let Some(number) = fixed.and_then(of) {
            return Leads::To(number, "");
        }
        let patterns = self.patterns.iter();
        let matching = patterns.filter_map(|pattern| Some((&pattern.numbers, pattern.id(path)?)));
        let mut others: Vec<&Numbers> = fixed.into_iter().collect();
        for (numbers, id) in matching {
            if let Some(number) = of(numbers) {
                return Leads::To(number, id);
            }
            others.push(numbers);
        }
        if others.is_empty() {
            return Leads::Nowhere;
        }
        let has = |verb: &Verb| others.iter().any(|numbers| numbers[*verb as usize].is_some());
        Leads::OtherVerbs(Verb::ALL.iter().copied().filter(has).collect())
    }
}

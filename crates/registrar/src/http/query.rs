//! What stands after the question mark, read strictly.

use std::collections::BTreeMap;

use semel_core::code::Code;
use semel_wire::http::{Problem, name};
use semel_wire::path;

use crate::limits::{DOMAIN_BYTES_MAX, NAME_BYTES_MAX, PAGE_DEFAULT, PAGE_MAX};

/// Names and values that were not taken yet.
pub(super) struct Query(BTreeMap<String, String>);

impl Query {
    pub(super) fn of(query: &str) -> Result<Self, Problem> {
        let mut pairs = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = path::decode(value)
                .ok_or_else(|| invalid("the query is not percent-encoded UTF-8".to_owned()))?;
            let value = name(value, NAME_BYTES_MAX)
                .map_err(|refusal| invalid(format!("{key} {}", refusal.detail)))?;
            if pairs.insert(key.to_owned(), value).is_some() {
                return Err(Problem::new(Code::DuplicateKey, format!("{key} was given twice")));
            }
        }
        Ok(Self(pairs))
    }

    pub(super) fn take(&mut self, key: &str) -> Option<String> {
        self.0.remove(key)
    }

    pub(super) fn domain(&mut self) -> Result<String, Problem> {
        let domain = self.take("domain");
        let domain =
            domain.ok_or_else(|| Problem::new(Code::MissingField, "the query needs domain"))?;
        name(domain, DOMAIN_BYTES_MAX)
            .map_err(|refusal| invalid(format!("domain {}", refusal.detail)))
    }

    pub(super) fn limit(&mut self) -> Result<u32, Problem> {
        let Some(text) = self.take("limit") else { return Ok(PAGE_DEFAULT) };
        let limit = text.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
        limit.ok_or_else(|| invalid(format!("limit must be from 1 to {PAGE_MAX}")))
    }

    pub(super) fn word<T>(
        &mut self,
        key: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, Problem> {
        let missing = || Problem::new(Code::MissingField, format!("the query needs {key}"));
        let text = self.take(key).ok_or_else(missing)?;
        parse(&text).ok_or_else(|| invalid(format!("{key} has no {text:?}")))
    }

    pub(super) fn entry(&mut self, key: &str) -> Result<Option<i64>, Problem> {
        let Some(text) = self.take(key) else { return Ok(None) };
        let entry = text.parse().ok().filter(|entry| *entry >= 1);
        entry.map(Some).ok_or_else(|| invalid(format!("{key} must be the number of an entry")))
    }

    /// Nothing else may be there.
    pub(super) fn finish(self) -> Result<(), Problem> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(unknown) => {
                let detail = format!("the query has no {unknown:?} here");
                Err(Problem::new(Code::UnknownField, detail))
            }
        }
    }
}

fn invalid(detail: String) -> Problem {
    Problem::new(Code::InvalidField, detail)
}

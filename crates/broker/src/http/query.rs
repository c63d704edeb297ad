//! What a list is asked for: `after` and `limit`.

use semel_core::code::Code;
use semel_core::limits::REF_BYTES_MAX;
use semel_wire::http::{Problem, name};
use semel_wire::limits::HISTORY_LIMIT_MAX;
use semel_wire::path;

use super::Call;

/// Items of a page when the query does not say.
const LIMIT_DEFAULT: i64 = 100;

/// Where a page begins, and how long it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) after: Option<String>,
    pub(super) limit: i64,
}

impl Page {
    pub(super) fn of(query: &str) -> Result<Self, Problem> {
        let (mut after, mut limit) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let place = match key {
                "after" => &mut after,
                "limit" => &mut limit,
                _ => {
                    let detail = "the query may have only after and limit";
                    return Err(Problem::new(Code::UnknownField, detail));
                }
            };
            let value = path::decode(value)
                .ok_or_else(|| invalid("the query is not percent-encoded UTF-8"))?;
            let value = name(value, REF_BYTES_MAX)
                .map_err(|refusal| invalid(&format!("{key} {}", refusal.detail)))?;
            if place.replace(value).is_some() {
                let detail = format!("{key} was given twice");
                return Err(Problem::new(Code::DuplicateKey, detail));
            }
        }
        let limit = limit.map(|text: String| text.parse().ok()).unwrap_or(Some(LIMIT_DEFAULT));
        let limit_max = i64::try_from(HISTORY_LIMIT_MAX).unwrap_or(i64::MAX);
        let limit = limit
            .filter(|limit| (1..=limit_max).contains(limit))
            .ok_or_else(|| invalid(&format!("limit must be from 1 to {limit_max}")))?;
        Ok(Self { after, limit })
    }

    /// Cuts what was read, one more than a page, to the page; gives the link to the next one.
    pub(super) fn cut<Item>(
        &self,
        call: &Call,
        items: &mut Vec<Item>,
        key: impl Fn(&Item) -> String,
    ) -> Option<String> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        if items.len() <= limit {
            return None;
        }
        items.truncate(limit);
        items.last().map(|last| self.next(call, &key(last)))
    }

    /// The same list after this key.
    pub(super) fn next(&self, call: &Call, after: &str) -> String {
        let (path, _) = call.target.split_once('?').unwrap_or((&call.target, ""));
        format!("{path}?after={}&limit={}", path::encode(after), self.limit)
    }
}

fn invalid(detail: &str) -> Problem {
    Problem::new(Code::InvalidField, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_strictly() {
        let page = |query: &str| Page::of(query).map_err(|problem| problem.code);
        let of = |after: Option<&str>, limit| Ok(Page { after: after.map(str::to_owned), limit });
        assert_eq!(page(""), of(None, 100));
        assert_eq!(page("limit=500&after=a%2Fb"), of(Some("a/b"), 500));
        assert_eq!(page("after=a+b"), of(Some("a+b"), 100));
        for query in ["limit=0", "limit=501", "limit=x", "limit=", "after=%00", "after", "limit=-1"]
        {
            assert_eq!(page(query), Err(Code::InvalidField), "{query}");
        }
        assert_eq!(page("limit=1&limit=1"), Err(Code::DuplicateKey));
        assert_eq!(page("page=1"), Err(Code::UnknownField));
    }
}

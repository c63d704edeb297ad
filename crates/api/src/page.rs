//! Lists: items, and the address of what comes after them.

use crate::field::escape;
use crate::json;
use crate::limits::{PAGE_ROW_BYTES, PAGE_ROWS_LARGE, PAGE_ROWS_SMALL};
use crate::route::Reply;

/// What is left for the list's frame and its cursor.
const FRAME_BYTES: usize = 4 << 10;

/// A list that is being written.
pub struct Page {
    out: Vec<u8>,
    items: i64,
    limit: i64,
    bytes_max: usize,
    more: bool,
}

impl Page {
    /// A list of at most so many items and bytes.
    pub fn new(limit: i64, bytes_max: usize) -> Self {
        let out = br#"{"items":["#.to_vec();
        Self { out, items: 0, limit, bytes_max: bytes_max.saturating_sub(FRAME_BYTES), more: false }
    }

    /// How many rows to read next: one more than has room tells whether there are more. Few at a
    /// time while they are large, so that no page is held in memory many times over.
    pub fn ask(&self) -> i64 {
        let wanted = self.limit + 1 - self.items;
        let items = usize::try_from(self.items).unwrap_or(0);
        let small = items > 0 && self.out.len() / items < PAGE_ROW_BYTES;
        wanted.min(if small { PAGE_ROWS_LARGE } else { PAGE_ROWS_SMALL })
    }

    /// Adds an item if there is room for it. The first always fits.
    pub fn add(&mut self, item: impl FnOnce(&mut Vec<u8>)) -> bool {
        let before = self.out.len();
        if self.items > 0 {
            self.out.push(b',');
        }
        if self.items < self.limit {
            item(&mut self.out);
            if self.items == 0 || self.out.len() <= self.bytes_max {
                self.items += 1;
                return true;
            }
        }
        self.out.truncate(before);
        self.more = true;
        false
    }

    /// Ends here although it is not full: there may be more.
    pub fn break_off(&mut self) {
        self.more = true;
    }

    /// Ends the list; `next` is asked only when there is more.
    pub fn finish(mut self, next: impl FnOnce() -> String) -> Reply {
        self.out.extend_from_slice(br#"],"next":"#);
        if self.more {
            json::text(&next(), &mut self.out);
        } else {
            self.out.extend_from_slice(b"null");
        }
        self.out.push(b'}');
        Reply::json(200, self.out)
    }
}

/// The address of a list's next part.
pub struct Next(String);

impl Next {
    /// After this.
    pub fn new(path: &str, after: &str) -> Self {
        let mut address = format!("{path}?after=");
        escape(after, &mut address);
        Self(address)
    }

    /// With this in its query, if it was given.
    pub fn with(mut self, name: &str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            self.0.push('&');
            self.0.push_str(name);
            self.0.push('=');
            escape(value, &mut self.0);
        }
        self
    }

    /// The address.
    pub fn address(self) -> String {
        self.0
    }
}

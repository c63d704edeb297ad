//! `config.toml`: the user's tuning (daemon.md, "Configuration keys"). What is not known, or not in
//! its range, is refused by name; a daemon that ignored it would run other than its user believes.
//! `docs/config.md` shows every key with its default and range, and a test compares it.

use std::path::PathBuf;

use semel_wire::features::Feature;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::home::{Home, HomeError, HomeFile};
use crate::limits::ORIGINS_MAX;

#[cfg(test)]
mod tests;

/// Least and greatest value of each number.
pub const RANGES: &[(&str, &str, i64, i64)] = &[
    ("ipc", "max_inflight", 1, 4096),
    ("ipc", "max_streams", 1, 1024),
    ("outbox", "max_age_hours_override", 1, 87_600),
    ("outbox", "max_bytes", 1_000_000, 1_000_000_000_000_000),
    ("outbox", "window", 1, 4096),
    ("inbox", "retention_days", 1, 3650),
    ("inbox", "max_bytes", 1_000_000, 1_000_000_000_000_000),
    ("disk", "reserved_bytes", 0, 1_000_000_000_000_000),
];

/// Everything that can be tuned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The local API.
    pub ipc: Ipc,
    /// What is to be sent.
    pub outbox: Outbox,
    /// What was received.
    pub inbox: Inbox,
    /// The disk that both are on.
    pub disk: Disk,
    /// What is asked of the broker.
    pub features: Features,
}

/// `[ipc]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ipc {
    /// Loopback TCP beside the socket; by default as the environment says.
    pub tcp_enabled: Option<bool>,
    /// Health and metrics over TCP without a token.
    pub public_health_check: bool,
    /// Web pages that may call.
    pub origin_allowlist: Vec<String>,
    /// Calls at a time.
    pub max_inflight: u32,
    /// Event streams at a time.
    pub max_streams: u32,
}

/// `[outbox]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outbox {
    /// When a message that could not be sent dies; by default as the broker's memory allows.
    pub max_age_hours_override: Option<u32>,
    /// Size of `outbox.db`.
    pub max_bytes: u64,
    /// Sends in flight.
    pub window: u32,
}

/// `[inbox]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Inbox {
    /// For how long messages are kept.
    pub retention_days: u32,
    /// Size of `inbox.db`.
    pub max_bytes: u64,
}

/// `[disk]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Disk {
    /// What is left free: below it nothing is accepted.
    pub reserved_bytes: u64,
}

/// `[features]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Features {
    /// Without these, and those that every daemon requires, it does not connect.
    pub require: Vec<String>,
    /// Used where the broker has them.
    pub optional: Vec<String>,
}

impl Default for Ipc {
    fn default() -> Self {
        Self {
            tcp_enabled: None,
            public_health_check: false,
            origin_allowlist: Vec::new(),
            max_inflight: 256,
            max_streams: 32,
        }
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self { max_age_hours_override: None, max_bytes: 5_000_000_000, window: 256 }
    }
}

impl Default for Inbox {
    fn default() -> Self {
        Self { retention_days: 30, max_bytes: 5_000_000_000 }
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self { reserved_bytes: 64_000_000 }
    }
}

impl Default for Features {
    fn default() -> Self {
        let optional = Feature::OPTIONAL.iter().map(|name| (*name).to_owned()).collect();
        Self { require: Vec::new(), optional }
    }
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The file says what it may not.
    #[error("{}: {invalid}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What.
        invalid: Invalid,
    },
}

/// What is wrong with a configuration's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Not TOML, an unknown key, or a value of another type.
    #[error("line {line} ({text}): {what}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is there.
        text: String,
        /// What is wrong with it.
        what: String,
    },
    /// A number that is too small or too large.
    #[error("{key} is {value}; allowed are {min} to {max}")]
    OutOfRange {
        /// With its section.
        key: String,
        /// As given.
        value: i64,
        /// The least.
        min: i64,
        /// The greatest.
        max: i64,
    },
    /// A text that is not one of those allowed.
    #[error("{key} has {value:?}; allowed are {allowed}")]
    Value {
        /// With its section.
        key: &'static str,
        /// As given.
        value: String,
        /// What would be right.
        allowed: String,
    },
}

impl Config {
    /// The folder's configuration; without a file it is the default one.
    pub fn read(home: &Home) -> Result<Self, ConfigError> {
        let Some(bytes) = home.read(HomeFile::Config)? else { return Ok(Self::default()) };
        let invalid = |invalid| ConfigError::Invalid { path: home.path(HomeFile::Config), invalid };
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let before = &bytes[..error.valid_up_to()];
            let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
            let (text, what) = ("…".to_owned(), "not UTF-8".to_owned());
            invalid(Invalid::Line { line, text, what })
        })?;
        Self::parse(text).map_err(invalid)
    }

    /// Reads a configuration's text.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let table: Table = toml::from_str(text).map_err(|error| at_line(text, &error))?;
        // Before the types are looked at, so that −1 is told the range too.
        check_ranges(&table)?;
        let config: Self = toml::from_str(text).map_err(|error| at_line(text, &error))?;
        config.check_texts().map(|()| config)
    }

    fn check_texts(&self) -> Result<(), Invalid> {
        let refuse = |key, value: &str, allowed: String| {
            Err(Invalid::Value { key, value: value.to_owned(), allowed })
        };
        let Features { require, optional } = &self.features;
        for (key, names) in [("features.require", require), ("features.optional", optional)] {
            if let Some(name) = names.iter().find(|name| Feature::parse(name).is_none()) {
                let known: Vec<&str> = Feature::ALL.iter().map(|bit| bit.as_str()).collect();
                return refuse(key, name, known.join(", "));
            }
        }
        let origins = &self.ipc.origin_allowlist;
        if let Some(origin) = origins.iter().find(|origin| !is_origin(origin)) {
            let allowed = "origins such as https://dash.example:8443".to_owned();
            return refuse("ipc.origin_allowlist", origin, allowed);
        }
        if let Some(origin) = origins.get(ORIGINS_MAX) {
            return refuse("ipc.origin_allowlist", origin, format!("{ORIGINS_MAX} origins"));
        }
        Ok(())
    }
}

fn check_ranges(table: &Table) -> Result<(), Invalid> {
    for (section, key, min, max) in RANGES {
        let value = table.get(*section).and_then(|section| section.get(*key));
        let Some(value) = value.and_then(Value::as_integer) else { continue };
        if !(*min..=*max).contains(&value) {
            let key = format!("{section}.{key}");
            return Err(Invalid::OutOfRange { key, value, min: *min, max: *max });
        }
    }
    Ok(())
}

/// Scheme, host and perhaps a port, as a browser writes them: compared as text, so anything else
/// would never fit.
fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let is_part =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-:[]".contains(&byte);
    host.is_some_and(|host| (1..=255).contains(&host.len()) && host.bytes().all(is_part))
}

fn at_line(text: &str, error: &toml::de::Error) -> Invalid {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = 1 + text.bytes().take(start).filter(|byte| *byte == b'\n').count();
    let there = text.lines().nth(line - 1).unwrap_or_default().trim();
    let there = there.chars().take(80).collect();
    Invalid::Line { line, text: there, what: error.message().replace('\n', " ") }
}

//! `jobs/config.toml`: what an operator tunes. What is not known is refused by name.

use std::net::Ipv6Addr;
use std::time::Duration;

use serde::Deserialize;

use crate::engine::EngineOptions;
use crate::gear::grants::is_pattern;
use crate::gear::manifest::Risk;
use crate::policy::{Policy, Rule, Verdict};

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Jobs under way at once.
    pub workers: Option<usize>,
    /// How long a claim lasts without news of its worker.
    pub lease_ms: Option<u64>,
    /// How long a person may take to answer.
    pub approval_hours: Option<u64>,
    /// How long an ended job is kept.
    pub retention_days: Option<u64>,
    /// How long a stop waits for running jobs.
    pub shutdown_ms: Option<u64>,
    /// Topics (`#name`) and queues (`queue:name`) whose messages are jobs.
    pub from: Vec<String>,
    /// Hosts that `http.request` may reach although their addresses are not public.
    pub private_hosts: Vec<String>,
    /// Hosts that do a request once, however often it is sent with the same `Idempotency-Key`.
    pub keyed_hosts: Vec<String>,
    /// What may be done, by the first rule that fits.
    pub policy: Vec<RuleText>,
}

/// A rule as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(deny_unknown_fields, default)]
pub struct RuleText {
    /// `gear.action`, `gear.*` or `*`.
    pub action: Option<String>,
    /// At least this risk.
    pub risk: Option<String>,
    /// Paths below this folder.
    pub path: Option<String>,
    /// Requests to this host.
    pub host: Option<String>,
    /// Requests of this method.
    pub method: Option<String>,
    /// Jobs that this gear has asked for, or any gear: `*`.
    pub parent: Option<String>,
    /// `approve`, `ask` or `reject`.
    pub verdict: String,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is no TOML, or has a key that nobody knows.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A value means nothing.
    #[error("{key}: {value:?} is not one of {known}")]
    Word {
        /// Which key.
        key: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
        known: String,
    },
    /// It can be nobody's name: the rule would never fit.
    #[error("policy.{key}: {value:?} matches nothing; write {instead}")]
    Unfit {
        /// Which key.
        key: &'static str,
        /// What it says.
        value: String,
        /// What to say.
        instead: &'static str,
    },
    /// A number is out of its range.
    #[error("{key} must be from {min} to {max}")]
    Range {
        /// Which key.
        key: &'static str,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
}

impl RuleText {
    /// A rule that never fits rejects nothing, and whoever wrote it would not know.
    fn names_something(&self) -> Result<(), ConfigError> {
        for (key, value, names, instead) in [
            ("action", &self.action, is_pattern as fn(&str) -> bool, "gear.action, gear.* or *"),
            ("path", &self.path, is_folder, "a folder without *; it includes everything below it"),
            ("host", &self.host, is_host, "a host without * and port, each in a rule of its own"),
            ("method", &self.method, is_method, "one method; without it, any method"),
            ("parent", &self.parent, is_parent, "the id of a gear, or * for any gear"),
        ] {
            if let Some(value) = value.clone().filter(|value| !names(value)) {
                return Err(ConfigError::Unfit { key, value, instead });
            }
        }
        Ok(())
    }
}

fn is_folder(text: &str) -> bool {
    !text.is_empty() && !text.contains('*')
}

fn is_host(text: &str) -> bool {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let outside = |c: char| c.is_whitespace() || c.is_control() || "*:/@?#[]".contains(c);
    bare.parse::<Ipv6Addr>().is_ok() || (!text.is_empty() && !text.contains(outside))
}

fn is_method(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(&byte))
}

fn is_parent(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text == "*" || (!text.is_empty() && text.bytes().all(plain))
}

/// Each number and its range, in the order in which the document shows them.
const RANGES: [(&str, u64, u64); 5] = [
    ("workers", 1, 4096),
    ("lease_ms", 300, 600_000),
    ("approval_hours", 1, 24 * 365),
    ("retention_days", 1, 3650),
    ("shutdown_ms", 0, 600_000),
];

impl Config {
    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text)?;
        config.policy()?;
        let workers = config.workers.map(|n| u64::try_from(n).unwrap_or(u64::MAX));
        let values = [
            workers,
            config.lease_ms,
            config.approval_hours,
            config.retention_days,
            config.shutdown_ms,
        ];
        for (&(key, min, max), value) in RANGES.iter().zip(values) {
            if value.is_some_and(|value| !(min..=max).contains(&value)) {
                return Err(ConfigError::Range { key, min, max });
            }
        }
        Ok(config)
    }

    /// Tunes an engine.
    pub fn tune(&self, options: &mut EngineOptions) -> Result<(), ConfigError> {
        // All keys are named, so that one that nobody reads does not compile. Whoever starts the
        // engine reads the three lists.
        let Self {
            workers,
            lease_ms,
            approval_hours,
            retention_days,
            shutdown_ms,
            from: _,
            private_hosts: _,
            keyed_hosts: _,
            policy: _,
        } = self;
        let hour = 60 * 60;
        if let Some(workers) = workers {
            options.workers = *workers;
        }
        if let Some(ms) = lease_ms {
            options.lease = Duration::from_millis(*ms);
        }
        if let Some(hours) = approval_hours {
            options.approval_timeout = Duration::from_secs(hours * hour);
        }
        if let Some(days) = retention_days {
            options.retention = Duration::from_secs(days * 24 * hour);
        }
        if let Some(ms) = shutdown_ms {
            options.shutdown = Duration::from_millis(*ms);
        }
        options.policy = self.policy()?;
        Ok(())
    }

    fn policy(&self) -> Result<Policy, ConfigError> {
        let rules = self.policy.iter().map(|text| {
            text.names_something()?;
            let RuleText { action, risk, path, host, method, parent, verdict } = text;
            let risk = risk.as_deref().map(|value| {
                Risk::parse(value).ok_or_else(|| word("policy.risk", value, names(Risk::ALL)))
            });
            let verdict = Verdict::parse(verdict)
                .ok_or_else(|| word("policy.verdict", verdict, names(Verdict::ALL)))?;
            Ok(Rule {
                action: action.clone(),
                risk: risk.transpose()?,
                path: path.clone(),
                host: host.clone(),
                method: method.clone(),
                parent: parent.clone(),
                verdict: Some(verdict),
            })
        });
        Ok(Policy { rules: rules.collect::<Result<_, ConfigError>>()? })
    }
}

fn names<T: std::fmt::Display>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn word(key: &'static str, value: &str, known: String) -> ConfigError {
    ConfigError::Word { key, value: value.to_owned(), known }
}

#[cfg(test)]
mod tests;

//! `jobs/config.toml`: what an operator tunes. What is not known is refused by name.

use std::time::Duration;

use serde::Deserialize;

use crate::engine::EngineOptions;
use crate::gear::manifest::Risk;
use crate::policy::{Policy, Rule, Verdict};

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
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
    /// A pattern where none is read: the rule would never fit.
    #[error("policy.{key}: {value:?} is taken as it stands; {instead}")]
    Pattern {
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

impl Config {
    /// Reads the file's text.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text)?;
        config.policy()?;
        let ranges = [
            ("workers", config.workers.map(|n| u64::try_from(n).unwrap_or(u64::MAX)), 1, 4096),
            ("lease_ms", config.lease_ms, 300, 600_000),
            ("approval_hours", config.approval_hours, 1, 24 * 365),
            ("retention_days", config.retention_days, 1, 3650),
            ("shutdown_ms", config.shutdown_ms, 0, 600_000),
        ];
        for (key, value, min, max) in ranges {
            if value.is_some_and(|value| !(min..=max).contains(&value)) {
                return Err(ConfigError::Range { key, min, max });
            }
        }
        Ok(config)
    }

    /// Tunes an engine.
    pub fn tune(&self, options: &mut EngineOptions) -> Result<(), ConfigError> {
        let hour = 60 * 60;
        if let Some(workers) = self.workers {
            options.workers = workers;
        }
        if let Some(ms) = self.lease_ms {
            options.lease = Duration::from_millis(ms);
        }
        if let Some(hours) = self.approval_hours {
            options.approval_timeout = Duration::from_secs(hours * hour);
        }
        if let Some(days) = self.retention_days {
            options.retention = Duration::from_secs(days * 24 * hour);
        }
        if let Some(ms) = self.shutdown_ms {
            options.shutdown = Duration::from_millis(ms);
        }
        options.policy = self.policy()?;
        Ok(())
    }

    fn policy(&self) -> Result<Policy, ConfigError> {
        let rules = self.policy.iter().map(|text| {
            let folder = "name a folder without *, and all below it is meant";
            let host = "name a host without *, in a rule of its own for each";
            for (key, value, instead) in [("path", &text.path, folder), ("host", &text.host, host)]
            {
                let pattern = value.iter().find(|value| value.contains('*'));
                if let Some(value) = pattern.cloned() {
                    return Err(ConfigError::Pattern { key, value, instead });
                }
            }
            let risk = text.risk.as_deref().map(|value| {
                Risk::parse(value).ok_or_else(|| word("policy.risk", value, names(Risk::ALL)))
            });
            let verdict = Verdict::parse(&text.verdict)
                .ok_or_else(|| word("policy.verdict", &text.verdict, names(Verdict::ALL)))?;
            Ok(Rule {
                action: text.action.clone(),
                risk: risk.transpose()?,
                path: text.path.clone(),
                host: text.host.clone(),
                method: text.method.clone(),
                parent: text.parent.clone(),
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
mod tests {
    use super::*;

    #[test]
    fn a_pattern_that_would_never_fit_is_refused() {
        for line in ["path = \"etc/*\"", "host = \"*.example.com\""] {
            let text = format!("[[policy]]\n{line}\nverdict = \"reject\"");
            let said = Config::parse(&text).expect_err("refused").to_string();
            assert!(said.contains("taken as it stands"), "{said}");
        }
    }

    #[test]
    fn what_nobody_knows_is_refused_by_name() {
        let config =
            Config::parse("workers = 3\n[[policy]]\naction = \"http.*\"\nverdict = \"ask\"");
        let mut options = EngineOptions::new("w", "/tmp");
        config.expect("a configuration").tune(&mut options).expect("tuned");
        assert_eq!((options.workers, options.policy.rules.len()), (3, 1));
        for (text, named) in [
            ("wrokers = 3", "wrokers"),
            ("workers = 0", "workers"),
            ("[[policy]]\nverdict = \"perhaps\"", "policy.verdict"),
            ("[[policy]]\nrisk = \"some\"\nverdict = \"ask\"", "policy.risk"),
        ] {
            let error = Config::parse(text).expect_err(text).to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}

//! What the benchmarks have written: one JSON file for each part.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// In the order in which people read them; the last one is measured rarely.
const PARTS: [&str; 10] = [
    "daemon",
    "broker",
    "topic",
    "crowd",
    "jobs",
    "registrar",
    "store",
    "program",
    "growth",
    "long",
];

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) unit: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Want {
    AtLeast(f64),
    AtMost(f64),
}

/// What was measured, or is only wanted, and then has no figure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Side {
    pub(crate) name: String,
    pub(crate) figure: Option<Figure>,
}

/// Ours against what it is measured by, both of one run of one part.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bar {
    pub(crate) ours: Side,
    pub(crate) reference: Side,
    /// `None` when one side was not measured.
    pub(crate) ratio: Option<f64>,
    pub(crate) want: Want,
}

impl Bar {
    pub(crate) fn verdict(&self) -> &'static str {
        match (self.ratio, self.want) {
            (None, _) => "not measured",
            (Some(ratio), Want::AtLeast(target)) if ratio >= target => "met",
            (Some(ratio), Want::AtMost(target)) if ratio <= target => "met",
            (Some(_), Want::AtLeast(_) | Want::AtMost(_)) => "**missed**",
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Results {
    /// Of the first part that was found.
    pub(crate) machine: Value,
    pub(crate) bars: Vec<Bar>,
    /// Peers and their versions, of all parts.
    pub(crate) peers: BTreeMap<String, String>,
    /// Peers, and why they could not be measured.
    pub(crate) missing: BTreeMap<String, String>,
}

impl Results {
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let mut results = Self::default();
        for part in PARTS {
            let path = folder.join(format!("{part}.json"));
            match fs::read(&path) {
                Ok(bytes) => {
                    let document = serde_json::from_slice(&bytes).map_err(anyhow::Error::from);
                    document
                        .and_then(|document| results.add(&document))
                        .with_context(|| format!("{part}.json is not what the benchmark writes"))?;
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error).context(path.display().to_string()),
            }
        }
        Ok(results)
    }

    fn add(&mut self, document: &Value) -> Result<()> {
        if self.machine.is_null() {
            self.machine = document["machine"].clone();
        }
        let peers = document["machine"]["peers"].as_object().into_iter().flatten();
        let peers = peers.map(|(peer, version)| (peer.clone(), version.as_str().unwrap_or("?")));
        self.peers.extend(peers.map(|(peer, version)| (peer, version.to_owned())));
        let mut rows = BTreeMap::new();
        for row in document["rows"].as_array().context("rows")? {
            let value = row["value"].as_f64().context("value")?;
            rows.insert(text(row, "name")?, Figure { value, unit: text(row, "unit")? });
        }
        let side = |bar: &Value, field| -> Result<Side> {
            let name = text(bar, field)?;
            Ok(Side { figure: rows.get(&name).cloned(), name })
        };
        for bar in document["bars"].as_array().context("bars")? {
            let at_least = bar.get("at_least").and_then(Value::as_f64).map(Want::AtLeast);
            let at_most = bar.get("at_most").and_then(Value::as_f64).map(Want::AtMost);
            self.bars.push(Bar {
                ours: side(bar, "ours")?,
                reference: side(bar, "reference")?,
                ratio: bar["ratio"].as_f64(),
                want: at_least.or(at_most).context("a target")?,
            });
        }
        for (peer, why) in document["missing"].as_object().context("missing")? {
            self.missing.insert(peer.clone(), why.as_str().unwrap_or_default().to_owned());
        }
        Ok(())
    }
}

fn text(value: &Value, field: &'static str) -> Result<String> {
    value[field].as_str().map(str::to_owned).context(field)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Two parts of two rows, one peer that was not there.
    pub(crate) fn some() -> Results {
        let mut results = Results::default();
        let machine = json!({"cores": 2, "cpu": "a <fast> one", "fdatasync_us": 100.0,
                             "fdatasync_per_second": 10000.0, "kernel": "6.1", "sqlite": "3.50",
                             "postgres": "15", "peers": {"Redis": "7"}});
        let document = json!({
            "machine": machine,
            "rows": [{"name": "ours", "value": 30000.0, "unit": "/s"},
                     {"name": "limit & more", "value": 60000.0, "unit": "/s"},
                     {"name": "memory", "value": 17.5, "unit": "MB"}],
            "bars": [{"ours": "ours", "reference": "limit & more", "ratio": 0.5, "at_least": 0.6},
                     {"ours": "ours", "reference": "peer", "ratio": null, "at_least": 1.0},
                     {"ours": "memory", "reference": "30 MB", "ratio": 0.58, "at_most": 1.0}],
            "missing": {"peer": "no network"},
        });
        results.add(&document).unwrap();
        results
    }

    #[test]
    fn a_bar_is_met_missed_or_not_measured() {
        let verdicts: Vec<_> = some().bars.iter().map(Bar::verdict).collect();
        assert_eq!(verdicts, ["**missed**", "not measured", "met"]);
    }

    #[test]
    fn what_is_not_there_is_left_out_and_what_is_wrong_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Results::read(folder.path()).unwrap().bars.is_empty());
        fs::write(folder.path().join("jobs.json"), "{}").unwrap();
        let error = Results::read(folder.path()).unwrap_err();
        assert!(error.to_string().starts_with("jobs.json"), "{error}");
    }
}

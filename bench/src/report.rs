//! Medians, a table for people, JSON for programs.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

/// Rates by name, one per round.
#[derive(Default)]
pub(crate) struct Rounds(BTreeMap<&'static str, Vec<f64>>);

impl Rounds {
    pub(crate) fn add(&mut self, name: &'static str, per_second: f64) {
        self.0.entry(name).or_default().push(per_second);
    }

    pub(crate) fn median(&self, name: &str) -> f64 {
        median(self.rates(name).to_vec())
    }

    /// The median of the rounds' ratios: what slows a whole round down slows both sides of it.
    pub(crate) fn ratio(&self, ours: &str, reference: &str) -> f64 {
        let pairs = self.rates(ours).iter().zip(self.rates(reference));
        median(pairs.map(|(ours, reference)| ours / reference).collect())
    }

    fn rates(&self, name: &str) -> &[f64] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// One bar: ours against what it is measured by.
pub(crate) struct Bar {
    pub(crate) ours: &'static str,
    pub(crate) reference: &'static str,
    pub(crate) target: f64,
}

/// Prints the table and writes it beside the others under `bench/results/`.
pub(crate) fn publish(
    name: &str,
    machine: &Value,
    rows: &[&'static str],
    rounds: &Rounds,
    bars: &[Bar],
) -> Result<()> {
    println!("machine: {machine}");
    println!("{:<44} {:>12}", "every answer fsynced", "per second");
    for row in rows {
        println!("{row:<44} {:>12.0}", rounds.median(row));
    }
    println!();
    let mut ratios = Vec::new();
    for bar in bars {
        let ratio = rounds.ratio(bar.ours, bar.reference);
        let verdict = if ratio >= bar.target { "met" } else { "MISSED" };
        let (ours, reference, target) = (bar.ours, bar.reference, bar.target);
        println!("{ours} / {reference}: {ratio:.2} (target {target:.2}, {verdict})");
        ratios.push(json!({
            "ours": ours, "reference": reference, "ratio": round2(ratio), "target": target,
        }));
    }
    let rates: BTreeMap<&str, f64> =
        rows.iter().map(|row| (*row, rounds.median(row).round())).collect();
    let document = json!({"machine": machine, "per_second": rates, "ratios": ratios});
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    std::fs::create_dir_all(&folder)?;
    let text = serde_json::to_string_pretty(&document)? + "\n";
    std::fs::write(folder.join(format!("{name}.json")), text)?;
    Ok(())
}

fn round2(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}

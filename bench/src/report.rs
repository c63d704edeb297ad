//! Medians, a table for people, JSON for programs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

/// What a round has shown: how many, and what each took in microseconds.
pub(crate) struct Measured {
    pub(crate) per_second: f64,
    pub(crate) latencies: Vec<u32>,
}

impl Measured {
    /// Each latency is one that was done since.
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
    pub(crate) fn since(start: Instant, latencies: Vec<u32>) -> Self {
        Self { per_second: latencies.len() as f64 / start.elapsed().as_secs_f64(), latencies }
    }
}

/// Rates by name, one per round, and latencies of all rounds.
#[derive(Default)]
pub(crate) struct Rounds {
    rates: BTreeMap<&'static str, Vec<f64>>,
    latencies: BTreeMap<&'static str, Vec<u32>>,
}

impl Rounds {
    pub(crate) fn add(&mut self, name: &'static str, per_second: f64) {
        self.rates.entry(name).or_default().push(per_second);
    }

    pub(crate) fn measured(&mut self, name: &'static str, measured: Measured) {
        self.add(name, measured.per_second);
        self.latencies.entry(name).or_default().extend(measured.latencies);
    }

    /// Half of them, and all but a hundredth, took no longer, in milliseconds.
    pub(crate) fn p50_and_p99(&self, name: &str) -> Option<(f64, f64)> {
        let mut all = self.latencies.get(name).filter(|all| !all.is_empty())?.clone();
        all.sort_unstable();
        let at = |part: usize| all.get((all.len() * part / 100).min(all.len() - 1)).copied();
        let ms = |part| at(part).map_or(f64::NAN, |us| f64::from(us) / 1000.0);
        Some((ms(50), ms(99)))
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
        self.rates.get(name).map_or(&[], Vec::as_slice)
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

/// Prints the rows that were measured; gives their latencies.
pub(crate) fn table(rows: &[&'static str], rounds: &Rounds) -> BTreeMap<&'static str, Value> {
    println!("{:<58} {:>12} {:>9} {:>9}", "every answer fsynced", "per second", "p50 ms", "p99 ms");
    let measured = |row: &&&'static str| !rounds.rates(row).is_empty();
    let mut latencies = BTreeMap::new();
    for row in rows.iter().filter(measured) {
        let rate = rounds.median(row);
        match rounds.p50_and_p99(row) {
            Some((p50, p99)) => {
                println!("{row:<58} {rate:>12.0} {p50:>9.2} {p99:>9.2}");
                latencies.insert(*row, json!({"p50_ms": round2(p50), "p99_ms": round2(p99)}));
            }
            None => println!("{row:<58} {rate:>12.0} {:>9} {:>9}", "-", "-"),
        }
    }
    latencies
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
    let latencies = table(rows, rounds);
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
    let rates: BTreeMap<&str, f64> = rows
        .iter()
        .map(|row| (*row, rounds.median(row).round()))
        .filter(|row| !row.1.is_nan())
        .collect();
    let document = json!({"machine": machine, "per_second": rates, "latency": latencies,
                          "ratios": ratios});
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    std::fs::create_dir_all(&folder)?;
    let text = serde_json::to_string_pretty(&document)? + "\n";
    std::fs::write(folder.join(format!("{name}.json")), text)?;
    Ok(())
}

fn round2(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}

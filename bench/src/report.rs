//! Medians, a table for people, JSON for programs.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use crate::plan;

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

    /// So many of a hundred took no longer, in milliseconds.
    pub(crate) fn percentile_ms(&self, part: usize) -> f64 {
        percentile_ms(&self.latencies, part)
    }
}

fn percentile_ms(latencies: &[u32], part: usize) -> f64 {
    let mut all = latencies.to_vec();
    all.sort_unstable();
    let last = all.len().saturating_sub(1);
    let at = all.get((all.len() * part / 100).min(last)).copied();
    at.map_or(f64::NAN, |us| f64::from(us) / 1000.0)
}

/// What a row's number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    PerSecond,
    Ms,
    Mb,
    PerAccept,
    /// Microseconds of a processor.
    CpuUs,
    Bytes,
}

impl Unit {
    fn as_str(self) -> &'static str {
        match self {
            Self::PerSecond => "/s",
            Self::Ms => "ms",
            Self::Mb => "MB",
            Self::PerAccept => "per accept",
            Self::CpuUs => "µs of CPU",
            Self::Bytes => "bytes",
        }
    }
}

struct Row {
    name: &'static str,
    unit: Unit,
    /// One per round.
    values: Vec<f64>,
    latencies: Vec<u32>,
}

/// What all rounds have shown, in the order in which it was first measured.
#[derive(Default)]
pub(crate) struct Rounds {
    rows: Vec<Row>,
    /// Plain numbers that a bar names.
    wanted: BTreeMap<&'static str, f64>,
    missing: BTreeMap<String, String>,
}

impl Rounds {
    pub(crate) fn add(&mut self, name: &'static str, per_second: f64) {
        self.value(name, Unit::PerSecond, per_second);
    }

    pub(crate) fn value(&mut self, name: &'static str, unit: Unit, value: f64) {
        self.row(name, unit).values.push(value);
    }

    /// A number that was not measured but is wanted.
    pub(crate) fn wanted(&mut self, name: &'static str, value: f64) {
        self.wanted.insert(name, value);
    }

    pub(crate) fn measured(&mut self, name: &'static str, measured: Measured) {
        let row = self.row(name, Unit::PerSecond);
        row.values.push(measured.per_second);
        row.latencies.extend(measured.latencies);
    }

    /// A peer that cannot be measured is named with its reason; everybody else goes on.
    pub(crate) fn peer(&mut self, peer: &str, row: &'static str, shown: Result<Measured>) {
        match shown {
            Ok(measured) => self.measured(row, measured),
            Err(error) => self.missing(peer, &format!("{error:#}")),
        }
    }

    pub(crate) fn missing(&mut self, peer: &str, why: &str) {
        if self.missing.insert(peer.to_owned(), why.to_owned()).is_none() {
            println!("peer {peer} not available: {why}");
        }
    }

    fn row(&mut self, name: &'static str, unit: Unit) -> &mut Row {
        let at = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
            self.rows.push(Row { name, unit, values: Vec::new(), latencies: Vec::new() });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// The median of the rounds' ratios: what slows a whole round down slows both sides of it.
    fn ratio(&self, ours: &str, reference: &str) -> f64 {
        if let Some(wanted) = self.wanted.get(reference) {
            return median(self.values(ours).iter().map(|ours| ours / wanted).collect());
        }
        let pairs = self.values(ours).iter().zip(self.values(reference));
        median(pairs.map(|(ours, reference)| ours / reference).collect())
    }

    fn values(&self, name: &str) -> &[f64] {
        self.rows.iter().find(|row| row.name == name).map_or(&[], |row| &row.values)
    }

    /// What was measured last under this name.
    pub(crate) fn last(&self, name: &str) -> Option<f64> {
        self.values(name).last().copied()
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Which side of the target is good.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Want {
    AtLeast(f64),
    AtMost(f64),
}

/// One bar: ours against what it is measured by.
#[derive(Clone)]
pub(crate) struct Bar {
    pub(crate) ours: &'static str,
    pub(crate) reference: &'static str,
    pub(crate) want: Want,
}

impl Bar {
    pub(crate) const fn at_least(ours: &'static str, target: f64, reference: &'static str) -> Self {
        Self { ours, reference, want: Want::AtLeast(target) }
    }

    pub(crate) const fn at_most(ours: &'static str, target: f64, reference: &'static str) -> Self {
        Self { ours, reference, want: Want::AtMost(target) }
    }
}

/// Prints everything and writes it beside the others.
pub(crate) fn publish(name: &str, machine: &Value, rounds: &Rounds, bars: &[Bar]) -> Result<()> {
    println!("machine: {machine}");
    println!("{:<62} {:>14} {:>9} {:>9}", name, "median", "p50 ms", "p99 ms");
    let rows: Vec<Value> = rounds.rows.iter().map(row_shown).collect();
    println!();
    let bars: Vec<Value> = bars.iter().map(|bar| bar_shown(rounds, bar)).collect();
    println!();
    let document =
        json!({"machine": machine, "rows": rows, "bars": bars, "missing": rounds.missing});
    let folder = plan::results();
    std::fs::create_dir_all(&folder)?;
    let text = serde_json::to_string_pretty(&document)? + "\n";
    std::fs::write(folder.join(format!("{name}.json")), text)?;
    Ok(())
}

fn row_shown(row: &Row) -> Value {
    let (name, unit) = (row.name, row.unit.as_str());
    let value = short(median(row.values.clone()));
    let mut shown = json!({"name": name, "value": value, "unit": unit});
    if row.latencies.is_empty() {
        println!("{name:<62} {value:>9} {unit:<10}");
    } else {
        let (p50, p99) = (percentile_ms(&row.latencies, 50), percentile_ms(&row.latencies, 99));
        println!("{name:<62} {value:>9} {unit:<4} {p50:>9.2} {p99:>9.2}");
        shown["p50_ms"] = json!(short(p50));
        shown["p99_ms"] = json!(short(p99));
    }
    shown
}

fn bar_shown(rounds: &Rounds, bar: &Bar) -> Value {
    let (ours, reference) = (bar.ours, bar.reference);
    let ratio = rounds.ratio(ours, reference);
    let (kind, target, met) = match bar.want {
        Want::AtLeast(target) => ("at_least", target, ratio >= target),
        Want::AtMost(target) => ("at_most", target, ratio <= target),
    };
    let verdict = match (ratio.is_nan(), met) {
        (true, _) => "not measured",
        (false, true) => "met",
        (false, false) => "MISSED",
    };
    println!("{ours} / {reference}: {ratio:.2} ({kind} {target}, {verdict})");
    let ratio = if ratio.is_nan() { Value::Null } else { json!(short(ratio)) };
    json!({"ours": ours, "reference": reference, "ratio": ratio, kind: target})
}

/// Three digits: more would be noise.
fn short(value: f64) -> f64 {
    if !value.is_finite() || value == 0.0 {
        return 0.0;
    }
    let step = 10_f64.powf(value.abs().log10().floor() - 2.0).min(1.0);
    // Division keeps 0.29 from becoming 0.29000000000000004.
    let whole = (1.0 / step).round();
    (value * whole).round() / whole
}

//! The picture: for everything of ours that has a rate, its bar above those of the limits and peers
//! that it is measured by, on one logarithmic scale. A mark on a reference shows where ours has to
//! be. Plain SVG, whose colours follow the reader's light or dark setting.

use std::fmt::Write as _;

use super::page::shown;
use super::results::{Figure, Results, Side, Want};

const WIDTH: f64 = 960.0;
/// Where the bars begin and end; names are left of them, values right.
const LEFT: f64 = 420.0;
const RIGHT: f64 = 850.0;
const ROW: f64 = 20.0;
const GAP: f64 = 14.0;
const TOP: f64 = 72.0;

const STYLE: &str = "\
text { font: 12px system-ui, sans-serif; fill: #1f2328; } \
.head { font-size: 14px; font-weight: 600; } \
.axis { fill: #59636e; } \
.grid { stroke: #d1d9e0; } \
.ours { fill: #0969da; } \
.other { fill: #afb8c1; } \
.want { stroke: #cf222e; stroke-width: 2; } \
@media (prefers-color-scheme: dark) { \
text { fill: #e6edf3; } \
.axis { fill: #9198a1; } \
.grid { stroke: #3d444d; } \
.ours { fill: #4493f8; } \
.other { fill: #656c76; } \
.want { stroke: #ff7b72; } }";

/// Ours, and with each reference where ours has to be.
struct Group<'a> {
    ours: (&'a str, &'a Figure),
    references: Vec<(&'a str, &'a Figure, f64)>,
}

pub(super) fn draw(results: &Results) -> String {
    let groups = groups(results);
    let scale = Scale::of(&groups);
    let rows: usize = groups.iter().map(|group| 1 + group.references.len()).sum();
    let height = TOP + count(rows) * ROW + count(groups.len()) * GAP;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"ours, the limits and the peers, per second\">\n<style>{STYLE}</style>\n"
    );
    let head = "Per second, every answer on disk; the scale is logarithmic";
    line(&mut svg, &format!("<text class=\"head\" x=\"8\" y=\"20\">{head}</text>"));
    let legend = "blue: Semel · grey: limit or peer · red mark: where Semel wants to be against it";
    line(&mut svg, &format!("<text class=\"axis\" x=\"8\" y=\"38\">{legend}</text>"));
    for power in scale.low..=scale.high {
        let x = scale.x(10_f64.powi(power));
        let (top, bottom) = (TOP - 6.0, height - GAP);
        let grid = format!("x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\"");
        line(&mut svg, &format!("<line class=\"grid\" {grid}/>"));
        let label = power_of_ten(power);
        let place = format!("x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\"", TOP - 8.0);
        line(&mut svg, &format!("<text class=\"axis\" {place}>{label}</text>"));
    }
    let mut y = TOP;
    for group in &groups {
        bar(&mut svg, &scale, y, "ours", group.ours, 0.0);
        y += ROW;
        for (name, figure, wanted) in &group.references {
            bar(&mut svg, &scale, y, "other", (name, figure), *wanted);
            let x = scale.x(*wanted);
            let (top, bottom) = (y + 1.0, y + ROW - 3.0);
            let mark = format!("x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\"");
            line(&mut svg, &format!("<line class=\"want\" {mark}/>"));
            y += ROW;
        }
        y += GAP;
    }
    svg + "</svg>\n"
}

/// Everything of ours with a rate, in the order of the bars, with what was measured beside it.
fn groups(results: &Results) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for bar in &results.bars {
        let Want::AtLeast(target) = bar.want else { continue };
        let Some(ours) = rate(&bar.ours) else { continue };
        let Some((name, figure)) = rate(&bar.reference) else { continue };
        let reference = (name, figure, figure.value * target);
        match groups.iter_mut().find(|group| group.ours.0 == ours.0) {
            Some(group) => group.references.push(reference),
            None => groups.push(Group { ours, references: vec![reference] }),
        }
    }
    groups
}

fn rate(side: &Side) -> Option<(&str, &Figure)> {
    let figure = side.figure.as_ref().filter(|figure| figure.unit == "/s");
    Some((side.name.as_str(), figure?))
}

/// From one power of ten to another.
struct Scale {
    low: i32,
    high: i32,
}

impl Scale {
    #[expect(clippy::cast_possible_truncation, reason = "a logarithm of what a machine can do")]
    fn of(groups: &[Group<'_>]) -> Self {
        let rates = groups.iter().flat_map(|group| {
            let others = group.references.iter().flat_map(|(_, other, at)| [other.value, *at]);
            others.chain([group.ours.1.value])
        });
        let logs: Vec<f64> = rates.map(|rate| rate.max(1.0).log10()).collect();
        let low = logs.iter().copied().reduce(f64::min).unwrap_or(0.0).floor() as i32;
        let high = logs.iter().copied().reduce(f64::max).unwrap_or(1.0).ceil() as i32;
        Self { low, high: high.max(low + 1) }
    }

    fn x(&self, rate: f64) -> f64 {
        let part = (rate.max(1.0).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        LEFT + part.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }
}

/// The value is written where neither the bar nor the mark at `wanted` is.
fn bar(
    svg: &mut String,
    scale: &Scale,
    y: f64,
    class: &str,
    (name, figure): (&str, &Figure),
    wanted: f64,
) {
    let (end, text) = (scale.x(figure.value), y + 13.0);
    let name = escaped(name);
    let place = format!("x=\"{}\" y=\"{text}\" text-anchor=\"end\"", LEFT - 8.0);
    line(svg, &format!("<text {place}>{name}</text>"));
    let (top, width, height) = (y + 3.0, (end - LEFT).max(1.0), ROW - 6.0);
    let place = format!("x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\"");
    line(svg, &format!("<rect class=\"{class}\" {place} rx=\"2\"/>"));
    let place = format!("x=\"{:.1}\" y=\"{text}\"", end.max(scale.x(wanted)) + 6.0);
    line(svg, &format!("<text {place}>{}</text>", shown(figure)));
}

fn line(svg: &mut String, text: &str) {
    // Writing into a string cannot fail.
    let _ = writeln!(svg, "{text}");
}

fn power_of_ten(power: i32) -> String {
    match power {
        6.. => format!("{} M", 10_i64.pow(power.unsigned_abs().min(15) - 6)),
        3..6 => format!("{} k", 10_i64.pow(power.unsigned_abs() - 3)),
        _ => format!("{}", 10_i64.pow(power.max(0).unsigned_abs())),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[expect(clippy::cast_precision_loss, reason = "a handful of rows")]
fn count(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::some;
    use super::*;

    #[test]
    fn rates_are_drawn_and_names_are_escaped() {
        let svg = draw(&some());
        assert_eq!(svg.matches("<rect").count(), 2, "ours and the one reference with a rate");
        assert_eq!(svg.matches("class=\"want\"").count(), 1);
        assert!(svg.contains("limit &amp; more") && !svg.contains("limit & more"));
        assert!(!svg.contains("memory"));
    }

    #[test]
    fn nothing_measured_is_an_empty_picture() {
        assert!(!draw(&Results::default()).contains("<rect"));
    }

    #[test]
    fn the_scale_holds_everything_and_is_logarithmic() {
        let scale = Scale { low: 1, high: 3 };
        assert!((scale.x(10.0) - LEFT).abs() < 1e-9 && (scale.x(1000.0) - RIGHT).abs() < 1e-9);
        assert!((scale.x(100.0) - f64::midpoint(LEFT, RIGHT)).abs() < 1e-9);
    }
}

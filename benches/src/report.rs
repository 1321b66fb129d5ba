//! Figures: what was measured, what it is compared with, what is wanted; and how they are printed.
//!
//! Knows nothing of how a figure came about.

use serde::Serialize;

/// A bound on a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The value is to be this or less.
    ValueAtMost(f64),
    /// The value is to be less.
    ValueBelow(f64),
    /// The value is to be this or more.
    ValueAtLeast(f64),
    /// The ratio is to be this or more.
    RatioAtLeast(f64),
}

/// How a figure stands to its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It meets its target.
    Ok,
    /// It misses its target.
    Short,
    /// It has a target and no value.
    NotMeasured,
    /// It has no target.
    Info,
}

/// One measured number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// `group/what`.
    pub name: String,
    /// The number; none when it could not be measured, which the note explains.
    pub value: Option<f64>,
    /// The number's unit.
    pub unit: &'static str,
    /// The number, divided by that of the yardstick measured in the same run.
    pub ratio: Option<f64>,
    /// What is wanted of it.
    pub target: Option<Target>,
    /// Anything that helps to read it.
    pub note: Option<String>,
}

impl Figure {
    /// A measured figure.
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), value: Some(value), unit, ratio: None, target: None, note: None }
    }

    /// A figure that could not be measured, and why.
    pub fn not_measured(name: impl Into<String>, unit: &'static str, why: impl Into<String>) -> Self {
        Self { name: name.into(), value: None, unit, ratio: None, target: None, note: Some(why.into()) }
    }

    /// Compares it with the same quantity of the yardstick.
    pub fn beside(mut self, yardstick: f64) -> Self {
        self.ratio = self.value.filter(|_| yardstick > 0.0).map(|value| value / yardstick);
        self
    }

    /// States what is wanted.
    pub fn wanted(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// Adds an explanation.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// How it stands to its target.
    pub fn verdict(&self) -> Verdict {
        let Some(target) = self.target else { return Verdict::Info };
        let met = match target {
            Target::ValueAtMost(bound) => self.value.map(|value| value <= bound),
            Target::ValueBelow(bound) => self.value.map(|value| value < bound),
            Target::ValueAtLeast(bound) => self.value.map(|value| value >= bound),
            Target::RatioAtLeast(bound) => self.ratio.map(|ratio| ratio >= bound),
        };
        match met {
            None => Verdict::NotMeasured,
            Some(true) => Verdict::Ok,
            Some(false) => Verdict::Short,
        }
    }

    /// The figure in one line, in columns.
    pub fn line(&self) -> String {
        let value = self.value.map_or_else(|| "-".to_owned(), number);
        let ratio = self.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x"));
        let target = match self.target {
            None => String::new(),
            Some(Target::ValueAtMost(bound)) => format!("<= {} {}", number(bound), self.unit),
            Some(Target::ValueBelow(bound)) => format!("< {} {}", number(bound), self.unit),
            Some(Target::ValueAtLeast(bound)) => format!(">= {} {}", number(bound), self.unit),
            Some(Target::RatioAtLeast(bound)) => format!(">= {bound:.2}x"),
        };
        let verdict = match self.verdict() {
            Verdict::Ok => "ok",
            Verdict::Short => "short",
            Verdict::NotMeasured => "not measured",
            Verdict::Info => "",
        };
        let note = self.note.as_ref().map_or_else(String::new, |note| format!("  ({note})"));
        let line = format!("{:<34} {value:>9} {:<12} {ratio:>8}  {target:<18} {verdict}{note}", self.name, self.unit);
        line.trim_end().to_owned()
    }
}

/// The heading of the columns of [`Figure::line`].
pub fn heading() -> String {
    format!("{:<34} {:>9} {:<12} {:>8}  {:<18} verdict", "figure", "value", "unit", "ratio", "target")
}

/// Three significant digits, and `M` for millions.
fn number(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        _ if magnitude >= 1e6 => format!("{:.2} M", value / 1e6),
        _ if magnitude >= 100.0 => format!("{value:.0}"),
        _ if magnitude >= 10.0 => format!("{value:.1}"),
        _ if magnitude >= 1.0 || magnitude == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The middle value; of an even number of values, the mean of the two in the middle. None of no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_follows_from_value_ratio_and_target() {
        let check = |figure: Figure| figure.verdict();
        let figure = Figure::new("a/b", 10.0, "ms");
        assert_eq!(check(figure.clone()), Verdict::Info);
        assert_eq!(check(figure.clone().wanted(Target::ValueAtMost(10.0))), Verdict::Ok);
        assert_eq!(check(figure.clone().wanted(Target::ValueBelow(10.0))), Verdict::Short);
        assert_eq!(check(figure.clone().wanted(Target::ValueAtLeast(10.0))), Verdict::Ok);
        assert_eq!(check(figure.clone().wanted(Target::ValueAtLeast(10.5))), Verdict::Short);
        assert_eq!(check(figure.clone().wanted(Target::RatioAtLeast(0.75))), Verdict::NotMeasured);
        assert_eq!(check(figure.clone().beside(13.0).wanted(Target::RatioAtLeast(0.75))), Verdict::Ok);
        assert_eq!(check(figure.beside(14.0).wanted(Target::RatioAtLeast(0.75))), Verdict::Short);
        let absent = Figure::not_measured("a/b", "ms", "no such figure").wanted(Target::ValueAtMost(1.0));
        assert_eq!(check(absent), Verdict::NotMeasured);
    }

    #[test]
    fn a_value_that_is_not_a_number_meets_no_target() {
        assert_eq!(Figure::new("a/b", f64::NAN, "ms").wanted(Target::ValueBelow(1.0)).verdict(), Verdict::Short);
        assert_eq!(Figure::new("a/b", 1.0, "ms").beside(0.0).ratio, None);
    }

    #[test]
    fn a_line_has_value_ratio_target_and_verdict() {
        let figure = Figure::new("bid-euro/throughput", 1_624_000.0, "records/s").beside(2_030_000.0);
        let line = figure.wanted(Target::RatioAtLeast(0.75)).note("median of 3").line();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words,
            ["bid-euro/throughput", "1.62", "M", "records/s", "0.80x", ">=", "0.75x", "ok", "(median", "of", "3)"]
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        let check = |value| number(value);
        assert_eq!(check(0.0), "0.00");
        assert_eq!(check(0.0123), "0.012");
        assert_eq!(check(1.234), "1.23");
        assert_eq!(check(12.34), "12.3");
        assert_eq!(check(1234.5), "1234");
        assert_eq!(check(2_900_000.0), "2.90 M");
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 5.0, 2.0]), Some(3.5));
    }
}

//! Counts words, in two steps of one component: `split` makes a record of each word, keyed by the word; `count` counts per key.
//!
//! Two operators are needed because the count of a word belongs to whoever owns the word, not the line.
#![warn(missing_docs)]

use serde::{Deserialize, Serialize};
use wasmill_sdk::{Config, Context, Description, Fixed, Function, Record, Reject, Table};

/// How often each word has come.
pub const COUNTS: Table<Fixed<u64>> = Table::new("counts");

/// The operator's `config`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    step: Step,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Step {
    Split,
    Count,
}

/// A line of output: a word, and how often it has come so far.
#[derive(Debug, Serialize)]
struct Line<'a> {
    word: &'a str,
    count: u64,
}

/// One step of the count.
#[derive(Debug)]
pub struct WordCount {
    step: Step,
}

impl Function for WordCount {
    fn describe() -> Description {
        Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")).table(&COUNTS)
    }

    fn init(config: Config<'_>) -> Result<Self, String> {
        let Settings { step } = config.parse()?;
        Ok(Self { step })
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        match self.step {
            Step::Split => split(record, context),
            Step::Count => count(record, context),
        }
    }
}

fn split(record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
    for word in record.text()?.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        context.emit(word.to_lowercase(), "");
    }
    Ok(())
}

fn count(record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
    let word = record.key_text()?;
    let count = context.state(&COUNTS)?.update(|count| {
        *count += 1;
        *count
    });
    context.emit_json(word, &Line { word, count })
}

wasmill_sdk::export!(WordCount);

#[cfg(test)]
mod tests {
    use super::*;
    use wasmill_sdk::testing::{Harness, record};

    #[test]
    fn a_line_becomes_its_words_in_lower_case() {
        let mut harness = Harness::<WordCount>::new(r#"{"step": "split"}"#);
        let outcome = harness.process([record("", "Tea, tea -- and TEA."), record("", ""), record("", "Über 7")]);
        let words: Vec<String> = outcome.emitted.iter().map(|emitted| emitted.key_text()).collect();
        assert_eq!(words, ["tea", "tea", "and", "tea", "über", "7"]);
    }

    #[test]
    fn a_line_that_is_not_utf8_is_refused_alone() {
        let mut harness = Harness::<WordCount>::new(r#"{"step": "split"}"#);
        let outcome = harness.process([record("", b"one \xff"), record("", "two")]);
        assert_eq!(outcome.emitted.len(), 1);
        assert_eq!(outcome.rejected[0].index, 0);
    }

    #[test]
    fn counts_go_on_from_batch_to_batch() {
        let mut harness = Harness::<WordCount>::new(r#"{"step": "count"}"#);
        let outcome = harness.process([record("tea", ""), record("cup", ""), record("tea", "")]);
        let expected = [r#"{"word":"tea","count":1}"#, r#"{"word":"cup","count":1}"#, r#"{"word":"tea","count":2}"#];
        assert_eq!(outcome.texts(), expected);
        assert_eq!(harness.process([record("tea", "")]).texts(), [r#"{"word":"tea","count":3}"#]);
        assert_eq!(harness.state(&COUNTS, "cup"), Some(1));
    }

    #[test]
    fn an_unknown_step_is_an_error_of_the_manifest() {
        let error = Harness::<WordCount>::try_new(r#"{"step": "sum"}"#).err();
        let expected = "`config` does not fit: unknown variant `sum`, expected `split` or `count`";
        assert_eq!(error.as_deref(), Some(expected));
    }
}

//! Reads what a files sink has written and puts it into a table for people.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;

/// A table over the JSON lines of a sink, of which the last line of each key counts.
#[derive(Debug)]
pub struct View {
    pub title: &'static str,
    /// The sink's name in the manifest.
    pub sink: &'static str,
    /// The field by which a line replaces an earlier one.
    pub key: &'static str,
    /// The field of numbers by which rows are sorted, greatest first.
    pub sort_by: &'static str,
    /// A field and the least number in it for a row to be shown.
    pub at_least: Option<(&'static str, f64)>,
    /// Fields and their headings.
    pub columns: &'static [(&'static str, &'static str)],
}

/// The first `rows` rows of a view, with its title.
pub fn show(view: &View, folder: &Path, rows: usize) -> anyhow::Result<String> {
    let records = arrange(view, last_per_key(&read(folder)?, view.key)?);
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(view.columns.iter().map(|(_, heading)| *heading));
    for record in records.iter().take(rows) {
        table.add_row(view.columns.iter().map(|(field, _)| text_of(&record[*field])));
    }
    for (index, (field, _)) in view.columns.iter().enumerate() {
        let is_number = records.iter().any(|record| record[*field].is_number());
        if let Some(column) = table.column_mut(index).filter(|_| is_number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Ok(format!("{} ({} in all)\n{table}", view.title, records.len()))
}

/// The last `lines` lines of a sink, as they are.
pub fn show_last_lines(folder: &Path, lines: usize) -> anyhow::Result<String> {
    let text = read(folder)?;
    let all = text.lines().collect::<Vec<_>>();
    Ok(all[all.len().saturating_sub(lines)..].join("\n"))
}

/// All files of a sink, one after another in the order of their names. Of a job on several hosts, each has a folder of its own in it.
pub fn read(folder: &Path) -> anyhow::Result<String> {
    let entries = folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))?;
    let is_output = |path: &PathBuf| !path.file_name().is_some_and(is_hidden);
    let mut paths = entries.flatten().map(|entry| entry.path()).filter(is_output).collect::<Vec<_>>();
    paths.sort();
    let mut text = String::new();
    for path in paths {
        let content = if path.is_dir() { read(&path) } else { std::fs::read_to_string(&path).map_err(Into::into) };
        text += &content.with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(text)
}

fn is_hidden(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn last_per_key(text: &str, key: &str) -> anyhow::Result<Vec<Value>> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut records = Vec::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).with_context(|| format!("the output line `{line}`"))?;
        let place = *places.entry(record[key].to_string()).or_insert(records.len());
        if place == records.len() { records.push(record) } else { records[place] = record }
    }
    Ok(records)
}

fn arrange(view: &View, mut records: Vec<Value>) -> Vec<Value> {
    let number = |record: &Value, field: &str| record[field].as_f64().unwrap_or(f64::NEG_INFINITY);
    if let Some((field, least)) = view.at_least {
        records.retain(|record| number(record, field) >= least);
    }
    // Equal numbers are put in the order of their keys, so that every run shows the same table.
    records.sort_by(|a, b| {
        let by_number = number(b, view.sort_by).total_cmp(&number(a, view.sort_by));
        by_number.then_with(|| a[view.key].to_string().cmp(&b[view.key].to_string()))
    });
    records
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => format!("{:.1}", number.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIEW: View = View {
        title: "Words",
        sink: "out",
        key: "word",
        sort_by: "count",
        at_least: Some(("count", 2.0)),
        columns: &[("word", "word"), ("count", "n")],
    };

    #[test]
    fn the_last_line_of_each_key_counts_and_rows_are_sorted() {
        let dir = tempfile::tempdir().unwrap();
        let line = |word: &str, count: u64| format!("{{\"word\":\"{word}\",\"count\":{count}}}\n");
        std::fs::write(dir.path().join("part-2"), line("tea", 2) + &line("cup", 9)).unwrap();
        std::fs::write(dir.path().join("part-1"), line("tea", 1) + &line("rare", 1) + &line("ale", 2)).unwrap();
        std::fs::write(dir.path().join(".part-3.tmp"), line("tea", 100)).unwrap();
        let shown = show(&VIEW, dir.path(), 10).unwrap();
        let is_word = |text: &&str| text.chars().all(char::is_alphabetic);
        let words = shown.lines().filter_map(|line| line.split_whitespace().find(is_word)).collect::<Vec<_>>();
        assert_eq!(words, ["Words", "word", "cup", "ale", "tea"], "{shown}");
        assert!(shown.starts_with("Words (3 in all)\n"), "{shown}");
    }

    #[test]
    fn the_last_lines_are_shown_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("part-1"), "one\ntwo\nthree\n").unwrap();
        assert_eq!(show_last_lines(dir.path(), 2).unwrap(), "two\nthree");
        assert_eq!(show_last_lines(dir.path(), 9).unwrap(), "one\ntwo\nthree");
    }
}

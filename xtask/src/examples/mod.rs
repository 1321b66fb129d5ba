//! What a demo does beyond running its job: large inputs, made from a seed, and checks of results against plain computations over the same input.
//!
//! The checks share no code with the functions nor with the host: they read the input, what the sinks hold, and the state as `wasmill state scan` shows it.

mod components;
mod dice;
mod enrich;
mod likes;
mod transfer;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::results;

/// What is known of an example beside its folder.
pub struct Example {
    /// The name of its folder.
    pub name: &'static str,
    /// Its manifests, each run by itself.
    pub manifests: &'static [&'static str],
    /// Makes input in a folder. Without it, the job reads the data that its manifest names.
    pub make_input: Option<fn(&Path) -> anyhow::Result<Inputs>>,
    /// Compares a result with a plain computation, and says what it has found right.
    pub check: fn(&Ran<'_>) -> anyhow::Result<String>,
}

/// The sources whose input was made, by name, with their files.
pub type Inputs = Vec<(&'static str, PathBuf)>;

/// The examples whose results are checked.
pub const EXAMPLES: [Example; 4] = [likes::EXAMPLE, enrich::EXAMPLE, transfer::EXAMPLE, components::EXAMPLE];

/// A job that has run to its end.
pub struct Ran<'a> {
    /// The name of its manifest.
    pub manifest: &'a str,
    /// The example's own folder.
    pub example: PathBuf,
    /// The files that were made for it.
    pub inputs: &'a Inputs,
    /// The folders of its files sinks, by name.
    pub outputs: BTreeMap<String, PathBuf>,
    /// Begins `wasmill state scan` of each host's state; the table's name is still to come.
    pub scans: &'a dyn Fn() -> Vec<Command>,
}

impl Ran<'_> {
    /// The lines that a source has read, each as JSON.
    fn input(&self, source: &str) -> anyhow::Result<Vec<Value>> {
        let input = self.inputs.iter().find(|(name, _)| *name == source);
        let (_, path) = input.with_context(|| format!("no input was made for the source `{source}`"))?;
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        json_lines(&text)
    }

    /// The lines that a sink has written, each as JSON.
    fn output(&self, sink: &str) -> anyhow::Result<Vec<Value>> {
        let folder = self.outputs.get(sink).with_context(|| format!("the manifest has no files sink `{sink}`"))?;
        json_lines(&results::read(folder)?)
    }

    /// All keys of a table with their values.
    fn state(&self, table: &str) -> anyhow::Result<BTreeMap<String, Value>> {
        let mut entries = BTreeMap::new();
        for mut scan in (self.scans)() {
            scan.args([table, "--json", "--limit", "1000000000"]);
            let scanned = scan.output().context("cannot start `wasmill state scan`")?;
            let error = || String::from_utf8_lossy(&scanned.stderr);
            ensure!(scanned.status.success(), "`wasmill state scan` failed: {}", error());
            for mut line in json_lines(std::str::from_utf8(&scanned.stdout)?)? {
                let key = text(&line, "key")?.to_owned();
                ensure!(!entries.contains_key(&key), "two hosts have the key `{key}` of {table}");
                entries.insert(key, line["value"].take());
            }
        }
        Ok(entries)
    }
}

/// Writes records as lines of JSON into `folder/name`.
fn write_lines(folder: &Path, name: &str, records: impl IntoIterator<Item = Value>) -> anyhow::Result<PathBuf> {
    let path = folder.join(name);
    let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    let mut writer = BufWriter::new(file);
    records.into_iter().try_for_each(|record| writeln!(writer, "{record}"))?;
    writer.flush()?;
    Ok(path)
}

fn json_lines(text: &str) -> anyhow::Result<Vec<Value>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| format!("the line `{line}`"))).collect()
}

fn text<'a>(record: &'a Value, field: &str) -> anyhow::Result<&'a str> {
    record[field].as_str().with_context(|| format!("no text `{field}` in {record}"))
}

fn number(record: &Value, field: &str) -> anyhow::Result<i64> {
    record[field].as_i64().with_context(|| format!("no whole number `{field}` in {record}"))
}

/// The integers of 64 bits that a value of state holds, one after another, little-endian.
fn numbers(value: &Value) -> anyhow::Result<Vec<i64>> {
    let Some(hex) = value["hex"].as_str().filter(|hex| hex.len().is_multiple_of(16)) else {
        bail!("{value} is no row of integers of 64 bits");
    };
    let digits = hex.as_bytes().chunks(16).map(|digits| std::str::from_utf8(digits).unwrap_or_default());
    digits.map(|digits| Ok(u64::from_str_radix(digits, 16)?.swap_bytes().cast_signed())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_the_state_shows_them() {
        let value = serde_json::json!({ "hex": "0100000000000000feffffffffffffff" });
        assert_eq!(numbers(&value).unwrap(), [1, -2]);
        assert!(numbers(&serde_json::json!({ "hex": "01" })).is_err());
        assert!(numbers(&serde_json::json!("text")).is_err());
    }

    #[test]
    fn each_example_has_a_folder_with_its_manifests() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest-examples");
        for example in &EXAMPLES {
            for manifest in example.manifests {
                assert!(root.join(example.name).join(manifest).is_file(), "{} {manifest}", example.name);
            }
        }
    }
}

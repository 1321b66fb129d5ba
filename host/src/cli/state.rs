//! `wasmill state tables|get|scan job.toml …`: reads the committed state of a stopped job.

use clap::{Args, Subcommand};
use comfy_table::Table;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::load::JobArgs;
use super::{Failure, print};
use crate::job::JobError;
use crate::state::StateError;
use crate::state::offline::Reader;

/// Arguments of `wasmill state`.
#[derive(Debug, Args)]
pub(super) struct StateArgs {
    #[command(subcommand)]
    query: Query,
}

#[derive(Debug, Subcommand)]
enum Query {
    /// The tables, with their numbers of keys.
    Tables {
        #[command(flatten)]
        job: JobArgs,
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// The value of one key. Exit code 1 when it has none.
    Get {
        #[command(flatten)]
        job: JobArgs,
        /// `OPERATOR/TABLE`, or only the operator where it has one table.
        table: String,
        /// The key.
        key: String,
        /// Print a JSON object, also with the key.
        #[arg(long)]
        json: bool,
    },
    /// Keys and values in the order of the keys.
    Scan {
        #[command(flatten)]
        job: JobArgs,
        /// `OPERATOR/TABLE`, or only the operator where it has one table.
        table: String,
        /// Only keys that begin with this.
        #[arg(long, default_value = "")]
        prefix: String,
        /// Begin at this key.
        #[arg(long)]
        from: Option<String>,
        /// The most keys.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// Print a JSON object a line.
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(arguments: &StateArgs) -> Result<(), Failure> {
    match &arguments.query {
        Query::Tables { job, json } => tables(&open(job)?, *json),
        Query::Get { job, table, key, json } => get(&open(job)?, table, key, *json),
        Query::Scan { job, table, prefix, from, limit, json } => {
            scan(&open(job)?, table, prefix, from.as_deref(), *limit, *json)
        }
    }
}

fn open(job: &JobArgs) -> Result<Reader, Failure> {
    let job = super::load_job(job)?;
    let directory = job.loaded.resolve(&job.loaded.manifest.job.state);
    Reader::open(&directory).map_err(failed)
}

fn failed(error: StateError) -> Failure {
    let message = format!("cannot read the state: {error}");
    Failure::Because(JobError::from(error).exit_code(), message)
}

fn tables(reader: &Reader, as_json: bool) -> Result<(), Failure> {
    let tables = reader.tables().map_err(failed)?;
    if as_json {
        let tables: Vec<Value> = tables
            .iter()
            .map(|table| json!({ "name": &*table.name, "keys": table.keys, "schema_versions": table.schema_versions }))
            .collect();
        return print(&format!("{:#}\n", json!({ "epoch": reader.epoch(), "tables": tables })));
    }
    let mut shown = Table::new();
    shown.load_style(comfy_table::presets::UTF8_BORDERS_ONLY).set_header(["table", "keys", "schema versions"]);
    for table in &tables {
        let versions: Vec<String> = table.schema_versions.iter().map(u32::to_string).collect();
        shown.add_row([table.name.to_string(), table.keys.to_string(), versions.join(", ")]);
    }
    print(&format!("{shown}\nas of epoch {}\n", reader.epoch()))
}

/// The table's full name: an operator alone stands for its only table.
fn table_name(reader: &Reader, name: &str) -> Result<String, Failure> {
    let tables = reader.tables().map_err(failed)?;
    let names: Vec<&str> = tables.iter().map(|table| &*table.name).collect();
    if names.contains(&name) {
        return Ok(name.to_owned());
    }
    let of_operator: Vec<&&str> = names.iter().filter(|full| full.split('/').next() == Some(name)).collect();
    match of_operator.as_slice() {
        [only] => Ok((**only).to_owned()),
        _ => Err(Failure::usage(format!("no table `{name}`; there are: {}", names.join(", ")))),
    }
}

fn get(reader: &Reader, table: &str, key: &str, as_json: bool) -> Result<(), Failure> {
    let table = table_name(reader, table)?;
    let Some(value) = reader.get(&table, key.as_bytes()).map_err(failed)? else {
        return Err(Failure::Because(1, format!("`{table}` has no key `{key}` as of epoch {}", reader.epoch())));
    };
    if as_json {
        return print(&format!("{}\n", entry(key.as_bytes(), &value)));
    }
    print(&format!("{}\n", readable(&value)))
}

fn scan(
    reader: &Reader,
    table: &str,
    prefix: &str,
    from: Option<&str>,
    limit: usize,
    as_json: bool,
) -> Result<(), Failure> {
    let table = table_name(reader, table)?;
    let found = reader.scan(&table, prefix.as_bytes(), from.map(str::as_bytes), limit).map_err(failed)?;
    let lines = found.iter().map(|(key, value)| match as_json {
        true => format!("{}\n", entry(key, value)),
        false => format!("{}\t{}\n", readable_key(key), readable(value)),
    });
    print(&lines.collect::<String>())
}

/// A key with its value, as one line of JSON.
fn entry(key: &[u8], value: &[u8]) -> String {
    format!("{{\"key\":{},\"value\":{}}}", text_or_hex(key), as_value(value))
}

/// A value as JSON where it is JSON, as a string where it is text, else as the object `{"hex": …}`. JSON is shown as it was written, members in
/// their order and numbers to the last digit, but on one line.
fn as_value(bytes: &[u8]) -> String {
    match (std::str::from_utf8(bytes), serde_json::from_slice::<IgnoredAny>(bytes)) {
        (Ok(json), Ok(_)) => json.trim().replace(['\n', '\r'], " "),
        _ => text_or_hex(bytes).to_string(),
    }
}

fn text_or_hex(bytes: &[u8]) -> Value {
    match text(bytes) {
        Some(text) => text.into(),
        None => json!({ "hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}

/// Bytes that people can read.
fn text(bytes: &[u8]) -> Option<&str> {
    let is_readable = |text: &&str| !text.chars().any(|c| c.is_control() && c != '\n' && c != '\t');
    std::str::from_utf8(bytes).ok().filter(is_readable)
}

/// A value for people: text without quotes.
fn readable(bytes: &[u8]) -> String {
    let value = as_value(bytes);
    serde_json::from_str::<String>(&value).unwrap_or(value)
}

/// A key for people: on one line.
fn readable_key(key: &[u8]) -> String {
    match text(key) {
        Some(text) if !text.contains(['\n', '\t']) => text.to_owned(),
        _ => key.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_what_they_are() {
        assert_eq!(
            as_value(b"{\"n\":1,\n \"a\":12345678901234567890123}"),
            "{\"n\":1,  \"a\":12345678901234567890123}"
        );
        assert_eq!(as_value(b"plain \"text\""), r#""plain \"text\"""#);
        assert_eq!(as_value(&[7, 0, 0, 0]), r#"{"hex":"07000000"}"#);
        assert_eq!(
            (readable(b"12"), readable(b"\"a\\nb\""), readable(b"plain")),
            ("12".into(), "a\nb".into(), "plain".into())
        );
    }

    #[test]
    fn keys_are_shown_on_one_line() {
        assert_eq!(readable_key("größe".as_bytes()), "größe");
        assert_eq!(readable_key(b"a\tb"), "a\\tb");
        assert_eq!(readable_key(b"\xff"), "\\xff");
        assert_eq!(entry(b"a\tb", b"{}"), r#"{"key":"a\tb","value":{}}"#);
    }
}

//! `wasmill state tables|get|scan|watch job.toml …`: reads the state of a job, be it stopped or running.

use clap::{Args, Subcommand};
use comfy_table::Table as Shown;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::load::HostArgs;
use super::stored::{self, Component, State, failed, refusal};
use super::{Failure, print};
use crate::admin::{self, render};
use crate::epoch::Epoch;
use crate::lookup::Consistency;

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
        job: HostArgs,
        #[command(flatten)]
        moment: MomentArgs,
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
    },
    /// The value of one key. Exit code 1 when it has none.
    Get {
        #[command(flatten)]
        job: HostArgs,
        /// `OPERATOR/TABLE`, or only the operator where it has one table.
        table: String,
        /// The key.
        key: String,
        #[command(flatten)]
        moment: MomentArgs,
        #[command(flatten)]
        shown: ShownArgs,
        /// Print a JSON object, also with the key.
        #[arg(long)]
        json: bool,
    },
    /// Keys and values in the order of the keys.
    Scan {
        #[command(flatten)]
        job: HostArgs,
        /// `OPERATOR/TABLE`, or only the operator where it has one table.
        table: String,
        #[command(flatten)]
        moment: MomentArgs,
        /// Only keys that begin with this.
        #[arg(long, default_value = "")]
        prefix: String,
        /// Begin at this key.
        #[arg(long)]
        from: Option<String>,
        /// The most keys.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        shown: ShownArgs,
        /// Print a JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// The value of one key of a running job, and then each committed epoch in which it changes, until the job ends.
    Watch {
        #[command(flatten)]
        job: HostArgs,
        /// `OPERATOR/TABLE`, or only the operator where it has one table.
        table: String,
        /// The key.
        key: String,
        /// End after this many values.
        #[arg(long)]
        limit: Option<u64>,
        /// Print a JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Which component each operator runs, or runs at the next start.
    Components {
        #[command(flatten)]
        job: HostArgs,
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Refused: state is changed by the job alone.
    #[command(hide = true, aliases = ["set", "delete", "update"])]
    Put {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _arguments: Vec<String>,
    },
}

/// As of when the state is shown.
#[derive(Debug, Args)]
struct MomentArgs {
    /// Of a running job: `committed` for the last committed epoch, `live` for what it has reached, `as-of:EPOCH` for a retained epoch.
    #[arg(long, default_value_t = Consistency::Committed)]
    consistency: Consistency,
}

/// What is shown of a value beside itself.
#[derive(Debug, Clone, Copy, Args)]
struct ShownArgs {
    /// Also say which schema version wrote each value. A running job shows all values as its component has them; so this is of a stopped one.
    #[arg(long)]
    schema_version: bool,
}

pub(super) fn run(arguments: &StateArgs) -> Result<(), Failure> {
    match &arguments.query {
        Query::Tables { job, moment, json } => tables(&State::open(job)?, moment.consistency, *json),
        Query::Get { job, table, key, moment, shown, json } => {
            get(&State::open(job)?, table, key, moment.consistency, *shown, *json)
        }
        Query::Scan { job, table, moment, prefix, from, limit, shown, json } => {
            let state = State::open(job)?;
            if holds_nothing(&state, job, table)? {
                return print_entries(Vec::new(), *shown, *json);
            }
            let table = table_name(&state, table)?;
            let from = from.as_deref().map(str::as_bytes);
            let entries = state.scan(&table, prefix.as_bytes(), from, *limit, moment.consistency)?;
            print_entries(entries, *shown, *json)
        }
        Query::Watch { job, table, key, limit, json } => watch(&State::open(job)?, table, key, *limit, *json),
        Query::Components { job, json } => components(&State::open(job)?, *json),
        Query::Put { .. } => Err(Failure::usage(admin::READ_ONLY)),
    }
}

fn tables(state: &State, consistency: Consistency, as_json: bool) -> Result<(), Failure> {
    let (epoch, tables) = state.tables(consistency)?;
    if as_json {
        let tables: Vec<Value> = tables
            .iter()
            .map(|table| json!({ "name": table.name, "keys": table.keys, "schema_versions": table.schema_versions }))
            .collect();
        return print(&format!("{:#}\n", json!({ "epoch": epoch, "tables": tables })));
    }
    let mut shown = Shown::new();
    shown.load_style(comfy_table::presets::UTF8_BORDERS_ONLY).set_header(["table", "keys", "schema versions"]);
    for table in &tables {
        let versions: Vec<String> = table.schema_versions.iter().map(u32::to_string).collect();
        let keys = table.keys.map_or_else(|| "not counted".to_owned(), |keys| keys.to_string());
        shown.add_row([table.name.clone(), keys, versions.join(", ")]);
    }
    print(&format!("{shown}\n{}\n", as_of(epoch)))
}

fn components(state: &State, as_json: bool) -> Result<(), Failure> {
    let components = state.components()?;
    if as_json {
        return print(&format!("{:#}\n", json!({ "components": components })));
    }
    let mut shown = Shown::new();
    shown
        .load_style(comfy_table::presets::UTF8_BORDERS_ONLY)
        .set_header(["operator", "function", "version", "sha256", ""]);
    for Component { operator, name, version, sha256, reloaded } in components {
        let how = if reloaded { "reloaded" } else { "as the manifest says" };
        shown.add_row([operator, name, version, sha256, how.to_owned()]);
    }
    print(&format!("{shown}\n"))
}

/// As of when something was read, for people.
fn as_of(epoch: Option<Epoch>) -> String {
    epoch.map_or_else(|| "at present".to_owned(), |epoch| format!("as of epoch {epoch}"))
}

/// Whether one of several hosts is asked, and nothing of the table has come to it yet.
fn holds_nothing(state: &State, job: &HostArgs, table: &str) -> Result<bool, Failure> {
    let operator = table.split(['/', '.']).next().unwrap_or_default();
    let is_of_operator = |name: &String| name.split('/').next() == Some(operator);
    Ok(job.host.is_some() && !state.names()?.iter().any(is_of_operator) && job.has_operator(operator)?)
}

/// The table's full name: an operator alone stands for its only table.
fn table_name(state: &State, name: &str) -> Result<String, Failure> {
    let names = state.names()?;
    if names.iter().any(|full| full == name) {
        return Ok(name.to_owned());
    }
    let of_operator: Vec<&String> = names.iter().filter(|full| full.split('/').next() == Some(name)).collect();
    match of_operator.as_slice() {
        [only] => Ok((*only).clone()),
        _ => Err(Failure::usage(format!("no table `{name}`; there are: {}", names.join(", ")))),
    }
}

fn get(
    state: &State,
    table: &str,
    key: &str,
    consistency: Consistency,
    shown: ShownArgs,
    as_json: bool,
) -> Result<(), Failure> {
    let table = table_name(state, table)?;
    let found = state.get(&table, key.as_bytes(), consistency)?;
    let Some(value) = found.value else {
        return Err(Failure::Because(1, format!("`{table}` has no key `{key}` {}", as_of(found.epoch))));
    };
    if as_json || shown.schema_version {
        return print_entries(vec![(key.as_bytes().to_vec(), value)], shown, as_json);
    }
    print(&format!("{}\n", render::readable(&value.json)))
}

fn print_entries(entries: stored::Entries, shown: ShownArgs, as_json: bool) -> Result<(), Failure> {
    let mut lines = String::new();
    for (key, stored::Shown { json, schema_version }) in &entries {
        let version = match (shown.schema_version, schema_version) {
            (false, _) => None,
            (true, Some(version)) => Some(version),
            (true, None) => {
                return Err(Failure::usage(
                    "a running job shows all values as its component has them; stop it to see which schema version wrote each",
                ));
            }
        };
        lines += &match (as_json, version) {
            (true, None) => format!("{{\"key\":{},\"value\":{json}}}\n", render::text_or_hex(key)),
            (true, Some(version)) => {
                format!("{{\"key\":{},\"value\":{json},\"schema_version\":{version}}}\n", render::text_or_hex(key))
            }
            (false, None) => format!("{}\t{}\n", render::readable_key(key), render::readable(json)),
            (false, Some(version)) => {
                format!("{}\t{}\tschema version {version}\n", render::readable_key(key), render::readable(json))
            }
        };
    }
    print(&lines)
}

/// What an event tells.
#[derive(Deserialize)]
struct Told {
    epoch: Epoch,
    value: Option<Box<RawValue>>,
}

fn watch(state: &State, table: &str, key: &str, limit: Option<u64>, as_json: bool) -> Result<(), Failure> {
    let State::Running(client) = state else {
        return Err(failed("the job is not running, so nothing changes; `wasmill state get` reads what it has left"));
    };
    let path = stored::dotted(&table_name(state, table)?);
    let path = format!("/tables/{path}/-/watch?key-hex={}", render::to_hex(key.as_bytes()));
    let (mut left, mut result) = (limit, Ok(()));
    let mut each = |event: &str| {
        result = show(event, as_json).and_then(|line| print(&line));
        left = left.map(|left| left.saturating_sub(1));
        result.is_ok() && left != Some(0)
    };
    if limit != Some(0) {
        client.follow(&path, &mut each).map_err(refusal)?;
    }
    result
}

/// An event as one line.
fn show(event: &str, as_json: bool) -> Result<String, Failure> {
    if as_json {
        return Ok(format!("{event}\n"));
    }
    let told: Told =
        serde_json::from_str(event).map_err(|error| failed(format!("the job's answer makes no sense: {error}")))?;
    let value = told.value.map_or_else(|| "absent".to_owned(), |value| render::readable(value.get()));
    Ok(format!("{}\t{value}\n", told.epoch))
}

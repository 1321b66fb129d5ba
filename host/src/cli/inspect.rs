//! `wasmill inspect fn.wasm`: what a component is.

use std::path::PathBuf;

use clap::Args;
use comfy_table::Table;

use super::{Failure, failed, print};
use crate::plugin::engine::{Engine, Function};
use crate::plugin::{Description, WORLD};

/// Arguments of `wasmill inspect`.
#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// The component's file.
    component: PathBuf,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &InspectArgs) -> Result<(), Failure> {
    let engine = Engine::new().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(failed)?;
    let function = runtime.block_on(engine.load(&arguments.component)).map_err(Failure::usage)?;
    if arguments.json {
        return print(&format!("{:#}\n", json(&function)));
    }
    print(&text(&function))
}

fn json(function: &Function) -> serde_json::Value {
    let description = &function.description;
    let table = |(name, version): &(String, u32)| {
        serde_json::json!({
            "name": name,
            "schema_version": version,
            "open": description.open_tables.contains(name),
            "ordered": description.ordered_tables.contains(name),
            "versioned_ms": span_ms(description, name),
        })
    };
    let tables: Vec<_> = description.tables.iter().map(table).collect();
    serde_json::json!({
        "component": function.path,
        "world": WORLD,
        "name": description.name,
        "version": description.version,
        "tables": tables,
        "migrates_from": description.migrates_from,
        "uses": description.uses,
        "ports": description.ports,
        "imports": function.imports,
        "exports": function.exports,
        "size_bytes": function.size,
        "sha256": function.sha256(),
    })
}

/// For how long a table keeps earlier values.
fn span_ms(description: &Description, table: &str) -> Option<u64> {
    description.versioned_tables.iter().find(|(name, _)| name == table).map(|(_, span_ms)| *span_ms)
}

/// `accounts (schema version 1, open, ordered)`.
fn table_text(description: &Description, (name, version): &(String, u32)) -> String {
    let mut text = format!("{name} (schema version {version}");
    if description.open_tables.contains(name) {
        text += ", open";
    }
    if description.ordered_tables.contains(name) {
        text += ", ordered";
    }
    if let Some(span_ms) = span_ms(description, name) {
        text += &format!(", versioned for {span_ms} ms");
    }
    text + ")"
}

fn text(function: &Function) -> String {
    let description = &function.description;
    let tables: Vec<String> = description.tables.iter().map(|table| table_text(description, table)).collect();
    let migrates: Vec<String> =
        description.migrates_from.iter().map(|(table, from)| format!("{table} from schema version {from}")).collect();
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    let list = |items: &[String]| if items.is_empty() { "none".to_owned() } else { items.join("\n") };
    table
        .add_row(["function", &format!("{} {}", description.name, description.version)])
        .add_row(["world", WORLD])
        .add_row(["tables", &list(&tables)])
        .add_row(["migrates", &list(&migrates)])
        .add_row(["uses", &list(&description.uses)])
        .add_row(["ports", &list(&description.ports)])
        .add_row(["imports", &list(&function.imports)])
        .add_row(["exports", &list(&function.exports)])
        .add_row(["size", &format!("{} bytes", function.size)])
        .add_row(["sha256", &function.sha256()]);
    format!("{table}\n")
}

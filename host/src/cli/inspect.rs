//! `wasmill inspect fn.wasm`: what a component is.

use std::path::PathBuf;

use clap::Args;
use comfy_table::Table;

use super::{Failure, failed, print};
use crate::plugin::WORLD;
use crate::plugin::engine::{Engine, Function};

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

fn digest(function: &Function) -> String {
    function.digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn json(function: &Function) -> serde_json::Value {
    let description = &function.description;
    let tables: Vec<_> = description
        .tables
        .iter()
        .map(|(name, version)| serde_json::json!({ "name": name, "schema_version": version }))
        .collect();
    serde_json::json!({
        "component": function.path,
        "world": WORLD,
        "name": description.name,
        "version": description.version,
        "tables": tables,
        "ports": description.ports,
        "imports": function.imports,
        "exports": function.exports,
        "size_bytes": function.size,
        "sha256": digest(function),
    })
}

fn text(function: &Function) -> String {
    let description = &function.description;
    let tables: Vec<String> =
        description.tables.iter().map(|(name, version)| format!("{name} (schema version {version})")).collect();
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    let list = |items: &[String]| if items.is_empty() { "none".to_owned() } else { items.join("\n") };
    table
        .add_row(["function", &format!("{} {}", description.name, description.version)])
        .add_row(["world", WORLD])
        .add_row(["tables", &list(&tables)])
        .add_row(["ports", &list(&description.ports)])
        .add_row(["imports", &list(&function.imports)])
        .add_row(["exports", &list(&function.exports)])
        .add_row(["size", &format!("{} bytes", function.size)])
        .add_row(["sha256", &digest(function)]);
    format!("{table}\n")
}

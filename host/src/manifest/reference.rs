//! The reference page of the manifest, made from its JSON Schema.

use std::fmt::Write;

use serde_json::{Map, Value as Json};

use super::schema::SCHEMA;
use super::validate::{resolved, toml_text};

/// A whole manifest, as the page shows it.
const EXAMPLE: &str = r#"[job]
name = "auctions"
partitions = 128
memory = "512MiB"

[checkpoint]
interval = "1s"

[sources.bids]
kind = "file"
path = "data/bids-*.jsonl"
format = "jsonl"
key = "/auction"
on-error = "dead-letter"
dead-letter = "refused"

[operators.stats]
component = "bid_stats.wasm"
build = "cargo build --release"
inputs = ["bids"]
config = { currency = "EUR" }

[sinks.out]
kind = "files"
path = "out"
inputs = ["stats"]
roll = "10s"

[sinks.refused]
kind = "files"
path = "refused"
format = "jsonl"
"#;

const INTRODUCTION: &str = "\
# The manifest

<!-- Made from the types by `wasmill schema --reference`. Change the types, not this page. -->

A job is described by one TOML file. `wasmill check job.toml` says what is wrong in it, with line and column;
`wasmill schema` prints its JSON Schema for editors. Fields that are not listed here are refused.

- **Names** of jobs, sources, operators, sinks and hosts have letters, digits, `-` and `_`, at most 64 of them. A name is used
  once among all sources, operators and sinks of a job.
- **Paths** are relative to the manifest's directory, also those given by `--set`.
- **Spans of time** are written with their unit: `\"500ms\"`, `\"1s\"`, `\"2m 30s\"`.
- **Numbers of bytes** are written with their unit: `\"64MiB\"`, `\"1GB\"`; a bare number is bytes.
- **JSON pointers** (RFC 6901) begin with `/`: `/user/id` is the field `id` of the object in the field `user`. In a name, `~1`
  stands for `/` and `~0` for `~`.
- **Overrides**: `--set sources.bids.path=other.jsonl` sets or adds any field. The value is TOML; what is not TOML is taken
  as a string, so that paths need no quotes. A list is set as a whole: `--set 'operators.stats.inputs=[\"bids\"]'`.

";

/// The reference page in Markdown: for each table each field with its type, default, description and an example.
pub fn reference() -> String {
    let mut page = format!("{INTRODUCTION}```toml\n{EXAMPLE}```\n");
    let mut choices = Vec::new();
    let root = &SCHEMA["properties"];
    table(&mut page, &mut choices, "`[job]`", &root["job"]);
    table(&mut page, &mut choices, "`[checkpoint]`", &root["checkpoint"]);
    table(&mut page, &mut choices, "`[admin]`", &root["admin"]);
    table(&mut page, &mut choices, "`[cluster]`", &root["cluster"]);
    let parts = &resolved(&root["cluster"])["properties"];
    table(&mut page, &mut choices, "`[cluster.hosts.NAME]`", &parts["hosts"]["additionalProperties"]);
    table(&mut page, &mut choices, "`[cluster.tls]`", &parts["tls"]);
    kinds(&mut page, &mut choices, "sources", &root["sources"]);
    let operator = &root["operators"]["additionalProperties"];
    table(&mut page, &mut choices, "`[operators.NAME]`", operator);
    let parts = &resolved(operator)["properties"];
    table(&mut page, &mut choices, "`[operators.NAME.limits]`", &parts["limits"]);
    table(&mut page, &mut choices, "`[operators.NAME.tables.TABLE]`", &parts["tables"]["additionalProperties"]);
    table(&mut page, &mut choices, "`[operators.NAME.uses.NAME]`", &parts["uses"]["additionalProperties"]);
    kinds(&mut page, &mut choices, "sinks", &root["sinks"]);
    values(&mut page, &choices);
    page
}

/// The types of fields that are one of a few words, in the order of their first use.
type Choices = Vec<String>;

/// Each kind of source or sink.
fn kinds(page: &mut String, choices: &mut Choices, name: &str, schema: &Json) {
    for variant in resolved(&schema["additionalProperties"])["oneOf"].as_array().into_iter().flatten() {
        let kind = variant["properties"]["kind"]["const"].as_str().unwrap_or_default();
        table(page, choices, &format!("`[{name}.NAME]` of kind `{kind}`"), variant);
    }
}

fn table(page: &mut String, choices: &mut Choices, title: &str, schema: &Json) {
    let kind = resolved(schema);
    let description = schema["description"].as_str().or(kind["description"].as_str()).unwrap_or_default();
    line(page, format_args!("\n## {title}\n\n{description}\n"));
    line(page, format_args!("| field | type | default | what it is | example |\n|---|---|---|---|---|"));
    let none = Map::new();
    let properties = kind["properties"].as_object().unwrap_or(&none);
    let required: Vec<_> = kind["required"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    let optional = properties.keys().map(String::as_str).filter(|name| !required.contains(name));
    for name in required.iter().copied().chain(optional) {
        field(page, choices, name, &properties[name], required.contains(&name));
    }
}

fn field(page: &mut String, choices: &mut Choices, name: &str, schema: &Json, required: bool) {
    let kind = type_text(choices, schema);
    let default = match (required, schema.get("default")) {
        (true, _) => "required".to_owned(),
        (false, Some(Json::Object(fields))) if !fields.is_empty() => "see below".to_owned(),
        (false, Some(Json::Object(_))) | (false, None) => "none".to_owned(),
        (false, Some(value)) => format!("`{}`", toml_text(value)),
    };
    let description = schema["description"].as_str().unwrap_or_default();
    let example = schema.get("const").or_else(|| schema["examples"].get(0));
    let example = example.map(|value| format!("`{name} = {}`", toml_text(value))).unwrap_or_default();
    let cells = [format!("`{name}`"), kind, default, description.to_owned(), example];
    line(page, format_args!("| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | ")));
}

/// What a field may hold. Notes the type when it is one of a few words.
fn type_text(choices: &mut Choices, schema: &Json) -> String {
    let kind = resolved(schema);
    let name = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()).unwrap_or_default();
    match (name, kind["type"].as_str()) {
        ("Duration", _) => "span of time".to_owned(),
        ("ByteSize", _) => "bytes".to_owned(),
        (_, Some("object")) => "table".to_owned(),
        (_, Some("array")) if kind["items"]["type"] == "string" => "list of strings".to_owned(),
        (_, Some("array")) => format!("list of {}", type_text(choices, &kind["items"])),
        (_, Some("integer")) => range_text(kind),
        (_, Some("string")) if schema.get("const").is_some() => format!("`{}`", toml_text(&schema["const"])),
        (_, Some("string")) => "string".to_owned(),
        (_, Some("boolean")) => "`true` or `false`".to_owned(),
        (name, _) => {
            if !choices.iter().any(|known| known == name) {
                choices.push(name.to_owned());
            }
            let words = kind["oneOf"].as_array().into_iter().flatten();
            let words: Vec<_> = words.map(|choice| format!("`{}`", toml_text(&choice["const"]))).collect();
            format!("[{}](#{})", words.join(", "), name.to_lowercase())
        }
    }
}

fn range_text(kind: &Json) -> String {
    match (kind["minimum"].as_u64(), kind["maximum"].as_u64()) {
        (Some(least), Some(most)) if most <= u64::from(u16::MAX) => format!("whole number, {least} to {most}"),
        (Some(least @ 1..), _) => format!("whole number, at least {least}"),
        _ => "whole number".to_owned(),
    }
}

/// What each word means.
fn values(page: &mut String, choices: &Choices) {
    line(page, format_args!("\n## Values"));
    for name in choices {
        let kind = &SCHEMA["$defs"][name];
        line(page, format_args!("\n### {name}\n\n{}\n", kind["description"].as_str().unwrap_or_default()));
        for choice in kind["oneOf"].as_array().into_iter().flatten() {
            let description = choice["description"].as_str().unwrap_or_default();
            line(page, format_args!("- `{}`: {description}", toml_text(&choice["const"])));
        }
    }
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(page, "{text}").expect("a string takes all that is written to it");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::load_text;

    #[test]
    fn the_page_in_docs_is_the_generated_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/manifest.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(committed, reference(), "run `wasmill schema --reference > docs/manifest.md`");
    }

    #[test]
    fn the_example_is_a_manifest() {
        let loaded = load_text("job.toml", "/jobs".into(), EXAMPLE, &[]).map_err(|error| format!("{error:?}")).unwrap();
        assert_eq!(loaded.manifest.operators["stats"].inputs, ["bids"]);
    }
}

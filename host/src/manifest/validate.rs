//! Compares a document with the JSON Schema of a manifest and says of every difference where it is and what was meant.
//!
//! The schema is made from the types, so there is one description of what fields there are. Only what schemas of our own types
//! contain is understood; this is no general validator. It keeps the places that serde's tagged enums lose and finds all faults at once.

use std::str::FromStr;

use serde_json::{Map, Value as Json};

use super::document::{Entry, Fault, Node, Span, Value};
use super::problem::{closest, did_you_mean, listed};
use super::schema::SCHEMA;
use super::units::{BYTE_SIZE_FORMAT, DURATION_FORMAT};
use super::{ByteSize, HumanDuration};

/// Everything in which `root` differs from a manifest.
pub(super) fn validate(root: &Node) -> Vec<Fault> {
    let mut validator = Validator { faults: Vec::new() };
    validator.check(Subject { node: root, key: &root.span, path: Path { parts: &[] } }, &SCHEMA);
    validator.faults
}

/// A value to check: where it is, for messages.
#[derive(Clone, Copy)]
struct Subject<'a> {
    node: &'a Node,
    key: &'a Span,
    path: Path<'a>,
}

/// The names from the root to a value.
#[derive(Clone, Copy)]
struct Path<'a> {
    parts: &'a [&'a str],
}

impl Path<'_> {
    fn dotted(self) -> String {
        self.parts.join(".")
    }

    fn name(self) -> String {
        self.parts.last().map(ToString::to_string).unwrap_or_default()
    }

    /// Where a field is missing or unknown, for people.
    fn place(self) -> String {
        if self.parts.is_empty() { "the manifest".to_owned() } else { format!("`{}`", self.dotted()) }
    }
}

struct Validator {
    faults: Vec<Fault>,
}

impl Validator {
    fn fault(&mut self, span: &Span, message: String, help: Option<String>) {
        self.faults.push(Fault { span: span.clone(), message, help });
    }

    /// `schema` is where the field is described; a reference in it leads to its type.
    fn check(&mut self, subject: Subject<'_>, schema: &Json) {
        let kind = resolved(schema);
        if let Some(choices) = kind.get("oneOf").and_then(Json::as_array) {
            if choices.iter().any(|choice| choice.get("const").is_some()) {
                self.check_choice(subject, choices, schema);
            } else {
                self.check_tagged(subject, choices);
            }
            return;
        }
        match kind["format"].as_str() {
            Some(DURATION_FORMAT) => return self.check_unit::<HumanDuration>(subject, schema, false),
            Some(BYTE_SIZE_FORMAT) => return self.check_unit::<ByteSize>(subject, schema, true),
            _ => {}
        }
        match kind["type"].as_str() {
            Some("object") => self.check_table(subject, kind),
            Some("array") => self.check_list(subject, kind, schema),
            Some("integer") => self.check_integer(subject, kind, schema),
            Some("string") => _ = self.expect_string(subject, schema, "a string"),
            Some("boolean") if !matches!(subject.node.value, Value::Leaf(toml::Value::Boolean(_))) => {
                self.wrong_type(subject, "`true` or `false`", schema);
            }
            _ => {}
        }
    }

    fn wrong_type(&mut self, subject: Subject<'_>, expected: &str, schema: &Json) {
        let message = format!("`{}` must be {expected}, not {}", subject.path.name(), subject.node.type_name());
        let span = if matches!(subject.node.value, Value::Table(_)) { subject.key } else { &subject.node.span };
        self.fault(span, message, example(&subject.path.name(), schema));
    }

    fn expect_string<'a>(&mut self, subject: Subject<'a>, schema: &Json, expected: &str) -> Option<&'a str> {
        if let Value::Leaf(toml::Value::String(text)) = &subject.node.value {
            return Some(text);
        }
        self.wrong_type(subject, expected, schema);
        None
    }

    fn check_unit<T: FromStr<Err = String>>(&mut self, subject: Subject<'_>, schema: &Json, bare: bool) {
        let expected = if bare { "a number of bytes with its unit" } else { "a span of time with its unit" };
        match &subject.node.value {
            Value::Leaf(toml::Value::Integer(0..)) if bare => {}
            Value::Leaf(toml::Value::Integer(number)) => {
                let message = match bare {
                    true => format!("`{}` must not be negative", subject.path.name()),
                    false => format!("`{}` needs a unit: {number} of what?", subject.path.name()),
                };
                self.fault(&subject.node.span, message, example(&subject.path.name(), schema));
            }
            _ => {
                let text = self.expect_string(subject, schema, expected);
                if let Some(message) = text.and_then(|text| text.parse::<T>().err()) {
                    self.fault(&subject.node.span, message, example(&subject.path.name(), schema));
                }
            }
        }
    }

    fn check_integer(&mut self, subject: Subject<'_>, kind: &Json, schema: &Json) {
        let Value::Leaf(toml::Value::Integer(number)) = subject.node.value else {
            return self.wrong_type(subject, "a whole number", schema);
        };
        let least = kind["minimum"].as_i64().unwrap_or(i64::MIN);
        // The schema gives the greatest number of the small types only.
        let most = if kind["format"] == "uint32" { Some(u32::MAX.into()) } else { kind["maximum"].as_i64() };
        let most = most.unwrap_or(i64::MAX);
        let bound = match number {
            _ if number < least => format!("at least {least}"),
            _ if number > most => format!("at most {most}"),
            _ => return,
        };
        let message = format!("`{}` must be {bound}, but is {number}", subject.path.name());
        self.fault(&subject.node.span, message, description(schema));
    }

    fn check_list(&mut self, subject: Subject<'_>, kind: &Json, schema: &Json) {
        let Value::Array(items) = &subject.node.value else {
            return self.wrong_type(subject, "a list", schema);
        };
        let name = format!("an item of {}", subject.path.name());
        for item in items {
            let path = Path { parts: &[&name] };
            self.check(Subject { node: item, key: &item.span, path }, &kind["items"]);
        }
    }

    /// One of a few words.
    fn check_choice(&mut self, subject: Subject<'_>, choices: &[Json], schema: &Json) {
        let words = || choices.iter().filter_map(|choice| choice["const"].as_str());
        let Some(text) = self.expect_string(subject, schema, "a string") else { return };
        if !words().any(|word| word == text) {
            let message =
                format!("unknown value `{text}` for `{}`{}", subject.path.name(), did_you_mean(text, words()));
            self.fault(&subject.node.span, message, Some(format!("one of {}", listed(words()))));
        }
    }

    /// A table whose `kind` decides what its fields are.
    fn check_tagged(&mut self, subject: Subject<'_>, variants: &[Json]) {
        let kind_of = |variant: &Json| variant["properties"]["kind"]["const"].as_str().map(str::to_owned);
        let kinds: Vec<String> = variants.iter().filter_map(kind_of).collect();
        let kinds = || kinds.iter().map(String::as_str);
        let help = || Some(format!("one of {}", listed(kinds())));
        let Some(entries) = self.expect_table(subject) else { return };
        let Some(kind) = entries.get("kind") else {
            self.fault(subject.key, format!("missing field `kind` in {}", subject.path.place()), help());
            return;
        };
        let Value::Leaf(toml::Value::String(text)) = &kind.node.value else {
            let message = format!("`kind` must be a string, not {}", kind.node.type_name());
            self.fault(&kind.node.span, message, help());
            return;
        };
        match variants.iter().find(|variant| kind_of(variant).as_deref() == Some(text)) {
            Some(variant) => self.check_table(subject, variant),
            None => {
                let message = format!("unknown kind `{text}`{}", did_you_mean(text, kinds()));
                self.fault(&kind.node.span, message, help());
            }
        }
    }

    fn expect_table<'a>(&mut self, subject: Subject<'a>) -> Option<&'a std::collections::BTreeMap<String, Entry>> {
        if let Value::Table(entries) = &subject.node.value {
            return Some(entries);
        }
        let path = subject.path.dotted();
        let message = format!("{} must be a table, not {}", subject.path.place(), subject.node.type_name());
        self.fault(&subject.node.span, message, Some(format!("write `[{path}]` and its fields below")));
        None
    }

    fn check_table(&mut self, subject: Subject<'_>, kind: &Json) {
        let Some(entries) = self.expect_table(subject) else { return };
        let none = Map::new();
        let properties = kind["properties"].as_object().unwrap_or(&none);
        let mut misspelt = Vec::new();
        for (name, entry) in entries {
            let parts = [subject.path.parts, &[name.as_str()]].concat();
            let field = Subject { node: &entry.node, key: &entry.key, path: Path { parts: &parts } };
            match (properties.get(name), &kind["additionalProperties"]) {
                (Some(schema), _) => self.check(field, schema),
                (None, schema @ Json::Object(_)) => self.check(field, schema),
                (None, Json::Bool(false)) => misspelt.extend(self.unknown_field(subject, name, entry, properties)),
                (None, _) => {}
            }
        }
        let required = kind["required"].as_array().into_iter().flatten().filter_map(Json::as_str);
        for name in required.filter(|name| !entries.contains_key(*name) && !misspelt.iter().any(|meant| meant == name))
        {
            self.missing_field(subject, name, &properties[name]);
        }
    }

    /// Returns the field that was probably meant: its absence is then no second fault.
    fn unknown_field(
        &mut self,
        table: Subject<'_>,
        name: &str,
        entry: &Entry,
        properties: &Map<String, Json>,
    ) -> Option<String> {
        let names = || properties.keys().map(String::as_str);
        let written =
            |candidate: &str| matches!(&table.node.value, Value::Table(entries) if entries.contains_key(candidate));
        // A field that is still to be written is the likelier one.
        let meant = closest(name, names().filter(|candidate| !written(candidate))).or_else(|| closest(name, names()));
        let suggestion = did_you_mean(name, meant);
        let help = format!("{} has the fields {}", table.path.place(), listed(names()));
        self.fault(&entry.key, format!("unknown field `{name}`{suggestion}"), Some(help));
        meant.map(str::to_owned)
    }

    fn missing_field(&mut self, table: Subject<'_>, name: &str, schema: &Json) {
        if table.path.parts.is_empty() {
            let header =
                if schema.get("additionalProperties").is_some() { format!("{name}.NAME") } else { name.to_owned() };
            self.fault(table.key, format!("missing table `[{header}]`"), description(schema));
        } else {
            let message = format!("missing field `{name}` in {}", table.path.place());
            self.fault(table.key, message, example(name, schema));
        }
    }
}

/// The schema that a reference leads to, or the schema itself.
pub(super) fn resolved(schema: &Json) -> &Json {
    let target = schema["$ref"].as_str().and_then(|reference| SCHEMA.pointer(reference.strip_prefix('#')?));
    target.unwrap_or(schema)
}

/// What the field is for.
fn description(schema: &Json) -> Option<String> {
    schema["description"].as_str().map(str::to_owned)
}

/// How the field could be written, and what it is for.
fn example(name: &str, schema: &Json) -> Option<String> {
    let value = schema["examples"].get(0).or_else(|| resolved(schema)["examples"].get(0))?;
    let written = format!("for example `{name} = {}`", toml_text(value));
    Some(match description(schema) {
        Some(description) => format!("{written}. {description}"),
        None => written,
    })
}

/// A JSON value as TOML writes it on one line.
pub(super) fn toml_text(value: &Json) -> String {
    match value {
        Json::Object(fields) => {
            let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name} = {}", toml_text(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Json::Array(items) => format!("[{}]", items.iter().map(toml_text).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

//! The JSON Schema of a manifest, for editors and for the checks and the reference page that are made from it.

use std::sync::LazyLock;

use schemars::Schema;
use schemars::transform::{Transform, transform_subschemas};
use serde_json::{Map, Value, json};

use super::Manifest;

/// The JSON Schema (draft 2020-12) of a manifest.
pub fn schema() -> Value {
    SCHEMA.clone()
}

/// Made once: each load of a manifest is checked against it.
pub(super) static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let mut schema = schemars::schema_for!(Manifest);
    Tidy.transform(&mut schema);
    let mut schema = schema.to_value();
    for tables in ["sources", "operators", "sinks"] {
        schema["properties"][tables]["propertyNames"] = json!({ "pattern": "^[A-Za-z0-9_-]{1,64}$" });
    }
    schema
});

/// Removes what JSON has and TOML has not (`null`), and describes the `kind` that tells tables apart.
#[derive(Debug, Clone)]
struct Tidy;

impl Transform for Tidy {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        if let Some(object) = schema.as_object_mut() {
            without_null(object);
            described_kinds(object);
        }
    }
}

fn without_null(schema: &mut Map<String, Value>) {
    if schema.get("default") == Some(&Value::Null) {
        schema.remove("default");
    }
    if let Some(Value::Object(default)) = schema.get_mut("default") {
        default.retain(|_, value| !value.is_null());
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(mut choices)) = schema.remove("anyOf") {
        choices.retain(|choice| choice != &json!({ "type": "null" }));
        match choices.as_slice() {
            [Value::Object(only)] => schema.extend(only.clone()),
            _ => _ = schema.insert("anyOf".to_owned(), choices.into()),
        }
    }
}

fn described_kinds(schema: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = schema.get_mut("oneOf") else { return };
    for variant in variants {
        let description = variant["description"].clone();
        let Some(kind) = variant.pointer_mut("/properties/kind").and_then(Value::as_object_mut) else { continue };
        let title = kind.get("const").cloned().unwrap_or_default();
        kind.insert("description".to_owned(), description);
        variant["title"] = title;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_fields_are_not_null() {
        let text = schema().to_string();
        assert!(!text.contains("null"), "{text}");
    }

    #[test]
    fn every_field_is_described() {
        fn visit(path: &str, value: &Value) {
            let Some(object) = value.as_object() else { return };
            for (name, property) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
                assert!(property["description"].is_string(), "{path}/{name}");
            }
            for (name, child) in object {
                visit(&format!("{path}/{name}"), child);
                for (index, item) in child.as_array().into_iter().flatten().enumerate() {
                    visit(&format!("{path}/{name}/{index}"), item);
                }
            }
        }
        visit("", &schema());
    }

    #[test]
    fn kinds_are_told_apart_by_a_constant() {
        let sources = &schema()["$defs"]["Source"]["oneOf"];
        let kinds: Vec<_> =
            sources.as_array().unwrap().iter().map(|v| v["properties"]["kind"]["const"].clone()).collect();
        assert_eq!(kinds, ["file", "stdin", "nexmark"]);
        for variant in sources.as_array().unwrap() {
            assert_eq!(variant["additionalProperties"], json!(false));
            assert!(variant["required"].as_array().unwrap().contains(&json!("kind")));
        }
    }
}

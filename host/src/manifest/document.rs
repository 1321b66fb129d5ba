//! A manifest's text as a tree of values that know where they were written, overrides applied.
//!
//! Serde's tagged enums lose the places of what they read; so the text is kept as a tree beside the [`super::Manifest`] made from it.
//! This file knows TOML and nothing of what the fields mean.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::sort;
use super::{Finding, ManifestError, Problem, Severity};

/// A place in the manifest, by path: names of tables and fields, indices of list items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At {
    /// From the root to the place.
    pub path: Vec<String>,
    /// Which part of it.
    pub part: Part,
}

/// Which part of a `key = value` is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The key, or the name in a table's header.
    Key,
    /// The value; of a table, its key.
    Value,
}

impl At {
    /// The key at `path`.
    pub fn key<S: Into<String>>(path: impl IntoIterator<Item = S>) -> Self {
        Self { path: path.into_iter().map(Into::into).collect(), part: Part::Key }
    }

    /// The value at `path`.
    pub fn value<S: Into<String>>(path: impl IntoIterator<Item = S>) -> Self {
        Self { path: path.into_iter().map(Into::into).collect(), part: Part::Value }
    }
}

/// A manifest's text, the overrides, and where each value was written.
#[derive(Debug, Clone)]
pub struct Document {
    directory: PathBuf,
    texts: Vec<Text>,
    pub(super) root: Node,
}

/// The manifest's text (the first) or an override's.
#[derive(Debug, Clone)]
struct Text {
    file: String,
    content: Arc<str>,
}

/// Bytes of one of the document's texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    text: usize,
    range: Range<usize>,
}

/// A value and where it is written.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) span: Span,
    pub(super) value: Value,
}

/// A value whose parts know where they are written.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Neither a list nor a table.
    Leaf(toml::Value),
    /// A list.
    Array(Vec<Node>),
    /// A table.
    Table(BTreeMap<String, Entry>),
}

/// A field of a table.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: Span,
    pub(super) node: Node,
}

/// Something wrong at a span of the document.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) span: Span,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

impl Document {
    /// Reads `text` and applies `overrides` (`dotted.path=value`) in their order.
    ///
    /// # Errors
    /// Every place where the text or an override is not TOML, or where an override's path leads through something that is no table.
    pub(super) fn parse(
        file: &str,
        directory: PathBuf,
        text: &str,
        overrides: &[String],
    ) -> Result<Self, Vec<Problem>> {
        let mut texts = vec![Text { file: file.to_owned(), content: Arc::from(text) }];
        texts.extend(
            overrides.iter().map(|set| Text { file: format!("--set {set}"), content: Arc::from(set.as_str()) }),
        );
        let root = Node { span: Span { text: 0, range: 0..0 }, value: Value::Table(BTreeMap::new()) };
        let mut document = Self { directory, texts, root };
        let mut faults = Vec::new();
        document.root = read_document(text, &mut faults);
        for (index, set) in overrides.iter().enumerate() {
            apply_override(&mut document.root, index + 1, set, &mut faults);
        }
        if faults.is_empty() { Ok(document) } else { Err(document.problems_of_faults(faults)) }
    }

    /// The manifest's file, as it was named.
    pub fn file(&self) -> &str {
        &self.texts[0].file
    }

    /// The manifest's text.
    pub fn text(&self) -> &str {
        &self.texts[0].content
    }

    /// The directory that the manifest's paths are relative to.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The findings as problems with their places in the text, in its order.
    pub fn problems(&self, findings: impl IntoIterator<Item = Finding>) -> Vec<Problem> {
        let mut problems: Vec<_> = findings
            .into_iter()
            .map(|finding| self.problem(finding.severity, finding.message, finding.help, self.span_of(&finding.at)))
            .collect();
        sort(&mut problems);
        problems
    }

    /// The findings as the reason to refuse the manifest.
    pub fn refusal(&self, findings: impl IntoIterator<Item = Finding>) -> ManifestError {
        ManifestError::new(self.problems(findings))
    }

    /// Where `at` is written, for people: `job.toml:9:8`, or the override.
    pub fn place_of(&self, at: &At) -> String {
        let problem = self.problem(Severity::Error, String::new(), None, self.span_of(at));
        match problem.position() {
            Some(position) if problem.file == self.file() => {
                format!("{}:{}:{}", problem.file, position.line, position.column)
            }
            _ => format!("`{}`", problem.file),
        }
    }

    pub(super) fn problems_of_faults(&self, faults: Vec<Fault>) -> Vec<Problem> {
        faults.into_iter().map(|fault| self.problem(Severity::Error, fault.message, fault.help, &fault.span)).collect()
    }

    fn problem(&self, severity: Severity, message: String, help: Option<String>, span: &Span) -> Problem {
        let text = &self.texts[span.text];
        let mut problem = Problem::of_file(&text.file, message, help);
        problem.severity = severity;
        problem.placed(&text.content, span.range.clone())
    }

    /// Where `at` is written; for what is left out, the innermost table around it that is written.
    fn span_of(&self, at: &At) -> &Span {
        let mut node = &self.root;
        let mut key = &self.root.span;
        for step in &at.path {
            match &node.value {
                Value::Table(entries) => match entries.get(step) {
                    Some(entry) => (node, key) = (&entry.node, &entry.key),
                    None => return key,
                },
                Value::Array(items) => match step.parse().ok().and_then(|index: usize| items.get(index)) {
                    Some(item) => (node, key) = (item, &item.span),
                    None => return key,
                },
                Value::Leaf(_) => return &node.span,
            }
        }
        match (&node.value, at.part) {
            (Value::Table(_), _) | (_, Part::Key) => key,
            _ => &node.span,
        }
    }

    /// The whole document as plain values.
    pub(super) fn to_table(&self) -> toml::Value {
        self.root.to_value()
    }
}

impl Node {
    /// The plain value.
    fn to_value(&self) -> toml::Value {
        match &self.value {
            Value::Leaf(value) => value.clone(),
            Value::Array(items) => toml::Value::Array(items.iter().map(Node::to_value).collect()),
            Value::Table(entries) => {
                toml::Value::Table(entries.iter().map(|(name, entry)| (name.clone(), entry.node.to_value())).collect())
            }
        }
    }

    /// What it is, for people.
    pub(super) fn type_name(&self) -> &'static str {
        match &self.value {
            Value::Leaf(value) => match value {
                toml::Value::String(_) => "a string",
                toml::Value::Integer(_) => "a whole number",
                toml::Value::Float(_) => "a number with a fraction",
                toml::Value::Boolean(_) => "a truth value",
                toml::Value::Datetime(_) => "a date or time",
                toml::Value::Array(_) => "a list",
                toml::Value::Table(_) => "a table",
            },
            Value::Array(_) => "a list",
            Value::Table(_) => "a table",
        }
    }
}

/// Errors of one place are one mistake: the parser goes on after the first and may stumble over its remains.
fn read_document(text: &str, faults: &mut Vec<Fault>) -> Node {
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let span = Span { text: 0, range: error.span().unwrap_or(0..0) };
        let line = |span: &Span| text.as_bytes().iter().take(span.range.start).filter(|byte| **byte == b'\n').count();
        if !faults.iter().any(|fault| line(&fault.span) == line(&span)) {
            faults.push(Fault { span, message: format!("not TOML: {}", one_line(error.message())), help: None });
        }
    }
    Reader { text: 0, offset: 0, faults }.table(table.get_ref(), 0..0)
}

fn one_line(message: &str) -> String {
    message.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Copies the parser's tree. `offset` is added to each span: what was parsed may be a part of the text.
struct Reader<'a> {
    text: usize,
    offset: usize,
    faults: &'a mut Vec<Fault>,
}

impl Reader<'_> {
    fn span(&self, range: Range<usize>) -> Span {
        Span { text: self.text, range: range.start + self.offset..range.end + self.offset }
    }

    fn table(&mut self, table: &DeTable<'_>, range: Range<usize>) -> Node {
        let read = |(key, value): (&Spanned<_>, &Spanned<_>)| {
            let entry = Entry { key: self.span(key.span()), node: self.value(value) };
            (std::borrow::Cow::to_string(key.get_ref()), entry)
        };
        let entries = table.iter().map(read).collect();
        Node { span: self.span(range), value: Value::Table(entries) }
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>) -> Node {
        let leaf = match value.get_ref() {
            DeValue::Table(table) => return self.table(table, value.span()),
            DeValue::Array(items) => {
                let items = items.iter().map(|item| self.value(item)).collect();
                return Node { span: self.span(value.span()), value: Value::Array(items) };
            }
            DeValue::String(text) => toml::Value::String(text.to_string()),
            DeValue::Boolean(truth) => toml::Value::Boolean(*truth),
            DeValue::Datetime(time) => toml::Value::Datetime(*time),
            DeValue::Float(number) => toml::Value::Float(self.number(value.span(), number.as_str().parse().ok())),
            DeValue::Integer(number) => toml::Value::Integer(
                self.number(value.span(), i64::from_str_radix(number.as_str(), number.radix()).ok()),
            ),
        };
        Node { span: self.span(value.span()), value: Value::Leaf(leaf) }
    }

    fn number<N: Default>(&mut self, range: Range<usize>, number: Option<N>) -> N {
        number.unwrap_or_else(|| {
            let message = "the number does not fit 64 bits".to_owned();
            self.faults.push(Fault { span: self.span(range), message, help: None });
            N::default()
        })
    }
}

/// A dotted path and the span of each of its parts.
type OverridePath = Vec<(String, Span)>;

fn apply_override(root: &mut Node, text: usize, set: &str, faults: &mut Vec<Fault>) {
    let Some((path, value)) = set.split_once('=') else {
        faults.push(Fault {
            span: Span { text, range: 0..set.len() },
            message: "an override is written `dotted.path=value`".to_owned(),
            help: Some("for example `--set sources.bids.path=data/bids.jsonl`".to_owned()),
        });
        return;
    };
    let offset = path.len() + 1;
    let result = override_path(text, path).and_then(|path| {
        let value = override_value(text, offset, value, faults);
        assign(root, path, value)
    });
    faults.extend(result.err());
}

/// A key as in TOML, so that parts may be quoted.
fn override_path(text: usize, path: &str) -> Result<OverridePath, Fault> {
    let whole = || Span { text, range: 0..path.len() };
    let assignment = format!("{path}=0");
    let parsed = DeTable::parse(&assignment).map_err(|error| Fault {
        span: error.span().map_or_else(whole, |range| Span { text, range: range.start..range.end.min(path.len()) }),
        message: format!("`{path}` is not a dotted path: {}", one_line(error.message())),
        help: Some("for example `--set sources.bids.path=data/bids.jsonl`".to_owned()),
    })?;
    let mut parts = Vec::new();
    let mut table = Some(parsed.get_ref());
    while let Some((key, value)) = table.and_then(|table| table.iter().next()) {
        parts.push((key.get_ref().to_string(), Span { text, range: key.span() }));
        table = value.get_ref().as_table();
    }
    Ok(parts)
}

/// A TOML value; what is none is a string, so that paths and names need no quotes within the shell's.
fn override_value(text: usize, offset: usize, value: &str, faults: &mut Vec<Fault>) -> Node {
    match DeValue::parse(value) {
        Ok(parsed) => Reader { text, offset, faults }.value(&parsed),
        Err(_) => Node {
            span: Span { text, range: offset..offset + value.len() },
            value: Value::Leaf(toml::Value::String(value.to_owned())),
        },
    }
}

fn assign(root: &mut Node, path: OverridePath, value: Node) -> Result<(), Fault> {
    let mut node = root;
    let mut above: Option<Span> = None;
    let last = path.len().saturating_sub(1);
    for (depth, (name, key)) in path.into_iter().enumerate() {
        let found = node.type_name();
        let is_list = matches!(node.value, Value::Array(_));
        let Value::Table(entries) = &mut node.value else {
            let message = format!("`{name}` cannot be set inside of {found}");
            let help = is_list.then(|| "set the whole list".to_owned());
            return Err(Fault { span: above.unwrap_or(key), message, help });
        };
        if depth == last {
            entries.insert(name, Entry { key, node: value });
            return Ok(());
        }
        above = Some(key.clone());
        let entry = entries
            .entry(name)
            .or_insert_with(|| Entry { node: Node { span: key.clone(), value: Value::Table(BTreeMap::new()) }, key });
        node = &mut entry.node;
    }
    Ok(())
}

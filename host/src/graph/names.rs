//! The names of a job's nodes and what inputs say with them.

use std::collections::BTreeMap;

use super::{DEFAULT_PORT, OperatorIndex, Producer, SinkIndex, SourceIndex};
use crate::manifest::{At, Finding, Manifest, did_you_mean, listed};

/// The longest name, in bytes: names become parts of file names.
const NAME_BYTES_MAX: usize = 64;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    Source(SourceIndex),
    Operator(OperatorIndex),
    Sink(SinkIndex),
}

impl Named {
    /// With its article.
    fn kind(self) -> &'static str {
        match self {
            Self::Source(_) => "a source",
            Self::Operator(_) => "an operator",
            Self::Sink(_) => "a sink",
        }
    }
}

/// All names of a job.
pub(super) struct Names<'a> {
    by_name: BTreeMap<&'a str, Named>,
}

/// What is wrong with a name, if anything.
pub(super) fn name_fault(name: &str) -> Option<String> {
    let allowed = |character: char| character.is_ascii_alphanumeric() || character == '-' || character == '_';
    if name.is_empty() {
        return Some("a name must not be empty".to_owned());
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(format!("the name is {} bytes long, {NAME_BYTES_MAX} at most are allowed", name.len()));
    }
    let wrong = name.chars().find(|character| !allowed(*character))?;
    Some(format!("the name `{name}` has a {wrong:?}; names have letters, digits, `-` and `_`"))
}

impl<'a> Names<'a> {
    /// Collects the names of `manifest`; of a name that is used twice the first meaning counts.
    pub(super) fn of(manifest: &'a Manifest, findings: &mut Vec<Finding>) -> Self {
        let mut names = Self { by_name: BTreeMap::new() };
        findings.extend(name_fault(&manifest.job.name).map(|fault| Finding::error(At::value(["job", "name"]), fault)));
        for (index, name) in manifest.sources.keys().enumerate() {
            names.add("sources", name, Named::Source(SourceIndex(index)), findings);
        }
        for (index, name) in manifest.operators.keys().enumerate() {
            names.add("operators", name, Named::Operator(OperatorIndex(index)), findings);
        }
        for (index, name) in manifest.sinks.keys().enumerate() {
            names.add("sinks", name, Named::Sink(SinkIndex(index)), findings);
        }
        names
    }

    fn add(&mut self, table: &str, name: &'a str, named: Named, findings: &mut Vec<Finding>) {
        let at = || At::key([table, name]);
        findings.extend(name_fault(name).map(|fault| Finding::error(at(), fault)));
        match self.by_name.get(name) {
            Some(first) => findings.push(
                Finding::error(at(), format!("the name `{name}` is taken by {}", first.kind()))
                    .help("a name is used once among all sources, operators and sinks"),
            ),
            None => _ = self.by_name.insert(name, named),
        }
    }

    /// The producer that an item of `inputs` names: `name` or `operator.port`.
    pub(super) fn producer(&self, input: &str, at: At) -> Result<Producer, Finding> {
        let (name, port) = match input.split_once('.') {
            Some((name, port)) => (name, Some(port)),
            None => (input, None),
        };
        match (self.by_name.get(name), port) {
            (Some(Named::Source(source)), None) => Ok(Producer::Source(*source)),
            (Some(Named::Source(_)), Some(port)) => {
                Err(Finding::error(at, format!("`{name}` is a source and has no port `{port}`"))
                    .help(format!("write `\"{name}\"`; only operators have ports")))
            }
            (Some(Named::Operator(operator)), port) => {
                Ok(Producer::Operator { operator: *operator, port: port.unwrap_or(DEFAULT_PORT).to_owned() })
            }
            (Some(Named::Sink(_)), _) => {
                Err(Finding::error(at, format!("`{name}` is a sink: nothing can be read from it"))
                    .help("inputs are sources and operators"))
            }
            (None, _) => Err(self.unknown_producer(name, at)),
        }
    }

    fn unknown_producer(&self, name: &str, at: At) -> Finding {
        let producers =
            || self.by_name.iter().filter(|(_, named)| !matches!(named, Named::Sink(_))).map(|(name, _)| *name);
        let finding = Finding::error(at, format!("unknown input `{name}`{}", did_you_mean(name, producers())));
        match producers().next() {
            Some(_) => finding.help(format!("there are {}", listed(producers()))),
            None => finding.help("the job has no sources"),
        }
    }

    /// The operator of a table that is written `operator.table`.
    pub(super) fn owner(&self, name: &str, at: At) -> Result<OperatorIndex, Finding> {
        match self.by_name.get(name) {
            Some(Named::Operator(operator)) => Ok(*operator),
            Some(other) => Err(Finding::error(at, format!("`{name}` is {} and has no tables", other.kind()))
                .help(self.operators_help())),
            None => Err(self.unknown_operator(name, at)),
        }
    }

    /// The operator of that name.
    pub(super) fn operator(&self, name: &str, at: At) -> Result<OperatorIndex, Finding> {
        match self.by_name.get(name) {
            Some(Named::Operator(operator)) => Ok(*operator),
            Some(other) => Err(Finding::error(at, format!("`{name}` is {}, not an operator", other.kind()))
                .help(self.operators_help())),
            None => Err(self.unknown_operator(name, at)),
        }
    }

    fn unknown_operator(&self, name: &str, at: At) -> Finding {
        Finding::error(at, format!("unknown operator `{name}`{}", did_you_mean(name, self.operators())))
            .help(self.operators_help())
    }

    /// Which operators there are.
    pub(super) fn operators_help(&self) -> String {
        format!("the operators are {}", listed(self.operators()))
    }

    fn operators(&self) -> impl Iterator<Item = &str> {
        self.by_name.iter().filter(|(_, named)| matches!(named, Named::Operator(_))).map(|(name, _)| *name)
    }

    /// The sink that `dead-letter` names.
    pub(super) fn sink(&self, name: &str, at: At) -> Result<SinkIndex, Finding> {
        let sinks = || self.by_name.iter().filter(|(_, named)| matches!(named, Named::Sink(_))).map(|(name, _)| *name);
        match self.by_name.get(name) {
            Some(Named::Sink(sink)) => Ok(*sink),
            Some(other) => Err(Finding::error(at, format!("`{name}` is {}, not a sink", other.kind()))
                .help(format!("the sinks are {}", listed(sinks())))),
            None => Err(Finding::error(at, format!("unknown sink `{name}`{}", did_you_mean(name, sinks())))
                .help(format!("the sinks are {}", listed(sinks())))),
        }
    }
}

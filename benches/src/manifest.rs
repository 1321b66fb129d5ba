//! The manifests of the measured jobs, as text.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A manifest being written.
#[derive(Debug, Clone)]
pub struct Manifest {
    text: String,
}

/// When epochs are sealed.
#[derive(Debug, Clone, Copy)]
pub enum Checkpoint {
    /// Every second.
    EverySecond,
    /// After so many records, and at no time.
    EveryRecords(u64),
}

/// How a record lies in the input.
#[derive(Debug, Clone, Copy)]
pub enum Form {
    /// A JSON value a line, keyed by the JSON pointer, if any.
    Json {
        /// The pointer.
        key: Option<&'static str>,
    },
    /// A line, keyed by itself or not at all.
    Lines {
        /// Whether the line is its key.
        keyed: bool,
    },
}

impl Manifest {
    /// A job on two workers, with its state beside the manifest.
    pub fn new(name: &str, checkpoint: Checkpoint) -> Self {
        let mut text = format!("[job]\nname = {}\nstate = \"state\"\nworkers = 2\n\n[checkpoint]\n", quoted(name));
        match checkpoint {
            Checkpoint::EverySecond => text.push_str("interval = \"1s\"\n"),
            Checkpoint::EveryRecords(records) => {
                writeln!(text, "interval = \"1h\"\nrecords = {records}").expect("a String takes all");
            }
        }
        Self { text }
    }

    /// Adds the source `in`: one file.
    pub fn file(self, path: &Path, form: Form) -> Self {
        let path = quoted(&path.to_string_lossy());
        self.section("sources.in", &format!("kind = \"file\"\npath = {path}\n{}", form_entries(form)))
    }

    /// Adds the source `in`: a CSV file without loss of its lines, keyed by the column `own`.
    pub fn pairs(self, path: &Path) -> Self {
        let path = quoted(&path.to_string_lossy());
        let entries = format!("kind = \"file\"\npath = {path}\nformat = \"csv\"\ncsv-value = \"raw\"\nkey = \"own\"\n");
        self.section("sources.in", &entries)
    }

    /// Adds the source `in`: pairs from standard input, whose loss in a crash is accepted.
    pub fn pairs_from_stdin(self) -> Self {
        let entries = "kind = \"stdin\"\naccept-loss = true\nformat = \"csv\"\ncsv-value = \"raw\"\nkey = \"own\"\n";
        self.section("sources.in", entries)
    }

    /// Adds a source of pairs for each path: the first is read by the first host, `a`, and so on. Without hosts, all are read by the one that there is.
    pub fn shares(mut self, paths: &[PathBuf], on_hosts: bool) -> Self {
        for (path, host) in paths.iter().zip(["a", "b", "c"]) {
            let (path, hosts) = (
                quoted(&path.to_string_lossy()),
                if on_hosts { format!("hosts = [\"{host}\"]\n") } else { String::new() },
            );
            let entries = format!(
                "kind = \"file\"\npath = {path}\nformat = \"csv\"\ncsv-value = \"raw\"\nkey = \"own\"\n{hosts}"
            );
            self = self.section(&format!("sources.in-{host}"), &entries);
        }
        self
    }

    /// Adds the operator `work`, which reads `in` and may use its own table `held` as `others`.
    pub fn operator_with_others(self, component: &Path, config: &str, serializable: bool) -> Self {
        let isolation = if serializable { "isolation = \"serializable\"\n" } else { "" };
        self.operator(component, config).and(&format!(
            "{isolation}tables.held.open = true\nuses.others = {{ table = \"work.held\", read = true, update = true }}\n"
        ))
    }

    /// Adds the source `in`: standard input, whose loss in a crash is accepted.
    pub fn stdin(self, form: Form) -> Self {
        self.section("sources.in", &format!("kind = \"stdin\"\naccept-loss = true\n{}", form_entries(form)))
    }

    /// As [`Manifest::operator_with_others`], fed by `inputs`, written as a TOML list.
    pub fn operator_of_shares(self, component: &Path, inputs: &str, config: &str) -> Self {
        let component = quoted(&component.to_string_lossy());
        let entries = format!(
            "component = {component}\ninputs = {inputs}\nconfig = {{ {config} }}\ntables.held.open = true\n\
             uses.others = {{ table = \"work.held\", read = true, update = true }}\n"
        );
        self.section("operators.work", &entries)
    }

    /// Sets the number of workers of a host.
    pub fn workers(mut self, workers: usize) -> Self {
        self.text = self.text.replace("workers = 2\n", &format!("workers = {workers}\n"));
        self
    }

    /// Adds text as it is.
    pub fn plus(self, text: &str) -> Self {
        self.and(text)
    }

    /// Adds the operator `work`, which reads `in`. `config` is the inside of an inline table.
    pub fn operator(self, component: &Path, config: &str) -> Self {
        let component = quoted(&component.to_string_lossy());
        let entries = format!("component = {component}\ninputs = [\"in\"]\nconfig = {{ {config} }}\n");
        self.section("operators.work", &entries)
    }

    /// Adds the sink `out`: files, exactly once, in the directory `output` beside the manifest.
    pub fn files(self, input: &str) -> Self {
        self.section("sinks.out", &format!("kind = \"files\"\npath = \"output\"\ninputs = [{}]\n", quoted(input)))
    }

    /// Adds the sink `out`, which only counts.
    pub fn blackhole(self, input: &str) -> Self {
        self.section("sinks.out", &format!("kind = \"blackhole\"\ninputs = [{}]\n", quoted(input)))
    }

    /// The manifest's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn and(mut self, entries: &str) -> Self {
        self.text.push_str(entries);
        self
    }

    fn section(mut self, name: &str, entries: &str) -> Self {
        write!(self.text, "\n[{name}]\n{entries}").expect("a String takes all");
        self
    }
}

fn form_entries(form: Form) -> String {
    match form {
        Form::Json { key: Some(key) } => format!("format = \"jsonl\"\nkey = {}\n", quoted(key)),
        Form::Json { key: None } => "format = \"jsonl\"\n".to_owned(),
        Form::Lines { keyed: true } => "format = \"lines\"\nkey = \".\"\n".to_owned(),
        Form::Lines { keyed: false } => "format = \"lines\"\n".to_owned(),
    }
}

/// A TOML basic string. What JSON writes is one, too: its escapes are among TOML's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(manifest: &Manifest) -> toml::Table {
        manifest.text().parse().unwrap()
    }

    #[test]
    fn a_manifest_says_what_it_was_told() {
        let manifest = Manifest::new("bid-stats", Checkpoint::EverySecond)
            .file(Path::new("/a \"b\"\\c.jsonl"), Form::Json { key: Some("/auction") })
            .operator(Path::new("f.wasm"), "rate = 0.9")
            .files("work");
        let table = parsed(&manifest);
        assert_eq!(table["job"]["name"].as_str(), Some("bid-stats"));
        assert_eq!(table["job"]["workers"].as_integer(), Some(2));
        assert_eq!(table["checkpoint"]["interval"].as_str(), Some("1s"));
        assert_eq!(table["sources"]["in"]["path"].as_str(), Some("/a \"b\"\\c.jsonl"));
        assert_eq!(table["sources"]["in"]["key"].as_str(), Some("/auction"));
        assert_eq!(table["operators"]["work"]["config"]["rate"].as_float(), Some(0.9));
        assert_eq!(table["sinks"]["out"]["inputs"][0].as_str(), Some("work"));
    }

    #[test]
    fn other_sources_sinks_and_checkpoints_are_valid_too() {
        let manifest = Manifest::new("hold", Checkpoint::EveryRecords(100_000))
            .stdin(Form::Lines { keyed: true })
            .operator(Path::new("f.wasm"), "")
            .blackhole("in");
        let table = parsed(&manifest);
        assert_eq!(table["checkpoint"]["records"].as_integer(), Some(100_000));
        assert_eq!(table["sources"]["in"]["accept-loss"].as_bool(), Some(true));
        assert_eq!(table["sources"]["in"]["key"].as_str(), Some("."));
        assert_eq!(table["sinks"]["out"]["kind"].as_str(), Some("blackhole"));
    }
}

//! The rules for single fields that their types cannot express.

use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::manifest::{
    Admin, At, ByteSize, CsvValue, FilesSink, Finding, Format, HumanDuration, Job, Manifest, Operator, OutputFormat,
    Sink, Source, TimeFormat,
};

/// The least `job.memory`: less is a forgotten unit.
const MEMORY_MIN: ByteSize = ByteSize(64 << 10);

/// The least span of time for what happens again and again.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// The longest that a call may wait for more records.
const LINGER_MAX: Duration = Duration::from_secs(3_600);

/// Checks every field of `manifest` by itself, and its directories (relative to `directory`) against each other.
pub(super) fn check_fields(manifest: &Manifest, directory: &Path, findings: &mut Vec<Finding>) {
    let mut rules = Rules { findings };
    rules.job(&manifest.job);
    rules.at_least_once_a_millisecond(["checkpoint", "interval"], manifest.checkpoint.interval);
    rules.not_zero(["checkpoint", "retained"], manifest.checkpoint.retained);
    if let Some(records) = manifest.checkpoint.records {
        rules.not_zero(["checkpoint", "records"], records);
    }
    rules.admin(&manifest.admin);
    for (name, source) in &manifest.sources {
        rules.source(name, source);
    }
    for (name, operator) in &manifest.operators {
        rules.operator(name, operator, &manifest.job);
    }
    for (name, sink) in &manifest.sinks {
        rules.sink(name, sink);
    }
    rules.directories(manifest, directory);
}

struct Rules<'a> {
    findings: &'a mut Vec<Finding>,
}

impl Rules<'_> {
    fn error(&mut self, at: At, message: impl Into<String>, help: &str) {
        self.findings.push(Finding::error(at, message).help(help));
    }

    fn not_zero<'p>(&mut self, path: impl IntoIterator<Item = &'p str>, number: impl Into<u64>) {
        if number.into() == 0 {
            let at = At::value(path);
            let message = format!("`{}` must be at least 1", at.path.last().map_or("", String::as_str));
            self.findings.push(Finding::error(at, message));
        }
    }

    fn not_empty<'p>(&mut self, path: impl IntoIterator<Item = &'p str>, text: &str) {
        if text.is_empty() {
            let at = At::value(path);
            let message = format!("`{}` must not be empty", at.path.last().map_or("", String::as_str));
            self.findings.push(Finding::error(at, message));
        }
    }

    fn at_least_once_a_millisecond<'p>(&mut self, path: impl IntoIterator<Item = &'p str>, span: HumanDuration) {
        if span.0 < INTERVAL_MIN {
            let at = At::value(path);
            let message = format!("`{}` must be at least 1ms", at.path.last().map_or("", String::as_str));
            self.findings.push(Finding::error(at, message));
        }
    }

    fn job(&mut self, job: &Job) {
        self.not_empty(["job", "state"], &job.state);
        self.not_zero(["job", "partitions"], job.partitions);
        if let Some(workers) = job.workers {
            self.not_zero(["job", "workers"], workers);
        }
        if job.memory.0 < MEMORY_MIN.0 {
            let message = format!("`memory` is {}, the least is {MEMORY_MIN}", job.memory);
            self.error(At::value(["job", "memory"]), message, "is a unit missing? For example `memory = \"256MiB\"`");
        }
    }

    fn admin(&mut self, admin: &Admin) {
        let has_token = admin.token.is_some() || admin.token_file.is_some();
        self.address("listen", &admin.listen, has_token);
        admin.capnp.iter().for_each(|address| self.address("capnp", address, has_token));
        admin.token.iter().for_each(|token| self.not_empty(["admin", "token"], token));
        admin.token_file.iter().for_each(|file| self.not_empty(["admin", "token-file"], file));
        if admin.token.is_some() && admin.token_file.is_some() {
            self.error(
                At::key(["admin", "token-file"]),
                "`token` and `token-file` are both set",
                "one token opens everything: leave one of them out",
            );
        }
    }

    /// Whoever reaches an address that is not of this machine alone must know a token.
    fn address(&mut self, field: &str, address: &str, has_token: bool) {
        let at = || At::value(["admin", field]);
        let Ok(parsed) = address.parse::<SocketAddr>() else {
            let help = "write an IP address and a port, for example `127.0.0.1:7171` or `[::1]:7171`";
            return self.error(at(), format!("`{field}` is not an address: `{address}`"), help);
        };
        if !parsed.ip().is_loopback() && !has_token {
            self.error(
                at(),
                format!("`{field} = \"{address}\"` can be reached from elsewhere, and there is no token"),
                "set `token-file` (or `token`), which every reader must then know, or listen on `127.0.0.1`",
            );
        }
    }

    fn source(&mut self, name: &str, source: &Source) {
        match source {
            Source::File(file) => {
                self.not_empty(["sources", name, "path"], &file.path);
                self.not_zero(["sources", name, "record-max"], file.record_max.0);
                let text = TextFields {
                    format: file.format,
                    key: file.key.as_deref(),
                    time: file.time.as_deref(),
                    time_format: file.time_format,
                    csv_value: file.csv_value,
                };
                self.text_fields(name, &text);
            }
            Source::Stdin(stdin) => {
                self.not_zero(["sources", name, "record-max"], stdin.record_max.0);
                let text = TextFields {
                    format: stdin.format,
                    key: stdin.key.as_deref(),
                    time: stdin.time.as_deref(),
                    time_format: stdin.time_format,
                    csv_value: stdin.csv_value,
                };
                self.text_fields(name, &text);
            }
            Source::Nexmark(nexmark) => {
                self.not_zero(["sources", name, "splits"], nexmark.splits);
                if let Some(rate) = nexmark.rate {
                    self.not_zero(["sources", name, "rate"], rate);
                }
                if nexmark.only.is_empty() {
                    self.error(
                        At::value(["sources", name, "only"]),
                        "`only` lets no event through",
                        "leave it out for all kinds",
                    );
                }
                if let Some(key) = &nexmark.key {
                    self.pointer_or_whole(At::value(["sources", name, "key"]), key);
                }
            }
        }
    }

    fn text_fields(&mut self, name: &str, text: &TextFields<'_>) {
        let key_at = || At::value(["sources", name, "key"]);
        let time_at = || At::value(["sources", name, "time"]);
        match text.format {
            Format::Jsonl => {
                text.key.iter().for_each(|key| self.pointer_or_whole(key_at(), key));
                text.time.iter().for_each(|time| self.pointer(time_at(), time));
            }
            Format::Csv => {
                text.key.iter().for_each(|key| self.not_empty(["sources", name, "key"], key));
                text.time.iter().for_each(|time| self.not_empty(["sources", name, "time"], time));
            }
            Format::Lines => {
                if text.key.is_some_and(|key| key != ".") {
                    self.error(
                        key_at(),
                        "lines have no fields to take a key from",
                        "`key = \".\"` takes the whole line",
                    );
                }
                if text.time.is_some() {
                    self.error(
                        time_at(),
                        "lines have no fields to take a time from",
                        "remove `time`, or use another `format`",
                    );
                }
            }
        }
        if text.csv_value != CsvValue::default() && text.format != Format::Csv {
            let at = At::key(["sources", name, "csv-value"]);
            self.error(at, "`csv-value` has no effect here", "it is for `format = \"csv\"` only");
        }
        if text.time_format != TimeFormat::default() && text.time.is_none() {
            let at = At::key(["sources", name, "time-format"]);
            self.error(at, "`time-format` has no effect here", "add `time`, the place of the event time");
        }
    }

    fn pointer_or_whole(&mut self, at: At, pointer: &str) {
        if pointer != "." {
            self.pointer(at, pointer);
        }
    }

    fn pointer(&mut self, at: At, pointer: &str) {
        if let Some(fault) = pointer_fault(pointer) {
            let plain = pointer.trim_start_matches(['.', '$']).replace('.', "/");
            let help = match plain.as_str() {
                "" => "for example `/user/id`".to_owned(),
                plain if pointer.starts_with('/') => {
                    format!("`~` is written `~0` and `/` within a name `~1`: `{}`", escaped(plain))
                }
                plain => format!("did you mean `/{plain}`?"),
            };
            self.error(at, format!("`{pointer}` is not a JSON pointer: {fault}"), &help);
        }
    }

    fn operator(&mut self, name: &str, operator: &Operator, job: &Job) {
        let at = |field: &str| At::value(["operators", name, field]);
        self.not_empty(["operators", name, "component"], &operator.component);
        self.not_zero(["operators", name, "batch"], operator.batch);
        if operator.linger.0 > LINGER_MAX {
            let message = format!("`linger` must be at most {}", HumanDuration(LINGER_MAX));
            self.error(at("linger"), message, "it is how long a call waits for more records, such as \"5ms\"");
        }
        self.not_zero(["operators", name, "limits", "memory"], operator.limits.memory.0);
        self.not_zero(["operators", name, "limits", "output"], operator.limits.output.0);
        self.at_least_once_a_millisecond(["operators", name, "limits", "time"], operator.limits.time);
        if let Some(key) = &operator.key {
            self.pointer_or_whole(at("key"), key);
        }
        if let Some(parallelism) = operator.parallelism {
            self.not_zero(["operators", name, "parallelism"], parallelism);
            if parallelism > job.partitions {
                let message = format!(
                    "`parallelism` is {parallelism}, but the job has {} partitions: each task needs one",
                    job.partitions
                );
                self.error(at("parallelism"), message, "lower it, or raise `job.partitions` before the job has state");
            }
        }
        if let Some(path) = not_json(&operator.config) {
            let at = At::value(["operators", name, "config"].into_iter().map(str::to_owned).chain(path));
            self.error(
                at,
                "`config` is handed over as JSON, which has no such number",
                "JSON has neither `inf` nor `nan`",
            );
        }
    }

    fn sink(&mut self, name: &str, sink: &Sink) {
        match sink {
            Sink::Files(files) => {
                self.not_empty(["sinks", name, "path"], &files.path);
                self.columns(name, files.format, &files.columns);
                if let Some(roll) = files.roll {
                    self.at_least_once_a_millisecond(["sinks", name, "roll"], roll);
                }
            }
            Sink::Stdout(stdout) => self.columns(name, stdout.format, &stdout.columns),
            Sink::Blackhole(_) => {}
        }
    }

    fn columns(&mut self, name: &str, format: OutputFormat, columns: &[String]) {
        match (format, columns.is_empty()) {
            (OutputFormat::Csv, true) => self.error(
                At::value(["sinks", name, "format"]),
                "`format = \"csv\"` needs `columns`",
                "for example `columns = [\"key\", \"/count\"]`",
            ),
            (OutputFormat::Raw | OutputFormat::Jsonl, false) => self.error(
                At::key(["sinks", name, "columns"]),
                "`columns` has no effect here",
                "it is for `format = \"csv\"` only",
            ),
            _ => {}
        }
        for (index, column) in columns.iter().enumerate() {
            if !["key", "time", "value"].contains(&column.as_str()) && pointer_fault(column).is_some() {
                self.error(
                    At::value(["sinks", name, "columns", &index.to_string()]),
                    format!("`{column}` is not a column"),
                    "a column is `key`, `time`, `value` or a JSON pointer into the value such as `/count`",
                );
            }
        }
    }

    /// Each directory that is written has one writer, and nothing is read where the job writes.
    fn directories(&mut self, manifest: &Manifest, directory: &Path) {
        let place = |path: &str| plain_path(&directory.join(path));
        let state = place(&manifest.job.state);
        let sinks = manifest.sinks.iter().filter_map(|(name, sink)| match sink {
            Sink::Files(FilesSink { path, .. }) if !path.is_empty() => Some((name.as_str(), place(path))),
            _ => None,
        });
        let mut seen: Vec<(&str, PathBuf)> = Vec::new();
        for (name, path) in sinks {
            let at = || At::value(["sinks", name, "path"]);
            if state.starts_with(&path) || path.starts_with(&state) {
                let message = format!("the sink's directory and the state directory `{}` overlap", manifest.job.state);
                self.error(at(), message, "the state directory is for the job's state alone");
            }
            if let Some((other, _)) = seen.iter().find(|(_, known)| *known == path) {
                self.error(
                    at(),
                    format!("the sink `{other}` writes to this directory, too"),
                    "give each sink a directory of its own",
                );
            }
            seen.push((name, path));
        }
        for (name, source) in &manifest.sources {
            let Source::File(file) = source else { continue };
            let read = place(&file.path);
            let listed =
                if file.path.contains(['*', '?', '[']) { read.parent().map(Path::to_owned) } else { Some(read) };
            let hosts = || manifest.cluster.iter().flat_map(|cluster| cluster.hosts.keys());
            let writes_to = |path: &PathBuf| {
                listed.as_ref().is_some_and(|listed| listed == path || hosts().any(|host| *listed == path.join(host)))
            };
            if let Some((sink, _)) = seen.iter().find(|(_, path)| writes_to(path)) {
                let message = format!("the source reads the directory that the sink `{sink}` writes to");
                self.error(At::value(["sources", name, "path"]), message, "a job cannot read its own output");
            }
        }
    }
}

/// What sources of text have in common.
struct TextFields<'a> {
    format: Format,
    key: Option<&'a str>,
    time: Option<&'a str>,
    time_format: TimeFormat,
    csv_value: CsvValue,
}

/// Why `pointer` is no JSON pointer (RFC 6901) to a part of a value.
fn pointer_fault(pointer: &str) -> Option<&'static str> {
    if !pointer.starts_with('/') {
        return Some("it does not begin with `/`");
    }
    let mut rest = pointer;
    while let Some((_, after)) = rest.split_once('~') {
        if !after.starts_with(['0', '1']) {
            return Some("`~` is not followed by 0 or 1");
        }
        rest = after;
    }
    None
}

/// `pointer` with each `~` that escapes nothing written as it should be.
fn escaped(pointer: &str) -> String {
    let mut parts = pointer.split('~');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| if part.starts_with(['0', '1']) { text + "~" + part } else { text + "~0" + part })
}

/// The path of a number that JSON does not have.
fn not_json(table: &toml::Table) -> Option<Vec<String>> {
    fn within(value: &toml::Value) -> Option<Vec<String>> {
        match value {
            toml::Value::Float(number) if !number.is_finite() => Some(Vec::new()),
            toml::Value::Array(items) => {
                items.iter().enumerate().find_map(|(index, item)| below(index.to_string(), item))
            }
            toml::Value::Table(table) => not_json(table),
            _ => None,
        }
    }
    fn below(name: String, value: &toml::Value) -> Option<Vec<String>> {
        within(value).map(|path| [vec![name], path].concat())
    }
    table.iter().find_map(|(name, value)| below(name.clone(), value))
}

/// The path without `.` and `..`, by its text alone: the directories need not exist yet.
fn plain_path(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => _ = plain.pop(),
            other => plain.push(other),
        }
    }
    plain
}

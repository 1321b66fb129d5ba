//! A job's state as the command line reads it: of a stopped job from its directory, of a running one by asking it. Both give the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Failure;
use super::load::HostArgs;
use crate::admin::announce::Announcement;
use crate::admin::client::{Answer, Client, ClientError};
use crate::admin::{self, render};
use crate::epoch::Epoch;
use crate::epoch::entry::RunningComponent;
use crate::job::JobError;
use crate::lookup::Consistency;
use crate::manifest::Loaded;
use crate::state::StateError;
use crate::state::offline::{Reader, StoredValue};

/// How long a job that is just starting or ending is waited for.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The keys of one page.
const PAGE_KEYS: usize = 1_000;

/// A table of the state.
#[derive(Debug, Clone)]
pub(super) struct Table {
    /// `operator/table`.
    pub(super) name: String,
    pub(super) keys: Option<u64>,
    pub(super) schema_versions: Vec<u32>,
}

/// A component that an operator runs.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct Component {
    pub(super) operator: String,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) sha256: String,
    /// Whether it runs by a reload, and not because the manifest names it.
    pub(super) reloaded: bool,
}

/// A value.
#[derive(Debug)]
pub(super) struct Shown {
    /// As JSON.
    pub(super) json: String,
    /// The schema version that wrote it. A running job shows all values as its component has them, and does not say.
    pub(super) schema_version: Option<u32>,
}

impl From<StoredValue> for Shown {
    fn from(stored: StoredValue) -> Self {
        Self { json: render::as_value(&stored.bytes), schema_version: Some(stored.schema_version) }
    }
}

impl From<&RawValue> for Shown {
    fn from(told: &RawValue) -> Self {
        Self { json: told.get().to_owned(), schema_version: None }
    }
}

/// What a lookup found.
#[derive(Debug)]
pub(super) struct Found {
    /// The value; `None` where the key has none.
    pub(super) value: Option<Shown>,
    /// The epoch that was read; `None` for the present.
    pub(super) epoch: Option<Epoch>,
}

/// Keys with their values.
pub(super) type Entries = Vec<(Vec<u8>, Shown)>;

/// The state of a job.
pub(super) enum State {
    /// Of one that does not run.
    Stopped(Box<Reader>),
    /// Of one that does.
    Running(Client),
}

impl State {
    /// The state of the job that the arguments name.
    pub(super) fn open(job: &HostArgs) -> Result<Self, Failure> {
        let loaded = super::shown(job.load())?.loaded;
        let directory = loaded.resolve(&loaded.manifest.job.state);
        let deadline = Instant::now() + SETTLE_TIME_MAX;
        loop {
            match Reader::open(&directory) {
                Ok(reader) => return Ok(Self::Stopped(Box::new(reader))),
                Err(StateError::Locked { .. }) => {}
                Err(error) => return Err(unreadable(error)),
            }
            let silent = match running(&loaded, &directory)? {
                Ok(client) => return Ok(Self::Running(client)),
                Err(silent) => silent,
            };
            if Instant::now() >= deadline || !loaded.manifest.admin.enabled {
                return Err(failed(silent));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Fails when the state does not show what is asked for: a stopped job has its last committed epoch only, which is its present, too.
    fn check(reader: &Reader, consistency: Consistency) -> Result<(), Failure> {
        match consistency {
            Consistency::AsOf(epoch) if epoch != reader.epoch() => {
                let only = reader.epoch();
                Err(failed(format!(
                    "the job is stopped, and its state is as of epoch {only}; epoch {epoch} cannot be read"
                )))
            }
            _ => Ok(()),
        }
    }

    /// All tables with their numbers of keys, and the epoch that this is as of.
    pub(super) fn tables(&self, consistency: Consistency) -> Result<(Option<Epoch>, Vec<Table>), Failure> {
        match self {
            Self::Stopped(reader) => {
                Self::check(reader, consistency)?;
                let table = |info: crate::state::offline::TableInfo| Table {
                    name: info.name.to_string(),
                    keys: Some(info.keys),
                    schema_versions: info.schema_versions.into_iter().collect(),
                };
                let tables = reader.tables().map_err(unreadable)?.into_iter().map(table).collect();
                Ok((Some(reader.epoch()), tables))
            }
            Self::Running(client) => told_tables(client, &format!("/tables?count=true&consistency={consistency}")),
        }
    }

    /// Which component each operator runs, or runs at the next start where the manifest's files are what they were.
    pub(super) fn components(&self) -> Result<Vec<Component>, Failure> {
        let components = match self {
            Self::Stopped(reader) => reader.last().map(|last| last.components.clone()).unwrap_or_default(),
            Self::Running(client) => {
                let answer = ask(client, "/status")?;
                let told: ToldOperators = read(&answer)?;
                told.operators.into_iter().filter_map(|(name, told)| Some((name, told.component?))).collect()
            }
        };
        let component = |(operator, runs): (String, RunningComponent)| {
            let reloaded = runs.sha256 != runs.file_sha256;
            Component { operator, name: runs.name, version: runs.version, sha256: runs.sha256, reloaded }
        };
        Ok(components.into_iter().map(component).collect())
    }

    /// The names of all tables, `operator/table`.
    pub(super) fn names(&self) -> Result<Vec<String>, Failure> {
        let tables = match self {
            Self::Stopped(reader) => {
                reader.tables().map_err(unreadable)?.into_iter().map(|info| info.name.to_string()).collect()
            }
            Self::Running(client) => told_tables(client, "/tables")?.1.into_iter().map(|table| table.name).collect(),
        };
        Ok(tables)
    }

    /// The value of a key.
    pub(super) fn get(&self, table: &str, key: &[u8], consistency: Consistency) -> Result<Found, Failure> {
        match self {
            Self::Stopped(reader) => {
                Self::check(reader, consistency)?;
                let value = reader.get(table, key).map_err(unreadable)?;
                Ok(Found { value: value.map(Shown::from), epoch: Some(reader.epoch()) })
            }
            Self::Running(client) => {
                let query = format!("key-hex={}&consistency={consistency}", render::to_hex(key));
                let answer = ask(client, &format!("/tables/{}?{query}", dotted(table)))?;
                let told: ToldValue = read(&answer)?;
                Ok(Found { value: told.value.as_deref().map(Shown::from), epoch: told.epoch })
            }
        }
    }

    /// The first `limit` keys with their values that begin with `prefix` and are not below `from`.
    pub(super) fn scan(
        &self,
        table: &str,
        prefix: &[u8],
        from: Option<&[u8]>,
        limit: usize,
        consistency: Consistency,
    ) -> Result<Entries, Failure> {
        match self {
            Self::Stopped(reader) => {
                Self::check(reader, consistency)?;
                let rows = reader.scan(table, prefix, from, limit).map_err(unreadable)?;
                Ok(rows.into_iter().map(|(key, value)| (key, value.into())).collect())
            }
            Self::Running(client) => {
                let from = render::to_hex(from.unwrap_or_default().max(prefix));
                let to =
                    end_of_prefix(prefix).map(|end| format!("&to-hex={}", render::to_hex(&end))).unwrap_or_default();
                let page = limit.min(PAGE_KEYS);
                let query = format!("from-hex={from}{to}&limit={page}&consistency={consistency}");
                pages(client, format!("/tables/{}?{query}", dotted(table)), limit)
            }
        }
    }
}

/// The running job.
pub(super) fn running_client(loaded: &Loaded) -> Result<Client, Failure> {
    let directory = loaded.resolve(&loaded.manifest.job.state);
    let deadline = Instant::now() + SETTLE_TIME_MAX;
    loop {
        match running(loaded, &directory)? {
            Ok(client) => return Ok(client),
            Err(silent) if Instant::now() >= deadline || !loaded.manifest.admin.enabled => {
                return Err(Failure::Because(1, format!("the job cannot be asked: {silent}")));
            }
            Err(_) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// The running job; or, inside, why it cannot be asked now.
fn running(loaded: &Loaded, directory: &Path) -> Result<Result<Client, String>, Failure> {
    let silent = |why: String| Ok(Err(format!("the state in `{}` is in use, and {why}", directory.display())));
    if !loaded.manifest.admin.enabled {
        return silent("the running job answers nobody: the manifest says `admin.enabled = false`".to_owned());
    }
    let announcement = match Announcement::find(directory) {
        Ok(Some(announcement)) => announcement,
        Ok(None) => return silent("nothing there says where the running job answers; does it run at all?".to_owned()),
        Err(error) => return silent(format!("where the running job answers cannot be read: {error}")),
    };
    let resolve = |file: &str| -> PathBuf { loaded.resolve(file) };
    let token = admin::read_token(&loaded.manifest.admin, resolve).map_err(failed)?;
    let client = Client::new(&announcement, token).map_err(failed)?;
    match client.get("/status") {
        Ok(answer) if read::<ToldStatus>(&answer).is_ok_and(|told| told.pid == announcement.pid) => Ok(Ok(client)),
        Ok(_) => silent(format!("at {} another process answers", announcement.http)),
        Err(ClientError::Silent { address, error }) => silent(format!("the job does not answer at {address}: {error}")),
        Err(refused) => Err(refusal(refused)),
    }
}

#[derive(Deserialize)]
struct ToldStatus {
    pid: i32,
}

#[derive(Deserialize)]
struct ToldOperators {
    operators: BTreeMap<String, ToldOperator>,
}

#[derive(Deserialize)]
struct ToldOperator {
    component: Option<RunningComponent>,
}

#[derive(Deserialize)]
struct ToldTables {
    epoch: Option<Epoch>,
    tables: Vec<ToldTable>,
}

#[derive(Deserialize)]
struct ToldTable {
    name: String,
    schema_version: u32,
    #[serde(default)]
    keys: Option<u64>,
}

#[derive(Deserialize)]
struct ToldValue {
    epoch: Option<Epoch>,
    value: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct ToldPage {
    entries: Vec<ToldEntry>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct ToldEntry {
    key: serde_json::Value,
    value: Box<RawValue>,
}

fn told_tables(client: &Client, path: &str) -> Result<(Option<Epoch>, Vec<Table>), Failure> {
    let told: ToldTables = read(&ask(client, path)?)?;
    let table = |told: ToldTable| Table {
        name: told.name.replacen('.', "/", 1),
        keys: told.keys,
        schema_versions: vec![told.schema_version],
    };
    Ok((told.epoch, told.tables.into_iter().map(table).collect()))
}

/// Follows the pages from the first on, until there are enough keys.
fn pages(client: &Client, first: String, limit: usize) -> Result<Entries, Failure> {
    let (mut entries, mut next) = (Entries::new(), Some(first));
    while let Some(path) = next.filter(|_| entries.len() < limit) {
        let page: ToldPage = read(&ask(client, &path)?)?;
        for told in page.entries {
            let key =
                render::shown_bytes(&told.key).ok_or_else(|| failed("the job's answer has a key that is none"))?;
            entries.push((key, Shown::from(&*told.value)));
        }
        next = page.next;
    }
    entries.truncate(limit);
    Ok(entries)
}

/// Asks a running job.
pub(super) fn ask(client: &Client, path: &str) -> Result<Answer, Failure> {
    client.get(path).map_err(refusal)
}

fn read<'a, T: Deserialize<'a>>(answer: &'a Answer) -> Result<T, Failure> {
    serde_json::from_str(&answer.text).map_err(|error| failed(format!("the job's answer makes no sense: {error}")))
}

/// A table's name in paths.
pub(super) fn dotted(table: &str) -> String {
    table.replacen('/', ".", 1)
}

/// The least key that is above all that begin with `prefix`; `None` where there is none.
fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// What a running job does not answer: the fault of whoever asked, or that of the state.
pub(super) fn refusal(error: ClientError) -> Failure {
    match error {
        ClientError::Refused { code, error } => match code.as_str() {
            "gone" | "failed" => failed(error),
            _ => Failure::usage(error),
        },
        silent @ ClientError::Silent { .. } => failed(silent),
    }
}

/// A state directory that cannot be read has the exit code that a job with it would have.
fn unreadable(error: StateError) -> Failure {
    let message = format!("cannot read the state: {error}");
    Failure::Because(JobError::from(error).exit_code(), message)
}

pub(super) fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Because(3, format!("cannot read the state: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_before_the_next_one() {
        let end = |prefix: &[u8]| end_of_prefix(prefix);
        assert_eq!(end(b"u1"), Some(b"u2".to_vec()));
        assert_eq!(end(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!((end(b""), end(b"\xff")), (None, None));
    }
}

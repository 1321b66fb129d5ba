//! The connectors' behaviour, seen through their traits.

mod follow;
mod inputs;
mod nexmark;
mod outputs;
mod recovery;

use std::path::{Path, PathBuf};

use super::{BadRecord, ConnectorError, ReadOutcome, Source, SplitReader, source_from};
use crate::epoch::JobId;
use crate::epoch::entry::Position;
use crate::record::Batch;

/// The job whose output sinks write.
const JOB: JobId = JobId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

/// A directory that is removed at the end of the test.
struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    fn source(&self, manifest: &str) -> Result<Box<dyn Source>, ConnectorError> {
        source_from(&toml::from_str(manifest).unwrap(), self.path())
    }

    /// A file source over `name`.
    fn file(&self, name: &str, settings: &str) -> Box<dyn Source> {
        self.source(&format!("kind = 'file'\npath = '{name}'\n{settings}")).unwrap()
    }
}

/// Key, value, time.
type Record = (String, String, i64);

/// What reading brought, bytes that are no text replaced.
#[derive(Debug, Default, Clone, PartialEq)]
struct Seen {
    records: Vec<Record>,
    bad: Vec<BadRecord>,
}

impl Seen {
    fn values(&self) -> Vec<&str> {
        self.records.iter().map(|(_, value, _)| value.as_str()).collect()
    }

    fn keys(&self) -> Vec<&str> {
        self.records.iter().map(|(key, _, _)| key.as_str()).collect()
    }

    fn add(&mut self, batch: &Batch, bad: Vec<BadRecord>) {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        for index in 0..batch.len() {
            self.records.push((text(batch.keys.get(index)), text(batch.values.get(index)), batch.times[index]));
        }
        self.bad.extend(bad);
    }
}

/// Reads up to `records` records, or until there is nothing now.
fn read(reader: &mut dyn SplitReader, records: usize, seen: &mut Seen) -> Result<ReadOutcome, ConnectorError> {
    let (mut batch, mut bad) = (Batch::default(), Vec::new());
    let outcome = reader.read(records, usize::MAX, &mut batch, &mut bad);
    assert!(batch.len() + bad.len() <= records);
    assert!(batch.keys.len() == batch.values.len() && batch.keys.len() == batch.times.len());
    seen.add(&batch, bad);
    outcome
}

fn read_to_end(reader: &mut dyn SplitReader, seen: &mut Seen) -> ReadOutcome {
    loop {
        match read(reader, 1_000, seen).unwrap() {
            ReadOutcome::More => {}
            other => return other,
        }
    }
}

/// All of a source's only split.
fn all(source: &dyn Source) -> Seen {
    let splits = source.splits().unwrap();
    assert_eq!(splits.len(), 1);
    let mut seen = Seen::default();
    let mut reader = source.open(&splits[0], None).unwrap();
    assert_eq!(read_to_end(&mut *reader, &mut seen), ReadOutcome::End);
    seen
}

/// Reading record by record, and from each position so met to the end, must give what reading straight through gives.
fn check_resuming(source: &dyn Source) -> Seen {
    let split = source.splits().unwrap().remove(0);
    let straight = all(source);
    let mut reader = source.open(&split, None).unwrap();
    let mut seen = Seen::default();
    loop {
        let position = through_json(&reader.position());
        let mut resumed = seen.clone();
        let mut rest = source.open(&split, Some(&position)).unwrap();
        assert_eq!(read_to_end(&mut *rest, &mut resumed), ReadOutcome::End);
        assert_eq!(resumed, straight, "from {position:?}");
        assert_eq!(rest.position(), end_of(source, &split));
        if read(&mut *reader, 1, &mut seen).unwrap() == ReadOutcome::End {
            assert_eq!(seen, straight);
            return straight;
        }
    }
}

fn end_of(source: &dyn Source, split: &str) -> Position {
    let mut reader = source.open(split, None).unwrap();
    read_to_end(&mut *reader, &mut Seen::default());
    reader.position()
}

/// The position as the log would give it back.
fn through_json(position: &Position) -> Position {
    serde_json::from_str(&serde_json::to_string(position).unwrap()).unwrap()
}

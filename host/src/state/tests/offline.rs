//! Reading a stopped job's state, in real files, against a plain map.

use super::*;
use crate::disk::RealDisk;
use crate::state::offline::{Reader, Rows, StoredValue, TableInfo};

const KEYS: u32 = 50;

fn open(directory: &Path) -> Result<Job, StateError> {
    let options = OpenOptions { partitions: PARTITIONS, ..OpenOptions::default() };
    Job::open_in(directory, Arc::new(RealDisk), options)
}

fn stored(value: &[u8]) -> StoredValue {
    StoredValue { bytes: value.to_vec(), schema_version: 1 }
}

/// Four epochs, the first two of them in redb.
fn run(directory: &Path) {
    let mut job = open(directory).unwrap();
    for epoch in 1..=4 {
        apply_epoch(&job, epoch, KEYS);
        let entry = job.seal();
        job.commit(entry).unwrap();
        if epoch == 2 {
            job.opened.store.flush().unwrap();
        }
    }
    apply_epoch(&job, 5, KEYS);
}

#[test]
fn a_stopped_jobs_state_is_read_as_of_its_last_epoch() {
    let directory = tempfile::tempdir().unwrap();
    run(directory.path());
    let model = state_after(4, KEYS);
    let reader = Reader::open(directory.path()).unwrap();
    assert_eq!((reader.epoch(), reader.last().map(|last| last.epoch)), (4, Some(4)));
    assert_eq!(reader.fingerprint()["name"], "test");
    let name = "operator/table";
    let info = TableInfo { name: name.into(), keys: model.len() as u64, schema_versions: [1].into(), versioned: false };
    assert_eq!(reader.tables().unwrap(), [info]);
    for key in (0..KEYS).map(key) {
        assert_eq!(reader.get(name, &key).unwrap(), model.get(&key).map(|value| stored(value)));
    }

    let expected = |prefix: &[u8], from: &[u8], limit: usize| -> Rows {
        let within = model.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_slice() >= from);
        within.map(|(key, value)| (key.clone(), stored(value))).take(limit).collect()
    };
    for prefix in [&b""[..], b"key-", b"key-3", b"key-31", b"none", b"zzz"] {
        for from in [&b""[..], b"key-2", b"key-35", b"zzz"] {
            for limit in [0, 1, 3, 7, 1000] {
                let found = reader.scan(name, prefix, Some(from), limit).unwrap();
                assert_eq!(found, expected(prefix, from, limit), "{prefix:?} {from:?} {limit}");
            }
        }
    }
    let error = reader.get("operator/other", b"x").unwrap_err().to_string();
    assert!(error.contains("there are: operator/table"), "{error}");
}

#[test]
fn one_process_at_a_time_uses_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let job = open(directory.path()).unwrap();
    assert!(matches!(Reader::open(directory.path()), Err(StateError::Locked { .. })));
    assert!(matches!(open(directory.path()), Err(StateError::Locked { .. })));
    drop(job);
    let reader = Reader::open(directory.path()).unwrap();
    assert!(matches!(open(directory.path()), Err(StateError::Locked { .. })));
    drop(reader);
    open(directory.path()).unwrap();
}

#[test]
fn where_no_job_ran_there_is_nothing_to_read() {
    let directory = tempfile::tempdir().unwrap();
    for path in [directory.path().join("none"), directory.path().to_owned()] {
        assert!(matches!(Reader::open(&path), Err(StateError::Absent { .. })));
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "looking leaves nothing behind");
}

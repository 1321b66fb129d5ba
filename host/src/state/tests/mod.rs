//! Tests of the whole room, on the double of a disk: a small job in which every value says by which epoch it was written.

mod crash;
mod damage;
mod epochs;
mod memory;
mod migration;
mod model;
mod offline;
mod restart;
mod updating;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::versions::When;
use super::*;
use crate::disk::Disk;
use crate::disk::crash::CrashDisk;
use crate::epoch::Epoch;
use crate::epoch::entry::Entry;
use crate::record::Column;
use crate::time::Clock;

const PARTITIONS: u16 = 4;
const DIRECTORY: &str = "/job/state";

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(disk: &CrashDisk) -> OpenOptions {
    OpenOptions { partitions: PARTITIONS, double: Some(disk.clone()), clock: Clock::manual(), ..OpenOptions::default() }
}

/// A job of two tasks with one table.
struct Job {
    opened: Opened,
    tasks: Vec<Arc<TaskTables>>,
}

impl Job {
    fn open(disk: &CrashDisk) -> Result<Self, StateError> {
        Self::open_with(disk, options(disk))
    }

    fn open_with(disk: &CrashDisk, options: OpenOptions) -> Result<Self, StateError> {
        Self::open_in(Path::new(DIRECTORY), Arc::new(disk.clone()), options)
    }

    fn open_in(directory: &Path, disk: Arc<dyn Disk>, options: OpenOptions) -> Result<Self, StateError> {
        let opened = StateStore::open(directory, disk, &serde_json::json!({ "name": "test" }), options)?;
        let spec =
            [TableSpec { name: "operator/table".into(), schema_version: 1, ordered: true, versioned_span_ms: None }];
        let half = PARTITIONS / 2;
        let tasks = [0..half, half..PARTITIONS];
        let tasks = tasks.into_iter().map(|range| opened.store.open_task(range, &spec)).collect::<Result<_, _>>()?;
        Ok(Self { opened, tasks })
    }

    fn committed(&self) -> Epoch {
        self.opened.committer.committed()
    }

    fn apply(&self, key: &[u8], value: Option<&[u8]>) {
        let task = self.tasks.iter().find(|task| task.owns(key)).expect("every key has an owner");
        task.apply([Write { table: 0, key, value, when: When::NEWEST }]).unwrap();
    }

    fn seal(&self) -> Entry {
        let epoch = self.tasks[0].epoch();
        let deltas = self.tasks.iter().flat_map(|task| task.seal()).collect();
        Entry { epoch, attempt: self.opened.attempt, deltas, published: epoch - 1, ..Entry::default() }
    }

    fn commit(&mut self, entry: Entry) -> Result<(), StateError> {
        self.opened.committer.append(&entry)?;
        self.opened.committer.commit(entry)?;
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let task = self.tasks.iter().find(|task| task.owns(key)).expect("every key has an owner");
        let keys: Column = [key].into_iter().collect();
        let mut found = None;
        task.with_values(0, &keys, &mut |_, value| found = value.map(<[u8]>::to_vec)).unwrap();
        found
    }

    fn check(&self, model: &Model, keys: u32) {
        for key in (0..keys).map(key) {
            assert_eq!(self.get(&key), model.get(&key).cloned(), "key {}", key.escape_ascii());
        }
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

/// What epoch `epoch` does to key `number`, if anything: a plain rule, so that the state after any epoch can be computed without the code under test.
fn change(epoch: Epoch, number: u32) -> Option<Option<Vec<u8>>> {
    match (epoch * 7 + u64::from(number) * 13) % 5 {
        0 => Some(None),
        1 | 2 => Some(Some(format!("value-{epoch}-{number}").into_bytes())),
        _ => None,
    }
}

/// The state after `epoch`, of `keys` keys.
fn state_after(epoch: Epoch, keys: u32) -> Model {
    let mut model = Model::new();
    for epoch in 1..=epoch {
        for number in 0..keys {
            match change(epoch, number) {
                Some(Some(value)) => drop(model.insert(key(number), value)),
                Some(None) => drop(model.remove(&key(number))),
                None => {}
            }
        }
    }
    model
}

/// Applies what [`change`] says of `epoch`.
fn apply_epoch(job: &Job, epoch: Epoch, keys: u32) {
    for number in 0..keys {
        if let Some(value) = change(epoch, number) {
            job.apply(&key(number), value.as_deref());
        }
    }
}

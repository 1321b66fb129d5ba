//! Versioned tables against lists of everything that was written: random writes, updates, commits, feeds, evictions and restarts, under a budget far below the
//! state; and a plain table beside them.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::offline::Reader;
use super::super::update::{Number, Op, Operands, Updates};
use super::*;
use crate::disk::RealDisk;

const KEYS: u32 = 12;
const SPAN_MS: u64 = 20;
const TIMES: i64 = 60;
const PLAIN: usize = 0;
const VERSIONED: usize = 1;

/// All versions that a key ever had.
type Versions = BTreeMap<i64, Option<Vec<u8>>>;

/// All versions that each key ever had, and the plain table's values.
#[derive(Debug, Clone, Default)]
struct Everything {
    versions: BTreeMap<Vec<u8>, Versions>,
    plain: Model,
}

impl Everything {
    fn write(&mut self, key: &[u8], time: i64, value: Option<&[u8]>) {
        self.versions.entry(key.to_vec()).or_default().insert(time, value.map(<[u8]>::to_vec));
        match value {
            Some(value) => _ = self.plain.insert(key.to_vec(), value.to_vec()),
            None => _ = self.plain.remove(key),
        }
    }

    /// Adds to the newest value, at no earlier time than it has.
    fn add(&mut self, key: &[u8], time: i64, by: i64) {
        let versions = self.versions.entry(key.to_vec()).or_default();
        let newest = versions.last_key_value().map(|(time, value)| (*time, value.clone()));
        let (newest_time, value) = newest.unwrap_or((i64::MIN, None));
        let sum = value.map_or(0, |value| i64::from_le_bytes(value.try_into().unwrap())) + by;
        versions.insert(time.max(newest_time), Some(sum.to_le_bytes().to_vec()));
    }

    fn newest(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.versions.get(key)?.last_key_value()?.1.clone()
    }

    fn as_of(&self, key: &[u8], time: i64) -> Option<Vec<u8>> {
        self.versions.get(key)?.range(..=time).next_back()?.1.clone()
    }

    /// The least time at which the span still tells of a key.
    fn edge(&self, key: &[u8]) -> i64 {
        let newest = self.versions.get(key).and_then(|versions| versions.last_key_value());
        newest.map_or(i64::MIN, |(time, _)| time.saturating_sub_unsigned(SPAN_MS))
    }
}

struct VersionedJob {
    opened: Opened,
    tasks: Vec<Arc<TaskTables>>,
}

fn specs(is_versioned: bool) -> [TableSpec; 2] {
    let spec = |name: &str, versioned_span_ms| TableSpec {
        name: name.into(),
        schema_version: 3,
        ordered: true,
        versioned_span_ms,
    };
    [spec("operator/plain", None), spec("operator/versioned", is_versioned.then_some(SPAN_MS))]
}

impl VersionedJob {
    fn open(directory: &Path, disk: Arc<dyn Disk>, options: OpenOptions) -> Self {
        let opened = StateStore::open(directory, disk, &serde_json::json!({}), options).unwrap();
        let tasks = [0..2, 2..PARTITIONS].map(|range| opened.store.open_task(range, &specs(true)).unwrap());
        Self { opened, tasks: tasks.into() }
    }

    fn on(disk: &CrashDisk) -> Self {
        let options = OpenOptions { memory_bytes: (1 << 20) + 4000, retained: 2, ..options(disk) };
        Self::open(Path::new(DIRECTORY), Arc::new(disk.clone()), options)
    }

    fn task_of(&self, key: &[u8]) -> &TaskTables {
        self.tasks.iter().find(|task| task.owns(key)).expect("every key has an owner")
    }

    fn write(&self, key: &[u8], when: When, value: Option<&[u8]>) {
        let write = |table| Write { table, key, value, when };
        self.task_of(key).apply([write(PLAIN), write(VERSIONED)]).unwrap();
    }

    fn commit(&mut self) {
        let epoch = self.tasks[0].epoch();
        let deltas = self.tasks.iter().flat_map(|task| task.seal()).collect();
        let entry = Entry { epoch, attempt: self.opened.attempt, deltas, published: epoch - 1, ..Entry::default() };
        self.opened.committer.append(&entry).unwrap();
        self.opened.committer.commit(entry).unwrap();
    }

    fn check(&self, all: &Everything) {
        for key in (0..KEYS).map(key) {
            let task = self.task_of(&key);
            let value = |table| task.get(table, &key).unwrap().map(|cell| cell.value().unwrap().to_vec());
            assert_eq!(value(VERSIONED), all.newest(&key));
            let times: Vec<i64> = (all.edge(&key).max(-1)..TIMES).chain([i64::MAX]).collect();
            let keys: Column = times.iter().map(|_| key.as_slice()).collect();
            task.with_values_as_of(VERSIONED, &keys, &times, &mut |index, found| {
                assert_eq!(found.map(<[u8]>::to_vec), all.as_of(&key, times[index]), "at {}", times[index]);
            })
            .unwrap();
        }
        assert_eq!(self.scan(PLAIN, None), all.plain);
        assert_eq!(self.scan(VERSIONED, None), newest_of(all));
    }

    fn scan(&self, table: usize, view: Option<&EpochView>) -> Model {
        let mut found = Model::new();
        for task in &self.tasks {
            let slice = task.scan(table, b"", None, 1000, view).unwrap();
            assert_eq!(slice.next, None);
            found.extend(slice.cells.iter().map(|cell| (cell.key().to_vec(), cell.value().unwrap().to_vec())));
        }
        found
    }
}

fn newest_of(all: &Everything) -> Model {
    all.versions.keys().filter_map(|key| Some((key.clone(), all.newest(key)?))).collect()
}

#[derive(Debug, Clone)]
enum Step {
    /// By a batch: several keys at their times.
    Write(Vec<(u32, i64, Option<u8>)>),
    Add(u32, i64, i64),
    /// Writes of one task's keys, and then removals of some of them and additions to others, by one batch.
    Both(Vec<(u32, i64, Option<u8>)>, Vec<(u32, i64, i64)>, Vec<(u32, i64)>),
    Commit,
    Flush,
    Maintain,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let write = || (0..KEYS, 0..TIMES, prop::option::weighted(0.8, any::<u8>()));
    let writes = || prop::collection::vec(write(), 1..6);
    let adds = prop::collection::vec((0..KEYS, 0..TIMES, 0i64..9), 0..6);
    let deletes = prop::collection::vec((0..KEYS, 0..TIMES), 0..3);
    prop_oneof![
        8 => writes().prop_map(Step::Write),
        4 => (writes(), adds, deletes).prop_map(|(writes, adds, deletes)| Step::Both(writes, adds, deletes)),
        3 => (0..KEYS, 0..TIMES, 0i64..9).prop_map(|(key, time, by)| Step::Add(key, time, by)),
        3 => Just(Step::Commit),
        2 => Just(Step::Flush),
        4 => Just(Step::Maintain),
        1 => Just(Step::Restart),
    ]
}

/// Eight bytes, as those that numbers are added to.
fn value(byte: u8) -> [u8; 8] {
    i64::from(byte).to_le_bytes()
}

fn apply(job: &VersionedJob, all: &mut Everything, writes: &[(u32, i64, Option<u8>)]) {
    for task in &job.tasks {
        let own: Vec<_> = writes.iter().map(|(number, time, byte)| (key(*number), *time, byte.map(value))).collect();
        let own: Vec<_> = own.iter().filter(|(key, ..)| task.owns(key)).collect();
        let both = own.iter().flat_map(|(key, time, value)| {
            let value = value.as_ref().map(|value| value.as_slice());
            [PLAIN, VERSIONED].map(|table| Write { table, key, value, when: When::At(*time) })
        });
        task.apply(both).unwrap();
    }
    for (number, time, byte) in writes {
        all.write(&key(*number), *time, byte.map(value).as_ref().map(|value| value.as_slice()));
    }
}

fn added(keys: &[(Vec<u8>, i64, i64)]) -> Updates {
    let operands: Vec<[u8; 8]> = keys.iter().map(|(.., by)| by.to_le_bytes()).collect();
    Updates {
        op: Op::Add(Number::S64),
        keys: keys.iter().map(|(key, ..)| key.as_slice()).collect(),
        operands: Operands { items: operands.iter().map(<[u8; 8]>::as_slice).collect(), present: Vec::new() },
        expected: Operands::default(),
        times: keys.iter().map(|(_, time, _)| *time).collect(),
    }
}

fn deleted(keys: &[(Vec<u8>, i64)]) -> Updates {
    Updates {
        op: Op::Delete,
        keys: keys.iter().map(|(key, _)| key.as_slice()).collect(),
        operands: Operands { items: keys.iter().map(|_| &b""[..]).collect(), present: vec![false; keys.len()] },
        expected: Operands::default(),
        times: keys.iter().map(|(_, time)| *time).collect(),
    }
}

fn add(job: &VersionedJob, all: &mut Everything, number: u32, time: i64, by: i64) {
    let key = key(number);
    let updates = added(&[(key.clone(), time, by)]);
    assert_eq!(job.task_of(&key).update(VERSIONED, &updates).unwrap(), [Ok(true)]);
    all.add(&key, time, by);
}

/// What is of one task's keys in a batch of writes, removals and additions.
fn apply_both(
    job: &VersionedJob,
    all: &mut Everything,
    writes: &[(u32, i64, Option<u8>)],
    adds: &[(u32, i64, i64)],
    deletes: &[(u32, i64)],
) {
    let task = &job.tasks[0];
    let owned = |number: &u32| Some(key(*number)).filter(|key| task.owns(key));
    let writes: Vec<_> =
        writes.iter().filter_map(|(number, time, byte)| Some((owned(number)?, *time, byte.map(value)))).collect();
    let adds: Vec<_> = adds.iter().filter_map(|(number, time, by)| Some((owned(number)?, *time, *by))).collect();
    let deletes: Vec<_> = deletes.iter().filter_map(|(number, time)| Some((owned(number)?, *time))).collect();
    let both = writes.iter().flat_map(|(key, time, value)| {
        let value = value.as_ref().map(|value| value.as_slice());
        [PLAIN, VERSIONED].map(|table| Write { table, key, value, when: When::At(*time) })
    });
    let (deletes_of, adds_of) = (deleted(&deletes), added(&adds));
    let updates = [(VERSIONED, &deletes_of), (VERSIONED, &adds_of), (PLAIN, &adds_of)];
    let updates = updates.map(|(table, updates)| UpdatesOf { table, updates });
    task.write_and_update(both.collect(), &updates).unwrap();
    writes.iter().for_each(|(key, time, value)| all.write(key, *time, value.as_ref().map(|value| value.as_slice())));
    for (key, time) in &deletes {
        all.versions.entry(key.clone()).or_default().insert(*time, None);
    }
    for (key, time, by) in &adds {
        all.add(key, *time, *by);
        let sum = all.plain.get(key).map_or(0, |value| i64::from_le_bytes(value.as_slice().try_into().unwrap())) + by;
        all.plain.insert(key.clone(), sum.to_le_bytes().to_vec());
    }
}

fn check(steps: &[Step]) {
    let disk = CrashDisk::new();
    let mut job = VersionedJob::on(&disk);
    let (mut all, mut committed) = (Everything::default(), vec![Everything::default()]);
    for step in steps {
        match step {
            Step::Write(writes) => apply(&job, &mut all, writes),
            Step::Add(number, time, by) => add(&job, &mut all, *number, *time, *by),
            Step::Both(writes, adds, deletes) => apply_both(&job, &mut all, writes, adds, deletes),
            Step::Commit => {
                job.commit();
                committed.push(all.clone());
            }
            Step::Flush => _ = job.opened.store.flush().unwrap(),
            Step::Maintain => job.tasks.iter().for_each(|task| _ = task.maintain()),
            Step::Restart => {
                drop(job);
                job = VersionedJob::on(&disk);
                all.clone_from(committed.last().unwrap());
            }
        }
    }
    job.check(&all);
    let epochs = job.opened.store.epochs();
    for epoch in epochs.readable() {
        let view = epochs.view(Some(epoch)).unwrap();
        assert_eq!(job.scan(VERSIONED, Some(&view)), newest_of(&committed[epoch as usize]), "epoch {epoch}");
        for key in (0..KEYS).map(key) {
            let keys: Column = [key.as_slice()].into_iter().collect();
            let task = job.task_of(&key);
            task.with_values_at(VERSIONED, &keys, &view, &mut |_, found| {
                assert_eq!(found.map(<[u8]>::to_vec), committed[epoch as usize].newest(&key));
            })
            .unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn versions_are_those_that_were_written_wherever_they_are_kept(steps in prop::collection::vec(step(), 1..120)) {
        check(&steps);
    }
}

#[test]
fn a_stopped_jobs_versioned_table_shows_its_newest_values() {
    let directory = tempfile::tempdir().unwrap();
    let mut all = Everything::default();
    let options = OpenOptions { partitions: PARTITIONS, ..OpenOptions::default() };
    let mut job = VersionedJob::open(directory.path(), Arc::new(RealDisk), options);
    apply(&job, &mut all, &[(1, 10, Some(1)), (2, 10, Some(2)), (3, 10, Some(3))]);
    job.commit();
    job.opened.store.flush().unwrap();
    apply(&job, &mut all, &[(1, 5, Some(9)), (2, 20, None), (4, 1, Some(4))]);
    job.commit();
    drop(job);
    let reader = Reader::open(directory.path()).unwrap();
    let tables = reader.tables().unwrap();
    let shown: Vec<_> =
        tables.iter().map(|table| (&*table.name, table.versioned, table.schema_versions.clone())).collect();
    assert_eq!(shown, [("operator/plain", false, [3].into()), ("operator/versioned", true, [3].into())]);
    for key in (0..6).map(key) {
        let found = reader.get("operator/versioned", &key).unwrap();
        assert_eq!(found.map(|stored| stored.bytes), all.newest(&key));
    }
    let rows = reader.scan("operator/versioned", b"", None, 100).unwrap();
    let rows: Model = rows.into_iter().map(|(key, stored)| (key, stored.bytes)).collect();
    assert_eq!(rows, newest_of(&all));
}

#[test]
fn a_table_that_becomes_versioned_or_ceases_to_be_is_refused_by_name() {
    let disk = CrashDisk::new();
    let mut job = VersionedJob::on(&disk);
    job.write(b"k", When::At(1), Some(b"v"));
    job.commit();
    drop(job);
    let opened = StateStore::open(Path::new(DIRECTORY), Arc::new(disk.clone()), &serde_json::json!({}), options(&disk));
    let refused = opened.unwrap().store.open_task(0..PARTITIONS, &specs(false)).unwrap_err();
    assert!(
        matches!(&refused, StateError::Versioned { table, stored: true } if **table == *"operator/versioned"),
        "{refused}"
    );
    assert!(refused.to_string().contains("stored with earlier values"), "{refused}");
}

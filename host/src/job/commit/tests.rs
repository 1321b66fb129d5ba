//! A crash at every step of whole epochs: state, log and two sinks on one disk, with everything unsynced lost, kept or torn.
//!
//! The job is a small copy of the real one: it counts keys, keeps the counts in tables, and writes each new count to both sinks, one of
//! which has files that span epochs. While an epoch waits for its commit, the next one has already changed every key and written to the
//! sinks. How much input an epoch takes depends on the attempt, so that a later attempt never repeats the epochs of an earlier one.

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::connector::files::{FilesDirectory, is_output, is_temporary};
use crate::connector::{ConnectorError, SinkWriter};
use crate::disk::Disk;
use crate::disk::crash::{CrashDisk, Unsynced};
use crate::epoch::entry::{Position, SinkSeal};
use crate::record::{Batch, Column};
use crate::state::versions::When;
use crate::state::{OpenOptions, Opened, StateStore, TableSpec, TaskTables, Write};
use crate::time::Clock;

const PARTITIONS: u16 = 4;
const KEYS: u64 = 6;
const INPUT: u64 = 90;
const SINKS: [(&str, &str); 2] = [("out", "path = 'out'"), ("rolled", "path = 'rolled'\nroll = '10s'")];
/// Less than `roll`, so that a file spans three epochs.
const EPOCH_TIME: Duration = Duration::from_secs(4);

/// The key and the new count of record `number` of the input: the plain computation that everything is compared with.
fn outcome(number: u64) -> (String, u64) {
    (format!("key-{}", number % KEYS), number / KEYS + 1)
}

/// What the sinks hold after `records` records.
fn output_after(records: u64) -> String {
    (0..records).map(outcome).map(|(key, count)| format!("{key}={count}\n")).collect()
}

/// What the job knew when it stopped.
#[derive(Debug, Default, Clone, Copy)]
struct Known {
    /// Records in epochs whose commit returned.
    committed: u64,
    /// Records in the epoch whose commit was begun.
    begun: u64,
}

struct Job {
    disk: CrashDisk,
    clock: Clock,
    opened: Opened,
    tasks: Vec<Arc<TaskTables>>,
    sinks: BTreeMap<String, Arc<dyn Sink>>,
    writers: BTreeMap<String, Box<dyn SinkWriter>>,
    epoch: Epoch,
    /// Records processed.
    records: u64,
}

impl Job {
    /// Recovers in the order in which `assemble` does.
    fn open(disk: &CrashDisk) -> Result<Self, JobError> {
        let clock = Clock::manual();
        let options = OpenOptions {
            partitions: PARTITIONS,
            double: Some(disk.clone()),
            clock: clock.clone(),
            ..OpenOptions::default()
        };
        let opened =
            StateStore::open(Path::new("/job/state"), Arc::new(disk.clone()), &serde_json::Value::Null, options)?;
        let last_of = |name: &str| opened.last.as_ref().and_then(|entry| entry.sinks.get(name));
        let (mut sinks, mut writers) = (BTreeMap::new(), BTreeMap::new());
        for (name, settings) in SINKS {
            let failed = |error: ConnectorError| JobError::sink(name, error);
            let settings = toml::from_str(settings).expect("the settings are right");
            let sink = FilesDirectory::new(&settings, Path::new("/job"), Arc::new(disk.clone()), clock.clone());
            let sink: Arc<dyn Sink> = Arc::new(sink.map_err(failed)?);
            let unpublished: Vec<_> =
                opened.unpublished.iter().map(|entry| (entry.epoch, entry.sinks[name].clone())).collect();
            sink.recover(opened.job, &unpublished, last_of(name)).map_err(failed)?;
            writers.insert(name.to_owned(), sink.writer(last_of(name)).map_err(failed)?);
            sinks.insert(name.to_owned(), sink);
        }
        let spec =
            [TableSpec { name: "count/counts".into(), schema_version: 1, ordered: false, versioned_span_ms: None }];
        let half = PARTITIONS / 2;
        let tasks = [0..half, half..PARTITIONS].map(|range| opened.store.open_task(range, &spec));
        let tasks = tasks.into_iter().collect::<Result<_, _>>()?;
        let epoch = opened.last.as_ref().map_or(0, |entry| entry.epoch);
        let position = opened.last.as_ref().map(|entry| &entry.positions["in"]["split"]);
        let records = position.and_then(|position| position.0.as_u64()).unwrap_or(0);
        Ok(Self { disk: disk.clone(), clock, opened, tasks, sinks, writers, epoch, records })
    }

    fn task_of(&self, key: &[u8]) -> &TaskTables {
        self.tasks.iter().find(|task| task.owns(key)).expect("every key has an owner")
    }

    fn count_of(&self, key: &str) -> u64 {
        let keys: Column = [key.as_bytes()].into_iter().collect();
        let mut found = 0;
        let mut read = |_, value: Option<&[u8]>| {
            found = value.map_or(0, |value| u64::from_le_bytes(value.try_into().expect("a count has eight bytes")));
        };
        self.task_of(key.as_bytes()).with_values(0, &keys, &mut read).expect("the table can be read");
        found
    }

    /// Works on the next epoch's input, which has every key.
    fn process(&mut self) -> Result<(), JobError> {
        let records = KEYS + (self.opened.attempt + self.epoch) % KEYS;
        let mut batch = Batch::default();
        for number in self.records..INPUT.min(self.records + records) {
            let key = format!("key-{}", number % KEYS);
            let count = self.count_of(&key) + 1;
            let value = count.to_le_bytes();
            let write = Write { table: 0, key: key.as_bytes(), value: Some(&value), when: When::NEWEST };
            self.task_of(key.as_bytes()).apply([write]).expect("the task owns the key");
            batch.push(key.as_bytes(), format!("{key}={count}").as_bytes(), 0);
        }
        self.records += batch.len() as u64;
        for (name, writer) in &mut self.writers {
            writer.write(&batch).map_err(|error| JobError::sink(name, error))?;
        }
        self.clock.advance(EPOCH_TIME);
        Ok(())
    }

    fn seal(&mut self) -> Result<Entry, JobError> {
        self.epoch += 1;
        let last = self.records == INPUT;
        let deltas = self.tasks.iter().flat_map(|task| task.seal()).collect();
        let mut sinks = BTreeMap::<String, SinkSeal>::new();
        for (name, writer) in &mut self.writers {
            let seal = writer.seal(self.epoch, last).map_err(|error| JobError::sink(name, error))?;
            sinks.insert(name.clone(), seal);
        }
        let position = Position(self.records.into());
        let positions = BTreeMap::from([("in".to_owned(), BTreeMap::from([("split".to_owned(), position)]))]);
        let (epoch, attempt) = (self.epoch, self.opened.attempt);
        Ok(Entry { epoch, attempt, deltas, positions, sinks, finished: last, ..Entry::default() })
    }

    /// Runs to the end of the input.
    fn run(&mut self, known: &mut Known) -> Result<(), JobError> {
        self.process()?;
        while self.records > known.committed {
            known.begun = self.records;
            let entry = self.seal()?;
            self.process()?;
            let sealed = Sealed { entry, sealed_at: Instant::now() };
            commit(&mut self.opened.committer, &self.sinks, sealed)?;
            known.committed = known.begun;
            if self.epoch.is_multiple_of(2) {
                self.opened.store.flush()?;
            }
        }
        Ok(())
    }

    /// Notes in one more epoch that all output is published, as a clean end does.
    fn note(&mut self) -> Result<(), JobError> {
        let entry = self.seal()?;
        assert!(!entry.has_unpublished());
        commit(&mut self.opened.committer, &self.sinks, Sealed { entry, sealed_at: Instant::now() }).map(drop)
    }

    /// Compares state and output with the plain computation over the records so far, right after recovery.
    fn check(&self, context: &str) {
        let open_of = |name: &str| self.opened.last.as_ref().and_then(|entry| entry.sinks[name].open.clone());
        for (name, _) in SINKS {
            let directory = Path::new("/job").join(name);
            let open = open_of(name).map(|open| {
                let bytes = self.disk.read(&directory.join(open.temporary)).expect("the open file is there");
                String::from_utf8_lossy(&bytes[..open.length as usize]).into_owned()
            });
            let found = visible_output(&self.disk, name) + open.as_deref().unwrap_or_default();
            assert_eq!(found, output_after(self.records), "{context}: {name}");
            let names = self.disk.list(&directory).expect("the directory is there");
            let temporaries = names.iter().filter(|name| is_temporary(name)).count();
            assert_eq!(temporaries, usize::from(open.is_some()), "{context}: {names:?}");
        }
        for key in (0..KEYS).map(|key| format!("key-{key}")) {
            let expected = (0..self.records).map(outcome).filter(|(of, _)| *of == key).map(|(_, count)| count).max();
            assert_eq!(self.count_of(&key), expected.unwrap_or(0), "{context}: {key}");
        }
    }
}

/// What readers of a sink's directory see.
fn visible_output(disk: &CrashDisk, name: &str) -> String {
    let directory = Path::new("/job").join(name);
    let names = disk.list(&directory).unwrap_or_default();
    let content = |name: &String| disk.read(&directory.join(name)).expect("a listed file is there");
    let bytes: Vec<u8> = names.iter().filter(|name| is_output(name)).flat_map(content).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a job from its start until the disk stops.
fn run(disk: &CrashDisk) -> Known {
    let mut known = Known::default();
    // The last steps are redb's as it is closed, where a failure is nobody's.
    let _ = Job::open(disk).and_then(|mut job| job.run(&mut known));
    known
}

/// Checks what a crash left, recovers, and runs on to the end.
fn check_recovery(after: &CrashDisk, known: Known, context: &str) {
    let bound = output_after(known.begun.max(known.committed));
    for (name, _) in SINKS {
        let visible = visible_output(after, name);
        assert!(bound.starts_with(&visible), "{context}: readers of {name} saw {visible}");
    }
    let mut job = Job::open(after).unwrap_or_else(|error| panic!("{context}: {error}"));
    let allowed = [known.committed, known.begun.max(known.committed)];
    assert!(allowed.contains(&job.records), "{context}: {} records, but {known:?}", job.records);
    job.check(context);
    let mut known = Known { committed: job.records, begun: job.records };
    job.run(&mut known).unwrap_or_else(|error| panic!("{context}: {error}"));
    drop(job);
    let job = Job::open(after).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(job.records, INPUT, "{context}");
    job.check(context);
    for (name, _) in SINKS {
        assert_eq!(visible_output(after, name), output_after(INPUT), "{context}: {name} at the end");
    }
}

fn steps_of_a_whole_run() -> u64 {
    let whole = CrashDisk::new();
    assert_eq!(run(&whole).committed, INPUT);
    assert_eq!(visible_output(&whole, "rolled"), output_after(INPUT));
    whole.steps()
}

fn stopped_at(step: u64) -> (CrashDisk, Known) {
    let disk = CrashDisk::new();
    disk.stop_after(step);
    let known = run(&disk);
    assert!(disk.is_stopped(), "step {step}");
    (disk, known)
}

#[test]
fn a_crash_at_any_step_loses_nothing_and_doubles_nothing() {
    let steps = steps_of_a_whole_run();
    assert!(steps > 200, "{steps}");
    for step in 0..steps {
        let (disk, known) = stopped_at(step);
        for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Torn(step), Unsynced::Torn(!step)] {
            check_recovery(&disk.crash(unsynced), known, &format!("step {step}, {unsynced:?}"));
        }
    }
}

#[test]
fn a_crash_during_recovery_loses_nothing_and_doubles_nothing() {
    for step in (0..steps_of_a_whole_run()).step_by(11) {
        let (disk, known) = stopped_at(step);
        for second in (0..).step_by(2) {
            let after = disk.crash(Unsynced::Torn(step));
            after.stop_after(second);
            let recovered = Job::open(&after).is_ok();
            check_recovery(&after.crash(Unsynced::Torn(second)), known, &format!("step {step}, then {second}"));
            if recovered {
                break;
            }
        }
    }
}

/// Readers take the output away.
fn take_output(disk: &CrashDisk) {
    for (name, _) in SINKS {
        let directory = Path::new("/job").join(name);
        for name in disk.list(&directory).expect("the directory is there").iter().filter(|name| is_output(name)) {
            disk.remove(&directory.join(name)).expect("a listed file is there");
        }
    }
}

#[test]
fn output_may_be_taken_away_once_its_publication_is_noted_and_not_before() {
    let mut noted = false;
    for step in 0.. {
        let disk = CrashDisk::new();
        let mut known = Known::default();
        let mut job = Job::open(&disk).expect("the disk works");
        job.run(&mut known).expect("the disk works");
        disk.stop_after(step);
        noted = job.note().is_ok();
        drop(job);
        for unsynced in [Unsynced::Lost, Unsynced::Kept, Unsynced::Torn(step)] {
            let after = disk.crash(unsynced);
            let context = format!("step {step}, {unsynced:?}");
            let job = Job::open(&after).unwrap_or_else(|error| panic!("{context}: {error}"));
            job.check(&context);
            drop(job);
            take_output(&after);
            match Job::open(&after) {
                Ok(job) => assert_eq!(job.records, INPUT, "{context}"),
                Err(error) => {
                    assert!(!noted, "{context}: {error}");
                    assert!(error.to_string().contains("is not there"), "{context}: {error}");
                }
            }
        }
        if noted {
            assert!(step > 3, "{step}");
            break;
        }
    }
    assert!(noted);
}

//! Tables against a plain map: random writes, seals, commits, feeds, evictions and restarts, under a budget far below the state.

use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;

const KEYS: u32 = 60;
/// redb's cache takes its least, 1 MiB; tables get the rest.
const TABLE_BYTES: u64 = 2000;

fn tight(disk: &CrashDisk) -> OpenOptions {
    OpenOptions { memory_bytes: (1 << 20) + TABLE_BYTES, ..options(disk) }
}

#[derive(Debug, Clone)]
enum Step {
    Put(u32, Vec<u8>),
    Delete(u32),
    Get(u32),
    Commit,
    Flush,
    Maintain,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..KEYS, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(key, value)| Step::Put(key, value)),
        3 => (0..KEYS).prop_map(Step::Delete),
        6 => (0..KEYS).prop_map(Step::Get),
        2 => Just(Step::Commit),
        1 => Just(Step::Flush),
        4 => Just(Step::Maintain),
        1 => Just(Step::Restart),
    ]
}

fn maintain(job: &Job) {
    for task in &job.tasks {
        task.maintain();
    }
}

/// Runs steps on a job and on a plain map; returns whether something was evicted at some time.
fn check(steps: &[Step]) -> bool {
    let disk = CrashDisk::new();
    let mut job = Job::open_with(&disk, tight(&disk)).unwrap();
    let (mut model, mut committed) = (Model::new(), Model::new());
    let mut evicted = false;
    for step in steps {
        match step {
            Step::Put(number, value) => {
                job.apply(&key(*number), Some(value));
                model.insert(key(*number), value.clone());
            }
            Step::Delete(number) => {
                job.apply(&key(*number), None);
                model.remove(&key(*number));
            }
            Step::Get(number) => assert_eq!(job.get(&key(*number)), model.get(&key(*number)).cloned()),
            Step::Commit => {
                let entry = job.seal();
                job.commit(entry).unwrap();
                committed.clone_from(&model);
            }
            Step::Flush => assert_eq!(job.opened.store.flush().unwrap(), job.committed()),
            Step::Maintain => maintain(&job),
            Step::Restart => {
                drop(job);
                job = Job::open_with(&disk, tight(&disk)).unwrap();
                model.clone_from(&committed);
            }
        }
        evicted |= job.tasks.iter().any(|task| !task.is_complete());
    }
    job.check(&model, KEYS);
    let bytes: u64 = job.tasks.iter().map(|task| task.bytes()).sum();
    assert_eq!(bytes, job.opened.store.memory().tables_bytes);
    evicted
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn tables_are_a_map(steps in prop::collection::vec(step(), 1..250)) {
        check(&steps);
    }
}

#[test]
fn state_above_the_budget_moves_to_redb_and_back() {
    let puts = |from: u32| (0..KEYS).map(move |number| Step::Put((from + number) % KEYS, vec![number as u8; 30]));
    let mut steps: Vec<Step> = puts(0).collect();
    for round in 1..8 {
        steps.extend([Step::Commit, Step::Flush]);
        steps.extend(std::iter::repeat_n(Step::Maintain, 4));
        steps.extend((0..KEYS).map(Step::Get));
        steps.extend(puts(round).take(20));
        steps.extend((0..KEYS).step_by(7).map(Step::Delete));
        steps.push(Step::Maintain);
    }
    assert!(check(&steps));
}

#[test]
fn memory_falls_below_the_budget_once_everything_is_fed() {
    let disk = CrashDisk::new();
    let mut job = Job::open_with(&disk, tight(&disk)).unwrap();
    for number in 0..KEYS {
        job.apply(&key(number), Some(&[1; 60]));
    }
    assert_eq!(job.opened.store.pressure(), Pressure::Full);
    maintain(&job);
    assert_eq!(job.opened.store.pressure(), Pressure::Full, "nothing may go that redb lacks");
    let entry = job.seal();
    job.commit(entry).unwrap();
    job.opened.store.flush().unwrap();
    // Each sweep passes over what was used since the last.
    for _ in 0..3 {
        maintain(&job);
    }
    assert_eq!(job.opened.store.pressure(), Pressure::Calm);
    assert!(job.opened.store.memory().tables_bytes <= TABLE_BYTES);
    for number in 0..KEYS {
        assert_eq!(job.get(&key(number)), Some(vec![1; 60]));
    }
}

#[test]
fn tombstones_go_once_redb_has_them_and_the_tables_stay_complete() {
    let disk = CrashDisk::new();
    let mut job = Job::open(&disk).unwrap();
    for value in [Some(&b"value"[..]), None] {
        for number in 0..6000 {
            job.apply(&key(number), value);
        }
        let entry = job.seal();
        job.commit(entry).unwrap();
    }
    job.opened.store.flush().unwrap();
    for _ in 0..6 {
        maintain(&job);
    }
    assert!(job.tasks.iter().all(|task| task.is_complete() && task.len(0) < 1100));
    assert_eq!(job.get(&key(1)), None);
}

#[test]
fn a_batch_with_a_foreign_key_changes_nothing() {
    let job = Job::open(&CrashDisk::new()).unwrap();
    let task = &job.tasks[0];
    let own = (0..).map(key).find(|key| task.owns(key)).unwrap();
    let foreign = (0..).map(key).find(|key| !task.owns(key)).unwrap();
    let writes = [&own, &foreign].map(|key| Write { table: 0, key, value: Some(b"x"), when: When::NEWEST });
    assert!(matches!(task.apply(writes), Err(TablesError::ForeignKey { index: 1 })));
    assert!(matches!(task.get(0, &foreign), Err(TablesError::ForeignKey { index: 0 })));
    assert!(matches!(task.get(1, &own), Err(TablesError::UnknownTable { table: 1, tables: 1 })));
    assert_eq!(task.get(0, &own).unwrap(), None);
}

/// Stops the readers, also when the writer fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn readers_see_whole_batches_while_cells_are_evicted_and_fetched() {
    let disk = CrashDisk::new();
    let mut job = Job::open_with(&disk, tight(&disk)).unwrap();
    let task = job.tasks[0].clone();
    let keys: Vec<Vec<u8>> = (0..).map(key).filter(|key| task.owns(key)).take(20).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (task, keys, done) = (&task, &keys, &done);
            scope.spawn(move || {
                let column: Column = keys.iter().map(Vec::as_slice).collect();
                let mut newest = Vec::new();
                while !done.load(Ordering::Acquire) {
                    let mut seen = Vec::new();
                    task.with_values(0, &column, &mut |_, value| seen.push(value.unwrap_or_default().to_vec()))
                        .unwrap();
                    assert!(seen.iter().all(|value| *value == seen[0]), "a torn batch: {seen:?}");
                    assert!(seen[0] >= newest, "back in time: {seen:?}");
                    newest.clone_from(&seen[0]);
                }
            });
        }
        let _stop = Stop(&done);
        for round in 1..=300u32 {
            let value = [&round.to_be_bytes()[..], &[7; 60]].concat();
            task.apply(keys.iter().map(|key| Write { table: 0, key, value: Some(&value), when: When::NEWEST }))
                .unwrap();
            if round % 5 == 0 {
                let entry = job.seal();
                job.commit(entry).unwrap();
                job.opened.store.flush().unwrap();
                task.maintain();
                task.maintain();
            }
        }
    });
    assert!(!task.is_complete());
}

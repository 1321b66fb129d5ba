//! Reads as of epochs, and scans, against a plain map of each epoch: random writes, commits, feeds, evictions and restarts, with memory far below the state.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;

const KEYS: u32 = 60;
const RETAINED: u32 = 3;
/// Beside redb's cache, which takes its least, 1 MiB.
const TABLE_BYTES: u64 = 4000;

fn tight(disk: &CrashDisk) -> OpenOptions {
    OpenOptions { memory_bytes: (1 << 20) + TABLE_BYTES, retained: RETAINED, ..options(disk) }
}

#[derive(Debug, Clone)]
enum Step {
    Put(u32, Vec<u8>),
    Delete(u32),
    Commit,
    Flush,
    Maintain,
    Restart,
    ReadAll,
    ReadSome(Vec<u32>),
    Scan { from: u32, to: Option<u32>, limit: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..KEYS, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(key, value)| Step::Put(key, value)),
        6 => (0..KEYS).prop_map(Step::Delete),
        4 => Just(Step::Commit),
        2 => Just(Step::Flush),
        6 => Just(Step::Maintain),
        1 => Just(Step::Restart),
        1 => Just(Step::ReadAll),
        4 => prop::collection::vec(0..KEYS, 1..8).prop_map(Step::ReadSome),
        4 => (0..KEYS, prop::option::of(0..KEYS), 1usize..20).prop_map(|(from, to, limit)| Step::Scan { from, to, limit }),
    ]
}

/// The state after each committed epoch, and now.
struct History {
    committed: Vec<Model>,
    now: Model,
}

impl History {
    fn newest(&self) -> Epoch {
        self.committed.len() as Epoch - 1
    }
}

/// What the job can read, held against the history; the newest epoch always can be read.
fn readable(job: &Job, history: &History) -> RangeInclusive<Epoch> {
    let readable = job.opened.store.epochs().readable();
    let least = (history.newest() + 1).saturating_sub(u64::from(RETAINED));
    assert!(*readable.end() == history.newest() && *readable.start() >= least, "{readable:?}");
    readable
}

fn get_at(tasks: &[Arc<TaskTables>], view: &EpochView, numbers: &[u32]) -> Vec<Option<Vec<u8>>> {
    let mut found = vec![None; numbers.len()];
    for task in tasks {
        let own: Vec<usize> = (0..numbers.len()).filter(|&index| task.owns(&key(numbers[index]))).collect();
        let keys: Vec<Vec<u8>> = own.iter().map(|&index| key(numbers[index])).collect();
        let column: Column = keys.iter().map(Vec::as_slice).collect();
        let mut each = |index: usize, value: Option<&[u8]>| found[own[index]] = value.map(<[u8]>::to_vec);
        task.with_values_at(0, &column, view, &mut each).unwrap();
    }
    found
}

fn check_epoch(job: &Job, epoch: Epoch, model: &Model, numbers: &[u32]) {
    // The feeder may run out of memory, and drop the epoch, at any moment.
    let view = match job.opened.store.epochs().view(Some(epoch)) {
        Ok(view) => view,
        Err(TablesError::Gone { asked, oldest, newest }) => {
            assert!(asked == epoch && oldest > epoch && newest > epoch);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(view.epoch(), epoch);
    let expected: Vec<Option<Vec<u8>>> = numbers.iter().map(|&number| model.get(&key(number)).cloned()).collect();
    assert_eq!(get_at(&job.tasks, &view, numbers), expected, "as of epoch {epoch}");
    assert_eq!(view.count(&"operator/table".into()).unwrap(), model.len() as u64);
}

/// A scan to its end, page by page, merged over the tasks.
fn scan(tasks: &[Arc<TaskTables>], from: &[u8], to: Option<&[u8]>, limit: usize, view: Option<&EpochView>) -> Model {
    let mut found = Model::new();
    for task in tasks {
        let mut next = Some(from.to_vec());
        while let Some(from) = next {
            let slice = task.scan(0, &from, to, limit, view).unwrap();
            assert!(slice.cells.len() <= limit && slice.cells.is_sorted_by(|a, b| a.key() < b.key()));
            assert!(slice.next.as_ref().is_none_or(|next| slice.cells.iter().all(|cell| cell.key() < next.as_slice())));
            found.extend(slice.cells.iter().map(|cell| (cell.key().to_vec(), cell.value().unwrap().to_vec())));
            next = slice.next;
        }
    }
    found
}

fn within(model: &Model, from: &[u8], to: Option<&[u8]>) -> Model {
    let is_within = |key: &[u8]| key >= from && to.is_none_or(|to| key < to);
    model.iter().filter(|(key, _)| is_within(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Runs steps on a job and on plain maps; returns whether something was evicted at some time.
fn check(steps: &[Step], open: fn(&CrashDisk) -> OpenOptions) -> bool {
    let disk = CrashDisk::new();
    let mut job = Job::open_with(&disk, open(&disk)).unwrap();
    let mut history = History { committed: vec![Model::new()], now: Model::new() };
    let all: Vec<u32> = (0..KEYS).collect();
    let mut evicted = false;
    for step in steps {
        match step {
            Step::Put(number, value) => {
                job.apply(&key(*number), Some(value));
                history.now.insert(key(*number), value.clone());
            }
            Step::Delete(number) => {
                job.apply(&key(*number), None);
                history.now.remove(&key(*number));
            }
            Step::Commit => {
                let entry = job.seal();
                job.commit(entry).unwrap();
                history.committed.push(history.now.clone());
            }
            Step::Flush => _ = job.opened.store.flush().unwrap(),
            Step::Maintain => job.tasks.iter().for_each(|task| _ = task.maintain()),
            Step::Restart => {
                drop(job);
                job = Job::open_with(&disk, open(&disk)).unwrap();
                history.now.clone_from(&history.committed[history.newest() as usize]);
            }
            Step::ReadAll => {
                readable(&job, &history)
                    .for_each(|epoch| check_epoch(&job, epoch, &history.committed[epoch as usize], &all));
                job.check(&history.now, KEYS);
            }
            Step::ReadSome(numbers) => readable(&job, &history)
                .for_each(|epoch| check_epoch(&job, epoch, &history.committed[epoch as usize], numbers)),
            Step::Scan { from, to, limit } => {
                let (from, to) = (key(*from), to.map(key));
                assert_eq!(
                    scan(&job.tasks, &from, to.as_deref(), *limit, None),
                    within(&history.now, &from, to.as_deref())
                );
                let view = job.opened.store.epochs().view(None).unwrap();
                let committed = &history.committed[view.epoch() as usize];
                assert_eq!(
                    scan(&job.tasks, &from, to.as_deref(), *limit, Some(&view)),
                    within(committed, &from, to.as_deref())
                );
            }
        }
        evicted |= job.tasks.iter().any(|task| !task.is_complete());
    }
    let bytes: u64 = job.tasks.iter().map(|task| task.bytes()).sum();
    assert_eq!(bytes, job.opened.store.memory().tables_bytes);
    evicted
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    #[test]
    fn every_retained_epoch_is_what_it_was(steps in prop::collection::vec(step(), 1..300)) {
        check(&steps, tight);
    }

    #[test]
    fn so_it_is_with_memory_to_spare(steps in prop::collection::vec(step(), 1..300)) {
        check(&steps, |disk| OpenOptions { retained: RETAINED, ..options(disk) });
    }
}

#[test]
fn what_has_gone_to_disk_is_read_as_of_epochs_too() {
    let mut steps = Vec::new();
    for round in 0..8u32 {
        steps.extend((0..KEYS).map(|number| Step::Put((round * 7 + number) % KEYS, vec![round as u8; 30])).take(40));
        steps.extend((round..KEYS).step_by(5).map(Step::Delete));
        steps.extend([Step::Commit, Step::ReadAll, Step::Flush]);
        steps.extend(std::iter::repeat_n(Step::Maintain, 4));
        steps.extend([Step::ReadAll, Step::Scan { from: 0, to: None, limit: 7 }]);
        steps.push(Step::ReadAll);
    }
    assert!(check(&steps, tight));
}

#[test]
fn epochs_that_are_not_kept_or_not_committed_are_refused_by_name() {
    let disk = CrashDisk::new();
    let mut job = Job::open_with(&disk, OpenOptions { retained: 2, ..options(&disk) }).unwrap();
    let view = job.opened.store.epochs().view(None).unwrap();
    assert_eq!((view.epoch(), get_at(&job.tasks, &view, &[1])), (0, vec![None]));
    for epoch in 1..=4 {
        apply_epoch(&job, epoch, KEYS);
        let entry = job.seal();
        job.commit(entry).unwrap();
    }
    apply_epoch(&job, 5, KEYS);
    let refused = |epoch| match job.opened.store.epochs().view(Some(epoch)) {
        Err(error @ TablesError::Gone { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    for epoch in [0, 2, 5, Epoch::MAX] {
        let said = refused(epoch);
        assert!(said.contains(&format!("epoch {epoch}:")) && said.contains("epochs 3 to 4"), "{said}");
    }
    for epoch in [3, 4] {
        check_epoch(&job, epoch, &state_after(epoch, KEYS), &(0..KEYS).collect::<Vec<_>>());
    }
}

#[test]
fn a_view_that_is_held_stays_what_it_is_and_keeps_nothing_from_going_on() {
    let disk = CrashDisk::new();
    let mut job = Job::open_with(&disk, OpenOptions { retained: 1, ..tight(&disk) }).unwrap();
    apply_epoch(&job, 1, KEYS);
    let entry = job.seal();
    job.commit(entry).unwrap();
    let view = job.opened.store.epochs().view(None).unwrap();
    for epoch in 2..=12 {
        apply_epoch(&job, epoch, KEYS);
        let entry = job.seal();
        job.commit(entry).unwrap();
        assert_eq!(job.opened.store.flush().unwrap(), epoch);
        job.tasks.iter().for_each(|task| task.evict());
        // Reads what was evicted back in, as of now.
        job.check(&state_after(epoch, KEYS), KEYS);
        let numbers: Vec<u32> = (0..KEYS).collect();
        let model = state_after(1, KEYS);
        let expected: Vec<_> = numbers.iter().map(|&number| model.get(&key(number)).cloned()).collect();
        assert_eq!(get_at(&job.tasks, &view, &numbers), expected);
        assert_eq!(scan(&job.tasks, b"", None, 100, Some(&view)), model);
    }
    let logged: Vec<String> = disk.list(Path::new("/job/state/log")).unwrap();
    assert_eq!(logged.len(), 1, "the log does not grow for a view: {logged:?}");
}

/// The bytes of all files of the job.
fn bytes_on(disk: &CrashDisk) -> usize {
    disk.files().iter().map(|path| disk.read(path).unwrap().len()).sum()
}

#[test]
fn a_reader_who_asks_for_an_old_epoch_for_ever_is_refused_by_name_and_files_do_not_grow() {
    const LARGE: usize = 400;
    let disk = CrashDisk::new();
    let limits = OpenOptions { retained: 1_000, retained_bytes: Some(200_000), ..options(&disk) };
    let mut job = Job::open_with(&disk, limits).unwrap();
    let (mut early, mut refused) = (0, None);
    for epoch in 1..=120u64 {
        (0..KEYS).for_each(|number| job.apply(&key(number), Some(&vec![epoch as u8; LARGE])));
        let entry = job.seal();
        job.commit(entry).unwrap();
        job.opened.store.flush().unwrap();
        match job.opened.store.epochs().view(Some(1)) {
            Ok(view) => assert_eq!(get_at(&job.tasks, &view, &[7]), [Some(vec![1; LARGE])]),
            Err(error) => refused = Some(error.to_string()),
        }
        if epoch == 20 {
            early = bytes_on(&disk);
        }
    }
    let refused = refused.expect("the bytes of 120 epochs pass the limit");
    assert!(refused.contains("epoch 1:") && refused.contains("`checkpoint.retained-bytes`"), "{refused}");
    let late = bytes_on(&disk);
    assert!(late <= 2 * early, "{early} bytes after 20 epochs, {late} after 120");
}

#[test]
fn a_removed_key_that_memory_has_forgotten_is_still_there_in_an_earlier_view() {
    const MANY: u32 = 6000;
    let disk = CrashDisk::new();
    let mut job = Job::open_with(&disk, OpenOptions { retained: 2, ..options(&disk) }).unwrap();
    let mut view = None;
    for value in [Some(&b"value"[..]), None] {
        (0..MANY).for_each(|number| job.apply(&key(number), value));
        let entry = job.seal();
        job.commit(entry).unwrap();
        view = view.or_else(|| Some(job.opened.store.epochs().view(None).unwrap()));
    }
    let entry = job.seal();
    job.commit(entry).unwrap();
    job.opened.store.flush().unwrap();
    for _ in 0..6 {
        job.tasks.iter().for_each(|task| _ = task.maintain());
    }
    assert!(job.tasks.iter().all(|task| task.is_complete() && task.len(0) < 1100));
    let numbers: Vec<u32> = (0..MANY).collect();
    assert_eq!(get_at(&job.tasks, &view.unwrap(), &numbers), vec![Some(b"value".to_vec()); MANY as usize]);
    for epoch in [2, 3] {
        check_epoch(&job, epoch, &Model::new(), &numbers);
    }
}

#[test]
fn only_ordered_tables_are_scanned_as_they_are_now() {
    let disk = CrashDisk::new();
    let opened =
        StateStore::open(Path::new(DIRECTORY), Arc::new(disk.clone()), &serde_json::json!({}), options(&disk)).unwrap();
    let spec =
        [TableSpec { name: "operator/table".into(), schema_version: 1, ordered: false, versioned_span_ms: None }];
    let task = opened.store.open_task(0..PARTITIONS, &spec).unwrap();
    let error = task.scan(0, b"", None, 1, None).unwrap_err();
    assert!(matches!(&error, TablesError::NotOrdered { table } if &**table == "operator/table"), "{error}");
    let view = opened.store.epochs().view(None).unwrap();
    assert_eq!(task.scan(0, b"", None, 1, Some(&view)).unwrap(), Slice::default());
    assert!(matches!(task.scan(1, b"", None, 1, None), Err(TablesError::UnknownTable { table: 1, tables: 1 })));
}

/// Stops the readers, also when the writer fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn readers_of_epochs_are_right_while_the_job_writes_commits_feeds_and_evicts() {
    const EPOCHS: Epoch = 120;
    let disk = CrashDisk::new();
    let mut job = Job::open_with(&disk, tight(&disk)).unwrap();
    let history: Vec<Model> = (0..=EPOCHS).map(|epoch| state_after(epoch, KEYS)).collect();
    let numbers: Vec<u32> = (0..KEYS).collect();
    let done = AtomicBool::new(false);
    let (tasks, epochs) = (job.tasks.clone(), job.opened.store.epochs());
    std::thread::scope(|scope| {
        for offset in 0..2 {
            let (tasks, epochs, history, numbers, done) = (&tasks, &epochs, &history, &numbers, &done);
            scope.spawn(move || {
                let mut last = 0;
                while !done.load(Ordering::Acquire) {
                    let newest = *epochs.readable().end();
                    assert!(newest >= last, "back in time");
                    last = newest;
                    let Ok(view) = epochs.view(newest.checked_sub(offset)) else { continue };
                    let model = &history[view.epoch() as usize];
                    let expected: Vec<_> = numbers.iter().map(|&number| model.get(&key(number)).cloned()).collect();
                    assert_eq!(get_at(tasks, &view, numbers), expected, "as of {}", view.epoch());
                    assert_eq!(scan(tasks, b"", None, 100, Some(&view)), *model);
                }
            });
        }
        let _stop = Stop(&done);
        for epoch in 1..=EPOCHS {
            apply_epoch(&job, epoch, KEYS);
            let entry = job.seal();
            job.commit(entry).unwrap();
            if epoch % 3 == 0 {
                job.opened.store.flush().unwrap();
            }
            job.tasks.iter().for_each(|task| task.evict());
        }
    });
    assert!(job.tasks.iter().any(|task| !task.is_complete()));
}

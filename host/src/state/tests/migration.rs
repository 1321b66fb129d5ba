//! Values of several schema versions in one table: whoever reads sees one version, whatever is in memory, in the log or in redb.
//!
//! In version `v` a number `n` is stored as `n · 10^v`, so a value that is read as that of another version is noticed at once.

use super::*;
use crate::dice::{Dice, Told, seeds};
use crate::state::update::{Number, Op, Operands, Updates};

const KEYS: u32 = 40;
const STEPS: usize = 120;
const PLAIN: usize = 0;
const VERSIONED: usize = 1;
const VERSIONS: [u32; 3] = [1, 2, 3];
/// No more than a few keys fit beside the least cache of redb.
const MEMORY_BYTES: u64 = (1 << 20) + 6_000;

/// The numbers by key, in both tables.
type Numbers = BTreeMap<Vec<u8>, i64>;

#[derive(Debug)]
struct Decimal {
    to: u32,
}

impl Migrate for Decimal {
    fn migrate(&self, _: &str, from: u32, keys: &Column, values: &Column) -> Result<Column, String> {
        assert_eq!(keys.len(), values.len());
        assert_ne!(from, self.to);
        let made: Vec<Vec<u8>> = values.iter().map(|value| stored(number(value, from), self.to)).collect();
        Ok(column(&made))
    }
}

fn stored(number: i64, version: u32) -> Vec<u8> {
    (number * 10i64.pow(version)).to_le_bytes().to_vec()
}

fn number(value: &[u8], version: u32) -> i64 {
    let value = i64::from_le_bytes(value.try_into().expect("a value has eight bytes"));
    assert_eq!(value % 10i64.pow(version), 0, "{value} is not of version {version}");
    value / 10i64.pow(version)
}

fn column(items: &[Vec<u8>]) -> Column {
    items.iter().map(Vec::as_slice).collect()
}

fn encoding(to: u32) -> Encoding {
    let others = VERSIONS.into_iter().filter(|version| *version != to).collect::<BTreeSet<_>>();
    Encoding::new(vec![to; 2], vec![others; 2], Some(Arc::new(Decimal { to })))
}

struct MigratingJob {
    opened: Opened,
    tasks: Vec<Arc<TaskTables>>,
    version: u32,
}

impl MigratingJob {
    fn open(disk: &CrashDisk, version: u32) -> Self {
        let options = OpenOptions { memory_bytes: MEMORY_BYTES, retained: 3, ..options(disk) };
        let opened = StateStore::open(Path::new(DIRECTORY), Arc::new(disk.clone()), &serde_json::json!({}), options);
        let opened = opened.unwrap();
        let spec = |name: &str, versioned_span_ms| TableSpec {
            name: name.into(),
            schema_version: version,
            ordered: true,
            versioned_span_ms,
        };
        let specs = [spec("operator/plain", None), spec("operator/versioned", Some(50))];
        let tasks = [0..2, 2..PARTITIONS];
        let tasks = tasks.map(|range| opened.store.open_task_as(range, &specs, encoding(version)).unwrap());
        Self { opened, tasks: tasks.into(), version }
    }

    fn task_of(&self, key: &[u8]) -> &TaskTables {
        self.tasks.iter().find(|task| task.owns(key)).expect("every key has an owner")
    }

    fn commit(&mut self) {
        let epoch = self.tasks[0].epoch();
        let deltas = self.tasks.iter().flat_map(|task| task.seal()).collect();
        let entry = Entry { epoch, attempt: self.opened.attempt, deltas, published: epoch - 1, ..Entry::default() };
        self.opened.committer.append(&entry).unwrap();
        self.opened.committer.commit(entry).unwrap();
    }

    /// Goes on with another version. To be called behind a seal.
    fn reload(&mut self, version: u32) {
        self.opened.store.check_encoding(self.tasks[0].specs(), &encoding(version)).unwrap();
        self.opened.store.encode(&self.tasks.iter().map(|task| &**task).collect::<Vec<_>>(), encoding(version));
        self.version = version;
    }

    fn check(&self, numbers: &Numbers, view: Option<&EpochView>) {
        let all = column(&(0..KEYS).map(key).collect::<Vec<_>>());
        for task in &self.tasks {
            let keys: Column = all.iter().filter(|key| task.owns(key)).collect();
            for table in [PLAIN, VERSIONED] {
                let mut each = |index: usize, value: Option<&[u8]>| {
                    let key = keys.get(index);
                    let found = value.map(|value| number(value, self.version));
                    assert_eq!(found, numbers.get(key).copied(), "{} in table {table}", key.escape_ascii());
                };
                match view {
                    Some(view) => task.with_values_at(table, &keys, view, &mut each).unwrap(),
                    None => task.with_values(table, &keys, &mut each).unwrap(),
                }
                let slice = task.scan(table, b"", None, 1000, view).unwrap();
                let cells = slice.cells.iter();
                let found: Numbers =
                    cells.map(|cell| (cell.key().to_vec(), number(cell.value().unwrap(), self.version))).collect();
                let own = numbers.iter().filter(|(key, _)| task.owns(key));
                assert_eq!(found, own.map(|(key, number)| (key.clone(), *number)).collect(), "scan of {table}");
            }
        }
    }
}

/// One job by a seed: writes, updates, seals, feeding, eviction, restarts and reloads in any order.
fn run(seed: u64) {
    let (mut dice, disk) = (Dice::new(seed), CrashDisk::new());
    let mut job = MigratingJob::open(&disk, 1);
    let (mut numbers, mut committed, mut time) = (Numbers::new(), BTreeMap::from([(0, Numbers::new())]), 0);
    for _ in 0..STEPS {
        let key = key(dice.below(KEYS as usize) as u32);
        match dice.below(10) {
            0..4 => {
                time += 1;
                let new = (!dice.once_in(5)).then(|| dice.below(1000) as i64);
                let value = new.map(|new| stored(new, job.version));
                let when = When::At(time);
                let write = |table| Write { table, key: &key, value: value.as_deref(), when };
                job.task_of(&key).apply([write(PLAIN), write(VERSIONED)]).unwrap();
                match new {
                    Some(new) => _ = numbers.insert(key, new),
                    None => _ = numbers.remove(&key),
                }
            }
            4 => {
                time += 1;
                let by = dice.below(1000) as i64;
                for table in [PLAIN, VERSIONED] {
                    let items = column(&[stored(by, job.version)]);
                    let updates = Updates {
                        op: Op::Add(Number::S64),
                        keys: column(std::slice::from_ref(&key)),
                        operands: Operands { items, present: Vec::new() },
                        expected: Operands::default(),
                        times: vec![time],
                    };
                    assert_eq!(job.task_of(&key).update(table, &updates).unwrap(), [Ok(true)]);
                }
                *numbers.entry(key).or_default() += by;
            }
            5 => {
                job.commit();
                committed.insert(job.opened.committer.committed(), numbers.clone());
                if dice.once_in(2) {
                    job.reload(VERSIONS[dice.below(3)]);
                }
            }
            6 => {
                job.opened.store.flush().unwrap();
                job.tasks.iter().for_each(|task| task.evict());
            }
            7 => job.tasks.iter().filter(|task| task.is_migrating()).for_each(|task| _ = task.migrate_some().unwrap()),
            8 if dice.once_in(3) => {
                drop(job);
                job = MigratingJob::open(&disk, VERSIONS[dice.below(3)]);
                numbers.clone_from(committed.last_key_value().expect("the beginning is there").1);
            }
            _ => {}
        }
        job.check(&numbers, None);
        let epochs = job.opened.store.epochs();
        for epoch in epochs.readable() {
            // The oldest may be fed to redb meanwhile.
            if let Ok(view) = epochs.view(Some(epoch)) {
                job.check(&committed[&epoch], Some(&view));
            }
        }
    }
}

#[test]
fn readers_see_one_version_whatever_is_stored() {
    for seed in seeds(60) {
        let told = Told(seed);
        run(seed);
        std::mem::forget(told);
    }
}

#[test]
fn a_version_that_cannot_be_read_is_refused_by_name() {
    let disk = CrashDisk::new();
    let mut job = MigratingJob::open(&disk, 1);
    job.commit();
    job.reload(2);
    let refused = |readable: &[u32]| {
        let encoding = Encoding::new(vec![3; 2], vec![readable.iter().copied().collect(); 2], None);
        job.opened.store.check_encoding(job.tasks[0].specs(), &encoding).map_err(|error| error.to_string())
    };
    assert_eq!(refused(&[1, 2]), Ok(()));
    let error = refused(&[2]).unwrap_err();
    assert!(error.contains("`operator/plain`: it holds values of schema version 1"), "{error}");
    assert!(refused(&[1]).unwrap_err().contains("values of schema version 2"));
}

#[test]
fn once_all_owners_are_through_and_redb_has_it_older_versions_are_forgotten() {
    let disk = CrashDisk::new();
    let mut job = MigratingJob::open(&disk, 1);
    let numbers: Numbers = (0..KEYS).map(|number| (key(number), i64::from(number))).collect();
    for (key, number) in &numbers {
        let value = stored(*number, 1);
        let write = |table| Write { table, key, value: Some(&value), when: When::At(1) };
        job.task_of(key).apply([write(PLAIN), write(VERSIONED)]).unwrap();
    }
    job.commit();
    job.opened.store.flush().unwrap();
    job.tasks.iter().for_each(|task| task.evict());
    job.reload(3);
    let knows_three = Encoding::new(vec![3; 2], vec![BTreeSet::new(); 2], None);
    let check = |job: &MigratingJob| job.opened.store.check_encoding(job.tasks[0].specs(), &knows_three);
    for task in job.tasks.clone() {
        assert!(check(&job).is_err());
        let mut slices = 0;
        while task.is_migrating() {
            if !task.migrate_some().unwrap() {
                // There is no room in memory before redb has what was written.
                job.commit();
                job.opened.store.flush().unwrap();
                task.evict();
            }
            slices += 1;
            assert!(slices < 1000, "it comes to an end");
        }
    }
    // The last of it is to be retained no longer, and in redb.
    for _ in 0..4 {
        job.commit();
        job.opened.store.flush().unwrap();
    }
    check(&job).unwrap();
    job.check(&numbers, None);
    drop(job);
    let job = MigratingJob::open(&disk, 3);
    assert!(job.tasks.iter().all(|task| !task.is_migrating()));
    job.check(&numbers, None);
    check(&job).unwrap();
}

//! Lookups over several tasks, on the double of a disk, against plain maps.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::disk::crash::CrashDisk;
use crate::epoch::entry::Entry;
use crate::record::Column;
use crate::state::versions::When;
use crate::state::{OpenOptions, Opened, PAGE_BYTES, StateStore, TableSpec, Write};

const PARTITIONS: u16 = 7;
const TASKS: u16 = 3;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) struct Job {
    opened: Opened,
    tasks: Vec<Arc<TaskTables>>,
    pub(super) directory: Arc<Directory>,
    present: Model,
    committed: Vec<Model>,
}

impl Job {
    /// An operator `o` of three tasks with an ordered table `t`, a plain one `u`, and a versioned one `v`.
    pub(super) fn open(retained: u32) -> Self {
        let disk = CrashDisk::new();
        let options =
            OpenOptions { partitions: PARTITIONS, retained, double: Some(disk.clone()), ..OpenOptions::default() };
        let opened = StateStore::open(Path::new("/state"), Arc::new(disk), &serde_json::json!({}), options).unwrap();
        let spec =
            |name: &str, ordered| TableSpec { name: name.into(), schema_version: 2, ordered, versioned_span_ms: None };
        let versioned = TableSpec { versioned_span_ms: Some(100), ..spec("o/v", false) };
        let specs = [spec("o/t", true), spec("o/u", false), versioned];
        let ranges = [0..2, 2..4, 4..PARTITIONS];
        let tasks: Vec<_> = ranges.iter().map(|range| opened.store.open_task(range.clone(), &specs).unwrap()).collect();
        let owners = (0..PARTITIONS).map(|partition| Owner::Task((partition / 2).min(TASKS - 1))).collect();
        let tables = ["t", "u", "v"].map(str::to_owned).into();
        let own =
            OperatorTables { operator: "o".to_owned(), tables, specs: specs.to_vec(), tasks: tasks.clone(), owners };
        let none = OperatorTables {
            operator: "none".to_owned(),
            tables: Vec::new(),
            specs: Vec::new(),
            tasks: Vec::new(),
            owners: Vec::new(),
        };
        let directory = Arc::new(Directory::new(vec![own, none], opened.store.epochs()));
        Self { opened, tasks, directory, present: Model::new(), committed: vec![Model::new()] }
    }

    /// The same write to both tables.
    pub(super) fn write(&mut self, key: &[u8], value: Option<&[u8]>) {
        let task = self.tasks.iter().find(|task| task.owns(key)).unwrap();
        task.apply([0, 1].map(|table| Write { table, key, value, when: When::NEWEST })).unwrap();
        match value {
            Some(value) => _ = self.present.insert(key.to_vec(), value.to_vec()),
            None => _ = self.present.remove(key),
        }
    }

    pub(super) fn commit(&mut self) {
        let epoch = self.tasks[0].epoch();
        let deltas = self.tasks.iter().flat_map(|task| task.seal()).collect();
        let entry = Entry { epoch, attempt: self.opened.attempt, deltas, published: epoch - 1, ..Entry::default() };
        self.opened.committer.append(&entry).unwrap();
        self.opened.committer.commit(entry).unwrap();
        self.committed.push(self.present.clone());
    }

    fn model(&self, consistency: Consistency) -> &Model {
        match consistency {
            Consistency::Live => &self.present,
            Consistency::Committed => self.committed.last().unwrap(),
            Consistency::AsOf(epoch) => &self.committed[epoch as usize],
        }
    }

    fn check(&self, consistency: Consistency) {
        let model = self.model(consistency);
        let (ordered, plain) = (self.directory.find("o.t").unwrap(), self.directory.find("o.u").unwrap());
        // Also keys that there are not, and one twice.
        let asked: Vec<Vec<u8>> = (0..120).chain([3]).map(key).collect();
        let column: Column = asked.iter().map(Vec::as_slice).collect();
        for table in [ordered, plain] {
            let mut found = vec![None; asked.len()];
            let mut each = |index: usize, value: Option<&[u8]>| found[index] = Some(value.map(<[u8]>::to_vec));
            self.directory.get_many(table, &column, consistency, &mut each).unwrap();
            let expected: Vec<_> = asked.iter().map(|key| Some(model.get(key).cloned())).collect();
            assert_eq!(found, expected, "{consistency:?}");
        }
        for limit in [1, 3, 50, 1000] {
            for (from, to) in [(&b""[..], None), (b"key-2", Some(&b"key-7"[..])), (b"key-7", Some(b"key-2"))] {
                let expected =
                    model.iter().filter(|(key, _)| key.as_slice() >= from && to.is_none_or(|to| key.as_slice() < to));
                let found = self.pages(ordered, from, to, limit, consistency);
                assert_eq!(
                    found,
                    expected.map(|(key, value)| (key.clone(), value.clone())).collect(),
                    "{consistency:?}"
                );
            }
        }
    }

    fn pages(&self, table: TableId, from: &[u8], to: Option<&[u8]>, limit: usize, consistency: Consistency) -> Model {
        let (mut found, mut next) = (Model::new(), Some(from.to_vec()));
        while let Some(from) = next {
            let page = self.directory.scan(table, &from, to, limit, consistency).unwrap();
            assert!(page.keys.len() <= limit && page.keys.len() == page.values.len());
            assert!(page.keys.iter().is_sorted());
            let items = page.keys.iter().zip(page.values.iter());
            for (key, value) in items {
                assert_eq!(found.insert(key.to_vec(), value.to_vec()), None, "a key comes once");
            }
            next = page.next;
        }
        found
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

#[test]
fn keys_and_ranges_are_found_at_every_owner_as_of_any_moment() {
    let mut job = Job::open(3);
    for epoch in 1..=5u32 {
        for number in (0..100).filter(|number| (number * 7 + epoch) % 3 != 0) {
            let value = format!("{epoch}-{number}");
            job.write(&key(number), (!(number + epoch).is_multiple_of(5)).then_some(value.as_bytes()));
        }
        if epoch == 3 {
            job.opened.store.flush().unwrap();
        }
        if epoch < 5 {
            job.commit();
        }
    }
    assert_eq!(job.directory.readable(), 2..=4);
    for consistency in [Consistency::Live, Consistency::Committed, Consistency::AsOf(2), Consistency::AsOf(3)] {
        job.check(consistency);
    }
    assert_ne!(job.model(Consistency::Live), job.model(Consistency::Committed));
    for asked in [1, 5] {
        let gone = job.directory.moment(Consistency::AsOf(asked)).unwrap_err();
        assert!(matches!(gone, LookupError::Gone { oldest: 2, newest: 4, .. }), "{gone}");
    }
}

#[test]
fn one_moment_is_the_same_for_all_lookups_whatever_is_committed_meanwhile() {
    let mut job = Job::open(1);
    job.write(b"a", Some(b"1"));
    job.commit();
    let moment = job.directory.moment(Consistency::Committed).unwrap();
    for value in [&b"2"[..], b"3"] {
        job.write(b"a", Some(value));
        job.write(b"b", Some(value));
        job.commit();
        job.opened.store.flush().unwrap();
    }
    let table = job.directory.find("o.t").unwrap();
    assert_eq!(moment.epoch(), Some(1));
    assert_eq!(job.directory.get_at(table, b"a", &moment).unwrap(), Some(b"1".to_vec()));
    assert_eq!(job.directory.get_at(table, b"b", &moment).unwrap(), None);
    assert_eq!(job.directory.count_at(table, &moment).unwrap(), Some(1));
    let page = job.directory.scan_at(table, b"", None, 10, &moment).unwrap();
    assert_eq!(page.keys.iter().collect::<Vec<_>>(), [b"a"]);
    let now = job.directory.moment(Consistency::Live).unwrap();
    assert_eq!((now.epoch(), job.directory.count_at(table, &now).unwrap()), (None, None));
    assert_eq!(job.directory.get_at(table, b"b", &now).unwrap(), Some(b"3".to_vec()));
}

#[test]
fn a_table_without_order_is_scanned_only_as_of_epochs_and_only_by_those_who_may() {
    let mut job = Job::open(1);
    job.write(b"a", Some(b"1"));
    job.commit();
    let table = job.directory.find("o.u").unwrap();
    for consistency in [Consistency::Live, Consistency::Committed] {
        let refused = job.directory.scan(table, b"", None, 10, consistency).unwrap_err();
        assert!(matches!(&refused, LookupError::NotOrdered { table } if table == "o.u"), "{refused}");
    }
    let committed = job.directory.moment(Consistency::Committed).unwrap();
    assert_eq!(job.directory.scan_at(table, b"", None, 10, &committed).unwrap().keys.len(), 1);
    let live = job.directory.moment(Consistency::Live).unwrap();
    let refused = job.directory.scan_at(table, b"", None, 10, &live).unwrap_err();
    assert!(matches!(&refused, LookupError::NotOrdered { table } if table == "o.u"), "{refused}");
}

#[test]
fn a_page_is_bounded_by_its_bytes_whatever_the_number_of_owners() {
    let mut job = Job::open(1);
    let value = vec![7; PAGE_BYTES / 4 + 1];
    (0..20).for_each(|number| job.write(&key(number), Some(&value)));
    let table = job.directory.find("o.t").unwrap();
    let page = job.directory.scan(table, b"", None, 100, Consistency::Live).unwrap();
    assert_eq!(page.keys.len(), 4);
    assert_eq!(job.pages(table, b"", None, 100, Consistency::Live), job.present);
}

#[test]
fn tables_are_found_by_the_names_that_people_use() {
    let job = Job::open(1);
    let table = job.directory.find("o.t").unwrap();
    for name in ["o.t", "o/t"] {
        assert_eq!(job.directory.resolve(name).unwrap(), table);
    }
    for name in ["o", "o.w", "none", ""] {
        let refused = job.directory.resolve(name).unwrap_err().to_string();
        assert!(refused.contains("there are: o.t, o.u, o.v"), "{refused}");
    }
    let told: Vec<_> =
        job.directory.tables().into_iter().map(|table| (table.name, table.schema_version, table.ordered)).collect();
    assert_eq!(told, [("o.t".to_owned(), 2, true), ("o.u".to_owned(), 2, false), ("o.v".to_owned(), 2, false)]);
    assert_eq!(
        job.directory.tables().iter().map(|table| table.versioned_span_ms).collect::<Vec<_>>(),
        [None, None, Some(100)]
    );
    assert_eq!(*job.directory.subscribe().borrow(), 0);
}

#[test]
fn consistencies_are_read_as_they_are_written() {
    for consistency in [Consistency::Live, Consistency::Committed, Consistency::AsOf(7)] {
        assert_eq!(consistency.to_string().parse(), Ok(consistency));
    }
    for wrong in ["", "Live", "as-of:", "as-of:-1", "as-of:x", "7"] {
        assert!(wrong.parse::<Consistency>().unwrap_err().contains("as-of:EPOCH"), "{wrong}");
    }
}

#[test]
fn each_key_is_found_as_of_its_own_time_whoever_owns_it() {
    let job = Job::open(1);
    let (plain, versioned) = (job.directory.find("o.u").unwrap(), job.directory.find("o.v").unwrap());
    for number in 0..40 {
        let key = key(number);
        let task = job.tasks.iter().find(|task| task.owns(&key)).unwrap();
        for time in [20, 10] {
            let value = format!("{number} at {time}");
            let when = When::At(time + i64::from(number));
            task.apply([1, 2].map(|table| Write { table, key: &key, value: Some(value.as_bytes()), when })).unwrap();
        }
    }
    // Some keys that there are not, and one twice, at different times.
    let asked: Vec<(u32, i64)> = (0..45).map(|number| (number, i64::from(number % 30))).chain([(3, 99)]).collect();
    let keys: Column =
        asked.iter().map(|(number, _)| key(*number)).collect::<Vec<_>>().iter().map(Vec::as_slice).collect();
    let times: Vec<i64> = asked.iter().map(|(_, time)| *time).collect();
    let mut found = vec![None; asked.len()];
    let mut take = |index: usize, value: Option<&[u8]>| {
        found[index] = Some(value.map(|value| String::from_utf8(value.to_vec()).unwrap()));
    };
    job.directory.get_many_as_of_time(versioned, &keys, &times, &mut take).unwrap();
    let expected = asked.iter().map(|(number, time)| match time - i64::from(*number) {
        _ if *number >= 40 => Some(None),
        ..10 => Some(None),
        10..20 => Some(Some(format!("{number} at 10"))),
        20.. => Some(Some(format!("{number} at 20"))),
    });
    assert_eq!(found, expected.collect::<Vec<_>>());
    job.directory.get_many_as_of_time(plain, &keys, &times, &mut |_, value| assert_eq!(value, None)).unwrap();
}

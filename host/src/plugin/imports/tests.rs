//! What a call sees of its own writes, and for whom it reads.

use parking_lot::Mutex;

use super::super::instance::Nothing;
use super::*;
use wit::isolation::Host as _;
use wit::metrics::Host as _;
use wit::state::Host as _;

/// A table without values that owns every key and notes for whom it is read.
#[derive(Default)]
struct Bare {
    readers: Mutex<Vec<String>>,
}

impl StateReader for Bare {
    fn read(
        &self,
        _: usize,
        keys: &Column,
        readers: Readers<'_>,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), StateReadError> {
        self.readers.lock().push(format!("{readers:?}"));
        (0..keys.len()).for_each(|index| found(index, None));
        Ok(())
    }

    fn owns(&self, _: &[u8]) -> bool {
        true
    }
}

/// A host whose call has four records.
fn host(records: Records) -> (Host, Arc<Bare>) {
    let description = Description { tables: vec![("kept".to_owned(), 1)], ..Description::default() };
    let limits = Limits {
        memory_bytes_max: 1 << 20,
        run_time_max: std::time::Duration::ZERO,
        output_bytes_max: 1 << 20,
        log_lines_max: 0,
    };
    let state = Arc::new(Bare::default());
    let others = Arc::new(Nothing);
    let host = Host::new("work", Arc::new(description), limits, Arc::clone(&state) as Arc<dyn StateReader>);
    (Host { others, call: Call::of(4, records, BatchLog::default()), ..host }, state)
}

fn get(host: &mut Host, key: &str) -> Option<Vec<u8>> {
    host.get("kept".to_owned(), key.into()).unwrap().unwrap()
}

fn put(host: &mut Host, key: &str, value: &str, record: u32) {
    host.put("kept".to_owned(), key.into(), value.into(), record).unwrap().unwrap();
}

#[test]
fn a_call_sees_what_it_has_written() {
    let (mut host, _) = host(Records::Together);
    put(&mut host, "a", "one", 1);
    host.read_for(vec![2]).unwrap();
    assert_eq!(get(&mut host, "a").as_deref(), Some(b"one".as_slice()));
    assert!(!host.is_apart().unwrap());
}

#[test]
fn records_that_are_apart_see_their_own_writes_only() {
    let (mut host, state) = host(Records::Apart);
    assert!(host.is_apart().unwrap());
    put(&mut host, "a", "one", 1);
    put(&mut host, "a", "two", 2);
    let mut seen = |record: Option<u32>| {
        record.into_iter().for_each(|record| host.read_for(vec![record]).unwrap());
        get(&mut host, "a")
    };
    assert_eq!(seen(Some(1)).as_deref(), Some(b"one".as_slice()));
    assert_eq!(seen(Some(2)).as_deref(), Some(b"two".as_slice()));
    assert_eq!((seen(Some(3)), seen(None)), (None, None));
    assert_eq!(*state.readers.lock(), ["One(1)", "One(2)", "One(3)", "All"]);
}

#[test]
fn readers_are_named_once_for_all_keys_or_each_and_for_the_next_read_only() {
    let (mut host, state) = host(Records::Apart);
    let keys = || wit::types::Column { bytes: b"ab".to_vec(), ends: vec![1, 2] };
    let mut read = |readers: &[u32], keys: wit::types::Column| {
        host.read_for(readers.to_vec()).unwrap();
        host.get_many("kept".to_owned(), keys).unwrap()
    };
    read(&[3, 1], keys()).unwrap();
    read(&[3], keys()).unwrap();
    assert!(matches!(read(&[1, 2, 3], keys()), Err(Error::Malformed(_))));
    assert!(read(&[1], wit::types::Column { bytes: b"ab".to_vec(), ends: vec![9] }).is_err());
    get(&mut host, "a");
    assert_eq!(*state.readers.lock(), ["Each([3, 1])", "One(3)", "All"]);
    assert!(host.read_for(vec![4]).is_err());
}

#[test]
fn figures_of_records_name_them() {
    let (mut host, _) = host(Records::Apart);
    host.count_many("n".to_owned(), vec![1, 2], vec![0, 3]).unwrap();
    host.gauge_many("g".to_owned(), vec![0.5], vec![1]).unwrap();
    assert_eq!(host.call.effects.counts, [Figures { name: "n".to_owned(), values: vec![1, 2], records: vec![0, 3] }]);
    assert_eq!(host.call.effects.gauges, [Figures { name: "g".to_owned(), values: vec![0.5], records: vec![1] }]);
    assert!(host.count_many("n".to_owned(), vec![1, 2], vec![0]).is_err());
    assert!(host.gauge_many("g".to_owned(), vec![1.0], vec![4]).is_err());
}

#[test]
fn metrics_past_the_limits_are_left_out_and_noted() {
    let (mut host, _) = host(Records::Together);
    host.count("fine".to_owned(), 1).unwrap();
    assert!(!host.call.metrics_left_out);
    host.gauge("n".repeat(METRIC_NAME_BYTES_MAX + 1), 1.0).unwrap();
    assert!(host.call.metrics_left_out);
    while host.call.effects.counts.len() < (1 << 20) {
        let before = host.call.effects.counts.len();
        host.count("again".to_owned(), 1).unwrap();
        if host.call.effects.counts.len() == before {
            break;
        }
    }
    assert!(host.call.effects.counts.len() < 1 << 20, "no limit holds");
    assert!(host.call.effects.gauges.is_empty());
}

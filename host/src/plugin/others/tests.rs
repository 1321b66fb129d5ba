//! What a guest may ask of tables beside its own, what it is told when it may not, and what is kept of its updates.

use std::sync::{Arc, Mutex};

use super::super::instance::Nothing;
use super::super::{Description, Effects, Limits, OtherTables, Records, TableUpdates};
use super::*;
use wit::tables::{Consistency as Asked, Host as _, Op as AskedOp};

/// Two keys with values; each lookup is noted, and answered from its last key to its first.
#[derive(Default)]
struct Shelf {
    asked: Mutex<Vec<(usize, Consistency)>>,
    /// For whom.
    readers: Arc<Mutex<Vec<String>>>,
    fails: Option<LookupError>,
}

const HELD: [(&str, &str); 3] = [("a", "one"), ("b", ""), ("c", "three")];

impl OtherTables for Shelf {
    fn get_many(
        &self,
        table: usize,
        keys: &Column,
        readers: Readers<'_>,
        consistency: Consistency,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        self.asked.lock().unwrap().push((table, consistency));
        self.readers.lock().unwrap().push(format!("{readers:?}"));
        if let Some(error) = &self.fails {
            return Err(error.clone());
        }
        for (index, key) in keys.iter().enumerate().collect::<Vec<_>>().into_iter().rev() {
            found(index, HELD.iter().find(|(held, _)| held.as_bytes() == key).map(|(_, value)| value.as_bytes()));
        }
        Ok(())
    }

    /// Values hold from time 10 on, and are known up to time 20.
    fn get_many_as_of_time(
        &self,
        table: usize,
        keys: &Column,
        times: &[i64],
        wait: bool,
        readers: Readers<'_>,
        found: &mut dyn FnMut(usize, Option<&[u8]>),
    ) -> Result<(), LookupError> {
        if wait && times.iter().any(|time| *time > 20) {
            return Err(LookupError::NotYet("known up to 20".to_owned()));
        }
        self.get_many(table, keys, readers, Consistency::Live, &mut |index, value| {
            found(index, value.filter(|_| times[index] >= 10));
        })
    }

    fn scan(
        &self,
        table: usize,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        readers: Readers<'_>,
        consistency: Consistency,
    ) -> Result<Page, LookupError> {
        self.asked.lock().unwrap().push((table, consistency));
        self.readers.lock().unwrap().push(format!("{readers:?}"));
        let mut page = Page::default();
        for (key, value) in HELD {
            let key = key.as_bytes();
            if key < from || to.is_some_and(|to| key >= to) {
                continue;
            }
            if page.keys.len() == limit {
                page.next = Some(key.to_vec());
                break;
            }
            page.keys.push(key);
            page.values.push(value.as_bytes());
        }
        Ok(page)
    }
}

fn used(name: &str, read: bool, update: bool, send: bool, ordered: bool) -> Use {
    let (versioned, waiting) = (false, Waiting::Circular);
    Use { name: name.to_owned(), read, update, send, ordered, versioned, waiting }
}

/// A table that keeps earlier values.
fn used_as_of_times(name: &str, waiting: Waiting) -> Use {
    Use { versioned: true, waiting, ..used(name, true, true, false, false) }
}

/// A host whose call has four records, over tables that may be read, changed, sent to, scanned.
fn host(shelf: Shelf) -> Host {
    let description = Description { ports: vec!["out".to_owned(), "done".to_owned()], ..Description::default() };
    let limits = Limits {
        memory_bytes_max: 8,
        run_time_max: std::time::Duration::ZERO,
        output_bytes_max: 2_000,
        log_lines_max: 0,
    };
    let uses = [
        used("changed", false, true, false, false),
        used("read", true, false, false, false),
        used("scanned", true, false, false, true),
        used("sent", false, false, true, false),
        used_as_of_times("prices", Waiting::Allowed),
        used_as_of_times("own", Waiting::Circular),
        used_as_of_times("locked", Waiting::Serializable),
    ];
    let mut host = Host::new("work", Arc::new(description), limits, Arc::new(Nothing));
    host.others = Arc::new(shelf);
    host.uses = uses.into();
    host.call = super::super::imports::Call::of(4, Records::Together, Default::default());
    host
}

fn items(items: &[&str]) -> wit::types::Column {
    into_wit(items.iter().map(|item| item.as_bytes()).collect())
}

fn optional_items(given: &[Option<&str>]) -> wit::types::OptionalColumn {
    let present = given.iter().map(|item| u8::from(item.is_some())).collect();
    let given: Vec<_> = given.iter().map(|item| item.unwrap_or_default()).collect();
    wit::types::OptionalColumn { items: items(&given), present }
}

fn longs(numbers: &[i64]) -> wit::types::Column {
    into_wit(numbers.iter().map(|number| number.to_le_bytes()).collect::<Vec<_>>().iter().map(|n| &n[..]).collect())
}

fn batch_of(given: &[&str]) -> wit::types::Batch {
    wit::types::Batch { keys: items(given), values: items(given), times: vec![7; given.len()] }
}

fn text_of(error: Error) -> String {
    match error {
        Error::UnknownName(text) => format!("unknown-name: {text}"),
        Error::ForeignKey(text) => format!("foreign-key: {text}"),
        Error::Malformed(text) => format!("malformed: {text}"),
        Error::LimitExceeded(text) => format!("limit-exceeded: {text}"),
        Error::NotAllowed(text) => format!("not-allowed: {text}"),
        Error::NotYet(text) => format!("not-yet: {text}"),
        Error::Gone(text) => format!("gone: {text}"),
        Error::Other(text) => format!("other: {text}"),
    }
}

/// What a call comes to that waits for nobody.
fn now<T>(call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    match call.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => panic!("nothing is to be waited for"),
    }
}

#[track_caller]
fn refused<T>(result: wasmtime::Result<Result<T, Error>>, expected: &str) {
    let error = result.unwrap().err().expect("it is refused");
    assert_eq!(text_of(error), expected);
}

#[track_caller]
fn accepted<T>(result: wasmtime::Result<Result<T, Error>>) -> T {
    result.unwrap().map_err(text_of).unwrap()
}

#[test]
fn lookups_answer_in_the_order_of_the_keys() {
    let mut host = host(Shelf::default());
    host.limits.memory_bytes_max = 10;
    let found = accepted(now(host.get_many("read".to_owned(), items(&["c", "x", "b", "c"]), Asked::Live)));
    assert_eq!(
        (found.items.bytes.as_slice(), found.present.as_slice()),
        (b"threethree".as_slice(), [1, 0, 1, 1].as_slice())
    );
}

#[test]
fn single_lookups_tell_an_empty_value_from_none() {
    let mut host = host(Shelf::default());
    let mut get = |key: &str| accepted(now(host.get("read".to_owned(), key.into(), Asked::Live)));
    assert_eq!((get("a"), get("b"), get("x")), (Some(b"one".to_vec()), Some(Vec::new()), None));
}

#[test]
fn an_answer_may_always_be_fresher_than_asked() {
    let shelf = Arc::new(Shelf::default());
    let mut host = host(Shelf::default());
    host.others = shelf.clone();
    for asked in [Asked::Live, Asked::BoundedMs(9), Asked::BoundedEpochs(1), Asked::Committed, Asked::AsOf(5)] {
        accepted(now(host.get("scanned".to_owned(), b"a".to_vec(), asked)));
    }
    let expected =
        [Consistency::Live, Consistency::Live, Consistency::Live, Consistency::Committed, Consistency::AsOf(5)];
    assert_eq!(*shelf.asked.lock().unwrap(), expected.map(|consistency| (2, consistency)));
    let unknown = Asked::Other("eventual".to_owned());
    refused(
        now(host.get("read".to_owned(), b"a".to_vec(), unknown)),
        "other: this host knows no consistency `eventual`",
    );
}

#[test]
fn only_what_the_manifest_grants_can_be_reached() {
    let mut host = host(Shelf::default());
    refused(
        now(host.get("raed".to_owned(), b"a".to_vec(), Asked::Live)),
        "unknown-name: the manifest has no `uses.raed` for this operator; it has `changed`, `read`, `scanned`, `sent`, `prices`, `own`, `locked`",
    );
    refused(
        now(host.get("sent".to_owned(), b"a".to_vec(), Asked::Live)),
        "not-allowed: the manifest does not let this operator look up values of `sent`: add `uses.sent.read = true`",
    );
    refused(
        host.update("read".to_owned(), b"a".to_vec(), AskedOp::Put, b"v".to_vec(), 0),
        "not-allowed: the manifest does not let this operator change values of `read`: add `uses.read.update = true`",
    );
    refused(
        host.send("read".to_owned(), batch_of(&["a"]), vec![0]),
        "not-allowed: the manifest does not let this operator send records to the owner of `read`: add `uses.read.send = true`",
    );
    refused(
        now(host.scan("read".to_owned(), Vec::new(), None, 5, Asked::Live)),
        "not-allowed: `read` cannot be scanned: its owner does not keep it `ordered`",
    );
    refused(
        now(host.get_many_at("read".to_owned(), items(&["a"]), vec![1], false)),
        "not-allowed: `read` is not versioned: it keeps no earlier values",
    );
    refused(
        now(host.get_many_at("own".to_owned(), items(&["a"]), vec![1], true)),
        "not-allowed: `own` cannot be looked up with `wait`: how far the table's owner has come depends on this operator itself, so it would wait for ever",
    );
    refused(
        now(host.get_many_at("locked".to_owned(), items(&["a"]), vec![1], true)),
        "not-allowed: `locked` cannot be looked up with `wait`: a serializable operator does not wait",
    );
    host.uses = [].into();
    refused(
        now(host.get("read".to_owned(), b"a".to_vec(), Asked::Live)),
        "unknown-name: the manifest has no `uses.read` for this operator; it has none at all",
    );
    host.call = super::super::imports::Call::default();
    refused(
        now(host.get("read".to_owned(), b"a".to_vec(), Asked::Live)),
        "other: there are no tables outside `process`",
    );
}

#[test]
fn lookups_that_fail_say_why_and_a_failing_host_ends_the_call() {
    let failing = |error: LookupError| host(Shelf { fails: Some(error), ..Shelf::default() });
    let get = |host: &mut Host| now(host.get("read".to_owned(), b"a".to_vec(), Asked::AsOf(1)));
    let mut gone = failing(LookupError::Gone("epoch 1".to_owned()));
    refused(get(&mut gone), "gone: epoch 1");
    assert_eq!(gone.call.host_error, None);
    let mut broken = failing(LookupError::Host("a bad disk".to_owned()));
    refused(get(&mut broken), "other: a bad disk");
    assert_eq!(broken.call.host_error.as_deref(), Some("a bad disk"));
}

#[test]
fn earlier_values_are_looked_up_key_by_key_at_its_time() {
    let mut host = host(Shelf::default());
    let mut get = |keys: &[&str], times: &[i64], wait: bool| {
        now(host.get_many_at("prices".to_owned(), items(keys), times.to_vec(), wait))
    };
    let found = accepted(get(&["a", "c", "x", "b"], &[9, 20, 20, 10], true));
    assert_eq!((found.items.bytes.as_slice(), found.present), (b"three".as_slice(), vec![0, 1, 0, 1]));
    assert_eq!(accepted(get(&["a"], &[99], false)).items.bytes, b"one");
    refused(get(&["a", "b"], &[9], false), "malformed: 2 keys, but 1 times");
    assert_eq!(host.call.not_yet, None);
}

#[test]
fn what_is_asked_too_early_is_noted_whatever_the_guest_makes_of_it() {
    use super::super::trap::too_early;
    use super::super::{Failure, FailureKind};
    let mut host = host(Shelf::default());
    refused(
        now(host.get_many_at("prices".to_owned(), items(&["a", "b"]), vec![20, 21], true)),
        "not-yet: known up to 20",
    );
    accepted(now(host.get("read".to_owned(), b"a".to_vec(), Asked::Live)));
    assert_eq!(host.call.not_yet.as_deref(), Some("known up to 20"));
    let failed = |kind| Some(Failure { kind, message: "its own".to_owned(), culprit: Some(1), said: None });
    let told = |failure: Option<Failure>| {
        let failure = too_early("early".to_owned(), failure);
        (failure.kind, failure.message, failure.culprit)
    };
    for failure in [None, failed(FailureKind::Returned), failed(FailureKind::Trap)] {
        assert_eq!(told(failure), (FailureKind::NotYet, "early".to_owned(), None));
    }
    for kind in [FailureKind::RunTime, FailureKind::Memory, FailureKind::Contract] {
        assert_eq!(told(failed(kind)), (kind, "its own".to_owned(), Some(1)));
    }
}

#[test]
fn updates_of_versioned_tables_have_the_times_of_their_records() {
    let mut host = host(Shelf::default());
    for table in ["prices", "changed"] {
        let (keys, values) = (items(&["a", "b"]), items(&["v", "w"]));
        accepted(host.update_many(table.to_owned(), keys, AskedOp::Put, values, vec![3, 1], None));
    }
    let updates = with_times(std::mem::take(&mut host.call.effects.updates), &[10, 11, 12, 13], &host.uses);
    assert_eq!(
        (updates[0].updates.times.as_slice(), updates[1].updates.times.as_slice()),
        ([13, 11].as_slice(), [].as_slice())
    );
}

#[test]
fn scans_are_cut_to_what_the_guest_has_room_for() {
    let mut host = host(Shelf::default());
    let mut scan = |from: &str, to: Option<&str>, limit| {
        let page = now(host.scan("scanned".to_owned(), from.into(), to.map(Into::into), limit, Asked::Live));
        page.map(|page| page.map(|page| (page.keys.ends.len(), page.values.bytes, page.next)))
    };
    // `a`, `one` and `b` are 5 bytes; `c` and `three` would make them 11, with room for 8.
    assert_eq!(accepted(scan("", None, 9)), (2, b"one".to_vec(), Some(b"c".to_vec())));
    assert_eq!(accepted(scan("c", None, 9)), (1, b"three".to_vec(), None));
    assert_eq!(accepted(scan("", Some("b"), 9)), (1, b"one".to_vec(), None));
    assert_eq!(accepted(scan("", None, 1)), (1, b"one".to_vec(), Some(b"b".to_vec())));
    refused(scan("", None, 0), "malformed: a page has at least 1 key, but `limit` is 0");
    host.limits.memory_bytes_max = 5;
    refused(
        now(host.scan("scanned".to_owned(), b"c".to_vec(), None, 9, Asked::Live)),
        "limit-exceeded: a key and its value are more than `limits.memory`, 5 bytes",
    );
}

/// What is kept of one `update-many`.
#[track_caller]
fn updated(op: AskedOp, values: wit::types::Column) -> TableUpdates {
    let mut host = host(Shelf::default());
    accepted(host.update_many("changed".to_owned(), items(&["a", "b"]), op, values, vec![3, 0], None));
    host.call.effects.updates.pop().unwrap()
}

#[test]
fn each_operation_becomes_that_of_the_owner() {
    let cases = [
        (AskedOp::Put, Op::Put),
        (AskedOp::PutIfAbsent, Op::PutIfAbsent),
        (AskedOp::AddS64, Op::Add(Number::S64)),
        (AskedOp::AddF32, Op::Add(Number::F32)),
        (AskedOp::AddF64, Op::Add(Number::F64)),
        (AskedOp::MinS64, Op::Min(Number::S64)),
        (AskedOp::MaxS64, Op::Max(Number::S64)),
        (AskedOp::MinF32, Op::Min(Number::F32)),
        (AskedOp::MaxF32, Op::Max(Number::F32)),
        (AskedOp::MinF64, Op::Min(Number::F64)),
        (AskedOp::MaxF64, Op::Max(Number::F64)),
        (AskedOp::Append(3), Op::Append { items_max: 3 }),
    ];
    for (asked, op) in cases {
        let kept = updated(asked, longs(&[1, 2]));
        assert_eq!((kept.table, kept.updates.op, kept.records), (0, op, vec![3, 0]));
        assert_eq!(kept.updates.operands.get(1), Some(2i64.to_le_bytes().as_slice()));
    }
    let deleted = updated(AskedOp::Delete, items(&[])).updates;
    assert_eq!((deleted.op, deleted.operands.get(0), deleted.operands.get(1)), (Op::Delete, None, None));
}

#[test]
fn updates_of_a_wrong_shape_are_refused() {
    let mut host = host(Shelf::default());
    let mut update = |op, values, records: &[u32]| {
        host.update_many("changed".to_owned(), items(&["a", "b"]), op, values, records.to_vec(), None)
    };
    refused(update(AskedOp::Put, items(&["v"]), &[0, 1]), "malformed: 2 keys, but 1 values");
    refused(update(AskedOp::Put, items(&["v", "v"]), &[0]), "malformed: 2 items, but 1 record indices");
    refused(update(AskedOp::Put, items(&["v", "v"]), &[0, 4]), "malformed: record index 4 in a batch of 4");
    refused(update(AskedOp::Delete, items(&["v"]), &[0, 1]), "malformed: `delete` takes no values, but there are 1");
    refused(
        update(AskedOp::AddS64, items(&["12345678", "1234"]), &[0, 1]),
        "malformed: value 1 has 4 bytes, which is no vector of numbers of 8 bytes",
    );
    refused(
        update(AskedOp::MaxF32, items(&["1234", "12"]), &[0, 1]),
        "malformed: value 1 has 2 bytes, which is no vector of numbers of 4 bytes",
    );
    refused(
        update(AskedOp::Append(0), items(&["v", "v"]), &[0, 1]),
        "malformed: `append` keeps at least 1 item, not 0",
    );
    refused(
        update(AskedOp::Other("xor".to_owned()), items(&["v", "v"]), &[0, 1]),
        "other: this host knows no operation `xor`",
    );
    let torn = wit::types::Column { bytes: b"vw".to_vec(), ends: vec![1, 3] };
    refused(update(AskedOp::Put, torn, &[0, 1]), "malformed: the last end is 3, but there are 2 bytes");
    let large = "v".repeat(VALUE_BYTES_MAX + 1);
    refused(
        update(AskedOp::Put, items(&["v", &large]), &[0, 1]),
        "limit-exceeded: a value of an update has at most 16777216 bytes; reached 16777217",
    );
    assert_eq!(host.call.effects, Effects::default());
}

#[test]
fn single_updates_are_updates_of_one_key() {
    let mut host = host(Shelf::default());
    accepted(host.update("changed".to_owned(), b"k".to_vec(), AskedOp::AddS64, 5i64.to_le_bytes().into(), 2));
    accepted(host.update("changed".to_owned(), b"k".to_vec(), AskedOp::Delete, Vec::new(), 3));
    let updates = &host.call.effects.updates;
    assert_eq!((updates[0].updates.op, updates[0].records.as_slice()), (Op::Add(Number::S64), [2].as_slice()));
    assert_eq!((updates[1].updates.op, updates[1].updates.operands.get(0)), (Op::Delete, None));
}

#[test]
fn compare_and_put_keeps_what_is_absent() {
    let mut host = host(Shelf::default());
    let mut put = |expected, values| {
        let keys = items(&["a", "b"]);
        host.compare_and_put_many("changed".to_owned(), keys, expected, values, vec![0, 1], None)
    };
    refused(put(optional_items(&[None]), optional_items(&[None, None])), "malformed: 2 keys, but 1 expected values");
    let mut contrary = optional_items(&[Some("v"), None]);
    contrary.present[0] = 0;
    refused(put(optional_items(&[None, None]), contrary), "malformed: item 0 of `values` is absent, but not empty");
    let mut short = optional_items(&[None, None]);
    short.present.pop();
    refused(
        put(short, optional_items(&[None, None])),
        "malformed: `expected` has 2 items, but says of 1 whether they are there",
    );
    accepted(put(optional_items(&[None, Some("")]), optional_items(&[Some("v"), None])));
    let kept = &host.call.effects.updates[0].updates;
    assert_eq!(kept.op, Op::CompareAndPut);
    assert_eq!((kept.expected.get(0), kept.expected.get(1)), (None, Some(b"".as_slice())));
    assert_eq!((kept.operands.get(0), kept.operands.get(1)), (Some(b"v".as_slice()), None));
}

#[test]
fn outcomes_come_on_a_declared_port_with_the_time_of_their_record() {
    let mut host = host(Shelf::default());
    let mut ask = |port: &str, keys: &[&str]| {
        let outcomes = wit::tables::Outcomes { port: port.to_owned(), keys: items(keys), values: items(&["x", "yy"]) };
        let (keys, values) = (items(&["a", "b"]), items(&["v", "w"]));
        host.update_many("changed".to_owned(), keys, AskedOp::PutIfAbsent, values, vec![3, 1], Some(outcomes))
    };
    refused(ask("dnoe", &["p", "q"]), "unknown-name: `describe` declares no port `dnoe`");
    refused(ask("done", &["p"]), "malformed: 2 updates, but 1 keys and 2 values of outcomes");
    accepted(ask("done", &["p", "q"]));
    let updates = with_times(std::mem::take(&mut host.call.effects.updates), &[10, 11, 12, 13], &host.uses);
    let expected = Batch {
        keys: [b"p".as_slice(), b"q"].into_iter().collect(),
        values: [b"x".as_slice(), b"yy"].into_iter().collect(),
        times: vec![13, 11],
    };
    assert_eq!(updates[0].outcomes, Some(Outcomes { port: 1, records: expected }));
}

#[test]
fn sent_records_are_kept_in_order() {
    let mut host = host(Shelf::default());
    accepted(host.send("sent".to_owned(), batch_of(&["a", "b"]), vec![1, 2]));
    accepted(host.send("sent".to_owned(), batch_of(&[]), Vec::new()));
    refused(host.send("sent".to_owned(), batch_of(&["a"]), vec![4]), "malformed: record index 4 in a batch of 4");
    let mut uneven = batch_of(&["a"]);
    uneven.times.clear();
    refused(host.send("sent".to_owned(), uneven, vec![0]), "malformed: times has 0 items, but values has 1");
    let [sent] = &host.call.effects.sent[..] else { panic!("one call sends something") };
    assert_eq!((sent.table, sent.batch.len(), sent.records.as_slice()), (3, 2, [1, 2].as_slice()));
}

#[test]
fn what_is_handed_over_counts_against_the_limit_of_output() {
    let mut host = host(Shelf::default());
    let put = |host: &mut Host| host.update("changed".to_owned(), b"k".to_vec(), AskedOp::Put, vec![b'v'; 700], 0);
    // 256 a call, 16 an item, a key of 1 byte and a value of 700.
    accepted(put(&mut host));
    accepted(put(&mut host));
    refused(put(&mut host), "limit-exceeded: `limits.output` is 2000 bytes a batch; reached 2919");
    refused(
        host.send("sent".to_owned(), batch_of(&["a"]), vec![0]),
        "limit-exceeded: `limits.output` is 2000 bytes a batch; reached 2220",
    );
}

#[test]
fn declarations_are_for_describe() {
    use wit::declare::Host as _;
    let mut host = host(Shelf::default());
    let error = host.open_table("t".to_owned()).unwrap_err().to_string();
    assert_eq!(error, "`declare.open-table` was called outside of `describe`");
    host.declarations = Some(Default::default());
    assert!(host.uses_table("t".to_owned()).is_ok());
    assert!(host.uses_table("t".repeat(257)).unwrap_err().to_string().contains("257 bytes"));
}

#[test]
fn lookups_and_scans_are_for_the_records_that_were_named() {
    let shelf = Shelf::default();
    let readers = Arc::clone(&shelf.readers);
    let mut host = host(shelf);
    host.call = super::super::imports::Call::of(4, Records::Apart, Default::default());
    let read_for = |host: &mut Host, records: &[u32]| host.call.readers = Some(records.to_vec());
    read_for(&mut host, &[1, 3]);
    now(host.get_many("read".to_owned(), items(&["a", "b"]), Asked::Live)).unwrap().unwrap();
    read_for(&mut host, &[2, 2]);
    now(host.get_many_at("prices".to_owned(), items(&["a", "b"]), vec![12, 13], false)).unwrap().unwrap();
    read_for(&mut host, &[0]);
    now(host.scan("scanned".to_owned(), b"a".to_vec(), None, 1, Asked::Live)).unwrap().unwrap();
    read_for(&mut host, &[0]);
    now(host.get("changed".to_owned(), b"a".to_vec(), Asked::Live)).unwrap().unwrap_err();
    now(host.get("read".to_owned(), b"a".to_vec(), Asked::Live)).unwrap().unwrap();
    assert_eq!(*readers.lock().unwrap(), ["Each([1, 3])", "Each([2, 2])", "One(0)", "All"]);
}

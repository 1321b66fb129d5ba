//! Rounds with given batches: what comes of them does not depend on whether a function is called with all records of a batch at once, which it keeps apart, or
//! with one after another.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::ends::Record;
use super::native::{Call, Native};
use super::world::Tables;
use super::{key, words};
use crate::dice::Dice;
use crate::disk::crash::CrashDisk;
use crate::graph::Plan;
use crate::job::clock::EventClock;
use crate::job::wire::{Neighbours, Wiring, slots};
use crate::job::{Meters, declared};
use crate::lookup::{Consistency, Owner};
use crate::manifest::load_text;
use crate::record::Batch;
use crate::state::update::{Number, Op};
use crate::state::{OpenOptions, StateStore};
use crate::task::Message;
use crate::task::flow::{Flow, Way};
use crate::task::route::SinkMessage;

const KEYS: usize = 12;
const BATCH: usize = 16;
const TASKS: usize = 3;

const MANIFEST: &str = r#"
    [job]
    name = "rounds"
    partitions = 8
    [sources.input]
    kind = "stdin"
    format = "jsonl"
    key = "/k"
    [operators.work]
    component = "x.wasm"
    inputs = ["input"]
    uses.all = { table = "work.held", read = true, update = true }
    isolation = "serializable"
    parallelism = 3
    batch = 16
    [sinks.out]
    kind = "blackhole"
    inputs = ["work"]
"#;

fn number(value: Option<Vec<u8>>) -> i64 {
    value.map_or(0, |value| i64::from_le_bytes(value.try_into().expect("eight bytes")))
}

/// Counts the records of each key, reads three keys of any task, and changes one of them: which one, and how, follows from what it has read.
fn work(call: &mut Call<'_>, own: &[u8], value: &[u8]) {
    let seen = number(call.get(1, own)) + 1;
    call.put(1, own, &seen.to_le_bytes());
    assert_eq!(number(call.get(1, own)), seen, "a record sees what it has written");
    let word = words(value);
    let keys: Vec<&[u8]> = word[1..].iter().map(|key| key.as_bytes()).collect();
    let held: Vec<i64> = call.look_up(0, &keys).into_iter().map(number).collect();
    let sum: i64 = held.iter().sum();
    let changed = keys[sum.rem_euclid(3) as usize];
    match sum.rem_euclid(5) {
        0 => call.update(0, (Op::Put, changed), (Some(&(sum + 1).to_le_bytes()), None), None),
        1 => {}
        by => call.update(0, (Op::Add(Number::S64), changed), (Some(&by.to_le_bytes()), None), None),
    }
    call.emit(0, own, format!("{} {seen} {held:?}", word[0]).as_bytes());
}

/// What has come of rounds.
#[derive(Debug, PartialEq)]
struct Came {
    held: Vec<i64>,
    seen: Vec<i64>,
    output: BTreeSet<Record>,
    reruns: u64,
}

/// Lets the tasks work on `records`, in batches of [`BATCH`].
fn rounds(function: Native, records: &[Record]) -> (Came, u64) {
    let loaded = load_text("job.toml", "/job".into(), MANIFEST, &[]).expect("the manifest is right");
    let (graph, _) = crate::graph::check(&loaded.manifest, loaded.directory()).expect("the manifest is right");
    let functions = BTreeMap::from([("work".to_owned(), Arc::new(function))]);
    let declared = functions.iter().map(|(name, function)| (name.clone(), declared(&**function))).collect();
    let (plan, _) = Plan::new(&graph, 1, &declared).expect("manifest and function fit");
    let disk = Arc::new(CrashDisk::new());
    let options = OpenOptions { partitions: 8, double: Some((*disk).clone()), ..OpenOptions::default() };
    let opened = StateStore::open(Path::new("/job/state"), disk, &serde_json::json!({}), options).unwrap();
    let (flow, meters) = (Arc::new(Flow::default()), Arc::new(Meters::default()));
    let clock = EventClock::new(&graph, &plan);
    let (mut wiring, sinks) = Wiring::new(
        &loaded.manifest,
        &graph,
        &plan,
        Neighbours::default(),
        Arc::clone(&flow),
        clock.shared(),
        Arc::clone(&meters),
    );
    let (tasks, directory) = wiring.tasks(&slots(functions), &opened.store).unwrap();
    let operator = directory.operator(directory.find("work.held").unwrap());

    let mut batches: Vec<Vec<Batch>> = vec![Vec::new(); TASKS];
    for (key, value) in records {
        let Owner::Task(task) = operator.owner(key) else { panic!("there is one host") };
        let batches = &mut batches[usize::from(task)];
        if batches.last().is_none_or(|batch| batch.len() == BATCH) {
            batches.push(Batch::default());
        }
        batches.last_mut().unwrap().push(key, value, 0);
    }
    for (mailbox, batches) in wiring.mailboxes().iter().zip(batches) {
        for batch in batches {
            flow.add(Way::Ahead, batch.len() as u64, batch.byte_len() as u64);
            mailbox.tell(Message::Records(batch));
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut output = BTreeSet::new();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        for task in tasks.into_iter().flatten() {
            tokio::task::spawn_local(async move { task.run().await.unwrap() });
        }
        while !flow.is_idle() {
            tokio::task::yield_now().await;
            while let Ok(SinkMessage::Records(batch)) = sinks[0].receiver.try_recv() {
                flow.remove(Way::Ahead, batch.len() as u64, batch.byte_len() as u64);
                let pair = |index| (batch.keys.get(index).to_vec(), batch.values.get(index).to_vec());
                output.extend((0..batch.len()).map(pair));
            }
        }
    });
    let keys: BTreeSet<Vec<u8>> = (0..KEYS).map(key).collect();
    let tables = Tables::new(&directory, Consistency::Live);
    let (held, seen) = (tables.numbers("work.held", &keys), tables.numbers("work.seen", &keys));
    let meters = Arc::clone(&meters.operators.lock()["work"]);
    (Came { held, seen, output, reruns: meters.reruns.get() }, meters.calls.get())
}

#[test]
fn records_kept_apart_in_one_call_come_to_what_a_call_each_comes_to() {
    let (mut calls_each, mut calls_apart, mut reruns) = (0, 0, 0);
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        // From everybody in each other's way to hardly anybody.
        let spread = 2 + dice.below(KEYS - 1);
        let mut keys = || (0..3).map(|_| format!(" k{}", dice.below(spread))).collect::<String>();
        let values: Vec<String> = (0..150).map(|record| format!("r{record}{}", keys())).collect();
        let records: Vec<Record> = values.into_iter().map(|value| (key(dice.below(KEYS)), value.into())).collect();
        let function = || Native::new(&["held", "seen"], &["all"], &[], work, Dice::new(seed)).calm();
        let (each, calls) = rounds(function(), &records);
        calls_each += calls;
        assert_eq!(each.output.len(), records.len(), "seed {seed}");
        let names: BTreeSet<Vec<u8>> = (0..KEYS).map(key).collect();
        let of_key = |name: &Vec<u8>| records.iter().filter(|(key, _)| key == name).count() as i64;
        assert_eq!(each.seen, names.iter().map(of_key).collect::<Vec<_>>(), "seed {seed}");
        let (apart, calls) = rounds(function().apart(), &records);
        calls_apart += calls;
        reruns += apart.reruns;
        assert_eq!(apart, each, "seed {seed}");
    }
    assert!(reruns > 0 && calls_apart < calls_each, "{calls_apart} calls instead of {calls_each}, {reruns} reruns");
}

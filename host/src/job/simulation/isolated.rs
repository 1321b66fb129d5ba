//! Jobs of serializable operators: what one record reads and writes is one transaction, whether their functions keep records apart or are called with one at a time.

use std::collections::{BTreeMap, BTreeSet};

use super::ends::Record;
use super::moving::accounts;
use super::native::{Call, Native};
use super::world::{Input, Shape};
use super::{check, key, parsed, words};
use crate::dice::Dice;
use crate::state::update::Op;

const ACCOUNTS: usize = 6;
/// What an account has that nobody has touched.
const AT_FIRST: i64 = 5;

const MANIFEST: &str = r#"
    [job]
    name = "isolated"
    partitions = 8
    [sources.input]
    kind = "stdin"
    format = "jsonl"
    key = "/k"
    [operators.move]
    component = "x.wasm"
    inputs = ["input"]
    uses.accounts = { table = "move.balances", read = true, update = true }
    isolation = "serializable"
    parallelism = 3
    retries = 30
    batch = 4
    [sinks.out]
    kind = "blackhole"
    inputs = ["move"]
"#;

/// Money moved where there is enough of it.
pub(super) const NEVER_BELOW_ZERO: Shape = Shape {
    manifest: MANIFEST,
    functions: |dice| {
        let transfer = |call: &mut Call<'_>, from: &[u8], value: &[u8]| {
            let word = words(value);
            let (to, amount) = (word[0].as_bytes(), parsed(word[1]));
            let held = call.look_up(0, &[from]).remove(0);
            let held = held.map_or(0, |held| i64::from_le_bytes(held.try_into().expect("eight bytes")));
            if held + AT_FIRST >= amount {
                call.add(0, from, -amount);
                call.add(0, to, amount);
                call.emit(0, from, value);
            }
        };
        vec![("move", Native::new(&["balances"], &["accounts"], &[], transfer, dice.split()).perhaps_apart())]
    },
    at_commit: |tables, input| {
        let balances = tables.numbers("move.balances", &accounts(input));
        assert_eq!(balances.iter().sum::<i64>(), 0, "{balances:?}");
        assert!(balances.iter().all(|balance| balance + AT_FIRST >= 0), "{balances:?}");
    },
    at_end: |tables, _, output| {
        let mut balances: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
        for (from, value) in output {
            let word = words(value);
            *balances.entry(from.clone()).or_default() -= parsed(word[1]);
            *balances.entry(word[0].as_bytes().to_vec()).or_default() += parsed(word[1]);
        }
        for (account, balance) in balances {
            assert_eq!(tables.number("move.balances", &account), balance);
        }
    },
};

fn transfers(dice: &mut Dice) -> Input {
    let mut split = |_| {
        let record = |_| (key(dice.below(ACCOUNTS)), format!("k{} {}", dice.below(ACCOUNTS), 1 + dice.below(5)).into());
        (0..15).map(record).collect()
    };
    BTreeMap::from([("input", (0..2).map(&mut split).collect())])
}

#[test]
fn no_account_goes_below_zero_though_records_race_for_the_last_coin() {
    check(&NEVER_BELOW_ZERO, transfers);
}

/// Records that read some keys and write others, with a version at each key: who has read and written what is told, so that an order can be looked for.
const VERSIONS: Shape = Shape {
    manifest: MANIFEST,
    functions: |dice| {
        let note = |call: &mut Call<'_>, own: &[u8], value: &[u8]| {
            let word = words(value);
            let keys: Vec<&[u8]> = word[1..].iter().map(|key| key.as_bytes()).collect();
            let version = |value: Option<Vec<u8>>| {
                value.map_or(0, |value| i64::from_le_bytes(value.try_into().expect("eight bytes")))
            };
            let versions: Vec<i64> = call.look_up(0, &keys).into_iter().map(version).collect();
            // The first of the keys is written, the others are only read.
            call.update(0, (Op::Put, keys[0]), (Some(&(versions[0] + 1).to_le_bytes()), None), None);
            let read: Vec<String> = word[1..].iter().zip(&versions).map(|(key, at)| format!("{key}@{at}")).collect();
            call.emit(0, own, format!("{} {}", word[0], read.join(" ")).as_bytes());
        };
        vec![("move", Native::new(&["balances"], &["accounts"], &[], note, dice.split()).perhaps_apart())]
    },
    at_commit: |_, _| {},
    at_end: |_, input, output| {
        assert_eq!(output.len(), input["input"].iter().map(Vec::len).sum::<usize>());
        check_serial(output);
    },
};

/// A key with the version that was read of it, as `KEY@VERSION`.
fn versioned(text: &str) -> (&str, i64) {
    let (key, version) = text.split_once('@').expect("written with a version");
    (key, parsed(version))
}

/// Checks that some order of the records explains what each has read: the graph of who comes before whom has no cycle.
fn check_serial(output: &[Record]) {
    let reads: Vec<Vec<(&str, i64)>> =
        output.iter().map(|(_, value)| words(value)[1..].iter().map(|text| versioned(text)).collect()).collect();
    let mut writers: BTreeMap<(&str, i64), usize> = BTreeMap::new();
    for (record, read) in reads.iter().enumerate() {
        let (key, version) = read[0];
        assert_eq!(
            writers.insert((key, version + 1), record),
            None,
            "two have written version {} of {key}",
            version + 1
        );
    }
    let mut before: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); reads.len()];
    for (record, read) in reads.iter().enumerate() {
        for &(key, version) in read {
            if version > 0 {
                before[record].insert(writers[&(key, version)]);
            }
            if let Some(&next) = writers.get(&(key, version + 1)).filter(|&&next| next != record) {
                before[next].insert(record);
            }
        }
    }
    let mut left: BTreeSet<usize> = (0..reads.len()).collect();
    while !left.is_empty() {
        let first = left.iter().copied().find(|record| before[*record].is_disjoint(&left));
        left.remove(&first.unwrap_or_else(|| panic!("no serial order explains {left:?} of {reads:?}")));
    }
}

fn readers(dice: &mut Dice) -> Input {
    let mut split = |split| {
        let mut record = |number| {
            let written = dice.below(ACCOUNTS);
            let others = [1 + dice.below(ACCOUNTS - 1), 1 + dice.below(ACCOUNTS - 1)];
            let [one, two] = others.map(|step| (written + step) % ACCOUNTS);
            (key(dice.below(40)), format!("t{split}-{number} k{written} k{one} k{two}").into_bytes())
        };
        (0..15).map(&mut record).collect()
    };
    BTreeMap::from([("input", (0..2).map(&mut split).collect())])
}

#[test]
fn what_records_have_read_and_written_is_explained_by_an_order_of_them() {
    check(&VERSIONS, readers);
}

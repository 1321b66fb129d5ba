//! Nexmark events: the same for the same seed, wherever one begins.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::super::nexmark::Nexmark;
use super::*;
use crate::time::Clock;

fn nexmark(settings: &str) -> Box<dyn Source> {
    Room::new().source(&format!("kind = 'nexmark'\n{settings}")).unwrap()
}

fn events(source: &dyn Source) -> Vec<Record> {
    let mut seen = Seen::default();
    for split in source.splits().unwrap() {
        assert_eq!(read_to_end(&mut *source.open(&split, None).unwrap(), &mut seen), ReadOutcome::End);
    }
    assert_eq!(seen.bad, []);
    seen.records
}

#[test]
fn events_depend_on_the_seed_and_not_on_the_splits() {
    let mut one = events(&*nexmark("events = 1001\nseed = 3"));
    let mut many = events(&*nexmark("events = 1001\nseed = 3\nsplits = 7"));
    assert_eq!(one.len(), 1001);
    one.sort_unstable();
    many.sort_unstable();
    assert_eq!(one, many);
    let mut other = events(&*nexmark("events = 1001\nseed = 4"));
    other.sort_unstable();
    assert_ne!(one, other);
}

#[test]
fn any_event_can_be_made_without_those_before_it() {
    let source = nexmark("events = 120\nseed = 5\nonly = ['bid', 'person']");
    check_resuming(&*source);
    assert!(source.open("events-00001", None).is_err());
    assert!(source.open("events-00000", Some(&Position(serde_json::json!({"offset": 1})))).is_err());
}

#[test]
fn kinds_come_in_the_benchmark_s_proportions_and_refer_to_what_exists() {
    let (mut persons, mut auctions, mut bids) = (0, 0, BTreeMap::<u64, u64>::new());
    let records = events(&*nexmark("events = 50000\nseed = 1"));
    for (_, value, time) in &records {
        let event: Value = serde_json::from_str(value).unwrap();
        assert_eq!(event["dateTime"].as_i64(), Some(*time));
        let number = |name: &str| event[name].as_u64().unwrap();
        if event.get("auction").is_some() {
            *bids.entry(number("auction")).or_default() += 1;
            assert!((1_000..1_000 + auctions).contains(&number("auction")) || auctions == 0);
            assert!((1_000..1_000 + persons).contains(&number("bidder")));
            assert!((100..=100_000_000).contains(&number("price")));
        } else if event.get("itemName").is_some() {
            assert_eq!(number("id"), 1_000 + auctions);
            assert!((1_000..1_000 + persons).contains(&number("seller")));
            auctions += 1;
        } else {
            assert_eq!(number("id"), 1_000 + persons);
            persons += 1;
        }
    }
    let total: u64 = bids.values().sum();
    assert_eq!((persons, auctions, total), (1_000, 3_000, 46_000));
    let hot: u64 = bids.iter().filter(|(auction, _)| (*auction - 1_000) % 100 == 0).map(|(_, count)| count).sum();
    assert!((22_000..25_000).contains(&hot), "{hot}");
    let bytes: usize = records.iter().map(|record| record.1.len()).filter(|&length| length < 250).sum();
    assert!((170..200).contains(&(bytes / 47_000)), "{}", bytes / 47_000);
}

#[test]
fn bids_alone_have_keys() {
    let records = events(&*nexmark("events = 100\nonly = ['bid']\nkey = '/auction'"));
    assert_eq!(records.len(), 92);
    for (key, value, _) in records {
        assert_eq!(serde_json::from_str::<Value>(&value).unwrap()["auction"].to_string(), key);
    }
}

#[test]
fn a_rate_is_kept() {
    let clock = Clock::manual();
    let settings = toml::from_str("events = 1000\nrate = 100\nsplits = 2").unwrap();
    let source = Nexmark::new(&settings, clock.clone()).unwrap();
    let mut reader = source.open("events-00001", None).unwrap();
    let mut count = |expected| {
        let mut seen = Seen::default();
        assert_eq!(read_to_end(&mut *reader, &mut seen), ReadOutcome::Idle);
        assert_eq!(seen.records.len(), expected);
    };
    count(0);
    clock.advance(Duration::from_secs(1));
    count(50);
    clock.advance(Duration::from_millis(100));
    count(5);
    count(0);
}

#[test]
fn settings_that_make_no_events_are_refused() {
    for settings in ["splits = 0", "only = []", "rate = 0", "key = 'auction'"] {
        assert!(Room::new().source(&format!("kind = 'nexmark'\nevents = 1\n{settings}")).is_err(), "{settings}");
    }
}

//! Events of the Nexmark benchmark as a source: an auction site's persons, auctions and bids, as JSON.
//!
//! Of 50 successive events one is a person, three are auctions and 46 are bids. Half of the bids go to a hot auction, three quarters of bids and auctions
//! come from a hot bidder or seller, and the hot ones change as the stream goes on; the others refer to recent persons and auctions, as the benchmark's
//! published figures have it. An event depends on the seed and its number alone: event `n` is in split `n mod splits`, so
//! the number of splits changes the order but not the events, and any event can be made without those before it.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::parsing::{JsonFields, bad_record};
use super::{BadRecord, ConnectorError, ReadOutcome, Source, SplitReader};
use crate::epoch::entry::Position;
use crate::manifest::{NexmarkKind, NexmarkSource, TimeFormat};
use crate::record::Batch;
use crate::time::Clock;

/// Events in which each kind has its share.
const GROUP: u64 = 50;
/// Auctions in a group, behind its one person.
const GROUP_AUCTIONS: u64 = 3;
/// Where the ids of persons, auctions and categories begin.
const FIRST_ID: u64 = 1_000;
/// The first event's time: 2015-07-15T00:00:00Z, in ms.
const FIRST_TIME_MS: u64 = 1_436_918_400_000;
/// Events in a millisecond of event time.
const EVENTS_PER_MS: u64 = 10;
/// A hot auction, bidder or seller is the first of so many.
const HOT_EVERY: u64 = 100;
/// How many recent auctions receive bids, and how many recent persons are active.
const RECENT_AUCTIONS: u64 = 100;
const RECENT_PERSONS: u64 = 1_000;

const CHANNELS: [&str; 4] = ["Apple", "Baidu", "Facebook", "Google"];
const CITIES: [(&str, &str); 10] = [
    ("Phoenix", "AZ"),
    ("Los Angeles", "CA"),
    ("San Francisco", "CA"),
    ("Boise", "ID"),
    ("Portland", "OR"),
    ("Bend", "OR"),
    ("Redmond", "WA"),
    ("Seattle", "WA"),
    ("Kent", "WA"),
    ("Cheyenne", "WY"),
];
const FIRST_NAMES: [&str; 10] = ["Ada", "Ben", "Clara", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivan", "Judith"];
const LAST_NAMES: [&str; 9] = ["Abrams", "Bartels", "Jones", "Noris", "Smith", "Spencer", "Walton", "White", "Zhou"];

/// Nexmark events as a source.
#[derive(Debug)]
pub struct Nexmark {
    settings: NexmarkSource,
    fields: JsonFields,
    clock: Clock,
}

impl Nexmark {
    /// The source that the manifest describes, paced by `clock` if it has a rate.
    ///
    /// # Errors
    /// When the key is no pointer, there are no splits, or no kind is let through.
    pub fn new(source: &NexmarkSource, clock: Clock) -> Result<Self, ConnectorError> {
        let refuse = |text: &str| Err(ConnectorError::Settings(format!("make Nexmark events: {text}")));
        if source.splits == 0 {
            return refuse("`splits` is 0; at least 1 is needed");
        }
        if source.only.is_empty() {
            return refuse("`only` is empty, so no event would be let through; leave it out for all kinds");
        }
        if source.rate == Some(0) {
            return refuse("`rate` is 0; leave it out for no limit");
        }
        let fields = JsonFields::parse(source.key.as_deref(), None, TimeFormat::Ms)?;
        Ok(Self { settings: source.clone(), fields, clock })
    }
}

impl Source for Nexmark {
    fn splits(&self) -> Result<Vec<String>, ConnectorError> {
        // Zero-padded, so that the order of names is that of numbers.
        Ok((0..self.settings.splits).map(split_name).collect())
    }

    fn open(&self, split: &str, from: Option<&Position>) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let number = (0..self.settings.splits).find(|&number| split_name(number) == split);
        let number = number.ok_or_else(|| {
            ConnectorError::Input(format!(
                "go on with `{split}`: the source has only {} splits; restore `splits`",
                self.settings.splits
            ))
        })?;
        let next = from.map_or(Ok(0), |from| {
            EventPosition::deserialize(&from.0).map(|position| position.next).map_err(|error| {
                ConnectorError::Input(format!(
                    "go on with `{split}`: the recorded position is not one of Nexmark events ({error}); the source was of another \
                     kind when it was recorded"
                ))
            })
        })?;
        let splits = u64::from(self.settings.splits);
        let events = self.settings.events.saturating_sub(u64::from(number)).div_ceil(splits);
        Ok(Box::new(NexmarkReader {
            name: split.to_owned(),
            only: self.settings.only.clone(),
            generator: Generator { seed: self.settings.seed },
            fields: self.fields.clone(),
            pace: self.settings.rate.map(|rate| Pace {
                clock: self.clock.clone(),
                rate,
                splits,
                since: self.clock.now(),
                first: next,
            }),
            number: u64::from(number),
            splits,
            next,
            events,
            json: Vec::new(),
        }))
    }
}

fn split_name(number: u16) -> String {
    format!("events-{number:05}")
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventPosition {
    /// The split's next event, counted in the split.
    next: u64,
}

struct NexmarkReader {
    name: String,
    only: Vec<NexmarkKind>,
    generator: Generator,
    fields: JsonFields,
    pace: Option<Pace>,
    number: u64,
    splits: u64,
    next: u64,
    events: u64,
    json: Vec<u8>,
}

/// How far a split may be by now.
struct Pace {
    clock: Clock,
    rate: u64,
    splits: u64,
    since: std::time::Duration,
    first: u64,
}

impl Pace {
    fn limit(&self) -> u64 {
        let elapsed = self.clock.now().saturating_sub(self.since).as_nanos();
        let due = elapsed * u128::from(self.rate) / (1_000_000_000 * u128::from(self.splits));
        self.first.saturating_add(u64::try_from(due).unwrap_or(u64::MAX))
    }
}

impl SplitReader for NexmarkReader {
    fn read(
        &mut self,
        records_max: usize,
        bytes_max: usize,
        batch: &mut Batch,
        bad: &mut Vec<BadRecord>,
    ) -> Result<ReadOutcome, ConnectorError> {
        let limit = self.pace.as_ref().map_or(self.events, |pace| pace.limit().min(self.events));
        let (mut records, mut bytes) = (0, 0);
        while records < records_max && bytes < bytes_max {
            if self.next >= limit {
                return Ok(if self.next >= self.events { ReadOutcome::End } else { ReadOutcome::Idle });
            }
            let event = self.next * self.splits + self.number;
            self.next += 1;
            if !self.only.contains(&kind_of(event)) {
                continue;
            }
            self.json.clear();
            self.generator.write(event, &mut self.json);
            match self.fields.push(&self.json, batch) {
                Ok(()) => *batch.times.last_mut().expect("a record was just added") = time_of(event),
                Err(error) => bad.push(bad_record(&self.name, self.next, 0, &self.json, error)),
            }
            records += 1;
            bytes += self.json.len();
        }
        Ok(ReadOutcome::More)
    }

    fn position(&self) -> Position {
        Position(serde_json::json!(EventPosition { next: self.next }))
    }
}

/// The kind of event `event`.
pub fn kind_of(event: u64) -> NexmarkKind {
    match event % GROUP {
        0 => NexmarkKind::Person,
        1..=GROUP_AUCTIONS => NexmarkKind::Auction,
        _ => NexmarkKind::Bid,
    }
}

/// The time of event `event`, in ms since the Unix epoch.
fn time_of(event: u64) -> i64 {
    (FIRST_TIME_MS + event / EVENTS_PER_MS) as i64
}

/// Makes events from a seed.
#[derive(Debug, Clone, Copy)]
pub struct Generator {
    /// The seed.
    pub seed: u64,
}

impl Generator {
    /// Appends event `event` as JSON.
    pub fn write(self, event: u64, out: &mut Vec<u8>) {
        let mut random =
            Random(self.seed.wrapping_mul(0xD1B5_4A32_D192_ED03) ^ event.wrapping_mul(0xA076_1D64_78BD_642F));
        match kind_of(event) {
            NexmarkKind::Person => write_person(event, &mut random, out),
            NexmarkKind::Auction => write_auction(event, &mut random, out),
            NexmarkKind::Bid => write_bid(event, &mut random, out),
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number less than `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn one_of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A price in cents: the logarithm is even between 1 and a million units.
    fn price(&mut self) -> u64 {
        let exponent = self.below(1 << 20) as f64 / f64::from(1 << 20) * 6.0;
        (10f64.powf(exponent) * 100.0).round() as u64
    }

    fn letters(&mut self, count: u64, out: &mut Vec<u8>) {
        let mut written = 0;
        while written < count {
            let mut bits = self.next();
            for _ in 0..(count - written).min(12) {
                out.push(b'a' + ((bits & 31) * 26 / 32) as u8);
                bits >>= 5;
                written += 1;
            }
        }
    }

    /// `,"extra":"…"}` with `least` letters or up to half as many again.
    fn extra(&mut self, least: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"extra\":\"");
        let count = least + self.below(least / 2 + 1);
        self.letters(count, out);
        out.extend_from_slice(b"\"}");
    }
}

/// The last person made up to `event`, counted from 0.
fn last_person(event: u64) -> u64 {
    event / GROUP
}

/// The last auction made up to `event`, counted from 0.
fn last_auction(event: u64) -> u64 {
    let made = event / GROUP * GROUP_AUCTIONS + (event % GROUP).min(GROUP_AUCTIONS);
    made.saturating_sub(1)
}

/// A recent person, each as likely as the other.
fn recent_person(event: u64, random: &mut Random) -> u64 {
    let last = last_person(event);
    last - random.below((last + 1).min(RECENT_PERSONS))
}

fn write_person(event: u64, random: &mut Random, out: &mut Vec<u8>) {
    let (first, last) = (random.one_of(&FIRST_NAMES), random.one_of(&LAST_NAMES));
    let (city, state) = CITIES[random.below(CITIES.len() as u64) as usize];
    append(
        out,
        format_args!("{{\"id\":{},\"name\":\"{first} {last}\",\"emailAddress\":\"", FIRST_ID + last_person(event)),
    );
    random.letters(7, out);
    out.push(b'@');
    random.letters(5, out);
    let card = random.below(10_000_000_000_000_000);
    append(
        out,
        format_args!(
            ".example\",\"creditCard\":\"{card:016}\",\"city\":\"{city}\",\"state\":\"{state}\",\"dateTime\":{}",
            time_of(event)
        ),
    );
    random.extra(20, out);
}

fn write_auction(event: u64, random: &mut Random, out: &mut Vec<u8>) {
    append(out, format_args!("{{\"id\":{},\"itemName\":\"", FIRST_ID + last_auction(event)));
    let name = 5 + random.below(16);
    random.letters(name, out);
    out.extend_from_slice(b"\",\"description\":\"");
    let description = 50 + random.below(51);
    random.letters(description, out);
    let price = random.price();
    let reserve = price + random.price();
    let expires = time_of(event) + 1 + random.below(20_000) as i64;
    let seller = match random.below(4) {
        0 => recent_person(event, random),
        _ => last_person(event) / HOT_EVERY * HOT_EVERY,
    };
    let category = FIRST_ID + random.below(5);
    append(
        out,
        format_args!(
            "\",\"initialBid\":{price},\"reserve\":{reserve},\"dateTime\":{},\"expires\":{expires},\"seller\":{},\"category\":{category}",
            time_of(event),
            FIRST_ID + seller,
        ),
    );
    random.extra(200, out);
}

fn write_bid(event: u64, random: &mut Random, out: &mut Vec<u8>) {
    let last = last_auction(event);
    let auction = match random.below(2) {
        0 => last - random.below((last + 1).min(RECENT_AUCTIONS)),
        _ => last / HOT_EVERY * HOT_EVERY,
    };
    let bidder = match random.below(4) {
        0 => recent_person(event, random),
        // Not the hot seller, who is the first of each hundred.
        _ => (last_person(event) / HOT_EVERY * HOT_EVERY + 1).min(last_person(event)),
    };
    let price = random.price();
    // Bids are most of the events, so their numbers are written without the formatter.
    out.extend_from_slice(b"{\"auction\":");
    number(FIRST_ID + auction, out);
    out.extend_from_slice(b",\"bidder\":");
    number(FIRST_ID + bidder, out);
    out.extend_from_slice(b",\"price\":");
    number(price, out);
    out.extend_from_slice(b",\"channel\":\"");
    match random.below(2) {
        0 => {
            out.extend_from_slice(b"channel-");
            number(random.below(10_000), out);
        }
        _ => out.extend_from_slice(random.one_of(&CHANNELS).as_bytes()),
    }
    out.extend_from_slice(b"\",\"url\":\"https://www.nexmark.example/");
    random.letters(5, out);
    out.push(b'/');
    random.letters(5, out);
    out.extend_from_slice(b"/item.htm?query=1\",\"dateTime\":");
    number(time_of(event) as u64, out);
    random.extra(16, out);
}

fn number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn append(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to memory cannot fail");
}

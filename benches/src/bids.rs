//! The input: bids as JSON lines, in the fields of the Nexmark benchmark (Tucker, Tufte, Papadimos, Maier: "NEXMark – A
//! benchmark for queries over data streams"; the field names are those of Apache Beam's and Flink's generators).
//!
//! Each line has the same length and follows from the seed and its number alone. So a file's size says how many bids it holds, and
//! its first and last line say whether this version of the generator made it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::random::Random;

/// The length of a line, its line feed included.
pub const LINE_BYTES: u64 = 180;

/// How many auctions the bids are spread over.
pub const AUCTIONS: u64 = 100_000;

/// The lowest auction's number. All have seven digits.
const FIRST_AUCTION: u64 = 1_000_000;

/// The time of the first bid; ten bids share a millisecond.
const FIRST_TIME_MS: u64 = 1_700_000_000_000;
const BIDS_PER_MS: u64 = 10;

const HOT_CHANNELS: [&str; 4] = ["Google", "Facebook", "Baidu", "Apple"];

/// Appends bid number `index` as a line of [`LINE_BYTES`] bytes.
pub fn append_bid(line: &mut Vec<u8>, seed: u64, index: u64) {
    let start = line.len();
    let mut random = Random::of_item(seed, index);
    let auction = FIRST_AUCTION + skewed(&mut random, AUCTIONS);
    let bidder = 1_000 + random.below(1_000_000);
    let price = price_cents(&mut random);
    let time = FIRST_TIME_MS + index / BIDS_PER_MS;
    write!(line, r#"{{"auction":{auction},"bidder":{bidder},"price":{price},"channel":""#).expect("a Vec takes all");
    append_channel(line, &mut random);
    line.extend_from_slice(br#"","url":"https://www.nexmark.com/"#);
    append_letters(line, &mut random, 5);
    write!(line, r#"/item.htm?query=1","dateTime":{time},"extra":""#).expect("a Vec takes all");
    let closing = b"\"}\n";
    let rest = LINE_BYTES as usize - (line.len() - start) - closing.len();
    append_letters(line, &mut random, rest);
    line.extend_from_slice(closing);
}

/// A number below `count`, the lower the likelier: the square of an even draw. With 100,000, the first number is drawn once in
/// 316 times, the last once in 200,000.
fn skewed(random: &mut Random, count: u64) -> u64 {
    let draw = u128::from(random.next());
    ((((draw * draw) >> 64) * u128::from(count)) >> 64) as u64
}

/// From 1.00 to 1,000,000.00, each power of ten as likely as the next.
fn price_cents(random: &mut Random) -> u64 {
    let least = 100 * 10u64.pow(random.below(6) as u32);
    least + random.below(9 * least)
}

fn append_channel(line: &mut Vec<u8>, random: &mut Random) {
    let draw = random.below(2 * HOT_CHANNELS.len() as u64) as usize;
    match HOT_CHANNELS.get(draw) {
        Some(channel) => line.extend_from_slice(channel.as_bytes()),
        None => write!(line, "channel-{}", random.below(10_000)).expect("a Vec takes all"),
    }
}

fn append_letters(line: &mut Vec<u8>, random: &mut Random, count: usize) {
    line.extend((0..count).map(|_| b'a' + random.below(26) as u8));
}

/// Makes sure that `path` holds `records` bids of `seed`, and says whether it had to be written.
///
/// The file appears whole or not at all.
///
/// # Errors
/// Those of reading and writing.
pub fn ensure_file(path: &Path, seed: u64, records: u64) -> io::Result<bool> {
    if is_as_expected(path, seed, records)? {
        return Ok(false);
    }
    let temporary = path.with_extension("part");
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&temporary)?);
    let mut line = Vec::with_capacity(LINE_BYTES as usize);
    for index in 0..records {
        line.clear();
        append_bid(&mut line, seed, index);
        file.write_all(&line)?;
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    fs::rename(&temporary, path)?;
    Ok(true)
}

fn is_as_expected(path: &Path, seed: u64, records: u64) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() != records * LINE_BYTES {
        return Ok(false);
    }
    for index in [0, records.saturating_sub(1)].into_iter().filter(|&index| index < records) {
        let mut expected = Vec::new();
        append_bid(&mut expected, seed, index);
        let mut found = vec![0; LINE_BYTES as usize];
        file.seek(SeekFrom::Start(index * LINE_BYTES))?;
        file.read_exact(&mut found)?;
        if found != expected {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The file name for `records` bids: `bids-5m.jsonl` for five million.
pub fn file_name(records: u64) -> String {
    match records {
        _ if records >= 1_000_000 && records.is_multiple_of(1_000_000) => {
            format!("bids-{}m.jsonl", records / 1_000_000)
        }
        _ if records >= 1_000 && records.is_multiple_of(1_000) => format!("bids-{}k.jsonl", records / 1_000),
        _ => format!("bids-{records}.jsonl"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::Value;

    use super::*;

    fn bid(seed: u64, index: u64) -> Value {
        let mut line = Vec::new();
        append_bid(&mut line, seed, index);
        assert_eq!(line.len() as u64, LINE_BYTES, "{}", String::from_utf8_lossy(&line));
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
        serde_json::from_slice(&line).unwrap()
    }

    #[test]
    fn every_line_is_a_bid_of_the_stated_length() {
        for index in (0..20_000).chain([4_999_999, 99_999_999]) {
            let bid = bid(7, index);
            assert!((1_000_000..1_100_000).contains(&bid["auction"].as_u64().unwrap()));
            assert!((100..100_000_000).contains(&bid["price"].as_u64().unwrap()));
            assert_eq!(bid["dateTime"], 1_700_000_000_000 + index / 10);
            let fields: Vec<_> = bid.as_object().unwrap().keys().cloned().collect();
            assert_eq!(fields, ["auction", "bidder", "channel", "dateTime", "extra", "price", "url"]);
        }
    }

    #[test]
    fn the_seed_decides_everything() {
        assert_eq!(bid(7, 3), bid(7, 3));
        assert_ne!(bid(7, 3), bid(8, 3));
        assert_ne!(bid(7, 3)["extra"], bid(7, 4)["extra"]);
    }

    #[test]
    fn low_auctions_are_hot_and_high_ones_occur() {
        let mut counts = HashMap::<u64, u64>::new();
        let draws = 400_000;
        for index in 0..draws {
            *counts.entry(skewed(&mut Random::of_item(1, index), 100)).or_default() += 1;
        }
        // The square of an even draw is below 1/100 with probability 1/10.
        let hottest = counts[&0];
        assert!((draws / 10 - 1_000..draws / 10 + 1_000).contains(&hottest), "{hottest}");
        assert_eq!(counts.len(), 100);
    }

    #[test]
    fn a_file_is_made_once_and_again_when_it_is_not_what_it_should_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bids.jsonl");
        assert!(ensure_file(&path, 1, 100).unwrap());
        assert!(!ensure_file(&path, 1, 100).unwrap());
        assert!(ensure_file(&path, 2, 100).unwrap());
        assert!(ensure_file(&path, 2, 50).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 50 * LINE_BYTES);
        assert!(ensure_file(&path, 2, 0).unwrap());
        assert!(!ensure_file(&path, 2, 0).unwrap());
    }

    #[test]
    fn file_names_say_the_number() {
        assert_eq!(file_name(5_000_000), "bids-5m.jsonl");
        assert_eq!(file_name(20_000), "bids-20k.jsonl");
        assert_eq!(file_name(1_500_000), "bids-1500k.jsonl");
        assert_eq!(file_name(123), "bids-123.jsonl");
        assert_eq!(file_name(0), "bids-0.jsonl");
    }
}

//! The input of the state measurements: lines of sixteen hexadecimal digits, each its own key.

use std::io::{self, Write};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use crate::random::mix;

/// How often a paced writer wakes up.
const TICK: Duration = Duration::from_millis(10);

/// Writes the lines `lines` of an endless file in which `distinct` keys come in turns: so any `distinct` lines in a row
/// are all the keys, once each, in an order without a pattern.
///
/// # Errors
/// Those of writing.
pub fn write_keys(output: &mut impl Write, lines: Range<u64>, distinct: u64) -> io::Result<()> {
    lines.into_iter().try_for_each(|line| writeln!(output, "{:016x}", mix(line % distinct)))
}

/// As [`write_keys`], at an even pace of `a_second` lines. A reader that is slower sets the pace.
///
/// # Errors
/// Those of writing.
pub fn write_keys_paced(output: &mut impl Write, lines: Range<u64>, distinct: u64, a_second: u64) -> io::Result<()> {
    let start = Instant::now();
    let mut next = lines.start;
    let mut buffer = Vec::new();
    while next < lines.end {
        let due = lines_due(start.elapsed() + TICK, a_second);
        let until = lines.end.min(lines.start + due);
        if until > next {
            buffer.clear();
            write_keys(&mut buffer, next..until, distinct)?;
            output.write_all(&buffer)?;
            next = until;
        }
        thread::sleep(TICK);
    }
    Ok(())
}

/// The keys that are hot with [`Draw::Hot`].
const HOT_KEYS: u64 = 100;

/// How the second keys of pairs are drawn from all keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Draw {
    /// Each as likely as any other.
    Even,
    /// The k-th with a likelihood of 1 / k^0.99.
    Zipf,
    /// One of the first hundred in nine of ten cases, and else each as likely as any other.
    Hot,
}

/// Writes the header of a file of pairs.
///
/// # Errors
/// Those of writing.
pub fn write_pairs_header(output: &mut impl Write) -> io::Result<()> {
    writeln!(output, "own,other")
}

/// Writes `count` pairs of keys: the first come in turns, the second are drawn. Both keys are drawn by `draw` where it is Zipf's.
///
/// # Errors
/// Those of writing.
pub fn write_pairs(output: &mut impl Write, count: u64, distinct: u64, draw: Draw, seed: u64) -> io::Result<()> {
    let cumulated = match draw {
        Draw::Even | Draw::Hot => Vec::new(),
        Draw::Zipf => zipf(distinct),
    };
    let drawn = |number: u64| match draw {
        Draw::Even => mix(number ^ seed) % distinct,
        Draw::Hot => {
            let drawn = mix(number ^ seed);
            let among = if drawn.is_multiple_of(10) { distinct } else { HOT_KEYS.min(distinct) };
            (drawn >> 8) % among
        }
        Draw::Zipf => {
            let point = mix(number ^ seed) as f64 / u64::MAX as f64;
            cumulated.partition_point(|&sum| sum < point).min(cumulated.len() - 1) as u64
        }
    };
    for line in 0..count {
        let own = if draw == Draw::Zipf { drawn(2 * line + 1) } else { line % distinct };
        writeln!(output, "{:016x},{:016x}", mix(own), mix(drawn(2 * line)))?;
    }
    Ok(())
}

/// Writes pairs with their header at an even pace of `a_second`, all keys drawn evenly.
///
/// # Errors
/// Those of writing.
pub fn write_pairs_paced(output: &mut impl Write, count: u64, distinct: u64, a_second: u64) -> io::Result<()> {
    write_pairs_header(output)?;
    let start = Instant::now();
    let mut buffer = Vec::new();
    for line in 0..count {
        let (own, other) = (mix(2 * line) % distinct, mix(2 * line + 1) % distinct);
        writeln!(buffer, "{:016x},{:016x}", mix(own), mix(other))?;
        if line + 1 == count || line + 1 >= lines_due(start.elapsed(), a_second) {
            output.write_all(&buffer)?;
            buffer.clear();
            let due = Duration::from_secs_f64((line + 1) as f64 / a_second as f64);
            thread::sleep(due.saturating_sub(start.elapsed()));
        }
    }
    Ok(())
}

/// The likelihoods of the first 1, 2, … keys together.
fn zipf(distinct: u64) -> Vec<f64> {
    const EXPONENT: f64 = 0.99;
    let mut sum = 0.0;
    let mut sums: Vec<f64> = (1..=distinct)
        .map(|rank| {
            sum += (rank as f64).powf(-EXPONENT);
            sum
        })
        .collect();
    sums.iter_mut().for_each(|part| *part /= sum);
    sums
}

fn lines_due(elapsed: Duration, a_second: u64) -> u64 {
    (elapsed.as_micros() * u128::from(a_second) / 1_000_000) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn keys(lines: Range<u64>, distinct: u64) -> Vec<String> {
        let mut text = Vec::new();
        write_keys(&mut text, lines, distinct).unwrap();
        String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_round_has_every_key_once() {
        let first = keys(0..1_000, 1_000);
        assert!(first.iter().all(|key| key.len() == 16));
        assert_eq!(first.iter().collect::<HashSet<_>>().len(), 1_000);
        assert_eq!(keys(1_000..2_000, 1_000), first);
        assert_eq!(keys(250..260, 1_000), first[250..260]);
    }

    #[test]
    fn pairs_are_of_known_keys_and_zipf_prefers_the_first() {
        let mut text = Vec::new();
        write_pairs(&mut text, 10_000, 100, Draw::Zipf, 1).unwrap();
        let known: HashSet<String> = keys(0..100, 100).into_iter().collect();
        let text = String::from_utf8(text).unwrap();
        let hottest = format!("{:016x}", mix(0));
        let mut hot = 0;
        for line in text.lines() {
            let (own, other) = line.split_once(',').unwrap();
            assert!(known.contains(own) && known.contains(other));
            hot += u32::from(other == hottest);
        }
        // The first of 100 keys has 1 / 5.2 of all.
        assert!((1_700..2_150).contains(&hot), "{hot}");
    }

    #[test]
    fn nine_of_ten_are_hot() {
        let mut text = Vec::new();
        write_pairs(&mut text, 10_000, 100_000, Draw::Hot, 1).unwrap();
        let hot: HashSet<String> = keys(0..100, 100).into_iter().collect();
        let of_hot = String::from_utf8(text).unwrap().lines().filter(|line| hot.contains(&line[17..])).count();
        assert!((8_850..9_150).contains(&of_hot), "{of_hot}");
    }

    #[test]
    fn a_pace_is_lines_over_time() {
        assert_eq!(lines_due(Duration::from_millis(10), 100_000), 1_000);
        assert_eq!(lines_due(Duration::from_secs(10), 100_000), 1_000_000);
        assert_eq!(lines_due(Duration::ZERO, 100_000), 0);
    }

    #[test]
    fn a_paced_writer_writes_the_same() {
        let mut paced = Vec::new();
        write_keys_paced(&mut paced, 5..905, 100, 1_000_000).unwrap();
        let mut plain = Vec::new();
        write_keys(&mut plain, 5..905, 100).unwrap();
        assert_eq!(paced, plain);
    }
}

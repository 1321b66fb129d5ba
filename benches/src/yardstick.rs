//! The yardsticks: what one writes by hand for one job, single-threaded, when speed matters and an hour is all there is.
//!
//! Borrowed JSON, a fast hash map, large buffers; no checkpoint, no state beyond memory, and an output that is whole only at the end. Each runs as a process
//! of its own, so that it is measured as a job is.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::lines::for_each_line;

const OUTPUT_BUFFER_BYTES: usize = 1 << 20;

/// Euros for one unit of the price, for the yardstick and the job.
pub const EURO_RATE: f64 = 0.908;

/// One of the yardstick programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Program {
    /// Converts each bid's price.
    BidEuro,
    /// Count, maximum and mean price per auction, one output line a bid.
    BidStats,
    /// Finds the lines and writes how many there are.
    Lines,
}

impl Program {
    /// Its name, which is also the name of the job that it is compared with.
    pub fn name(self) -> &'static str {
        match self {
            Self::BidEuro => "bid-euro",
            Self::BidStats => "bid-stats",
            Self::Lines => "lines",
        }
    }
}

/// Runs `program` over the file `input` into the file `output`.
///
/// # Errors
/// Those of reading and writing, and a line that is no bid.
pub fn run(program: Program, input: &Path, output: &Path) -> Result<()> {
    let source = File::open(input).with_context(|| format!("failed to open {}", input.display()))?;
    let sink = File::create(output).with_context(|| format!("failed to create {}", output.display()))?;
    match program {
        Program::BidEuro => bid_euro(source, Output::to(sink)),
        Program::BidStats => bid_stats(source, Output::to(sink)),
        Program::Lines => lines(source, Output::to(sink)),
    }
}

/// Lines on their way into a file. A plain `Vec` takes the many small writes of a serialiser faster than a `BufWriter`.
struct Output<W> {
    buffer: Vec<u8>,
    sink: W,
}

impl<W: Write> Output<W> {
    fn to(sink: W) -> Self {
        Self { buffer: Vec::with_capacity(OUTPUT_BUFFER_BYTES + (64 << 10)), sink }
    }

    fn end_line(&mut self) -> io::Result<()> {
        self.buffer.push(b'\n');
        if self.buffer.len() >= OUTPUT_BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

/// The part of a bid that a conversion needs, as it stands in the line.
#[derive(Deserialize)]
struct Priced<'a> {
    #[serde(borrow)]
    price: &'a RawValue,
}

fn bid_euro(input: impl Read, mut output: Output<impl Write>) -> Result<()> {
    for_each_line::<anyhow::Error>(input, |line| {
        let price = serde_json::from_slice::<Priced>(line)?.price.get();
        let start = price.as_ptr().addr() - line.as_ptr().addr();
        output.buffer.extend_from_slice(&line[..start]);
        serde_json::to_writer(&mut output.buffer, &(price.parse::<u64>()? as f64 * EURO_RATE))?;
        output.buffer.extend_from_slice(&line[start + price.len()..]);
        Ok(output.end_line()?)
    })?;
    Ok(output.flush()?)
}

#[derive(Deserialize)]
struct Bid {
    auction: u64,
    price: u64,
}

#[derive(Default)]
struct Stats {
    count: u64,
    maximum: u64,
    total: u64,
}

#[derive(Serialize)]
struct Line {
    auction: u64,
    count: u64,
    maximum: u64,
    mean: f64,
}

fn bid_stats(input: impl Read, mut output: Output<impl Write>) -> Result<()> {
    let mut by_auction: HashMap<u64, Stats, foldhash::fast::FixedState> = HashMap::default();
    for_each_line::<anyhow::Error>(input, |line| {
        let Bid { auction, price } = serde_json::from_slice(line)?;
        let stats = by_auction.entry(auction).or_default();
        stats.count += 1;
        stats.maximum = stats.maximum.max(price);
        stats.total += price;
        let mean = stats.total as f64 / stats.count as f64;
        let line = Line { auction, count: stats.count, maximum: stats.maximum, mean };
        serde_json::to_writer(&mut output.buffer, &line)?;
        Ok(output.end_line()?)
    })?;
    Ok(output.flush()?)
}

fn lines(input: impl Read, mut output: Output<impl Write>) -> Result<()> {
    let mut count = 0u64;
    for_each_line(input, |_| {
        count += 1;
        Ok::<_, io::Error>(())
    })?;
    write!(output.buffer, "{count}")?;
    output.end_line()?;
    Ok(output.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(program: Program, input: &str, expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        let (source, sink) = (dir.path().join("in"), dir.path().join("out"));
        std::fs::write(&source, input).unwrap();
        run(program, &source, &sink).unwrap();
        assert_eq!(std::fs::read_to_string(&sink).unwrap(), expected);
    }

    #[test]
    fn euro_changes_the_price_and_nothing_else() {
        check(
            Program::BidEuro,
            "{\"auction\":1,\"price\":1000,\"extra\":\"\\u0041 \"}\n{ \"price\": 250 }\n",
            "{\"auction\":1,\"price\":908.0,\"extra\":\"\\u0041 \"}\n{ \"price\": 227.0 }\n",
        );
    }

    #[test]
    fn stats_run_along_with_the_bids_of_each_auction() {
        check(
            Program::BidStats,
            "{\"auction\":1,\"price\":10}\n{\"auction\":2,\"price\":7,\"extra\":\"\"}\n{\"auction\":1,\"price\":25}\n",
            "{\"auction\":1,\"count\":1,\"maximum\":10,\"mean\":10.0}\n\
             {\"auction\":2,\"count\":1,\"maximum\":7,\"mean\":7.0}\n\
             {\"auction\":1,\"count\":2,\"maximum\":25,\"mean\":17.5}\n",
        );
    }

    #[test]
    fn lines_are_counted() {
        check(Program::Lines, "a\n\nb", "3\n");
        check(Program::Lines, "", "0\n");
    }

    #[test]
    fn a_line_that_is_no_bid_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("in");
        std::fs::write(&source, "{\"auction\":1}\n").unwrap();
        assert!(run(Program::BidStats, &source, &dir.path().join("out")).is_err());
    }

    #[test]
    fn buffers_are_written_as_they_fill() {
        let mut written = Vec::new();
        let mut output = Output::to(&mut written);
        for _ in 0..3 {
            output.buffer.extend_from_slice(&vec![b'x'; OUTPUT_BUFFER_BYTES - 1]);
            output.end_line().unwrap();
        }
        assert!(output.buffer.is_empty());
        assert_eq!(written.len(), 3 * OUTPUT_BUFFER_BYTES);
    }
}

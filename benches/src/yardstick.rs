//! The yardsticks: what one writes by hand for one job, single-threaded, when speed matters and an hour is all there is.
//!
//! Borrowed JSON, a fast hash map, large buffers, no checkpoint, no state beyond memory. Each runs as a process of its own, so that it
//! is measured as a job is.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::lines::for_each_line;

const OUTPUT_BUFFER_BYTES: usize = 1 << 20;

/// Euros for a dollar; the measured job's config says the same.
const EURO_RATE: f64 = 0.908;

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
    let mut sink = BufWriter::with_capacity(OUTPUT_BUFFER_BYTES, sink);
    match program {
        Program::BidEuro => bid_euro(source, &mut sink)?,
        Program::BidStats => bid_stats(source, &mut sink)?,
        Program::Lines => lines(source, &mut sink)?,
    }
    Ok(sink.flush()?)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bid<'a> {
    auction: u64,
    bidder: u64,
    price: u64,
    date_time: i64,
    #[serde(borrow)]
    extra: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EuroBid<'a> {
    auction: u64,
    bidder: u64,
    price: f64,
    date_time: i64,
    extra: &'a str,
}

fn bid_euro(input: impl io::Read, output: &mut impl Write) -> Result<()> {
    for_each_line(input, |line| {
        let bid: Bid = serde_json::from_slice(line)?;
        let price = bid.price as f64 * EURO_RATE;
        let (auction, bidder, date_time, extra) = (bid.auction, bid.bidder, bid.date_time, bid.extra);
        serde_json::to_writer(&mut *output, &EuroBid { auction, bidder, price, date_time, extra })?;
        Ok(output.write_all(b"\n")?)
    })
}

#[derive(Deserialize)]
struct Price {
    auction: u64,
    price: u64,
}

#[derive(Default)]
struct Stats {
    count: u64,
    maximum: u64,
    sum: u64,
}

#[derive(Serialize)]
struct AuctionStats {
    auction: u64,
    count: u64,
    max: u64,
    mean: f64,
}

fn bid_stats(input: impl io::Read, output: &mut impl Write) -> Result<()> {
    let mut by_auction: HashMap<u64, Stats, foldhash::fast::FixedState> = HashMap::default();
    for_each_line(input, |line| {
        let Price { auction, price } = serde_json::from_slice(line)?;
        let stats = by_auction.entry(auction).or_default();
        stats.count += 1;
        stats.maximum = stats.maximum.max(price);
        stats.sum += price;
        let mean = stats.sum as f64 / stats.count as f64;
        serde_json::to_writer(&mut *output, &AuctionStats { auction, count: stats.count, max: stats.maximum, mean })?;
        Ok(output.write_all(b"\n")?)
    })
}

fn lines(input: impl io::Read, output: &mut impl Write) -> Result<()> {
    let mut count = 0u64;
    for_each_line(input, |_| {
        count += 1;
        Ok::<_, io::Error>(())
    })?;
    Ok(writeln!(output, "{count}")?)
}

//! What the function does wrong.

use std::hint::black_box;

use crate::columns::{column, items};
use crate::config::{BadColumns, Config, Mode, Work};
use crate::wasmill::operator::types::{Batch, Column, Error};
use crate::wasmill::operator::{culprit, log, output, state};
use crate::work;

const FLOOD: usize = 1_000;
const LOG_LINES: usize = 10_000;
const MEMORY_STEP: usize = 1 << 20;

/// Works on a batch as `config` says.
pub fn process(config: &Config, input: &Batch) -> Result<(), String> {
    let all = (0..input.times.len()).collect::<Vec<_>>();
    let bad = items(&input.values).map(|value| config.is_bad(value)).collect::<Vec<_>>();
    if config.mode == Mode::Flood {
        return work::echo_times(input, &all, FLOOD);
    }
    if config.mode == Mode::FirstOnly {
        return work(config, input, &all[..1]);
    }
    let Some(first_bad) = bad.iter().position(|&bad| bad) else {
        return work(config, input, &all);
    };
    match config.mode {
        Mode::Echo | Mode::Count => work(config, input, &all),
        Mode::Reject => reject(config, input, &bad),
        Mode::LogFlood => {
            flood_log();
            work(config, input, &all)
        }
        mode => {
            work(config, input, &all[..first_bad])?;
            Err(fail(mode, config, input, first_bad))
        }
    }
}

fn work(config: &Config, input: &Batch, chosen: &[usize]) -> Result<(), String> {
    match config.work {
        Work::Echo => work::echo(input, chosen),
        Work::Count => work::count(input, chosen),
    }
}

fn reject(config: &Config, input: &Batch, bad: &[bool]) -> Result<(), String> {
    let worked_on = |index: &usize| config.work == Work::Echo || !bad[*index];
    work(config, input, &(0..bad.len()).filter(worked_on).collect::<Vec<_>>())?;
    for (index, _) in bad.iter().enumerate().filter(|(_, bad)| **bad) {
        culprit::reject(index as u32, "the record is bad");
    }
    Ok(())
}

/// Fails over record `index`; returns only where the failure is an error.
fn fail(mode: Mode, config: &Config, input: &Batch, index: usize) -> String {
    match mode {
        Mode::Trap => trap(),
        Mode::LogFloodAndTrap => {
            flood_log();
            trap()
        }
        Mode::PanicMarked => {
            culprit::begin_record(index as u32);
            trap()
        }
        Mode::Loop => loop {
            black_box(index);
        },
        Mode::Memory => loop {
            // Written to, so that the pages are truly wanted, and never freed.
            black_box(vec![1u8; MEMORY_STEP].leak());
        },
        Mode::DeepRecursion => format!("a bottom was found at {}", descend(index as u64)),
        Mode::BadColumns => emit_bad_columns(config.columns, index),
        Mode::ForeignKey => write_foreign_key(input, index),
        _ => format!("record {index} is bad"),
    }
}

fn flood_log() {
    (0..LOG_LINES).for_each(|line| log::write(log::Level::Info, &format!("line {line} of a flood")));
}

fn trap() -> ! {
    #[cfg(target_arch = "wasm32")]
    std::arch::wasm32::unreachable();
    #[cfg(not(target_arch = "wasm32"))]
    std::process::abort()
}

fn descend(depth: u64) -> u64 {
    // The array keeps the frame from being shared with the caller's.
    let frame = black_box([depth; 64]);
    if black_box(true) { descend(frame[1] + 1) + black_box(frame)[2] } else { depth }
}

fn write_foreign_key(input: &Batch, index: usize) -> String {
    let own = items(&input.keys).nth(index).unwrap_or_default();
    let foreign = [own, b"/foreign"].concat();
    verdict("put", state::put(work::COUNTS, &foreign, b"1", index as u32))
}

/// Emits two records caused by record `index`, in columns that have the one fault that `fault` names.
fn emit_bad_columns(fault: BadColumns, index: usize) -> String {
    let two = || column(["first", "second"]);
    let mut batch = Batch { keys: two(), values: two(), times: vec![0; 2] };
    let mut records = vec![index as u32; 2];
    let Column { bytes, ends } = &mut batch.values;
    match fault {
        BadColumns::DecreasingEnds => *ends = vec![bytes.len() as u32 + 1, bytes.len() as u32],
        BadColumns::OverrunningEnds => ends[1] += 1,
        BadColumns::BytesLeftOver => bytes.push(b'!'),
        BadColumns::MissingValue => batch.values = column(["only"]),
        BadColumns::MissingTime => batch.times.truncate(1),
        BadColumns::MissingIndex => records.truncate(1),
        BadColumns::IndexOutside => records[1] = u32::MAX,
    }
    verdict("emit", output::emit("out", &batch, &records))
}

fn verdict(call: &str, result: Result<(), Error>) -> String {
    match result {
        Ok(()) => format!("{call} was accepted, wrongly"),
        Err(error) => format!("{call} was refused: {error:?}"),
    }
}

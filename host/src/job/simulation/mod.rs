//! A seeded simulation of whole jobs: tasks, mailboxes, seals, and crashes at every step.
//!
//! `world` runs a job by a seed, `native` has the functions that stand in for components, `reloads` replaces them meanwhile, `ends` the sources and sinks; `moving`, `loops`, `waiting`
//! and `isolated` are the jobs, each with what must hold at every committed epoch and in the end, computed apart from the job; `scenarios` are moments that
//! have undone other systems, `rounds` rounds with given batches, `skew` keys of which a few have most records. A failure names its seed:
//! `WASMILL_SEED=N` runs that one alone, and `WASMILL_SEEDS=N` runs so many instead of [`SEEDS`].

mod ends;
mod isolated;
mod loops;
mod moving;
mod native;
mod reloads;
mod rounds;
mod scenarios;
mod skew;
mod waiting;
mod world;

use world::{Input, Outcome, Settings, Shape, simulate};

use crate::dice::{Dice, Told, seeds};
use crate::job::JobError;

/// How many seeds each job runs with.
const SEEDS: u64 = 300;

/// Runs `shape` with inputs made by `input`, by one seed after another.
#[track_caller]
fn check(shape: &Shape, input: fn(&mut Dice) -> Input) {
    for seed in seeds(SEEDS) {
        run(shape, input(&mut Dice::new(!seed)), seed, Settings::default()).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// [`simulate`], telling the seed of a run that does not come back.
fn run(shape: &Shape, input: Input, seed: u64, settings: Settings) -> Result<Outcome, JobError> {
    let told = Told(seed);
    let result = simulate(shape, input, seed, settings);
    if matches!(result, Ok(_) | Err(JobError::CarriedOver { .. })) {
        std::mem::forget(told);
    }
    result
}

/// The name of key `number`.
fn key(number: usize) -> Vec<u8> {
    format!("k{number}").into_bytes()
}

/// Words of a value, one behind another.
fn words(value: &[u8]) -> Vec<&str> {
    std::str::from_utf8(value).expect("values are made as text").split(' ').collect()
}

/// A number that a function has written as text.
fn parsed(text: &str) -> i64 {
    text.parse().expect("values are made as numbers")
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 0..20 {
        let again = || {
            let outcome = run(&loops::COMPONENTS, loops::edges(&mut Dice::new(!seed)), seed, Settings::default());
            let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
            (outcome.starts, outcome.steps, outcome.output)
        };
        assert_eq!(again(), again(), "seed {seed}");
    }
}

//! Moments that have undone other systems, each met on purpose.

use std::collections::BTreeMap;

use super::moving::{OUTCOMES, PING_PONG, TRANSFERS, balls, transfers};
use super::world::{Input, Moment, Settings, Shape};
use super::{key, run};
use crate::dice::Dice;
use crate::job::JobError;

type CrashWhen = Option<fn(&Moment) -> bool>;

/// How many seeds each scenario is met with.
const SEEDS: u64 = 40;

/// Runs `shape` with one crash at the moment that `settings` name; what must hold in the end is the shape's. Returns at how many seeds the moment came.
fn crash_at(shape: &Shape, input: fn(&mut Dice) -> Input, settings: Settings) -> usize {
    let settings = Settings { troubles_max: 0, ..settings };
    let crashes = |seed: u64| {
        let result = run(shape, input(&mut Dice::new(!seed)), seed, settings);
        let outcome = result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(outcome.starts, 1 + outcome.crashed_at.len(), "seed {seed}");
        outcome.crashed_at.len()
    };
    (0..SEEDS).map(crashes).sum()
}

#[test]
fn what_was_sent_and_not_begun_at_a_crash_comes_back_with_the_same_arguments_and_has_one_output_each() {
    let crash_when: CrashWhen = Some(|moment| moment.carried_bytes > 0);
    let settings = Settings { crash_when, ..Settings::default() };
    for (shape, input) in [(&PING_PONG, balls as fn(&mut Dice) -> Input), (&OUTCOMES, one_place)] {
        let crashes = crash_at(shape, input, settings);
        assert!(crashes > SEEDS as usize / 2, "only {crashes} crashes");
    }
}

#[test]
fn a_seal_that_only_some_tasks_have_handed_over_to_does_not_count() {
    let crash_when: CrashWhen = Some(|moment| moment.is_half_sealed);
    let crashes = crash_at(&TRANSFERS, transfers, Settings { crash_when, ..Settings::default() });
    assert!(crashes > SEEDS as usize / 2, "only {crashes} crashes");
}

/// Requests that all want the same place.
fn one_place(_: &mut Dice) -> Input {
    let request = |number: usize| (key(number % 3), format!("r{number} p").into_bytes());
    BTreeMap::from([("input", vec![(0..12).map(request).collect()]), ("nothing", vec![vec![]])])
}

#[test]
fn the_record_of_a_pending_outcome_is_never_overwritten_by_a_later_one() {
    for seed in 0..SEEDS {
        run(&OUTCOMES, one_place(&mut Dice::new(seed)), seed, Settings::default())
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn more_carried_over_than_its_limit_is_a_named_error_and_at_the_limit_there_is_progress() {
    let (mut refused, mut passed) = (0, 0);
    for seed in 0..SEEDS {
        let run = |carried_bytes_max| {
            let settings = Settings { carried_bytes_max, troubles_max: 0, ..Settings::default() };
            run(&PING_PONG, balls(&mut Dice::new(!seed)), seed, settings)
        };
        // The least limit with which the job ends: what it carries over at most. The steps are the same up to the refusal.
        let (mut limit, mut most) = (0, 0);
        loop {
            match run(limit) {
                Ok(_) => break,
                Err(JobError::CarriedOver { bytes, bytes_max }) => {
                    assert!(bytes_max == limit && bytes > limit, "seed {seed}");
                    (limit, most) = (bytes, bytes);
                    refused += 1;
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        passed += usize::from(most > 0);
    }
    assert!(refused >= passed && passed > SEEDS as usize / 2, "{passed} of {SEEDS}");
    let told = JobError::CarriedOver { bytes: 11, bytes_max: 10 }.to_string();
    assert!(told.contains("11 bytes, more than the 10") && told.contains("`send`"), "{told}");
}

#[test]
fn a_start_behind_an_epoch_that_carries_more_than_the_limit_is_now_makes_progress() {
    // The limit is of what is sealed, not of what comes back: a job is never locked out of its own state.
    let crash_when: CrashWhen = Some(|moment| moment.carried_bytes > 20);
    let mut crashes = 0;
    for seed in 0..SEEDS {
        let settings = Settings { crash_when, troubles_max: 0, lowered_limit: Some(20), ..Settings::default() };
        let outcome = run(&PING_PONG, balls(&mut Dice::new(!seed)), seed, settings);
        let outcome = outcome.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        crashes += outcome.crashed_at.len();
    }
    assert!(crashes > SEEDS as usize / 2, "only {crashes} crashes");
}

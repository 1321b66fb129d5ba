//! Keys of which a few have most of the records.

use std::collections::BTreeMap;

use super::isolated::NEVER_BELOW_ZERO;
use super::moving::TRANSFERS;
use super::world::{Input, Settings, Shape};
use super::{key, run};
use crate::dice::Dice;

const KEYS: usize = 1_000;
const RECORDS: usize = 1_500;
const SEEDS: u64 = 2;

/// Draws keys: key `n` in proportion to `1 / (n + 1) ^ exponent`.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(exponent: f64) -> Self {
        let weight = |number: usize| ((number + 1) as f64).powf(-exponent);
        Self(
            (0..KEYS)
                .scan(0.0, |sum, number| {
                    *sum += weight(number);
                    Some(*sum)
                })
                .collect(),
        )
    }

    fn draw(&self, dice: &mut Dice) -> usize {
        let sum = self.0[KEYS - 1];
        let chosen = dice.next() as f64 / u64::MAX as f64 * sum;
        self.0.partition_point(|&end| end < chosen).min(KEYS - 1)
    }
}

fn transfers(dice: &mut Dice, mut draw: impl FnMut(&mut Dice) -> usize) -> Input {
    let mut record = || (key(draw(dice)), format!("k{} {}", draw(dice), 1 + dice.below(3)).into_bytes());
    let records = (0..RECORDS).map(|_| record()).collect::<Vec<_>>();
    BTreeMap::from([("input", records.chunks(RECORDS / 2).map(<[_]>::to_vec).collect())])
}

fn check(shape: &Shape, input: impl Fn(&mut Dice) -> Input) {
    for seed in 0..SEEDS {
        let settings = Settings { seals_once_in: 200, ..Settings::default() };
        run(shape, input(&mut Dice::new(!seed)), seed, settings).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn skewed_keys_come_to_what_a_plain_computation_says() {
    let zipf = Zipf::new(0.99);
    check(&TRANSFERS, |dice| transfers(dice, |dice| zipf.draw(dice)));
    check(&NEVER_BELOW_ZERO, |dice| transfers(dice, |dice| zipf.draw(dice)));
}

#[test]
fn so_does_one_key_that_has_half_of_all_records() {
    let hot = |dice: &mut Dice| if dice.once_in(2) { 0 } else { dice.below(KEYS) };
    check(&TRANSFERS, |dice| transfers(dice, hot));
    check(&NEVER_BELOW_ZERO, |dice| transfers(dice, hot));
}

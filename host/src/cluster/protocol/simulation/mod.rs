//! The protocol under simulation: several hosts, with disks, sessions and records between them, and everything that can go wrong with them.
//!
//! The machines are the real ones ([`super::Node`]); what they drive is a model: `work` is the job, `disk` what outlives a process, `network` what is between hosts, `host` a process that
//! carries out its actions one by one. `world` puts them together and lists what can happen next; after each step `oracle` says whether all is well. `random` takes steps by chance, from a
//! seed; `exhaustive` takes all of them, for a small job.
//!
//! A failure names its seed: `WASMILL_SEED=N` runs that one alone, and `WASMILL_SEEDS=N` runs so many instead of [`SEEDS`].

mod disk;
mod host;
mod network;
mod oracle;
mod random;
mod work;
mod world;

use std::hash::{Hash, Hasher};

use xxhash_rust::xxh3::Xxh3;

use super::HostId;
use crate::dice::{self, Dice, seeds};
use random::{Told, Trouble, simulate};

/// The leader.
const LEADER: HostId = HostId(0);
/// How many seeds each kind of trouble runs with.
const SEEDS: u64 = 1_000;

/// Whether all is well; if not, what is wrong.
type Verdict = Result<(), String>;

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = Xxh3::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Runs jobs on two to four hosts by one seed after another; says what came of all of them together.
fn check(trouble: Trouble) -> Told {
    let mut all = Told::default();
    for seed in seeds(SEEDS) {
        let told = run(seed, trouble);
        all.steps += told.steps;
        all.steps_to_end = all.steps_to_end.max(told.steps_to_end);
        all.harms += told.harms;
        all.epochs += told.epochs;
        all.attempts += told.attempts;
    }
    eprintln!("{all:?}");
    all
}

fn run(seed: u64, trouble: Trouble) -> Told {
    let mut dice = Dice::new(seed);
    let hosts = 2 + dice.below(3) as u16;
    let seed = dice::Told(seed);
    let told = simulate(hosts, trouble, &mut dice).unwrap_or_else(|fault| panic!("{fault}"));
    std::mem::forget(seed);
    told
}

#[test]
fn a_job_without_trouble_ends_in_one_attempt() {
    let told = check(Trouble { harm_once_in: 0, ends_early: false });
    assert_eq!(told.harms, 0);
}

#[test]
fn a_job_survives_kills_and_cuts() {
    check(Trouble { harm_once_in: 60, ends_early: false });
}

#[test]
fn a_job_survives_constant_trouble() {
    check(Trouble { harm_once_in: 12, ends_early: false });
}

#[test]
fn a_job_that_is_stopped_or_fails_goes_on_when_it_is_started_again() {
    check(Trouble { harm_once_in: 60, ends_early: true });
}

#[test]
fn the_same_seed_makes_the_same_run() {
    let trouble = Trouble { harm_once_in: 40, ends_early: true };
    (0..20).for_each(|seed| assert_eq!(run(seed, trouble), run(seed, trouble), "seed {seed}"));
}

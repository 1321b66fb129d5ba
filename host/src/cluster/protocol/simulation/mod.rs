//! The protocol under simulation: several hosts, with disks, sessions and records between them, and everything that can go wrong with them.
//!
//! The machines are the real ones ([`super::Node`]); what they drive is a model: `work` is the job, `disk` what outlives a process, `network` what is between hosts, `host` a process that
//! carries out its actions one by one. `world` puts them together and lists what can happen next; after each step `oracle` says whether all is well. `random` takes steps by chance, from a
//! seed; `exhaustive` takes all of them, for a small job.
//!
//! A failure names its seed: `WASMILL_SEED=N` runs that one alone, and `WASMILL_SEEDS=N` runs so many instead of [`SEEDS`].

mod disk;
mod exhaustive;
mod host;
mod network;
mod oracle;
mod random;
mod work;
mod world;

use std::hash::{Hash, Hasher};

use xxhash_rust::xxh3::Xxh3;

use super::HostId;
use crate::dice::{Dice, Told, seeds};
use exhaustive::{Bounds, explore};
use random::{Course, Simulation, Trouble};
use work::{Job, Record};

/// The leader.
const LEADER: HostId = HostId(0);
/// How many seeds each kind of trouble runs with.
const SEEDS: u64 = 400;

/// Whether all is well; if not, what is wrong.
type Verdict = Result<(), String>;

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = Xxh3::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Runs jobs on two to four hosts by one seed after another; says what came of all of them together.
fn check(trouble: Option<Trouble>) -> Course {
    let mut all = Course::default();
    for seed in seeds(SEEDS) {
        let course = run(seed, trouble);
        all.steps += course.steps;
        all.steps_to_end = all.steps_to_end.max(course.steps_to_end);
        all.harms += course.harms;
        all.epochs += course.epochs;
        all.attempts += course.attempts;
    }
    println!("{trouble:?}: {all:?}");
    all
}

fn run(seed: u64, trouble: Option<Trouble>) -> Course {
    with(seed, |simulation| simulation.run(trouble))
}

/// Does something with a simulation, and tells the seed when it fails.
fn with<T>(seed: u64, act: impl FnOnce(Simulation) -> Result<T, String>) -> T {
    let mut dice = Dice::new(seed);
    let told = Told(seed);
    let hosts = 2 + dice.below(3) as u16;
    let result = act(Simulation::new(hosts, &mut dice)).unwrap_or_else(|fault| panic!("{fault}"));
    std::mem::forget(told);
    result
}

#[test]
fn a_job_without_trouble_ends_in_one_attempt() {
    for seed in seeds(SEEDS) {
        let course = run(seed, None);
        assert_eq!((course.harms, course.attempts), (0, 1), "seed {seed}");
    }
}

#[test]
fn a_job_survives_kills_and_cuts() {
    check(Some(Trouble { harm_once_in: 60, ends_early: false }));
}

#[test]
fn a_job_survives_constant_trouble() {
    check(Some(Trouble { harm_once_in: 12, ends_early: false }));
}

#[test]
fn a_job_that_is_stopped_or_fails_goes_on_when_it_is_started_again() {
    check(Some(Trouble { harm_once_in: 60, ends_early: true }));
}

#[test]
fn a_stop_commits_all_that_was_admitted_on_every_host() {
    for seed in seeds(SEEDS) {
        let steps = Dice::new(!seed).below(400);
        let hosts = with(seed, |simulation| simulation.run_and_stop(steps));
        assert!(hosts.iter().all(|(admitted, committed)| admitted == committed), "seed {seed}: {hosts:?}");
    }
}

#[test]
fn the_same_seed_makes_the_same_run() {
    let trouble = Some(Trouble { harm_once_in: 40, ends_early: true });
    (0..20).for_each(|seed| assert_eq!(run(seed, trouble), run(seed, trouble), "seed {seed}"));
}

/// Explores a job, within bounds; `WASMILL_BOUNDS=KILLS,CUTS,ENDS,SEALS` has it done within others.
fn check_all(inputs: &[&[Record]], all_bounds: &[Bounds]) {
    let asked = std::env::var("WASMILL_BOUNDS").ok().map(|text| {
        let numbers = text.split(',').map(|number| number.parse().expect("it is a number")).collect::<Vec<usize>>();
        let [kills, cuts, early_ends, seals] = numbers.try_into().expect("they are four numbers");
        vec![Bounds { kills, cuts, early_ends, seals }]
    });
    let job = Job { inputs: inputs.iter().map(|input| input.to_vec()).collect() };
    for bounds in asked.unwrap_or(all_bounds.to_vec()) {
        let explored = explore(&job, bounds).unwrap_or_else(|fault| panic!("{fault}"));
        println!("{} hosts, {bounds:?}: {explored:?}", inputs.len());
        assert!(explored.ends > 0);
    }
}

/// A record that makes so many hops behind the first.
fn record(amount: u64, hops: u8) -> Record {
    Record { amount, hops, is_looped: false, waits_for: i64::MIN }
}

#[test]
fn no_order_of_steps_breaks_two_hosts() {
    let (one, none) = (1, Bounds::default());
    let all_bounds = [
        Bounds { kills: one, seals: one, ..none },
        Bounds { cuts: one, seals: one, ..none },
        Bounds { early_ends: one, seals: one, ..none },
    ];
    check_all(&[&[record(3, 1)], &[]], &all_bounds);
}

#[test]
fn no_order_of_steps_breaks_three_hosts() {
    let none = Bounds::default();
    check_all(&[&[record(8, 1)], &[], &[]], &[Bounds { seals: 1, ..none }]);
}

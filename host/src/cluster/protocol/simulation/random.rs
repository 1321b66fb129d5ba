//! Steps by chance, from a seed.

use std::time::Duration;

use super::work::{Job, Record};
use super::world::{Step, World};
use crate::cluster::protocol::{HostId, Settings};
use crate::dice::Dice;

/// When nobody does the job any harm any more, it ends within so many steps.
pub(super) const STEPS_TO_END: usize = 6_000;
/// Harm is done in at most so many first steps.
const HARMFUL_STEPS: usize = 700;
const RECORDS_MAX: usize = 6;
const HOPS_MAX: usize = 3;

/// What befalls a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trouble {
    /// A step does harm once in so many times; 0 for never.
    pub(super) harm_once_in: usize,
    /// Whether people ask for a stop, and things fail.
    pub(super) ends_early: bool,
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) steps: usize,
    /// Steps after the last harm.
    pub(super) steps_to_end: usize,
    pub(super) harms: usize,
    pub(super) epochs: u64,
    pub(super) attempts: u64,
}

/// Inputs for so many hosts.
pub(super) fn job(hosts: u16, dice: &mut Dice) -> Job {
    let record = |dice: &mut Dice| Record {
        amount: dice.next(),
        hops: dice.below(HOPS_MAX + 1) as u8,
        is_looped: false,
        waits_for: if dice.once_in(6) { dice.below(RECORDS_MAX) as i64 } else { i64::MIN },
    };
    let mut input = |_| (0..dice.below(RECORDS_MAX + 1)).map(|_| record(dice)).collect();
    Job { inputs: (0..hosts).map(&mut input).collect() }
}

/// Runs a job to its end, after some trouble. An error says what did not hold.
pub(super) fn simulate(hosts: u16, trouble: Trouble, dice: &mut Dice) -> Result<Told, String> {
    let job = job(hosts, dice);
    let settings = Settings {
        interval: Duration::from_millis(dice.below(100) as u64),
        poll_pause: Duration::from_millis(dice.below(3) as u64),
        ..Settings::default()
    };
    let mut world = World::new(hosts, settings, false);
    let mut chance = Chance { dice: dice.split(), hosts, slow: None, halted: None };
    let (mut told, mut trace) = (Told::default(), Vec::new());
    let harmful_steps = chance.dice.below(HARMFUL_STEPS);
    while !world.is_done() {
        told.steps += 1;
        let is_harmful = trouble.harm_once_in > 0 && told.steps < harmful_steps;
        if is_harmful && chance.dice.once_in(trouble.harm_once_in) {
            let harm = chance.harm(&world, trouble);
            (told.harms, told.steps_to_end) = (told.harms + 1, 0);
            trace.extend(&harm);
            harm.into_iter().try_for_each(|step| world.take(step, &job))?;
        }
        if told.steps == harmful_steps {
            (chance.halted, told.steps_to_end) = (None, 0);
        }
        told.steps_to_end += 1;
        let step = chance.step(&world, &job);
        trace.push(step);
        world.now += chance.passes();
        let verdict = world.take(step, &job);
        if verdict.is_err() || told.steps_to_end > STEPS_TO_END + HARMFUL_STEPS {
            let fault = verdict.err().unwrap_or_else(|| "the job does not come to its end".to_owned());
            let last = &trace[trace.len().saturating_sub(30)..];
            return Err(format!("{fault}\nafter {last:?}\n{}", world.status()));
        }
    }
    world.check_end(&job)?;
    told.epochs = world.hosts[0].disk.record.read().epoch;
    told.attempts = *world.hosts[0].disk.attempt.read();
    Ok(told)
}

struct Chance {
    dice: Dice,
    hosts: u16,
    /// It seldom gets to do anything.
    slow: Option<HostId>,
    /// It does nothing at all, for the time being.
    halted: Option<HostId>,
}

impl Chance {
    fn host(&mut self) -> HostId {
        HostId(self.dice.below(usize::from(self.hosts)) as u16)
    }

    fn pair(&mut self) -> (HostId, HostId) {
        let host = self.host();
        let by = 1 + self.dice.below(usize::from(self.hosts) - 1) as u16;
        (host, HostId((host.0 + by) % self.hosts))
    }

    /// How much time goes by: mostly little.
    fn passes(&mut self) -> Duration {
        let most = if self.dice.once_in(50) { 200 } else { 2 };
        Duration::from_millis(self.dice.below(most) as u64)
    }

    /// What happens next.
    fn step(&mut self, world: &World, job: &Job) -> Step {
        let steps = world.all_steps(job);
        if steps.is_empty() {
            let restarts = world.restarts();
            if !restarts.is_empty() {
                return restarts[self.dice.below(restarts.len())];
            }
        }
        // Not for ever: a host that cannot do anything may be what all others wait for.
        for _ in 0..20 {
            let Some(&step) = steps.get(self.dice.below(steps.len() + 1)) else { return Step::Tick };
            let is_slow = Some(step.host()) == self.slow && !self.dice.once_in(10);
            if !is_slow && Some(step.host()) != self.halted {
                return step;
            }
        }
        Step::Tick
    }

    /// Something that a job has to survive.
    fn harm(&mut self, world: &World, trouble: Trouble) -> Vec<Step> {
        let host = self.host();
        let is_running = world.running(host).is_some();
        match self.dice.below(if trouble.ends_early { 12 } else { 9 }) {
            0 | 1 => vec![Step::Kill(host)],
            2 => vec![Step::CutPower(host, self.dice.next() as u8)],
            3 | 4 => {
                let (host, peer) = self.pair();
                vec![Step::Cut(host, peer)]
            }
            5 => {
                let (host, peer) = self.pair();
                vec![Step::Cut(host, peer), Step::Cut(peer, host)]
            }
            6 => self.isolate(host),
            7 => {
                self.slow = self.dice.once_in(2).then_some(host);
                Vec::new()
            }
            8 => {
                self.halted = self.dice.once_in(2).then_some(host);
                Vec::new()
            }
            9 | 10 if is_running => vec![Step::Stop(host)],
            11 if is_running && self.dice.once_in(2) => vec![Step::CloseOutput(host)],
            _ if is_running => vec![Step::Fail(host)],
            _ => vec![Step::Kill(host)],
        }
    }

    /// Nobody hears a host any more.
    fn isolate(&mut self, host: HostId) -> Vec<Step> {
        (0..self.hosts).map(HostId).filter(|peer| *peer != host).map(|peer| Step::Cut(host, peer)).collect()
    }
}

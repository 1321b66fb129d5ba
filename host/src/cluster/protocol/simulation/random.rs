//! Steps by chance, from a seed.

use std::time::Duration;

use super::work::{Job, Record};
use super::world::{Step, World};
use super::{LEADER, Verdict};
use crate::cluster::protocol::{HostId, Outcome, Settings};
use crate::dice::Dice;

/// When nobody does a job any harm any more, it ends within so many steps.
const STEPS_TO_END: usize = 10_000;
/// Harm is done in at most so many first steps.
const HARMFUL_STEPS: usize = 500;
/// A run that fails tells so many of its last steps.
const STEPS_TOLD: usize = 40;
const RECORDS_MAX: usize = 6;
const HOPS_MAX: usize = 3;

/// What befalls a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trouble {
    /// A step does harm once in so many times.
    pub(super) harm_once_in: usize,
    /// Whether people ask for a stop, and things fail.
    pub(super) ends_early: bool,
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Course {
    pub(super) steps: usize,
    /// Steps behind those that do harm.
    pub(super) steps_to_end: usize,
    pub(super) harms: usize,
    pub(super) epochs: u64,
    pub(super) attempts: u64,
}

/// A job that runs.
pub(super) struct Simulation {
    pub(super) world: World,
    job: Job,
    dice: Dice,
    /// It seldom gets to do anything.
    slow: Option<HostId>,
    /// It does nothing at all, for the time being.
    halted: Option<HostId>,
    course: Course,
    trace: Vec<Step>,
}

impl Simulation {
    /// A job of so many hosts, none of which has been started.
    pub(super) fn new(hosts: u16, dice: &mut Dice) -> Self {
        let settings = Settings {
            interval: Duration::from_millis(dice.below(40) as u64),
            poll_pause: Duration::from_millis(dice.below(3) as u64),
            ..Settings::default()
        };
        let (job, world) = (job(hosts, dice), World::new(hosts, settings, false));
        let course = Course::default();
        Self { world, job, dice: dice.split(), slow: None, halted: None, course, trace: Vec::new() }
    }

    /// Runs the job to its end, after some trouble. An error says what did not hold.
    pub(super) fn run(mut self, trouble: Option<Trouble>) -> Result<Course, String> {
        let harmful_steps = self.dice.below(HARMFUL_STEPS);
        if let Some(trouble) = trouble {
            for _ in 0..harmful_steps {
                if self.dice.once_in(trouble.harm_once_in) {
                    self.course.harms += 1;
                    self.harm(trouble)?;
                }
                self.go_on()?;
            }
        }
        self.halted = None;
        while !self.world.is_done() {
            self.course.steps_to_end += 1;
            if self.course.steps_to_end > STEPS_TO_END {
                return Err(self.told("the job does not come to its end"));
            }
            self.go_on()?;
        }
        self.world.check_end(&self.job).map_err(|fault| self.told(&fault))?;
        let disk = &self.world.hosts[LEADER.index()].disk;
        Ok(Course { epochs: disk.record.read().epoch, attempts: *disk.attempt.read(), ..self.course })
    }

    /// Runs the job undisturbed until somebody asks for a stop, after so many steps; returns how much each host had admitted then or later, and how much it has committed.
    pub(super) fn run_and_stop(mut self, steps: usize) -> Result<Vec<(usize, usize)>, String> {
        let mut admitted = vec![0; self.world.hosts.len()];
        let asked = self.host();
        for step in 0.. {
            if step == steps {
                self.take(Step::Stop(asked))?;
            }
            if self.world.hosts.iter().all(|host| host.process.is_none() && host.ended.is_some()) {
                break;
            }
            if step > steps + STEPS_TO_END {
                return Err(self.told("the job does not stop"));
            }
            self.go_on()?;
            for (admitted, host) in admitted.iter_mut().zip(&self.world.hosts) {
                let run = host.process.as_ref().and_then(|process| process.run.as_ref());
                *admitted = run.map_or(0, |run| run.part.position).max(*admitted);
            }
        }
        let outcomes = self.world.hosts.iter().map(|host| host.ended.clone()).collect::<Vec<_>>();
        if outcomes.iter().any(|outcome| *outcome != outcomes[0] || *outcome == Some(Outcome::StoppedShort)) {
            return Err(self.told(&format!("hosts do not end alike: {outcomes:?}")));
        }
        let committed = self.world.hosts.iter().map(|host| host.disk.committed.read().part.position);
        Ok(admitted.into_iter().zip(committed).collect())
    }

    fn take(&mut self, step: Step) -> Verdict {
        self.trace.push(step);
        let verdict = self.world.take(step, &self.job);
        verdict.map_err(|fault| self.told(&fault))
    }

    /// What went wrong, and what was before it.
    fn told(&self, fault: &str) -> String {
        let last = &self.trace[self.trace.len().saturating_sub(STEPS_TOLD)..];
        format!("{fault}\nafter {last:?}\n{}", self.world.status())
    }

    fn host(&mut self) -> HostId {
        HostId(self.dice.below(self.world.hosts.len()) as u16)
    }

    /// Something happens that may.
    fn go_on(&mut self) -> Verdict {
        let mut steps = self.world.steps(&self.job);
        self.course.steps += 1;
        let most = if steps.is_empty() { 50 } else { 2 };
        self.world.now += Duration::from_millis(self.dice.below(most) as u64);
        if steps.is_empty() {
            steps = self.world.restarts();
        }
        // Not for ever: a host that does nothing may be the one that all others wait for.
        for _ in 0..10 {
            // Time passes most when nothing else happens.
            let Some(&step) = steps.get(self.dice.below(steps.len() + 1)) else { break };
            let is_slow = Some(step.host()) == self.slow && !self.dice.once_in(10);
            if !is_slow && Some(step.host()) != self.halted {
                return self.take(step);
            }
        }
        self.take(Step::Tick)
    }

    /// Something happens that a job has to survive.
    fn harm(&mut self, trouble: Trouble) -> Verdict {
        let host = self.host();
        let peers = (0..self.world.hosts.len() as u16).map(HostId).filter(|peer| *peer != host).collect::<Vec<_>>();
        let peer = peers[self.dice.below(peers.len())];
        match self.dice.below(if trouble.ends_early { 12 } else { 9 }) {
            0 | 1 => self.take(Step::Kill(host)),
            2 => {
                let kept = self.dice.next() as u8;
                self.take(Step::CutPower(host, kept))
            }
            3 | 4 => self.take(Step::Cut(host, peer)),
            5 => self.take(Step::Cut(host, peer)).and_then(|()| self.take(Step::Cut(peer, host))),
            6 => peers.into_iter().try_for_each(|peer| self.take(Step::Cut(host, peer))),
            7 => {
                self.slow = self.dice.once_in(2).then_some(host);
                Ok(())
            }
            8 => {
                self.halted = self.dice.once_in(2).then_some(host);
                Ok(())
            }
            9 | 10 => self.take(Step::Stop(host)),
            _ if self.dice.once_in(2) => self.take(Step::CloseOutput(host)),
            _ => self.take(Step::Fail(host)),
        }
    }
}

/// Inputs for so many hosts.
fn job(hosts: u16, dice: &mut Dice) -> Job {
    let record = |dice: &mut Dice| Record {
        amount: dice.next(),
        hops: dice.below(HOPS_MAX + 1) as u8,
        is_looped: false,
        waits_for: if dice.once_in(6) { dice.below(RECORDS_MAX) as i64 } else { i64::MIN },
    };
    let mut input = |_| (0..dice.below(RECORDS_MAX + 1)).map(|_| record(dice)).collect();
    Job { inputs: (0..hosts).map(&mut input).collect() }
}

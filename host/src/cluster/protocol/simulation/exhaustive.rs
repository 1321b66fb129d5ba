//! All steps, one after another: every state that a small job can come to by any order of steps and so many harms, breadth first, so that the first failure found is a shortest.
//!
//! Of each state it is checked what holds at every step, and, once all are known, that from each of them the job can still come to its end without further harm.
//! What a process hears, says and writes takes no time here, and time itself stands still: an epoch is sealed when a host wants it, or all input has ended. `random` has more to it.

use std::collections::HashMap;
use std::time::Duration;

use super::work::Job;
use super::world::{Step, World};
use super::{LEADER, hash};
use crate::cluster::protocol::{HostId, Settings};

/// What is known of all states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) steps: usize,
    /// States in which the job has ended.
    pub(super) ends: usize,
}

/// How often what can happen at any time may do so, so that there is an end to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Bounds {
    /// Processes killed.
    pub(super) kills: usize,
    /// Directions of sessions cut.
    pub(super) cuts: usize,
    /// Stops asked for, and failures.
    pub(super) early_ends: usize,
    /// Seals before the input has ended.
    pub(super) seals: usize,
}

impl Bounds {
    fn harms(self) -> usize {
        self.kills + self.cuts + self.early_ends
    }
}

#[derive(Debug, Clone, Hash)]
struct State {
    world: World,
    left: Bounds,
}

/// The place of a state in the order in which they were found.
type Place = u32;

/// All states found so far.
#[derive(Default)]
struct Found {
    places: HashMap<u64, Place>,
    /// Of each state the one from which it was found, and by which step.
    origins: Vec<(Place, Step)>,
    /// Steps that are nobody's harm.
    harmless: Vec<(Place, Place)>,
    ends: Vec<Place>,
}

/// Takes every step from every state. An error tells the steps to a state in which something does not hold.
pub(super) fn explore(job: &Job, bounds: Bounds) -> Result<Explored, String> {
    let first = State { world: started(job)?, left: bounds };
    let mut found = Found::default();
    let mut steps_taken = 0;
    found.add(&first, (0, Step::Tick));
    let mut front = vec![(0, first)];
    while !front.is_empty() {
        let mut next = Vec::new();
        for (place, state) in front {
            if state.world.is_done() {
                state.world.check_end(job).map_err(|fault| found.told(&fault, place, &state))?;
                found.ends.push(place);
            }
            for (step, left) in state.steps(job) {
                steps_taken += 1;
                let mut after = State { left, ..state.clone() };
                let verdict = after.world.take(step, job);
                let (to, is_new) = found.add(&after, (place, step));
                verdict.map_err(|fault| found.told(&fault, to, &after))?;
                if left.harms() == state.left.harms() {
                    found.harmless.push((place, to));
                }
                if is_new {
                    next.push((to, after));
                }
            }
        }
        front = next;
    }
    if let Some(stuck) = found.stuck() {
        return Err(format!("the job cannot come to its end any more after {:#?}", found.way(stuck)));
    }
    Ok(Explored { states: found.origins.len(), steps: steps_taken, ends: found.ends.len() })
}

/// The job's hosts, all started and connected.
fn started(job: &Job) -> Result<World, String> {
    let settings = Settings { interval: Duration::MAX, poll_pause: Duration::ZERO, ..Settings::default() };
    let hosts = u16::try_from(job.inputs.len()).expect("there are few hosts");
    let mut world = World::new(hosts, settings, true);
    for step in (0..hosts).map(|host| Step::Start(HostId(host))) {
        world.take(step, job)?;
    }
    let is_between = |step: &Step| matches!(step, Step::Connect(..) | Step::Message { .. });
    while let Some(step) = world.steps(job).into_iter().find(is_between) {
        world.take(step, job)?;
    }
    Ok(world)
}

impl State {
    /// What can happen next, and what is left of the bounds then.
    fn steps(&self, job: &Job) -> Vec<(Step, Bounds)> {
        let (world, left) = (&self.world, self.left);
        let mut steps = world.steps(job);
        if steps.is_empty() {
            steps.extend(world.running(LEADER).map(|_| Step::Tick));
            steps.extend(world.restarts());
        }
        let mut steps: Vec<(Step, Bounds)> = steps.into_iter().map(|step| (step, left)).collect();
        let mut add = |more: &mut dyn Iterator<Item = Step>, left| steps.extend(more.map(|step| (step, left)));
        if let Some(kills) = left.kills.checked_sub(1) {
            add(&mut world.kills(), Bounds { kills, ..left });
        }
        if let Some(cuts) = left.cuts.checked_sub(1) {
            add(&mut world.cuts(), Bounds { cuts, ..left });
        }
        if let Some(early_ends) = left.early_ends.checked_sub(1) {
            add(&mut world.early_ends(), Bounds { early_ends, ..left });
        }
        if let Some(seals) = left.seals.checked_sub(1) {
            add(&mut world.hurries(), Bounds { seals, ..left });
        }
        steps
    }
}

impl Found {
    /// The place of a state, and whether it is new.
    fn add(&mut self, state: &State, origin: (Place, Step)) -> (Place, bool) {
        let next = Place::try_from(self.origins.len()).expect("they fit in memory");
        let place = *self.places.entry(hash(state)).or_insert(next);
        if place == next {
            self.origins.push(origin);
        }
        (place, place == next)
    }

    /// A state from which no end can be reached by harmless steps.
    fn stuck(&self) -> Option<Place> {
        let mut before: Vec<Vec<Place>> = vec![Vec::new(); self.origins.len()];
        self.harmless.iter().for_each(|(from, to)| before[*to as usize].push(*from));
        let mut can_end = vec![false; self.origins.len()];
        let mut open = self.ends.clone();
        while let Some(place) = open.pop() {
            if !std::mem::replace(&mut can_end[place as usize], true) {
                open.extend(&before[place as usize]);
            }
        }
        can_end.iter().position(|can_end| !can_end).and_then(|place| Place::try_from(place).ok())
    }

    /// The steps that lead to a state.
    fn way(&self, mut place: Place) -> Vec<Step> {
        let mut way = Vec::new();
        while place != 0 {
            let (from, step) = self.origins[place as usize];
            way.push(step);
            place = from;
        }
        way.reverse();
        way
    }

    fn told(&self, fault: &str, place: Place, state: &State) -> String {
        format!("{fault}\nafter {:#?}\n{}", self.way(place), state.world.status())
    }
}

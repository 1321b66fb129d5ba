//! How far each operator has come in event time: what is known of it at a seal.
//!
//! At a seal, everything that was admitted has been processed with all that it caused, except what is carried over. So an operator has come as far as every source has that its
//! tables depend on, but not to the time of a record that is carried over to it, or to an operator that it depends on. While the job runs no operator goes back, also where a
//! record is late or a new split begins earlier. Nothing of this is recorded: a start comes to it again by the times of the splits and the records carried over, which the log has.

use std::sync::Arc;

use super::JobError;
use crate::cluster::protocol::Reach;
use crate::epoch::entry::Carried;
use crate::graph::{Graph, Plan, Upstream};
use crate::task::progress::Progress;

/// The progress of all operators, as the coordinator keeps it.
pub(super) struct EventClock {
    /// By operator: its name, and what it depends on.
    operators: Vec<(Arc<str>, Upstream)>,
    /// By operator: how far it has come.
    times: Vec<i64>,
    /// How far the sources had come when it was last moved on.
    sources: Vec<i64>,
    shared: Arc<Progress>,
}

impl EventClock {
    /// The clock of a plan, before anything is known.
    pub(super) fn new(graph: &Graph, plan: &Plan) -> Self {
        let operators = graph.operators.iter().zip(&plan.operators);
        Self::of(operators.map(|(node, plan)| (node.name.as_str().into(), plan.upstream.clone())).collect())
    }

    fn of(operators: Vec<(Arc<str>, Upstream)>) -> Self {
        let times = vec![i64::MIN; operators.len()];
        Self { shared: Arc::new(Progress::new(operators.len())), operators, times, sources: Vec::new() }
    }

    /// The progress that tasks look at.
    pub(super) fn shared(&self) -> Arc<Progress> {
        Arc::clone(&self.shared)
    }

    /// Whether the sources have come to other times since it was last moved on.
    pub(super) fn has_moved(&self, sources: &[i64]) -> bool {
        self.sources != sources
    }

    /// Moves on to where the sources have come to, in the graph's order, with `carried` left to do. To be called while nothing is in flight.
    pub(super) fn move_on(&mut self, sources: Vec<i64>, carried: &[Carried]) -> Result<(), JobError> {
        let reach = self.note(sources, carried);
        self.move_to(&reach)
    }

    /// Takes note of where this host's part of the sources has come to, and says how far that and what is `carried` over here let event time come.
    pub(super) fn note(&mut self, sources: Vec<i64>, carried: &[Carried]) -> Reach {
        let least_of = |name: &str| {
            let batches = carried.iter().filter(|carried| *carried.operator == *name);
            batches.flat_map(|carried| &carried.batch.times).min().map_or(i64::MAX, |time| time.saturating_sub(1))
        };
        self.sources.clone_from(&sources);
        Reach { sources, operators: self.operators.iter().map(|(name, _)| least_of(name)).collect() }
    }

    /// Moves on to what all hosts together have come to. To be called while nothing is in flight.
    ///
    /// # Errors
    /// When `reach` is of another job's sources or operators.
    pub(super) fn move_to(&mut self, reach: &Reach) -> Result<(), JobError> {
        if reach.sources.len() != self.sources.len() || reach.operators.len() != self.operators.len() {
            let text = "the leader tells of other sources and operators; run the same manifest on all hosts";
            return Err(JobError::Plan(text.to_owned()));
        }
        for ((_, upstream), time) in self.operators.iter().zip(&mut self.times) {
            let sources = upstream.sources.iter().map(|source| reach.sources[source.0]);
            let left = upstream.operators.iter().map(|operator| reach.operators[operator.0]);
            *time = sources.chain(left).min().unwrap_or(i64::MAX).max(*time);
        }
        self.shared.move_on(&self.times);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{OperatorIndex, SourceIndex};
    use crate::record::Batch;

    fn clock(operators: &[(&str, &[usize], &[usize])]) -> EventClock {
        let upstream = |sources: &[usize], operators: &[usize]| Upstream {
            sources: sources.iter().copied().map(SourceIndex).collect(),
            operators: operators.iter().copied().map(OperatorIndex).collect(),
        };
        EventClock::of(operators.iter().map(|(name, own, others)| ((*name).into(), upstream(own, others))).collect())
    }

    fn carried(operator: &str, times: &[i64]) -> Carried {
        let mut batch = Batch::default();
        times.iter().for_each(|time| batch.push(b"k", b"v", *time));
        Carried { operator: operator.into(), batch: batch.into() }
    }

    /// `a` reads source 0, `b` reads source 1 and what `a` emits.
    const CHAIN: [(&str, &[usize], &[usize]); 2] = [("a", &[0], &[0]), ("b", &[0, 1], &[0, 1])];

    #[test]
    fn an_operator_comes_as_far_as_its_sources_and_what_is_left_to_do_before_it() {
        let mut clock = clock(&CHAIN);
        let mut check = |sources: [i64; 2], left: &[Carried], expected: [i64; 2]| {
            clock.move_on(sources.to_vec(), left).unwrap();
            assert_eq!([0, 1].map(|operator| clock.shared.of(operator)), expected, "{sources:?} {left:?}");
        };
        check([i64::MIN, 5], &[], [i64::MIN, i64::MIN]);
        check([10, 5], &[], [10, 5]);
        check([20, 30], &[carried("b", &[19, 16]), carried("b", &[18])], [20, 15]);
        check([25, 30], &[carried("a", &[22])], [21, 21]);
        // Nothing goes back.
        check([7, 8], &[carried("a", &[3])], [21, 21]);
        check([i64::MAX, i64::MAX], &[carried("b", &[i64::MIN])], [i64::MAX, 21]);
        check([i64::MAX, i64::MAX], &[], [i64::MAX, i64::MAX]);
    }

    #[test]
    fn it_is_worth_moving_on_once_a_source_has_come_further() {
        let mut clock = clock(&CHAIN);
        assert!(clock.has_moved(&[i64::MIN, i64::MIN]));
        clock.move_on(vec![10, i64::MIN], &[]).unwrap();
        assert!(!clock.has_moved(&[10, i64::MIN]) && clock.has_moved(&[10, 1]));
        assert_eq!(clock.shared().moves(), 1);
    }
}

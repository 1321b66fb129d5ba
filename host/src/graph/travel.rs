//! What of a plan leaves its host, and what does not: for people, who want to know what their job costs before it runs.

use super::{Consumer, Edge, OperatorIndex, Plan, PlannedUse, Producer, Routing};

/// What travels to other hosts, of the records of an edge or the keys of a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Travel {
    /// Nothing.
    Nothing,
    /// What has another key than the record that causes it, to the host that owns that key: producer and consumer own the same partitions.
    OtherKeys,
    /// Whatever another host owns, to that host.
    ByKey,
    /// Everything, from all hosts but the leader's, to the leader's.
    ToLeader,
}

impl Plan {
    /// What travels of the records of `edge`, which must be of this plan's graph.
    pub fn travel_of_edge(&self, edge: &Edge, routing: Routing) -> Travel {
        let from = match edge.from {
            Producer::Source(_) => None,
            Producer::Operator { operator, .. } => Some(operator),
        };
        match edge.to {
            Consumer::Operator(to) => self.travel(from, to, routing, edge.key.is_none()),
            Consumer::Sink(_) => Travel::Nothing,
        }
    }

    /// What travels of the keys that `operator` looks up or changes by one of its `uses`.
    pub fn travel_of_use(&self, operator: OperatorIndex, used: &PlannedUse) -> Travel {
        self.travel(Some(operator), used.owner, Routing::Hash, true)
    }

    fn travel(&self, from: Option<OperatorIndex>, to: OperatorIndex, routing: Routing, keeps_key: bool) -> Travel {
        let alone = |operator: OperatorIndex| self.operators[operator.0].alone.is_some();
        let is_from_leader = from.is_some_and(alone);
        match (alone(to), routing) {
            _ if self.hosts.count() == 1 => Travel::Nothing,
            (true, _) if is_from_leader => Travel::Nothing,
            (true, _) => Travel::ToLeader,
            (false, Routing::Forward) => Travel::Nothing,
            (false, Routing::Hash) if keeps_key && from.is_some_and(|from| self.is_aligned(from, to)) => {
                Travel::OtherKeys
            }
            (false, Routing::Hash) => Travel::ByKey,
        }
    }

    /// Whether equal keys of both operators are on one host.
    fn is_aligned(&self, one: OperatorIndex, other: OperatorIndex) -> bool {
        let [one, other] = [one, other].map(|operator| &self.operators[operator.0]);
        // All that are shared out have the same partitions on each host, however many tasks they have there.
        one.is_keyed && other.is_keyed && one.alone.is_some() == other.alone.is_some()
    }
}

//! The connected components of a graph, by a loop: every node keeps the least name that it has heard of, and tells its neighbours when it hears of a lesser one. When
//! nobody has anything to tell any more, each component is called after its least node.
//!
//! The graph is that of aircraft and the flight numbers that they have flown under: its components are fleets that share no work. The input is keyed by aircraft; a
//! flight number hears of its flights by the loop.
#![warn(missing_docs)]

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use wasmill_sdk::{Config, Context, Description, Function, Json, Port, Record, Reject, Table};

/// What is known of each node.
pub const NODES: Table<Json<Node>> = Table::new("nodes");
/// What a node has to tell another one, by which it is keyed.
pub const TELL: Port = Port::new("tell");

/// How the data say that a value is missing.
const MISSING: &str = "NA";

/// What is known of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The least name in its component, as far as it has heard.
    pub component: String,
    /// The nodes at the other ends of its edges.
    pub neighbours: BTreeSet<String>,
}

/// What a node hears.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum News<'a> {
    /// Of another one, which has an edge to it: what that takes for its component's name.
    Told(#[serde(borrow)] Told<'a>),
    /// Of a flight, if it is an aircraft. CSV gives every field as a string.
    Flight {
        #[serde(borrow)]
        carrier: Cow<'a, str>,
        #[serde(borrow)]
        flight: Cow<'a, str>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Told<'a> {
    #[serde(borrow)]
    from: Cow<'a, str>,
    #[serde(borrow)]
    component: Cow<'a, str>,
}

/// A line of output: what a node takes for its component's name by now.
#[derive(Debug, Serialize)]
struct Line<'a> {
    node: &'a str,
    component: &'a str,
}

/// Finds components; its input is keyed by node.
#[derive(Debug)]
pub struct Components;

impl Function for Components {
    fn describe() -> Description {
        Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")).table(&NODES).port(&TELL)
    }

    fn init(_config: Config<'_>) -> Result<Self, String> {
        Ok(Self)
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        let name = record.key_text()?;
        if name == MISSING {
            return Ok(());
        }
        let mut entry = context.state(&NODES)?;
        let is_new = entry.get().is_none();
        let node = entry.or_insert_with(|| Node { component: name.to_owned(), neighbours: BTreeSet::new() });
        let has_changed = node.hear(name, record.json()?, context)?;
        if is_new || has_changed {
            context.emit_json(name, &Line { node: name, component: &node.component })?;
        }
        Ok(())
    }
}

impl Node {
    /// Takes in what this node, `name`, hears, and tells others what they should hear of it. Returns whether its component has another name now.
    fn hear(&mut self, name: &str, news: News<'_>, context: &Context) -> Result<bool, Reject> {
        match news {
            News::Flight { carrier, flight } => {
                let number = format!("{carrier}/{flight}");
                if self.neighbours.insert(number.clone()) {
                    self.tell(name, &number, context)?;
                }
                Ok(false)
            }
            News::Told(Told { from, component }) => {
                let is_new = self.neighbours.insert(from.clone().into_owned());
                if *component < *self.component {
                    self.component = component.into_owned();
                    self.neighbours.iter().try_for_each(|neighbour| self.tell(name, neighbour, context))?;
                    return Ok(true);
                }
                // Whoever is no news has heard already.
                if is_new && *component > *self.component {
                    self.tell(name, &from, context)?;
                }
                Ok(false)
            }
        }
    }

    fn tell(&self, name: &str, neighbour: &str, context: &Context) -> Result<(), Reject> {
        let told = Told { from: Cow::Borrowed(name), component: Cow::Borrowed(&self.component) };
        context.to(&TELL).emit_json(neighbour, &told)
    }
}

wasmill_sdk::export!(Components);

#[cfg(test)]
mod tests {
    use super::*;
    use wasmill_sdk::testing::{Harness, Input, record};

    fn flight(tailnum: &str, number: &str) -> Input {
        record(tailnum, format!(r#"{{"carrier":"UA","flight":"{number}","tailnum":"{tailnum}"}}"#))
    }

    #[test]
    fn an_aircraft_tells_a_flight_number_of_itself_once() {
        let mut harness = Harness::<Components>::new("{}");
        let outcome = harness.process([flight("N1", "1545"), flight("NA", "1546"), flight("N1", "1545")]);
        let told: Vec<_> = outcome.emitted.iter().map(|emitted| (emitted.key_text(), emitted.text())).collect();
        let expected = [("N1", r#"{"node":"N1","component":"N1"}"#), ("UA/1545", r#"{"from":"N1","component":"N1"}"#)];
        assert_eq!(told, expected.map(|(key, text)| (key.to_owned(), text.to_owned())));
    }

    /// Lets everybody hear what there is to hear, until there is nothing more. Returns how often that took.
    fn settle(harness: &mut Harness<Components>, mut news: Vec<Input>) -> usize {
        let mut rounds = 0;
        while !news.is_empty() {
            let told = harness.process(news).emitted.into_iter().filter(|emitted| emitted.port == "tell");
            news = told.map(|emitted| record(emitted.key, emitted.value)).collect();
            rounds += 1;
        }
        rounds
    }

    #[test]
    fn components_are_called_after_their_least_nodes() {
        let mut harness = Harness::<Components>::new("{}");
        let flights = [("N4", "3"), ("N3", "3"), ("N3", "2"), ("N2", "2"), ("N2", "1"), ("N1", "1"), ("N8", "9")];
        let rounds = settle(&mut harness, flights.map(|(tailnum, number)| flight(tailnum, number)).into());
        assert!(rounds > 3, "{rounds}");
        let component = |node: &str| harness.state(&NODES, node).unwrap().component;
        assert_eq!(["N1", "N4", "UA/1", "UA/3", "N8", "UA/9"].map(component), ["N1", "N1", "N1", "N1", "N8", "N8"]);
    }

    #[test]
    fn a_node_speaks_only_of_what_is_new() {
        let mut harness = Harness::<Components>::new("{}");
        let told =
            |from: &str, component: &str| record("m", format!(r#"{{"from":"{from}","component":"{component}"}}"#));
        let outcome = harness.process([told("b", "b"), told("z", "z")]);
        assert_eq!(outcome.texts(), [r#"{"node":"m","component":"b"}"#]);
        let keys: Vec<_> =
            outcome.emitted.iter().filter(|emitted| emitted.port == "tell").map(|emitted| emitted.key_text()).collect();
        assert_eq!(keys, ["b", "z"]);
        assert_eq!(harness.process([told("z", "b"), told("z", "z"), told("b", "b")]).emitted, []);
    }
}

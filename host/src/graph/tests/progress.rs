//! Whose progress an operator's depends on, who may wait for whom, and which sources make room.

use super::*;

/// An operator: its name, inputs, feedback, and what it uses: an owner and what it may do with that one's table.
type Wired<'a> = (&'a str, &'a [&'a str], &'a [&'a str], &'a [&'a str]);

/// A job of operators, each of which keeps a versioned table `t`, open to all; `orders` and `prices` are sources.
fn plan(operators: &[Wired<'_>]) -> Plan {
    let mut text = "[job]\nname = \"job\"\n".to_owned();
    for source in ["orders", "prices"] {
        text +=
            &format!("[sources.{source}]\nkind = \"file\"\npath = \"{source}\"\nformat = \"jsonl\"\nkey = \"/k\"\n");
    }
    let mut declared = BTreeMap::new();
    for (name, inputs, feedback, uses) in operators {
        text += &format!("[operators.{name}]\ncomponent = \"c\"\ninputs = {inputs:?}\nfeedback = {feedback:?}\n");
        text += "tables.t = { open = true }\n";
        for used in *uses {
            let (owner, how) = used.split_once(' ').unwrap();
            if owner == "isolation" {
                text += &format!("isolation = \"{how}\"\n");
                continue;
            }
            text += &format!("uses.{owner}-{how} = {{ table = \"{owner}.t\", {how} = true }}\n");
        }
        let uses = uses.iter().filter(|used| !used.starts_with("isolation")).map(|used| used.replace(' ', "-"));
        let own = Declared {
            tables: vec![("t".to_owned(), 1)],
            open: vec!["t".to_owned()],
            versioned: vec![("t".to_owned(), 60_000)],
            uses: uses.collect(),
            ..Declared::default()
        };
        declared.insert((*name).to_owned(), own);
    }
    text += &format!("[sinks.out]\nkind = \"blackhole\"\ninputs = {:?}\n", [operators.last().unwrap().0]);
    Plan::new(&graph(&text), 2, &declared).unwrap_or_else(|findings| panic!("{findings:?}")).0
}

/// The sources and operators that operator `index` depends on, by their places.
fn upstream(plan: &Plan, index: usize) -> (Vec<usize>, Vec<usize>) {
    let Upstream { sources, operators } = &plan.operators[index].upstream;
    (sources.iter().map(|source| source.0).collect(), operators.iter().map(|operator| operator.0).collect())
}

fn waiting(plan: &Plan, index: usize) -> Vec<(String, Waiting)> {
    plan.operators[index].uses.iter().map(|used| (used.name.clone(), used.waiting)).collect()
}

const ORDERS: usize = 0;
const PRICES: usize = 1;

#[test]
fn who_looks_up_prices_may_wait_for_them_and_its_source_makes_room() {
    let plan = plan(&[("a", &["prices"], &[], &[]), ("b", &["orders"], &[], &["a read"])]);
    assert_eq!(upstream(&plan, 0), (vec![PRICES], vec![0]));
    assert_eq!(upstream(&plan, 1), (vec![ORDERS], vec![1]));
    assert_eq!(waiting(&plan, 1), [("a-read".to_owned(), Waiting::Allowed)]);
    assert_eq!(plan.yielding, [true, false]);
}

#[test]
fn who_updates_or_sends_holds_a_table_back_as_inputs_and_feedback_do() {
    let plan = plan(&[
        ("a", &["prices"], &["b"], &[]),
        ("b", &["a"], &[], &["c update"]),
        ("c", &[], &[], &[]),
        ("d", &["orders"], &[], &["c read", "e send"]),
        ("e", &["prices"], &[], &[]),
    ]);
    assert_eq!(upstream(&plan, 0), (vec![PRICES], vec![0, 1]));
    assert_eq!(upstream(&plan, 2), (vec![PRICES], vec![0, 1, 2]));
    assert_eq!(upstream(&plan, 4), (vec![ORDERS, PRICES], vec![3, 4]));
    assert_eq!(waiting(&plan, 3)[0], ("c-read".to_owned(), Waiting::Allowed));
    assert_eq!(plan.yielding, [true, false]);
}

#[test]
fn nobody_waits_for_itself_by_whatever_way() {
    let own = plan(&[("a", &["prices"], &[], &["a read"])]);
    assert_eq!(waiting(&own, 0), [("a-read".to_owned(), Waiting::Circular)]);
    let behind = plan(&[("a", &["prices"], &[], &["b read"]), ("b", &["a"], &[], &[])]);
    assert_eq!(waiting(&behind, 0), [("b-read".to_owned(), Waiting::Circular)]);
    let changed = plan(&[("a", &["prices"], &[], &[]), ("b", &["orders"], &[], &["a read", "a update"])]);
    assert_eq!(waiting(&changed, 1)[0], ("a-read".to_owned(), Waiting::Circular));
    let mutual = plan(&[("a", &["prices"], &[], &["b read"]), ("b", &["orders"], &[], &["a read"])]);
    assert_eq!(waiting(&mutual, 0), [("b-read".to_owned(), Waiting::Circular)]);
    assert_eq!(waiting(&mutual, 1), [("a-read".to_owned(), Waiting::Circular)]);
    assert_eq!(mutual.yielding, [false, false]);
    let chain = plan(&[
        ("a", &["prices"], &[], &[]),
        ("b", &["orders"], &[], &["a read"]),
        ("c", &["orders"], &[], &["b read"]),
    ]);
    assert_eq!(waiting(&chain, 2), [("b-read".to_owned(), Waiting::Allowed)]);
    assert_eq!(chain.yielding, [false, false], "`b` is waited for, and `orders` feeds it");
}

#[test]
fn a_serializable_operator_does_not_wait() {
    let plan = plan(&[("a", &["prices"], &[], &[]), ("b", &["orders"], &[], &["a read", "isolation serializable"])]);
    assert_eq!(waiting(&plan, 1), [("a-read".to_owned(), Waiting::Serializable)]);
    assert_eq!(plan.yielding, [false, false]);
}

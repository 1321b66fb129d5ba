//! `enrich`: a join of files that are at rest, in plain code, gives the same lines; and the orders that no customer or product was found for wait for them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::dice::Dice;
use super::{Example, Inputs, Ran, number, text, write_lines};

const CUSTOMERS: u64 = 20_000;
const PRODUCTS: u64 = 1_000;
const ORDERS: u64 = 200_000;
/// Of so many ids one belongs to nobody.
const UNKNOWN_ONE_IN: u64 = 1_000;

pub const EXAMPLE: Example = Example { name: "enrich", manifests: &["job.toml"], make_input: Some(make_input), check };

fn make_input(folder: &Path) -> anyhow::Result<Inputs> {
    let mut dice = Dice(2);
    let countries = ["DE", "EG", "GB", "IE", "JP", "NO", "PL", "US"];
    let customer = |id: u64| json!({ "customer": format!("c{id}"), "name": format!("Customer {id}"), "country": countries[(id % 8) as usize] });
    let product =
        |id: u64| json!({ "product": format!("p{id}"), "name": format!("Product {id}"), "cents": 50 + 7 * id });
    let id = |letter: char, count: u64, dice: &mut Dice| match dice.roll(UNKNOWN_ONE_IN) {
        0 => format!("{letter}{}", count + dice.roll(10)),
        _ => format!("{letter}{}", dice.roll(count)),
    };
    let mut order = |number: u64| {
        let (customer, product) = (id('c', CUSTOMERS, &mut dice), id('p', PRODUCTS, &mut dice));
        json!({ "order": number, "customer": customer, "product": product, "quantity": 1 + dice.roll(9) })
    };
    let orders: Vec<Value> = (0..ORDERS).map(&mut order).collect();
    Ok(vec![
        ("customer-changes", write_lines(folder, "customers.jsonl", (0..CUSTOMERS).map(customer))?),
        ("product-changes", write_lines(folder, "products.jsonl", (0..PRODUCTS).map(product))?),
        ("orders", write_lines(folder, "orders.jsonl", orders)?),
    ])
}

fn check(ran: &Ran<'_>) -> anyhow::Result<String> {
    let expected = Joined::of(ran)?;
    let lines = ran.output("enriched")?;
    let found: BTreeMap<i64, &Value> =
        lines.iter().map(|line| Ok((number(line, "order")?, line))).collect::<anyhow::Result<_>>()?;
    ensure!(found.len() == lines.len(), "{} lines for {} orders", lines.len(), found.len());
    for (order, line) in &expected.lines {
        let found = found.get(order).with_context(|| format!("order {order} is missing"))?;
        ensure!(*found == line, "order {order} is {found} and should be {line}");
    }
    ensure!(found.len() == expected.lines.len(), "{} orders, not {}", found.len(), expected.lines.len());
    let waiting = waiting(ran, "customers/waiting")?.into_iter().chain(waiting(ran, "products/waiting")?);
    let waiting = waiting.collect::<Vec<_>>();
    ensure!(
        waiting.len() == expected.waiting.len() && waiting.iter().all(|order| expected.waiting.contains(order)),
        "{} orders wait, and {} should",
        waiting.len(),
        expected.waiting.len()
    );
    Ok(format!(
        "{} orders are joined as a plain join has them, and {} wait for what is missing",
        lines.len(),
        waiting.len()
    ))
}

/// What a join comes to.
struct Joined {
    lines: BTreeMap<i64, Value>,
    waiting: BTreeSet<i64>,
}

impl Joined {
    fn of(ran: &Ran<'_>) -> anyhow::Result<Self> {
        let by_id = |source: &str, id: &str| -> anyhow::Result<BTreeMap<String, Value>> {
            ran.input(source)?.into_iter().map(|record| Ok((text(&record, id)?.to_owned(), record))).collect()
        };
        let (customers, products) = (by_id("customer-changes", "customer")?, by_id("product-changes", "product")?);
        let mut joined = Self { lines: BTreeMap::new(), waiting: BTreeSet::new() };
        for order in ran.input("orders")? {
            let (id, quantity) = (number(&order, "order")?, number(&order, "quantity")?);
            let (Some(customer), Some(product)) =
                (customers.get(text(&order, "customer")?), products.get(text(&order, "product")?))
            else {
                joined.waiting.insert(id);
                continue;
            };
            let line = json!({
                "order": id, "customer": customer["name"], "country": customer["country"],
                "product": product["name"], "quantity": quantity, "cents": number(product, "cents")? * quantity,
            });
            joined.lines.insert(id, line);
        }
        Ok(joined)
    }
}

/// The orders that wait in a table.
fn waiting(ran: &Ran<'_>, table: &str) -> anyhow::Result<Vec<i64>> {
    let state = ran.state(table)?;
    let orders = state.values().flat_map(|orders| orders.as_array().into_iter().flatten());
    orders.map(|order| number(&serde_json::from_str(order.as_str().unwrap_or_default())?, "order")).collect()
}

//! Gives each order the names and the price that it refers to: its customer and its product are looked up where two other operators keep them.
//!
//! Customers, products and orders come by sources of their own, and nothing says which is read first. An order whose customer or product is not there yet is
//! sent to whoever owns it, and comes back by a loop when it is: see the example `keep`.
#![warn(missing_docs)]

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use wasmill_sdk::{Config, Context, Description, Function, Json, Record, Reject, UsedTable, Wants};

/// What is kept of a customer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Customer {
    name: String,
    country: String,
}

/// What is kept of a product.
#[derive(Debug, Serialize, Deserialize)]
pub struct Product {
    name: String,
    cents: u64,
}

/// The customers, by their ids.
pub const CUSTOMERS: UsedTable<Json<Customer>> = UsedTable::new("customers");
/// The products, by their ids.
pub const PRODUCTS: UsedTable<Json<Product>> = UsedTable::new("products");

#[derive(Debug, Deserialize)]
struct Order<'a> {
    order: u64,
    #[serde(borrow)]
    customer: Cow<'a, str>,
    #[serde(borrow)]
    product: Cow<'a, str>,
    quantity: u64,
}

/// A line of output: an order with what it refers to.
#[derive(Debug, Serialize)]
struct Line {
    order: u64,
    customer: String,
    country: String,
    product: String,
    quantity: u64,
    cents: u64,
}

/// Joins orders with their customers and products. It keeps nothing itself.
#[derive(Debug)]
pub struct Enrich;

impl Function for Enrich {
    fn describe() -> Description {
        Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")).uses(&CUSTOMERS).uses(&PRODUCTS)
    }

    fn init(_config: Config<'_>) -> Result<Self, String> {
        Ok(Self)
    }

    fn prefetch(&self, record: Record<'_>, wants: &mut Wants<'_>) {
        if let Ok(order) = record.json::<Order<'_>>() {
            wants.lookup(&CUSTOMERS, &*order.customer);
            wants.lookup(&PRODUCTS, &*order.product);
        }
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        let order: Order<'_> = record.json()?;
        let Some(customer) = context.lookup(&CUSTOMERS, &*order.customer)? else {
            return Ok(context.send(&CUSTOMERS, &*order.customer, waiting(record))?);
        };
        let Some(product) = context.lookup(&PRODUCTS, &*order.product)? else {
            return Ok(context.send(&PRODUCTS, &*order.product, waiting(record))?);
        };
        let cents = product.cents.checked_mul(order.quantity);
        let line = Line {
            order: order.order,
            customer: customer.name,
            country: customer.country,
            product: product.name,
            quantity: order.quantity,
            cents: cents.ok_or_else(|| Reject::new("the order's value passes 64 bits"))?,
        };
        context.emit_json(order.order.to_string(), &line)
    }
}

/// The record as one that waits.
fn waiting(record: Record<'_>) -> Vec<u8> {
    [br#"{"waiting":"#, record.value(), b"}"].concat()
}

wasmill_sdk::export!(Enrich);

#[cfg(test)]
mod tests {
    use super::*;
    use wasmill_sdk::testing::{Harness, record};

    fn harness() -> Harness<Enrich> {
        let mut harness = Harness::new("{}");
        harness.other(&CUSTOMERS).put("c1", &Customer { name: "Ada".to_owned(), country: "GB".to_owned() });
        harness.other(&PRODUCTS).put("p1", &Product { name: "tea".to_owned(), cents: 250 });
        harness
    }

    const GOOD: &str = r#"{"order":7,"customer":"c1","product":"p1","quantity":3}"#;

    #[test]
    fn an_order_gets_what_it_refers_to_by_one_lookup_a_table_and_batch() {
        let mut harness = harness();
        let outcome = harness.process([record("7", GOOD), record("7", GOOD)]);
        let line = r#"{"order":7,"customer":"Ada","country":"GB","product":"tea","quantity":3,"cents":750}"#;
        assert_eq!(outcome.texts(), [line, line]);
        assert_eq!((harness.calls().look_up, harness.calls().look_up_many), (2, 0));
    }

    #[test]
    fn an_order_waits_at_whoever_owns_what_is_missing() {
        let mut harness = harness();
        let orders = [
            r#"{"order":8,"customer":"c2","product":"p1","quantity":1}"#,
            r#"{"order":9,"customer":"c1","product":"p2","quantity":1}"#,
        ];
        let outcome = harness.process(orders.map(|order| record("", order)));
        let sent: Vec<_> =
            outcome.sent.iter().map(|sent| (&*sent.table, &*sent.key, String::from_utf8_lossy(&sent.value))).collect();
        assert_eq!(sent[0], ("customers", b"c2".as_slice(), format!(r#"{{"waiting":{}}}"#, orders[0]).into()));
        assert_eq!(sent[1], ("products", b"p2".as_slice(), format!(r#"{{"waiting":{}}}"#, orders[1]).into()));
        assert_eq!(outcome.emitted, []);
    }

    #[test]
    fn an_order_that_cannot_be_read_is_refused_alone() {
        let outcome = harness().process([record("", "{}"), record("7", GOOD)]);
        assert_eq!((outcome.rejected[0].index, outcome.emitted.len()), (0, 1));
    }
}

//! Keeps the latest record of each key for other operators to look up, and holds on to what has come for a key that is not there yet.
//!
//! An operator that misses a key sends what it is working on here, to the key's owner, as `{"waiting": …}`. It gets it back on port `back` when the key is there. The
//! owner works on one record of a key after another, so none is forgotten that comes just when its key does.
#![warn(missing_docs)]

use wasmill_sdk::{Config, Context, Description, Function, Json, Port, Raw, Record, Reject, Table};

/// The latest record of each key, as it came.
pub const LATEST: Table<Raw> = Table::new("latest");
/// What waits for each key, in the order in which it came.
pub const WAITING: Table<Json<Vec<String>>> = Table::new("waiting");
/// Where what has waited goes.
pub const BACK: Port = Port::new("back");

/// The most that may wait for one key.
const WAITING_MAX: usize = 10_000;

/// Keeps the latest record of each key.
#[derive(Debug)]
pub struct Keep;

impl Function for Keep {
    fn describe() -> Description {
        let description = Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        description.table(&LATEST).table(&WAITING).open(&LATEST).port(&BACK)
    }

    fn init(_config: Config<'_>) -> Result<Self, String> {
        Ok(Self)
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        match record.members(["waiting"]) {
            Ok([waiting]) => hold(waiting.bytes(), record, context),
            Err(_) => keep(record, context),
        }
    }
}

fn keep(record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
    context.state(&LATEST)?.put(record.value().to_vec());
    for waiting in context.state(&WAITING)?.delete().unwrap_or_default() {
        context.emit_at(&BACK, record.key(), waiting);
    }
    Ok(())
}

fn hold(waiting: &[u8], record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
    if context.state(&LATEST)?.get().is_some() {
        context.emit_at(&BACK, record.key(), waiting);
        return Ok(());
    }
    let waiting = std::str::from_utf8(waiting)?.to_owned();
    let mut all = context.state(&WAITING)?;
    if all.get().is_some_and(|all| all.len() >= WAITING_MAX) {
        return Err(Reject::new(format_args!("{WAITING_MAX} records wait for the key already")));
    }
    all.or_default().push(waiting);
    Ok(())
}

wasmill_sdk::export!(Keep);

#[cfg(test)]
mod tests {
    use super::*;
    use wasmill_sdk::testing::{Harness, record};

    #[test]
    fn the_latest_record_stays() {
        let mut harness = Harness::<Keep>::new("{}");
        harness.process([record("a", r#"{"n":1}"#), record("b", r#"{"n":2}"#), record("a", r#"{"n":3}"#)]);
        assert_eq!(harness.state(&LATEST, "a"), Some(br#"{"n":3}"#.to_vec()));
        assert_eq!(harness.state(&LATEST, "b"), Some(br#"{"n":2}"#.to_vec()));
    }

    #[test]
    fn what_waits_goes_back_when_its_key_is_there() {
        let mut harness = Harness::<Keep>::new("{}");
        let waiting = |order: u32| record("a", format!(r#"{{"waiting":{{"order":{order}}}}}"#));
        let outcome = harness.process([waiting(1), waiting(2)]);
        assert_eq!(outcome.emitted, []);
        let outcome = harness.process([record("a", r#"{"n":1}"#), waiting(3)]);
        assert_eq!(outcome.texts_at("back"), [r#"{"order":1}"#, r#"{"order":2}"#, r#"{"order":3}"#]);
        assert_eq!((harness.state(&WAITING, "a"), outcome.emitted[0].key_text()), (None, "a".to_owned()));
    }
}

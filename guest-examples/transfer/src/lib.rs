//! Moves money between accounts, each of which may belong to any task: what one loses the other gains, or neither happens.
//!
//! With `overdraft = true` a transfer is two `add`s and needs no look at the accounts: it is right under any isolation. With `overdraft = false` it looks at the payer's
//! balance first, and what it does follows from what it has seen. Under `isolation = "serializable"` the two are one transaction; without it, two
//! transfers could see the same last coin, and both spend it.
#![warn(missing_docs)]

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use wasmill_sdk::{Config, Context, Description, Fixed, Function, Record, Reject, Table, Update, UsedTable, Wants};

/// The balances, in cents. Only declared here: every change goes by [`ACCOUNTS`].
pub const BALANCES: Table<Fixed<i64>> = Table::new("balances");
/// The same table, whichever task owns an account.
pub const ACCOUNTS: UsedTable<Fixed<i64>> = UsedTable::new("accounts");

/// The operator's `config`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Whether accounts may go below zero.
    overdraft: bool,
}

/// What happens to `account`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Event<'a> {
    /// It is opened with so many cents.
    Opens { opens: i64 },
    /// It pays another account so many cents.
    Pays {
        #[serde(borrow)]
        pays: Cow<'a, str>,
        cents: i64,
    },
}

/// A line of output: a transfer that was not made.
#[derive(Debug, Serialize)]
struct Refused<'a> {
    account: &'a str,
    pays: &'a str,
    cents: i64,
    balance: i64,
}

/// Moves money; its input is keyed by the paying account.
#[derive(Debug)]
pub struct Transfer {
    overdraft: bool,
}

impl Function for Transfer {
    fn describe() -> Description {
        Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")).table(&BALANCES).uses(&ACCOUNTS)
    }

    fn init(config: Config<'_>) -> Result<Self, String> {
        let Settings { overdraft } = config.parse()?;
        Ok(Self { overdraft })
    }

    fn prefetch(&self, record: Record<'_>, wants: &mut Wants<'_>) {
        if !self.overdraft {
            wants.lookup(&ACCOUNTS, record.key());
        }
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        match record.json()? {
            Event::Opens { opens } => Ok(context.update(&ACCOUNTS, record.key(), Update::add(opens))?),
            Event::Pays { cents, .. } if cents < 0 => Err(Reject::new("nobody pays less than nothing")),
            Event::Pays { pays, cents } => self.pay(record, &pays, cents, context),
        }
    }
}

impl Transfer {
    fn pay(&self, record: Record<'_>, pays: &str, cents: i64, context: &mut Context) -> Result<(), Reject> {
        let account = record.key_text()?;
        if !self.overdraft {
            let balance = context.lookup(&ACCOUNTS, account)?.unwrap_or_default();
            if balance < cents {
                return context.emit_json(account, &Refused { account, pays, cents, balance });
            }
        }
        context.update(&ACCOUNTS, account, Update::add(-cents))?;
        context.update(&ACCOUNTS, pays, Update::add(cents))?;
        Ok(())
    }
}

wasmill_sdk::export!(Transfer);

#[cfg(test)]
mod tests {
    use super::*;
    use wasmill_sdk::testing::{Change, Harness, Outcome, Values, record};

    fn changes(outcome: &Outcome) -> Vec<(&str, i64)> {
        let cents = |change: &Change| match change {
            Change::Add(Values::S64(cents)) => cents[0],
            change => panic!("{change:?}"),
        };
        outcome.updates.iter().map(|updated| (str::from_utf8(&updated.key).unwrap(), cents(&updated.change))).collect()
    }

    const OPENS: &str = r#"{"account":"ann","opens":500}"#;
    const PAYS: &str = r#"{"account":"ann","pays":"bob","cents":300}"#;

    #[test]
    fn a_transfer_takes_from_one_what_it_gives_to_the_other() {
        let mut harness = Harness::<Transfer>::new(r#"{"overdraft": true}"#);
        let outcome = harness.process([record("ann", OPENS), record("ann", PAYS)]);
        assert_eq!(changes(&outcome), [("ann", 500), ("ann", -300), ("bob", 300)]);
        assert_eq!(harness.calls().look_up, 0);
    }

    #[test]
    fn without_overdraft_only_what_is_there_can_be_paid() {
        let mut harness = Harness::<Transfer>::new(r#"{"overdraft": false}"#);
        harness.other(&ACCOUNTS).put("ann", &299);
        let outcome = harness.process([record("ann", PAYS)]);
        assert_eq!(outcome.texts(), [r#"{"account":"ann","pays":"bob","cents":300,"balance":299}"#]);
        assert_eq!(outcome.updates, []);
        harness.other(&ACCOUNTS).put("ann", &300);
        assert_eq!(changes(&harness.process([record("ann", PAYS)])), [("ann", -300), ("bob", 300)]);
    }

    #[test]
    fn nobody_takes_money_by_paying() {
        let mut harness = Harness::<Transfer>::new(r#"{"overdraft": true}"#);
        let outcome = harness.process([record("ann", r#"{"pays":"bob","cents":-1}"#)]);
        assert_eq!((outcome.rejected.len(), outcome.updates.len()), (1, 0));
    }
}

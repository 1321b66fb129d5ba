//! A function for tests, written with the SDK as users do, that panics on records that hold the word `poison` and passes on all others.

use wasmill_sdk::{Config, Context, Description, Function, Record, Reject};

struct Panicking;

impl Function for Panicking {
    fn describe() -> Description {
        Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
    }

    fn init(_config: Config<'_>) -> Result<Self, String> {
        Ok(Self)
    }

    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
        let text = record.text()?;
        assert!(!text.contains("poison"), "no stomach for `{text}`");
        context.emit(record.key(), text);
        Ok(())
    }
}

wasmill_sdk::export!(Panicking);

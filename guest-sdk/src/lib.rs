//! Write functions for Wasmill in Rust.
//!
//! A function handles one record at a time, with typed state and any number of outputs. The SDK turns that into the few
//! columnar calls by which a component and its host exchange whole batches.
//!
//! ```
//! use wasmill_sdk::{Config, Context, Description, Fixed, Function, Record, Reject, Table};
//!
//! const COUNTS: Table<Fixed<u64>> = Table::new("counts");
//!
//! struct WordCount;
//!
//! impl Function for WordCount {
//!     fn describe() -> Description {
//!         Description::new("word-count", "0.1.0").table(&COUNTS)
//!     }
//!
//!     fn init(_config: Config) -> Result<Self, String> {
//!         Ok(Self)
//!     }
//!
//!     fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
//!         let count = context.state(&COUNTS)?.update(|count| {
//!             *count += 1;
//!             *count
//!         });
//!         context.emit(record.key(), count.to_string());
//!         Ok(())
//!     }
//! }
//!
//! wasmill_sdk::export!(WordCount);
//!
//! use wasmill_sdk::testing::{Harness, record};
//!
//! let mut harness = Harness::<WordCount>::new("{}");
//! let outcome = harness.process([record("tea", ""), record("cup", ""), record("tea", "")]);
//! assert_eq!(outcome.texts(), ["1", "1", "2"]);
//! assert_eq!(harness.state(&COUNTS, "tea"), Some(2));
//! ```
//!
//! A function may also look up and change tables that it does not own:
//!
//! ```
//! use wasmill_sdk::{Config, Context, Description, Fixed, Function, Record, Reject, Update, UsedTable, Wants};
//!
//! const PRICES: UsedTable<Fixed<i64>> = UsedTable::new("prices");
//! const SALES: UsedTable<Fixed<i64>> = UsedTable::new("sales");
//!
//! struct Sell;
//!
//! impl Function for Sell {
//!     fn describe() -> Description {
//!         Description::new("sell", "0.1.0").uses(&PRICES).uses(&SALES)
//!     }
//!
//!     fn init(_config: Config) -> Result<Self, String> {
//!         Ok(Self)
//!     }
//!
//!     fn prefetch(&self, record: Record<'_>, wants: &mut Wants<'_>) {
//!         wants.lookup(&PRICES, record.value());
//!     }
//!
//!     fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject> {
//!         let price = context.lookup(&PRICES, record.value())?.ok_or_else(|| Reject::new("it is not for sale"))?;
//!         context.update(&SALES, record.key(), Update::add(price))?;
//!         Ok(())
//!     }
//! }
//!
//! use wasmill_sdk::testing::{Change, Harness, Values, record};
//!
//! let mut harness = Harness::<Sell>::new("{}");
//! harness.other(&PRICES).put("tea", &3).put("cup", &5);
//! let outcome = harness.process([record("ann", "tea"), record("bob", "yacht"), record("ann", "cup")]);
//! assert_eq!(outcome.rejected[0].reason, "it is not for sale");
//! let changes: Vec<_> = outcome.updates.iter().map(|updated| updated.change.clone()).collect();
//! assert_eq!(changes, [Change::Add(Values::from(3i64)), Change::Add(Values::from(5i64))]);
//! assert_eq!(harness.calls().look_up_many, 1);
//! ```
//!
//! This crate knows the contract (`wit/`), and nothing of the host behind it.
#![warn(missing_docs)]

#[doc(hidden)]
pub mod bindings;
mod column;
mod host;

pub mod codec;
mod config;
mod description;
mod error;
mod keys;
mod migration;
mod scan;

mod record;
mod table;
mod used;

mod context;
mod lookup;
mod output;
mod pages;
mod runner;
mod update;

#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub mod component;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;

pub use crate::bindings::wasmill::operator::log::Level;
pub use crate::codec::{Codec, Fixed, FixedWidth, Json, Raw};
pub use crate::config::Config;
pub use crate::context::{Context, Emitter};
pub use crate::description::{Description, Port};
pub use crate::error::{Reject, StateError};
pub use crate::lookup::Wants;
pub use crate::output::Buffer;
pub use crate::pages::{KeyRange, Scan, prefix};
pub use crate::record::{Record, UpdateOutcome};
pub use crate::scan::Member;
pub use crate::table::{Entry, Table};
pub use crate::update::{Numbers, Update, items};
pub use crate::used::{Consistency, UsedTable};

/// A function over a stream of records. [`export!`] makes a component of it.
pub trait Function: Sized + 'static {
    /// What the function is called and which tables and ports it uses.
    fn describe() -> Description;

    /// Prepares an instance from the operator's `config`. The instance may keep only what follows from `config`: it is
    /// replaced by a fresh one after any failure, and what should last belongs into a table. It must not keep what a record has read for the next one, not even within
    /// a batch: under `isolation = "serializable"` that would be a read that nobody knows of.
    ///
    /// # Errors
    /// What is wrong with `config`; the job stops with this text.
    fn init(config: Config<'_>) -> Result<Self, String>;

    /// Says what [`Function::process`] will look up in tables of others on this record. It is called for all records of a batch before the first is
    /// worked on, so that one call of the host's serves the batch; a key that was not named here costs a call of its own.
    ///
    /// What is not needed in the end costs little, and a record that cannot be read is for `process` to refuse.
    fn prefetch(&self, record: Record<'_>, wants: &mut Wants<'_>) {
        let _ = (record, wants);
    }

    /// Works on one record. All records of one key come to the same instance, in order.
    ///
    /// # Errors
    /// A [`Reject`] refuses the record: all that it has emitted, changed and counted is dropped, and it goes where the operator's
    /// `on-error` sends it. The other records are not affected.
    fn process(&mut self, record: Record<'_>, context: &mut Context) -> Result<(), Reject>;
}

/// Makes a component of a [`Function`]: `wasmill_sdk::export!(WordCount);`. In a native build it does nothing.
#[macro_export]
macro_rules! export {
    ($function:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::bindings::wasmill::operator::{
                description::Descriptor,
                types::{Batch, Column},
            };
            use $crate::component::Instance;

            ::std::thread_local! {
                static INSTANCE: Instance<$function> = const { Instance::new() };
            }

            struct Component;

            impl $crate::bindings::Guest for Component {
                fn describe() -> Descriptor {
                    Instance::<$function>::describe()
                }

                fn init(config: ::std::string::String) -> ::std::result::Result<(), ::std::string::String> {
                    INSTANCE.with(|instance| instance.init(&config))
                }

                fn process(input: Batch) -> ::std::result::Result<(), ::std::string::String> {
                    INSTANCE.with(|instance| instance.process(input))
                }
            }

            impl $crate::bindings::exports::wasmill::operator::migration::Guest for Component {
                fn migrate(
                    table: ::std::string::String,
                    from: u32,
                    keys: Column,
                    values: Column,
                ) -> ::std::result::Result<Column, ::std::string::String> {
                    Instance::<$function>::migrate(&table, from, &keys, &values)
                }
            }

    $crate::bindings::export_operator!(Component with_types_in $crate::bindings);
        };
    };
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// The SDK carries its own copy of the contract, so that it can be copied beside a guest.
    #[test]
    fn the_contract_is_a_copy_of_the_hosts() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let original = here.join("../wit");
        if !original.join("world.wit").exists() {
            return;
        }
        let names = |folder: &Path| {
            let entries = std::fs::read_dir(folder).expect("the folder can be read");
            let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&here.join("wit")), names(&original));
        for name in names(&original) {
            let read = |folder: &Path| std::fs::read_to_string(folder.join(&name)).expect("a WIT file is text");
            assert_eq!(read(&here.join("wit")), read(&original), "copy wit/{} to guest-sdk/wit/", name.display());
        }
    }
}

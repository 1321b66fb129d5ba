//! What a function says of itself: its name, tables and ports.

use std::time::Duration;

use crate::bindings::wasmill::operator::description::{Descriptor, Table as TableDescriptor};
use crate::codec::Codec;
use crate::migration::Migrations;
use crate::table::{AnyCache, Table, new_cache};
use crate::used::UsedTable;

/// A named output beside `out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    pub(crate) name: &'static str,
}

impl Port {
    /// The port that every operator has.
    pub const OUT: Port = Port::new("out");

    /// The port `name`. Declare it in `describe` by [`Description::port`].
    pub const fn new(name: &'static str) -> Self {
        Self { name }
    }
}

/// What a function says of itself.
#[derive(Debug)]
pub struct Description {
    name: &'static str,
    version: &'static str,
    tables: Vec<DeclaredTable>,
    open: Vec<&'static str>,
    ordered: Vec<&'static str>,
    versioned: Vec<(&'static str, u64)>,
    uses: Vec<&'static str>,
    ports: Vec<Port>,
    migrations: Migrations,
}

#[derive(Debug)]
struct DeclaredTable {
    name: &'static str,
    schema_version: u32,
    new_cache: fn(&'static str, bool) -> Box<dyn AnyCache>,
}

impl Description {
    /// A function without tables. Name and version are for people: `Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))`.
    pub fn new(name: &'static str, version: &'static str) -> Self {
        let (tables, ports) = (Vec::new(), Vec::new());
        let (open, ordered, versioned, uses) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let migrations = Migrations::default();
        Self { name, version, tables, open, ordered, versioned, uses, ports, migrations }
    }

    /// Declares a table; only declared tables can be used.
    pub fn table<C: Codec>(mut self, table: &Table<C>) -> Self {
        self.migrations.declare(table.name, table.schema_version);
        self.tables.push(DeclaredTable {
            name: table.name,
            schema_version: table.schema_version,
            new_cache: new_cache::<C>,
        });
        self
    }

    /// Lets other operators look up and change a declared table, where the manifest says so, too.
    pub fn open<C: Codec>(mut self, table: &Table<C>) -> Self {
        self.open.push(table.name);
        self
    }

    /// Keeps a declared table in the order of its keys, so that it can be scanned.
    pub fn ordered<C: Codec>(mut self, table: &Table<C>) -> Self {
        self.ordered.push(table.name);
        self
    }

    /// Keeps earlier values of a declared table by event time, for this span behind each key's newest one. The manifest may set another span.
    ///
    /// What a record writes holds from its event time on, and each record's writes are kept, also where several records of a batch have one key. A record that comes late
    /// writes into the past, and leaves what is newer as it is: so such a table is for values that records bring, not for values that are computed from the newest.
    pub fn versioned<C: Codec>(mut self, table: &Table<C>, span: Duration) -> Self {
        self.versioned.push((table.name, u64::try_from(span.as_millis()).unwrap_or(u64::MAX)));
        self
    }

    /// Says how values of one schema version of a table become those of another: `from` and `to` are the same table at two versions. Steps are put together, so that values of version 1 are
    /// read by a function whose table has version 3 where there are steps from 1 to 2 and from 2 to 3. A step down lets an older version of the function read what a newer one
    /// has left.
    ///
    /// `step` is called in an instance of its own, whenever a value of another version is met, and must always give the same.
    ///
    /// ```
    /// use wasmill_sdk::{Description, Fixed, Json, Table};
    ///
    /// const COUNTS_1: Table<Fixed<u64>> = Table::new("counts");
    /// const COUNTS: Table<Json<Vec<u64>>> = Table::new("counts").schema_version(2);
    ///
    /// let description = Description::new("count", "2.0.0").table(&COUNTS).migrates(&COUNTS_1, &COUNTS, |count| vec![count]);
    /// ```
    pub fn migrates<A: Codec, B: Codec>(
        mut self,
        from: &Table<A>,
        to: &Table<B>,
        step: fn(A::Value) -> B::Value,
    ) -> Self {
        self.migrations.add(from, to, step);
        self
    }

    /// Declares a table that is used beside the function's own. Which one it is stands in the manifest.
    pub fn uses<C: Codec>(mut self, table: &UsedTable<C>) -> Self {
        self.uses.push(table.name);
        self
    }

    /// Declares a port beside `out`; only declared ports can be emitted on.
    pub fn port(mut self, port: &Port) -> Self {
        self.ports.push(*port);
        self
    }

    pub(crate) fn migrations(&self) -> &Migrations {
        &self.migrations
    }

    pub(crate) fn caches(&self) -> Vec<(&'static str, Box<dyn AnyCache>)> {
        let new = |table: &DeclaredTable| (table.name, (table.new_cache)(table.name, self.is_versioned(table.name)));
        self.tables.iter().map(new).collect()
    }

    pub(crate) fn is_versioned(&self, table: &str) -> bool {
        self.versioned.iter().any(|(name, _)| *name == table)
    }

    #[cfg(any(target_arch = "wasm32", test))]
    pub(crate) fn open_tables(&self) -> &[&'static str] {
        &self.open
    }

    #[cfg(any(target_arch = "wasm32", test))]
    pub(crate) fn ordered_tables(&self) -> &[&'static str] {
        &self.ordered
    }

    #[cfg(any(target_arch = "wasm32", test))]
    pub(crate) fn versioned_tables(&self) -> &[(&'static str, u64)] {
        &self.versioned
    }

    pub(crate) fn used(&self) -> &[&'static str] {
        &self.uses
    }

    pub(crate) fn ports(&self) -> &[Port] {
        &self.ports
    }

    pub(crate) fn into_descriptor(self) -> Descriptor {
        Descriptor {
            name: self.name.to_owned(),
            version: self.version.to_owned(),
            tables: self
                .tables
                .iter()
                .map(|table| TableDescriptor { name: table.name.to_owned(), schema_version: table.schema_version })
                .collect(),
            ports: self.ports.iter().map(|port| port.name.to_owned()).collect(),
        }
    }
}

//! What a function says of itself: its name, tables and ports.

use crate::bindings::wasmill::operator::description::{Descriptor, Table as TableDescriptor};
use crate::codec::Codec;
use crate::table::{AnyCache, Table, new_cache};

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
    ports: Vec<Port>,
}

#[derive(Debug)]
struct DeclaredTable {
    name: &'static str,
    schema_version: u32,
    new_cache: fn(&'static str) -> Box<dyn AnyCache>,
}

impl Description {
    /// A function without tables. Name and version are for people: `Description::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))`.
    pub fn new(name: &'static str, version: &'static str) -> Self {
        Self { name, version, tables: Vec::new(), ports: Vec::new() }
    }

    /// Declares a table; only declared tables can be used.
    pub fn table<C: Codec>(mut self, table: &Table<C>) -> Self {
        self.tables.push(DeclaredTable {
            name: table.name,
            schema_version: table.schema_version,
            new_cache: new_cache::<C>,
        });
        self
    }

    /// Declares a port beside `out`; only declared ports can be emitted on.
    pub fn port(mut self, port: &Port) -> Self {
        self.ports.push(*port);
        self
    }

    pub(crate) fn caches(&self) -> Vec<(&'static str, Box<dyn AnyCache>)> {
        self.tables.iter().map(|table| (table.name, (table.new_cache)(table.name))).collect()
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

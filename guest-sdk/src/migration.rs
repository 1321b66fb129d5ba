//! Values that another version of the function has written: the steps between versions, and the way from any of them to the present one.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::bindings::wasmill::operator::types::Column;
use crate::codec::Codec;
use crate::table::Table;

type Bytes = Box<dyn Fn(&[u8]) -> Result<Vec<u8>, String>>;

/// One step from a version of a table to another.
struct Step {
    table: &'static str,
    from: u32,
    to: u32,
    make: Bytes,
}

/// All steps of a function, and the versions that its tables have.
#[derive(Default)]
pub(crate) struct Migrations {
    steps: Vec<Step>,
    tables: BTreeMap<&'static str, u32>,
}

impl fmt::Debug for Migrations {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.steps.iter().map(|step| (step.table, step.from, step.to))).finish()
    }
}

impl Migrations {
    /// The version that a table has.
    pub(crate) fn declare(&mut self, table: &'static str, schema_version: u32) {
        self.tables.insert(table, schema_version);
    }

    pub(crate) fn add<A: Codec, B: Codec>(&mut self, from: &Table<A>, to: &Table<B>, step: fn(A::Value) -> B::Value) {
        assert_eq!(from.name, to.name, "a step leads from one version of a table to another of the same table");
        let make = move |value: &[u8]| {
            let mut made = Vec::new();
            B::encode(&step(A::decode(value)?), &mut made)?;
            Ok(made)
        };
        let (table, from, to) = (from.name, from.schema_version, to.schema_version);
        self.steps.push(Step { table, from, to, make: Box::new(make) });
    }

    /// The tables with each version from which there is a way to the present one.
    #[cfg(any(target_arch = "wasm32", test))]
    pub(crate) fn sources(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.tables.iter().flat_map(|(&table, &to)| {
            self.ways_to(table, to).into_keys().filter(move |from| *from != to).map(move |from| (table, from))
        })
    }

    /// Values of version `from` as the present version has them.
    pub(crate) fn migrate(&self, table: &str, from: u32, keys: &Column, values: &Column) -> Result<Column, String> {
        let to = *self.tables.get(table).ok_or_else(|| format!("there is no table `{table}`"))?;
        let ways = self.ways_to(table, to);
        let mut made = Column::empty();
        for index in 0..values.len() {
            let failed = |error| {
                let key = keys.get(index).escape_ascii();
                format!("the value of `{key}` in table `{table}`, of schema version {from}: {error}")
            };
            let (mut version, mut value) = (from, values.get(index).to_vec());
            while version != to {
                let step = ways.get(&version).and_then(|step| *step);
                let step = step.ok_or_else(|| failed(format!("there is no way from version {version} to {to}")))?;
                value = (step.make)(&value).map_err(failed)?;
                version = step.to;
            }
            made.push(&value);
        }
        Ok(made)
    }

    /// The first step of the shortest way to version `to` of a table, by where it begins; none for `to` itself.
    fn ways_to(&self, table: &str, to: u32) -> BTreeMap<u32, Option<&Step>> {
        let mut ways = BTreeMap::from([(to, None)]);
        let mut open = VecDeque::from([to]);
        while let Some(reached) = open.pop_front() {
            for step in self.steps.iter().filter(|step| step.table == table && step.to == reached) {
                if let std::collections::btree_map::Entry::Vacant(way) = ways.entry(step.from) {
                    way.insert(Some(step));
                    open.push_back(step.from);
                }
            }
        }
        ways
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Description, Fixed, Json};

    const ONE: Table<Fixed<u64>> = Table::new("counts");
    const TWO: Table<Fixed<(u64, u64)>> = Table::new("counts").schema_version(2);
    const THREE: Table<Json<Vec<u64>>> = Table::new("counts").schema_version(3);

    fn column(items: &[&[u8]]) -> Column {
        let mut column = Column::empty();
        items.iter().for_each(|item| column.push(item));
        column
    }

    #[test]
    fn steps_are_put_together_and_lead_down_as_well_as_up() {
        let steps = |description: Description| {
            let description = description.migrates(&ONE, &TWO, |count| (count, 0));
            description
                .migrates(&TWO, &THREE, |(count, more)| vec![count, more])
                .migrates(&TWO, &ONE, |(count, _)| count)
        };
        let newest = steps(Description::new("f", "3").table(&THREE));
        assert_eq!(newest.migrations().sources().collect::<Vec<_>>(), [("counts", 1), ("counts", 2)]);
        let keys = column(&[b"k"]);
        let made = newest.migrations().migrate("counts", 1, &keys, &column(&[&7u64.to_le_bytes()])).unwrap();
        assert_eq!(made.get(0), b"[7,0]");
        let oldest = steps(Description::new("f", "1").table(&ONE));
        assert_eq!(oldest.migrations().sources().collect::<Vec<_>>(), [("counts", 2)]);
        let error = newest.migrations().migrate("counts", 1, &keys, &column(&[b"short"])).unwrap_err();
        assert!(error.contains("`k` in table `counts`, of schema version 1: 5 bytes where 8"), "{error}");
        assert!(newest.migrations().migrate("counts", 9, &keys, &column(&[b""])).is_err());
    }
}

//! Updates of tables of others: what a function asks for, gathered into few calls until the batch ends.

use std::fmt;

use crate::bindings::wasmill::operator::tables::{Op, Outcomes};
use crate::bindings::wasmill::operator::types::{Column, OptionalColumn};
use crate::codec::Codec;
use crate::description::Port;
use crate::error::host_error_text;
use crate::host::Host;
use crate::table::Failure;

/// A change of a key's value in a table that others own: see [`Context::update`](crate::Context::update). The owner applies it to whatever value it
/// finds by then.
///
/// Values are those of the table's codec. Numbers go with [`Fixed`](crate::Fixed) tables of the same type, and arrays of it.
pub struct Update<'v, C: Codec> {
    change: Change<'v, C::Value>,
}

enum Change<'v, V> {
    Put(&'v V),
    PutIfAbsent(&'v V),
    Delete,
    CompareAndPut { expected: Option<&'v V>, value: Option<&'v V> },
    Combine(Combine, Numbers<'v>),
    Append { item: &'v [u8], items_max: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Combine {
    Add,
    Min,
    Max,
}

impl<'v, C: Codec> Update<'v, C> {
    /// Sets the value.
    pub fn put(value: &'v C::Value) -> Self {
        Self { change: Change::Put(value) }
    }

    /// Sets the value where there is none.
    pub fn put_if_absent(value: &'v C::Value) -> Self {
        Self { change: Change::PutIfAbsent(value) }
    }

    /// Removes the value.
    pub fn delete() -> Self {
        Self { change: Change::Delete }
    }

    /// Sets the value (or removes it, with `None`) where it equals `expected` (`None`: where there is none). Values are compared as they are encoded.
    pub fn compare_and_put(expected: Option<&'v C::Value>, value: Option<&'v C::Value>) -> Self {
        Self { change: Change::CompareAndPut { expected, value } }
    }

    /// Adds to a number, or to each number of a vector. Where there is no value, it becomes what is added. An integer that overflows fails at the owner.
    pub fn add(numbers: impl Into<Numbers<'v>>) -> Self {
        Self { change: Change::Combine(Combine::Add, numbers.into()) }
    }

    /// Keeps the lesser number. Where there is no value, it becomes this one.
    pub fn min(numbers: impl Into<Numbers<'v>>) -> Self {
        Self { change: Change::Combine(Combine::Min, numbers.into()) }
    }

    /// Keeps the greater number. Where there is no value, it becomes this one.
    pub fn max(numbers: impl Into<Numbers<'v>>) -> Self {
        Self { change: Change::Combine(Combine::Max, numbers.into()) }
    }

    /// Appends an item, and drops the oldest while there are more than `items_max` (at least 1). The value is then what [`items`] reads.
    pub fn append(item: &'v [u8], items_max: u32) -> Self {
        Self { change: Change::Append { item, items_max: items_max.max(1) } }
    }
}

impl<C: Codec> fmt::Debug for Update<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Update").field("op", &self.change.op()).finish_non_exhaustive()
    }
}

/// A number, or a vector of them: an `i64`, `f32` or `f64`, or a reference to a slice, an array or a `Vec` of them.
#[derive(Debug, Clone, Copy)]
pub struct Numbers<'v>(Vector<'v>);

#[derive(Debug, Clone, Copy)]
enum Vector<'v> {
    S64(Few<'v, i64>),
    F32(Few<'v, f32>),
    F64(Few<'v, f64>),
}

#[derive(Debug, Clone, Copy)]
enum Few<'v, N> {
    One(N),
    Many(&'v [N]),
}

impl<N> Few<'_, N> {
    fn as_slice(&self) -> &[N] {
        match self {
            Self::One(number) => std::slice::from_ref(number),
            Self::Many(numbers) => numbers,
        }
    }
}

macro_rules! numbers {
    ($($number:ty => $vector:ident,)*) => {$(
        impl From<$number> for Numbers<'_> {
            fn from(number: $number) -> Self {
                Self(Vector::$vector(Few::One(number)))
            }
        }

        impl<'v> From<&'v [$number]> for Numbers<'v> {
            fn from(numbers: &'v [$number]) -> Self {
                Self(Vector::$vector(Few::Many(numbers)))
            }
        }

        impl<'v> From<&'v Vec<$number>> for Numbers<'v> {
            fn from(numbers: &'v Vec<$number>) -> Self {
                Self(Vector::$vector(Few::Many(numbers)))
            }
        }

        impl<'v, const N: usize> From<&'v [$number; N]> for Numbers<'v> {
            fn from(numbers: &'v [$number; N]) -> Self {
                Self(Vector::$vector(Few::Many(numbers)))
            }
        }
    )*};
}

numbers! { i64 => S64, f32 => F32, f64 => F64, }

impl Numbers<'_> {
    fn write(&self, buffer: &mut Vec<u8>) {
        match &self.0 {
            Vector::S64(numbers) => buffer.extend(numbers.as_slice().iter().flat_map(|number| number.to_le_bytes())),
            Vector::F32(numbers) => buffer.extend(numbers.as_slice().iter().flat_map(|number| number.to_le_bytes())),
            Vector::F64(numbers) => buffer.extend(numbers.as_slice().iter().flat_map(|number| number.to_le_bytes())),
        }
    }
}

/// What is done, without with what: updates that agree in it go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Put,
    PutIfAbsent,
    Delete,
    CompareAndPut,
    S64(Combine),
    F32(Combine),
    F64(Combine),
    Append(u32),
}

impl<V> Change<'_, V> {
    fn op(&self) -> Kind {
        match self {
            Self::Put(_) => Kind::Put,
            Self::PutIfAbsent(_) => Kind::PutIfAbsent,
            Self::Delete => Kind::Delete,
            Self::CompareAndPut { .. } => Kind::CompareAndPut,
            Self::Combine(combine, Numbers(Vector::S64(_))) => Kind::S64(*combine),
            Self::Combine(combine, Numbers(Vector::F32(_))) => Kind::F32(*combine),
            Self::Combine(combine, Numbers(Vector::F64(_))) => Kind::F64(*combine),
            Self::Append { items_max, .. } => Kind::Append(*items_max),
        }
    }
}

impl Kind {
    /// The operation of `update-many`; none for the one that has a call of its own.
    fn op(self) -> Option<Op> {
        use Combine::{Add, Max, Min};
        Some(match self {
            Self::Put => Op::Put,
            Self::PutIfAbsent => Op::PutIfAbsent,
            Self::Delete => Op::Delete,
            Self::S64(Add) => Op::AddS64,
            Self::S64(Min) => Op::MinS64,
            Self::S64(Max) => Op::MaxS64,
            Self::F32(Add) => Op::AddF32,
            Self::F32(Min) => Op::MinF32,
            Self::F32(Max) => Op::MaxF32,
            Self::F64(Add) => Op::AddF64,
            Self::F64(Min) => Op::MinF64,
            Self::F64(Max) => Op::MaxF64,
            Self::Append(items_max) => Op::Append(items_max),
            Self::CompareAndPut => return None,
        })
    }
}

/// An outcome that a function asks for.
pub(crate) struct Asked<'a> {
    pub(crate) port: Port,
    pub(crate) key: &'a [u8],
    pub(crate) tag: &'a [u8],
}

/// Updates of one table by the same operation, in their order.
struct Run {
    table: &'static str,
    kind: Kind,
    keys: Column,
    /// Empty for deletions.
    values: OptionalColumn,
    /// For [`Kind::CompareAndPut`] only.
    expected: OptionalColumn,
    records: Vec<u32>,
    outcomes: Option<Outcomes>,
}

impl Run {
    fn new(table: &'static str, kind: Kind, port: Option<Port>) -> Self {
        let outcomes =
            port.map(|port| Outcomes { port: port.name.to_owned(), keys: Column::empty(), values: Column::empty() });
        let (values, expected) = (OptionalColumn::empty(), OptionalColumn::empty());
        Self { table, kind, keys: Column::empty(), values, expected, records: Vec::new(), outcomes }
    }

    fn asks_on(&self, port: Option<Port>) -> bool {
        self.outcomes.as_ref().map(|outcomes| outcomes.port.as_str()) == port.map(|port| port.name)
    }

    /// Where an encoding fails, nothing has been added.
    fn push<C: Codec>(&mut self, change: &Change<'_, C::Value>) -> Result<(), String> {
        match change {
            Change::Put(value) | Change::PutIfAbsent(value) => self.values.push_encoded::<C>(Some(value)),
            Change::CompareAndPut { expected, value } => {
                self.expected.push_encoded::<C>(*expected)?;
                self.values.push_encoded::<C>(*value).inspect_err(|_| self.expected.pop())
            }
            Change::Combine(_, numbers) => {
                numbers.write(&mut self.values.items.bytes);
                self.values.end_item(true);
                Ok(())
            }
            Change::Append { item, .. } => {
                self.values.items.bytes.extend_from_slice(item);
                self.values.end_item(true);
                Ok(())
            }
            Change::Delete => Ok(()),
        }
    }

    fn undo(&mut self, record: u32) {
        while self.records.last() == Some(&record) {
            self.records.pop();
            self.keys.pop();
            self.values.pop();
            self.expected.pop();
            if let Some(outcomes) = &mut self.outcomes {
                outcomes.keys.pop();
                outcomes.values.pop();
            }
        }
    }

    fn hand_over(&self, host: &dyn Host) -> Result<(), Failure> {
        let Self { table, kind, keys, values, expected, records, outcomes } = self;
        let outcomes = outcomes.as_ref();
        let handed = match kind.op() {
            Some(op) => host.update_many(table, keys, &op, &values.items, records, outcomes),
            None => host.compare_and_put_many(table, keys, expected, values, records, outcomes),
        };
        handed.map_err(|error| Failure {
            record: None,
            reason: format!("failed to update table `{table}`: {}", host_error_text(error)),
        })
    }
}

impl OptionalColumn {
    fn push_encoded<C: Codec>(&mut self, value: Option<&C::Value>) -> Result<(), String> {
        if let Some(value) = value {
            C::encode(value, &mut self.items.bytes).inspect_err(|_| self.items.abandon_item())?;
        }
        self.end_item(value.is_some());
        Ok(())
    }

    fn end_item(&mut self, is_present: bool) {
        self.items.end_item();
        self.present.push(u8::from(is_present));
    }
}

/// The updates of a batch.
#[derive(Default)]
pub(crate) struct Updates {
    runs: Vec<Run>,
}

impl Updates {
    /// Adds an update. Updates of one table keep their order; those of different tables have none.
    ///
    /// # Errors
    /// When a value has no encoding; nothing has been added then.
    pub(crate) fn add<C: Codec>(
        &mut self,
        table: &'static str,
        record: u32,
        key: &[u8],
        update: &Update<'_, C>,
        asked: Option<Asked<'_>>,
    ) -> Result<(), String> {
        let run = self.run(table, update.change.op(), asked.as_ref().map(|asked| asked.port));
        run.push::<C>(&update.change)?;
        run.keys.push(key);
        run.records.push(record);
        if let (Some(outcomes), Some(asked)) = (&mut run.outcomes, asked) {
            outcomes.keys.push(asked.key);
            outcomes.values.push(asked.tag);
        }
        Ok(())
    }

    /// The last run of the table, if it is of this kind, or a new one.
    fn run(&mut self, table: &'static str, kind: Kind, port: Option<Port>) -> &mut Run {
        let last = self.runs.iter().rposition(|run| std::ptr::eq(run.table, table) || run.table == table);
        let fitting = last.filter(|&last| self.runs[last].kind == kind && self.runs[last].asks_on(port));
        let index = fitting.unwrap_or_else(|| {
            self.runs.push(Run::new(table, kind, port));
            self.runs.len() - 1
        });
        &mut self.runs[index]
    }

    /// Takes back the updates of `record`, the current one.
    pub(crate) fn undo(&mut self, record: u32) {
        self.runs.iter_mut().for_each(|run| run.undo(record));
        while self.runs.pop_if(|run| run.records.is_empty()).is_some() {}
    }

    pub(crate) fn hand_over(&self, host: &dyn Host) -> Result<(), Failure> {
        self.runs.iter().filter(|run| !run.records.is_empty()).try_for_each(|run| run.hand_over(host))
    }

    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }
}

/// The items of a value that [`Update::append`] has made, the oldest first. An item that is cut short, as none of such a value is, ends them.
///
/// ```
/// let value = [2, 0, 0, 0, b'h', b'i', 0, 0, 0, 0];
/// let items: Vec<&[u8]> = wasmill_sdk::items(&value).collect();
/// assert_eq!(items, [b"hi".as_slice(), b""]);
/// ```
pub fn items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = value;
    std::iter::from_fn(move || {
        let (length, behind) = rest.split_first_chunk()?;
        let (item, after) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = after;
        Some(item)
    })
}

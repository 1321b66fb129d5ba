//! Tables of others in a test: filled by it, and what the function does to them.

use std::fmt;
use std::marker::PhantomData;

use super::memory::MemoryHost;
use crate::bindings::wasmill::operator::tables::Op;
use crate::codec::Codec;
use crate::used::UsedTable;

/// A table that the function uses beside its own: see [`Harness::other`](super::Harness::other).
pub struct OtherTable<'h, C> {
    host: &'h MemoryHost,
    table: &'static str,
    codec: PhantomData<fn() -> C>,
}

impl<'h, C: Codec> OtherTable<'h, C> {
    pub(super) fn new(host: &'h MemoryHost, table: &UsedTable<C>) -> Self {
        let name = table.name();
        assert!(
            host.is_used(name),
            "the function does not declare that it uses `{name}`: add `.uses(&…)` to `describe`"
        );
        Self { host, table: name, codec: PhantomData }
    }

    /// Sets the newest value of `key`.
    ///
    /// # Panics
    /// When the value has no encoding.
    pub fn put(self, key: impl AsRef<[u8]>, value: &C::Value) -> Self {
        let bytes = self.encoded(value);
        self.put_bytes(key, bytes)
    }

    /// Sets the value that `key` has from an event time on (milliseconds since the Unix epoch), until a later one: for a table whose owner keeps it versioned.
    ///
    /// # Panics
    /// When the value has no encoding.
    pub fn put_at(self, key: impl AsRef<[u8]>, time: i64, value: &C::Value) -> Self {
        let bytes = self.encoded(value);
        self.set(key.as_ref(), Some(time), Some(bytes))
    }

    /// Sets the stored bytes of `key`.
    pub fn put_bytes(self, key: impl AsRef<[u8]>, bytes: impl Into<Vec<u8>>) -> Self {
        self.set(key.as_ref(), None, Some(bytes.into()))
    }

    /// Removes the value of `key`.
    pub fn delete(self, key: impl AsRef<[u8]>) -> Self {
        self.set(key.as_ref(), None, None)
    }

    /// Removes the value of `key` from an event time on, until a later value.
    pub fn delete_at(self, key: impl AsRef<[u8]>, time: i64) -> Self {
        self.set(key.as_ref(), Some(time), None)
    }

    /// Says how far the table's owner has come in event time. Unless a test says so, it has come to the end of time, and nobody waits for it.
    pub fn reached(self, time: i64) -> Self {
        self.host.set_reached(self.table, time);
        self
    }

    fn encoded(&self, value: &C::Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        C::encode(value, &mut bytes)
            .unwrap_or_else(|error| panic!("a value of table `{}` has no encoding: {error}", self.table));
        bytes
    }

    fn set(self, key: &[u8], time: Option<i64>, value: Option<Vec<u8>>) -> Self {
        let is_set = self.host.set_other(self.table, key, time, value);
        assert!(is_set, "that the table is declared was seen when this was made");
        self
    }
}

impl<C> fmt::Debug for OtherTable<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OtherTable").field(&self.table).finish()
    }
}

/// An update that the function has made.
#[derive(Debug, Clone, PartialEq)]
pub struct Updated {
    /// What the function calls the table.
    pub table: String,
    /// The key.
    pub key: Vec<u8>,
    /// What is to become of its value.
    pub change: Change,
    /// The outcome that comes back, if the function asks for it.
    pub asked: Option<Asked>,
    /// The place of the record that caused it, in what was given to [`Harness::process`](super::Harness::process).
    pub cause: usize,
}

/// An outcome that the function asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The port that it comes on.
    pub port: String,
    /// Its key.
    pub key: Vec<u8>,
    /// What comes back with it.
    pub tag: Vec<u8>,
}

/// What is to become of a value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "named as the constructors of `Update` are")]
pub enum Change {
    Put(Vec<u8>),
    PutIfAbsent(Vec<u8>),
    Delete,
    CompareAndPut { expected: Option<Vec<u8>>, value: Option<Vec<u8>> },
    Add(Values),
    Min(Values),
    Max(Values),
    Append { item: Vec<u8>, items_max: u32 },
}

/// The numbers of an update, one for a value that is a single number.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "named by what they hold")]
pub enum Values {
    S64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

macro_rules! values {
    ($($number:ty => $kind:ident,)*) => {$(
        impl From<$number> for Values {
            fn from(number: $number) -> Self {
                Self::$kind(vec![number])
            }
        }

        impl<const N: usize> From<[$number; N]> for Values {
            fn from(numbers: [$number; N]) -> Self {
                Self::$kind(numbers.into())
            }
        }
    )*};
}

values! { i64 => S64, f32 => F32, f64 => F64, }

impl Change {
    /// Whether an operand fits its operation.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn check(op: &Op, operand: &[u8]) -> Result<(), String> {
        let width = match op {
            Op::AddS64 | Op::MinS64 | Op::MaxS64 | Op::AddF64 | Op::MinF64 | Op::MaxF64 => 8,
            Op::AddF32 | Op::MinF32 | Op::MaxF32 => 4,
            Op::Append(0) => return Err("`append` keeps at least 1 item, not 0".to_owned()),
            _ => 1,
        };
        match operand.len() % width {
            0 => Ok(()),
            _ => Err(format!("a value of {} bytes is no vector of numbers of {width} bytes", operand.len())),
        }
    }

    /// The change by an operation of `update-many`, whose operand has been checked.
    pub(super) fn of(op: &Op, operand: &[u8]) -> Self {
        let s64 = || Values::S64(numbers(operand, i64::from_le_bytes));
        let f32 = || Values::F32(numbers(operand, f32::from_le_bytes));
        let f64 = || Values::F64(numbers(operand, f64::from_le_bytes));
        match op {
            Op::Put => Self::Put(operand.to_vec()),
            Op::PutIfAbsent => Self::PutIfAbsent(operand.to_vec()),
            Op::Delete => Self::Delete,
            Op::AddS64 => Self::Add(s64()),
            Op::AddF32 => Self::Add(f32()),
            Op::AddF64 => Self::Add(f64()),
            Op::MinS64 => Self::Min(s64()),
            Op::MaxS64 => Self::Max(s64()),
            Op::MinF32 => Self::Min(f32()),
            Op::MaxF32 => Self::Max(f32()),
            Op::MinF64 => Self::Min(f64()),
            Op::MaxF64 => Self::Max(f64()),
            Op::Append(items_max) => Self::Append { item: operand.to_vec(), items_max: *items_max },
            Op::Other(name) => unreachable!("the SDK knows no operation `{name}`"),
        }
    }
}

fn numbers<N, const WIDTH: usize>(bytes: &[u8], read: fn([u8; WIDTH]) -> N) -> Vec<N> {
    bytes.as_chunks::<WIDTH>().0.iter().map(|chunk| read(*chunk)).collect()
}

/// A record that the function has sent to the owner of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// What the function calls the table.
    pub table: String,
    /// The key.
    pub key: Vec<u8>,
    /// The record itself.
    pub value: Vec<u8>,
    /// The event time, in milliseconds since the Unix epoch.
    pub time: Option<i64>,
    /// The place of the record that caused it, in what was given to [`Harness::process`](super::Harness::process).
    pub cause: usize,
}

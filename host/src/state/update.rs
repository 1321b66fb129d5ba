//! Updates: changes of a key's value that depend on the value it finds. Pure.
//!
//! An update is sent to the owner of its key, who applies it between two batches. What it does is decided by [`change`] alone, so that updates of
//! every language, and a replay after a crash, come to the same value.
//!
//! This file knows nothing of tables, of owners or of how updates travel.
//!
//! # Numbers
//!
//! A value of `n` numbers of `w` bytes has `n * w` bytes; the operand has as many, and each pair is combined alone. Sums of floats are those of
//! IEEE 754, one rounding a sum, and a sum that is no number is written as the quiet NaN without sign and payload: which bits the hardware makes of it differs
//! from one processor to another.
//!
//! The least and the greatest are found by one order over all floats: by value, -0 before +0, and everything that is no number behind infinity. So `max` keeps a
//! NaN and `min` never does. (The `totalOrder` of IEEE 754 looks at a NaN's sign, which is the hardware's choice.) Of two NaN the value stays.
//!
//! # Items
//!
//! A value that `append` made is a sequence of items, the oldest first: the length of each as a little-endian number of 32 bits, then its bytes.

use std::cmp::Ordering;

use crate::record::Column;

/// The most bytes of a value that an update may leave behind.
pub const VALUE_BYTES_MAX: usize = 16 << 20;

/// What an update does to a value. Numbers are little-endian; a value of several is a vector, changed number by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Sets the value.
    Put,
    /// Sets the value where there is none.
    PutIfAbsent,
    /// Removes the value.
    Delete,
    /// Sets or removes the value where it equals what is expected.
    CompareAndPut,
    /// Adds numbers.
    Add(Number),
    /// Keeps the lesser of each two numbers.
    Min(Number),
    /// Keeps the greater of each two numbers.
    Max(Number),
    /// Appends an item, and drops the oldest while there are more than `items_max`.
    Append {
        /// The most items that stay, at least 1.
        items_max: u32,
    },
}

/// How numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// Signed integers of 64 bits.
    S64,
    /// Floats of 32 bits.
    F32,
    /// Floats of 64 bits.
    F64,
}

impl Number {
    /// Its bytes.
    pub fn width(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::S64 | Self::F64 => size_of::<f64>(),
        }
    }
}

/// Updates of one table, all by the same operation, in the order in which they apply.
#[derive(Debug, Clone, PartialEq)]
pub struct Updates {
    /// What is done.
    pub op: Op,
    /// To which keys.
    pub keys: Column,
    /// With what: new values, operands, or items. `None` for an item that removes its key's value.
    pub operands: Operands,
    /// What [`Op::CompareAndPut`] expects; empty for every other operation.
    pub expected: Operands,
    /// The event times of the records that cause them. Empty where the table keeps no versions.
    pub times: Vec<i64>,
}

impl Updates {
    /// What update `index` makes of `current`: [`change`] with what belongs to it.
    ///
    /// # Errors
    /// As [`change`].
    ///
    /// # Panics
    /// When `index` is not less than the number of keys.
    pub fn change(&self, index: usize, current: Option<&[u8]>, buffer: &mut Vec<u8>) -> Result<Changed, UpdateError> {
        let expected = if self.op == Op::CompareAndPut { self.expected.get(index) } else { None };
        change(self.op, expected, self.operands.get(index), current, buffer)
    }
}

/// Byte strings of which some may be absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operands {
    /// The items, empty where absent.
    pub items: Column,
    /// Whether each item is there. Empty where all are.
    pub present: Vec<bool>,
}

impl Operands {
    /// Item `index`, if it is there.
    ///
    /// # Panics
    /// When `index` is not less than the number of items.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        self.present.get(index).is_none_or(|&present| present).then(|| self.items.get(index))
    }
}

/// What one update comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// The value is what the buffer now holds.
    To,
    /// The value is removed, or was absent before.
    Removed,
    /// The condition does not hold: the value stays as it is.
    Not,
}

/// Why an update does not fit the value that it finds. Completes "an update of key `k` failed: …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// Vectors of different lengths, or a value that is no vector of such numbers.
    #[error(
        "the value has {value} bytes and the operand {operand}; both must be vectors of equally many {width}-byte numbers"
    )]
    Width {
        /// Bytes of the value.
        value: usize,
        /// Bytes of the operand.
        operand: usize,
        /// Bytes of a number.
        width: usize,
    },
    /// A sum of integers that 64 bits cannot hold.
    #[error("the sum passes 64 bits")]
    Overflow,
    /// The value is no sequence of items with their lengths before them.
    #[error("the value is no sequence of items; `append` needs one that `append` began")]
    Items,
    /// The value would pass the limit of one value.
    #[error("the value would have {bytes} bytes; at most {bytes_max} are allowed")]
    TooLarge {
        /// Bytes that it would have.
        bytes: usize,
        /// The most that it may.
        bytes_max: usize,
    },
}

/// What an update by `op` makes of `current`. For [`Changed::To`], `buffer` holds the new value; what it held before is lost in any case.
///
/// `expected` is looked at for [`Op::CompareAndPut`] only. An `operand` of `None` removes the value where one would be put, and counts as an
/// empty one for operations that combine.
///
/// # Errors
/// When the operation does not fit the value that it finds, or the value would pass [`VALUE_BYTES_MAX`].
pub fn change(
    op: Op,
    expected: Option<&[u8]>,
    operand: Option<&[u8]>,
    current: Option<&[u8]>,
    buffer: &mut Vec<u8>,
) -> Result<Changed, UpdateError> {
    buffer.clear();
    let combined = operand.unwrap_or_default();
    match op {
        Op::Put => put(operand, buffer),
        Op::PutIfAbsent if current.is_some() => Ok(Changed::Not),
        Op::PutIfAbsent => put(operand, buffer),
        Op::Delete => Ok(Changed::Removed),
        Op::CompareAndPut if current != expected => Ok(Changed::Not),
        Op::CompareAndPut => put(operand, buffer),
        Op::Add(Number::S64) => combine(combined, current, buffer, i64::checked_add),
        Op::Add(Number::F32) => combine(combined, current, buffer, sum_f32),
        Op::Add(Number::F64) => combine(combined, current, buffer, sum_f64),
        Op::Min(Number::S64) => combine(combined, current, buffer, lesser::<i64>),
        Op::Min(Number::F32) => combine(combined, current, buffer, lesser::<f32>),
        Op::Min(Number::F64) => combine(combined, current, buffer, lesser::<f64>),
        Op::Max(Number::S64) => combine(combined, current, buffer, greater::<i64>),
        Op::Max(Number::F32) => combine(combined, current, buffer, greater::<f32>),
        Op::Max(Number::F64) => combine(combined, current, buffer, greater::<f64>),
        Op::Append { items_max } => append(items_max, combined, current.unwrap_or_default(), buffer),
    }
}

fn put(value: Option<&[u8]>, buffer: &mut Vec<u8>) -> Result<Changed, UpdateError> {
    let Some(value) = value else { return Ok(Changed::Removed) };
    check_size(value.len())?;
    buffer.extend_from_slice(value);
    Ok(Changed::To)
}

fn check_size(bytes: usize) -> Result<(), UpdateError> {
    if bytes > VALUE_BYTES_MAX {
        return Err(UpdateError::TooLarge { bytes, bytes_max: VALUE_BYTES_MAX });
    }
    Ok(())
}

/// Combines the value with the operand, number by number; where there is no value, the operand becomes it.
fn combine<N: Arithmetic>(
    operand: &[u8],
    current: Option<&[u8]>,
    buffer: &mut Vec<u8>,
    by: impl Fn(N, N) -> Option<N>,
) -> Result<Changed, UpdateError> {
    let value = current.unwrap_or(operand);
    if value.len() != operand.len() || !operand.len().is_multiple_of(N::WIDTH) {
        return Err(UpdateError::Width { value: value.len(), operand: operand.len(), width: N::WIDTH });
    }
    check_size(operand.len())?;
    if current.is_none() {
        buffer.extend_from_slice(operand);
        return Ok(Changed::To);
    }
    buffer.reserve(value.len());
    for (value, operand) in value.chunks_exact(N::WIDTH).zip(operand.chunks_exact(N::WIDTH)) {
        by(N::read(value), N::read(operand)).ok_or(UpdateError::Overflow)?.write(buffer);
    }
    Ok(Changed::To)
}

fn lesser<N: Arithmetic>(value: N, operand: N) -> Option<N> {
    Some(if operand.order(value).is_lt() { operand } else { value })
}

fn greater<N: Arithmetic>(value: N, operand: N) -> Option<N> {
    Some(if operand.order(value).is_gt() { operand } else { value })
}

/// A number of a vector.
trait Arithmetic: Copy {
    /// Its bytes.
    const WIDTH: usize;

    /// The number that `bytes`, [`Arithmetic::WIDTH`] of them, stand for.
    fn read(bytes: &[u8]) -> Self;

    /// Appends its bytes.
    fn write(self, buffer: &mut Vec<u8>);

    /// Where it stands in the order of all numbers of its kind.
    fn order(self, other: Self) -> Ordering;
}

macro_rules! arithmetic {
    ($number:ty, $order:expr) => {
        impl Arithmetic for $number {
            const WIDTH: usize = size_of::<$number>();

            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("chunks have the width of a number"))
            }

            fn write(self, buffer: &mut Vec<u8>) {
                buffer.extend_from_slice(&self.to_le_bytes());
            }

            fn order(self, other: Self) -> Ordering {
                let order: fn(Self, Self) -> Ordering = $order;
                order(self, other)
            }
        }
    };
}

arithmetic!(i64, |a, b| a.cmp(&b));
arithmetic!(f32, |a, b| a.is_nan().cmp(&b.is_nan()).then(if a.is_nan() { Ordering::Equal } else { a.total_cmp(&b) }));
arithmetic!(f64, |a, b| a.is_nan().cmp(&b.is_nan()).then(if a.is_nan() { Ordering::Equal } else { a.total_cmp(&b) }));

/// Sums of floats with the same bits on every processor.
macro_rules! sum {
    ($name:ident, $number:ty, $nan:literal) => {
        fn $name(a: $number, b: $number) -> Option<$number> {
            let sum = a + b;
            Some(if sum.is_nan() { <$number>::from_bits($nan) } else { sum })
        }
    };
}

sum!(sum_f32, f32, 0x7fc0_0000);
sum!(sum_f64, f64, 0x7ff8_0000_0000_0000);

/// Bytes of the length before an item.
const ITEM_LENGTH_BYTES: usize = size_of::<u32>();

fn append(items_max: u32, item: &[u8], current: &[u8], buffer: &mut Vec<u8>) -> Result<Changed, UpdateError> {
    let starts = item_starts(current)?;
    let kept_max = (items_max.max(1) - 1) as usize;
    let dropped = starts.len().saturating_sub(kept_max);
    let kept = &current[starts.get(dropped).copied().unwrap_or(current.len())..];
    check_size(kept.len() + ITEM_LENGTH_BYTES + item.len())?;
    let length = u32::try_from(item.len()).expect("the size has been checked");
    buffer.extend_from_slice(kept);
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(item);
    Ok(Changed::To)
}

/// Where each item begins, with the length before it.
fn item_starts(value: &[u8]) -> Result<Vec<usize>, UpdateError> {
    let mut starts = Vec::new();
    let mut rest = value;
    while !rest.is_empty() {
        starts.push(value.len() - rest.len());
        let (length, behind) = rest.split_first_chunk().ok_or(UpdateError::Items)?;
        rest = behind.get(u32::from_le_bytes(*length) as usize..).ok_or(UpdateError::Items)?;
    }
    Ok(starts)
}

#[cfg(test)]
mod tests;

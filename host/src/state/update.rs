//! Updates: changes of a key's value that depend on the value it finds. Pure.
//!
//! An update is sent to the owner of its key, who applies it between two batches. What it does is decided by [`change`] alone, so that every
//! language, the native test host and a replay after a crash come to the same value.

use crate::record::Column;

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

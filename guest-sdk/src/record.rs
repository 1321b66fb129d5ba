//! One record, as a function sees it.

use serde::Deserialize;

use crate::bindings::wasmill::operator::types::Batch;
use crate::column::NO_TIME;
use crate::error::Reject;
use crate::scan::{Member, members};

/// One record. It borrows from the batch that brought it, so it is free to copy.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    key: &'a [u8],
    value: &'a [u8],
    time: i64,
}

/// What has become of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateOutcome<'a> {
    /// Whether it has changed the value; else its condition did not hold.
    pub changed: bool,
    /// What was given along with the update.
    pub tag: &'a [u8],
}

impl<'a> Record<'a> {
    pub(crate) fn of(batch: &'a Batch, index: usize) -> Self {
        Self { key: batch.keys.get(index), value: batch.values.get(index), time: batch.times[index] }
    }

    /// What the stream is partitioned by; empty where the input has no key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The key as text.
    ///
    /// # Errors
    /// When it is not UTF-8.
    pub fn key_text(&self) -> Result<&'a str, Reject> {
        std::str::from_utf8(self.key).map_err(|error| Reject::new(format_args!("the key is not UTF-8: {error}")))
    }

    /// The record itself.
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// The value as text.
    ///
    /// # Errors
    /// When it is not UTF-8.
    pub fn text(&self) -> Result<&'a str, Reject> {
        std::str::from_utf8(self.value).map_err(|error| Reject::new(format_args!("the value is not UTF-8: {error}")))
    }

    /// The value read as JSON. Types that borrow (`&str`, `Cow<str>` with `#[serde(borrow)]`) save copies; a `&str` cannot hold a string
    /// with escapes, a `Cow` can.
    ///
    /// # Errors
    /// When the value is not JSON, or does not fit `T`.
    pub fn json<T: Deserialize<'a>>(&self) -> Result<T, Reject> {
        serde_json::from_slice(self.value)
            .map_err(|error| Reject::new(format_args!("the value is not the JSON that is expected: {error}")))
    }

    /// The members `names` of the value, a JSON object, each as it is written there. Several times as fast as [`Record::json`] where
    /// little of a record is needed, because the rest is stepped over, and not looked at behind the last of `names`: broken JSON there goes
    /// unnoticed. Of several members of one name the first counts; names written with escapes are not recognised.
    ///
    /// ```
    /// # use wasmill_sdk::{Record, Reject};
    /// fn price(record: Record<'_>) -> Result<u64, Reject> {
    ///     let [price] = record.members(["price"])?;
    ///     price.json()
    /// }
    /// ```
    ///
    /// # Errors
    /// When one is missing, and when the value is no JSON object as far as it was scanned.
    pub fn members<const N: usize>(&self, names: [&str; N]) -> Result<[Member<'a>; N], Reject> {
        members(self.value, names)
    }

    /// The event time in milliseconds since the Unix epoch, if the record has one.
    pub fn time(&self) -> Option<i64> {
        (self.time != NO_TIME).then_some(self.time)
    }

    /// The record read as the outcome of an update that was asked for by [`Context::update_asking`](crate::Context::update_asking).
    ///
    /// # Errors
    /// When it is no outcome.
    pub fn outcome(&self) -> Result<UpdateOutcome<'a>, Reject> {
        match self.value.split_first() {
            Some((byte @ (0 | 1), tag)) => Ok(UpdateOutcome { changed: *byte == 1, tag }),
            _ => Err(Reject::new("the record is no outcome of an update")),
        }
    }

    pub(crate) fn raw_time(&self) -> i64 {
        self.time
    }
}

//! What the core needs of its host, so that the same core runs in a component and in a native test.

use crate::bindings::wasmill::operator::log::Level;
use crate::bindings::wasmill::operator::tables::{Op, Outcomes, Page};
use crate::bindings::wasmill::operator::types::{Batch, Column, Error, OptionalColumn};
use crate::used::Consistency;

/// The imports of the world `operator`, one method each; see `wit/` for what they promise.
pub(crate) trait Host {
    fn get_many(&self, table: &str, keys: &Column) -> Result<OptionalColumn, Error>;
    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;
    fn put_many(&self, table: &str, keys: &Column, values: &Column, records: &[u32]) -> Result<(), Error>;
    fn delete_many(&self, table: &str, keys: &Column, records: &[u32]) -> Result<(), Error>;
    fn look_up_many(&self, table: &str, keys: &Column, consistency: Consistency) -> Result<OptionalColumn, Error>;
    fn look_up(&self, table: &str, key: &[u8], consistency: Consistency) -> Result<Option<Vec<u8>>, Error>;
    fn look_up_many_at(&self, table: &str, keys: &Column, times: &[i64], wait: bool) -> Result<OptionalColumn, Error>;
    fn scan(
        &self,
        table: &str,
        from: &[u8],
        to: Option<&[u8]>,
        limit: u32,
        consistency: Consistency,
    ) -> Result<Page, Error>;
    fn update_many(
        &self,
        table: &str,
        keys: &Column,
        op: &Op,
        values: &Column,
        records: &[u32],
        outcomes: Option<&Outcomes>,
    ) -> Result<(), Error>;
    fn compare_and_put_many(
        &self,
        table: &str,
        keys: &Column,
        expected: &OptionalColumn,
        values: &OptionalColumn,
        records: &[u32],
        outcomes: Option<&Outcomes>,
    ) -> Result<(), Error>;
    fn send(&self, table: &str, sent: &Batch, records: &[u32]) -> Result<(), Error>;
    fn emit(&self, port: &str, emitted: &Batch, records: &[u32]) -> Result<(), Error>;
    fn log(&self, level: Level, message: &str);
    fn count(&self, name: &str, by: u64);
    fn count_many(&self, name: &str, by: &[u64], records: &[u32]);
    fn gauge(&self, name: &str, value: f64);
    fn gauge_many(&self, name: &str, values: &[f64], records: &[u32]);
    fn reject(&self, record: u32, reason: &str);
    fn begin_record(&self, record: u32);
    fn is_apart(&self) -> bool;
    fn read_for(&self, records: &[u32]);
}

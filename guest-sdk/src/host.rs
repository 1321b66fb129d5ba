//! What the core needs of its host, so that the same core runs in a component and in a native test.

use crate::bindings::wasmill::operator::log::Level;
use crate::bindings::wasmill::operator::types::{Batch, Column, Error, OptionalColumn};

/// The imports of the world `operator`, one method each; see `wit/` for what they promise.
pub(crate) trait Host {
    fn get_many(&self, table: &str, keys: &Column) -> Result<OptionalColumn, Error>;
    fn get(&self, table: &str, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;
    fn put_many(&self, table: &str, keys: &Column, values: &Column, records: &[u32]) -> Result<(), Error>;
    fn delete_many(&self, table: &str, keys: &Column, records: &[u32]) -> Result<(), Error>;
    fn emit(&self, port: &str, emitted: &Batch, records: &[u32]) -> Result<(), Error>;
    fn log(&self, level: Level, message: &str);
    fn count(&self, name: &str, by: u64);
    fn gauge(&self, name: &str, value: f64);
    fn reject(&self, record: u32, reason: &str);
    fn begin_record(&self, record: u32);
}

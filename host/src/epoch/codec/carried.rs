//! How carried-over records lie in an entry: see the format in the parent's doc.

use std::io;
use std::sync::Arc;

use super::super::entry::Carried;
use super::{Cursor, DecodeError, DigestWriter, invalid, too_large};
use crate::record::{Batch, Column};

pub(super) fn length(carried: &Carried) -> u64 {
    let batch = &carried.batch;
    (2 + carried.operator.len() + 4 + 16 * batch.len() + batch.byte_len()) as u64
}

pub(super) fn encode(writer: &mut DigestWriter<'_>, carried: &Carried) -> io::Result<()> {
    let batch = &carried.batch;
    let name_length = u16::try_from(carried.operator.len()).map_err(|_| too_large("bytes in an operator's name"))?;
    let records = u32::try_from(batch.len()).map_err(|_| too_large("records carried over"))?;
    writer.put(&name_length.to_le_bytes())?;
    writer.put(carried.operator.as_bytes())?;
    writer.put(&records.to_le_bytes())?;
    for time in &batch.times {
        writer.put(&time.to_le_bytes())?;
    }
    for end in batch.keys.ends().iter().chain(batch.values.ends()) {
        writer.put(&end.to_le_bytes())?;
    }
    writer.put(batch.keys.bytes())?;
    writer.put(batch.values.bytes())
}

pub(super) fn decode(mut rest: Cursor<'_>) -> Result<Carried, DecodeError> {
    let name_length = rest.u16()?;
    let name = std::str::from_utf8(rest.take(usize::from(name_length))?)
        .map_err(|_| invalid("the name of an operator is not UTF-8"))?;
    let operator = Arc::from(name);
    let records = rest.u32()? as usize;
    let mut times_left = Cursor(rest.items(records, 8)?);
    let times = (0..records).map(|_| Ok(times_left.u64()? as i64)).collect::<Result<_, DecodeError>>()?;
    let key_ends = ends(&mut rest, records)?;
    let value_ends = ends(&mut rest, records)?;
    let keys = column(&mut rest, key_ends)?;
    let values = column(&mut rest, value_ends)?;
    if !rest.0.is_empty() {
        return Err(invalid("there are bytes behind the last record carried over"));
    }
    Ok(Carried { operator, batch: Arc::new(Batch { keys, values, times }) })
}

fn ends(rest: &mut Cursor<'_>, records: usize) -> Result<Vec<u32>, DecodeError> {
    let mut ends = Cursor(rest.items(records, 4)?);
    (0..records).map(|_| ends.u32()).collect()
}

fn column(rest: &mut Cursor<'_>, ends: Vec<u32>) -> Result<Column, DecodeError> {
    let bytes = rest.take(ends.last().copied().unwrap_or_default() as usize)?.to_vec();
    Column::from_parts(bytes, ends).map_err(|_| invalid("the records carried over have ends that decrease"))
}

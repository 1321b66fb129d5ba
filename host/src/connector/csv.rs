//! Comma-separated values with a header line as records (RFC 4180).
//!
//! `csv-core` decides where fields and records end, also across line feeds within quotes; this file keeps its output and makes records of it.

use csv_core::ReadRecordResult;
use memchr::memchr_iter;

use super::extract::parse_time;
use super::parsing::{BAD_BYTES_MAX, BYTE_ORDER_MARK, bad_record, too_long};
use super::window::{Filled, StreamPosition, Window};
use super::{BadRecord, ConnectorError, ReadOutcome, SplitReader};
use crate::epoch::entry::Position;
use crate::manifest::{CsvValue, TimeFormat};
use crate::record::{Batch, NO_TIME};

/// Where key and time lie in a CSV record, and what its value is.
#[derive(Debug, Clone)]
pub struct CsvFields {
    key: Option<String>,
    time: Option<String>,
    time_format: TimeFormat,
    value: CsvValue,
}

impl CsvFields {
    /// Key (a column's name, or `.` for the whole line) and time (a column's name), and what the value is.
    pub fn new(key: Option<&str>, time: Option<&str>, time_format: TimeFormat, value: CsvValue) -> Self {
        Self { key: key.map(str::to_owned), time: time.map(str::to_owned), time_format, value }
    }
}

/// A stream's columns, and where those that matter lie.
#[derive(Debug, Clone)]
pub struct Header {
    /// `"name":` as it stands in a JSON object, for each column.
    members: Vec<Vec<u8>>,
    key: Key,
    time: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Key {
    None,
    Whole,
    Column(usize),
}

impl Header {
    fn new(names: &[&str], fields: &CsvFields, stream: &str) -> Result<Self, ConnectorError> {
        let refuse = |problem: String| {
            let columns = names.join("`, `");
            Err(ConnectorError::Input(format!("read `{stream}`: {problem}; its header has the columns `{columns}`")))
        };
        let place = |name: &str| names.iter().position(|column| *column == name);
        let key = match fields.key.as_deref() {
            None => Key::None,
            Some(".") => Key::Whole,
            Some(name) => match place(name) {
                Some(column) => Key::Column(column),
                None => return refuse(format!("there is no column `{name}`, which the source's `key` names")),
            },
        };
        let time = match fields.time.as_deref() {
            None => None,
            Some(name) => match place(name) {
                Some(column) => Some(column),
                None => return refuse(format!("there is no column `{name}`, which the source's `time` names")),
            },
        };
        let repeated = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name));
        if let (Some((_, name)), CsvValue::Json) = (repeated, fields.value) {
            return refuse(format!("the column `{name}` occurs twice; rename one, or set `csv-value = \"raw\"`"));
        }
        let members = names.iter().map(|name| [&json_string(name), b":".as_slice()].concat()).collect();
        Ok(Self { members, key, time })
    }
}

/// A split of comma-separated values.
pub struct CsvReader {
    name: String,
    window: Window,
    fields: CsvFields,
    record_bytes_max: usize,
    header: Option<Header>,
    core: csv_core::Reader,
    current: Current,
    discarding: Option<Discarding>,
    ended: bool,
}

/// The record being read.
#[derive(Default)]
struct Current {
    /// The bytes of the window's rest that `csv-core` has seen.
    scanned: usize,
    /// The fields' contents, one after another.
    output: Vec<u8>,
    output_length: usize,
    ends: Vec<usize>,
    ends_length: usize,
    /// The fields whose ends were dropped because there are more than columns.
    surplus: usize,
}

/// A record that is too long, being passed over.
struct Discarding {
    bad: BadRecord,
    from: StreamPosition,
}

enum Next {
    Record,
    Quiet,
    End,
}

impl CsvReader {
    /// A reader of the stream `name` from where `window` stands. `header` is the stream's if the window is not at its start.
    ///
    /// # Errors
    /// None yet; the header is read with the first record.
    pub fn new(
        name: &str,
        window: Window,
        fields: CsvFields,
        record_bytes_max: usize,
        header: Option<Header>,
    ) -> Result<Self, ConnectorError> {
        Ok(Self {
            name: name.to_owned(),
            window,
            fields,
            record_bytes_max,
            header,
            core: csv_core::Reader::new(),
            current: Current::default(),
            discarding: None,
            ended: false,
        })
    }

    /// The header of the stream that `window` stands at the start of, or `None` when it has none yet.
    ///
    /// # Errors
    /// When reading fails, or the header lacks a column.
    pub fn read_header(
        name: &str,
        window: Window,
        fields: &CsvFields,
        record_bytes_max: usize,
    ) -> Result<Option<Header>, ConnectorError> {
        let mut reader = Self::new(name, window, fields.clone(), record_bytes_max, None)?;
        reader.ensure_header()?;
        Ok(reader.header)
    }

    /// Reads the header if it has not been read. Otherwise returns why there is none.
    fn ensure_header(&mut self) -> Result<Option<Next>, ConnectorError> {
        if self.header.is_some() {
            return Ok(None);
        }
        match self.next(false)? {
            Next::Record => {}
            other => return Ok(Some(other)),
        }
        if self.discarding.is_some() {
            return Err(ConnectorError::Input(format!(
                "read the header of `{}`: {}",
                self.name,
                too_long(self.record_bytes_max)
            )));
        }
        let names: Option<Vec<&str>> = self.current.fields().map(|field| std::str::from_utf8(field).ok()).collect();
        let names = names
            .ok_or_else(|| ConnectorError::Input(format!("read the header of `{}`: it is not UTF-8", self.name)))?;
        self.header = Some(Header::new(&names, &self.fields, &self.name)?);
        self.consume_current();
        Ok(None)
    }

    /// Completes the record that begins at the window's rest. With `hasty` it does not wait for bytes.
    fn next(&mut self, hasty: bool) -> Result<Next, ConnectorError> {
        self.skip_byte_order_mark()?;
        loop {
            let mut at_end = false;
            if self.window.rest().len() == self.current.scanned {
                if hasty {
                    return Ok(Next::Quiet);
                }
                match self.window.more()? {
                    Filled::Bytes(_) => {}
                    Filled::Nothing => return Ok(Next::Quiet),
                    Filled::End => at_end = true,
                }
            }
            match self.current.scan(&mut self.core, self.window.rest(), at_end) {
                ReadRecordResult::Record => return Ok(Next::Record),
                ReadRecordResult::End => return Ok(Next::End),
                ReadRecordResult::OutputFull => self.current.grow_output(),
                ReadRecordResult::OutputEndsFull => {
                    self.current.grow_ends(self.header.as_ref().map(|header| header.members.len()))
                }
                ReadRecordResult::InputEmpty => {}
            }
            self.discard_if_too_long();
        }
    }

    fn skip_byte_order_mark(&mut self) -> Result<(), ConnectorError> {
        if self.window.offset() > 0 || self.current.scanned > 0 {
            return Ok(());
        }
        while self.window.rest().len() < BYTE_ORDER_MARK.len() {
            if !matches!(self.window.more()?, Filled::Bytes(_)) {
                return Ok(());
            }
        }
        if self.window.rest().starts_with(BYTE_ORDER_MARK) {
            self.current.scanned = BYTE_ORDER_MARK.len();
        }
        Ok(())
    }

    fn discard_if_too_long(&mut self) {
        let scanned = self.current.scanned;
        if self.discarding.is_none() && scanned <= self.record_bytes_max + BYTE_ORDER_MARK.len() {
            return;
        }
        if self.discarding.is_none() {
            let bad = self.bad(too_long(self.record_bytes_max));
            self.discarding = Some(Discarding { bad, from: self.window.position() });
        }
        let lines = line_feeds(&self.window.rest()[..scanned]);
        self.window.consume(scanned, lines);
        self.current.clear();
    }

    fn bad(&self, error: String) -> BadRecord {
        let raw = self.raw();
        let bytes = &raw[..raw.len().min(BAD_BYTES_MAX)];
        bad_record(&self.name, self.window.line() + 1, self.window.offset(), bytes, error)
    }

    /// The current record as it stands in the stream, without what ends it.
    fn raw(&self) -> &[u8] {
        let raw = &self.window.rest()[..self.current.scanned];
        let start = raw.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(raw.len());
        let end = raw.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(start, |last| last + 1);
        &raw[start..end]
    }

    fn consume_current(&mut self) {
        let rest = self.window.rest();
        let mut length = self.current.scanned;
        // `csv-core` ends a record at the carriage return.
        if length > 0 && rest[length - 1] == b'\r' && rest.get(length) == Some(&b'\n') {
            length += 1;
        }
        let lines = line_feeds(&rest[..length]);
        self.window.consume(length, lines);
        self.current.clear();
    }

    /// Hands out the current record.
    fn take(&mut self, batch: &mut Batch, bad: &mut Vec<BadRecord>) {
        if let Some(discarding) = self.discarding.take() {
            bad.push(discarding.bad);
        } else if let Err(error) = self.push(batch) {
            batch.keys.abandon_item();
            batch.values.abandon_item();
            bad.push(self.bad(error));
        }
        self.consume_current();
    }

    /// Adds the current record to `batch`; on an error it may leave unfinished items.
    fn push(&self, batch: &mut Batch) -> Result<(), String> {
        let header = self.header.as_ref().expect("records are read behind the header");
        let found = self.current.surplus + self.current.ends_length;
        if found != header.members.len() {
            return Err(format!("the record has {found} fields, but the header has {}", header.members.len()));
        }
        let time = match header.time {
            None => NO_TIME,
            Some(column) => parse_time(self.current.field(column), self.fields.time_format).map_err(|error| {
                format!("read the time `{}`: {error}", self.fields.time.as_deref().unwrap_or_default())
            })?,
        };
        match self.fields.value {
            CsvValue::Raw => batch.values.building().extend_from_slice(self.raw()),
            CsvValue::Json => self.write_object(header, batch.values.building())?,
        }
        batch.values.end_item();
        batch.keys.push(match header.key {
            Key::None => b"",
            Key::Whole => self.raw(),
            Key::Column(column) => self.current.field(column),
        });
        batch.times.push(time);
        Ok(())
    }

    fn write_object(&self, header: &Header, out: &mut Vec<u8>) -> Result<(), String> {
        for (index, (member, field)) in header.members.iter().zip(self.current.fields()).enumerate() {
            let text = std::str::from_utf8(field).map_err(|_| format!("field {} is not UTF-8", index + 1))?;
            out.push(if index == 0 { b'{' } else { b',' });
            out.extend_from_slice(member);
            serde_json::to_writer(&mut *out, text).expect("writing a string to memory cannot fail");
        }
        out.push(b'}');
        Ok(())
    }
}

impl Current {
    fn scan(&mut self, core: &mut csv_core::Reader, rest: &[u8], at_end: bool) -> ReadRecordResult {
        let input = if at_end { &[] } else { &rest[self.scanned..] };
        let (output, ends) = (&mut self.output[self.output_length..], &mut self.ends[self.ends_length..]);
        let (result, read, written, ended) = core.read_record(input, output, ends);
        self.scanned += read;
        self.output_length += written;
        self.ends_length += ended;
        result
    }

    fn grow_output(&mut self) {
        self.output.resize((2 * self.output.len()).max(1 << 10), 0);
    }

    /// More ends than columns serve nothing: the record is bad, and only their number is kept.
    fn grow_ends(&mut self, columns: Option<usize>) {
        match columns {
            Some(columns) if self.ends.len() > columns => {
                self.surplus += self.ends_length;
                self.ends_length = 0;
            }
            _ => self.ends.resize((2 * self.ends.len()).max(32), 0),
        }
    }

    fn field(&self, column: usize) -> &[u8] {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.output[start..self.ends[column]]
    }

    fn fields(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends_length).map(|column| self.field(column))
    }

    fn clear(&mut self) {
        (self.scanned, self.output_length, self.ends_length, self.surplus) = (0, 0, 0, 0);
    }
}

impl SplitReader for CsvReader {
    fn read(
        &mut self,
        records_max: usize,
        bytes_max: usize,
        batch: &mut Batch,
        bad: &mut Vec<BadRecord>,
    ) -> Result<ReadOutcome, ConnectorError> {
        if self.ended {
            return Ok(ReadOutcome::End);
        }
        let (mut records, from) = (0, self.window.offset());
        let without_header = self.ensure_header()?;
        if let Some(outcome) = without_header {
            self.ended = matches!(outcome, Next::End);
            return Ok(if self.ended { ReadOutcome::End } else { ReadOutcome::Idle });
        }
        while records < records_max && ((self.window.offset() - from) as usize) < bytes_max {
            let hasty = records > 0 && self.window.is_live();
            match self.next(hasty)? {
                Next::Record => self.take(batch, bad),
                Next::Quiet if hasty => return Ok(ReadOutcome::More),
                Next::Quiet => return Ok(ReadOutcome::Idle),
                Next::End => {
                    bad.extend(self.discarding.take().map(|discarding| discarding.bad));
                    self.consume_current();
                    self.ended = true;
                    return Ok(ReadOutcome::End);
                }
            }
            records += 1;
        }
        Ok(ReadOutcome::More)
    }

    fn position(&self) -> Position {
        match &self.discarding {
            Some(discarding) => discarding.from.to_position(),
            None => self.window.position().to_position(),
        }
    }

    fn bytes_read(&self) -> u64 {
        self.window.raw_bytes()
    }
}

fn line_feeds(bytes: &[u8]) -> u64 {
    memchr_iter(b'\n', bytes).count() as u64
}

fn json_string(text: &str) -> Vec<u8> {
    serde_json::to_vec(text).expect("a string is JSON")
}

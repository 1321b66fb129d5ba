//! What a source makes of its bytes: format, key, event time, limits. Shared by the sources that read bytes.

use super::csv::{CsvFields, CsvReader, Header};
use super::extract::JsonPointer;
use super::lines::{LineReader, LineRules};
use super::window::Window;
use super::{BadRecord, ConnectorError, SplitReader};
use crate::manifest::{self, Format, TimeFormat};
use crate::record::{Batch, NO_TIME};

/// The most bytes of a bad record that are kept with it.
pub const BAD_BYTES_MAX: usize = 64 << 10;

/// The UTF-8 byte order mark, left out at the start of a stream.
pub const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// How records are read from a byte stream.
#[derive(Debug, Clone)]
pub struct Parsing {
    /// The longest record accepted, in bytes.
    pub record_bytes_max: usize,
    /// What a record is.
    pub rules: Rules,
}

/// What a record is, and where its key and time lie.
#[derive(Debug, Clone)]
pub enum Rules {
    /// Lines, of JSON or of anything.
    Lines(LineRules),
    /// Comma-separated values with a header.
    Csv(CsvFields),
}

/// Where key and time lie in a JSON record.
#[derive(Debug, Clone, Default)]
pub struct JsonFields {
    /// The key's place.
    pub key: Option<JsonPointer>,
    /// The event time's place.
    pub time: Option<JsonPointer>,
    /// How the time is written.
    pub time_format: TimeFormat,
}

impl JsonFields {
    /// Where the manifest says that key and time lie.
    ///
    /// # Errors
    /// [`ConnectorError::Settings`] when a text is no pointer.
    pub fn parse(key: Option<&str>, time: Option<&str>, time_format: TimeFormat) -> Result<Self, ConnectorError> {
        let pointer = |text: Option<&str>, field| {
            text.map(JsonPointer::parse)
                .transpose()
                .map_err(|error| ConnectorError::Settings(format!("read the source's `{field}`: {error}")))
        };
        Ok(Self { key: pointer(key, "key")?, time: pointer(time, "time")?, time_format })
    }

    /// Adds the record `json` to `batch` whole, or says what is wrong with it and adds nothing.
    ///
    /// # Errors
    /// What is wrong with the record, for people.
    #[inline]
    pub fn push(&self, json: &[u8], batch: &mut Batch) -> Result<(), String> {
        let time = match &self.time {
            None => NO_TIME,
            Some(pointer) => {
                pointer.time(json, self.time_format).map_err(|error| format!("read the time `{pointer}`: {error}"))?
            }
        };
        match &self.key {
            None => batch.keys.push(b""),
            Some(pointer) => {
                pointer.key_into(json, &mut batch.keys).map_err(|error| format!("read the key `{pointer}`: {error}"))?
            }
        }
        batch.values.push(json);
        batch.times.push(time);
        Ok(())
    }
}

impl Parsing {
    /// How the manifest's file source reads.
    ///
    /// # Errors
    /// [`ConnectorError::Settings`] when key or time do not fit the format.
    pub fn of_file(source: &manifest::FileSource) -> Result<Self, ConnectorError> {
        let fields = (source.key.as_deref(), source.time.as_deref(), source.time_format);
        Self::new(source.format, fields, source.csv_value, source.record_max)
    }

    /// How the manifest's standard input reads.
    ///
    /// # Errors
    /// As [`Parsing::of_file`].
    pub fn of_stdin(source: &manifest::StdinSource) -> Result<Self, ConnectorError> {
        let fields = (source.key.as_deref(), source.time.as_deref(), source.time_format);
        Self::new(source.format, fields, source.csv_value, source.record_max)
    }

    fn new(
        format: Format,
        (key, time, time_format): (Option<&str>, Option<&str>, TimeFormat),
        csv_value: manifest::CsvValue,
        record_max: manifest::ByteSize,
    ) -> Result<Self, ConnectorError> {
        let rules = match format {
            Format::Jsonl => Rules::Lines(LineRules::Json(JsonFields::parse(key, time, time_format)?)),
            Format::Lines => Rules::Lines(LineRules::Any(whole_line_key(key, time)?)),
            Format::Csv => Rules::Csv(CsvFields::new(key, time, time_format, csv_value)),
        };
        // A batch column holds less than 4 GiB, so a record may not come near.
        let record_bytes_max = record_max.0.min(1 << 30) as usize;
        Ok(Self { record_bytes_max, rules })
    }

    /// A reader of the stream `name`. `header` is that of a CSV stream which does not stand at its start.
    ///
    /// # Errors
    /// When a header does not have the columns needed.
    pub fn reader(
        &self,
        name: &str,
        window: Window,
        header: Option<Header>,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        Ok(match &self.rules {
            Rules::Lines(rules) => Box::new(LineReader::new(name, window, rules.clone(), self.record_bytes_max)),
            Rules::Csv(fields) => {
                Box::new(CsvReader::new(name, window, fields.clone(), self.record_bytes_max, header)?)
            }
        })
    }
}

fn whole_line_key(key: Option<&str>, time: Option<&str>) -> Result<bool, ConnectorError> {
    if let Some(time) = time {
        return Err(ConnectorError::Settings(format!(
            "read the source's `time = \"{time}\"`: lines have no fields; use `format = \"jsonl\"` or `\"csv\"`, or leave it out"
        )));
    }
    match key {
        None => Ok(false),
        Some(".") => Ok(true),
        Some(key) => Err(ConnectorError::Settings(format!(
            "read the source's `key = \"{key}\"`: lines have no fields; write `key = \".\"` for the whole line, or use \
             `format = \"jsonl\"` or `\"csv\"`"
        ))),
    }
}

/// A bad record at `line` (counted from 1) and `offset` of the stream `name`.
#[cold]
pub fn bad_record(name: &str, line: u64, offset: u64, bytes: &[u8], error: String) -> BadRecord {
    let bytes = bytes[..bytes.len().min(BAD_BYTES_MAX)].to_vec();
    BadRecord { place: format!("{name}:{line}, byte {offset}"), error, bytes }
}

/// What is said of a record that is too long.
pub fn too_long(record_bytes_max: usize) -> String {
    format!("the record is longer than `record-max` ({record_bytes_max} bytes)")
}

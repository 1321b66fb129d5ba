//! How records are written: as they are, as JSON lines, as comma-separated values.

use std::io::Write;

use serde::de::{Deserialize, IgnoredAny};

use super::ConnectorError;
use super::extract::JsonPointer;
use crate::manifest::OutputFormat;
use crate::record::{Batch, Column, NO_TIME};

/// Turns records into lines.
#[derive(Debug, Clone)]
pub struct Encoder {
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Raw,
    Jsonl,
    Csv(Vec<(String, CsvColumn)>),
}

#[derive(Debug, Clone)]
enum CsvColumn {
    Key,
    Time,
    Value,
    Field(JsonPointer),
}

impl Encoder {
    /// An encoder as the manifest's `format` and `columns` describe it.
    ///
    /// # Errors
    /// [`ConnectorError::Settings`] when the columns do not fit the format, or one is neither a pointer nor `key`, `time`, `value`.
    pub fn new(format: OutputFormat, columns: &[String]) -> Result<Self, ConnectorError> {
        let refuse = |text: &str| Err(ConnectorError::Settings(format!("write the sink's format: {text}")));
        match (format, columns) {
            (OutputFormat::Csv, []) => refuse("`format = \"csv\"` needs `columns`, such as `[\"key\", \"/price\"]`"),
            (OutputFormat::Csv, columns) => {
                let columns = columns.iter().map(|column| Ok((column.clone(), csv_column(column)?)));
                Ok(Self { kind: Kind::Csv(columns.collect::<Result<_, ConnectorError>>()?) })
            }
            (_, [_, ..]) => refuse("`columns` belongs to `format = \"csv\"`; remove it or change the format"),
            (OutputFormat::Raw, []) => Ok(Self { kind: Kind::Raw }),
            (OutputFormat::Jsonl, []) => Ok(Self { kind: Kind::Jsonl }),
        }
    }

    /// The ending of the names of files in this format.
    pub fn ending(&self) -> &'static str {
        match self.kind {
            Kind::Raw => "txt",
            Kind::Jsonl => "jsonl",
            Kind::Csv(_) => "csv",
        }
    }

    /// What stands at the start of a file: the header of comma-separated values, with the last name of each pointer.
    pub fn header(&self) -> Vec<u8> {
        let Kind::Csv(columns) = &self.kind else { return Vec::new() };
        let mut out = Vec::new();
        let names = columns.iter().map(|(name, _)| name.rsplit('/').next().unwrap_or(name));
        write_csv(&mut out, |writer| writer.write_record(names));
        out
    }

    /// Appends the records of `batch`, each with a line feed behind it.
    pub fn encode(&self, batch: &Batch, out: &mut Vec<u8>) {
        match &self.kind {
            Kind::Raw => encode_raw(&batch.values, out),
            Kind::Jsonl => records(batch).for_each(|(key, value, time)| encode_json(key, value, time, out)),
            Kind::Csv(columns) => encode_csv(columns, batch, out),
        }
    }
}

fn csv_column(text: &str) -> Result<CsvColumn, ConnectorError> {
    Ok(match text {
        "key" => CsvColumn::Key,
        "time" => CsvColumn::Time,
        "value" | "." => CsvColumn::Value,
        pointer => CsvColumn::Field(JsonPointer::parse(pointer).map_err(|error| {
            ConnectorError::Settings(format!(
                "write the sink's column: {error}; `key`, `time` and `value` are the record's own"
            ))
        })?),
    })
}

fn records(batch: &Batch) -> impl Iterator<Item = (&[u8], &[u8], i64)> {
    batch.keys.iter().zip(batch.values.iter()).zip(&batch.times).map(|((key, value), &time)| (key, value, time))
}

fn encode_raw(values: &Column, out: &mut Vec<u8>) {
    out.reserve(values.bytes().len() + values.len());
    for value in values.iter() {
        out.extend_from_slice(value);
        out.push(b'\n');
    }
}

/// One JSON object a line. What is not UTF-8 is given in base64 under another name.
fn encode_json(key: &[u8], value: &[u8], time: i64, out: &mut Vec<u8>) {
    out.push(b'{');
    match std::str::from_utf8(key) {
        Ok(key) => append(out, format_args!("\"key\":{}", quoted(key))),
        Err(_) => append(out, format_args!("\"key_base64\":\"{}\"", base64(key))),
    }
    if time != NO_TIME {
        append(out, format_args!(",\"time\":{time}"));
    }
    match std::str::from_utf8(value) {
        Ok(value) if is_json(value) => {
            out.extend_from_slice(b",\"value\":");
            // Within JSON, line ends are white space, and a record is one line.
            out.extend(value.trim().bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
        }
        Ok(value) => append(out, format_args!(",\"value\":{}", quoted(value))),
        Err(_) => append(out, format_args!(",\"value_base64\":\"{}\"", base64(value))),
    }
    out.extend_from_slice(b"}\n");
}

fn encode_csv(columns: &[(String, CsvColumn)], batch: &Batch, out: &mut Vec<u8>) {
    let mut fields = Column::default();
    write_csv(out, |writer| {
        for (key, value, time) in records(batch) {
            fields.clear();
            columns.iter().for_each(|(_, column)| csv_field(column, key, value, time, &mut fields));
            writer.write_record(fields.iter())?;
        }
        Ok(())
    });
}

/// A missing field, and a time that is none, is an empty field.
fn csv_field(column: &CsvColumn, key: &[u8], value: &[u8], time: i64, fields: &mut Column) {
    match column {
        CsvColumn::Key => fields.push(key),
        CsvColumn::Value => fields.push(value),
        CsvColumn::Time if time == NO_TIME => fields.push(b""),
        CsvColumn::Time => fields.push(time.to_string().as_bytes()),
        CsvColumn::Field(pointer) => match pointer.find(value) {
            Ok(b"null") | Err(_) => fields.push(b""),
            Ok(raw) if pointer.key_into(value, fields).is_err() => fields.push(raw),
            Ok(_) => {}
        },
    }
}

fn write_csv(out: &mut Vec<u8>, write: impl FnOnce(&mut csv::Writer<&mut Vec<u8>>) -> csv::Result<()>) {
    let mut writer = csv::Writer::from_writer(out);
    write(&mut writer)
        .and_then(|()| Ok(writer.flush()?))
        .expect("each record has a field for each column, and memory takes them");
}

fn is_json(text: &str) -> bool {
    let mut parser = serde_json::Deserializer::from_str(text);
    IgnoredAny::deserialize(&mut parser).is_ok() && parser.end().is_ok()
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string is JSON")
}

fn append(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to memory cannot fail");
}

/// Base64 with padding (RFC 4648, section 4), for the rare bytes that are no text.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            text.push(if digit <= group.len() { DIGITS[value as usize].into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(format: OutputFormat, columns: &[&str], records: &[(&[u8], &[u8], i64)], expected: &str) {
        let columns: Vec<_> = columns.iter().map(|&column| column.to_owned()).collect();
        let encoder = Encoder::new(format, &columns).unwrap();
        let mut batch = Batch::default();
        records.iter().for_each(|(key, value, time)| batch.push(key, value, *time));
        let mut out = encoder.header();
        encoder.encode(&batch, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn raw_records_are_values_and_line_feeds() {
        check(OutputFormat::Raw, &[], &[(b"k", b"one", 1), (b"", b"", NO_TIME)], "one\n\n");
    }

    #[test]
    fn json_lines_embed_json_and_quote_text() {
        check(
            OutputFormat::Jsonl,
            &[],
            &[
                (b"k", b" {\"a\":\n[1, 2]} ", 7),
                (b"q\"", b"plain \"text\"\n", NO_TIME),
                (b"k", b"NaN", NO_TIME),
                (b"\xff", b"\xff\xfe", -1),
                (b"\xff\xff", b"\xff\xfe\xfd\xfc", -1),
            ],
            concat!(
                "{\"key\":\"k\",\"time\":7,\"value\":{\"a\": [1, 2]}}\n",
                "{\"key\":\"q\\\"\",\"value\":\"plain \\\"text\\\"\\n\"}\n",
                "{\"key\":\"k\",\"value\":\"NaN\"}\n",
                "{\"key_base64\":\"/w==\",\"time\":-1,\"value_base64\":\"//4=\"}\n",
                "{\"key_base64\":\"//8=\",\"time\":-1,\"value_base64\":\"//79/A==\"}\n",
            ),
        );
    }

    #[test]
    fn comma_separated_values_have_a_header_and_quote_what_must_be() {
        check(
            OutputFormat::Csv,
            &["key", "/a/b", "/c", "time"],
            &[(b"k", br#"{"a":{"b":"x, \"y\"\n"},"c":[1,2]}"#, 5), (b"", br#"{"a":{"b":null}}"#, NO_TIME)],
            "key,b,c,time\nk,\"x, \"\"y\"\"\n\",\"[1,2]\",5\n,,,\n",
        );
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        assert!(Encoder::new(OutputFormat::Csv, &[]).is_err());
        assert!(Encoder::new(OutputFormat::Raw, &["key".to_owned()]).is_err());
        assert!(Encoder::new(OutputFormat::Csv, &["price".to_owned()]).unwrap_err().to_string().contains("`/price`"));
    }
}

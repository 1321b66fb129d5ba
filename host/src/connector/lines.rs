//! Lines of a byte stream as records: any lines, or JSON lines.
//!
//! A line ends with a line feed, with a carriage return before it or not, or with the stream. It is copied once, into the batch.

use memchr::memchr;

use super::parsing::{BAD_BYTES_MAX, BYTE_ORDER_MARK, JsonFields, bad_record, too_long};
use super::window::{Filled, StreamPosition, Window};
use super::{BadRecord, ConnectorError, ReadOutcome, SplitReader};
use crate::epoch::entry::Position;
use crate::record::{Batch, NO_TIME};

/// What a line is.
#[derive(Debug, Clone)]
pub enum LineRules {
    /// Any bytes; the key is the whole line, or empty. An empty line is a record.
    Any(bool),
    /// A JSON value in UTF-8. A line without anything is no record.
    Json(JsonFields),
}

/// A split of lines.
pub struct LineReader {
    name: String,
    window: Window,
    rules: LineRules,
    record_bytes_max: usize,
    /// The bytes of the window's rest that are known to hold no line feed.
    searched: usize,
    discarding: Option<Discarding>,
    ended: bool,
}

/// A line that is too long, being passed over.
struct Discarding {
    bad: BadRecord,
    /// Where the line begins: its record is not handed out before all of it has been seen.
    from: StreamPosition,
}

/// What the window holds next.
enum Next {
    /// A line of so many bytes, its line feed included.
    Line(usize),
    /// Part of a line that has no end yet.
    Partial,
}

impl LineReader {
    /// A reader of the stream `name` from where `window` stands.
    pub fn new(name: &str, window: Window, rules: LineRules, record_bytes_max: usize) -> Self {
        let name = name.to_owned();
        Self { name, window, rules, record_bytes_max, searched: 0, discarding: None, ended: false }
    }

    #[inline]
    fn next(&mut self) -> Next {
        let rest = self.window.rest();
        match memchr(b'\n', &rest[self.searched..]) {
            Some(found) => Next::Line(self.searched + found + 1),
            None => {
                self.searched = rest.len();
                Next::Partial
            }
        }
    }

    /// Hands out the first `length` bytes of the window's rest as a line. Returns whether there was a record in it.
    #[inline]
    fn take(&mut self, length: usize, batch: &mut Batch, bad: &mut Vec<BadRecord>) -> bool {
        self.searched = 0;
        if self.discarding.is_some() {
            return self.finish_discarding(length, bad);
        }
        let whole = &self.window.rest()[..length];
        let terminated = whole.last() == Some(&b'\n');
        let line = content(whole, self.window.offset() == 0);
        let outcome = if line.len() > self.record_bytes_max {
            Err(too_long(self.record_bytes_max))
        } else {
            match &self.rules {
                // A stream of a byte order mark alone is an empty one.
                LineRules::Any(_) if line.is_empty() && !terminated => Ok(false),
                LineRules::Any(whole_key) => {
                    batch.push(if *whole_key { line } else { b"" }, line, NO_TIME);
                    Ok(true)
                }
                LineRules::Json(_) if line.trim_ascii_start().is_empty() => Ok(false),
                LineRules::Json(fields) => push_json(fields, line, batch),
            }
        };
        let handed_out = outcome.unwrap_or_else(|error| {
            bad.push(bad_record(&self.name, self.window.line() + 1, self.window.offset(), line, error));
            true
        });
        self.window.consume(length, 1);
        handed_out
    }

    #[cold]
    fn finish_discarding(&mut self, length: usize, bad: &mut Vec<BadRecord>) -> bool {
        self.window.consume(length, 1);
        bad.extend(self.discarding.take().map(|discarding| discarding.bad));
        true
    }

    /// Drops what there is of a line that is too long, and remembers its beginning.
    fn discard_if_too_long(&mut self) {
        let rest = self.window.rest();
        // A carriage return at the end may yet turn out to be none of the record's.
        if self.discarding.is_none() && rest.len() <= self.record_bytes_max + BYTE_ORDER_MARK.len() + 1 {
            return;
        }
        let length = rest.len();
        if self.discarding.is_none() {
            let bytes = &rest[..length.min(BAD_BYTES_MAX)];
            let (line, offset) = (self.window.line() + 1, self.window.offset());
            let bad = bad_record(&self.name, line, offset, bytes, too_long(self.record_bytes_max));
            self.discarding = Some(Discarding { bad, from: self.window.position() });
        }
        self.window.consume(length, 0);
        self.searched = 0;
    }

    /// Ends the split: what is left is the last line.
    fn end(&mut self, batch: &mut Batch, bad: &mut Vec<BadRecord>) -> ReadOutcome {
        let length = self.window.rest().len();
        if length > 0 || self.discarding.is_some() {
            self.take(length, batch, bad);
        }
        self.ended = true;
        ReadOutcome::End
    }
}

impl SplitReader for LineReader {
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
        let (mut records, mut bytes) = (0, 0);
        while records < records_max && bytes < bytes_max {
            match self.next() {
                Next::Line(length) => {
                    records += usize::from(self.take(length, batch, bad));
                    bytes += length;
                }
                Next::Partial => {
                    self.discard_if_too_long();
                    if records > 0 && self.window.is_live() {
                        return Ok(ReadOutcome::More);
                    }
                    match self.window.more()? {
                        Filled::Bytes(_) => {}
                        Filled::Nothing => return Ok(ReadOutcome::Idle),
                        Filled::End => return Ok(self.end(batch, bad)),
                    }
                }
            }
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

/// A line without what ends it, and without a byte order mark at the start of the stream.
#[inline]
fn content(whole: &[u8], at_start: bool) -> &[u8] {
    let line = whole.strip_suffix(b"\n").unwrap_or(whole);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if at_start { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line }
}

#[inline]
fn push_json(fields: &JsonFields, line: &[u8], batch: &mut Batch) -> Result<bool, String> {
    if let Err(error) = std::str::from_utf8(line) {
        return Err(format!("the record is not UTF-8 at byte {}", error.valid_up_to()));
    }
    fields.push(line, batch).map(|()| true)
}

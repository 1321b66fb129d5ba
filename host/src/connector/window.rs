//! A byte stream seen through a window: what has been read but not yet consumed, and where that lies in the stream.
//!
//! The window reads big chunks and never copies a record; it keeps the last few KiB that were consumed, so that a position can tell by its
//! fingerprints whether it is looked up in the same stream again. It knows nothing of lines or formats.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::ConnectorError;
use crate::epoch::entry::Position;

/// The bytes read at once, at the least.
pub const CHUNK_BYTES: usize = 256 << 10;

/// The bytes at the start of a stream, and before a position, that its fingerprints cover.
pub const FINGERPRINT_BYTES: usize = 4 << 10;

/// Where the bytes of a stream come from.
pub trait Feed: Send {
    /// Reads into `space`, which is not empty.
    ///
    /// # Errors
    /// When reading fails, or the stream is no longer what it was.
    fn fill(&mut self, space: &mut [u8]) -> Result<Filled, ConnectorError>;

    /// The input bytes read so far, compressed where the input is.
    fn raw_bytes(&self) -> u64;

    /// Whether bytes come as somebody produces them, so that what is there should not wait for what is not.
    fn is_live(&self) -> bool {
        false
    }
}

/// What [`Feed::fill`] brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    End,
}

/// Where a stream of bytes stands, and what it is known by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamPosition {
    /// The bytes consumed, decompressed.
    pub offset: u64,
    /// The lines consumed.
    pub line: u64,
    /// XXH3-64 of the first [`FINGERPRINT_BYTES`] of what was consumed.
    pub head: u64,
    /// XXH3-64 of the last [`FINGERPRINT_BYTES`] of what was consumed.
    pub tail: u64,
}

impl StreamPosition {
    /// The position as the epoch log keeps it.
    pub fn to_position(self) -> Position {
        Position(serde_json::to_value(self).expect("a struct of integers is JSON"))
    }

    /// The position that the epoch log kept for `name`.
    ///
    /// # Errors
    /// [`ConnectorError::Input`] when it is not one of a byte stream.
    pub fn from_position(position: &Position, name: &str) -> Result<Self, ConnectorError> {
        serde_json::from_value(position.0.clone()).map_err(|error| {
            ConnectorError::Input(format!(
                "go on reading `{name}`: the recorded position is not one of a file ({error}); \
                 the source was of another kind when it was recorded"
            ))
        })
    }
}

/// The window.
pub struct Window {
    feed: Box<dyn Feed>,
    buffer: Vec<u8>,
    /// Where the unconsumed bytes begin in `buffer`.
    start: usize,
    /// Where they end.
    end: usize,
    /// Where `start` lies in the stream.
    offset: u64,
    /// The lines before `start`.
    line: u64,
    head: Vec<u8>,
}

impl Window {
    /// A window at the start of the stream.
    pub fn at_start(feed: Box<dyn Feed>) -> Self {
        Self { feed, buffer: Vec::new(), start: 0, end: 0, offset: 0, line: 0, head: Vec::new() }
    }

    /// A window at `position`, whose `feed` goes on there; `head` and `tail` are the first and last bytes before it, as
    /// many as the fingerprints cover.
    pub fn at_position(feed: Box<dyn Feed>, position: StreamPosition, head: Vec<u8>, tail: Vec<u8>) -> Self {
        let start = tail.len();
        Self { feed, buffer: tail, start, end: start, offset: position.offset, line: position.line, head }
    }

    /// What has been read but not consumed.
    #[inline]
    pub fn rest(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Where [`Window::rest`] begins in the stream.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The lines consumed.
    #[inline]
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Consumes the first `bytes` of the rest, which hold `lines` lines.
    #[inline]
    pub fn consume(&mut self, bytes: usize, lines: u64) {
        let missing = FINGERPRINT_BYTES - self.head.len();
        if missing > 0 {
            self.head.extend_from_slice(&self.buffer[self.start..self.start + bytes.min(missing)]);
        }
        self.start += bytes;
        debug_assert!(self.start <= self.end);
        self.offset += bytes as u64;
        self.line += lines;
    }

    /// Reads another chunk behind the rest.
    ///
    /// # Errors
    /// As [`Feed::fill`].
    pub fn more(&mut self) -> Result<Filled, ConnectorError> {
        self.make_room();
        let filled = self.feed.fill(&mut self.buffer[self.end..])?;
        if let Filled::Bytes(bytes) = filled {
            self.end += bytes;
        }
        Ok(filled)
    }

    /// Moves what is still needed to the front, and grows the buffer when the rest is long.
    fn make_room(&mut self) {
        let needed = self.start.saturating_sub(FINGERPRINT_BYTES)..self.end;
        let rest = self.end - self.start;
        self.start -= needed.start;
        self.end -= needed.start;
        // Room as big as the rest makes the cost of a long record linear.
        let size = self.end + CHUNK_BYTES.max(rest);
        let oversized = self.buffer.len() > 8 * CHUNK_BYTES && size <= 2 * CHUNK_BYTES;
        if self.buffer.len() >= size && !oversized {
            self.buffer.copy_within(needed, 0);
            return;
        }
        // A fresh buffer comes zeroed from the system; growing the old one would write the zeros.
        let mut buffer = vec![0; size];
        buffer[..self.end].copy_from_slice(&self.buffer[needed]);
        self.buffer = buffer;
    }

    /// Where the stream stands: behind what was consumed.
    pub fn position(&self) -> StreamPosition {
        StreamPosition {
            offset: self.offset,
            line: self.line,
            head: xxh3_64(&self.head),
            tail: xxh3_64(&self.buffer[self.start.saturating_sub(FINGERPRINT_BYTES)..self.start]),
        }
    }

    /// As [`Feed::raw_bytes`].
    pub fn raw_bytes(&self) -> u64 {
        self.feed.raw_bytes()
    }

    /// As [`Feed::is_live`].
    pub fn is_live(&self) -> bool {
        self.feed.is_live()
    }
}

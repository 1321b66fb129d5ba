//! Standard input as a source: one split, read once.
//!
//! A thread of its own waits for the bytes, so that the split's reader can say "nothing now" and its job can seal or stop meanwhile.

use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::feed::io_error;
use super::parsing::Parsing;
use super::window::{CHUNK_BYTES, Feed, Filled, Window};
use super::{ConnectorError, Source, SplitReader};
use crate::epoch::entry::Position;
use crate::manifest::StdinSource;

const SPLIT: &str = "stdin";

/// Chunks read ahead of the job.
const CHUNKS_AHEAD: usize = 4;

/// How long a reader waits for bytes before it says that there are none now.
const WAIT_MS: u64 = 50;

/// Standard input as a source.
pub struct Stdin {
    parsing: Parsing,
    input: Mutex<Option<Box<dyn Read + Send>>>,
}

impl Stdin {
    /// The source that the manifest describes.
    ///
    /// # Errors
    /// When key or time do not fit the format.
    pub fn new(source: &StdinSource) -> Result<Self, ConnectorError> {
        Self::reading(source, Box::new(io::stdin()))
    }

    /// The same over another stream.
    ///
    /// # Errors
    /// As [`Stdin::new`].
    pub fn reading(source: &StdinSource, input: Box<dyn Read + Send>) -> Result<Self, ConnectorError> {
        Ok(Self { parsing: Parsing::of_stdin(source)?, input: Mutex::new(Some(input)) })
    }
}

impl Source for Stdin {
    fn splits(&self) -> Result<Vec<String>, ConnectorError> {
        Ok(vec![SPLIT.to_owned()])
    }

    /// Goes on with what comes next, whatever `from` says: what was read before cannot be read again.
    fn open(&self, split: &str, _from: Option<&Position>) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let input = self.input.lock().take();
        let input = input
            .ok_or_else(|| ConnectorError::Input("read standard input a second time: it is read once".to_owned()))?;
        let feed = LiveFeed::start(input)?;
        self.parsing.reader(split, Window::at_start(Box::new(feed)), None)
    }

    fn is_replayable(&self) -> bool {
        false
    }
}

struct LiveFeed {
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: Vec<u8>,
    used: usize,
    read: u64,
}

impl LiveFeed {
    fn start(input: Box<dyn Read + Send>) -> Result<Self, ConnectorError> {
        let (sender, chunks) = sync_channel(CHUNKS_AHEAD);
        thread::Builder::new()
            .name(SPLIT.to_owned())
            .spawn(move || forward(input, &sender))
            .map_err(|error| io_error("start a thread for", Path::new(SPLIT), error))?;
        Ok(Self { chunks, chunk: Vec::new(), used: 0, read: 0 })
    }
}

/// Passes chunks on until the input ends or nobody wants them; a dropped sender is the end.
fn forward(mut input: Box<dyn Read + Send>, chunks: &SyncSender<io::Result<Vec<u8>>>) {
    let mut space = vec![0; CHUNK_BYTES];
    loop {
        let chunk = match input.read(&mut space) {
            Ok(0) => return,
            Ok(bytes) => Ok(space[..bytes].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let failed = chunk.is_err();
        if chunks.send(chunk).is_err() || failed {
            return;
        }
    }
}

impl Feed for LiveFeed {
    fn fill(&mut self, space: &mut [u8]) -> Result<Filled, ConnectorError> {
        if self.used == self.chunk.len() {
            self.chunk = match self.chunks.recv_timeout(Duration::from_millis(WAIT_MS)) {
                Ok(chunk) => chunk.map_err(|error| io_error("read", Path::new(SPLIT), error))?,
                Err(RecvTimeoutError::Timeout) => return Ok(Filled::Nothing),
                Err(RecvTimeoutError::Disconnected) => return Ok(Filled::End),
            };
            self.used = 0;
        }
        let rest = &self.chunk[self.used..];
        let bytes = rest.len().min(space.len());
        space[..bytes].copy_from_slice(&rest[..bytes]);
        self.used += bytes;
        self.read += bytes as u64;
        Ok(Filled::Bytes(bytes))
    }

    fn raw_bytes(&self) -> u64 {
        self.read
    }

    fn is_live(&self) -> bool {
        true
    }
}

//! Where a file's bytes come from: read as they are, decompressed, or followed as the file grows; and how a file is found to be another one.

use std::fs::{self, File, Metadata};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use super::ConnectorError;
use super::window::{CHUNK_BYTES, FINGERPRINT_BYTES, Feed, Filled, StreamPosition, Window};
use crate::manifest::Compression;

/// Opens the file at `path` behind `from`, or at its start. Only a file that is not compressed can be followed.
///
/// # Errors
/// When it cannot be opened, is shorter than `from`, or its content before `from` is another.
pub fn open_file(
    path: &Path,
    compression: Compression,
    follow: bool,
    from: Option<StreamPosition>,
) -> Result<Window, ConnectorError> {
    let file = File::open(path).map_err(|error| missing_or("open", path, error))?;
    let metadata = file.metadata().map_err(|error| io_error("open", path, error))?;
    if !metadata.is_file() {
        return Err(ConnectorError::Input(format!(
            "read `{}`: it is not a regular file, so it cannot be read again after a crash; pipe it into `kind = \"stdin\"`",
            path.display()
        )));
    }
    let from = from.filter(|from| from.offset > 0);
    match decoder(path, compression, &file, &metadata)? {
        None => open_plain(path, file, &metadata, follow, from),
        Some(decoder) => open_compressed(path, decoder, from),
    }
}

/// How the file at `path` is compressed.
pub fn compression_of(path: &Path, compression: Compression) -> Compression {
    match (compression, path.extension().and_then(|ending| ending.to_str())) {
        (Compression::Auto, Some("gz")) => Compression::Gzip,
        (Compression::Auto, Some("zst")) => Compression::Zstd,
        (Compression::Auto, _) => Compression::None,
        (chosen, _) => chosen,
    }
}

struct Decoder {
    stream: Box<dyn Read + Send>,
    raw: Arc<AtomicU64>,
}

fn decoder(
    path: &Path,
    compression: Compression,
    file: &File,
    metadata: &Metadata,
) -> Result<Option<Decoder>, ConnectorError> {
    let compression = compression_of(path, compression);
    // Nothing at all is an empty stream however it would be compressed.
    if compression == Compression::None || metadata.len() == 0 {
        return Ok(None);
    }
    let raw = Arc::new(AtomicU64::new(0));
    let file = file.try_clone().map_err(|error| io_error("open", path, error))?;
    let input = BufReader::with_capacity(CHUNK_BYTES, Counted { file, raw: raw.clone() });
    let stream: Box<dyn Read + Send> = match compression {
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
        _ => Box::new(
            zstd::stream::read::Decoder::with_buffer(input).map_err(|error| io_error("decompress", path, error))?,
        ),
    };
    Ok(Some(Decoder { stream, raw }))
}

struct Counted {
    file: File,
    raw: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(space)?;
        self.raw.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

fn open_plain(
    path: &Path,
    mut file: File,
    metadata: &Metadata,
    follow: bool,
    from: Option<StreamPosition>,
) -> Result<Window, ConnectorError> {
    let offset = from.map_or(0, |from| from.offset);
    if metadata.len() < offset {
        return Err(shorter(path, metadata.len(), offset));
    }
    let before = from.map(|from| plain_before(&file, from.offset)).transpose();
    let before = before.map_err(|error| io_error("read", path, error))?;
    file.seek(SeekFrom::Start(offset)).map_err(|error| io_error("read", path, error))?;
    let feed = Box::new(PlainFeed {
        path: path.to_owned(),
        file,
        identity: (metadata.dev(), metadata.ino()),
        length_at_open: metadata.len(),
        read: offset,
        follow,
        quiet: None,
    });
    window(path, feed, from, before)
}

fn open_compressed(path: &Path, decoder: Decoder, from: Option<StreamPosition>) -> Result<Window, ConnectorError> {
    let mut feed = Box::new(DecodedFeed { path: path.to_owned(), decoder });
    let before = from.map(|from| skip(&mut feed, from.offset)).transpose()?;
    window(path, feed, from, before)
}

/// The first and the last bytes before a position, as many as fingerprints cover.
struct Before {
    head: Vec<u8>,
    tail: Vec<u8>,
}

fn window(
    path: &Path,
    feed: Box<dyn Feed>,
    from: Option<StreamPosition>,
    before: Option<Before>,
) -> Result<Window, ConnectorError> {
    let (Some(from), Some(before)) = (from, before) else {
        return Ok(Window::at_start(feed));
    };
    if xxh3_64(&before.head) != from.head || xxh3_64(&before.tail) != from.tail {
        return Err(ConnectorError::Input(format!(
            "go on reading `{}`: it was replaced or changed before byte {}, where it had been read to; restore the file, \
             or start the job anew with an empty state directory",
            path.display(),
            from.offset
        )));
    }
    Ok(Window::at_position(feed, from, before.head, before.tail))
}

fn shorter(path: &Path, length: u64, offset: u64) -> ConnectorError {
    ConnectorError::Input(format!(
        "go on reading `{}`: it has shrunk to {length} bytes, but had been read to byte {offset}; restore the file, or start \
         the job anew with an empty state directory",
        path.display()
    ))
}

fn plain_before(file: &File, offset: u64) -> io::Result<Before> {
    let covered = offset.min(FINGERPRINT_BYTES as u64);
    Ok(Before {
        head: read_range(file, 0, covered as usize)?,
        tail: read_range(file, offset - covered, covered as usize)?,
    })
}

fn read_range(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Decompresses `offset` bytes and drops them.
fn skip(feed: &mut DecodedFeed, offset: u64) -> Result<Before, ConnectorError> {
    let mut before = Before { head: Vec::new(), tail: Vec::new() };
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut skipped = 0;
    while skipped < offset {
        let wanted = chunk.len().min(usize::try_from(offset - skipped).unwrap_or(usize::MAX));
        let Filled::Bytes(read) = feed.fill(&mut chunk[..wanted])? else {
            return Err(shorter(&feed.path, skipped, offset));
        };
        let bytes = &chunk[..read];
        let missing = FINGERPRINT_BYTES - before.head.len();
        before.head.extend_from_slice(&bytes[..read.min(missing)]);
        before.tail.extend_from_slice(&bytes[read.saturating_sub(FINGERPRINT_BYTES)..]);
        let surplus = before.tail.len().saturating_sub(FINGERPRINT_BYTES);
        before.tail.drain(..surplus);
        skipped += read as u64;
    }
    Ok(before)
}

/// A compressed file, read to its end.
struct DecodedFeed {
    path: PathBuf,
    decoder: Decoder,
}

impl Feed for DecodedFeed {
    fn fill(&mut self, space: &mut [u8]) -> Result<Filled, ConnectorError> {
        match read_some(&mut self.decoder.stream, space).map_err(|error| io_error("decompress", &self.path, error))? {
            0 => Ok(Filled::End),
            bytes => Ok(Filled::Bytes(bytes)),
        }
    }

    fn raw_bytes(&self) -> u64 {
        self.decoder.raw.load(Ordering::Relaxed)
    }
}

/// A file as it is.
struct PlainFeed {
    path: PathBuf,
    file: File,
    identity: (u64, u64),
    length_at_open: u64,
    read: u64,
    follow: bool,
    /// The last bytes read, kept while a followed file does not grow: when it does, they must still be there.
    quiet: Option<Vec<u8>>,
}

impl Feed for PlainFeed {
    fn fill(&mut self, space: &mut [u8]) -> Result<Filled, ConnectorError> {
        let bytes = read_some(&mut self.file, space).map_err(|error| self.io_error(error))?;
        if bytes > 0 {
            if self.quiet.take().is_some_and(|before| self.last_bytes().ok() != Some(before)) {
                return Err(self.changed("its content before that was changed"));
            }
            self.read += bytes as u64;
            return Ok(Filled::Bytes(bytes));
        }
        self.check_length()?;
        if !self.follow {
            return Ok(Filled::End);
        }
        self.check_identity()?;
        if self.quiet.is_none() {
            self.quiet = Some(self.last_bytes().map_err(|error| self.io_error(error))?);
        }
        Ok(Filled::Nothing)
    }

    fn raw_bytes(&self) -> u64 {
        self.read
    }
}

impl PlainFeed {
    fn check_length(&self) -> Result<(), ConnectorError> {
        let length = self.file.metadata().map_err(|error| self.io_error(error))?.len();
        if length < self.read || self.read < self.length_at_open {
            return Err(self.changed(&format!("it shrank to {length} bytes")));
        }
        Ok(())
    }

    fn check_identity(&self) -> Result<(), ConnectorError> {
        match fs::metadata(&self.path) {
            Ok(now) if (now.dev(), now.ino()) == self.identity => Ok(()),
            Ok(_) => Err(self.changed("another file took its place")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self.changed("it was removed")),
            Err(error) => Err(self.io_error(error)),
        }
    }

    fn last_bytes(&self) -> io::Result<Vec<u8>> {
        let covered = self.read.min(FINGERPRINT_BYTES as u64);
        read_range(&self.file, self.read - covered, covered as usize)
    }

    fn changed(&self, what: &str) -> ConnectorError {
        ConnectorError::Input(format!(
            "go on reading `{}`: {what} while it was being read (up to byte {}); input files may only grow: write new data to \
             new files",
            self.path.display(),
            self.read
        ))
    }

    fn io_error(&self, error: io::Error) -> ConnectorError {
        io_error("read", &self.path, error)
    }
}

fn read_some(input: &mut impl Read, space: &mut [u8]) -> io::Result<usize> {
    loop {
        match input.read(space) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// What the system said, told apart: input that is not there has another remedy than input that cannot be read.
pub fn missing_or(action: &'static str, path: &Path, error: io::Error) -> ConnectorError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            ConnectorError::Missing { path: path.display().to_string(), what: "there is no such file or directory" }
        }
        _ => io_error(action, path, error),
    }
}

/// What the system said about `path`.
pub fn io_error(action: &'static str, path: &Path, error: io::Error) -> ConnectorError {
    ConnectorError::Io { action, path: path.to_owned(), error }
}

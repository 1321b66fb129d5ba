//! The file source: a file, the files of a directory, or those that a glob matches. Each is a split.
//!
//! A split is named by its path relative to the directory they share. In a directory and in a glob, files whose name begins with `.` or `_` are
//! left out: they are other programs' temporaries. A file may grow while it is read; it may not shrink, change or be replaced.
//! A compressed file is complete when it appears, also in a source that is followed.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::csv::{CsvReader, Header};
use super::feed::{compression_of, io_error, missing_or, open_file};
use super::parsing::{Parsing, Rules};
use super::window::StreamPosition;
use super::{ConnectorError, Source, SplitReader};
use crate::epoch::entry::Position;
use crate::manifest::{Compression, FileSource};

/// Files as a source.
#[derive(Debug)]
pub struct Files {
    place: Place,
    parsing: Parsing,
    compression: Compression,
    follow: bool,
}

#[derive(Debug)]
enum Place {
    File { directory: PathBuf, name: String },
    Directory(PathBuf),
    Glob { directory: PathBuf, pattern: String },
}

impl Files {
    /// The source that the manifest describes, its path relative to `base`.
    ///
    /// # Errors
    /// When key or time do not fit the format, or the path can be none.
    pub fn new(source: &FileSource, base: &Path) -> Result<Self, ConnectorError> {
        let place = Place::of(&source.path, base)?;
        if let (Place::File { directory, name }, true) = (&place, source.follow) {
            let path = directory.join(name);
            if compression_of(&path, source.compression) != Compression::None {
                return Err(ConnectorError::Settings(format!(
                    "follow `{}`: a compressed file cannot be read as it grows; follow a directory that receives complete files",
                    path.display()
                )));
            }
        }
        Ok(Self { place, parsing: Parsing::of_file(source)?, compression: source.compression, follow: source.follow })
    }

    fn paths(&self) -> Result<Vec<PathBuf>, ConnectorError> {
        match &self.place {
            Place::File { directory, name } => Ok(vec![directory.join(name)]),
            Place::Directory(directory) => visible_files(directory),
            Place::Glob { pattern, .. } => matching_files(pattern),
        }
    }

    fn header(&self, split: &str, path: &Path, from: Option<StreamPosition>) -> Result<Option<Header>, ConnectorError> {
        let Rules::Csv(fields) = &self.parsing.rules else { return Ok(None) };
        if from.is_none_or(|from| from.offset == 0) {
            return Ok(None);
        }
        let start = open_file(path, self.compression, false, None)?;
        CsvReader::read_header(split, start, fields, self.parsing.record_bytes_max)
    }
}

impl Place {
    fn of(written: &str, base: &Path) -> Result<Self, ConnectorError> {
        let path = base.join(written);
        if path.is_dir() {
            return Ok(Self::Directory(path));
        }
        if !path.exists() && written.contains(['*', '?', '[']) {
            return Self::of_glob(written, base);
        }
        match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
            (Some(directory), Some(name)) => Ok(Self::File { directory: directory.to_owned(), name: name.to_owned() }),
            _ => Err(ConnectorError::Settings(format!("read `{}`: this is not the path of a file", path.display()))),
        }
    }

    fn of_glob(written: &str, base: &Path) -> Result<Self, ConnectorError> {
        // The splits' names begin behind the last directory that is written out.
        let literal = &written[..written.find(['*', '?', '[']).unwrap_or(written.len())];
        let literal = literal.rfind('/').map_or("", |slash| &literal[..=slash]);
        let directory = without_dots(&base.join(literal));
        let Some(base) = base.to_str() else {
            let text = format!("read `{written}` in `{}`: the directory's name is not UTF-8", base.display());
            return Err(ConnectorError::Settings(text));
        };
        let pattern = without_dots(&Path::new(&glob::Pattern::escape(base)).join(written));
        let pattern = pattern.to_string_lossy().into_owned();
        glob::Pattern::new(&pattern)
            .map_err(|error| ConnectorError::Settings(format!("read `{written}`: this is not a glob: {error}")))?;
        Ok(Self::Glob { directory, pattern })
    }

    fn directory(&self) -> &Path {
        match self {
            Self::File { directory, .. } | Self::Directory(directory) | Self::Glob { directory, .. } => directory,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::File { directory, name } => directory.join(name).display().to_string(),
            Self::Directory(directory) => directory.display().to_string(),
            Self::Glob { pattern, .. } => pattern.clone(),
        }
    }
}

impl Source for Files {
    fn splits(&self) -> Result<Vec<String>, ConnectorError> {
        let paths = self.paths()?;
        if let (Place::File { .. }, Some(path)) = (&self.place, paths.first()) {
            fs::metadata(path).map_err(|error| missing_or("open", path, error))?;
        }
        if paths.is_empty() && !self.follow {
            let what = match &self.place {
                Place::Glob { .. } => "no file matches (names that begin with `.` or `_` are left out)",
                _ => "there are no files in it (names that begin with `.` or `_` are left out)",
            };
            return Err(ConnectorError::Missing { path: self.place.describe(), what });
        }
        let mut names = paths
            .iter()
            .map(|path| match path.strip_prefix(self.place.directory()).unwrap_or(path).to_str() {
                Some(name) => Ok(name.to_owned()),
                None => {
                    Err(ConnectorError::Input(format!("read `{}`: its name is not UTF-8; rename it", path.display())))
                }
            })
            .collect::<Result<Vec<_>, _>>()?;
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    fn open(&self, split: &str, from: Option<&Position>) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let path = self.place.directory().join(split);
        let from = from.map(|from| StreamPosition::from_position(from, split)).transpose()?;
        let window = open_file(&path, self.compression, self.follow, from)?;
        let header = self.header(split, &path, from)?;
        self.parsing.reader(split, window, header)
    }

    fn is_followed(&self) -> bool {
        self.follow
    }

    fn total_bytes(&self) -> Option<u64> {
        let paths = self.paths().ok()?;
        Some(paths.iter().filter_map(|path| fs::metadata(path).ok()).map(|metadata| metadata.len()).sum())
    }
}

/// The same path without `.`, as globs return theirs.
fn without_dots(path: &Path) -> PathBuf {
    path.components().filter(|component| *component != Component::CurDir).collect()
}

fn visible_files(directory: &Path) -> Result<Vec<PathBuf>, ConnectorError> {
    let items = fs::read_dir(directory).map_err(|error| missing_or("list", directory, error))?;
    let mut paths = Vec::new();
    for item in items {
        let path = item.map_err(|error| io_error("list", directory, error))?.path();
        if is_visible(&path) && path.is_file() {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn matching_files(pattern: &str) -> Result<Vec<PathBuf>, ConnectorError> {
    let found = glob::glob(pattern).map_err(|error| ConnectorError::Input(format!("read `{pattern}`: {error}")))?;
    let mut paths = Vec::new();
    for path in found {
        let path = path.map_err(|error| io_error("list", error.path(), std::io::Error::from(error.error().kind())))?;
        if is_visible(&path) && path.is_file() {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn is_visible(path: &Path) -> bool {
    path.file_name().is_some_and(|name| !matches!(name.as_encoded_bytes().first(), Some(b'.' | b'_')))
}

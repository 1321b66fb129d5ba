//! Whether two outputs hold the same lines, however they are ordered and spread over files.
//!
//! The digest is the sum, modulo 2^128, of the lines' XXH3-128 hashes, and their number. A sum does not depend on the
//! order, and, unlike an exclusive or, it does not lose a line that occurs twice.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::lines::for_each_line;

/// The digest of a multiset of lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest {
    lines: u64,
    sum: u128,
}

impl Digest {
    /// The digest of all lines in `path`: a file, or a directory's files and those of its subdirectories.
    ///
    /// Files whose names begin with a dot are left out: they are not output yet.
    ///
    /// # Errors
    /// Those of reading.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        let mut digest = Self::default();
        digest.add_path(path)?;
        Ok(digest)
    }

    /// Adds a line.
    pub fn add(&mut self, line: &[u8]) {
        self.lines += 1;
        self.sum = self.sum.wrapping_add(xxh3_128(line));
    }

    fn add_path(&mut self, path: &Path) -> io::Result<()> {
        if !path.is_dir() {
            return for_each_line(File::open(path)?, |line| {
                self.add(line);
                Ok(())
            });
        }
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                self.add_path(&entry.path())?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} lines with digest {:032x}", self.lines, self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Digest {
        let mut digest = Digest::default();
        lines.iter().for_each(|line| digest.add(line.as_bytes()));
        digest
    }

    #[test]
    fn order_does_not_count_but_number_and_content_do() {
        assert_eq!(of(&["a", "b", "b"]), of(&["b", "a", "b"]));
        assert_ne!(of(&["a", "b"]), of(&["a", "b", "b"]));
        assert_ne!(of(&["a", "b", "b"]), of(&["a", "a", "b"]));
        assert_ne!(of(&["ab", ""]), of(&["a", "b"]));
        assert_ne!(of(&["a", "a"]), of(&["b", "b"]));
    }

    #[test]
    fn a_directory_is_the_sum_of_its_visible_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("epoch-2")).unwrap();
        fs::write(dir.path().join("1"), "a\nb\n").unwrap();
        fs::write(dir.path().join("epoch-2/2"), "c").unwrap();
        fs::write(dir.path().join(".3.tmp"), "d\n").unwrap();
        assert_eq!(Digest::of_path(dir.path()).unwrap(), of(&["a", "b", "c"]));
    }
}

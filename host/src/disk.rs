//! The file system as durable code uses it, so that tests can stop it at any step.
//!
//! Everything that must survive a crash (the log, the state, the files of sinks) goes through [`Disk`]. It knows paths and bytes, and nothing of
//! what they mean. Nothing is durable before it is synced: a file's content by [`Disk::sync_file`], its name by [`Disk::sync_directory`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file system.
pub trait Disk: Send + Sync + std::fmt::Debug {
    /// Creates or empties a file, for writing.
    ///
    /// # Errors
    /// What the system says.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens an existing file, cuts it to `at` bytes and writes behind them.
    ///
    /// # Errors
    /// What the system says; `UnexpectedEof` when the file is shorter than `at`.
    fn append(&self, path: &Path, at: u64) -> io::Result<Box<dyn DiskFile>>;

    /// The whole content of a file.
    ///
    /// # Errors
    /// What the system says.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Up to `length_max` bytes of a file from `offset` on; fewer only at its end.
    ///
    /// # Errors
    /// What the system says.
    fn read_range(&self, path: &Path, offset: u64, length_max: usize) -> io::Result<Vec<u8>> {
        let mut content = self.read(path)?;
        content.drain(..content.len().min(usize::try_from(offset).unwrap_or(usize::MAX)));
        content.truncate(length_max);
        Ok(content)
    }

    /// Writes `bytes` at `offset` of an existing or new file.
    ///
    /// # Errors
    /// What the system says.
    fn write_at(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's content and length durable.
    ///
    /// # Errors
    /// What the system says.
    fn sync_file(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// What the system says.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// Gives a file another name; refuses one that exists.
    ///
    /// # Errors
    /// What the system says; `AlreadyExists` when there is a file called `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;

    /// Creates a directory with its parents; fine if it is there.
    ///
    /// # Errors
    /// What the system says.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// A file's length in bytes, or `None` when there is no such file.
    ///
    /// # Errors
    /// What the system says.
    fn length(&self, path: &Path) -> io::Result<Option<u64>>;
}

/// A file being written from front to back.
pub trait DiskFile: io::Write + Send + std::fmt::Debug {}

/// The file system of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl DiskFile for File {}

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::create(path)?))
    }

    fn append(&self, path: &Path, at: u64) -> io::Result<Box<dyn DiskFile>> {
        let mut file = OpenOptions::new().write(true).open(path)?;
        let length = file.metadata()?.len();
        if length < at {
            let text = format!("the file has {length} bytes, fewer than the {at} it should have");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        file.set_len(at)?;
        file.seek(SeekFrom::Start(at))?;
        Ok(Box::new(file))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn read_range(&self, path: &Path, offset: u64, length_max: usize) -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(offset))?;
        let mut content = Vec::new();
        file.take(length_max as u64).read_to_end(&mut content)?;
        Ok(content)
    }

    fn write_at(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        OpenOptions::new().write(true).create(true).truncate(false).open(path)?.write_all_at(bytes, offset)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        rename_new(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for item in fs::read_dir(directory)? {
            // A name that is not UTF-8 is none that durable code gave.
            if let Ok(name) = item?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn length(&self, path: &Path) -> io::Result<Option<u64>> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// One atomic step where the file system can do it, else a check and a rename.
#[cfg(target_os = "linux")]
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => checked_rename(from, to),
        result => Ok(result?),
    }
}

#[cfg(not(target_os = "linux"))]
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    checked_rename(from, to)
}

fn checked_rename(from: &Path, to: &Path) -> io::Result<()> {
    if to.try_exists()? {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    fs::rename(from, to)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_rename_never_replaces_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::write(&from, "new").unwrap();
        fs::write(&to, "old").unwrap();
        for rename in [rename_new, checked_rename] {
            assert_eq!(rename(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read(&to).unwrap(), b"old");
        fs::remove_file(&to).unwrap();
        RealDisk.rename(&from, &to).unwrap();
        assert_eq!(RealDisk.list(directory.path()).unwrap(), ["to"]);
    }

    #[test]
    fn appending_cuts_the_file_first_and_refuses_a_short_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        RealDisk.create(&path).unwrap().write_all(b"kept, lost").unwrap();
        RealDisk.append(&path, 5).unwrap().write_all(b"new").unwrap();
        assert_eq!(RealDisk.read(&path).unwrap(), b"kept,new");
        assert_eq!(RealDisk.append(&path, 9).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(RealDisk.length(&path).unwrap(), Some(8));
        assert_eq!(RealDisk.length(&directory.path().join("none")).unwrap(), None);
    }

    #[test]
    fn writing_at_an_offset_leaves_the_rest() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        RealDisk.write_at(&path, 0, b"abcdef").unwrap();
        RealDisk.write_at(&path, 2, b"XY").unwrap();
        assert_eq!(RealDisk.read(&path).unwrap(), b"abXYef");
        for (offset, length, expected) in [(0, 2, "ab"), (2, 3, "XYe"), (4, 9, "ef"), (6, 1, ""), (9, 1, "")] {
            assert_eq!(RealDisk.read_range(&path, offset, length).unwrap(), expected.as_bytes());
        }
        RealDisk.sync_file(&path).unwrap();
        RealDisk.sync_directory(directory.path()).unwrap();
    }
}

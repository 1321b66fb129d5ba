//! The file system as durable code uses it, so that tests can stop it at any step.
//!
//! [`Disk`] has just the calls whose order decides what survives a crash. It knows nothing of epochs, logs or sinks. [`RealDisk`] is the
//! operating system; [`crash::CrashDisk`] is its double.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub mod crash;

/// Files and directories, with durability made explicit: what is not synced may be lost.
///
/// A file's content becomes durable by [`Disk::sync_file`], its name by [`Disk::sync_directory`] of the directory that holds it.
pub trait Disk: Send + Sync + std::fmt::Debug {
    /// Creates a file, or empties an existing one, for writing.
    ///
    /// # Errors
    /// As the system says.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens an existing file, cuts it to `at` bytes and writes behind them.
    ///
    /// # Errors
    /// As the system says; `InvalidData` when the file is shorter than `at`.
    fn append(&self, path: &Path, at: u64) -> io::Result<Box<dyn DiskFile>>;

    /// The whole content of a file.
    ///
    /// # Errors
    /// As the system says.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Up to `length_max` bytes of a file from `offset` on; fewer only at its end.
    ///
    /// # Errors
    /// As the system says.
    fn read_range(&self, path: &Path, offset: u64, length_max: usize) -> io::Result<Vec<u8>> {
        let mut content = self.read(path)?;
        content.drain(..content.len().min(usize::try_from(offset).unwrap_or(usize::MAX)));
        content.truncate(length_max);
        Ok(content)
    }

    /// Writes `bytes` at `offset`, in an existing or a new file.
    ///
    /// # Errors
    /// As the system says.
    fn write_at(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's content durable.
    ///
    /// # Errors
    /// As the system says. What was written since the last sync may then be lost.
    fn sync_file(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// As the system says.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// Gives a file another name, atomically.
    ///
    /// # Errors
    /// As the system says; `AlreadyExists` when there is a `to`, which is left as it is.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// As the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// The names of the files in a directory, sorted; those of its subdirectories are left out.
    ///
    /// # Errors
    /// As the system says; `InvalidData` for a name that is not UTF-8.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;

    /// Creates a directory with its parents, and makes their names durable; an existing one is fine.
    ///
    /// # Errors
    /// As the system says.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// A file's length in bytes, or `None` when there is no such file.
    ///
    /// # Errors
    /// As the system says.
    fn length(&self, path: &Path) -> io::Result<Option<u64>>;
}

/// A file being written, front to back. Dropping it does not make it durable: see [`Disk::sync_file`].
pub trait DiskFile: io::Write + Send + std::fmt::Debug {}

impl DiskFile for File {}

/// The operating system's file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::create(path)?))
    }

    fn append(&self, path: &Path, at: u64) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().append(true).open(path)?;
        let length = file.metadata()?.len();
        if length < at {
            return Err(shorter(length, at));
        }
        file.set_len(at)?;
        Ok(Box::new(file))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
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
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // Some file systems have no such flag. Whoever calls this holds the only lock on both names, so looking first is enough.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                if to.symlink_metadata().is_ok() {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                std::fs::rename(from, to)
            }
            result => Ok(result?),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for item in std::fs::read_dir(directory)? {
            let item = item?;
            if item.file_type()?.is_dir() {
                continue;
            }
            names.push(item.file_name().into_string().map_err(|name| {
                io::Error::new(io::ErrorKind::InvalidData, format!("the file name {name:?} is not UTF-8"))
            })?);
        }
        names.sort_unstable();
        Ok(names)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let mut missing: Vec<&Path> = path.ancestors().take_while(|part| !part.is_dir()).collect();
        while let Some(directory) = missing.pop() {
            if directory.as_os_str().is_empty() {
                continue;
            }
            match std::fs::create_dir(directory) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
                result => result?,
            }
            let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
            self.sync_directory(parent.unwrap_or(Path::new(".")))?;
        }
        Ok(())
    }

    fn length(&self, path: &Path) -> io::Result<Option<u64>> {
        match std::fs::metadata(path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn shorter(length: u64, at: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the file has {length} bytes, fewer than the {at} that belong to it"),
    )
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_real_disk_renames_only_to_a_free_name() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| directory.path().join(name));
        RealDisk.create(&a).unwrap().write_all(b"a").unwrap();
        RealDisk.create(&b).unwrap().write_all(b"b").unwrap();
        assert_eq!(RealDisk.rename(&a, &b).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        RealDisk.rename(&a, &c).unwrap();
        RealDisk.sync_directory(directory.path()).unwrap();
        assert_eq!(RealDisk.list(directory.path()).unwrap(), ["b", "c"]);
        assert_eq!(RealDisk.read(&b).unwrap(), b"b");
    }

    #[test]
    fn the_real_disk_appends_behind_a_cut_and_refuses_a_shorter_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/file");
        RealDisk.create_directory(path.parent().unwrap()).unwrap();
        RealDisk.create(&path).unwrap().write_all(b"abcdef").unwrap();
        RealDisk.append(&path, 2).unwrap().write_all(b"xy").unwrap();
        assert_eq!(RealDisk.read(&path).unwrap(), b"abxy");
        assert_eq!(RealDisk.append(&path, 5).unwrap_err().kind(), io::ErrorKind::InvalidData);
        RealDisk.write_at(&path, 1, b"BX").unwrap();
        RealDisk.sync_file(&path).unwrap();
        assert_eq!(RealDisk.read(&path).unwrap(), b"aBXy");
        assert_eq!(RealDisk.length(&path).unwrap(), Some(4));
        assert_eq!(RealDisk.length(directory.path().join("none").as_path()).unwrap(), None);
    }
}

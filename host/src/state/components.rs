//! Components that run by a reload: their bytes, kept beside the state for as long as the last committed epoch may name them.
//!
//! A component that the manifest names is found there at the next start. One that was reloaded is not, so it lies in `components/`, in a file that bears its
//! SHA-256 in hexadecimal digits and the ending `.wasm`. It is durable before an epoch that names it is sealed, its digest is checked when it is read, and it is removed once no
//! epoch that a start may begin from names it. This file knows nothing of what the bytes mean.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::StateError;
use crate::disk::Disk;

const DIRECTORY: &str = "components";
const SUFFIX: &str = ".wasm";
/// What is being written; a crash may leave it behind, and the next one takes its place.
const TEMPORARY: &str = "incoming";

/// The components kept in a state directory.
#[derive(Debug, Clone)]
pub struct Components {
    directory: PathBuf,
}

impl Components {
    /// Those of the state directory `state`.
    pub fn new(state: &Path) -> Self {
        Self { directory: state.join(DIRECTORY) }
    }

    /// Where the component with this digest lies, if it is kept.
    pub fn path(&self, sha256: &str) -> PathBuf {
        self.directory.join(format!("{sha256}{SUFFIX}"))
    }

    /// Keeps a component: it is durable when this returns. Returns its digest.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn keep(&self, disk: &dyn Disk, bytes: &[u8]) -> Result<String, StateError> {
        let sha256 = digest_of(bytes);
        let (temporary, path) = (self.directory.join(TEMPORARY), self.path(&sha256));
        let failed = |error| StateError::Io { action: "write", path: path.clone(), error };
        let write = || -> io::Result<()> {
            disk.create_directory(&self.directory)?;
            if disk.read(&path).is_ok_and(|kept| kept == bytes) {
                // Whoever wrote it may have stopped before its name was synced.
                disk.sync_file(&path)?;
                return disk.sync_directory(&self.directory);
            }
            let mut file = disk.create(&temporary)?;
            file.write_all(bytes)?;
            file.flush()?;
            drop(file);
            disk.sync_file(&temporary)?;
            if disk.length(&path)?.is_some() {
                disk.remove(&path)?;
            }
            disk.rename(&temporary, &path)?;
            disk.sync_directory(&self.directory)
        };
        write().map_err(failed)?;
        Ok(sha256)
    }

    /// The component with this digest, which `operator` is to run.
    ///
    /// # Errors
    /// When it is not there, or is not what it was.
    pub fn load(&self, disk: &dyn Disk, operator: &str, sha256: &str) -> Result<Vec<u8>, StateError> {
        let path = self.path(sha256);
        let refused = |what: String| StateError::Component { operator: operator.to_owned(), path: path.clone(), what };
        let bytes = disk.read(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => refused("is missing".to_owned()),
            _ => refused(format!("cannot be read ({error})")),
        })?;
        if digest_of(&bytes) == sha256 {
            Ok(bytes)
        } else {
            Err(refused("is damaged: its digest is another".to_owned()))
        }
    }

    /// Removes all but those with these digests.
    ///
    /// # Errors
    /// When the system refuses. Nothing is lost by that but space.
    pub fn retain(&self, disk: &dyn Disk, needed: &BTreeSet<String>) -> Result<(), StateError> {
        let names = match disk.list(&self.directory) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(StateError::Io { action: "list", path: self.directory.clone(), error }),
        };
        for name in names {
            if name.strip_suffix(SUFFIX).is_some_and(|sha256| !needed.contains(sha256)) {
                let path = self.directory.join(name);
                disk.remove(&path).map_err(|error| StateError::Io { action: "remove", path, error })?;
            }
        }
        Ok(())
    }
}

/// The SHA-256 of bytes, in hexadecimal digits.
pub fn digest_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn components_are_kept_checked_and_removed_when_nobody_needs_them() {
        let folder = tempfile::tempdir().unwrap();
        let components = Components::new(folder.path());
        components.retain(&RealDisk, &BTreeSet::new()).unwrap();
        let first = components.keep(&RealDisk, b"one").unwrap();
        let second = components.keep(&RealDisk, b"two").unwrap();
        assert_eq!(components.keep(&RealDisk, b"one").unwrap(), first);
        assert_eq!(components.load(&RealDisk, "work", &first).unwrap(), b"one");
        components.retain(&RealDisk, &BTreeSet::from([second.clone()])).unwrap();
        let gone = components.load(&RealDisk, "work", &first).unwrap_err().to_string();
        assert!(gone.contains("`work`") && gone.contains("is missing"), "{gone}");
        std::fs::write(components.path(&second), b"twx").unwrap();
        let damaged = components.load(&RealDisk, "work", &second).unwrap_err().to_string();
        assert!(damaged.contains("is damaged"), "{damaged}");
        assert_eq!(components.keep(&RealDisk, b"two").unwrap(), second);
        assert_eq!(components.load(&RealDisk, "work", &second).unwrap(), b"two");
    }
}

//! Compiled components on disk, so that a restart does not compile again.
//!
//! An entry is native code: running a foreign one would be running anything. So an entry is used only when the directory and the file belong to
//! the user who runs the job and nobody else may write them, its digest matches its content, and it was made from the same component by the same engine and settings.
//!
//! Format: `WASMILLC`, format version (u32 LE), SHA-256 of everything after it, SHA-256 of the component, the engine's compatibility hash (u64
//! LE), the code. The name is the hex of component digest and engine hash.

use std::fs;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

const MAGIC: &[u8; 8] = b"WASMILLC";
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 8 + 4 + 32 + 32 + 8;

/// The directory of compiled components, or nothing where there is no home for one.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    directory: Option<PathBuf>,
}

impl Cache {
    /// The user's cache: `$WASMILL_CACHE`, else `wasmill` under `$XDG_CACHE_HOME` or `~/.cache`.
    pub(super) fn of_user() -> Self {
        let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let directory = from("WASMILL_CACHE")
            .or_else(|| from("XDG_CACHE_HOME").map(|base| base.join("wasmill")))
            .or_else(|| from("HOME").map(|home| home.join(".cache").join("wasmill")));
        Self { directory }
    }

    #[cfg(test)]
    pub(super) fn at(directory: PathBuf) -> Self {
        Self { directory: Some(directory) }
    }

    /// The compiled form of the component with this digest, if a trustworthy one is there.
    pub(super) fn load(&self, engine: &Engine, component_digest: &[u8; 32]) -> Option<Component> {
        let path = self.path(engine, component_digest)?;
        let code = match read_trusted(&path, engine, component_digest) {
            Ok(code) => code?,
            Err(reason) => {
                tracing::warn!(path = %path.display(), "compiled code is not used: {reason}");
                return None;
            }
        };
        // SAFETY: `read_trusted` has checked that the bytes are what `store` wrote: same digest, same engine settings, a file that only this
        // user could have written.
        match unsafe { Component::deserialize(engine, &code) } {
            Ok(component) => Some(component),
            Err(error) => {
                tracing::warn!(path = %path.display(), "compiled code is not used: {error:#}");
                None
            }
        }
    }

    /// Keeps the compiled form. A failure costs only the next start, so it is logged and forgotten.
    pub(super) fn store(&self, engine: &Engine, component_digest: &[u8; 32], component: &Component) {
        let Some(path) = self.path(engine, component_digest) else { return };
        let written = component
            .serialize()
            .map_err(|error| error.to_string())
            .and_then(|code| write_entry(&path, engine, component_digest, &code).map_err(|error| error.to_string()));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), "compiled code is not kept: {error}");
        }
    }

    fn path(&self, engine: &Engine, component_digest: &[u8; 32]) -> Option<PathBuf> {
        let hex: String = component_digest.iter().map(|byte| format!("{byte:02x}")).collect();
        self.directory.as_ref().map(|directory| directory.join(format!("{hex}-{:016x}", engine_hash(engine))))
    }
}

/// A number that differs between engines whose code cannot be exchanged: wasmtime's version, settings, processor.
fn engine_hash(engine: &Engine) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}

fn read_trusted(path: &Path, engine: &Engine, component_digest: &[u8; 32]) -> Result<Option<Vec<u8>>, String> {
    let file = match fs::metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let directory = path.parent().ok_or("it has no directory")?;
    let directory = fs::metadata(directory).map_err(|error| error.to_string())?;
    let user = rustix::process::geteuid().as_raw();
    if [&file, &directory].iter().any(|place| place.uid() != user || place.mode() & 0o022 != 0) {
        return Err("somebody else owns it, or may write it".to_owned());
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    if bytes.len() < HEADER_BYTES || &bytes[..8] != MAGIC || bytes[8..12] != FORMAT.to_le_bytes() {
        return Err("it is not an entry of this cache's format".to_owned());
    }
    if Sha256::digest(&bytes[44..]).as_slice() != &bytes[12..44] {
        return Err("its digest does not match: it is damaged".to_owned());
    }
    if &bytes[44..76] != component_digest || bytes[76..84] != engine_hash(engine).to_le_bytes() {
        return Err("it was made from another component or by another engine".to_owned());
    }
    Ok(Some(bytes[HEADER_BYTES..].to_vec()))
}

fn write_entry(path: &Path, engine: &Engine, component_digest: &[u8; 32], code: &[u8]) -> std::io::Result<()> {
    let directory = path.parent().expect("an entry's path is made by joining a directory and a name");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + code.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&[0; 32]);
    bytes.extend_from_slice(component_digest);
    bytes.extend_from_slice(&engine_hash(engine).to_le_bytes());
    bytes.extend_from_slice(code);
    let digest = Sha256::digest(&bytes[44..]);
    bytes[12..44].copy_from_slice(&digest);
    // Written beside and renamed, so that a job starting at the same time reads all of it or none.
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&bytes)?;
    drop(file);
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The binary format's preamble alone: a component with nothing in it.
    const EMPTY_COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";
    const DIGEST: [u8; 32] = [7; 32];

    fn stored() -> (tempfile::TempDir, Engine, Cache, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let cache = Cache::at(directory.path().join("cache"));
        let component = Component::from_binary(&engine, EMPTY_COMPONENT).unwrap();
        cache.store(&engine, &DIGEST, &component);
        let path = cache.path(&engine, &DIGEST).unwrap();
        (directory, engine, cache, path)
    }

    #[test]
    fn what_was_stored_is_loaded_for_the_same_component_only() {
        let (_directory, engine, cache, path) = stored();
        assert!(cache.load(&engine, &DIGEST).is_some());
        let other = [8; 32];
        assert!(cache.load(&engine, &other).is_none());
        fs::copy(&path, cache.path(&engine, &other).unwrap()).unwrap();
        assert!(cache.load(&engine, &other).is_none(), "an entry under another component's name was run");
    }

    #[test]
    fn an_entry_with_any_byte_flipped_is_not_run() {
        let (_directory, engine, cache, path) = stored();
        let good = fs::read(&path).unwrap();
        let positions = (0..HEADER_BYTES).chain((HEADER_BYTES..good.len()).step_by(good.len() / 50));
        for position in positions {
            let mut bad = good.clone();
            bad[position] ^= 0x10;
            fs::write(&path, &bad).unwrap();
            assert!(cache.load(&engine, &DIGEST).is_none(), "byte {position}");
        }
        fs::write(&path, &good[..good.len() / 2]).unwrap();
        assert!(cache.load(&engine, &DIGEST).is_none());
        fs::write(&path, &good).unwrap();
        assert!(cache.load(&engine, &DIGEST).is_some());
    }

    #[test]
    fn an_entry_that_others_may_write_is_not_run() {
        let (_directory, engine, cache, path) = stored();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        set(&path, 0o620);
        assert!(cache.load(&engine, &DIGEST).is_none());
        set(&path, 0o600);
        set(path.parent().unwrap(), 0o777);
        assert!(cache.load(&engine, &DIGEST).is_none());
    }
}

//! A double of the disk for tests: it stops at a chosen step, and forgets in a crash what was not synced.
//!
//! It keeps files in memory, what is durable apart from what is merely written, and names apart from content. In a crash each unsynced change is lost, kept
//! or (a write) torn, as a seed decides; changes of one name stay in order. It is stricter than real file systems, which lose less.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, DiskFile, shorter};

/// What a crash does to changes that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    /// All are lost.
    Lost,
    /// All survive, as after a killed process.
    Kept,
    /// Each is lost, kept or torn, by this seed.
    Torn(u64),
}

/// Files in memory that can be stopped and crashed. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct CrashDisk(Arc<Mutex<State>>);

/// What a disk writes whole or not at all.
const SECTOR_BYTES: u64 = 512;

type Inode = usize;

#[derive(Debug, Default)]
struct State {
    inodes: Vec<Content>,
    names: BTreeMap<PathBuf, Inode>,
    durable_names: BTreeMap<PathBuf, Inode>,
    unsynced_names: Vec<NameChange>,
    directories: BTreeSet<PathBuf>,
    steps: u64,
    stop_at: Option<u64>,
    stopped: bool,
}

/// A file's bytes: as readers see them, as they are on disk, and the changes between the two.
#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<ContentChange>,
}

#[derive(Debug, Clone)]
enum ContentChange {
    Length(u64),
    Write { offset: u64, bytes: Vec<u8> },
}

/// Names that change together: `None` for a name that goes.
#[derive(Debug, Clone)]
struct NameChange(Vec<(PathBuf, Option<Inode>)>);

impl CrashDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets `steps` more changing calls through. The next one fails, halfway done, and so does every call after it.
    pub fn stop_after(&self, steps: u64) {
        let mut state = self.0.lock();
        state.stop_at = Some(state.steps + steps);
    }

    /// The number of changing calls so far.
    pub fn steps(&self) -> u64 {
        self.0.lock().steps
    }

    /// Whether it has been stopped.
    pub fn is_stopped(&self) -> bool {
        self.0.lock().stopped
    }

    /// The disk as it is found after a crash.
    pub fn crash(&self, unsynced: Unsynced) -> CrashDisk {
        let state = self.0.lock();
        let mut dice = Dice(if let Unsynced::Torn(seed) = unsynced { seed } else { 0 });
        let names = surviving_names(&state, unsynced, &mut dice);
        let mut after = State { directories: state.directories.clone(), ..State::default() };
        for (path, inode) in names {
            let bytes = state.inodes[inode].after_crash(unsynced, &mut dice);
            after.names.insert(path, after.inodes.len());
            after.inodes.push(Content { durable: bytes.clone(), bytes, unsynced: Vec::new() });
        }
        after.durable_names = after.names.clone();
        CrashDisk(Arc::new(Mutex::new(after)))
    }

    /// The paths of all files.
    pub fn files(&self) -> Vec<PathBuf> {
        self.0.lock().names.keys().cloned().collect()
    }

    /// Changes a file's content behind everybody's back, durably.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn damage(&self, path: &Path, damage: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.0.lock();
        let inode = state.names[path];
        let content = &mut state.inodes[inode];
        damage(&mut content.bytes);
        content.durable.clone_from(&content.bytes);
        content.unsynced.clear();
    }

    /// Puts a file with this content in place, durably.
    pub fn plant(&self, path: &Path, bytes: Vec<u8>) {
        let mut state = self.0.lock();
        let inode = state.inodes.len();
        state.inodes.push(Content { durable: bytes.clone(), bytes, unsynced: Vec::new() });
        state.names.insert(path.to_owned(), inode);
        state.durable_names.insert(path.to_owned(), inode);
    }

    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// When stopped, when there is no such file, or when it ends before.
    pub fn read_at(&self, path: &Path, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.0.lock();
        state.check()?;
        let bytes = &state.inodes[state.find(path)?].bytes;
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let part = bytes.get(start..).and_then(|rest| rest.get(..out.len())).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(part);
        Ok(())
    }

    /// Cuts a file, or lengthens it with zeros.
    ///
    /// # Errors
    /// When stopped, or when there is no such file.
    pub fn set_length(&self, path: &Path, length: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        let inode = state.find(path)?;
        state.change(|state| state.inodes[inode].change(ContentChange::Length(length)))
    }
}

impl Disk for CrashDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.0.lock();
        state.check_parent(path)?;
        let mut inode = 0;
        state.change(|state| {
            inode = state.find_or_create(path);
            if !state.inodes[inode].bytes.is_empty() {
                state.inodes[inode].change(ContentChange::Length(0));
            }
        })?;
        Ok(Box::new(CrashFile { disk: self.clone(), inode }))
    }

    fn append(&self, path: &Path, at: u64) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.0.lock();
        let inode = state.find(path)?;
        let length = state.inodes[inode].bytes.len() as u64;
        if length < at {
            return Err(shorter(length, at));
        }
        state.change(|state| {
            if length > at {
                state.inodes[inode].change(ContentChange::Length(at));
            }
        })?;
        Ok(Box::new(CrashFile { disk: self.clone(), inode }))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.0.lock();
        state.check()?;
        Ok(state.inodes[state.find(path)?].bytes.clone())
    }

    fn write_at(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        state.check_parent(path)?;
        state.change(|state| {
            let inode = state.find_or_create(path);
            state.inodes[inode].change(ContentChange::Write { offset, bytes: bytes.to_vec() });
        })
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        let inode = state.find(path)?;
        state.step()?;
        let content = &mut state.inodes[inode];
        content.durable.clone_from(&content.bytes);
        content.unsynced.clear();
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.check_directory(path)?;
        state.step()?;
        state.sync_names(path);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.check_parent(to)?;
        let inode = state.find(from)?;
        if state.names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.change(|state| state.change_names(vec![(from.to_owned(), None), (to.to_owned(), Some(inode))]))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.find(path)?;
        state.change(|state| state.change_names(vec![(path.to_owned(), None)]))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let state = self.0.lock();
        state.check()?;
        state.check_directory(directory)?;
        let within = state.names.keys().filter(|path| path.parent() == Some(directory));
        Ok(within.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.step()?;
        state.directories.extend(path.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn length(&self, path: &Path) -> io::Result<Option<u64>> {
        let state = self.0.lock();
        state.check()?;
        Ok(state.names.get(path).map(|&inode| state.inodes[inode].bytes.len() as u64))
    }
}

/// A file open for writing at its end.
#[derive(Debug)]
struct CrashFile {
    disk: CrashDisk,
    inode: Inode,
}

impl DiskFile for CrashFile {}

impl Write for CrashFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let inode = self.inode;
        self.disk.0.lock().change(|state| {
            let offset = state.inodes[inode].bytes.len() as u64;
            state.inodes[inode].change(ContentChange::Write { offset, bytes: bytes.to_vec() });
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.disk.0.lock().check()
    }
}

impl State {
    fn check(&self) -> io::Result<()> {
        if self.stopped { Err(io::Error::other("the disk has stopped")) } else { Ok(()) }
    }

    fn check_directory(&self, path: &Path) -> io::Result<()> {
        if self.directories.contains(path) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn check_parent(&self, path: &Path) -> io::Result<()> {
        self.check_directory(path.parent().unwrap_or(Path::new("")))
    }

    /// Counts a step; fails when it is the one to stop at.
    fn step(&mut self) -> io::Result<()> {
        self.check()?;
        self.stopped = self.stop_at == Some(self.steps);
        self.steps += 1;
        self.check()
    }

    /// Counts a step and makes its change, which is left unsynced even where the step is the one to stop at.
    fn change(&mut self, change: impl FnOnce(&mut Self)) -> io::Result<()> {
        self.check()?;
        change(self);
        self.step()
    }

    fn find(&self, path: &Path) -> io::Result<Inode> {
        self.check()?;
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn find_or_create(&mut self, path: &Path) -> Inode {
        if let Some(&inode) = self.names.get(path) {
            return inode;
        }
        let inode = self.inodes.len();
        self.inodes.push(Content::default());
        self.change_names(vec![(path.to_owned(), Some(inode))]);
        inode
    }

    fn change_names(&mut self, changes: Vec<(PathBuf, Option<Inode>)>) {
        apply_names(&mut self.names, &changes);
        self.unsynced_names.push(NameChange(changes));
    }

    fn sync_names(&mut self, directory: &Path) {
        let concerns = |change: &NameChange| change.0.iter().any(|(path, _)| path.parent() == Some(directory));
        let (synced, rest) = std::mem::take(&mut self.unsynced_names).into_iter().partition::<Vec<_>, _>(concerns);
        self.unsynced_names = rest;
        for change in synced {
            apply_names(&mut self.durable_names, &change.0);
        }
    }
}

impl Content {
    fn change(&mut self, change: ContentChange) {
        apply_content(&mut self.bytes, &change);
        self.unsynced.push(change);
    }

    fn after_crash(&self, unsynced: Unsynced, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for change in &self.unsynced {
            match unsynced {
                Unsynced::Lost => {}
                Unsynced::Kept => apply_content(&mut bytes, change),
                Unsynced::Torn(_) => match (dice.roll(3), change) {
                    (0, _) => {}
                    (1, ContentChange::Write { offset, bytes: written }) => {
                        apply_content(&mut bytes, &tear(*offset, written, dice));
                    }
                    _ => apply_content(&mut bytes, change),
                },
            }
        }
        bytes
    }
}

/// A part of a write: its beginning, its end, or all of it but for a sector that reads as zeros. Bytes outside the write keep what they had, as disks promise.
fn tear(offset: u64, written: &[u8], dice: &mut Dice) -> ContentChange {
    let cut = dice.roll(written.len() as u64 + 1) as usize;
    match dice.roll(3) {
        0 => ContentChange::Write { offset, bytes: written[..cut].to_vec() },
        1 => ContentChange::Write { offset: offset + cut as u64, bytes: written[cut..].to_vec() },
        _ => {
            let mut bytes = written.to_vec();
            let sector = (offset + cut as u64).next_multiple_of(SECTOR_BYTES) - offset;
            if let Some(sector) = bytes.get_mut(sector as usize..(sector + SECTOR_BYTES) as usize) {
                sector.fill(0);
            }
            ContentChange::Write { offset, bytes }
        }
    }
}

fn apply_content(bytes: &mut Vec<u8>, change: &ContentChange) {
    match change {
        ContentChange::Length(length) => bytes.resize(*length as usize, 0),
        ContentChange::Write { bytes: written, .. } if written.is_empty() => {}
        ContentChange::Write { offset, bytes: written } => {
            let start = *offset as usize;
            let end = start + written.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..end].copy_from_slice(written);
        }
    }
}

fn apply_names(names: &mut BTreeMap<PathBuf, Inode>, changes: &[(PathBuf, Option<Inode>)]) {
    for (path, inode) in changes {
        match inode {
            Some(inode) => names.insert(path.clone(), *inode),
            None => names.remove(path),
        };
    }
}

fn surviving_names(state: &State, unsynced: Unsynced, dice: &mut Dice) -> BTreeMap<PathBuf, Inode> {
    let mut names = state.durable_names.clone();
    let mut lost: HashSet<&PathBuf> = HashSet::new();
    for NameChange(changes) in &state.unsynced_names {
        let is_lost = match unsynced {
            Unsynced::Lost => true,
            Unsynced::Kept => false,
            Unsynced::Torn(_) => dice.roll(2) == 0 || changes.iter().any(|(path, _)| lost.contains(path)),
        };
        if is_lost {
            lost.extend(changes.iter().map(|(path, _)| path));
        } else {
            apply_names(&mut names, changes);
        }
    }
    names
}

/// Random numbers from a seed: SplitMix64 (Steele, Lea and Flood, 2014).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(disk: &CrashDisk, path: &str, bytes: &[u8]) -> io::Result<()> {
        disk.create(Path::new(path))?.write_all(bytes)
    }

    fn with_directory() -> CrashDisk {
        let disk = CrashDisk::new();
        disk.create_directory(Path::new("/d")).unwrap();
        disk
    }

    #[test]
    fn content_and_name_each_need_their_sync() {
        let disk = with_directory();
        write(&disk, "/d/content", b"abc").unwrap();
        disk.sync_file(Path::new("/d/content")).unwrap();
        assert_eq!(disk.crash(Unsynced::Lost).files(), [] as [PathBuf; 0]);
        disk.sync_directory(Path::new("/d")).unwrap();
        write(&disk, "/d/name", b"abc").unwrap();
        disk.sync_directory(Path::new("/d")).unwrap();
        let after = disk.crash(Unsynced::Lost);
        assert_eq!(after.read(Path::new("/d/content")).unwrap(), b"abc");
        assert_eq!(after.read(Path::new("/d/name")).unwrap(), b"");
        assert_eq!(disk.crash(Unsynced::Kept).read(Path::new("/d/name")).unwrap(), b"abc");
    }

    #[test]
    fn after_the_stop_every_call_fails() {
        let disk = with_directory();
        disk.stop_after(1);
        let mut file = disk.create(Path::new("/d/f")).unwrap();
        assert!(file.write_all(b"abc").is_err());
        assert!(disk.is_stopped());
        assert!(disk.read(Path::new("/d/f")).is_err());
        assert!(disk.sync_file(Path::new("/d/f")).is_err());
        assert_eq!(disk.crash(Unsynced::Kept).read(Path::new("/d/f")).unwrap(), b"abc");
    }

    #[test]
    fn torn_writes_come_in_many_shapes() {
        let disk = with_directory();
        write(&disk, "/d/f", b"abcdefgh").unwrap();
        disk.sync_directory(Path::new("/d")).unwrap();
        let shapes: BTreeSet<Vec<u8>> =
            (0..200).map(|seed| disk.crash(Unsynced::Torn(seed)).read(Path::new("/d/f")).unwrap()).collect();
        assert!(shapes.contains(b"".as_slice()) && shapes.contains(b"abcdefgh".as_slice()));
        assert!(shapes.len() > 10, "{shapes:?}");
    }

    #[test]
    fn rename_refuses_an_existing_name() {
        let disk = with_directory();
        write(&disk, "/d/a", b"a").unwrap();
        write(&disk, "/d/b", b"b").unwrap();
        let error = disk.rename(Path::new("/d/a"), Path::new("/d/b")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(disk.list(Path::new("/d")).unwrap(), ["a", "b"]);
    }
}

//! Moves in real files that are interrupted at every step, against a plain map.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;
use crate::disk::{DiskFile, RealDisk};
use crate::epoch::Digest;
use crate::epoch::entry::Entry;
use crate::key::Partition;
use crate::state::offline::Reader;
use crate::state::versions::When;
use crate::state::{OpenOptions, StateStore, TableSpec, Write};

const PARTITIONS: u16 = 8;
const TABLE: &str = "operator/table";

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// The real file system, up to a number of changes.
#[derive(Debug)]
struct Stopping(AtomicUsize);

impl Stopping {
    fn step(&self) -> io::Result<()> {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map(|_| ()).map_err(|_| io::Error::other("stopped"))
    }
}

impl Disk for Stopping {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.step()?;
        RealDisk.create(path)
    }

    fn append(&self, path: &Path, at: u64) -> io::Result<Box<dyn DiskFile>> {
        self.step()?;
        RealDisk.append(path, at)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        RealDisk.read(path)
    }

    fn write_at(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.step()?;
        RealDisk.write_at(path, offset, bytes)
    }

    fn sync_file(&self, _: &Path) -> io::Result<()> {
        self.step()
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        self.step()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        RealDisk.remove(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(directory)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        RealDisk.create_directory(path)
    }

    fn length(&self, path: &Path) -> io::Result<Option<u64>> {
        RealDisk.length(path)
    }
}

/// Runs a job on one host: in each epoch some keys change, and some go. The first epochs are in redb, the last one in the log alone.
fn run(root: &Path, epochs: Epoch, value_bytes: usize) -> Model {
    let options = OpenOptions { partitions: PARTITIONS, ..OpenOptions::default() };
    let mut opened = StateStore::open(root, Arc::new(RealDisk), &fingerprint(), options).unwrap();
    let spec = [TableSpec { name: TABLE.into(), schema_version: 7, ordered: true, versioned_span_ms: None }];
    let task = opened.store.open_task(0..PARTITIONS, &spec).unwrap();
    let mut model = Model::new();
    for epoch in 1..=epochs {
        for number in (0..40).filter(|number| epoch == 1 || number % 4 == epoch % 4) {
            let key = format!("k{number}").into_bytes();
            let value = (number % 5 != epoch).then(|| vec![epoch as u8; value_bytes]);
            task.apply([Write { table: 0, key: &key, value: value.as_deref(), when: When::NEWEST }]).unwrap();
            match value {
                Some(value) => _ = model.insert(key, value),
                None => _ = model.remove(&key),
            }
        }
        let (attempt, deltas) = (opened.attempt, task.seal());
        let entry = Entry { epoch, attempt, deltas, published: epoch - 1, ..Entry::default() };
        opened.committer.append(&entry).unwrap();
        opened.committer.commit(entry).unwrap();
        if epoch == epochs - 1 {
            opened.store.flush().unwrap();
        }
    }
    model
}

fn fingerprint() -> Value {
    json!({ "job": "test" })
}

/// Moves what is below `root` to the hosts `to`, which share out partitions in turn; says where it came from, unless it is there already.
fn move_to(disk: Arc<dyn Disk>, root: &Path, to: &[&str]) -> Result<Option<Vec<String>>, StateError> {
    let hosts: Vec<String> = to.iter().map(|host| (*host).to_owned()).collect();
    let (mut moving, _) = Moving::begin(disk, root)?;
    let layout = moving.find(|found| *found == fingerprint())?;
    let leaving = moving.leave(&layout)?;
    if layout.hosts == hosts {
        moving.stay(&layout)?;
        return Ok(None);
    }
    let (from, names) = (layout.names(), Layout::names_of(&hosts));
    let epoch = leaving[0].epoch();
    moving.make_room(&from, &names)?;
    let mut digests = vec![Digest::default(); names.len()];
    for (index, host) in names.iter().enumerate().rev() {
        let attempt = leaving.iter().map(Leaving::attempt).max().unwrap() + 1;
        let base = Base {
            job: draw_id(),
            partitions: PARTITIONS,
            fingerprint: fingerprint(),
            entry: Entry { epoch: epoch + 1, attempt, published: epoch, ..Entry::default() },
            shared: !hosts.is_empty(),
            tables: leaving[0].tables().clone(),
        };
        let mut arriving = moving.arrive(host, base)?;
        for partition in (0..PARTITIONS).filter(|partition| usize::from(*partition) % names.len() == index) {
            for leaving in &leaving {
                for row in leaving.rows(TABLE, Partition(partition))? {
                    let (version, cell) = row?;
                    assert_eq!((version, cell.is_present()), (7, true));
                    arriving.put(&TABLE.into(), Partition(partition), version, cell)?;
                }
            }
        }
        digests[index] = arriving.digest();
        let record = CommitRecord { epoch: epoch + 1, attempt, digests: digests.clone() };
        arriving.complete((index == 0 && !hosts.is_empty()).then_some((&hosts, &record)))?;
    }
    drop(leaving);
    moving.conclude(epoch, &from, &names)?;
    Ok(Some(from))
}

fn directory(root: &Path, host: &str) -> PathBuf {
    if host.is_empty() { root.to_owned() } else { root.join(host) }
}

/// What the hosts hold as of `epoch`, of whose keys no two hosts have one.
fn held(root: &Path, hosts: &[&str], epoch: Epoch) -> Model {
    let mut all = Model::new();
    for host in hosts {
        let reader = Reader::open(&directory(root, host)).unwrap();
        assert_eq!(reader.epoch(), epoch);
        for (key, value) in reader.scan(TABLE, b"", None, usize::MAX).unwrap() {
            assert_eq!(all.insert(key, value.bytes), None);
        }
    }
    all
}

/// Whether the directories are as they were, and may be started.
fn are_untouched(root: &Path, hosts: &[&str]) -> bool {
    hosts.iter().all(|host| {
        let paths = Paths::new(&directory(root, host));
        paths.identity.exists() && !paths.moved.exists() && !root.join(DECIDED).exists()
    })
}

#[test]
fn a_move_may_be_interrupted_at_every_step() {
    let ways: [(&[&str], &[&str]); 5] = [
        (&[""], &["a", "b", "c"]),
        (&["a", "b", "c"], &["b", "c"]),
        (&["b", "c"], &["a", "b"]),
        (&["a", "b"], &["b"]),
        (&["b"], &[""]),
    ];
    for (way, (from, to)) in ways.iter().enumerate() {
        let (mut steps, mut untouched, mut is_over) = (way % 3, 0, false);
        while !is_over {
            let root = tempfile::tempdir().unwrap();
            let model = run(root.path(), 5, 3);
            let mut epoch = 5;
            for (_, to) in &ways[..way] {
                move_to(Arc::new(RealDisk), root.path(), to_hosts(to)).unwrap();
                epoch += 1;
            }
            let stopping: Arc<dyn Disk> = Arc::new(Stopping(AtomicUsize::new(steps)));
            is_over = move_to(stopping, root.path(), to_hosts(to)).is_ok();
            if are_untouched(root.path(), from) {
                assert_eq!(held(root.path(), from, epoch), model, "{from:?} after {steps} steps");
                untouched += 1;
            } else if !is_over {
                let is_refused = |host: &&str| Reader::open(&directory(root.path(), host)).is_err();
                assert!(from.iter().any(is_refused), "{from:?} after {steps} steps");
            }
            move_to(Arc::new(RealDisk), root.path(), to_hosts(to)).unwrap();
            assert_eq!(held(root.path(), to, epoch + 1), model, "{to:?} after {steps} steps");
            for gone in from.iter().filter(|host| !to.contains(host)) {
                let error = Reader::open(&directory(root.path(), gone)).unwrap_err();
                assert!(matches!(error, StateError::Moved { .. }), "{error}");
            }
            for host in *from {
                let aside = aside(&directory(root.path(), host), epoch);
                assert!(matches!(Reader::open(&aside), Err(StateError::Moved { .. })), "{}", aside.display());
            }
            assert_eq!(move_to(Arc::new(RealDisk), root.path(), to_hosts(to)).unwrap(), None);
            steps += 3;
        }
        assert!(untouched > 3 && steps > 30, "{untouched} of {steps}");
    }
}

/// The hosts of a manifest: none for the empty name.
fn to_hosts<'a>(names: &'a [&'a str]) -> &'a [&'a str] {
    if names == [""] { &[] } else { names }
}

#[test]
fn a_job_that_has_committed_nothing_moves_too() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), 0, 0);
    move_to(Arc::new(RealDisk), root.path(), &["a", "b"]).unwrap();
    move_to(Arc::new(RealDisk), root.path(), &["b", "c"]).unwrap();
    let epochs = ["b", "c"].map(|host| Reader::open(&root.path().join(host)).unwrap().epoch());
    assert_eq!(epochs, [2, 2]);
}

#[test]
fn what_an_interrupted_move_has_left_is_removed_by_one_that_goes_elsewhere() {
    let root = tempfile::tempdir().unwrap();
    let model = run(root.path(), 3, 3);
    move_to(Arc::new(Stopping(AtomicUsize::new(25))), root.path(), &["a", "b", "c"]).unwrap_err();
    assert!(root.path().join("c/rescale.new").exists());
    assert_eq!(move_to(Arc::new(RealDisk), root.path(), &[]).unwrap(), None);
    assert!(!root.path().join("c/rescale.new").exists());
    assert_eq!(held(root.path(), &[""], 3), model);
}

#[test]
fn what_was_moved_away_and_is_put_back_is_not_moved_again() {
    let root = tempfile::tempdir().unwrap();
    run(root.path(), 3, 3);
    move_to(Arc::new(RealDisk), root.path(), &["a", "b"]).unwrap();
    for host in ["a", "b"] {
        std::fs::remove_dir_all(root.path().join(host)).unwrap();
    }
    let aside = aside(root.path(), 3);
    std::fs::remove_file(root.path().join("rescale.moved")).unwrap();
    for item in std::fs::read_dir(&aside).unwrap() {
        let item = item.unwrap();
        std::fs::rename(item.path(), root.path().join(item.file_name())).unwrap();
    }
    for to in [&["a", "b"] as &[&str], &[]] {
        let refused = move_to(Arc::new(RealDisk), root.path(), to).unwrap_err();
        assert!(matches!(refused, StateError::Moved { .. }), "{refused}");
    }
}

#[test]
fn what_is_larger_than_what_is_gathered_at_once_comes_whole() {
    let root = tempfile::tempdir().unwrap();
    let model = run(root.path(), 2, 1 << 20);
    move_to(Arc::new(RealDisk), root.path(), &["a", "b"]).unwrap();
    assert_eq!(held(root.path(), &["a", "b"], 3), model);
    move_to(Arc::new(RealDisk), root.path(), &[]).unwrap();
    assert_eq!(held(root.path(), &[""], 4), model);
}

//! The file sink after a crash: what is committed is there, once, and what is not is gone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::super::Sink;
use super::super::files::FilesDirectory;
use super::super::files_recovery::OWNER;
use super::outputs::{batch, listing, sink, visible, write};
use super::*;
use crate::disk::{Disk, DiskFile, RealDisk};
use crate::epoch::Epoch;
use crate::epoch::entry::SinkSeal;
use crate::time::Clock;

const FIRST: &str = "part-00000000000000000001.txt";

/// A directory with epoch 1 sealed and synced, but not published.
fn sealed(settings: &str) -> (Room, FilesDirectory, SinkSeal) {
    let room = Room::new();
    let sink = sink(&room, settings, &Clock::manual());
    sink.recover(JOB, &[], None).unwrap();
    let mut writer = sink.writer(None).unwrap();
    write(&mut *writer, &["a", "b"]);
    let seal = writer.seal(1, false).unwrap();
    sink.sync(&seal).unwrap();
    (room, sink, seal)
}

#[test]
fn committed_files_are_published_whether_or_not_they_were() {
    let (room, sink, seal) = sealed("");
    room.write("out/.part-77.txt.tmp", "never committed");
    for _ in 0..3 {
        sink.recover(JOB, &[(1, seal.clone())], Some(&seal)).unwrap();
        assert_eq!(listing(&room), [(FIRST.to_owned(), "a\nb\n".to_owned())]);
    }
}

#[test]
fn a_committed_file_that_is_missing_or_damaged_is_an_error_and_nothing_is_removed() {
    let check = |damage: fn(&Path), published: bool, expected: &str| {
        let (room, sink, seal) = sealed("");
        if published {
            sink.publish(&seal).unwrap();
        }
        room.write("out/.part-77.txt.tmp", "never committed");
        let name = if published { FIRST } else { &seal.prepared[0].temporary };
        damage(&room.path().join("out").join(name));
        let error = sink.recover(JOB, &[(1, seal.clone())], Some(&seal)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(room.path().join("out/.part-77.txt.tmp").exists());
    };
    for published in [false, true] {
        check(|path| std::fs::remove_file(path).unwrap(), published, "is not there");
        check(|path| std::fs::write(path, "a\n").unwrap(), published, "it has only 2 bytes");
        check(|path| std::fs::write(path, "a\nc\n").unwrap(), published, "its content is another");
    }
}

#[test]
fn a_job_that_starts_from_nothing_refuses_other_output() {
    let room = Room::new();
    room.write(&format!("out/{FIRST}"), "another's");
    let exactly_once = sink(&room, "", &Clock::manual());
    let error = exactly_once.recover(JOB, &[], None).unwrap_err().to_string();
    assert!(error.contains(FIRST) && error.contains("another `path`"), "{error}");
    sink(&room, "delivery = 'at-least-once'", &Clock::manual()).recover(JOB, &[], None).unwrap();
    std::fs::remove_file(room.path().join("out").join(FIRST)).unwrap();
    room.write("out/part-of-speech.txt", "not ours");
    exactly_once.recover(JOB, &[], None).unwrap();
}

#[test]
fn a_directory_bears_the_mark_of_its_job_and_refuses_any_other() {
    let room = Room::new();
    let sink = sink(&room, "", &Clock::manual());
    sink.recover(JOB, &[], None).unwrap();
    let mark = room.path().join("out").join(OWNER);
    assert_eq!(std::fs::read_to_string(&mark).unwrap(), "0123456789abcdef0123456789abcdef\n");
    sink.recover(JOB, &[], None).unwrap();
    // Also with a history, and where nothing is left of the output.
    for last in [None, Some(&SinkSeal::default())] {
        let error = sink.recover(JobId(7), &[], last).unwrap_err().to_string();
        let said = ["out/.wasmill-job", "job 0123456789abcdef0123456789abcdef", "job 00000000000000000000000000000007"];
        assert!(said.iter().all(|said| error.contains(said)) && error.contains("put back"), "{error}");
    }
    std::fs::write(&mark, "0123").unwrap();
    let error = sink.recover(JOB, &[], None).unwrap_err().to_string();
    assert!(error.contains("does not hold the id of a job") && error.contains("restore it"), "{error}");
    // Whoever moved the whole directory away gets a new one.
    std::fs::remove_dir_all(room.path().join("out")).unwrap();
    sink.recover(JOB, &[], Some(&SinkSeal::default())).unwrap();
    assert!(mark.exists());
}

#[test]
fn at_least_once_output_has_no_mark() {
    let room = Room::new();
    sink(&room, "delivery = 'at-least-once'", &Clock::manual()).recover(JOB, &[], None).unwrap();
    assert!(!room.path().join("out").join(OWNER).exists());
}

#[test]
fn an_open_file_is_cut_to_what_is_committed_and_gone_on_with() {
    let (room, sink, seal) = sealed("roll = '1h'");
    let open = seal.open.clone().unwrap();
    let path = room.path().join("out").join(&open.temporary);
    room.write(&format!("out/{}", open.temporary), "a\nb\nnever committed\n");
    sink.recover(JOB, &[(1, seal.clone())], Some(&seal)).unwrap();
    let mut writer = sink.writer(Some(&seal)).unwrap();
    write(&mut *writer, &["c"]);
    let next = writer.seal(2, true).unwrap();
    sink.sync(&next).unwrap();
    sink.publish(&next).unwrap();
    assert_eq!(listing(&room), [(FIRST.to_owned(), "a\nb\nc\n".to_owned())]);
    for damaged in ["a\n", "a\nc\n"] {
        std::fs::write(&path, damaged).unwrap();
        assert!(sink.recover(JOB, &[], Some(&seal)).is_err());
    }
    std::fs::remove_file(&path).unwrap();
    assert!(sink.recover(JOB, &[], Some(&seal)).unwrap_err().to_string().contains("is not there"));
}

#[test]
fn a_sink_made_at_least_once_publishes_what_was_committed() {
    let (room, _, seal) = sealed("roll = '1h'");
    let open = seal.open.clone().unwrap();
    room.write(&format!("out/{}", open.temporary), "a\nb\nnever committed\n");
    for _ in 0..2 {
        sink(&room, "delivery = 'at-least-once'", &Clock::manual())
            .recover(JOB, &[(1, seal.clone())], Some(&seal))
            .unwrap();
        assert_eq!(visible(&room), [(FIRST.to_owned(), "a\nb\n".to_owned())]);
    }
}

/// The machine's disk until its budget of changes is spent; then every change fails, the last one half done.
#[derive(Debug, Clone)]
struct FailingDisk(Arc<AtomicUsize>);

impl FailingDisk {
    fn spend(&self) -> io::Result<()> {
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map(drop).map_err(|_| io::Error::other("the process was killed"))
    }
}

#[derive(Debug)]
struct FailingFile(Box<dyn DiskFile>, FailingDisk);

impl io::Write for FailingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.1.spend() {
            self.0.write_all(&bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl DiskFile for FailingFile {}

impl Disk for FailingDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.spend()?;
        Ok(Box::new(FailingFile(RealDisk.create(path)?, self.clone())))
    }

    fn append(&self, path: &Path, at: u64) -> io::Result<Box<dyn DiskFile>> {
        self.spend()?;
        Ok(Box::new(FailingFile(RealDisk.append(path, at)?, self.clone())))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        RealDisk.read(path)
    }

    fn write_at(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.spend()?;
        RealDisk.write_at(path, offset, bytes)
    }

    fn sync_file(&self, _: &Path) -> io::Result<()> {
        self.spend()
    }

    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        self.spend()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.spend()?;
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.spend()?;
        RealDisk.remove(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(directory)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.spend()?;
        RealDisk.create_directory(path)
    }

    fn length(&self, path: &Path) -> io::Result<Option<u64>> {
        RealDisk.length(path)
    }
}

/// What the job would have in its log: each epoch's seal, and the last epoch known to be published when it was sealed.
#[derive(Default)]
struct Log {
    seals: Vec<(Epoch, SinkSeal)>,
    published: Epoch,
}

const EPOCHS: [&[&str]; 6] = [&["a", "b"], &[], &["c"], &["d", "e"], &[], &["f"]];

/// Runs the job from the end of its log until all epochs are published or the disk fails.
fn run(room: &Room, roll: &str, disk: FailingDisk, log: &mut Log) -> Result<(), ConnectorError> {
    let clock = Clock::manual();
    let manifest = toml::from_str(&format!("path = 'out'\n{roll}")).unwrap();
    let sink = FilesDirectory::new(&manifest, room.path(), Arc::new(disk), clock.clone())?;
    let unpublished: Vec<_> = log.seals.iter().filter(|(epoch, _)| *epoch > log.published).cloned().collect();
    let last = log.seals.last().map(|(_, seal)| seal.clone());
    sink.recover(JOB, &unpublished, last.as_ref())?;
    let mut published = log.seals.len() as Epoch;
    let mut writer = sink.writer(last.as_ref())?;
    for (epoch, values) in (1..).zip(EPOCHS).skip(log.seals.len()) {
        writer.write(&batch(values))?;
        let seal = writer.seal(epoch, epoch == EPOCHS.len() as Epoch)?;
        sink.sync(&seal)?;
        log.seals.push((epoch, seal.clone()));
        log.published = published;
        sink.publish(&seal)?;
        published = epoch;
        clock.advance(Duration::from_secs(4));
    }
    Ok(())
}

fn check_every_crash(roll: &str, files: usize) {
    let expected = EPOCHS.concat().join("\n") + "\n";
    let mut finished_at_once = false;
    for budget in 0.. {
        let room = Room::new();
        let mut log = Log::default();
        finished_at_once = run(&room, roll, FailingDisk(Arc::new(AtomicUsize::new(budget))), &mut log).is_ok();
        // Two more crashes soon after, then undisturbed.
        for more in [budget % 7, budget % 5, usize::MAX] {
            let outcome = run(&room, roll, FailingDisk(Arc::new(AtomicUsize::new(more))), &mut log);
            assert!(outcome.is_ok() || more < 7, "{outcome:?}");
        }
        assert!(listing(&room).iter().all(|(name, _)| !name.starts_with('.')));
        let content: String = listing(&room).into_iter().map(|(_, content)| content).collect();
        assert_eq!(content, expected, "killed after {budget} changes");
        if finished_at_once {
            assert!(budget > 10);
            assert_eq!(visible(&room).len(), files);
            break;
        }
    }
    assert!(finished_at_once);
}

#[test]
fn killed_at_any_change_the_output_comes_out_whole_and_once() {
    check_every_crash("", 4);
}

#[test]
fn killed_at_any_change_files_that_span_epochs_come_out_whole_and_once() {
    check_every_crash("roll = '10s'", 2);
}

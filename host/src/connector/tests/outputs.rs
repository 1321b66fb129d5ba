//! What sinks write, while nothing fails.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::super::blackhole::Blackhole;
use super::super::files::FilesDirectory;
use super::super::files_recovery::OWNER;
use super::super::stdout::Stdout;
use super::super::{Sink, SinkWriter};
use super::*;
use crate::disk::{Disk, RealDisk};
use crate::epoch::entry::SinkSeal;
use crate::time::Clock;

pub fn sink(room: &Room, settings: &str, clock: &Clock) -> FilesDirectory {
    let manifest = toml::from_str(&format!("path = 'out'\n{settings}")).unwrap();
    FilesDirectory::new(&manifest, room.path(), Arc::new(RealDisk), clock.clone()).unwrap()
}

pub fn write(writer: &mut dyn SinkWriter, values: &[&str]) {
    writer.write(&batch(values)).unwrap();
}

pub fn batch(values: &[&str]) -> Batch {
    let mut batch = Batch::default();
    values.iter().for_each(|value| batch.push(b"key", value.as_bytes(), 7));
    batch
}

/// The names in the output directory, but for the mark of its job, and what the files hold.
pub fn listing(room: &Room) -> Vec<(String, String)> {
    let mut names = RealDisk.list(&room.path().join("out")).unwrap();
    names.retain(|name| name != OWNER);
    let content = |name: &String| std::fs::read_to_string(room.path().join("out").join(name)).unwrap();
    names.into_iter().map(|name| (name.clone(), content(&name))).collect()
}

pub fn visible(room: &Room) -> Vec<(String, String)> {
    listing(room).into_iter().filter(|(name, _)| !name.starts_with('.')).collect()
}

fn commit(sink: &dyn Sink, seal: &SinkSeal) {
    sink.sync(seal).unwrap();
    sink.publish(seal).unwrap();
}

fn file(name: &str, content: &str) -> (String, String) {
    (name.to_owned(), content.to_owned())
}

#[test]
fn output_appears_with_its_epoch_s_publication_and_empty_epochs_make_no_file() {
    let room = Room::new();
    let sink = sink(&room, "", &Clock::manual());
    sink.recover(JOB, &[], None).unwrap();
    let mut writer = sink.writer(None).unwrap();
    write(&mut *writer, &["a", "b"]);
    write(&mut *writer, &["c"]);
    writer.flush().unwrap();
    let first = writer.seal(1, false).unwrap();
    write(&mut *writer, &["d"]);
    sink.sync(&first).unwrap();
    assert_eq!(visible(&room), []);
    sink.publish(&first).unwrap();
    assert_eq!(visible(&room), [file("part-00000000000000000001.txt", "a\nb\nc\n")]);
    assert_eq!(first.prepared[0].length, 6);
    assert_eq!(first.prepared[0].digest, xxhash_rust::xxh3::xxh3_64(b"a\nb\nc\n"));
    commit(&sink, &writer.seal(2, false).unwrap());
    let empty = writer.seal(3, false).unwrap();
    assert_eq!(empty, SinkSeal::default());
    commit(&sink, &empty);
    assert_eq!(visible(&room)[1..], [file("part-00000000000000000002.txt", "d\n")]);
    assert_eq!(listing(&room).len(), 2);
}

#[test]
fn a_file_spans_epochs_until_it_is_time_to_roll() {
    let (room, clock) = (Room::new(), Clock::manual());
    let sink = sink(&room, "roll = '10s'\nformat = 'csv'\ncolumns = ['key', 'value']", &clock);
    sink.recover(JOB, &[], None).unwrap();
    let mut writer = sink.writer(None).unwrap();
    let mut seal = |epoch, values: &[&str], last| {
        write(&mut *writer, values);
        let seal = writer.seal(epoch, last).unwrap();
        commit(&sink, &seal);
        clock.advance(Duration::from_secs(4));
        seal
    };
    assert_eq!(seal(1, &[], false), SinkSeal::default());
    let open = seal(2, &["a"], false).open.unwrap();
    assert_eq!((open.first_epoch, open.length), (2, "key,value\nkey,a\n".len() as u64));
    assert_eq!(seal(3, &[], false).open, Some(open));
    assert_eq!(seal(4, &["b"], false).open.unwrap().first_epoch, 2);
    assert_eq!(visible(&room), []);
    assert_eq!(seal(5, &[], false).open, None);
    assert_eq!(visible(&room), [file("part-00000000000000000002.csv", "key,value\nkey,a\nkey,b\n")]);
    assert_eq!(seal(6, &["c"], true).open, None);
    assert_eq!(visible(&room)[1..], [file("part-00000000000000000006.csv", "key,value\nkey,c\n")]);
}

#[test]
fn at_least_once_output_is_visible_when_flushed_and_names_never_come_again() {
    let room = Room::new();
    for attempt in 0..2u64 {
        let sink = sink(&room, "delivery = 'at-least-once'\nformat = 'jsonl'", &Clock::manual());
        assert!(!sink.is_exactly_once());
        sink.recover(JOB, &[], None).unwrap();
        let mut writer = sink.writer(None).unwrap();
        write(&mut *writer, &["1"]);
        writer.flush().unwrap();
        let name = format!("part-{:020}.jsonl", 2 * attempt);
        let line = "{\"key\":\"key\",\"time\":7,\"value\":1}\n";
        assert_eq!(visible(&room).last(), Some(&file(&name, line)));
        commit(&sink, &writer.seal(1, false).unwrap());
        write(&mut *writer, &["1"]);
        commit(&sink, &writer.seal(2, true).unwrap());
        assert_eq!(visible(&room).len() as u64, 2 * attempt + 2);
    }
}

#[test]
fn a_name_that_is_taken_is_never_replaced() {
    let room = Room::new();
    let sink = sink(&room, "", &Clock::manual());
    sink.recover(JOB, &[], None).unwrap();
    let mut writer = sink.writer(None).unwrap();
    write(&mut *writer, &["a"]);
    let seal = writer.seal(1, false).unwrap();
    room.write("out/part-00000000000000000001.txt", "another's");
    sink.sync(&seal).unwrap();
    assert!(sink.publish(&seal).unwrap_err().to_string().contains("move it away"));
    assert_eq!(visible(&room), [file("part-00000000000000000001.txt", "another's")]);
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn standard_output_gets_records_when_flushed_or_sealed() {
    let output = Shared::default();
    let sink = Stdout::writing(&toml::from_str("").unwrap(), Box::new(output.clone())).unwrap();
    let mut writer = sink.writer(None).unwrap();
    write(&mut *writer, &["a"]);
    writer.flush().unwrap();
    assert_eq!(*output.0.lock(), b"a\n");
    write(&mut *writer, &["b"]);
    assert_eq!(writer.seal(1, false).unwrap(), SinkSeal::default());
    assert_eq!(*output.0.lock(), b"a\nb\n");
    assert!(!sink.is_exactly_once());
    assert!(sink.writer(None).is_err());
}

#[test]
fn a_blackhole_counts() {
    let sink = Blackhole::default();
    let mut writer = sink.writer(None).unwrap();
    write(&mut *writer, &["a", "b"]);
    write(&mut *writer, &["c"]);
    assert_eq!(sink.count(), 3);
}

//! Files that change while they are read.

use std::fs::OpenOptions;
use std::io::Write;

use super::*;

fn append(path: &Path, text: &str) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

fn followed(room: &Room, format: &str) -> Box<dyn SplitReader> {
    let source = room.file("in", &format!("format = '{format}'\nfollow = true"));
    assert!(source.is_followed());
    source.open("in", None).unwrap()
}

/// What a read brings now.
fn now(reader: &mut dyn SplitReader) -> Vec<String> {
    let mut seen = Seen::default();
    assert_eq!(read_to_end(reader, &mut seen), ReadOutcome::Idle);
    assert_eq!(seen.bad, []);
    seen.records.into_iter().map(|record| record.1).collect()
}

#[test]
fn a_growing_file_is_read_as_its_lines_are_ended() {
    let room = Room::new();
    let path = room.write("in", "");
    let mut reader = followed(&room, "lines");
    assert!(now(&mut *reader).is_empty());
    append(&path, "\u{feff}one\ntw");
    assert_eq!(now(&mut *reader), ["one"]);
    let position = reader.position();
    append(&path, "o\r");
    assert!(now(&mut *reader).is_empty());
    assert_eq!(reader.position(), position);
    append(&path, "\nthree\n");
    assert_eq!(now(&mut *reader), ["two", "three"]);
    let mut resumed = room.file("in", "format = 'lines'\nfollow = true").open("in", Some(&position)).unwrap();
    assert_eq!(now(&mut *resumed), ["two", "three"]);
}

#[test]
fn a_growing_csv_file_may_begin_without_its_header() {
    let room = Room::new();
    let path = room.write("in", "");
    let mut reader = followed(&room, "csv");
    assert!(now(&mut *reader).is_empty());
    append(&path, "a,b");
    assert!(now(&mut *reader).is_empty());
    append(&path, "\n1,\"x\n");
    assert!(now(&mut *reader).is_empty());
    append(&path, "y\"\n");
    assert_eq!(now(&mut *reader), [r#"{"a":"1","b":"x\ny"}"#]);
}

#[test]
fn an_unended_line_that_is_too_long_waits_for_its_end() {
    let room = Room::new();
    let path = room.write("in", format!("one\n{}", "x".repeat(500_000)));
    let source = room.file("in", "format = 'lines'\nfollow = true\nrecord-max = 100");
    let mut reader = source.open("in", None).unwrap();
    assert_eq!(now(&mut *reader), ["one"]);
    let position = reader.position();
    assert!(now(&mut *reader).is_empty());
    assert_eq!(reader.position(), position);
    append(&path, "x\ntwo\n");
    for mut reader in [reader, source.open("in", Some(&position)).unwrap()] {
        let mut seen = Seen::default();
        read_to_end(&mut *reader, &mut seen);
        assert_eq!(seen.values(), ["two"]);
        assert_eq!(seen.bad[0].place, "in:2, byte 4");
    }
}

/// The error of a followed file that was read to its end and then changed.
fn error_after(change: impl FnOnce(&Path)) -> String {
    let room = Room::new();
    let path = room.write("in", "one\ntwo\n");
    let mut reader = followed(&room, "lines");
    assert_eq!(now(&mut *reader), ["one", "two"]);
    change(&path);
    read(&mut *reader, 10, &mut Seen::default()).unwrap_err().to_string()
}

#[test]
fn a_followed_file_may_not_shrink_change_or_be_replaced() {
    let check = |change: fn(&Path), expected: &str| {
        let error = error_after(change);
        assert!(error.contains(expected) && error.contains("/in`"), "{error}");
    };
    check(|path| std::fs::write(path, "one\n").unwrap(), "shrank to 4 bytes");
    check(|path| std::fs::write(path, "eins\nzwei\ndrei\n").unwrap(), "content before that was changed");
    check(|path| std::fs::remove_file(path).unwrap(), "it was removed");
    let replace = |path: &Path| {
        let other = path.with_file_name("other");
        std::fs::write(&other, "one\ntwo\nthree\n").unwrap();
        std::fs::rename(&other, path).unwrap();
    };
    check(replace, "another file took its place");
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let room = Room::new();
    let path = room.write("in", "line\n".repeat(200_000));
    let mut reader = room.file("in", "format = 'lines'").open("in", None).unwrap();
    read(&mut *reader, 10, &mut Seen::default()).unwrap();
    std::fs::write(&path, "line\n".repeat(100_000)).unwrap();
    let error = read(&mut *reader, usize::MAX, &mut Seen::default()).unwrap_err().to_string();
    assert!(error.contains("shrank to 500000 bytes"), "{error}");
}

#[test]
fn new_files_appear_as_splits_and_compressed_ones_are_complete() {
    let room = Room::new();
    std::fs::create_dir(room.path().join("in")).unwrap();
    let source = room.file("in", "format = 'lines'\nfollow = true");
    assert!(source.splits().unwrap().is_empty());
    room.write("in/a", "one\n");
    room.write("in/b.zst", zstd::encode_all(b"two".as_slice(), 1).unwrap());
    assert_eq!(source.splits().unwrap(), ["a", "b.zst"]);
    let mut seen = Seen::default();
    assert_eq!(read_to_end(&mut *source.open("b.zst", None).unwrap(), &mut seen), ReadOutcome::End);
    assert_eq!(seen.values(), ["two"]);
    assert!(room.source("kind = 'file'\npath = 'x.gz'\nformat = 'lines'\nfollow = true").is_err());
}

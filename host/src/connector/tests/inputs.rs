//! What files may hold, and what becomes of it.

use std::io::{Read, Write};

use proptest::prelude::*;

use super::super::lines::{LineReader, LineRules};
use super::super::window::{Feed, Filled, Window};
use super::*;
use crate::record::NO_TIME;

fn lines_of(content: impl AsRef<[u8]>) -> Seen {
    let room = Room::new();
    room.write("in", content);
    check_resuming(&*room.file("in", "format = 'lines'"))
}

fn jsonl_of(content: impl AsRef<[u8]>, settings: &str) -> Seen {
    let room = Room::new();
    room.write("in", content);
    check_resuming(&*room.file("in", &format!("format = 'jsonl'\n{settings}")))
}

fn csv_of(content: impl AsRef<[u8]>, settings: &str) -> Seen {
    let room = Room::new();
    room.write("in", content);
    check_resuming(&*room.file("in", &format!("format = 'csv'\n{settings}")))
}

#[test]
fn lines_end_with_a_line_feed_or_with_the_file() {
    let check = |content: &[u8], expected: &[&str]| assert_eq!(lines_of(content).values(), expected);
    check(b"", &[]);
    check(b"\n", &[""]);
    check(b"one", &["one"]);
    check(b"one\ntwo\n", &["one", "two"]);
    check(b"one\n\ntwo", &["one", "", "two"]);
    check(b"one\r\n\r\ntwo\r", &["one", "", "two"]);
    check(b"a\rb\nc", &["a\rb", "c"]);
    check(b"\xEF\xBB\xBFone\n\xEF\xBB\xBFtwo", &["one", "\u{feff}two"]);
    check(b"\xEF\xBB\xBF", &[]);
    check(b"\xEF\xBB\xBF\r\nx", &["", "x"]);
    check(b"a\xffb\n", &["a\u{fffd}b"]);
}

#[test]
fn the_key_of_a_line_is_empty_or_the_line() {
    assert_eq!(lines_of("a\nb").records, [("".into(), "a".into(), NO_TIME), ("".into(), "b".into(), NO_TIME)]);
    let room = Room::new();
    room.write("in", "a\nb");
    assert_eq!(all(&*room.file("in", "format = 'lines'\nkey = '.'")).keys(), ["a", "b"]);
    assert!(room.source("kind = 'file'\npath = 'in'\nformat = 'lines'\nkey = '/a'").is_err());
    assert!(room.source("kind = 'file'\npath = 'in'\nformat = 'lines'\ntime = '.'").is_err());
}

#[test]
fn json_lines_skip_empty_lines_and_keep_the_rest_as_it_is() {
    let seen = jsonl_of("\u{feff}{\"a\":1}\r\n\n  \n{\"a\": 2 }\n\r\nnot json", "");
    assert_eq!(seen.values(), ["{\"a\":1}", "{\"a\": 2 }", "not json"]);
    assert_eq!(seen.bad, []);
}

#[test]
fn records_without_key_or_time_are_bad_and_say_where_they_lie() {
    let content = "{\"k\":\"a\",\"t\":5}\n{\"t\":5}\n\n{\"k\":\"b\",\"t\":\"x\"}\n{\"k\":\"c\",\"t\":4}\n{\"k\":";
    let seen = jsonl_of(content, "key = '/k'\ntime = '/t'");
    assert_eq!(seen.keys(), ["a", "c"]);
    assert_eq!(seen.records.iter().map(|record| record.2).collect::<Vec<_>>(), [5, 4]);
    let bad: Vec<_> = seen.bad.iter().map(|bad| (bad.place.as_str(), bad.bytes.as_slice())).collect();
    assert_eq!(
        bad,
        [
            ("in:2, byte 16", b"{\"t\":5}".as_slice()),
            ("in:4, byte 25", b"{\"k\":\"b\",\"t\":\"x\"}"),
            ("in:6, byte 59", b"{\"k\":"),
        ]
    );
    assert_eq!(seen.bad[0].error, "read the key `/k`: the record has no such value");
}

#[test]
fn json_lines_that_are_not_utf8_are_bad() {
    let seen = jsonl_of(b"{\"a\":\"\xff\"}\n{\"a\":1}\n", "");
    assert_eq!(seen.values(), ["{\"a\":1}"]);
    assert_eq!(seen.bad[0].error, "the record is not UTF-8 at byte 6");
    assert_eq!(seen.bad[0].bytes, b"{\"a\":\"\xff\"}");
}

#[test]
fn a_ten_megabyte_record_is_read_whole() {
    let long = "x".repeat(10_000_000);
    let seen = lines_of(format!("before\n{long}\nafter\n"));
    assert_eq!(seen.values(), ["before", long.as_str(), "after"]);
}

#[test]
fn a_record_longer_than_allowed_is_bad_and_skipped() {
    let long = "y".repeat(3_000_000);
    for content in
        [format!("before\n{long}\nafter\n"), format!("before\n{long}\r\nafter"), format!("before\nafter\n{long}")]
    {
        let room = Room::new();
        room.write("in", &content);
        let seen = check_resuming(&*room.file("in", "format = 'lines'\nrecord-max = 1000"));
        assert_eq!(seen.values(), ["before", "after"]);
        assert_eq!(seen.bad.len(), 1);
        assert_eq!(seen.bad[0].bytes.len(), 64 << 10);
        assert_eq!(seen.bad[0].error, "the record is longer than `record-max` (1000 bytes)");
    }
}

#[test]
fn the_longest_record_allowed_is_read() {
    let room = Room::new();
    for (length, ending) in [(1000, "\n"), (1000, "\r\n"), (1000, ""), (1001, "\n"), (1001, "")] {
        room.write("in", format!("{}{ending}", "z".repeat(length)));
        let seen = all(&*room.file("in", "format = 'lines'\nrecord-max = 1000"));
        assert_eq!(
            (seen.records.len(), seen.bad.len()),
            if length == 1000 { (1, 0) } else { (0, 1) },
            "{length} {ending:?}"
        );
    }
}

#[test]
fn a_csv_record_is_an_object_of_strings_or_the_line() {
    let content = "\u{feff}id,\"na\"\"me\",t\r\n1,\"a, \"\"b\"\"\nc\",5\r\n\r\n2,,6\n3,x\n4,é,oops\n5,y,7";
    let seen = csv_of(content, "key = 'id'\ntime = 't'");
    assert_eq!(
        seen.records,
        [
            ("1".into(), r#"{"id":"1","na\"me":"a, \"b\"\nc","t":"5"}"#.into(), 5),
            ("2".into(), r#"{"id":"2","na\"me":"","t":"6"}"#.into(), 6),
            ("5".into(), r#"{"id":"5","na\"me":"y","t":"7"}"#.into(), 7),
        ]
    );
    assert_eq!(seen.bad.len(), 2);
    assert_eq!(seen.bad[0].error, "the record has 2 fields, but the header has 3");
    assert_eq!(seen.bad[0].bytes, b"3,x");
    assert!(seen.bad[0].place.starts_with("in:6, "), "{}", seen.bad[0].place);
    let raw = csv_of(content, "key = '.'\ncsv-value = 'raw'");
    assert_eq!(raw.values(), ["1,\"a, \"\"b\"\"\nc\",5", "2,,6", "4,é,oops", "5,y,7"]);
    assert_eq!(raw.keys(), raw.values());
}

#[test]
fn csv_without_records_is_empty() {
    for content in ["", "\n", "a,b", "a,b\n", "\u{feff}a,b\r\n\r\n"] {
        assert_eq!(csv_of(content, "key = 'a'"), Seen::default(), "{content:?}");
    }
}

#[test]
fn csv_records_that_are_too_long_too_wide_or_not_utf8_are_bad() {
    let mut content = b"a,b\n1,\"".to_vec();
    content.extend(vec![b'q'; 600_000]);
    content.extend(b"\n\"\n2,x\n");
    content.extend(vec![b','; 900]);
    content.extend(b"\n3,\xff\n4,y\n");
    let seen = csv_of(&content, "key = 'a'\nrecord-max = 1000");
    assert_eq!(seen.keys(), ["2", "4"]);
    let errors: Vec<_> = seen.bad.iter().map(|bad| bad.error.as_str()).collect();
    assert_eq!(
        errors,
        [
            "the record is longer than `record-max` (1000 bytes)",
            "the record has 901 fields, but the header has 2",
            "field 2 is not UTF-8",
        ]
    );
    assert_eq!(seen.bad[1].place, "in:5, byte 600014");
}

#[test]
fn a_column_that_is_not_there_is_an_error_that_lists_the_columns() {
    let room = Room::new();
    room.write("in.csv", "id,name\n1,x\n");
    for setting in ["key = 'nme'", "time = 'nme'"] {
        let source = room.file("in.csv", &format!("format = 'csv'\n{setting}"));
        let mut reader = source.open("in.csv", None).unwrap();
        let error = read(&mut *reader, 1, &mut Seen::default()).unwrap_err().to_string();
        assert!(error.contains("`in.csv`") && error.contains("`nme`") && error.contains("`id`, `name`"), "{error}");
    }
}

#[test]
fn compressed_files_of_several_parts_are_read_and_resumed() {
    let parts = ["one\ntw", "o\nthree\n", "four"];
    let gzip: Vec<u8> = parts
        .iter()
        .flat_map(|part| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(part.as_bytes()).unwrap();
            encoder.finish().unwrap()
        })
        .collect();
    let zstd: Vec<u8> = parts.iter().flat_map(|part| zstd::encode_all(part.as_bytes(), 1).unwrap()).collect();
    let room = Room::new();
    for (name, content, settings) in [
        ("a.gz", &gzip, ""),
        ("a.zst", &zstd, ""),
        ("plain", &gzip, "compression = 'gzip'"),
        ("plain", &zstd, "compression = 'zstd'"),
    ] {
        room.write(name, content);
        let source = room.file(name, &format!("format = 'lines'\n{settings}"));
        assert_eq!(check_resuming(&*source).values(), ["one", "two", "three", "four"]);
    }
    room.write("empty.gz", "");
    assert_eq!(all(&*room.file("empty.gz", "format = 'lines'")), Seen::default());
    room.write("torn.gz", &gzip[..gzip.len() - 9]);
    let mut torn = room.file("torn.gz", "format = 'lines'").open("torn.gz", None).unwrap();
    assert!(read(&mut *torn, 1_000, &mut Seen::default()).unwrap_err().to_string().contains("torn.gz"));
}

#[test]
fn a_long_compressed_file_is_resumed_far_behind_its_start() {
    let content: String = (0..60_000).map(|number| format!("line {number}\n")).collect();
    let room = Room::new();
    room.write("in.zst", zstd::encode_all(content.as_bytes(), 1).unwrap());
    room.write("in", &content);
    for name in ["in", "in.zst"] {
        let source = room.file(name, "format = 'lines'");
        let mut reader = source.open(name, None).unwrap();
        let mut seen = Seen::default();
        read(&mut *reader, 41_000, &mut seen).unwrap();
        let mut rest = source.open(name, Some(&reader.position())).unwrap();
        read_to_end(&mut *rest, &mut seen);
        assert!(seen.values().into_iter().eq(content.lines()));
    }
}

#[test]
fn splits_are_the_visible_files_in_order() {
    let room = Room::new();
    for name in ["in/b.txt", "in/a.txt", "in/.hidden", "in/_temporary", "in/sub/c.txt", "in/sub/_d.txt"] {
        room.write(name, name);
    }
    let splits = |path: &str| room.file(path, "format = 'lines'").splits().unwrap();
    assert_eq!(splits("in"), ["a.txt", "b.txt"]);
    assert_eq!(splits("in/"), ["a.txt", "b.txt"]);
    assert_eq!(splits("in/*.txt"), ["a.txt", "b.txt"]);
    assert_eq!(splits("in/**/*.txt"), ["a.txt", "b.txt", "sub/c.txt"]);
    assert_eq!(splits("i*/a.txt"), ["in/a.txt"]);
    assert_eq!(splits("in/_temporary"), ["_temporary"]);
    let globbed = room.file("in/*/*.txt", "format = 'lines'");
    assert_eq!(all(&*globbed).values(), ["in/sub/c.txt"]);
    assert_eq!(globbed.total_bytes(), Some(12));
    std::fs::create_dir(room.path().join("none")).unwrap();
    for path in ["none", "in/*.csv", "missing"] {
        let error = room.file(path, "format = 'lines'").splits().unwrap_err().to_string();
        assert!(error.contains(path), "{error}");
    }
}

#[test]
fn globs_may_begin_at_the_present_directory() {
    for base in ["", "."] {
        for path in ["src/connector/tests/inp*.rs", "./src/./connector/tests/inp*.rs"] {
            let manifest = toml::from_str(&format!("kind = 'file'\npath = '{path}'\nformat = 'lines'")).unwrap();
            let source = source_from(&manifest, Path::new(base)).unwrap();
            assert_eq!(source.splits().unwrap(), ["inputs.rs"], "{base} {path}");
            assert!(source.open("inputs.rs", None).is_ok());
        }
    }
}

#[test]
fn what_is_not_a_regular_file_is_refused() {
    let source = Room::new().file("/dev/null", "format = 'lines'");
    assert!(source.open("null", None).err().unwrap().to_string().contains("not a regular file"));
}

#[test]
fn a_file_that_shrank_or_was_replaced_is_not_resumed() {
    let content: String = (0..5_000).map(|number| format!("line {number}\n")).collect();
    let room = Room::new();
    room.write("in", &content);
    let source = room.file("in", "format = 'lines'");
    let mut reader = source.open("in", None).unwrap();
    read(&mut *reader, 4_000, &mut Seen::default()).unwrap();
    let position = reader.position();
    let refused = |content: &str| {
        room.write("in", content);
        source.open("in", Some(&position)).err().map(|error| error.to_string())
    };
    assert!(refused(&content[..100]).unwrap().contains("shrunk to 100 bytes"));
    assert!(refused(&content.replacen("line 3\n", "line x\n", 1)).unwrap().contains("replaced or changed"));
    assert!(refused(&content.replacen("line 3999", "line 399x", 1)).unwrap().contains("replaced or changed"));
    assert_eq!(refused(&format!("{content}more\n")), None);
    assert_eq!(refused(&content), None);
    assert!(source.open("in", Some(&Position(serde_json::json!({"next": 3})))).is_err());
}

#[test]
fn standard_input_is_read_once_and_ends() {
    let settings = "format = 'jsonl'\nkey = '/k'";
    let input = b"{\"k\":1}\n{\"k\":2}\nbad\n{\"k\":3}".as_slice();
    let source = super::super::stdin::Stdin::reading(&toml::from_str(settings).unwrap(), Box::new(input)).unwrap();
    assert!(!source.is_replayable());
    let mut seen = Seen::default();
    let mut reader = source.open("stdin", None).unwrap();
    while read(&mut *reader, 1_000, &mut seen).unwrap() != ReadOutcome::End {}
    assert_eq!(seen.keys(), ["1", "2", "3"]);
    assert_eq!(seen.bad[0].place, "stdin:3, byte 16");
    assert!(source.open("stdin", None).is_err());
}

/// Gives bytes in pieces of the sizes told, in turn.
struct Pieces {
    rest: std::io::Cursor<Vec<u8>>,
    sizes: Vec<usize>,
    next: usize,
}

impl Feed for Pieces {
    fn fill(&mut self, space: &mut [u8]) -> Result<Filled, ConnectorError> {
        let size = self.sizes[self.next % self.sizes.len()].min(space.len());
        self.next += 1;
        Ok(match self.rest.read(&mut space[..size]).unwrap() {
            0 => Filled::End,
            bytes => Filled::Bytes(bytes),
        })
    }

    fn raw_bytes(&self) -> u64 {
        self.rest.position()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn lines_do_not_depend_on_how_bytes_arrive(
        content in "[ab\r\n]{0,60}",
        sizes in prop::collection::vec(1usize..9, 1..5),
        record_max in 1usize..12,
    ) {
        let feed = Pieces { rest: std::io::Cursor::new(content.clone().into_bytes()), sizes, next: 0 };
        let mut reader = LineReader::new("in", Window::at_start(Box::new(feed)), LineRules::Any(false), record_max);
        let mut seen = Seen::default();
        read_to_end(&mut reader, &mut seen);
        let lines = content.split_inclusive('\n').map(|line| line.strip_suffix('\n').unwrap_or(line));
        let lines: Vec<_> = lines.map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
        let unterminated_and_empty = content.ends_with('\r') && lines.last() == Some(&"");
        let expected: Vec<_> = lines[..lines.len() - usize::from(unterminated_and_empty)].to_vec();
        let (good, long): (Vec<&str>, Vec<&str>) = expected.into_iter().partition(|line| line.len() <= record_max);
        prop_assert_eq!(seen.values(), good);
        prop_assert_eq!(seen.bad.len(), long.len());
    }

    #[test]
    fn lines_resume_at_every_record(content in "(\u{feff})?[ab\r\n]{0,40}") {
        lines_of(content);
    }

    #[test]
    fn json_lines_resume_at_every_record(lines in prop::collection::vec(r#"\{"k":[0-9a]{1,2}\}|\r?|xy"#, 0..12)) {
        jsonl_of(lines.join("\n"), "key = '/k'");
    }

    #[test]
    fn csv_agrees_with_another_reader_and_resumes_at_every_record(content in "a,b\r?\n[xy\",\r\n]{0,40}") {
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(content.as_bytes());
        let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        let good: Vec<String> = records
            .iter()
            .filter(|record| record.len() == 2)
            .map(|record| serde_json::json!({ "a": &record[0], "b": &record[1] }).to_string())
            .collect();
        let seen = csv_of(&content, "key = 'a'");
        prop_assert_eq!(seen.values(), good);
        prop_assert_eq!(seen.bad.len(), records.len() - seen.records.len());
    }
}

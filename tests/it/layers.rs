//! Who may import whom: a room may name those that stand above it in `lib.rs`, never those below.
//!
//! The order of the modules in `lib.rs` is the table. Some crates have one room each, or two, so that replacing one of them touches little.
//! Rooms name each other by `crate::ROOM`; comments do not count.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Crates that only these rooms may name.
const RESERVED: [(&str, &[&str]); 8] = [
    ("redb", &["state"]),
    ("wasmtime", &["plugin"]),
    ("capnp", &["lookup", "cluster"]),
    ("capnp_rpc", &["lookup", "cluster"]),
    ("rustls", &["cluster"]),
    ("tokio_rustls", &["cluster"]),
    ("axum", &["admin"]),
    ("hyper", &["admin"]),
];

#[test]
fn imports_point_at_earlier_rooms_only() {
    let rooms = rooms();
    let mut faults = String::new();
    for (place, room) in rooms.iter().enumerate() {
        for (file, code) in sources_of(room) {
            for named in rooms_named(&code) {
                if rooms.iter().position(|other| *other == named).is_some_and(|other| other > place) {
                    writeln!(faults, "{} ({room}) names `{named}`, which is below it", file.display()).unwrap();
                }
            }
        }
    }
    assert!(faults.is_empty(), "arrows that run back up:\n{faults}");
}

#[test]
fn reserved_crates_are_named_in_their_rooms_only() {
    let mut faults = String::new();
    for room in rooms() {
        for (file, code) in sources_of(&room) {
            for (name, owners) in RESERVED {
                if !owners.contains(&room.as_str()) && names_crate(&code, name) {
                    let owners = owners.join("`, `");
                    writeln!(faults, "{} ({room}) names `{name}`, which only `{owners}` may", file.display()).unwrap();
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

fn source_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The rooms in the order of their layers.
fn rooms() -> Vec<String> {
    let code = read_code(&source_dir().join("lib.rs"));
    let names = code.lines().filter_map(|line| line.trim().trim_start_matches("pub ").strip_prefix("mod "));
    let rooms = names.filter_map(|rest| rest.strip_suffix(';')).map(str::to_owned).collect::<Vec<_>>();
    assert!(rooms.len() > 5, "lib.rs lists its rooms as `pub mod ROOM;`, found {rooms:?}");
    rooms
}

/// The files of a room with their code.
fn sources_of(room: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    collect(&source_dir().join(room), &mut files);
    files.extend(Some(source_dir().join(format!("{room}.rs"))).filter(|file| file.exists()));
    assert!(!files.is_empty(), "the room `{room}` has files");
    files.into_iter().map(|file| (file.strip_prefix(source_dir()).unwrap().to_owned(), read_code(&file))).collect()
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in dir.read_dir().into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn read_code(file: &Path) -> String {
    without_comments(&std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The first segments of all paths that begin with `crate::`, in groups as well.
fn rooms_named(code: &str) -> Vec<&str> {
    let mut named = Vec::new();
    for (start, prefix) in code.match_indices("crate::") {
        if code[..start].ends_with(is_part_of_word) {
            continue;
        }
        let rest = &code[start + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(group) => named.extend(items_of_group(group).into_iter().map(first_word)),
            None => named.push(first_word(rest)),
        }
    }
    named
}

/// The items of `a::{b, c}, d}`, at the outermost level.
fn items_of_group(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut items) = (0, 0, Vec::new());
    for (place, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => {
                items.push(&group[start..place]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&group[start..place]);
                start = place + 1;
            }
            _ => {}
        }
    }
    items
}

fn first_word(text: &str) -> &str {
    let text = text.trim_start();
    text.split(|char| !is_part_of_word(char)).next().unwrap_or_default()
}

/// Whether code has a path that begins with the crate `name`, or brings the crate in by `use`.
fn names_crate(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(start, _)| {
        let (before, after) = (&code[..start], &code[start + name.len()..]);
        let begins_path = !before.ends_with(is_part_of_word) && !before.ends_with("::");
        begins_path && (after.starts_with("::") || before.trim_end().ends_with("use") && after.starts_with([';', ' ']))
    })
}

fn is_part_of_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

fn check_named(code: &str, expected: &[&str]) {
    assert_eq!(rooms_named(&without_comments(code)), expected, "{code}");
}

#[test]
fn paths_are_found_wherever_they_stand() {
    check_named("use crate::key::Partition;", &["key"]);
    check_named("use crate::{key, state::{Tables, redb}, time::Clock};", &["key", "state", "time"]);
    check_named("use crate::{\n    job::Job,\n    task,\n};", &["job", "task", ""]);
    check_named("let x = crate::job::run(); // not crate::task", &["job"]);
    check_named("/// See [`crate::job`].\nfn f(x: pub_crate::X, y: &crate::graph::Y) {}", &["graph"]);
}

#[test]
fn crates_are_told_from_modules_of_the_same_name() {
    assert!(names_crate("use redb::Database;", "redb"));
    assert!(names_crate("fn f(x: &redb::Table) {}", "redb"));
    assert!(names_crate("use redb;", "redb"));
    assert!(!names_crate("use super::redb::Rows;", "redb"));
    assert!(!names_crate("mod redb; let redb = 1; let text = \"redb\";", "redb"));
    assert!(!names_crate("use my_redb::X;", "redb"));
}

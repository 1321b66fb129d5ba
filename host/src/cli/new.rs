//! `wasmill new`: makes a Rust guest crate that builds, runs and passes its test as it is.
//!
//! The SDK is part of this program and is copied beside the guest, so that a guest needs no registry to have it.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use rust_embed::RustEmbed;

use super::{Failure, failed, print};

/// What `wasmill new` is given.
#[derive(Debug, Args)]
pub struct New {
    /// The folder to make; its last part names the crate and the job.
    pub name: PathBuf,
}

/// Makes the crate and prints what to do next.
///
/// # Errors
/// When the name does not fit, the folder exists, or a file cannot be written.
pub(super) fn run(arguments: &New) -> Result<(), Failure> {
    let dir = &arguments.name;
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    check_name(name).map_err(Failure::usage)?;
    make_directory(dir)?;
    fill(dir, name).map_err(failed)?;
    let dir = dir.display();
    print(&format!("{dir} is made. Next:\n  cd {dir}\n  wasmill build job.toml\n  wasmill run job.toml\n"))
}

fn fill(dir: &Path, name: &str) -> anyhow::Result<()> {
    for (path, text) in guest_files(name) {
        write(&dir.join(path), text.as_bytes())?;
    }
    for path in Sdk::iter() {
        let file = Sdk::get(&path).expect("every path that is listed is embedded");
        write(&dir.join("wasmill-sdk").join(&*path), &file.data)?;
    }
    Ok(())
}

/// The SDK, as it was when this program was built.
#[derive(RustEmbed)]
#[folder = "../guest-sdk"]
struct Sdk;

fn guest_files(name: &str) -> [(&'static str, String); 5] {
    let fill = |template: &str| template.replace("{{name}}", name).replace("{{crate}}", &name.replace('-', "_"));
    [
        ("Cargo.toml", fill(include_str!("../../templates/rust/Cargo.toml.in"))),
        ("src/lib.rs", fill(include_str!("../../templates/rust/lib.rs.in"))),
        ("job.toml", fill(include_str!("../../templates/rust/job.toml.in"))),
        ("data/sample.jsonl", include_str!("../../templates/rust/sample.jsonl").to_owned()),
        (".gitignore", include_str!("../../templates/rust/gitignore").to_owned()),
    ]
}

/// Names that cargo or the template's own code have a use for. Keywords of Rust are refused, too: a crate's name is an identifier.
const TAKEN: [&str; 60] = [
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "build",
    "const",
    "continue",
    "core",
    "crate",
    "deps",
    "do",
    "dyn",
    "else",
    "enum",
    "examples",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "incremental",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc-macro",
    "proc_macro",
    "pub",
    "ref",
    "return",
    "self",
    "serde",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "unsafe",
    "use",
    "wasmill-sdk",
    "wasmill_sdk",
    "where",
    "while",
];

/// Says what keeps `name` from naming a crate.
fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("a name is needed, such as `page-visits`".to_owned());
    }
    let first = name.chars().next().is_some_and(|first| first.is_ascii_lowercase());
    let others = name.chars().all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || "-_".contains(char));
    if !first || !others {
        return Err(format!(
            "`{name}` cannot name a crate: use small letters, digits, `-` and `_`, with a letter first, such as `page-visits`"
        ));
    }
    if TAKEN.contains(&name) {
        return Err(format!("`{name}` is taken in Rust: choose another name"));
    }
    Ok(())
}

fn make_directory(dir: &Path) -> Result<(), Failure> {
    if let Some(parent) = dir.parent() {
        make(parent).map_err(failed)?;
    }
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(Failure::usage(format!("{} is there already: choose another name, or remove it", dir.display())))
        }
        made => made.with_context(|| format!("cannot make {}", dir.display())).map_err(failed),
    }
}

fn make(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
}

fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if let Some(parent) = path.parent() {
        make(parent)?;
    }
    std::fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn check_refused(name: &str, fragment: &str) {
        let error = check_name(name).unwrap_err();
        assert!(error.contains(fragment), "{name}: {error}");
    }

    #[test]
    fn names_that_cannot_name_a_crate_are_refused() {
        check_refused("", "a name is needed");
        check_refused("9lives", "cannot name a crate");
        check_refused("My-Job", "cannot name a crate");
        check_refused("a.b", "cannot name a crate");
        check_refused("größe", "cannot name a crate");
        check_refused("match", "taken in Rust");
        check_refused("wasmill-sdk", "taken in Rust");
        assert!(check_name("page-visits_2").is_ok());
    }

    #[test]
    fn the_manifest_that_is_made_is_a_manifest() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("page-visits");
        std::fs::create_dir(&name).unwrap();
        fill(&name, "page-visits").unwrap();
        let manifest: Manifest = toml::from_str(&std::fs::read_to_string(name.join("job.toml")).unwrap()).unwrap();
        assert_eq!(manifest.job.name, "page-visits");
        assert!(manifest.operators["summary"].component.ends_with("/page_visits.wasm"));
    }

    #[test]
    fn the_sdk_lies_beside_the_guest_and_stands_alone() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("visits");
        std::fs::create_dir(&name).unwrap();
        fill(&name, "visits").unwrap();
        assert!(name.join("wasmill-sdk/src/lib.rs").is_file());
        let manifest = std::fs::read_to_string(name.join("wasmill-sdk/Cargo.toml")).unwrap();
        let inherits = manifest.lines().any(|line| !line.starts_with('#') && line.contains("workspace"));
        assert!(!inherits, "the SDK's Cargo.toml inherits from a workspace that a copy does not have");
    }
}

//! `wasmill new`: makes a function in a language of choice that builds, runs and passes its test as it is.
//!
//! Templates and SDKs are part of this program and are copied beside the function, so that it needs no registry to have them. What all languages share of a new folder, the manifest
//! and its sample records, lies in `templates/job`; a language's own file of the same name goes before it.

mod assemblyscript;
mod c;
mod cpp;
mod go;
mod javascript;
mod language;
mod python;
mod rust;
mod typescript;
mod zig;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rust_embed::RustEmbed;

use super::{Failure, failed, print};
use language::{LANGUAGES, Language};

/// What `wasmill new` is given.
#[derive(Debug, Args)]
pub struct New {
    /// The folder to make; its last part names the function and the job.
    pub name: PathBuf,
    /// The language of the function.
    #[arg(long = "lang", value_name = "LANG", default_value = LANGUAGES[0].name, value_parser = language_parser())]
    language: Language,
}

fn language_parser() -> impl TypedValueParser<Value = Language> {
    let known = PossibleValuesParser::new(LANGUAGES.iter().map(|language| language.name));
    known.try_map(|name| Language::find(&name).ok_or("there is no template for it"))
}

/// Makes the folder and prints what to do next.
///
/// # Errors
/// When the name does not fit, the folder exists, or a file cannot be written.
pub(super) fn run(arguments: &New) -> Result<(), Failure> {
    let dir = &arguments.name;
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    arguments.language.check_name(name).map_err(Failure::usage)?;
    make_directory(dir)?;
    fill(dir, name, &arguments.language).map_err(failed)?;
    let dir = dir.display();
    print(&format!("{dir} is made. Next:\n  cd {dir}\n  wasmill build job.toml\n  wasmill run job.toml\n"))
}

fn fill(dir: &Path, name: &str, language: &Language) -> anyhow::Result<()> {
    for (path, content) in template_files(name, language).into_iter().chain(sdk_files(language)) {
        write(&dir.join(path), &content)?;
    }
    Ok(())
}

/// The files of all templates, by their paths in `templates`.
#[derive(RustEmbed)]
#[folder = "templates"]
struct Templates;

/// The SDKs, as they were when this program was built.
#[derive(RustEmbed)]
#[folder = "../guest-sdk"]
struct Sdk;

const SHARED: &str = "job";

/// What the template of a language comes to, by the places in the new folder.
fn template_files(name: &str, language: &Language) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for folder in [SHARED, language.name] {
        for path in Templates::iter() {
            let Some(place) = path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')) else { continue };
            let content = Templates::get(&path).expect("every path that is listed is embedded").data;
            let (place, content) = filled(place, content.into_owned(), name, language);
            files.insert(place, content);
        }
    }
    files
}

/// A file of a template where it belongs. Those whose names end in `.in` have names to be filled in; hidden files are not hidden in the template.
fn filled(place: &str, content: Vec<u8>, name: &str, language: &Language) -> (String, Vec<u8>) {
    if place == "gitignore" {
        return (".gitignore".to_owned(), content);
    }
    let Some(place) = place.strip_suffix(".in") else { return (place.to_owned(), content) };
    let text = String::from_utf8_lossy(&content)
        .replace("{{component}}", language.component)
        .replace("{{build}}", language.build)
        .replace("{{name}}", name)
        .replace("{{crate}}", &name.replace('-', "_"));
    (place.to_owned(), text.into_bytes())
}

fn sdk_files(language: &Language) -> impl Iterator<Item = (String, Vec<u8>)> {
    Sdk::iter().filter_map(move |path| {
        let place = language.sdk_place(&path)?;
        Some((place, Sdk::get(&path)?.data.into_owned()))
    })
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

    /// A new function in a language, named `page-visits`.
    fn made(language: &Language) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("page-visits");
        fill(&folder, "page-visits", language).unwrap();
        (dir, folder)
    }

    #[test]
    fn the_manifest_that_is_made_is_a_manifest() {
        for language in LANGUAGES {
            let (_dir, folder) = made(language);
            let manifest: Manifest =
                toml::from_str(&std::fs::read_to_string(folder.join("job.toml")).unwrap()).unwrap();
            assert_eq!(manifest.job.name, "page-visits");
            let operator = &manifest.operators["summary"];
            assert!(operator.component.ends_with(".wasm"), "{language:?}");
            assert!(operator.build.is_some(), "{language:?}");
            assert!(folder.join("data/sample.jsonl").is_file() && folder.join(".gitignore").is_file(), "{language:?}");
        }
    }

    #[test]
    fn nothing_is_left_to_be_filled_in() {
        for language in LANGUAGES {
            for (place, content) in template_files("page-visits", language) {
                let text = String::from_utf8_lossy(&content);
                for word in ["{{name}}", "{{crate}}", "{{component}}", "{{build}}"] {
                    assert!(!text.contains(word), "{language:?}: {place} has {word}");
                }
            }
        }
    }

    #[test]
    fn the_sdk_of_rust_lies_beside_the_guest_and_stands_alone() {
        let (_dir, folder) = made(&Language::find("rust").unwrap());
        assert!(folder.join("wasmill-sdk/src/lib.rs").is_file());
        let manifest = std::fs::read_to_string(folder.join("wasmill-sdk/Cargo.toml")).unwrap();
        let inherits = manifest.lines().any(|line| !line.starts_with('#') && line.contains("workspace"));
        assert!(!inherits, "the SDK's Cargo.toml inherits from a workspace that a copy does not have");
    }
}

//! From a file to a manifest: read, override, check against the types, deserialise.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::validate::validate;
use super::{Document, Manifest, ManifestError, Problem, Sink};

/// A manifest and the text that it came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The manifest.
    pub manifest: Manifest,
    /// The text, for placing what is found wrong later.
    pub document: Document,
}

impl Loaded {
    /// The directory that the manifest lies in, absolute.
    pub fn directory(&self) -> &Path {
        self.document.directory()
    }

    /// A path as the manifest writes it, from the manifest's directory.
    pub fn resolve(&self, path: &str) -> PathBuf {
        self.directory().join(path)
    }

    /// The manifest as one of several hosts follows it: its state and its sinks' files lie in directories of its own.
    pub fn for_host(mut self, host: &str) -> Self {
        let own = |path: &str| Path::new(path).join(host).to_string_lossy().into_owned();
        self.manifest.job.state = own(&self.manifest.job.state);
        for sink in self.manifest.sinks.values_mut() {
            if let Sink::Files(files) = sink {
                files.path = own(&files.path);
            }
        }
        self
    }

    /// SHA-256 of what all hosts of a job must agree on: the manifest, less what may differ from one host to another: paths, the size of the machine, who may ask it.
    pub fn digest(&self) -> [u8; 32] {
        let mut value = serde_json::to_value(&self.manifest).expect("a manifest is made of strings and numbers");
        let mut forget = |path: &[&str]| {
            let (last, parents) = path.split_last().expect("a path has a last part");
            forget(&mut value, parents, last);
        };
        for path in [
            &["admin"] as &[&str],
            &["job", "state"],
            &["job", "memory"],
            &["sources", "*", "path"],
            &["sinks", "*", "path"],
            &["operators", "*", "component"],
            &["operators", "*", "build"],
            &["cluster", "tls"],
        ] {
            forget(path);
        }
        Sha256::digest(value.to_string()).into()
    }
}

/// Takes the field `last` out of what `parents` lead to, where `*` stands for every name.
fn forget(value: &mut serde_json::Value, parents: &[&str], last: &str) {
    let Some(fields) = value.as_object_mut() else { return };
    match parents.split_first() {
        None => _ = fields.remove(last),
        Some((&"*", parents)) => fields.values_mut().for_each(|value| forget(value, parents, last)),
        Some((name, parents)) => {
            if let Some(value) = fields.get_mut(*name) {
                forget(value, parents, last);
            }
        }
    }
}

/// Reads the manifest at `path` and applies `overrides`, each `dotted.path=value`: a value that is not TOML is taken as a string.
///
/// # Errors
/// [`ManifestError`] with everything that is wrong: a file that cannot be read, text that is not TOML, fields that are unknown, missing or
/// of the wrong type, overrides that do not apply.
pub fn load(path: &Path, overrides: &[String]) -> Result<Loaded, ManifestError> {
    let file = path.display().to_string();
    let refuse =
        |message: String, help: Option<String>| ManifestError::new(vec![Problem::of_file(&file, message, help)]);
    let bytes = std::fs::read(path).map_err(|error| {
        let help = error.kind() == std::io::ErrorKind::NotFound;
        refuse(
            format!("cannot read the manifest `{file}`: {error}"),
            help.then(|| "`wasmill new NAME` makes a function with a manifest".to_owned()),
        )
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        refuse(format!("`{file}` is not UTF-8 text: line {line} has a byte that is none of it"), None)
    })?;
    let absolute = std::path::absolute(path)
        .map_err(|error| refuse(format!("cannot tell the directory of `{file}`: {error}"), None))?;
    let directory = absolute.parent().unwrap_or(&absolute).to_owned();
    load_text(&file, directory, &text, overrides)
}

/// As [`load`], from a text that is said to be that of `file`, with `directory` for its paths.
///
/// # Errors
/// As [`load`].
pub fn load_text(file: &str, directory: PathBuf, text: &str, overrides: &[String]) -> Result<Loaded, ManifestError> {
    let document = Document::parse(file, directory, text, overrides).map_err(ManifestError::new)?;
    let faults = validate(&document.root);
    if !faults.is_empty() {
        return Err(ManifestError::new(document.problems_of_faults(faults)));
    }
    match Manifest::deserialize(document.to_table()) {
        Ok(manifest) => Ok(Loaded { manifest, document }),
        Err(error) => Err(ManifestError::new(vec![Problem::of_file(file, error.message(), None)])),
    }
}

//! Builds the guests of `tests/guests/languages`, one for each language beside Rust, by the commands that their manifests name.
//!
//! What a toolchain is made of, the commands fetch themselves, into a folder below the target directory. A language that cannot be built here is left out by name; where
//! `WASMILL_LANGUAGES` is `required`, that is an error.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, ensure};

use crate::workspace::{Profile, Workspace, run};

const FOLDER: &str = "tests/guests/languages";
const MANIFEST: &str = "job.toml";
const COMPONENT: &str = "behaviour.wasm";
/// What components are made of beside their own folders.
const SHARED: [&str; 3] = ["guest-sdk", "wit", "host/src/cli"];
/// What builds leave beside the sources, by the ends of names.
const MADE: [&str; 8] = [".wasm", ".bundle.js", "target", "state", "out", "__pycache__", ".venv", "node_modules"];

/// Builds what is not up to date. A component that cannot be built again is removed, so that nothing old is tested.
pub fn build(workspace: &Workspace, profile: Profile) -> anyhow::Result<()> {
    let folder = workspace.path(FOLDER);
    let entries = folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))?;
    let mut languages: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    languages.retain(|language| language.join(MANIFEST).is_file());
    languages.sort();
    let shared = SHARED.iter().filter_map(|part| newest(&workspace.path(part))).max();
    let mut skipped = Vec::new();
    for language in languages {
        let component = language.join(COMPONENT);
        let made = component.metadata().and_then(|made| made.modified()).ok();
        if made.is_some() && made > newest(&language).max(shared) {
            continue;
        }
        if build_one(workspace, profile, &language).is_err() {
            if component.exists() {
                std::fs::remove_file(&component).with_context(|| format!("cannot remove {}", component.display()))?;
            }
            skipped.push(language.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    let is_required = std::env::var("WASMILL_LANGUAGES").is_ok_and(|languages| languages == "required");
    let told = format!("skipped languages, which could not be built (see above): {}", skipped.join(", "));
    ensure!(skipped.is_empty() || !is_required, "{told}");
    if !skipped.is_empty() {
        eprintln!("{told}");
    }
    Ok(())
}

fn build_one(workspace: &Workspace, profile: Profile, language: &Path) -> anyhow::Result<()> {
    let mut command = std::process::Command::new(workspace.wasmill(profile));
    command.args(["build".as_ref(), language.join(MANIFEST).as_os_str()]);
    run(command.current_dir(workspace.path("")).env("WASMILL_TOOLS", workspace.target("tools")))
}

/// When the newest of a folder's sources was changed.
fn newest(folder: &Path) -> Option<SystemTime> {
    let changed = |path: PathBuf| {
        let name = path.file_name()?.to_string_lossy();
        if MADE.iter().any(|made| name.ends_with(made)) {
            None
        } else if path.is_dir() {
            newest(&path)
        } else {
            path.metadata().and_then(|file| file.modified()).ok()
        }
    };
    folder.read_dir().ok()?.flatten().filter_map(|entry| changed(entry.path())).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_build_leaves_is_no_source() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("target/deep")).unwrap();
        std::fs::write(dir.path().join("target/deep/file"), "").unwrap();
        std::fs::write(dir.path().join("behaviour.wasm"), "").unwrap();
        assert_eq!(newest(dir.path()), None);
        std::fs::create_dir(dir.path().join("src")).unwrap();
        std::fs::write(dir.path().join("src/lib.c"), "").unwrap();
        assert!(newest(dir.path()).is_some());
    }
}

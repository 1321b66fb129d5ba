//! Files that change: components are reloaded, sources built anew. By looking again and again, so that it works on every file system.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::Failure;
use crate::job::Reloads;
use crate::manifest::Loaded;

/// The time between two looks. What is being written is left alone until it was the same twice.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Directories with more files than this are not searched to the end.
const FILES_MAX: usize = 20_000;
/// Names of directories in which tools put what they make.
const MADE: [&str; 4] = ["target", "node_modules", "__pycache__", "zig-out"];

/// When files were changed last, and their lengths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Files(BTreeMap<PathBuf, (SystemTime, u64)>);

impl Files {
    /// Those of `paths` that are there.
    pub(super) fn of<'p>(paths: impl Iterator<Item = &'p PathBuf>) -> Self {
        let stamp = |path: &PathBuf| {
            let about = path.metadata().ok().filter(|about| about.is_file())?;
            Some((path.clone(), (about.modified().ok()?, about.len())))
        };
        Self(paths.filter_map(stamp).collect())
    }

    /// All files below `directory`, but for those in or at `ignored` paths, hidden ones, and those in directories in which tools put what they make.
    pub(super) fn below(directory: &Path, ignored: &[PathBuf]) -> Self {
        let (mut open, mut found) = (vec![directory.to_owned()], Vec::new());
        while let Some(entries) = open.pop().map(|directory| directory.read_dir()) {
            for entry in entries.into_iter().flatten().flatten() {
                let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
                let is_left_out = name.starts_with('.') || MADE.contains(&name.as_str()) || ignored.contains(&path);
                match entry.file_type() {
                    Ok(kind) if !is_left_out && kind.is_dir() => open.push(path),
                    Ok(_) if !is_left_out && found.len() < FILES_MAX => found.push(path),
                    _ => {}
                }
            }
        }
        Self::of(found.iter())
    }

    /// The files that are new, gone, or other than `before`.
    pub(super) fn changed_since(&self, before: &Self) -> Vec<PathBuf> {
        let changed = self.0.iter().filter(|(path, stamp)| before.0.get(*path) != Some(stamp)).map(|(path, _)| path);
        changed.chain(before.0.keys().filter(|path| !self.0.contains_key(*path))).cloned().collect()
    }
}

/// Begins to reload components whenever their files change, until the job ends.
pub(super) fn reload_changed(loaded: &Loaded, reloads: Reloads) -> Result<(), Failure> {
    let mut operators: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    for (name, operator) in &loaded.manifest.operators {
        operators.entry(loaded.resolve(&operator.component)).or_default().push(name.clone());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(super::failed)?;
    let mut known = Files::of(operators.keys());
    let work = move || {
        let mut before = known.clone();
        while !reloads.have_ended() {
            std::thread::sleep(LOOK_EVERY);
            let now = Files::of(operators.keys());
            let is_still = now == before;
            before = now;
            if !is_still {
                continue;
            }
            for path in before.changed_since(&known) {
                // A file that is gone is on its way.
                let Ok(component) = std::fs::read(&path) else { continue };
                for operator in &operators[&path] {
                    // What is refused has been logged; the version that runs goes on.
                    let _ = runtime.block_on(reloads.reload(operator.clone(), component.clone(), None));
                }
            }
            known.clone_from(&before);
        }
    };
    std::thread::Builder::new().name("watch".to_owned()).spawn(work).map(drop).map_err(super::failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_gone_or_changed_is_told_and_what_tools_make_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| {
            std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            std::fs::write(path(name), text).unwrap();
        };
        let files = || Files::below(folder.path(), &[path("state")]);
        ["src/a.rs", "src/deep/b.rs", "target/x", ".git/y", "state/z"].iter().for_each(|name| write(name, "1"));
        let before = files();
        assert_eq!(before.0.keys().cloned().collect::<Vec<_>>(), [path("src/a.rs"), path("src/deep/b.rs")]);
        ["target/x", ".git/y", "state/z"].iter().for_each(|name| write(name, "22"));
        assert_eq!(files(), before);
        write("src/a.rs", "22");
        write("src/c.rs", "");
        std::fs::remove_file(path("src/deep/b.rs")).unwrap();
        assert_eq!(files().changed_since(&before), [path("src/a.rs"), path("src/c.rs"), path("src/deep/b.rs")]);
    }
}

//! `wasmill dev job.toml`: builds the components, runs the job, and builds and reloads them whenever their sources change.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;

use super::load::{CheckedJob, JobArgs};
use super::watch::{Files, LOOK_EVERY};
use super::{Failure, build, run, tell};
use crate::manifest::{Loaded, Sink, Source};

/// Arguments of `wasmill dev`.
#[derive(Debug, Args)]
pub(super) struct DevArgs {
    #[command(flatten)]
    job: JobArgs,
}

pub(super) fn run(arguments: &DevArgs) -> Result<(), Failure> {
    let CheckedJob { loaded, .. } = super::load_job(&arguments.job)?;
    let mut sources = Sources::new(&loaded);
    while !sources.build(&loaded) {
        tell("waiting for a change");
        sources.wait();
    }
    let work = move || loop {
        sources.wait();
        if !sources.build(&loaded) {
            tell("the version that runs goes on");
        }
    };
    std::thread::Builder::new().name("build".to_owned()).spawn(work).map_err(super::failed)?;
    run::develop(&arguments.job)
}

/// What components are built from: the files beside the manifest.
struct Sources {
    directory: PathBuf,
    ignored: Vec<PathBuf>,
    known: Files,
    /// What builds have written: no source, though it changes.
    made: BTreeSet<PathBuf>,
}

impl Sources {
    fn new(loaded: &Loaded) -> Self {
        let manifest = &loaded.manifest;
        let inputs = manifest.sources.values().filter_map(|source| match source {
            Source::File(file) => Some(&file.path),
            Source::Stdin(_) | Source::Nexmark(_) => None,
        });
        let outputs = manifest.sinks.values().filter_map(|sink| match sink {
            Sink::Files(files) => Some(&files.path),
            Sink::Stdout(_) | Sink::Blackhole(_) => None,
        });
        let components = manifest.operators.values().map(|operator| &operator.component);
        let ignored = inputs.chain(outputs).chain(components).chain([&manifest.job.state]);
        let ignored: Vec<PathBuf> = ignored.map(|path| loaded.resolve(path)).collect();
        let directory = loaded.directory().to_owned();
        Self { known: Files::below(&directory, &ignored), directory, ignored, made: BTreeSet::new() }
    }

    /// Waits until a source changes, and then until nothing changes any more.
    fn wait(&mut self) {
        let mut is_changed = false;
        loop {
            std::thread::sleep(LOOK_EVERY);
            let now = Files::below(&self.directory, &self.ignored);
            let changed = now.changed_since(&self.known);
            self.known = now;
            match changed.iter().any(|path| !self.made.contains(path)) {
                true => is_changed = true,
                false if is_changed => return,
                false => {}
            }
        }
    }

    /// Builds, and says what went wrong if it did not go well.
    fn build(&mut self, loaded: &Loaded) -> bool {
        let before = Files::below(&self.directory, &self.ignored);
        let built = build::all(&loaded.manifest, loaded.directory());
        self.known = Files::below(&self.directory, &self.ignored);
        self.made.extend(self.known.changed_since(&before));
        if let Err(error) = &built {
            tell(&format!("error: {error}"));
        }
        built.is_ok()
    }
}

//! What every measurement needs: where things lie, how much to run, and where figures go.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::bids;
use crate::cluster::Cluster;
use crate::job::{Job, remove};
use crate::manifest::Manifest;
use crate::process::{self, Usage};
use crate::report::Figure;
use crate::yardstick::Program;

/// The time that any one process may take: a fixed part, and a part a record. Both are ten times what slow machines need.
const LIMIT: Duration = Duration::from_secs(60);
const LIMIT_A_RECORD: Duration = Duration::from_micros(20);

/// Disk that stays free besides what a run writes.
const SPARE_BYTES: u64 = 2 << 30;

/// What a run of the whole suite may have on disk at once, besides the bids: two outputs, or a job's log and redb.
const OUTPUT_BYTES_A_RECORD: u64 = 400;
const STATE_BYTES: u64 = 2 << 30;

const SEED: u64 = 20_261_130;

/// A part of the suite: measured together, reported as figures whose names begin with the group's name.
pub struct Group {
    /// The group's name.
    pub name: &'static str,
    /// What follows the `/` in the names of its figures.
    pub figures: &'static [&'static str],
    /// Measures and reports them.
    pub run: fn(&mut Bench) -> Result<()>,
}

/// The run of a suite.
pub struct Bench {
    /// How many bids are processed.
    pub records: u64,
    /// How often each timed pair is run.
    pub runs: u32,
    /// The built `wasmill`.
    wasmill: PathBuf,
    /// This program, which has the yardsticks.
    yardsticks: PathBuf,
    /// The repository's root.
    root: PathBuf,
    /// Where input lies and jobs run.
    dir: PathBuf,
    filter: Option<String>,
    figures: Vec<Figure>,
}

impl Bench {
    /// Finds what is needed and checks that there is room on the disk.
    ///
    /// The built `wasmill` is looked for beside this program; input and jobs are kept under `bench` in the same target directory.
    ///
    /// # Errors
    /// When something is missing; the text says how to get it.
    pub fn new(records: u64, runs: u32, filter: Option<String>) -> Result<Self> {
        let yardsticks = std::env::current_exe().context("failed to find this program's own file")?;
        let profile_dir = yardsticks.parent().context("this program lies in no directory")?;
        let wasmill = profile_dir.join("wasmill");
        ensure!(
            wasmill.is_file(),
            "there is no {}; build it with `cargo build --release -p wasmill`",
            wasmill.display()
        );
        let dir = profile_dir.parent().context("this program lies in no target directory")?.join("bench");
        let root =
            Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("this package lies in no workspace")?.to_owned();
        fs::create_dir_all(&dir).with_context(|| format!("failed to create {}", dir.display()))?;
        let bench = Self { records, runs, wasmill, yardsticks, root, dir, filter, figures: Vec::new() };
        remove(&bench.out_dir())?;
        bench.check_free_disk()?;
        fs::create_dir_all(bench.out_dir())?;
        Ok(bench)
    }

    /// Whether a figure of this name was asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }

    /// Reports a figure: prints it, if it was asked for.
    pub fn report(&mut self, figure: Figure) {
        if self.wants(&figure.name) {
            println!("{}", figure.line());
            self.figures.push(figure);
        }
    }

    /// All that was reported.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }

    /// The file of the bids; made if need be.
    ///
    /// # Errors
    /// Those of making it.
    pub fn bids(&self) -> Result<PathBuf> {
        let path = self.dir.join(bids::file_name(self.records));
        let made = bids::ensure_file(&path, SEED, self.records)
            .with_context(|| format!("failed to make the input {}", path.display()))?;
        if made {
            eprintln!("made {} ({} bids)", path.display(), self.records);
        }
        Ok(path)
    }

    /// The component of an example function, by its crate's name with underscores.
    ///
    /// # Errors
    /// When it was not built.
    pub fn example_guest(&self, name: &str) -> Result<PathBuf> {
        self.guest("guest-examples", name)
    }

    /// The component of a function that only the benchmarks use: `echo` or `hold`.
    ///
    /// # Errors
    /// When it was not built.
    pub fn bench_guest(&self, name: &str) -> Result<PathBuf> {
        self.guest("benches/guest", &format!("wasmill_bench_{name}"))
    }

    /// The component of the guest that is the same in all languages, if it could be built.
    ///
    /// # Errors
    /// When that of Rust is missing.
    pub fn language_guest(&self, language: &str) -> Result<Option<PathBuf>> {
        if language == "rust" {
            return self.guest("tests/guests", "behaviour").map(Some);
        }
        let path = self.root.join("tests/guests/languages").join(language).join("behaviour.wasm");
        Ok(path.is_file().then_some(path))
    }

    /// Has the built `wasmill` load a component and ask it what it is, with its compiled code kept in `cache`.
    ///
    /// # Errors
    /// Those of [`process::run`].
    pub fn inspect(&self, component: &Path, cache: &Path) -> Result<Usage> {
        let mut command = Command::new(&self.wasmill);
        command.arg("inspect").arg(component).env("WASMILL_CACHE", cache);
        process::run(&mut command, &self.out("inspect.log"), LIMIT)
    }

    /// A path under the directory that is emptied before each run of the suite.
    pub fn out(&self, name: &str) -> PathBuf {
        self.out_dir().join(name)
    }

    /// A job in a directory of its own, whose run over `records` records is bounded in time.
    ///
    /// # Errors
    /// Those of [`Job::create`].
    pub fn job(&self, name: &str, manifest: &Manifest, records: u64) -> Result<Job> {
        Job::create(&self.wasmill, self.out(name), manifest, limit(records))
    }

    /// A job on several hosts, in a directory of its own.
    ///
    /// # Errors
    /// Those of [`Cluster::create`].
    pub fn cluster(&self, name: &str, hosts: usize) -> Result<Cluster> {
        Cluster::create(&self.wasmill, self.out(name), hosts)
    }

    /// This program.
    pub fn program(&self) -> &Path {
        &self.yardsticks
    }

    /// Runs a yardstick program over `input`.
    ///
    /// # Errors
    /// Those of [`process::run`].
    pub fn yardstick(&self, program: Program, input: &Path, output: &Path) -> Result<Usage> {
        crate::job::settle();
        let mut command = Command::new(&self.yardsticks);
        command.args(["yardstick", program.name()]).arg(input).arg(output);
        process::run(&mut command, &self.out("yardstick.log"), limit(self.records))
    }

    /// Where `wasmill build-rust` leaves the component of a crate.
    fn guest(&self, workspace: &str, name: &str) -> Result<PathBuf> {
        let target = self.root.join(workspace).join("target/wasm32-unknown-unknown/release");
        let path = target.join(format!("{name}.wasm"));
        if !path.is_file() {
            bail!("there is no {}; `cargo xtask bench` builds it", path.display());
        }
        Ok(path)
    }

    fn out_dir(&self) -> PathBuf {
        self.dir.join("out")
    }

    fn check_free_disk(&self) -> Result<()> {
        let disk = rustix::fs::statvfs(&self.dir).context("failed to ask for free disk space")?;
        let free = disk.f_bavail * disk.f_frsize;
        let needed = self.records * (bids::LINE_BYTES + OUTPUT_BYTES_A_RECORD) + STATE_BYTES + SPARE_BYTES;
        let mib = |bytes: u64| bytes >> 20;
        ensure!(
            free >= needed,
            "{} has {} MiB free, and {} MiB are needed; free some, or run fewer with `--records`",
            self.dir.display(),
            mib(free),
            mib(needed)
        );
        Ok(())
    }
}

fn limit(records: u64) -> Duration {
    LIMIT + LIMIT_A_RECORD * u32::try_from(records).unwrap_or(u32::MAX)
}

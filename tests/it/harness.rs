//! What integration tests share: a job in a folder of its own, run by the built `wasmill` under a time limit.
#![allow(dead_code, reason = "a helper may serve tests of one platform or none yet")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How long a command may take unless a test says otherwise. Generous: it is there to end a hanging test, not to measure.
pub const TIME_LIMIT: Duration = Duration::from_secs(120);
/// The same for a command that may have to compile crates.
pub const COMPILE_LIMIT: Duration = Duration::from_secs(900);
/// How long a killed command's children may keep its output open.
const GRACE: Duration = Duration::from_secs(5);

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the host lies in the repository")
}

/// The component of a guest, by its crate's name: of the guests for tests or of the examples.
///
/// # Panics
/// When it has not been built.
pub fn guest(name: &str) -> PathBuf {
    let file = format!("target/wasm32-unknown-unknown/release/{}.wasm", name.replace('-', "_"));
    let candidates = ["tests/guests", "guest-examples"].map(|workspace| repository().join(workspace).join(&file));
    let built = candidates.iter().find(|path| path.is_file()).cloned();
    built.unwrap_or_else(|| panic!("the guest `{name}` has not been built: run `cargo xtask test`, which builds it"))
}

/// How many times as much the tests of [`crate::soak`] do as in the suite: `WASMILL_SOAK`, else 1.
pub fn soak_times() -> u64 {
    std::env::var("WASMILL_SOAK").map_or(1, |times| times.parse().expect("WASMILL_SOAK is a whole number"))
}

/// The built program, without what the environment would change about it. `WASMILL_PROGRAM` may name another build of it.
pub fn wasmill(dir: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("WASMILL_PROGRAM").unwrap_or(env!("CARGO_BIN_EXE_wasmill").into()));
    command.current_dir(dir).env("NO_COLOR", "1").env_remove("RUST_LOG").env_remove("RUST_BACKTRACE");
    command.stdin(Stdio::null());
    command
}

/// The same command in a network of its own, made by `ip netns`.
fn within_network(network: &str, command: &Command) -> Command {
    let mut within = Command::new("ip");
    within.args(["netns", "exec", network]).arg(command.get_program()).args(command.get_args());
    within.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    if let Some(dir) = command.get_current_dir() {
        within.current_dir(dir);
    }
    within
}

/// Runs any command to its end.
pub fn run(command: Command, limit: Duration) -> Ended {
    Running::start(command, limit, None).wait()
}

/// The visible files of a files sink, in the order of their names. None where the folder is missing.
pub fn output_files(folder: &Path) -> Vec<PathBuf> {
    let files = folder.read_dir().into_iter().flatten().map(|entry| entry.expect("a folder can be listed").path());
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let mut visible = files.filter(|path| path.is_file() && !is_hidden(path)).collect::<Vec<_>>();
    visible.sort();
    visible
}

/// What a files sink has made visible: its files, one after another in the order of their names.
pub fn output(folder: &Path) -> Vec<u8> {
    output_files(folder).iter().flat_map(|file| std::fs::read(file).expect("output can be read")).collect()
}

/// Addresses of this machine where nobody listens, for processes that are to be told of each other. Their ports lie below those that systems give out by themselves (from 32,768 on):
/// a port of those could be given to somebody else before the process that it is for takes it, or while that one is started anew.
pub fn free_addresses(count: usize) -> Vec<SocketAddr> {
    const PORTS: Range<u16> = 10_000..30_000;
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16 % PORTS.len() as u16;
    let next = || PORTS.start + first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS.len() as u16;
    let addresses = std::iter::repeat_with(|| SocketAddr::from(([127, 0, 0, 1], next())));
    addresses.filter(|address| TcpListener::bind(address).is_ok()).take(count).collect()
}

/// A seed that differs from run to run. It is printed, and `WASMILL_TEST_SEED` sets it.
pub fn seed() -> u64 {
    let seed = std::env::var("WASMILL_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("WASMILL_TEST_SEED={seed}");
    seed
}

/// A deterministic sequence of numbers from a seed: SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug, Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// A number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides
    }
}

/// The lines of [`output`].
pub fn output_lines(folder: &Path) -> Vec<String> {
    let text = String::from_utf8(output(folder)).expect("the output is text");
    text.lines().map(str::to_owned).collect()
}

/// A job in a temporary folder: `job.toml`, inputs beside it, and whatever running it leaves there.
#[derive(Debug)]
pub struct Job {
    dir: TempDir,
    arguments: Vec<String>,
    time_limit: Duration,
}

impl Job {
    /// A job of this manifest, in which `{guest:NAME}` stands for the path of that guest's component.
    pub fn new(manifest: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder can be made");
        let job = Self { dir, arguments: Vec::new(), time_limit: TIME_LIMIT };
        job.write_manifest(manifest);
        job
    }

    /// Adds an input file.
    pub fn input(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        self.write(name, content);
        self
    }

    /// Adds arguments to `wasmill run`.
    pub fn arguments<T: AsRef<str>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// What was added to `wasmill run`.
    pub fn arguments_of_run(&self) -> &[String] {
        &self.arguments
    }

    /// Gives each command another time limit.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// A path in the job's folder.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(relative)
    }

    /// Writes a file in the job's folder, with the folders above it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder can be made");
        std::fs::write(path, content).expect("the file can be written");
    }

    /// Replaces the manifest.
    pub fn write_manifest(&self, manifest: &str) {
        self.write("job.toml", with_guests(manifest));
    }

    /// Runs the job to its end.
    pub fn run(&self) -> Ended {
        self.start().wait()
    }

    /// Starts the job.
    pub fn start(&self) -> Running {
        self.start_reading(Stdio::null())
    }

    /// Starts one of the job's hosts.
    pub fn start_host(&self, host: &str) -> Running {
        self.start_host_within(host, None)
    }

    /// Starts one of the job's hosts, in a network of its own where that is named.
    pub fn start_host_within(&self, host: &str, network: Option<&str>) -> Running {
        let summary = self.path(format!("summary-{host}.json"));
        _ = std::fs::remove_file(&summary);
        let mut command = wasmill(self.dir.path());
        if let Some(network) = network {
            command = within_network(network, &command);
        }
        command.args(["run", "job.toml", "--host", host, "--summary"]).arg(&summary).args(&self.arguments);
        Running::start(command, self.time_limit, Some(summary))
    }

    /// Starts the job with this as its standard input.
    pub fn start_reading(&self, input: impl Into<Stdio>) -> Running {
        _ = std::fs::remove_file(self.path(SUMMARY));
        let mut command = wasmill(self.dir.path());
        command.args(["run", "job.toml", "--summary", SUMMARY]).args(&self.arguments).stdin(input);
        Running::start(command, self.time_limit, Some(self.path(SUMMARY)))
    }

    /// Starts another subcommand in the job's folder.
    pub fn start_command<T: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = T>) -> Running {
        let mut command = wasmill(self.dir.path());
        command.args(arguments);
        Running::start(command, self.time_limit, None)
    }

    /// Runs another subcommand in the job's folder.
    pub fn command<T: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = T>) -> Ended {
        self.start_command(arguments).wait()
    }

    /// The newest epoch with an entry in the job's log; 0 when there is none.
    pub fn newest_epoch(&self) -> u64 {
        self.logged_epochs("state").max().unwrap_or(0)
    }

    /// The newest epoch with an entry in the log of one of the job's hosts; 0 when there is none.
    pub fn newest_epoch_of(&self, host: &str) -> u64 {
        self.logged_epochs(&format!("state/{host}")).max().unwrap_or(0)
    }

    /// The oldest epoch with an entry in the job's log: those before it are in redb. 0 when there is none.
    pub fn oldest_epoch(&self) -> u64 {
        self.logged_epochs("state").min().unwrap_or(0)
    }

    fn logged_epochs(&self, directory: &str) -> impl Iterator<Item = u64> {
        let entries = self.path(directory).join("log").read_dir().into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.path().file_stem()?.to_str()?.parse().ok())
    }

    /// All keys of a table with their values, as `wasmill state scan` shows them.
    pub fn state(&self, table: &str) -> BTreeMap<String, Value> {
        let scanned = self.command(["state", "scan", "job.toml", table, "--json", "--limit", "10000000"]).succeeded();
        let entry = |line: &str| {
            let mut entry: Value = serde_json::from_str(line).expect("each line is a JSON object");
            (entry["key"].as_str().expect("keys are text").to_owned(), entry["value"].take())
        };
        scanned.stdout.lines().map(entry).collect()
    }

    /// The lines that a files sink of the job has made visible.
    pub fn output_lines(&self, folder: &str) -> Vec<String> {
        output_lines(&self.path(folder))
    }
}

const SUMMARY: &str = "summary.json";

fn with_guests(manifest: &str) -> String {
    let mut parts = manifest.split("{guest:");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').expect("`{guest:NAME}` is closed");
        text += &guest(name).display().to_string();
        text += rest;
    }
    text
}

/// A command that is running. It is killed when it is dropped, or has run longer than its limit.
#[derive(Debug)]
pub struct Running {
    child: Child,
    deadline: Instant,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
    summary: Option<PathBuf>,
    shown: String,
}

impl Running {
    fn start(mut command: Command, limit: Duration, summary: Option<PathBuf>) -> Self {
        let shown = format!("{command:?}");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{shown}: {error}"));
        let stdout = read_in_background(child.stdout.take().expect("it is piped"));
        let stderr = read_in_background(child.stderr.take().expect("it is piped"));
        Self { child, deadline: Instant::now() + limit, stdout, stderr, summary, shown }
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process has not been waited for");
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the process can be waited for").is_none()
    }

    /// Ends the process as a crash would, by SIGKILL, and waits for its end.
    pub fn kill(mut self) -> Ended {
        self.child.kill().expect("the process has not been waited for");
        self.wait()
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// When the time limit is reached.
    pub fn wait(mut self) -> Ended {
        let left = || self.deadline.saturating_duration_since(Instant::now());
        let (Ok(stdout), Ok(stderr)) = (self.stdout.recv_timeout(left()), self.stderr.recv_timeout(left())) else {
            _ = self.child.kill();
            let told = self.stderr.recv_timeout(GRACE).map(|bytes| text(&bytes)).unwrap_or_default();
            panic!("{} did not end within its time limit; it said:\n{told}", self.shown);
        };
        let status = self.child.wait().expect("the process can be waited for");
        let summary = self.summary.as_ref().and_then(|path| std::fs::read(path).ok());
        let summary = summary.map(|bytes| serde_json::from_slice(&bytes).expect("the summary is JSON"));
        let shown = self.shown.clone();
        Ended { status, stdout: text(&stdout), stderr: text(&stderr), summary, shown }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read_in_background(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        _ = pipe.read_to_end(&mut bytes);
        sender.send(bytes)
    });
    receiver
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    /// How it ended: by an exit code or a signal.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
    /// The summary that `wasmill run` wrote, if it came that far.
    pub summary: Option<Value>,
    shown: String,
}

impl Ended {
    /// The exit code; none after a signal.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Asserts that all went well.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert!(self.status.success(), "{} ended badly ({}):\n{}{}", self.shown, self.status, self.stdout, self.stderr);
        self
    }

    /// Asserts that it failed with this exit code, without a panic, and said each of `fragments`.
    #[track_caller]
    pub fn failed(self, code: i32, fragments: &[&str]) -> Self {
        let Self { status, stderr, shown, .. } = &self;
        assert_eq!(self.code(), Some(code), "{shown} ended with {status}:\n{stderr}");
        assert!(!stderr.contains("panicked at"), "{shown} panicked:\n{stderr}");
        for fragment in fragments {
            assert!(stderr.contains(fragment), "{shown} did not say `{fragment}` but:\n{stderr}");
        }
        self
    }

    /// A whole number of the summary, by its JSON pointer without the first slash: `records_in`.
    #[track_caller]
    pub fn figure(&self, pointer: &str) -> u64 {
        let summary =
            self.summary.as_ref().unwrap_or_else(|| panic!("{} wrote no summary:\n{}", self.shown, self.stderr));
        let value = summary.pointer(&format!("/{pointer}")).and_then(Value::as_u64);
        value.unwrap_or_else(|| panic!("the summary has no whole number `{pointer}`: {summary}"))
    }
}
